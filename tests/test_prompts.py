"""Prompt files: names, slots, wording by domain, and that every set asks for what the schemas read."""

import json
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path

import open_clip
import pytest
from PIL import Image
from scripted import ScriptedMLLM

from cir_utils.agents import Agents
from cir_utils.errors import InputError
from cir_utils.files import sha256_text
from cir_utils.prompts import ALL_SLOTS, DOMAINS, SLOTS, load_prompt, prompt_sets, prompts_of
from cir_utils.schemas import (
    Questions,
    SelectiveCoT,
    TargetLevels,
    TextImagination,
    VisionImagination,
    parse_json,
    parse_text,
    parse_truth,
)

JSON_PROMPTS = {
    "selective_cot": SelectiveCoT,
    "selective_cot_retry": SelectiveCoT,
    "imagine_text": TextImagination,
    "imagine_vision": VisionImagination,
    "questions": Questions,
    "target_levels": TargetLevels,
}
TEXT_PROMPTS = ("caption", "caption_dense", "describe_target", "edit_caption")
TRUTH_PROMPTS = ("verify_caption", "verify_picture", "compare_pictures")
WORDINGS = ("", "fashion", "scene")
#: Prompts of the set "default" whose wording for garments is another one than that for scenes.
WITH_FASHION = {*JSON_PROMPTS, "caption", "caption_dense", "describe_target", "edit_caption"}


def example(name: str, domain: str) -> str:
    """The example of a good answer in a prompt of the set "default": its last line."""
    text = load_prompt("default", name, domain).text
    assert text.count("(take its form, not its content):\n") == 1
    return text.split("(take its form, not its content):\n")[1]


def test_both_sets_are_installed_and_whole():
    assert prompt_sets() == ("default", "mini")
    for name in prompt_sets():
        found = Counter()
        for path in files("cir_utils").joinpath("prompts", name).iterdir():
            stem, _, domain = path.name.removesuffix(".txt").partition(".")
            assert stem in ALL_SLOTS and domain in WORDINGS, path.name
            found[domain] += 1
            raw = path.read_bytes()
            assert raw.endswith(b"\n") and not raw.endswith(b"\n\n") and b"\r" not in raw, path.name
            assert raw.decode("utf-8").rstrip("\n") == load_prompt(name, stem, domain).text
        assert prompts_of(name) == tuple(ALL_SLOTS if name == "default" else SLOTS)
        fashion = {"fashion": len(WITH_FASHION)} if name == "default" else {}
        assert found == {"": len(prompts_of(name)), **fashion}
        for prompt in prompts_of(name):
            loaded = load_prompt(name, prompt)
            assert loaded.sha256 == sha256_text(loaded.text) and loaded.slots == ALL_SLOTS[prompt]
            assert loaded.text == loaded.text.rstrip()
            assert loaded.text.startswith("\n\nYour last") if prompt == "reask" else loaded.text[0].isalpha()


def test_the_wording_of_a_domain_stands_in_for_the_plain_one_where_there_is_one():
    assert DOMAINS == {"fashioniq": "fashion", "cirr": "scene", "circo": "scene"}
    for name in prompts_of("default"):
        plain, fashion = load_prompt("default", name), load_prompt("default", name, "fashion")
        assert load_prompt("default", name, "scene") == plain and plain.domain == ""
        assert plain.label == f"default/{name}"
        assert (fashion != plain) is (name in WITH_FASHION)
        if fashion != plain:
            assert fashion.label == f"default/{name}.fashion" and fashion.sha256 != plain.sha256
            assert "garment" in fashion.text and "background" not in example(name, "fashion")
        if name in prompts_of("mini"):
            assert load_prompt("mini", name, "fashion") == load_prompt("mini", name)


@pytest.mark.parametrize("domain", ["fashion", "scene"])
@pytest.mark.parametrize("name", JSON_PROMPTS)
def test_the_example_in_a_default_prompt_is_a_good_answer(name, domain):
    text, schema = load_prompt("default", name, domain).text, JSON_PROMPTS[name]
    parsed = parse_json(example(name, domain), schema)
    assert parsed.kind == "good"
    assert list(json.loads(example(name, domain))) == list(schema.model_fields)
    asked = text[text.index("Answer with one JSON object") : text.index("An example of a good answer")]
    places = [asked.index(field) for field in schema.model_fields]
    assert places == sorted(places), "the keys are named in the order of the schema"


@pytest.mark.parametrize("domain", ["fashion", "scene"])
@pytest.mark.parametrize("name", TEXT_PROMPTS)
def test_the_example_of_a_text_prompt_is_a_good_answer(name, domain):
    parsed = parse_text(example(name, domain))
    assert parsed.kind == "good" and parsed.value == example(name, domain)


