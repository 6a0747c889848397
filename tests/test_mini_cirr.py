"""The shipped `mini-cirr` is what the generator makes, its subsets are look-alikes, and every query has one
right answer by the written rule.
"""

import io
import json
from collections import Counter
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from cir_utils.files import verify_manifest
from data_scripts import texts
from data_scripts.draw import draw_scene
from data_scripts.make_mini_circo import strict
from data_scripts.make_mini_cirr import FOLDERS, build, differing, right_answers
from data_scripts.pool import JPEG
from data_scripts.world import FREE, KEPT, UNSPOKEN, answers, held_out

ROOT = files("cir_utils") / "mini" / "cirr"
SPLITS = ("val", "test")
NEGATIONS = {"no", "not", "without", "remove", "rid", "gone", "away"}
COMPARISONS = {"instead", "more", "another", "fewer", "twice"}


@pytest.fixture(scope="module")
def rebuilt():
    return build()


@pytest.fixture(scope="module")
def steps(rebuilt):
    """split -> (row, reference, edit, target) of every query, the pictures as scenes."""
    pictures = rebuilt.pictures
    return {
        split: [
            (row, pictures[row["reference"]][0], edit, pictures[row["target_hard"]][0])
            for row, edit in zip(rows, rebuilt.edits[split], strict=True)
        ]
        for split, rows in rebuilt.annotations.items()
    }


def read(name):
    return json.loads((ROOT / "cirr" / name).read_text("utf-8"))


def test_shipped_files_are_whole_and_small():
    names = verify_manifest(str(ROOT))
    assert len(names) > 1500
    assert sum((ROOT / name).stat().st_size for name in names) < 8_000_000


def test_annotations_are_regenerated_exactly(rebuilt):
    for split in SPLITS:
        assert read(f"captions/cap.rc2.{split}.json") == rebuilt.annotations[split]
        shipped = read(f"image_splits/split.rc2.{split}.json")
        assert list(shipped.items()) == list(rebuilt.image_splits[split].items())  # the order breaks ties


def test_a_sample_of_pictures_is_regenerated(rebuilt):
    for name in list(rebuilt.pictures)[::150]:
        scene, seed = rebuilt.pictures[name]
        buffer = io.BytesIO()
        draw_scene(scene, seed=seed).save(buffer, **JPEG)
        fresh = np.asarray(Image.open(buffer).convert("RGB"), dtype=int)
        shipped = np.asarray(
            Image.open(str(ROOT / rebuilt.image_splits["val"][name])).convert("RGB"), dtype=int
        )
        # JPEG libraries may round differently; another scene differs by 20 and more
        assert np.abs(fresh - shipped).mean() < 1.0, name


def test_layout_is_that_of_the_real_files(rebuilt, real_annotations):
    real = json.loads((real_annotations / "cirr/captions/cap.rc2.val.json").read_text("utf-8"))[0]
    listing = json.loads((real_annotations / "cirr/image_splits/split.rc2.val.json").read_text("utf-8"))
    image_splits = rebuilt.image_splits
    for split in SPLITS:
        for row in rebuilt.annotations[split]:
            assert list(row) == list(real) and list(row["img_set"]) == list(real["img_set"])
            assert [type(v) for v in row.values()] == [type(v) for v in real.values()]
        assert {p.split("/")[1] for p in image_splits[split].values()} == set(FOLDERS.values())
    name, path = next(iter(listing.items()))
    assert path == f"./dev/{name}.png"  # ours: the same, with .jpg
    assert all(path == f"./{name.split('-')[0]}/{name}.jpg" for name, path in image_splits["val"].items())


def test_sizes_that_the_benchmark_promises(rebuilt):
    annotations = rebuilt.annotations
    for split in SPLITS:
        rows, gallery = annotations[split], rebuilt.image_splits[split]
        assert len(rows) >= 300 and len(gallery) >= 1500
        assert set(gallery) == set(rebuilt.pictures)
        pairids = [row["pairid"] for row in rows]
        assert pairids == sorted(set(pairids))
    assert not {row["pairid"] for row in annotations["val"]} & {row["pairid"] for row in annotations["test"]}
    subsets = [{row["img_set"]["id"] for row in annotations[split]} for split in SPLITS]
    assert not subsets[0] & subsets[1] and min(map(len, subsets)) >= 60


