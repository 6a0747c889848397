"""Agents: parsing, the second question, fallbacks, the error table of SDR-CIR, cost, cache and traces."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from scripted import ScriptedMLLM
from tiny_models import write_tiny_vlm

from cir_utils.agents import (
    EMPTY_TEXT,
    GENERAL_ATTRIBUTES,
    MAX_NEW_TOKENS,
    MINI_MAX_NEW_TOKENS,
    Agents,
    Cost,
    repeats_reference,
    token_limits,
)
from cir_utils.benchmarks import load_benchmark
from cir_utils.mllm import LocalMLLM
from cir_utils.prompts import load_prompt
from cir_utils.response_cache import ResponseCache
from cir_utils.schemas import SelectiveCoT

COT = {
    "understanding": "a red car on a beach",
    "explicit_targets": ["colour: blue"],
    "implicit_targets": [],
    "preserved": ["object", "number: one"],
    "selected": ["car"],
    "discarded": ["red", "beach"],
    "description": "a blue car",
}


@pytest.fixture
def paths(tmp_path):
    found = []
    for number, colour in enumerate(("red", "green", "blue")):
        found.append(tmp_path / f"{number}.png")
        Image.new("RGB", (112, 112), colour).save(found[-1])
    return found


def by_prompt(table):
    """A script: the first key that occurs in the prompt gives its answers in turn; the last one repeats."""
    left = {key: list(answers) for key, answers in table.items()}

    def answer(request):
        for key, answers in left.items():
            if key in request.prompt:
                return answers.pop(0) if len(answers) > 1 else answers[0]
        raise AssertionError(f"no script for {request.prompt!r}")

    return answer


def cot(**changes):
    return json.dumps({**COT, **changes})


# --- plain text ---------------------------------------------------------------------------------------------


def test_captions_in_order_with_traces_and_cost(paths):
    mllm = ScriptedMLLM(lambda request: f"a picture of {request.images[0].stem}")
    agents = Agents(mllm)
    captions = agents.caption(paths)
    assert [caption.text for caption in captions] == ["a picture of 0", "a picture of 1", "a picture of 2"]
    assert not any(caption.fallback for caption in captions)
    assert captions[1].trace == {
        "agent": "caption",
        "prompt": "default/caption",
        "prompt_sha256": load_prompt("default", "caption").sha256,
        "inputs": {"images": ["1.png"]},
        "attempts": [{"raw": "a picture of 1", "class": "good", "finish_reason": "stop"}],
        "class": "good",
        "parsed": "a picture of 1",
    }
    assert agents.cost == Cost(3, 0, 30, 12, 0, 0)
    assert mllm.requests[0].max_new_tokens == MAX_NEW_TOKENS["caption"]


def test_equal_requests_are_asked_once_and_count_as_cached(paths, tmp_path):
    mllm = ScriptedMLLM()
    with ResponseCache(tmp_path / "cache.sqlite") as cache:
        agents = Agents(mllm, cache)
        agents.caption([paths[0], paths[1], paths[0]])
        assert len(mllm.requests) == 2 and agents.cost == Cost(3, 1, 30, 9, 0, 0)
        again = Agents(ScriptedMLLM(lambda request: pytest.fail("asked")), cache)
        assert [caption.text for caption in again.caption(paths[:2])] == ["a red car"] * 2
        assert again.cost == Cost(2, 2, 20, 6, 0, 0)
        other = ScriptedMLLM(identifier="scripted@2")
        Agents(other, cache).caption(paths[:1])
        assert len(other.requests) == 1
    copy = tmp_path / "copy.png"
    copy.write_bytes(paths[0].read_bytes())
    agents.caption([copy])
    assert len(mllm.requests) == 2, "the same bytes under another name are the same picture"


def test_the_mini_set_has_its_own_prompts_and_limits(paths):
    mllm = ScriptedMLLM()
    agents = Agents(mllm, prompt_set="mini")
    agents.caption(paths[:1])
    assert mllm.requests[0].prompt == load_prompt("mini", "caption").text
    assert mllm.requests[0].max_new_tokens == MINI_MAX_NEW_TOKENS["caption"]
    assert MINI_MAX_NEW_TOKENS.keys() == MAX_NEW_TOKENS.keys()


def test_an_unusable_caption_is_asked_for_once_more(paths):
    mllm = ScriptedMLLM(by_prompt({"could not be used (no text)": ["a car"], "caption": [""]}))
    agents = Agents(mllm)
    caption = agents.caption(paths[:1])[0]
    assert (caption.text, caption.fallback) == ("a car", False)
    assert [attempt["class"] for attempt in caption.trace["attempts"]] == ["empty", "good"]
    assert agents.cost == Cost(2, 0, 20, 2, 1, 0)


def test_temperature_seed_and_token_limits_reach_every_request_and_the_cache_key(paths):
    mllm = ScriptedMLLM(lambda request: "a car")
    limits = {"caption": 99, "other": 77}
    agents = Agents(mllm, temperature=0.5, seed=7, max_tokens=limits)
    agents.caption(paths[:1])
    agents.describe_target(paths[:1], ["make it blue"])
    agents.caption_dense(paths[:1], samples=2)
    asked = [(one.max_new_tokens, one.temperature, one.seed) for one in mllm.requests]
    assert asked == [(99, 0.5, 7), (77, 0.5, 7), (77, 0.7, 42), (77, 0.7, 43)]
    for others in ({"temperature": 0.6, "seed": 7}, {"temperature": 0.5, "seed": 8}):
        again = Agents(mllm, agents.cache, max_tokens=limits, **others)
        again.caption(paths[:1])
        assert again.cost.cached_calls == 0, others
    same = Agents(mllm, agents.cache, temperature=0.5, seed=7, max_tokens={"caption": 99})
    same.caption(paths[:1])
    assert same.cost.cached_calls == 1
    assert token_limits("mini") == MINI_MAX_NEW_TOKENS and token_limits("default") == MAX_NEW_TOKENS
    assert token_limits("default", {"caption": 9}) == {**MAX_NEW_TOKENS, "caption": 9}
    assert set(token_limits("mini", {"other": 5}).values()) == {5}


def test_a_repetition_penalty_is_asked_of_its_agent_and_part_of_the_key(paths):
    mllm = ScriptedMLLM(lambda request: "a car")
    plain = Agents(mllm)
    plain.caption(paths[:1])
    agents = Agents(mllm, plain.cache, repetition_penalty={"caption": 1.05})
    agents.caption(paths[:1])
    agents.describe_target(paths[:1], ["make it blue"])
    assert agents.cost.cached_calls == 0
    assert [request.repetition_penalty for request in mllm.requests] == [1.0, 1.05, 1.0]
    Agents(mllm, plain.cache, repetition_penalty={"caption": 1.0}).caption(paths[:1])
    assert len(mllm.requests) == 3, "1 is none: the plain answer is found"


def test_a_prompt_changed_by_one_space_is_asked_anew(paths, monkeypatch):
    mllm = ScriptedMLLM(lambda request: "a car")
    agents = Agents(mllm)
    agents.caption(paths[:1])
    prompt = load_prompt("default", "caption")
    changed = replace(prompt, text=prompt.text + " ")
    monkeypatch.setattr("cir_utils.agents.load_prompt", lambda *given: changed)
    other = Agents(mllm, agents.cache)
    other.caption(paths[:1])
    assert other.cost.cached_calls == 0 and len(mllm.requests) == 2


def test_a_cut_caption_gets_twice_the_room_then_keeps_its_whole_sentences(paths):
    mllm = ScriptedMLLM(lambda request: "a car. a do…")
    agents = Agents(mllm)
    caption = agents.caption(paths[:1])[0]
    assert (caption.text, caption.fallback, caption.trace["fallback"]) == ("a car.", True, "a car.")
    assert [request.max_new_tokens for request in mllm.requests] == [256, 512]
    assert mllm.requests[0].prompt == mllm.requests[1].prompt
    assert caption.trace["class"] == "cut" and caption.trace["parsed"] is None
    assert (agents.cost.parse_failures, agents.cost.fallbacks) == (1, 1)
    assert (
        Agents(ScriptedMLLM(lambda request: "I'm sorry, I cannot.")).caption(paths[:1])[0].text == "an image"
    )


def test_dense_captions_are_sampled_by_seed(paths):
    mllm = ScriptedMLLM(lambda request: f"{request.images[0].stem} {request.seed} {request.temperature}")
    texts = Agents(mllm).caption_dense(paths[:2], samples=3, temperature=0.5, seed=7)
    assert [[text.text for text in row] for row in texts] == [
        ["0 7 0.5", "0 8 0.5", "0 9 0.5"],
        ["1 7 0.5", "1 8 0.5", "1 9 0.5"],
    ]


def test_describe_target_and_edit_caption_with_fallbacks(paths):
    script = {
        "Describe the target": ["", "", "a blue car"],
        "Apply the following": [""],
        "caption": ["a red car."],
    }
    agents = Agents(ScriptedMLLM(by_prompt(script)))
    first = agents.describe_target(paths[:1], ["make it blue"])[0]
    assert (first.text, first.fallback) == ("a red car, make it blue", True)
    second = agents.describe_target(paths[1:2], ["make it blue"])[0]
    assert (second.text, second.fallback) == ("a blue car", False)
    edited = agents.edit_caption(["a red car."], ["make it blue"])[0]
    assert (edited.text, edited.fallback) == ("a red car, make it blue", True)
    assert edited.trace["inputs"] == {"modification": "make it blue", "caption": "a red car.", "images": []}


# --- Selective CoT and the error table ----------------------------------------------------------------------


def test_selective_cot(paths):
    agents = Agents(ScriptedMLLM(lambda request: f"Sure!\n```json\n{cot()}\n```"))
    found = agents.selective_cot(paths[:1], ["make it blue"])[0]
    assert found.description == "a blue car" and found.answer.model_dump() == COT
    assert not (found.vague or found.retried or found.repeats_reference or found.fallback or found.note)
    assert found.trace["class"] == "repaired" and found.trace["parsed"] == COT
    assert agents.cost == Cost(1, 0, 10, agents.cost.completion_tokens, 0, 0), "one call a query"
    json.dumps(found.trace)


def test_a_description_that_repeats_the_reference_is_asked_for_with_the_stronger_prompt(paths):
    script = {
        "You MUST incorporate these changes: make it blue": [cot()],
        "text: make it blue": [cot(description="A red car on the beach.")],
        "text: add a hat": [cot(description="a car with a hat")],
    }
    mllm = ScriptedMLLM(by_prompt(script))
    agents = Agents(mllm)
    found = agents.selective_cot(paths[:2], ["make it blue", "add a hat"])
    assert found[0].description == "a blue car" and found[0].retried and not found[0].repeats_reference
    assert found[0].trace["parsed"]["description"] == "a blue car"
    assert found[0].trace["retry"]["prompt"] == "default/selective_cot_retry"
    assert not found[1].retried and "retry" not in found[1].trace
    assert len(mllm.requests) == 3 and agents.cost.mllm_calls == 3 and agents.cost.parse_failures == 0


@pytest.mark.parametrize("second", [cot(description="red car on beach"), "no idea"])
def test_a_retry_that_does_not_help_keeps_the_first_answer_and_says_so(paths, second):
    script = {"You MUST": [second], "blue": [cot(description="a red car on a beach")]}
    mllm = ScriptedMLLM(by_prompt(script))
    found = Agents(mllm).selective_cot(paths[:1], ["make it blue"])[0]
    assert found.description == "a red car on a beach" and found.retried and found.repeats_reference
    assert "repeats the reference" in found.note
    assert len(mllm.requests) == 2, "asked once more, not twice"


@pytest.mark.parametrize(
    ("understanding", "description", "targets", "expected"),
    [
        ("a red car on a beach", "A red car on the beach.", ["colour: blue"], True),
        ("a red car on a beach", "a blue car on a beach", ["colour: blue"], False),
        ("", "a red car", ["colour: blue"], False),
        ("a dog left of a cat", "a cat left of a dog", ["places swapped"], False),
        (
            "two red cats with a hat on a wide sandy beach",
            "two red cats on a wide sandy beach",
            ["no hat"],
            False,
        ),
        (
            "two red cats with a hat on a wide sandy beach",
            "two red cats with a hat on a wide sandy beach there",
            ["blue"],
            True,
        ),
        (
            "two red cats with a hat on a wide sandy beach",
            "three red cats with a hat on a wide sandy beach",
            ["number: three"],
            False,
        ),
    ],
)
def test_what_counts_as_repeating(understanding, description, targets, expected):
    answer = {**COT, "understanding": understanding, "description": description, "explicit_targets": targets}
    assert repeats_reference(SelectiveCoT.model_validate(answer)) is expected


def test_a_vague_text_is_said_to_be_vague_with_what_one_could_specify(paths):
    vague = cot(explicit_targets=[], implicit_targets=[], description="a red car on a beach")
    mllm = ScriptedMLLM(lambda request: vague)
    found = Agents(mllm).selective_cot(paths[:1], ["Make it better"])[0]
    assert found.vague and found.could_specify == ("object", "number") and not found.retried
    assert len(mllm.requests) == 1, "a vague text is not asked for again"
    assert found.note == (
        "the text 'Make it better' names no change that can be seen, so the ranking is by the reference "
        "image alone; one could say what happens to: object, number"
    )
    assert found.trace["vague"] is True
    bare = cot(explicit_targets=[], preserved=[])
    assert (
        Agents(ScriptedMLLM(lambda request: bare)).selective_cot(paths[:1], ["x"])[0].could_specify
        == GENERAL_ATTRIBUTES
    )
    implied = cot(explicit_targets=[], implicit_targets=["ground: snow"])
    assert not Agents(ScriptedMLLM(lambda request: implied)).selective_cot(paths[:1], ["winter"])[0].vague


def test_a_retry_may_find_that_the_text_is_vague(paths):
    script = {"You MUST": [cot(explicit_targets=[])], "x": [cot(description="a red car on a beach")]}
    found = Agents(ScriptedMLLM(by_prompt(script))).selective_cot(paths[:1], ["x"])[0]
    assert found.vague and found.retried and not found.repeats_reference


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_an_empty_text_is_replaced_marked_and_vague(paths, text):
    mllm = ScriptedMLLM(lambda request: cot())
    found = Agents(mllm).selective_cot(paths[:1], [text])[0]
    assert f"Modification text: {EMPTY_TEXT}\n" in mllm.requests[0].prompt
    assert found.vague and found.trace["empty_text"] is True
    assert found.trace["inputs"]["modification"] == EMPTY_TEXT


def test_selective_cot_is_mended_once_then_falls_back_to_the_caption_and_the_text(paths):
    script = {
        "could not be used (no JSON object)": [cot(), "still none"],
        "four stages": ["none"],
        "caption": ["a car."],
    }
    agents = Agents(ScriptedMLLM(by_prompt(script)))
    found = agents.selective_cot(paths[:2], ["make it blue", "make it green"])
    assert (found[0].description, found[0].fallback) == ("a blue car", False)
    assert [attempt["class"] for attempt in found[0].trace["attempts"]] == ["off-format", "good"]
    assert (found[1].description, found[1].fallback, found[1].answer) == ("a car, make it green", True, None)
    assert found[1].trace["fallback"] == "a car, make it green"
    assert agents.cost.mllm_calls == 5, "two, two again, one caption"
    assert (agents.cost.parse_failures, agents.cost.fallbacks) == (2, 1)


def test_a_cut_object_is_never_taken_for_complete(paths):
    script = lambda request: cot()[:40] + "…" if request.max_new_tokens == 1024 else cot()  # noqa: E731
    mllm = ScriptedMLLM(script)
    found = Agents(mllm).selective_cot(paths[:1], ["make it blue"])[0]
    assert found.description == "a blue car"
    assert [request.max_new_tokens for request in mllm.requests] == [1024, 2048]
    assert [attempt["class"] for attempt in found.trace["attempts"]] == ["cut", "good"]


def test_an_endless_repetition_is_cut_twice_and_falls_back(paths, tmp_path):
    """Report 17: a model that repeats itself until any limit is asked twice, never more, and what it said is
    neither taken for an answer nor kept as one."""

    def script(request):
        if request.prompt == load_prompt("default", "caption").fill():
            return "a car"
        return '{"understanding": "a car' + " car" * request.max_new_tokens + "…"

    mllm = ScriptedMLLM(script)
    with ResponseCache(tmp_path / "c.sqlite") as cache:
        found = Agents(mllm, cache).selective_cot(paths[:1], ["make it blue"])[0]
        kinds = cache._connection.execute("SELECT kind FROM answers WHERE agent='selective_cot'").fetchall()
    assert (found.description, found.fallback, found.answer) == ("a car, make it blue", True, None)
    assert [attempt["class"] for attempt in found.trace["attempts"]] == ["cut", "cut"]
    limit = MAX_NEW_TOKENS["selective_cot"]
    assert [request.max_new_tokens for request in mllm.requests[:2]] == [limit, 2 * limit]
    assert len(mllm.requests) == 3 and kinds == [("cut",)] * 2


def test_a_cut_answer_is_cached_as_cut(paths, tmp_path):
    with ResponseCache(tmp_path / "c.sqlite") as cache:
        Agents(ScriptedMLLM(lambda request: '{"understanding": "a…'), cache).selective_cot(
            paths[:1], ["blue"]
        )
        rows = cache._connection.execute(
            "SELECT kind, finish_reason FROM answers WHERE agent='selective_cot'"
        ).fetchall()
        assert rows == [("cut", "length")] * 2
        again = Agents(ScriptedMLLM(lambda request: pytest.fail("asked")), cache)
        assert again.selective_cot(paths[:1], ["blue"])[0].fallback
        assert again.cost.parse_failures == 2 and again.cost.fallbacks == 2, "description, then its caption"


# --- X^R ----------------------------------------------------------------------------------------------------


def test_imagination_by_text_and_by_picture(paths):
    script = {
        "You see neither picture": ['{"target_caption": "a blue car", "modifications": ["red to blue"]}'],
        "Look at the picture closely": [
            '{"target_caption": "a car", "present": ["blue"], "absent": ["red"]}'
        ],
    }
    mllm = ScriptedMLLM(by_prompt(script))
    agents = Agents(mllm)
    text = agents.imagine_text(["a red car"], ["make it blue"])[0]
    vision = agents.imagine_vision(paths[:1], ["make it blue"])[0]
    assert (text.target_caption, text.modifications, text.present, text.fallback) == (
        "a blue car",
        ("red to blue",),
        (),
        False,
    )
    assert (vision.target_caption, vision.modifications, vision.present, vision.absent) == (
        "a car",
        (),
        ("blue",),
        ("red",),
    )
    assert [request.images for request in mllm.requests] == [(), (paths[0],)]
    assert "Caption: a red car\n" in mllm.requests[0].prompt


def test_imagination_falls_back_to_caption_and_text(paths):
    agents = Agents(
        ScriptedMLLM(lambda r: "a red car" if r.prompt.startswith("You write captions") else "hm")
    )
    text = agents.imagine_text(["a red car."], ["make it blue"])[0]
    assert (text.target_caption, text.modifications, text.fallback) == (
        "a red car, make it blue",
        ("make it blue",),
        True,
    )
    vision = agents.imagine_vision(paths[:1], ["make it blue"])[0]
    assert (vision.target_caption, vision.present, vision.absent, vision.fallback) == (
        "a red car, make it blue",
        (),
        (),
        True,
    )
    assert (agents.cost.parse_failures, agents.cost.fallbacks) == (2, 2)


def test_questions_see_all_three_inputs_and_keep_booleans(paths):
    answer = {
        "statements": [
            {"statement": "The car is blue.", "answer": True},
            {"statement": "There is a hat.", "answer": "False"},
            {"statement": "the car is blue", "answer": False},
        ]
    }
    mllm = ScriptedMLLM(lambda request: json.dumps(answer))
    asked = Agents(mllm).questions(["make it blue"], [["red to blue"]], [["blue", "car"]], [[]])[0]
    prompt = mllm.requests[0].prompt
    assert "Modification: make it blue\n" in prompt and "modification: red to blue\n" in prompt
    assert "Visible in the target: blue; car\n" in prompt and "Not visible in the target: none\n" in prompt
    assert [(s.statement, s.answer) for s in asked.statements] == [
        ("The car is blue.", True),
        ("There is a hat.", False),
    ]
    assert not asked.fallback


@pytest.mark.parametrize(
    "text", ["no", '{"statements": []}', '{"statements": [{"statement": "x", "answer": 1}]}']
)
def test_questions_fall_back_to_the_modification_itself(text):
    agents = Agents(ScriptedMLLM(lambda request: text))
    asked = agents.questions(["make it blue"], [[]], [[]], [[]])[0]
    assert [(s.statement, s.answer) for s in asked.statements] == [("make it blue", True)] and asked.fallback
    assert (agents.cost.parse_failures, agents.cost.fallbacks) == (1, 1)


def test_lists_of_unequal_length_are_an_error(paths):
    with pytest.raises(ValueError, match="2 caption for 1 modification texts"):
        Agents(ScriptedMLLM()).imagine_text(["a", "b"], ["c"])
    with pytest.raises(ValueError):
        Agents(ScriptedMLLM()).selective_cot(paths[:2], ["c"])


def test_empty_lists_ask_nothing():
    agents = Agents(ScriptedMLLM(lambda request: pytest.fail("asked")))
    assert agents.caption([]) == agents.selective_cot([], []) == agents.imagine_text([], []) == []
    assert agents.questions([], [], [], []) == agents.verify_captions([]) == agents.verify_pictures([]) == []
    assert agents.caption_dense([], 3) == [] and agents.cost == Cost()


# --- verification -------------------------------------------------------------------------------------------


def test_verification_shares_prefixes_and_is_cached(paths, tmp_path):
    def truth(images, prefix, statement):
        return len(statement) / 100 + (int(images[0].stem) / 10 if images else 0)

    mllm = ScriptedMLLM(truth=truth)
    with ResponseCache(tmp_path / "c.sqlite") as cache:
        agents = Agents(mllm, cache)
        pairs = [(paths[1], "abc"), (paths[0], "abc"), (paths[1], "a"), (paths[1], "abc")]
        assert agents.verify_pictures(pairs) == pytest.approx([0.13, 0.03, 0.11, 0.13])
        assert [(item.images, item.statements) for item in mllm.items] == [
            ((paths[1],), ("abc", "a")),
            ((paths[0],), ("abc",)),
        ]
        assert mllm.items[0].prefix + "abc" == load_prompt("default", "verify_picture").fill(statement="abc")
        assert agents.cost == Cost(4, 1, 28, 4, 0, 0)
        earlier = agents.cost.copy()
        assert agents.verify_pictures([*pairs, (paths[2], "a")])[-1] == pytest.approx(0.21)
        assert agents.cost.since(earlier) == Cost(5, 4, 35, 5, 0, 0)
        assert len(mllm.items) == 3
        assert cache.counts() == {"answers": 0, "verdicts": 4}


def test_captions_are_verified_after_their_own_prefix():
    mllm = ScriptedMLLM(truth=lambda images, prefix, statement: 1.0 if statement in prefix else 0.0)
    found = Agents(mllm).verify_captions(
        [("a blue car", "blue"), ("a red car", "blue"), ("a blue car", "red")]
    )
    assert found == [1.0, 0.0, 0.0]
    assert [item.statements for item in mllm.items] == [("blue", "red"), ("blue",)]


def test_equal_pictures_under_two_names_are_verified_once(paths, tmp_path):
    copy = tmp_path / "copy.png"
    copy.write_bytes(paths[0].read_bytes())
    mllm = ScriptedMLLM()
    Agents(mllm).verify_pictures([(paths[0], "a"), (copy, "a"), (copy, "b")])
    assert [(item.images, item.statements) for item in mllm.items] == [
        ((paths[0],), ("a",)),
        ((copy,), ("b",)),
    ]


def test_comparing_pictures(paths):
    mllm = ScriptedMLLM(truth=lambda images, prefix, statement: 0.9 if images[0].stem == "0" else 0.1)
    agents = Agents(mllm)
    assert agents.compare_pictures([(paths[0], paths[1], "blue"), (paths[1], paths[0], "blue")]) == [0.9, 0.1]
    assert mllm.items[0].prefix.endswith("Modification: blue") and mllm.items[0].statements == ("",)


# --- with a real, tiny, untrained model ---------------------------------------------------------------------


def test_an_untrained_model_runs_through_every_agent(paths, tmp_path):
    """Its answers are noise, so all that is checked is that nothing breaks and everything is accounted
    for."""
    mllm = LocalMLLM(write_tiny_vlm(tmp_path / "tiny-vlm"))
    with ResponseCache(tmp_path / "c.sqlite") as cache:
        agents = Agents(mllm, cache, "mini")
        agents.max_new_tokens = dict.fromkeys(MINI_MAX_NEW_TOKENS, 6)

        def everything(agents: Agents):
            texts = ["make it blue", ""]
            captions = [caption.text for caption in agents.caption(paths[:2])]
            found = [agents.selective_cot(paths[:2], texts), agents.describe_target(paths[:2], texts)]
            imagined = agents.imagine_text(captions, texts)
            seen = agents.imagine_vision(paths[:2], texts)
            asked = agents.questions(
                texts,
                [i.modifications for i in imagined],
                [i.present for i in seen],
                [i.absent for i in seen],
            )
            pairs = [
                (path, s.statement) for path, row in zip(paths, asked, strict=False) for s in row.statements
            ]
            found += [imagined, seen, asked, agents.verify_pictures(pairs)]
            found += [agents.verify_captions([(captions[0], "x"), (captions[1], "y")])]
            found += [
                agents.compare_pictures([(paths[0], paths[1], "x")]),
                agents.caption_dense(paths[:1], 2),
            ]
            return found

        first = everything(agents)
        assert agents.cost.mllm_calls > agents.cost.cached_calls > 0
        assert agents.cost.fallbacks > 0 and agents.cost.prompt_tokens > 0
        assert all(0 <= p <= 1 for p in first[5] + first[6] + first[7])
        again = Agents(
            ScriptedMLLM(lambda request: pytest.fail("asked"), identifier=mllm.identifier), cache, "mini"
        )
        again.max_new_tokens = agents.max_new_tokens
        assert everything(again) == first
        assert again.cost.mllm_calls == again.cost.cached_calls == agents.cost.mllm_calls
        assert all(Path(name).name == name for name in first[0][0].trace["inputs"]["images"])


@pytest.mark.parametrize("prompt_set", ["default", "mini"])
def test_the_shared_concept_is_in_every_prompt_that_is_sent_when_asked_for_and_in_none_else(
    real_annotations, paths, prompt_set
):
    """CIRCO val, query 13: whether the concept is part of the text moves mAP by points."""
    root = real_annotations / "circo"
    (row,) = [
        row for row in json.loads((root / "annotations/val.json").read_text("utf-8")) if row["id"] == 13
    ]
    caption, concept = row["relative_caption"], row["shared_concept"]
    assert caption and concept and concept not in caption
    for asked in (False, True):
        bench = load_benchmark("circo", "val", root, need_images=False, shared_concept=asked)
        assert bench.protocol.shared_concept is asked
        (text,) = [query.text for query in bench.queries if query.id == "13"]
        assert text == (f"{concept} that {caption}" if asked else caption)
        mllm = ScriptedMLLM(lambda request: "a blue car")
        agents = Agents(mllm, ResponseCache(), prompt_set)
        agents.selective_cot(paths[:1], [text])
        agents.describe_target(paths[:1], [text])
        agents.edit_caption(["a picture"], [text])
        agents.imagine_text(["a picture"], [text])
        agents.imagine_vision(paths[:1], [text])
        about_text = [request.prompt for request in mllm.requests if caption in request.prompt]
        assert len(about_text) >= 5
        assert all((concept in prompt) == asked for prompt in about_text)
