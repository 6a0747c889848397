from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest

from cir_utils.benchmarks import EMPTY_TEXT, Protocol, benchmark_names, check_benchmark, load_benchmark
from cir_utils.errors import InputError

IMAGES = "COCO2017_unlabeled/unlabeled2017"
PART = "2 queries where the published val split has 220"
LIST = "COCO2017_unlabeled/annotations/image_info_unlabeled2017.json"


def entry(query_id=0, **changes):
    """A valid entry of val.json, with changes; None removes a field."""
    row = {
        "reference_img_id": 10 + query_id,
        "target_img_id": 30,
        "relative_caption": "is red",
        "shared_concept": "a boat",
        "gt_img_ids": [30, 31],
        "id": query_id,
        "semantic_aspects": ["addition"],
    }
    row.update(changes)
    return {key: value for key, value in row.items() if value is not None}


def write(root, rows, split="val", gallery=(10, 11, 12, 30, 31), files=None, listed=True):
    """A benchmark folder in CIRCO's layout; ``files`` are the pictures that exist (default: the gallery)."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / "annotations" / f"{split}.json").write_text(json.dumps(rows), encoding="utf-8")
    if listed:
        (root / LIST).parent.mkdir(parents=True, exist_ok=True)
        (root / LIST).write_text(json.dumps({"images": [{"id": i} for i in reversed(gallery)]}))
    (root / IMAGES).mkdir(parents=True, exist_ok=True)
    for image in gallery if files is None else files:
        (root / IMAGES / f"{image:012d}.jpg").touch()
    return root


def test_a_small_benchmark_is_read_as_it_stands(tmp_path):
    root = write(tmp_path, [entry(0), entry(1, relative_caption=" shows a café \n", gt_img_ids=[30])])
    bench = load_benchmark("circo", "val", root)
    assert bench.gallery == (10, 11, 12, 30, 31)
    first, second = bench.queries
    assert (first.id, first.reference, first.text, first.target, first.targets) == (
        "0",
        10,
        "is red",
        30,
        (30, 31),
    )
    assert (first.shared_concept, first.aspects) == ("a boat", ("addition",))
    assert second.text == "shows a café"
    assert bench.has_answers
    assert bench.image_path(30) == root / IMAGES / "000000000030.jpg"
    assert bench.notes == (PART,)
    assert bench.protocol == Protocol(
        benchmark="circo",
        split="val",
        gallery="image list image_info_unlabeled2017.json",
        gallery_size=5,
        reference="kept",
        caption_rule="relative caption",
        shared_concept=False,
        queries=2,
        missing_images=0,
        empty_texts=0,
    )
    assert json.loads(json.dumps(bench.protocol.as_dict()))["gallery_size"] == 5


def test_the_shared_concept_is_an_explicit_recorded_option(tmp_path):
    root = write(tmp_path, [entry(0), entry(1, shared_concept=" "), entry(2, relative_caption="")])
    bench = load_benchmark("circo", "val", root, shared_concept=True)
    assert [query.text for query in bench.queries] == ["a boat that is red", "is red", EMPTY_TEXT]
    assert bench.protocol.shared_concept
    assert bench.protocol.caption_rule == "<shared concept> that <relative caption>"


def test_an_empty_text_is_replaced_and_counted_never_dropped(tmp_path):
    root = write(tmp_path, [entry(0, relative_caption=" "), entry(1)])
    bench = load_benchmark("circo", "val", root)
    assert [query.text for query in bench.queries] == ["the same image", "is red"]
    assert bench.protocol.empty_texts == 1
    assert bench.notes == ("1 empty modification text(s) replaced by 'the same image'", PART)


def test_files_without_semantic_aspects_are_read(tmp_path):
    root = write(tmp_path, [entry(0, semantic_aspects=None)])
    assert load_benchmark("circo", "val", root).queries[0].aspects == ()


def test_hidden_answers_of_the_real_test_split(tmp_path):
    root = write(tmp_path, [entry(0, gt_img_ids=None, target_img_id=None)], split="test")
    bench = load_benchmark("circo", "test", root)
    assert (bench.queries[0].targets, bench.queries[0].target, bench.has_answers) == ((), None, False)
    with pytest.raises(InputError, match="'gt_img_ids' is missing"):
        load_benchmark("mini-circo", "test", root)
    root = write(tmp_path, [entry(0), entry(1, gt_img_ids=None, target_img_id=None)], split="test")
    with pytest.raises(InputError, match="query 1 lacks 'gt_img_ids' while others have it"):
        load_benchmark("circo", "test", root)


def test_without_the_list_the_files_are_the_gallery(tmp_path):
    root = write(tmp_path, [entry(0)], listed=False, gallery=(12, 10, 30, 31))
    (root / IMAGES / "._000000000010.jpg").touch()
    (root / IMAGES / ".DS_Store").touch()
    (root / IMAGES / "readme.txt").touch()
    bench = load_benchmark("circo", "val", root)
    assert bench.gallery == (10, 12, 30, 31)
    assert bench.protocol.gallery == "files of unlabeled2017"
    assert "4 images, not the published list" in bench.notes[0]
    (root / IMAGES / "holiday.jpg").touch()
    with pytest.raises(InputError, match=r"holiday\.jpg: expected a name of twelve digits"):
        load_benchmark("circo", "val", root)


def laptop_set(root, **changes):
    """``root`` with the list that `fetch_data circo-laptop` writes, and one picture more than it lists."""
    record = {"seed": 3, "distractors": 1, "image_ids": [31, 30, 12, 10]} | changes
    (root / "laptop_set.json").write_text(json.dumps(record))
    return write(root, [entry(0)], listed=False, files=(10, 11, 12, 30, 31))


@pytest.mark.parametrize("need_images", [True, False])
def test_a_laptop_set_is_named_in_the_protocol_never_a_silently_smaller_gallery(tmp_path, need_images):
    root = laptop_set(tmp_path)
    bench = load_benchmark("circo", "val", root, need_images=need_images)
    assert bench.gallery == (10, 12, 30, 31)  # the list decides, not what lies in the folder
    assert bench.protocol.gallery == "laptop set of CIRCO val (seed 3, 1 distractors)"
    assert bench.protocol.gallery_size == 4 and bench.protocol.missing_images == 0
    assert "the laptop set of CIRCO val (seed 3, 1 distractors): 4 images" in bench.notes[0]
    assert "not the benchmark's figures" in bench.notes[0]
    other = load_benchmark("circo", "val", laptop_set(tmp_path, seed=4), need_images=need_images)
    assert other.protocol != bench.protocol  # so the two are never compared
    # test has other references: there the published list is unknown, as without a laptop set
    write(root, [entry(0, reference_img_id=77, gt_img_ids=None, target_img_id=None)], "test", listed=False)
    assert load_benchmark("circo", "test", root, need_images=False).protocol.gallery == "unknown"
    write(root, [entry(0)])  # the published list goes first
    assert load_benchmark("circo", "val", root).protocol.gallery == f"image list {LIST.rpartition('/')[2]}"


def test_pictures_of_the_laptop_set_that_are_gone_are_named_by_its_list(tmp_path):
    root = laptop_set(tmp_path)
    (root / IMAGES / "000000000012.jpg").unlink()
    with pytest.raises(InputError, match=r"1 of the 4 images that .*laptop_set\.json lists .*000000000012"):
        load_benchmark("circo", "val", root)
    bench = load_benchmark("circo", "val", root, missing="leave-out")
    assert bench.gallery == (10, 30, 31) and bench.protocol.missing_images == 1
    assert bench.protocol.gallery == "laptop set of CIRCO val (seed 3, 1 distractors)"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"seed": None}, "'seed' must be a whole number"),
        ({"distractors": True}, "'distractors' must be a whole number"),
        ({"image_ids": []}, "'image_ids' must be a list of whole numbers, one or more"),
        ({"image_ids": ["10"]}, "'image_ids' must be a list of whole numbers"),
        ({"image_ids": [10, 10, 30, 31]}, "'image_ids' repeats an image"),
        ({"image_ids": [10, 30]}, r"gt_img_ids 31 is not in the gallery \(2 images, laptop set"),
    ],
)
def test_a_bad_list_of_the_laptop_set(tmp_path, change, expected):
    with pytest.raises(InputError, match=expected):
        load_benchmark("circo", "val", laptop_set(tmp_path, **change), need_images=False)


def test_annotations_alone_are_enough_without_images(tmp_path):
    root = write(tmp_path, [entry(0)], listed=False, files=())
    bench = load_benchmark("circo", "val", root, need_images=False)
    assert bench.gallery == () and bench.protocol.gallery_size is None and bench.protocol.gallery == "unknown"
    assert bench.notes == (
        "the image list image_info_unlabeled2017.json is absent: image ids are accepted unchecked",
        PART.replace("2 queries", "1 queries"),
    )
    with pytest.raises(InputError, match="no images in"):
        load_benchmark("circo", "val", root)


def test_missing_pictures_are_counted_and_named(tmp_path):
    root = write(tmp_path, [entry(0)], files=(10, 12, 30))
    with pytest.raises(InputError, match=r"2 of the 5 images .* are not in .*\(first: 000000000011\.jpg\)"):
        load_benchmark("circo", "val", root)
    assert len(load_benchmark("circo", "val", root, need_images=False).gallery) == 5


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([entry(0), entry(0)], "entry 1: query id 0 was already used by entry 0"),
        ([entry(0), entry(1, reference_img_id=99)], "query 1, reference_img_id 99 is not in the gallery"),
        ([entry(0, gt_img_ids=[30, 99])], "query 0, gt_img_ids 99 is not in the gallery"),
        ([entry(0, relative_caption=None)], r"entry 0 \(query 0\): the field 'relative_caption' is missing"),
        ([entry(0, shared_concept=None)], "'shared_concept' is missing"),
        ([entry(0, reference_img_id=None)], "'reference_img_id' is missing"),
        ([entry(0, gt_img_ids=None)], "'gt_img_ids' is missing"),
        ([entry(0, target_img_id=None)], "'target_img_id' is missing"),
        ([{"relative_caption": "x"}], "entry 0: the field 'id' is missing"),
        ([entry(0, id="0")], "'id' must be a whole number, not '0'"),
        ([entry(0, id=True)], "'id' must be a whole number, not True"),
        ([entry(0, reference_img_id=10.0)], "'reference_img_id' must be a whole number"),
        ([entry(0, reference_img_id=-1)], "'reference_img_id' must be a whole number"),
        ([entry(0, relative_caption=["a", "b"])], "'relative_caption' must be a text"),
        ([entry(0, gt_img_ids=[])], "'gt_img_ids' must be a list of whole numbers"),
        ([entry(0, gt_img_ids=30)], "'gt_img_ids' must be a list of whole numbers"),
        ([entry(0, gt_img_ids=[30, "31"])], "'gt_img_ids' must be a list of whole numbers"),
        ([entry(0, gt_img_ids=[30, 30])], "'gt_img_ids' repeats an image"),
        ([entry(0, target_img_id=12)], "target_img_id 12 is not in gt_img_ids"),
        ([entry(0, reference_img_id=31)], "reference_img_id 31 is in gt_img_ids"),
        ([entry(0, semantic_aspects="addition")], "'semantic_aspects' must be a list of names"),
        (["text"], "expected an object"),
        ([], "expected a list of queries, one or more"),
        ({"0": entry(0)}, "expected a list of queries"),
    ],
)
def test_content_that_is_not_as_published(tmp_path, rows, expected):
    root = write(tmp_path, rows)
    with pytest.raises(InputError, match=expected) as caught:
        load_benchmark("circo", "val", root)
    assert str(root / "annotations" / "val.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"images": []}, "expected a list 'images'"),
        ([1, 2], "expected a list 'images'"),
        ({"images": [{"id": 10}, {"id": 10}]}, "id 10 occurs twice"),
        ({"images": [{"id": 10}, {"file_name": "x"}]}, "image 1: 'id' must be a whole number"),
    ],
)
def test_a_bad_image_list(tmp_path, table, expected):
    root = write(tmp_path, [entry(0)])
    (root / LIST).write_text(json.dumps(table))
    with pytest.raises(InputError, match=expected):
        load_benchmark("circo", "val", root, need_images=False)


def test_names_are_checked_and_the_choices_listed(tmp_path):
    assert "mini-circo" in benchmark_names() and "circo" in benchmark_names()
    with pytest.raises(InputError, match="unknown benchmark 'cirko': choose mini-circo, circo"):
        load_benchmark("cirko", "val")
    with pytest.raises(InputError, match="unknown split 'train' of circo: choose val, test"):
        check_benchmark("circo", "train")
    with pytest.raises(InputError, match="benchmark circo needs its folder: give --root"):
        load_benchmark("circo", "val")
    with pytest.raises(InputError, match="does not exist.*github.com/miccunifi/CIRCO"):
        load_benchmark("circo", "val", tmp_path / "none")
    with pytest.raises(InputError, match=r"val\.json does not exist"):
        load_benchmark("circo", "val", tmp_path)


def test_annotations_must_be_utf8(tmp_path):
    root = write(tmp_path, [entry(0)])
    (root / "annotations" / "val.json").write_bytes(json.dumps([entry(0)]).encode("utf-16"))
    with pytest.raises(InputError, match="not UTF-8"):
        load_benchmark("circo", "val", root)


def test_the_published_val_split(real_annotations):
    bench = load_benchmark("circo", "val", real_annotations / "circo", need_images=False)
    assert len(bench.queries) == 220
    assert [query.id for query in bench.queries] == [str(i) for i in range(220)]
    assert sum(len(query.targets) for query in bench.queries) == 916
    assert Counter(len(query.targets) for query in bench.queries).keys() <= set(range(1, 15))
    assert len({query.reference for query in bench.queries}) == 220
    assert all(query.target == query.targets[0] for query in bench.queries)
    aspects = Counter(aspect for query in bench.queries for aspect in query.aspects)
    assert aspects["statement_with_conjunction"] == 164 and aspects["negation"] == 21 and len(aspects) == 9
    assert bench.queries[13].text == "is held by a little girl on a chair"
    both = load_benchmark("circo", "val", real_annotations / "circo", need_images=False, shared_concept=True)
    assert both.queries[13].text == "a teddy bear that is held by a little girl on a chair"


def test_the_published_val_split_before_it_had_aspects(real_annotations, tmp_path):
    rows = json.loads((real_annotations / "circo" / "annotations" / "val.json").read_text(encoding="utf-8"))
    old = [{key: value for key, value in row.items() if key != "semantic_aspects"} for row in rows]
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "val.json").write_text(json.dumps(old), encoding="utf-8")
    shutil.copy(
        real_annotations / "circo" / "annotations" / "val.json", tmp_path / "annotations" / "._val.json"
    )
    bench = load_benchmark("circo", "val", tmp_path, need_images=False)
    assert len(bench.queries) == 220 and {query.aspects for query in bench.queries} == {()}


def test_the_published_test_split(real_annotations):
    bench = load_benchmark("circo", "test", real_annotations / "circo", need_images=False)
    assert len(bench.queries) == 800 and not bench.has_answers
    assert len({query.reference for query in bench.queries}) == 798