@pytest.mark.parametrize("domain", ["fashion", "scene"])
def test_the_example_given_back_is_an_echo_and_no_answer(domain):
    for name, schema in JSON_PROMPTS.items():
        prompt = load_prompt("default", name, domain).text
        assert parse_json(example(name, domain), schema, "stop", prompt).kind == "echo"
    for name in TEXT_PROMPTS:
        prompt = load_prompt("default", name, domain).text
        assert parse_text(example(name, domain), "stop", prompt).kind == "echo"
        assert parse_text("another " + example(name, domain), "stop", prompt).kind == "good"


@pytest.mark.parametrize("name", TRUTH_PROMPTS)
def test_the_example_of_a_true_or_false_prompt_is_one_word(name):
    text = load_prompt("default", name).text
    [answer] = re.findall(r"good answer: (\w+)\n", text)
    assert parse_truth(answer) is True and "true or false, and nothing else." in text


@pytest.mark.parametrize("domain", ["fashion", "scene"])
def test_example_descriptions_fit_clip_and_lead_with_the_change(domain):
    texts = {name: example(name, domain) for name in ("describe_target", "edit_caption")}
    for name in ("selective_cot", "selective_cot_retry", "imagine_text", "imagine_vision"):
        answer = json.loads(example(name, domain))
        texts[name] = answer.get("description") or answer["target_caption"]
    levels = json.loads(example("target_levels", domain))
    texts["target_levels"] = levels["comprehensive"]
    assert len(levels["core"]) < len(levels["enhanced"]) < len(levels["comprehensive"])
    tokens = open_clip.get_tokenizer("ViT-B-32")(list(texts.values()))
    lengths = dict(zip(texts, (tokens != 0).sum(dim=1).tolist(), strict=True))
    assert max(lengths.values()) <= 40 and min(lengths.values()) >= 8, lengths
    change = {"fashion": ("blue dress", "polka dots"), "scene": ("two", "running")}[domain]
    for word in change:
        assert word in texts["selective_cot"][:40]
    for name in (*texts, "caption"):
        prompt = load_prompt("default", name, domain).text
        assert re.search(r"at most \d0 words", prompt), name
        assert "first" in prompt or "at its beginning" in prompt or name == "caption", name


@pytest.mark.parametrize("domain", ["fashion", "scene"])
def test_the_four_stages_keep_what_was_discarded_out_of_the_description(domain):
    for name in ("selective_cot", "selective_cot_retry"):
        answer = json.loads(example(name, domain))
        for detail in answer["discarded"]:
            assert detail not in answer["description"].split(), (name, detail)
        text = load_prompt("default", name, domain).text
        heads = [text.index(f"\n{stage}. ") for stage in (1, 2, 3, 4)]
        assert heads == sorted(heads)


def test_the_retry_is_stronger():
    for domain in ("", "fashion"):
        retry = load_prompt("default", "selective_cot_retry", domain).text
        assert "You MUST incorporate these changes: {modification}" in retry
        assert "MUST" not in load_prompt("default", "selective_cot", domain).text


def test_default_prompts_are_long_enough_for_a_real_model_and_short_enough_for_its_context():
    for name in WITH_FASHION:
        for domain in ("", "fashion"):
            words = len(load_prompt("default", name, domain).text.split())
            assert 120 < words < 800, (name, domain, words)
    # Those that are asked hundreds of times a query stay short.
    for name in ("verify_caption", "verify_picture"):
        assert 60 < len(load_prompt("default", name).text.split()) < 140


