"""Garments: what can be drawn, what answers a query, and that pictures and texts tell the same story."""

import json
from dataclasses import replace

import numpy as np
import pytest
from transformers import AutoTokenizer

from cir_utils.schemas import Questions, SelectiveCoT, TextImagination, VisionImagination
from data_scripts import texts_fashion as texts
from data_scripts.draw import OBJECT_COLOURS
from data_scripts.draw_fashion import draw_garment, second_colour
from data_scripts.training_texts_fashion import training_text
from data_scripts.world import COLOURS, STYLES, UNSPOKEN, Edit
from data_scripts.world_fashion import (
    CATEGORIES,
    CHOICES,
    CHOICES_OF,
    FREE,
    HELD_OUT_BACKGROUNDS,
    HELD_OUT_COLOURS,
    HELD_OUT_PATTERNS,
    KEPT,
    SECOND_COLOURS,
    Garment,
    answers,
    held_out,
    random_garment,
    train_garment,
)

BASES = {
    "dress": Garment(
        "dress", "orange", "striped", "black", "short", "round", "midi", "fitted", "none", "beach",
        "flat", "light", 1, "left",
    ),
    "shirt": Garment(
        "shirt", "orange", "striped", "black", "short", "collar", "none", "fitted", "none", "beach",
        "flat", "light", 0, "left",
    ),
    "toptee": Garment(
        "toptee", "orange", "striped", "black", "short", "round", "long", "fitted", "none", "beach",
        "flat", "light", 1, "left",
    ),
}  # fmt: skip


def _pixels(garment: Garment, seed: int = 5) -> np.ndarray:
    return np.asarray(draw_garment(garment, seed), np.float64)


def _values(base: Garment, field: str) -> tuple:
    return {"colour2": SECOND_COLOURS[base.colour], "colour": SECOND_COLOURS[base.colour2]}.get(
        field, CHOICES_OF[base.category][field]
    )


# --- the world -------------------------------------------------------------------------------------


def test_equal_pictures_are_equal_garments():
    plain = replace(BASES["dress"], pattern="plain")
    assert plain.colour2 == "none" and plain == replace(plain, colour2="white")
    shirt = replace(BASES["shirt"], neckline="v", length="maxi")
    assert shirt == BASES["shirt"] and (shirt.neckline, shirt.length) == ("collar", "none")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"sleeves": "straps"}, "dress: sleeves 'straps' is not one of sleeveless, short, long"),
        ({"detail": "logo"}, "dress: detail 'logo' is not one of none, belt"),
        ({"colour2": "orange"}, "colour2 'orange' is not one of"),
        ({"colour2": "yellow"}, "orange striped dress: colour2 'yellow' is not one of"),
        ({"category": "toptee"}, "toptee: length 'midi' is not one of cropped, long"),
    ],
)
def test_a_garment_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(BASES["dress"], **change)


@pytest.mark.parametrize("table", (HELD_OUT_COLOURS, HELD_OUT_PATTERNS, HELD_OUT_BACKGROUNDS))
def test_a_tenth_of_the_pairs_is_held_out_evenly(table):
    assert 0.1 <= table.mean() <= 0.125
    assert (table.sum(1) == 1).all() and table.sum(0).max() == 1  # every value is seen with others


def test_training_garments_hold_no_held_out_pair_and_every_value():
    rng = np.random.default_rng(0)
    garments = [train_garment(rng) for _ in range(3000)]
    assert not any(map(held_out, garments))
    for name, choices in CHOICES.items():
        assert {getattr(g, name) for g in garments} == set(choices), name
    assert 0.15 < np.mean([held_out(random_garment(rng)) for _ in range(2000)]) < 0.4


def test_fixed_fields_are_kept():
    rng = np.random.default_rng(1)
    for colour2 in COLOURS:
        garment = random_garment(rng, pattern="dotted", colour2=colour2)
        assert (garment.pattern, garment.colour2) == ("dotted", colour2)


