"""The shipped mini-fashioniq is what the generator makes, has FashionIQ's layout, and follows the rule."""

import io
import json
import re
from importlib.resources import files

import numpy as np
import pytest
from PIL import Image

from cir_utils.files import verify_manifest
from data_scripts.draw_fashion import draw_garment
from data_scripts.make_mini_fashioniq import build
from data_scripts.pool import JPEG
from data_scripts.texts_fashion import steps, wordings
from data_scripts.world import UNSPOKEN
from data_scripts.world_fashion import CATEGORIES, KEPT, answers, held_out

ROOT = files("cir_utils") / "mini" / "fashioniq"
SPLITS = ("val", "test")


@pytest.fixture(scope="module")
def built():
    return build()


def _read(name: str):
    return json.loads((ROOT / name).read_text("utf-8"))


def test_shipped_files_are_whole():
    names = verify_manifest(str(ROOT))
    assert len(names) == 3900 + 12
    assert sum((ROOT / name).stat().st_size for name in names) < 17e6


def test_annotations_are_regenerated_exactly(built):
    for category in CATEGORIES:
        for split in SPLITS:
            rows = _read(f"captions/cap.{category}.{split}.json")
            assert rows == built.captions[category, split]
            assert _read(f"image_splits/split.{category}.{split}.json") == built.galleries[category]
            assert all(list(row) == ["target", "candidate", "captions"] for row in rows)  # as published
            assert all(len(row["captions"]) == 2 and all(row["captions"]) for row in rows)
    assert set(built.pictures) == {path.name.removesuffix(".jpg") for path in (ROOT / "images").iterdir()}
    assert all(re.fullmatch("B00[0-9A-Z]{7}", name) for name in built.pictures)


def test_a_sample_of_pictures_is_regenerated(built):
    for name in list(built.pictures)[::200]:
        garment, seed = built.pictures[name]
        buffer = io.BytesIO()
        draw_garment(garment, seed=seed).save(buffer, **JPEG)
        fresh = np.asarray(Image.open(buffer).convert("RGB"), dtype=int)
        shipped = np.asarray(Image.open(str(ROOT / "images" / f"{name}.jpg")).convert("RGB"), dtype=int)
        # JPEG libraries may round differently; another garment differs by 20 and more
        assert np.abs(fresh - shipped).mean() < 1.0, name


@pytest.mark.parametrize("category", CATEGORIES)
def test_sizes_that_the_benchmark_promises(built, category):
    gallery = built.galleries[category]
    assert len(gallery) == len(set(gallery)) >= 800
    assert all(built.pictures[name][0].category == category for name in gallery)
    for split in SPLITS:
        rows = built.captions[category, split]
        assert len(rows) >= 150
        assert len({(row["candidate"], row["target"]) for row in rows}) == len(rows)
        assert {name for row in rows for name in (row["candidate"], row["target"])} <= set(gallery)
    asked = [{row["target"] for row in built.captions[category, split]} for split in SPLITS]
    assert not asked[0] & asked[1]  # val and test ask for different pictures


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_target_alone_answers(built, category):
    gallery = [(name, built.pictures[name][0]) for name in built.galleries[category]]
    for split in SPLITS:
        rows = list(zip(built.captions[category, split], built.edits[category, split], strict=True))
        for row, edit in rows[::5]:
            reference = built.pictures[row["candidate"]][0]
            assert [name for name, g in gallery if answers(reference, edit, g)] == [row["target"]]
            assert 1 <= len(steps(reference, edit)) <= 3


def test_gallery_holds_every_kind_of_hard_distractor(built):
    look_alikes = near_targets = twins = 0
    rows = [(category, row) for category in CATEGORIES for row in built.captions[category, "test"][:20]]
    for category, row in rows:
        gallery = [built.pictures[name][0] for name in built.galleries[category]]
        reference, target = (built.pictures[row[role]][0] for role in ("candidate", "target"))
        same_traits = [g for g in gallery if all(getattr(g, n) == getattr(reference, n) for n in UNSPOKEN)]

        def wrong(garment, wanted) -> int:
            return sum(getattr(garment, n) != getattr(wanted, n) for n in KEPT)

        look_alikes += sum(wrong(g, reference) == 0 and g != reference for g in same_traits) >= 1
        near_targets += sum(wrong(g, target) == 1 for g in same_traits) >= 2
        same_words = [g for g in gallery if wrong(g, target) == 0]
        twins += sum(any(getattr(g, n) != getattr(target, n) for n in UNSPOKEN) for g in same_words) >= 11
    assert look_alikes == twins == len(rows) and near_targets > 0.9 * len(rows)


def test_held_out_combinations_and_wordings_are_asked_for_in_test_alone(built):
    unseen, unusual = ({split: [] for split in SPLITS} for _ in range(2))
    for (category, split), rows in built.captions.items():
        for row, edit in zip(rows, built.edits[category, split], strict=True):
            reference = built.pictures[row["candidate"]][0]
            unseen[split].append(held_out(reference) or held_out(built.pictures[row["target"]][0]))
            text = " and ".join(row["captions"])
            held = [
                [words for _, words in wordings(reference, edit, step.field)[1]]
                for step in steps(reference, edit)
            ]
            unusual[split].append(all(any(words in text for words in row) for row in held))
    assert not any(unseen["val"]) and np.mean(unseen["test"]) > 0.2
    assert not any(unusual["val"]) and 0.25 < np.mean(unusual["test"]) < 0.42
