"""The shipped benchmark is what the generator makes, and its ground truths follow the written rule."""

import io
import json
from importlib.resources import files

import numpy as np
import pytest
from PIL import Image

from cir_utils.benchmarks import load_benchmark
from cir_utils.files import verify_manifest
from data_scripts.draw import draw_scene
from data_scripts.make_mini_circo import IMAGE_INFO, build, picture_path
from data_scripts.pool import JPEG
from data_scripts.world import CHOICES, FREE, KEPT, UNSPOKEN, Edit, answers, held_out, random_scene

ROOT = files("cir_utils") / "mini" / "circo"


@pytest.fixture(scope="module")
def rebuilt():
    return build()


def test_shipped_files_are_whole():
    assert len(verify_manifest(str(ROOT))) > 2000


def test_annotations_are_regenerated_exactly(rebuilt):
    drawn, annotations = rebuilt
    for split in ("val", "test"):
        assert json.loads((ROOT / "annotations" / f"{split}.json").read_text("utf-8")) == annotations[split]
    images = json.loads((ROOT / IMAGE_INFO).read_text("utf-8"))["images"]
    assert [image["id"] for image in images] == list(drawn)


def test_a_sample_of_pictures_is_regenerated(rebuilt):
    drawn, _ = rebuilt
    for image_id in list(drawn)[::200]:
        scene, seed = drawn[image_id]
        buffer = io.BytesIO()
        draw_scene(scene, seed=seed).save(buffer, **JPEG)
        fresh = np.asarray(Image.open(buffer).convert("RGB"), dtype=int)
        shipped = np.asarray(Image.open(str(picture_path(ROOT, image_id))).convert("RGB"), dtype=int)
        # JPEG libraries may round differently; another scene differs by 20 and more
        assert np.abs(fresh - shipped).mean() < 1.0, image_id


def test_sizes_that_the_benchmark_promises():
    val, test = load_benchmark("mini-circo", "val"), load_benchmark("mini-circo", "test")
    assert len(val.queries) >= 150 and len(test.queries) >= 300 and len(val.gallery) >= 2000
    assert val.gallery == test.gallery
    assert np.mean([len(query.targets) for query in test.queries]) > 2
    assert all(query.reference not in query.targets for query in (*val.queries, *test.queries))


def test_gallery_holds_every_kind_of_hard_distractor(rebuilt):
    drawn, annotations = rebuilt
    gallery = [scene for scene, _ in drawn.values()]
    by_unspoken: dict[tuple, list] = {}
    for scene in gallery:
        by_unspoken.setdefault(tuple(getattr(scene, n) for n in UNSPOKEN), []).append(scene)
    look_alikes = near_targets = other_traits = 0
    rows = annotations["test"][:60]
    for row in rows:
        reference, target = drawn[row["reference_img_id"]][0], drawn[row["target_img_id"]][0]
        same_traits = by_unspoken[tuple(getattr(reference, n) for n in UNSPOKEN)]
        look_alikes += any(
            s != reference and all(getattr(s, n) == getattr(reference, n) for n in KEPT) for s in same_traits
        )
        near_targets += any(sum(getattr(s, n) != getattr(target, n) for n in KEPT) == 1 for s in same_traits)
        other_traits += any(
            all(getattr(s, n) == getattr(target, n) for n in KEPT)
            and any(getattr(s, n) != getattr(target, n) for n in UNSPOKEN)
            for s in gallery
        )
    assert min(look_alikes, near_targets, other_traits) > 0.9 * len(rows)


def test_held_out_combinations_are_asked_for_in_test_alone(rebuilt):
    drawn, annotations = rebuilt
    share = {
        split: np.mean(
            [
                any(held_out(drawn[i][0]) for i in (row["reference_img_id"], *row["gt_img_ids"]))
                for row in rows
            ]
        )
        for split, rows in annotations.items()
    }
    assert share["val"] == 0 and share["test"] > 0.2


def test_rule_of_ground_truth():
    rng = np.random.default_rng(0)
    for _ in range(200):
        reference = random_scene(rng, prop="ball", side="left", background="beach", colour="red")
        edit = Edit((("colour", "blue"),))
        target = edit.apply(reference)
        assert answers(reference, edit, target)
        assert not answers(reference, edit, reference)
        for name in FREE:  # nobody mentioned it: free
            other = {"background": "city", "prop": "none", "side": "right"}[name]
            assert answers(reference, edit, Edit(((name, other),)).apply(target))
        for name in (*KEPT, *UNSPOKEN):  # kept unless edited
            for value in CHOICES[name]:
                changed = Edit(((name, value),)).apply(target)
                assert changed == target or not answers(reference, edit, changed), (name, value)
        mentioned = Edit((("colour", "blue"), ("background", "city")))
        assert not answers(reference, mentioned, target)
        assert answers(reference, mentioned, mentioned.apply(reference))
