"""Training texts: as varied as they claim, true to the edit, and free of every held-out wording."""

import re
from itertools import product

import numpy as np
import pytest

from data_scripts import texts, texts_fashion, training_texts, training_texts_fashion
from data_scripts.world import Edit, Scene, random_scene
from data_scripts.world_fashion import random_garment

DRAWS = 20_000


def _scene(rng: np.random.Generator) -> tuple[str, set[str]]:
    scene = random_scene(rng)
    edit = texts.random_edit(rng, scene)
    held = {wording for name, new in edit.changes for wording in texts.wordings(scene, name, new)[1]}
    return training_texts.training_text(rng, scene, edit), held


def _garment(rng: np.random.Generator) -> tuple[str, set[str]]:
    garment = random_garment(rng)
    edit = texts_fashion.random_edit(rng, garment)
    fields = [step.field for step in texts_fashion.steps(garment, edit)]
    held = {text for field in fields for _, text in texts_fashion.wordings(garment, edit, field)[1]}
    return training_texts_fashion.training_text(rng, garment, edit), held


@pytest.mark.parametrize("draw", (_scene, _garment))
def test_training_texts_hold_no_held_out_wording_and_no_slot(draw):
    rng = np.random.default_rng(0)
    said = set()
    for _ in range(DRAWS):
        text, held = draw(rng)
        found = [wording for wording in (*held, *texts.VAGUE_HELD_OUT) if wording in text]
        assert not found, (found, text)
        assert text == text.strip().lower() and not re.search(r"[\[\]|{}]|  | ,|,,", text), text
        said.add(text)
    assert len(said) > 0.9 * DRAWS


def _spun(frame: str) -> list[str]:
    """Every text that the slots of a frame can give."""
    pieces = [re.split(r"\|", p[1:-1]) if p[:1] == "[" else [p] for p in re.split(r"(\[[^\]]*\])", frame)]
    return [" ".join("".join(chosen).split()) for chosen in product(*pieces)]


def test_every_frame_of_a_scene_names_its_new_value_and_no_held_out_wording():
    rng = np.random.default_rng(1)
    for _ in range(150):
        scene = random_scene(rng)
        for field, new in texts.random_edit(rng, scene).changes:
            held = texts.wordings(scene, field, new)[1]
            named = {
                str(new),
                texts.NUMBERS.get(new, ""),
                texts.PATTERN_NOUNS.get(new, ""),
                texts.plural(str(new)),
            }
            if new in ("none", "plain"):  # or what goes is named
                old = getattr(scene, field)
                named |= {old, texts.PATTERN_NOUNS.get(old, "")}
            if field == "background":
                named |= {texts.PLACES[new], *texts.PLACE_SYNONYMS[new]}
            for _, frame in training_texts.more_wordings(scene, field, new):
                for text in _spun(frame):
                    assert not [wording for wording in held if wording in text], text
                    if field != "count":  # counts are also named by comparisons
                        assert any(name and name in text for name in named), text


def test_one_change_is_asked_for_in_many_ways():
    rng = np.random.default_rng(2)
    scene = Scene("cat", "red", 2, "plain", "beach", "none", "left", "flat", "light", 0, "left")
    said = {training_texts.training_text(rng, scene, Edit((("colour", "blue"),))) for _ in range(2000)}
    assert len(said) > 700 and all("blue" in text for text in said)
    starts = {text.split()[0] for text in said}
    assert len(starts) > 50


def test_further_vague_texts_are_new():
    assert not set(training_texts.VAGUE_MORE) & {*texts.VAGUE, *texts.VAGUE_HELD_OUT}
    assert not [t for t in training_texts.VAGUE_MORE for held in texts.VAGUE_HELD_OUT if held in t]
    assert len(set(training_texts.VAGUE_MORE)) == len(training_texts.VAGUE_MORE) >= 40