@pytest.mark.parametrize("category", CATEGORIES)
def test_rule_of_ground_truth(category):
    rng = np.random.default_rng(0)
    for _ in range(100):
        reference = random_garment(
            rng, category=category, colour="red", pattern="striped", colour2="white", background="beach"
        )
        edit = Edit((("colour", "green"),))
        target = edit.apply(reference)
        assert answers(reference, edit, target) and not answers(reference, edit, reference)
        assert answers(reference, edit, replace(target, background="city"))  # nobody mentioned it: free
        for name in (*KEPT, *UNSPOKEN):  # kept unless edited
            for value in CHOICES[name]:
                try:
                    changed = replace(target, **{name: value})
                except ValueError:
                    continue
                assert changed == target or not answers(reference, edit, changed), (name, value)
        mentioned = Edit((("colour", "green"), ("background", "city")))
        assert not answers(reference, mentioned, target)
        assert answers(reference, mentioned, mentioned.apply(reference))


# --- pictures --------------------------------------------------------------------------------------


def test_size_and_mode():
    picture = draw_garment(BASES["dress"], 0)
    assert (picture.mode, picture.size) == ("RGB", (112, 112))
    assert draw_garment(replace(BASES["dress"], style="shaded"), 0, size=224).size == (224, 224)


@pytest.mark.parametrize("style", STYLES)
def test_same_arguments_give_the_same_bytes(style):
    garment = replace(BASES["toptee"], style=style)
    assert draw_garment(garment, 3).tobytes() == draw_garment(garment, 3).tobytes()
    assert draw_garment(garment, 3).tobytes() != draw_garment(garment, 4).tobytes()


@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("field", tuple(CHOICES)[1:])
def test_every_value_of_every_field_shows(category, field):
    """Every two values differ clearly in 1 % of the picture or more (125 pixels), worn and hung."""
    base = BASES[category]
    others = [base, replace(base, variant=1 - base.variant, fit="loose", sleeves="long")]
    for garment in others:
        pictures = [_pixels(replace(garment, **{field: value})) for value in _values(garment, field)]
        for i, one in enumerate(pictures):
            for other in pictures[:i]:
                changed = (np.abs(one - other).max(axis=2) > 24).mean()
                assert changed > 0.01, (category, field, _values(garment, field)[i], changed)


def test_categories_differ_in_shape():
    for sleeves in ("sleeveless", "short", "long"):
        for variant in (0, 1):
            common = {"sleeves": sleeves, "variant": variant, "pattern": "plain"}
            shirt, top, dress = (_pixels(replace(BASES[c], **common)) for c in ("shirt", "toptee", "dress"))
            for one, other in ((shirt, top), (shirt, dress), (top, dress)):
                assert (np.abs(one - other).max(axis=2) > 24).mean() > 0.03


@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("variant", (0, 1))
def test_facing_turns_every_garment(category, variant):
    """Facing right differs from facing left, and is nearer to its mirror image (in the mean of some pictures,
    as shifts and turns are not mirrored).
    """
    garment = replace(BASES[category], variant=variant, pattern="plain", background="studio")
    left = np.mean([_pixels(garment, seed) for seed in range(12)], axis=0)
    right = np.mean([_pixels(replace(garment, facing="right"), seed) for seed in range(12)], axis=0)
    to_original, to_mirrored = np.abs(right - left).mean(), np.abs(right - left[:, ::-1]).mean()
    assert to_original > 6 and to_mirrored < 0.8 * to_original


def test_a_pattern_stands_out_from_its_ground():
    for colour, seconds in SECOND_COLOURS.items():
        assert len(seconds) >= 3, colour
        for second in seconds:
            assert colour in SECOND_COLOURS[second]  # being too close is mutual
            for ground in OBJECT_COLOURS[colour]:
                assert np.linalg.norm(np.subtract(ground, second_colour(second))) > 75, (colour, second)


# --- texts -----------------------------------------------------------------------------------------


