"""Reading what models return: strict, tolerant, and what is refused."""

import json

import pytest
from fuzz import within
from hypothesis import given
from hypothesis import strategies as st

from cir_utils.schemas import (
    KINDS,
    Questions,
    SelectiveCoT,
    TextImagination,
    VisionImagination,
    cut_text,
    parse_json,
    parse_text,
    parse_truth,
)

COT = {
    "understanding": "a red dress with flowers",
    "explicit_targets": ["colour: blue", "pattern: polka dots"],
    "implicit_targets": [],
    "preserved": ["sleeves"],
    "selected": ["short sleeves"],
    "discarded": ["red", "flowers"],
    "description": "a blue dress with polka dots and short sleeves",
}
IMAGINED = {"target_caption": "two dogs: one {brown}, one white", "modifications": ["add a dog"]}
QUESTIONS = {
    "statements": [
        {"statement": "there are two dogs", "answer": True},
        {"statement": "a cat", "answer": False},
    ]
}


def as_json(value):
    return json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (SelectiveCoT, COT),
        (TextImagination, IMAGINED),
        (VisionImagination, {"target_caption": "a cat", "present": ["cat"], "absent": []}),
        (Questions, QUESTIONS),
    ],
)
def test_exact_json_is_good(schema, value):
    parsed = parse_json(as_json(value), schema)
    assert parsed.kind == "good" and parsed.problem == ""
    assert parsed.value.model_dump() == value
    assert list(schema.model_fields) == list(value)


@pytest.mark.parametrize(
    "text",
    [
        "```json\n" + as_json(IMAGINED) + "\n```",
        "Sure! Here it is:\n```json\r\n" + as_json(IMAGINED) + "\r\n```\r\nLet me know {if} it helps.",
        as_json({"target_caption": "a draft", "modifications": []}) + "\nBetter:\n" + as_json(IMAGINED),
        "```json\n"
        + as_json({"target_caption": "a draft", "modifications": []})
        + "\n```\nNo, better:\n```\n"
        + as_json(IMAGINED)
        + "\n```",
        as_json({"target_caption": "a draft", "modifications": []})
        + as_json(IMAGINED)
        + as_json({"note": "done"}),
        "{'target_caption': 'two dogs: one {brown}, one white', 'modifications': ['add a dog']}",
        as_json(IMAGINED)[:-1] + ",}",
        as_json(IMAGINED).replace('"]', '",]'),
        "<Response>" + as_json(IMAGINED) + "</Response>",
        as_json({"response": IMAGINED}),
        as_json([IMAGINED]),
        as_json({"Target Caption": IMAGINED["target_caption"], "modifications": "add a dog"}),
        as_json({"targetCaption": IMAGINED["target_caption"], "modifications": ["add a dog", "none"]}),
        "<think>{perhaps} a draft</think>" + as_json(IMAGINED) + "```",
    ],
)
def test_tolerant_reading(text):
    parsed = parse_json(text, TextImagination)
    assert parsed.kind == "repaired"
    assert parsed.value.model_dump() == IMAGINED


def test_single_quotes_with_a_bracket_and_a_colon_in_a_text_survive():
    parsed = parse_json('{"target_caption": "a: b: c } d", "modifications": []}', TextImagination)
    assert (parsed.kind, parsed.value.target_caption) == ("good", "a: b: c } d")


@pytest.mark.parametrize(
    ("text", "finish", "kind"),
    [
        ('{ "target_caption": "two do', "length", "cut"),
        ('{ "target_caption": "two do', "stop", "cut"),
        (as_json(IMAGINED) + '\n{"target_caption": "the final', "length", "cut"),
        ("a red red red red red", "length", "cut"),
        ('{"target_caption": "a red' + " red" * 400, "length", "cut"),
        ("<think>hm, hm", "length", "cut"),
        ("", "stop", "empty"),
        (" \n\t", "stop", "empty"),
        ("I'm sorry, but I can't help with that.", "stop", "refusal"),
        ("I cannot see an image.", "stop", "refusal"),
        ("two dogs", "stop", "off-format"),
        ('{"caption": "two dogs"}', "stop", "off-format"),
        ('{"target_caption": " ", "modifications": []}', "stop", "off-format"),
        ('{"target_caption": 3, "modifications": []}', "stop", "off-format"),
        ("[1, 2]", "stop", "off-format"),
        ("true", "stop", "off-format"),
    ],
)
def test_unusable_answers_have_a_class_and_no_value(text, finish, kind):
    parsed = parse_json(text, TextImagination, finish)
    assert (parsed.value, parsed.kind) == (None, kind)
    assert parsed.problem