@pytest.mark.parametrize("domain", WORDINGS)
@pytest.mark.parametrize("prompt_set", ["default", "mini"])
def test_every_agent_fills_every_slot_of_its_prompt(prompt_set, domain, tmp_path: Path):
    paths = [tmp_path / name for name in ("a.png", "b.png")]
    for shade, path in enumerate(paths):
        Image.new("RGB", (8, 8), (40 * shade, 0, 0)).save(path)
    mllm = ScriptedMLLM(lambda request: "")  # nothing can be used, so that every agent asks again
    agents = Agents(mllm, prompt_set=prompt_set, domain=domain)
    filled = {"caption": "CAPTION", "modification": "CHANGE", "modifications": "STEP", "present": "SEEN",
              "absent": "UNSEEN", "problem": "no text", "statement": "CLAIM"}  # fmt: skip
    agents.caption(paths[:1])
    agents.caption_dense(paths[:1], samples=1)
    agents.describe_target(paths[:1], ["CHANGE"])
    agents.selective_cot(paths[:1], ["CHANGE"])
    agents.imagine_text(["CAPTION"], ["CHANGE"])
    agents.imagine_vision(paths[:1], ["CHANGE"])
    agents.questions(["CHANGE"], [["STEP"]], [["SEEN"]], [["UNSEEN"]])
    agents.edit_caption(["CAPTION"], ["CHANGE"])
    agents.target_levels(paths[:1], ["CAPTION"], ["CHANGE"])
    agents.verify_captions([("CAPTION", "CLAIM")])
    agents.verify_pictures([(paths[0], "CLAIM")])
    agents.compare_pictures([(paths[0], paths[1], "CHANGE")])
    sent = {request.prompt for request in mllm.requests}
    sent |= {item.prefix + item.statements[0] for item in mllm.items}
    again = load_prompt(prompt_set, "reask", domain).fill(problem="no text")
    for name in prompts_of(prompt_set):
        if name in ("reask", "selective_cot_retry"):  # the one follows others, the other a usable answer
            continue
        prompt = load_prompt(prompt_set, name, domain)
        text = prompt.fill(**{slot: filled[slot] for slot in prompt.slots})
        assert text in sent, name
        assert all(filled[slot] in text for slot in prompt.slots)
        if name not in TRUTH_PROMPTS:
            assert text + again in sent, name
    for text in sent:
        assert not re.search(r"\{[a-z_]+\}", text)


def test_a_run_asks_in_the_wording_of_its_domain_and_never_takes_another_ones_answer(tmp_path: Path):
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(path)
    mllm = ScriptedMLLM(lambda request: "a blue dress")
    agents = Agents(mllm, domain="scene")
    agents.caption([path])
    fashion = Agents(mllm, agents.cache, domain="fashion")
    answer = fashion.caption([path])[0]
    assert answer.trace["prompt"] == "default/caption.fashion" and fashion.cost.cached_calls == 0
    assert [request.prompt for request in mllm.requests] == [
        load_prompt("default", "caption").text,
        load_prompt("default", "caption", "fashion").text,
    ]
    assert fashion.caption([path])[0].text == "a blue dress" and fashion.cost.cached_calls == 1


def test_fill_puts_values_in_once_and_literally():
    prompt = load_prompt("default", "imagine_text")
    text = prompt.fill(caption="a {modification} \\1", modification='{"a": 1}')
    assert "Caption: a {modification} \\1\n" in text and 'Modification: {"a": 1}\n' in text
    assert '{"target_caption": ' in text


def test_lists_are_joined_and_empty_ones_read_none():
    text = load_prompt("default", "questions").fill(
        modification="m", modifications=["one", "two"], present=("cat",), absent=[]
    )
    assert "modification: one; two\n" in text and "Visible in the target: cat\n" in text
    assert "Not visible in the target: none\n" in text


@pytest.mark.parametrize("name", ["verify_caption", "verify_picture"])
@pytest.mark.parametrize("prompt_set", ["default", "mini"])
def test_the_statement_ends_the_verification_prompts(prompt_set, name):
    prompt = load_prompt(prompt_set, name)
    slots = {"caption": "a {statement}"} if name == "verify_caption" else {}
    assert prompt.prefix(**slots) + "it is red" == prompt.fill(statement="it is red", **slots)
    assert prompt.prefix(**slots).endswith(" ")


def test_wrong_slots_are_input_errors():
    prompt = load_prompt("default", "imagine_text")
    with pytest.raises(
        InputError, match="default/imagine_text misses caption; its slots are caption, modification"
    ):
        prompt.fill(modification="m")
    with pytest.raises(InputError, match="has no slot colour"):
        prompt.fill(caption="c", modification="m", colour="x")
    with pytest.raises(InputError, match="default/caption has no slot modification; its slots are none"):
        load_prompt("default", "caption").fill(modification="m")
    with pytest.raises(InputError, match="does not end with"):
        prompt.prefix(caption="c", modification="m")


def test_unknown_names_are_input_errors():
    with pytest.raises(InputError, match="unknown prompt set 'other': choose default, mini"):
        load_prompt("other", "caption")
    with pytest.raises(InputError, match="unknown prompt 'captions': choose caption, "):
        load_prompt("default", "captions")
    with pytest.raises(InputError, match="unknown prompt"):
        load_prompt("default", "../default/caption")
    with pytest.raises(InputError, match="unknown domain 'cars' of prompts: choose fashion, scene"):
        load_prompt("default", "caption", "cars")


@pytest.mark.parametrize("prompt_set", ["default", "mini"])
def test_the_reask_continues_a_prompt(prompt_set):
    reask = load_prompt(prompt_set, "reask")
    assert reask.text.startswith("\n\n")
    assert "could not be used (no JSON object)" in reask.fill(problem="no JSON object")