def test_reading_is_the_inverse_of_captioning():
    rng = np.random.default_rng(2)
    for _ in range(1500):
        garment = random_garment(rng)
        text = texts.caption(garment)
        assert texts.read_caption(text) == {n: getattr(garment, n) for n in (*KEPT, *FREE)}, text


def test_captions_read_well():
    dress = replace(BASES["dress"], sleeves="long", length="maxi", fit="loose", detail="belt")
    assert (
        texts.caption(dress)
        == "a loose orange maxi dress with black stripes, long sleeves, round neck, belt, at the beach"
    )
    shirt = replace(BASES["shirt"], sleeves="sleeveless", pattern="plain", background="city")
    assert texts.caption(shirt) == "a fitted sleeveless orange shirt, in the city"
    unread = texts.read_caption("something blue")
    assert unread["colour"] == "blue" and unread["category"] is None and unread["background"] is None


def test_texts_stay_within_the_models_vocabulary_and_limits():
    tokenizer = AutoTokenizer.from_pretrained("cir_utils/mini/models/mini-vlm", local_files_only=True)

    def length(text) -> int:
        return len(tokenizer(text if isinstance(text, str) else json.dumps(text))["input_ids"])

    rng = np.random.default_rng(3)
    broken: dict[str, int] = {}
    for i in range(300):
        garment = random_garment(rng)
        edit = texts.random_edit(rng, garment)
        caption = texts.caption(garment)
        change = " and ".join(texts.relative_captions(rng, garment, edit, held_out=bool(i % 2)))
        assert length(caption) <= 25, caption
        assert length(change) <= 75, change
        assert length(texts.dense_caption(rng, garment)) <= 45
        assert length(texts.selective_cot(garment, edit)) <= 200
        assert length(texts.questions(garment, edit)) <= 200
        assert length(texts.vision_imagination(garment, edit)) <= 110
        assert length(texts.text_imagination(garment, edit)) <= 110
        for word in f"{caption} {change}".replace(",", "").split():
            pieces = length(" " + word)
            broken |= {word: pieces} if pieces > 1 else {}
    assert set(broken) <= {"checks", "than", "solid"} and max(broken.values()) <= 2, broken


def test_random_edits_change_what_they_name():
    rng = np.random.default_rng(4)
    numbers = []
    for _ in range(1500):
        garment = random_garment(rng)
        edit = texts.random_edit(rng, garment)
        target = edit.apply(garment)
        numbers.append(len(texts.steps(garment, edit)))
        for name, value in edit.changes:
            assert getattr(target, name) == value != getattr(garment, name)
        unnamed = set(KEPT) - set(edit.as_dict())
        if target.pattern == "plain":
            unnamed -= {"colour2"}
        assert all(getattr(target, n) == getattr(garment, n) for n in unnamed)
        assert [n for n, _ in edit.changes] == [n for n in texts.EDITABLE if n in edit.as_dict()]
    assert set(numbers) == {1, 2, 3} and np.bincount(numbers)[1] > 400


@pytest.mark.parametrize("field", texts.EDITABLE)
def test_edits_of_one_field(field):
    rng = np.random.default_rng(5)
    for _ in range(100):
        garment = random_garment(rng)
        if field in texts.applicable(garment):
            assert field in texts.random_edit(rng, garment, (field,)).as_dict()


def _full_wordings(garment: Garment, edit: Edit, held: bool) -> set[str]:
    fields = [step.field for step in texts.steps(garment, edit)]
    return {text for field in fields for _, text in texts.wordings(garment, edit, field)[held]}


def test_held_out_wordings_never_occur_in_training():
    rng = np.random.default_rng(6)
    asked = {False: 0, True: 0}
    for _ in range(800):
        garment = random_garment(rng)
        edit = texts.random_edit(rng, garment)
        held = _full_wordings(garment, edit, True)
        assert held
        trained = " | ".join(
            [*texts.relative_captions(rng, garment, edit)]
            + [write(rng, garment, edit) for write in (texts.modification_text, training_text) for _ in "12"]
        )
        for wording in held:
            assert wording not in trained, (wording, trained)
        unusual = texts.modification_text(rng, garment, edit, held_out=True)
        asked[any(wording in unusual for wording in held)] += 1
    assert asked[False] == 0