def test_a_complete_object_before_the_limit_is_kept():
    parsed = parse_json(as_json(IMAGINED) + "\nand so on and so", TextImagination, "length")
    assert parsed.kind == "repaired" and parsed.value.modifications == ["add a dog"]


def test_an_unescaped_quote_is_mended_when_the_object_closes():
    parsed = parse_json('{"target_caption": "a 12" pipe", "modifications": []}', TextImagination)
    assert parsed.kind == "repaired"
    assert "pipe" in parsed.value.target_caption


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ("false", False),
        ('"False"', False),
        ('"false"', False),
        ('"false."', False),
        ("true", True),
        ('"True"', True),
        ("0", None),
        ("1", None),
        ('""', None),
        ('"no"', None),
        ('"unknown"', None),
        ("null", None),
        ("[]", None),
    ],
)
def test_expected_answers_are_never_read_by_truthiness(answer, read):
    parsed = parse_json('{"statements": [{"statement": "s", "answer": ' + answer + "}]}", Questions)
    if read is None:
        assert (parsed.value, parsed.kind) == (None, "off-format")
    else:
        assert parsed.value.statements[0].answer is read


def test_questions_need_one_statement_and_may_be_a_bare_list():
    assert parse_json('{"statements": []}', Questions).kind == "off-format"
    parsed = parse_json(as_json(QUESTIONS["statements"]), Questions)
    assert parsed.kind == "repaired" and parsed.value.model_dump() == QUESTIONS


def test_selective_cot_needs_targets_and_description_and_forgives_the_rest():
    short = {"Explicit Targets": "blue", "description": "a  blue\ndress"}
    parsed = parse_json(as_json(short), SelectiveCoT)
    assert parsed.kind == "repaired"
    assert parsed.value.explicit_targets == ["blue"] and parsed.value.description == "a blue dress"
    assert parsed.value.implicit_targets == [] and parsed.value.understanding == ""
    assert parse_json('{"description": "a blue dress"}', SelectiveCoT).kind == "off-format"
    assert parse_json('{"explicit_targets": ["blue"]}', SelectiveCoT).kind == "off-format"


def test_empty_targets_in_any_spelling_are_empty():
    vague = {**COT, "explicit_targets": ["None."], "implicit_targets": "none"}
    parsed = parse_json(as_json(vague), SelectiveCoT)
    assert parsed.value.explicit_targets == [] and parsed.value.implicit_targets == []


def test_targets_as_objects_become_texts():
    parsed = parse_json(
        as_json({**COT, "explicit_targets": {"colour": "blue"}, "selected": [{"a": "x", "b": "y"}]}),
        SelectiveCoT,
    )
    assert parsed.value.explicit_targets == ["colour: blue"] and parsed.value.selected == ["x: y"]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("a red car", "good", "a red car"),
        ("a red car\n on grass ", "good", "a red car on grass"),
        ('"a red car"', "repaired", "a red car"),
        ("```\na red car\n```", "repaired", "a red car"),
        ('{"caption": "a red car"}', "repaired", "a red car"),
        ("<think>well</think>a red car", "good", "a red car"),
        ('"red" and "blue"', "good", '"red" and "blue"'),
        ("...", "off-format", None),
        ("", "empty", None),
        ("Sorry, I can't do that.", "refusal", None),
    ],
)
def test_plain_text(text, kind, value):
    parsed = parse_text(text)
    assert (parsed.kind, parsed.value) == (kind, value)


def test_cut_text_keeps_whole_sentences_or_whole_words():
    assert parse_text("a car. a do", "length").kind == "cut"
    assert cut_text("a car. a do") == "a car."
    assert cut_text("a red ca") == "a red"
    assert cut_text("word") == ""


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Yes.", True),
        ("YES", True),
        (" yes\n", True),
        ("**Yes**", True),
        ('"Yes"', True),
        ("True", True),
        ("true.", True),
        ("yes, because it is red", True),
        ("Answer: yes", True),
        ("The answer is false.", False),
        ("No", False),
        ("No, it is another dog", False),
        ("False", False),
        (True, True),
        (False, False),
        ("Not sure", None),
        ("Yes and no", None),
        ("yesterday", None),
        ("unknown", None),
        ("", None),
        ("是", None),
        ("disagree, it is not ok", None),
        ("None", None),
        ("nothing", None),
    ],
)
def test_truth_is_read_word_by_word(text, read):
    assert parse_truth(text) is read