def test_subsets_are_six_look_alikes(rebuilt):
    pictures, annotations = rebuilt.pictures, rebuilt.annotations
    forms = Counter()
    for split in SPLITS:
        members_of = {row["img_set"]["id"]: row["img_set"]["members"] for row in annotations[split]}
        for row in annotations[split]:
            subset = row["img_set"]
            assert subset["members"] == members_of[subset["id"]] and len(set(subset["members"])) == 6
            assert {row["reference"], row["target_hard"]} <= set(subset["members"])
            assert row["reference"] != row["target_hard"] and row["target_soft"] == {row["target_hard"]: 1.0}
            assert {subset["reference_rank"], subset["target_rank"]} <= set(range(6))
            assert subset["reference_rank"] != subset["target_rank"]
        for members in members_of.values():
            assert all(member.split("-")[0] == FOLDERS[split] for member in members)
            scenes = [pictures[member][0] for member in members]
            assert len({tuple(getattr(s, n) for n in UNSPOKEN) for s in scenes}) == 1
            differences = [len(differing(a, b)) for a, b in combinations(scenes, 2)]
            assert set(differences) <= {1, 2}
            forms[len(set().union(*(differing(a, b) for a, b in combinations(scenes, 2))))] += 1
    assert set(forms) <= {1, 2, 5} and forms[2] > 50 and forms[5] > 50  # grids and lines; stars
    # the place in the list tells nothing about the answer
    places = Counter(r["img_set"]["members"].index(r["target_hard"]) for r in annotations["test"])
    assert max(places.values()) < 0.3 * len(annotations["test"])


def test_one_picture_of_the_gallery_satisfies_each_query(rebuilt, steps):
    scenes = [scene for scene, _ in rebuilt.pictures.values()]
    alike = {}
    for scene in scenes:
        alike.setdefault(strict(scene), []).append(scene)
    false_negatives = sum(
        len(right_answers(reference, edit, alike)) - 1
        for split in SPLITS
        for _, reference, edit, _ in steps[split]
    )
    assert false_negatives == 0
    for split in SPLITS:
        assert all(answers(reference, edit, target) for _, reference, edit, target in steps[split])
        for _, reference, edit, target in steps[split][:20]:  # the rule read plainly, over every picture
            assert [scene for scene in scenes if answers(reference, edit, scene)] == [target]


def test_edits_are_the_differences_and_leave_out_free_content_alone(steps):
    left_out = 0
    for split in SPLITS:
        for _, reference, edit, target in steps[split]:
            names, asked = differing(reference, target), edit.as_dict()
            assert 1 <= len(names) <= 2 and list(asked) == [n for n in names if n in asked]
            assert all(getattr(target, name) == value for name, value in asked.items())
            assert set(names) - set(asked) <= set(FREE)
            left_out += len(asked) < len(names)
    assert left_out > 30  # drawn anew, as in the real benchmarks


def test_gallery_holds_every_kind_of_hard_distractor(rebuilt, steps):
    scenes = [scene for scene, _ in rebuilt.pictures.values()]
    traits = Counter(
        tuple(getattr(s, n) for n in UNSPOKEN) + tuple(getattr(s, n) for n in KEPT) for s in scenes
    )
    spoken = Counter(tuple(getattr(s, n) for n in KEPT) for s in scenes)
    look_alikes = other_traits = 0
    for _, reference, _, target in steps["test"]:
        kept = tuple(getattr(reference, n) for n in KEPT)
        look_alikes += traits[tuple(getattr(reference, n) for n in UNSPOKEN) + kept] > 1
        wanted = tuple(getattr(target, n) for n in KEPT)
        unspoken = tuple(getattr(target, n) for n in UNSPOKEN)
        other_traits += spoken[wanted] > traits[unspoken + wanted]
    assert look_alikes > 0.5 * len(steps["test"]) and other_traits > 0.4 * len(steps["test"])


def test_held_out_combinations_are_asked_for_in_test_alone(rebuilt):
    pictures, annotations = rebuilt.pictures, rebuilt.annotations
    share = {
        split: np.mean([any(held_out(pictures[m][0]) for m in row["img_set"]["members"]) for row in rows])
        for split, rows in annotations.items()
    }
    assert share["val"] == 0 and 0.3 < share["test"] < 0.7


def test_held_out_wordings_are_used_in_test_alone(steps):
    share = {}
    for split in SPLITS:
        unusual = 0
        for row, reference, edit, _ in steps[split]:
            held = {
                wording for name, new in edit.changes for wording in texts.wordings(reference, name, new)[1]
            }
            unusual += any(wording in row["caption"] for wording in held)
        share[split] = unusual / len(steps[split])
    assert share["val"] == 0 and 0.2 < share["test"] < 0.5


def test_modification_texts_vary(steps):
    for split in SPLITS:
        said = [row["caption"] for row, *_ in steps[split]]
        assert len(set(said)) > 0.8 * len(said)
        words = [set(text.replace(",", " ").split()) for text in said]
        counts = {
            "negation": sum(
                bool({"no", "not", "without", "remove", "rid", "gone", "away"} & w) for w in words
            ),
            "comparison": sum(bool({"instead", "more", "another", "fewer", "twice"} & w) for w in words),
            "counting": sum(bool(set(texts.NUMBERS.values()) & w) for w in words),
            "same but": sum("same" in w and "but" in w for w in words),
            "two changes": sum(" and " in text or ", " in text for text in said),
        }
        assert all(count > 0.04 * len(said) for count in counts.values()), counts