def test_every_training_wording_of_a_change_names_its_new_value():
    """Or is a comparison that leaves one answer."""
    rng = np.random.default_rng(7)
    comparisons = {"longer", "shorter", "more", "less", "tight", "wide"}
    synonyms = {"midi": "knee", "maxi": "ankle"}
    for _ in range(600):
        garment = random_garment(rng)
        edit = texts.random_edit(rng, garment)
        target = edit.apply(garment)
        for step in texts.steps(garment, edit):
            for held in (False, True):
                for _, text in texts.wordings(garment, edit, step.field)[held]:
                    value = getattr(target, step.field)
                    words = set(text.split())
                    named = value in words or {value, synonyms.get(value)} & words or value in text
                    if step.field == "pattern":
                        named |= texts.PATTERN_NOUNS.get(value, "solid") in words
                        named |= value == "plain" and bool({"no", "without", "remove", "rid"} & words)
                        named |= step.old != "plain" and garment.pattern == target.pattern
                    if value == "none" or value == "sleeveless":
                        named |= bool({"no", "without", "remove", "rid", "away"} & words)
                    if step.field == "background":
                        named |= any(p in text for p in texts.PLACE_SYNONYMS[value])
                    assert named or comparisons & words, (step, text)


def test_a_comparison_stands_alone_only_where_it_leaves_one_answer():
    mini, midi = replace(BASES["dress"], length="mini"), BASES["dress"]

    def said(garment: Garment, length: str) -> set[str]:
        return _full_wordings(garment, Edit((("length", length),)), False)

    assert "longer" not in said(mini, "midi") and "longer" not in said(mini, "maxi")
    assert "longer" in said(midi, "maxi") and "shorter" in said(midi, "mini")
    bare = replace(BASES["dress"], sleeves="sleeveless")
    longer = "longer sleeves"
    assert longer not in _full_wordings(bare, Edit((("sleeves", "short"),)), False)
    assert longer in _full_wordings(BASES["dress"], Edit((("sleeves", "long"),)), False)


def test_two_captions_together_name_every_change():
    rng = np.random.default_rng(8)
    shapes = {"split": 0, "both": 0}
    for i in range(1000):
        garment = random_garment(rng)
        edit = texts.random_edit(rng, garment)
        held = bool(i % 2)
        first, second = texts.relative_captions(rng, garment, edit, held_out=held)
        assert first != second and first == first.strip().lower() and "  " not in first
        steps = texts.steps(garment, edit)
        full = []
        for step in steps:
            wordings = [text for _, text in texts.wordings(garment, edit, step.field)[held]]
            in_first, in_second = (any(w in c for w in wordings) for c in (first, second))
            assert in_first or in_second, (step, first, second)
            full.append(in_first and in_second)
        shapes["both" if all(full) else "split"] += 1
    assert min(shapes.values()) > 200  # both ways of writing are common


def test_wordings_vary():
    rng = np.random.default_rng(9)
    edit = Edit((("colour", "blue"), ("sleeves", "long")))
    dress = replace(BASES["dress"], pattern="plain")
    said = [texts.relative_captions(rng, dress, edit) for _ in range(400)]
    flat = [caption for pair in said for caption in pair]
    assert len(set(flat)) > 150
    for sign in ("is ", "has ", "same", "the dress", "longer", " not ", " with ", "instead of", ","):
        assert sum(sign in caption for caption in flat) >= 8, sign