@given(st.text(max_size=60), st.sampled_from(["stop", "length"]))
def test_no_text_raises(text, finish):
    parsed = parse_json(text, SelectiveCoT, finish)
    assert parsed.kind in KINDS and parsed.value is None
    assert (parse_text(text, finish).value is None) == (
        parse_text(text, finish).kind not in ("good", "repaired")
    )


@given(
    st.text(min_size=1).filter(lambda text: text.strip()),
    st.lists(st.text(min_size=1).filter(lambda text: text.strip())),
)
def test_any_imagination_comes_back_through_a_fence(caption, modifications):
    value = {"target_caption": caption, "modifications": modifications}
    strict = parse_json(json.dumps(value), TextImagination)
    assert strict.kind == "good" and strict.value.modifications == modifications
    fenced = parse_json(f"Here:\n```json\n{json.dumps(value)}\n```", TextImagination)
    assert fenced.value.target_caption == " ".join(caption.split())


# --- answers without end ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "<think>" * 50_000,
        "{" * 5_000 + "}" * 5_000,
        "{a b c}" * 3_000,
        '{"a":' * 900 + "1" + "}" * 900,
        '{"target_caption": ' + "x" * 90_000 + "}",
        "```" + "\n" * 20_000 + "x",
        '{"' + '"' * 20_000 + "}",
    ],
    ids=lambda text: text[:12],
)
def test_no_answer_takes_more_than_a_moment(text):
    """Each of these took minutes, or a time that grew with the square of its length."""
    with within(10):
        assert parse_json(text, TextImagination).value is None
        parse_text(text)


def test_an_answer_of_no_end_is_off_format():
    long = as_json({"target_caption": "a " + "red " * 30_000 + "car", "modifications": []})
    for parsed in (parse_json(long, TextImagination), parse_text(long)):
        assert (parsed.kind, parsed.problem) == ("off-format", "more than 100,000 characters")


def test_a_fenced_caption_on_one_line_keeps_its_first_word():
    assert parse_text("```red car```").value == "red car"
    assert parse_text("```text\nred car\n```").value == "red car"


def test_half_a_character_becomes_the_replacement_character():
    """Servers cut tokens, and with them characters; what is written as UTF-8 later holds whole ones."""
    parsed = parse_json('{"target_caption": "a \\ud83d dog", "modifications": ["\\udc36"]}', TextImagination)
    assert parsed.value == TextImagination(target_caption="a \ufffd dog", modifications=["\ufffd"])
    assert parse_text("a \ud83d dog").value == "a \ufffd dog"
    assert parse_text("a \ud83d\udc36 dog").value == "a \U0001f436 dog"


# --- echoes and refusals of a server ------------------------------------------------------------------------


EXAMPLE = {"target_caption": "two large dogs", "modifications": ["keep the beach"]}
ASKED = "Imagine the target picture. Answer with one JSON object, as in this example:\n" + as_json(EXAMPLE)


@pytest.mark.parametrize(
    "text",
    [
        ASKED,
        "imagine the target picture: answer with one json object, as in this example",
        as_json(EXAMPLE),
        "```json\n" + as_json(EXAMPLE) + "\n```",
    ],
)
def test_an_answer_that_repeats_the_prompt_is_an_echo(text):
    assert parse_json(text, TextImagination, "stop", ASKED).kind == "echo"
    assert parse_json(text, TextImagination, "stop", ASKED).value is None


def test_an_answer_like_the_prompt_is_no_echo():
    own = as_json(EXAMPLE | {"target_caption": "two large cats"})
    assert parse_json(own, TextImagination, "stop", ASKED).kind == "good"
    # A caption that stays as it is begins like the prompt that holds it.
    prompt = "a red car\nrewrite it, as a caption of at most forty words. change: the same image"
    assert parse_text("a red car", "stop", prompt).kind == "good"
    assert parse_text("describe the picture.", "stop", "describe the picture").kind == "echo"
    assert parse_text("the picture", "stop", "the picture").kind == "good"


def test_a_filter_decides_over_the_text():
    assert parse_json(as_json(IMAGINED), TextImagination, "refusal").kind == "refusal"
    assert parse_text("a red car", "refusal").kind == "refusal"
