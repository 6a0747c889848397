"""Prompt files: names, slots, filling, and that every set asks for what the schemas read."""

import json
import re
from importlib.resources import files

import pytest

from cir_utils.errors import InputError
from cir_utils.files import sha256_text
from cir_utils.prompts import SHARED_SLOTS, SLOTS, load_prompt, prompt_sets
from cir_utils.schemas import Questions, SelectiveCoT, TextImagination, VisionImagination, parse_json

JSON_PROMPTS = {
    "selective_cot": SelectiveCoT,
    "selective_cot_retry": SelectiveCoT,
    "imagine_text": TextImagination,
    "imagine_vision": VisionImagination,
    "questions": Questions,
}


def test_both_sets_are_installed_and_whole():
    assert prompt_sets() == ("default", "mini")
    for name in prompt_sets():
        stems = {path.name for path in files("cir_utils").joinpath("prompts", name).iterdir()}
        assert stems == {f"{prompt}.txt" for prompt in SLOTS}
        for prompt in SLOTS:
            loaded = load_prompt(name, prompt)
            assert loaded.sha256 == sha256_text(loaded.text) and loaded.slots == SLOTS[prompt]
            assert loaded.text == loaded.text.strip()


@pytest.mark.parametrize("name", JSON_PROMPTS)
def test_the_example_in_a_default_prompt_is_a_good_answer(name):
    text = load_prompt("default", name).text
    example = re.search(r"^\{.*\}$", text, re.MULTILINE).group()
    parsed = parse_json(example, JSON_PROMPTS[name])
    assert parsed.kind == "good"
    assert list(json.loads(example)) == list(JSON_PROMPTS[name].model_fields)


def test_the_retry_is_stronger_and_example_descriptions_lead_with_the_change():
    assert (
        "You MUST incorporate these changes: {modification}"
        in load_prompt("default", "selective_cot_retry").text
    )
    assert "MUST" not in load_prompt("default", "selective_cot").text
    text = load_prompt("default", "selective_cot").text
    example = json.loads(re.search(r"^\{.*\}$", text, re.MULTILINE).group())
    assert example["description"].startswith("a blue dress with polka dots")


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


def test_the_shared_reask_continues_a_prompt():
    reask = load_prompt("shared", "reask")
    assert SHARED_SLOTS == {"reask": ("problem",)} and reask.text.startswith("\n\n")
    assert "(no JSON object)" in reask.fill(problem="no JSON object")