def test_model_answers_of_one_edit():
    dress = replace(BASES["dress"], detail="belt", sleeves="long")
    edit = Edit((("pattern", "plain"), ("length", "mini"), ("detail", "none")))
    assert texts.modifications(dress, edit) == ["remove black stripes", "midi to mini", "remove belt"]
    assert texts.description(dress, edit) == "a fitted plain orange mini dress with long sleeves, round neck"
    cot = texts.selective_cot(dress, edit)
    assert cot["explicit_targets"] == ["pattern: plain", "length: mini", "detail: none"]
    assert cot["implicit_targets"] == ["not black stripes", "not midi", "not belt"]
    assert cot["selected"] == ["fitted", "orange", "dress", "long sleeves", "round neck"]
    assert cot["discarded"] == ["black stripes", "midi", "belt", "beach"]
    asked = texts.questions(dress, edit)["statements"]
    assert {"statement": "it has a belt", "answer": False} in asked
    assert {"statement": "it is mini length", "answer": True} in asked
    assert {"statement": "the dress is striped", "answer": False} in asked
    assert {"statement": "it has long sleeves", "answer": True} in asked
    added = Edit((("pattern", "dotted"), ("colour2", "white")))
    plain = replace(dress, pattern="plain")
    assert texts.modifications(plain, added) == ["add white dots"]
    assert {"statement": "the dots are white", "answer": True} in texts.questions(plain, added)["statements"]


def test_model_answers_fit_the_schemas_and_are_true_of_the_target():
    rng = np.random.default_rng(10)
    for _ in range(400):
        garment = random_garment(rng)
        edit = texts.random_edit(rng, garment)
        target = edit.apply(garment)
        SelectiveCoT.model_validate(texts.selective_cot(garment, edit))
        TextImagination.model_validate(texts.text_imagination(garment, edit))
        vision = VisionImagination.model_validate(texts.vision_imagination(garment, edit))
        asked = Questions.model_validate(texts.questions(garment, edit)).statements
        assert len({s.statement for s in asked}) == len(asked)
        read = texts.read_caption(texts.description(garment, edit))
        for name in KEPT:
            assert read[name] == getattr(target, name), name
        mentioned = "background" in edit.as_dict()
        assert read["background"] == (target.background if mentioned else None)
        assert not set(vision.absent) & set(vision.present)
        true = {texts.statement(f, texts._fact(target, f), target.category) for f in (*KEPT, *FREE)
                if f != "colour2" or target.pattern != "plain"}  # fmt: skip
        for s in asked:
            assert (s.statement in true) == s.answer, (s, true)


def test_statements_say_what_their_truth_says():
    rng = np.random.default_rng(11)
    fields: dict[str, list[bool]] = {}
    for _ in range(3000):
        garment = train_garment(rng)
        fact = texts.random_statement(rng, garment, training=True)
        fields.setdefault(fact.field, []).append(fact.truth)
        if not fact.truth and fact.field in ("colour", "pattern", "background"):
            # a false statement never describes a held-out combination
            for value in CHOICES[fact.field]:
                if fact.text == texts.statement(fact.field, value, garment.category):
                    try:
                        assert not held_out(replace(garment, **{fact.field: value})), fact
                    except ValueError:  # too close to the pattern's colour: no such picture
                        continue
    assert set(fields) == {*KEPT, *FREE}
    for name, truths in fields.items():
        assert 0.4 < np.mean(truths) < 0.62, name
    dress = BASES["dress"]
    assert texts.is_true(dress, "colour2", ("striped", "black"), "dress")
    assert not texts.is_true(dress, "colour2", ("striped", "white"), "dress")
    assert not texts.is_true(dress, "colour", "orange", "shirt")  # it presupposes a shirt


def test_dense_and_short_texts_say_nothing_false():
    rng = np.random.default_rng(12)
    for _ in range(600):
        garment = random_garment(rng)
        for text in (texts.dense_caption(rng, garment), texts.short_text(rng, garment)):
            read = texts.read_caption(text)
            for name in ("category", "colour", "sleeves", "neckline", "length", "fit", "background"):
                assert read[name] in (None, getattr(garment, name)), (name, text)
            for name, nothing in (("pattern", "plain"), ("detail", "none"), ("colour2", "none")):
                assert read[name] in (nothing, getattr(garment, name)), (name, text)
