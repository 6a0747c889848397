"""CIRR and FashionIQ on disk: the trees in circulation, content that is refused, pictures that are missing;
and the published files with their counts."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from small_world import (
    ID_OF,
    IDS,
    cirr_name,
    fashion_name,
    write_cirr_world,
    write_fashion_world,
    write_world,
)

from cir_utils.benchmarks import EMPTY_TEXT, load_benchmark
from cir_utils.errors import InputError
from cir_utils.layouts.common import by_stem
from cir_utils.layouts.fashioniq import join_captions

Edit = Callable[[list], None]


def edit(path: Path, change: Callable[[object], object]) -> None:
    """Change a JSON file; what ``change`` returns, if anything, replaces the content."""
    content = json.loads(path.read_text(encoding="utf-8"))
    changed = change(content)
    path.write_text(json.dumps(content if changed is None else changed), encoding="utf-8")


# --- CIRR -------------------------------------------------------------------------------------------------


@pytest.fixture
def cirr(tmp_path: Path) -> Path:
    return write_cirr_world(tmp_path / "CIRR")


def test_cirr_is_read_as_it_stands(cirr: Path) -> None:
    bench = load_benchmark("mini-cirr", "val", cirr)
    assert bench.gallery == tuple(cirr_name(image) for image in reversed(IDS))
    query = bench.queries[1]
    assert (query.id, query.text, query.reference) == (
        "16", "make it blue", cirr_name(ID_OF["green", "dog", "beach"]),
    )  # fmt: skip
    assert query.target == cirr_name(ID_OF["blue", "dog", "beach"]) and query.targets == (query.target,)
    assert len(query.members) == 6 and bench.subset(query) == tuple(
        member for member in query.members if member != query.reference
    )
    protocol = bench.protocol.as_dict()
    assert protocol == {
        "benchmark": "mini-cirr",
        "split": "val",
        "gallery": "image list split.rc2.val.json",
        "gallery_size": 24,
        "reference": "removed",
        "caption_rule": "caption",
        "shared_concept": False,
        "queries": 8,
        "missing_images": 0,
        "empty_texts": 0,
    }
    assert bench.removed == {query.id: query.reference for query in bench.queries}
    kept = load_benchmark("mini-cirr", "val", cirr, reference="kept")
    assert kept.removed == {} and kept.protocol.reference == "kept"
    assert kept.subset(query) == query.members
    assert [path.name for path in bench.annotations] == ["cap.rc2.val.json", "split.rc2.val.json"]


@pytest.mark.parametrize(
    ("level", "pictures", "root"),
    [
        ("", "dev", "."),
        ("cirr", "dev", "."),
        ("cirr", "dev", "cirr"),  # the annotations' own folder is given, the pictures lie beside it
        ("", "img_raw/dev", "."),
        ("cirr", "cirr/img_raw/dev", "."),
        ("", "images/dev", "."),
    ],
)
def test_the_trees_of_cirr_in_circulation_are_read(
    tmp_path: Path, level: str, pictures: str, root: str
) -> None:
    write_cirr_world(tmp_path, level=level, pictures=pictures)
    bench = load_benchmark("mini-cirr", "val", tmp_path / root)
    assert len(bench.queries) == 8 and not bench.notes
    for image in bench.gallery:
        assert bench.image_path(image).samefile(tmp_path / pictures / f"{image}.png")


def test_pictures_without_their_folders_are_found_and_said(cirr: Path) -> None:
    listing = cirr / "image_splits" / "split.rc2.val.json"
    edit(listing, lambda places: {name: f"./dev/{len(name)}/{name}.png" for name in places})
    bench = load_benchmark("mini-cirr", "val", cirr)
    assert all(bench.image_path(image).is_file() for image in bench.gallery)
    assert bench.notes == ("24 pictures lie flat, not in the folders that split.rc2.val.json names",)
    (cirr / "dev").rename(cirr / "elsewhere")
    for path in (cirr / "elsewhere").iterdir():
        path.rename(cirr / path.name)
    assert load_benchmark("mini-cirr", "val", cirr).image_path(bench.gallery[0]).parent == cirr


def test_numbered_folders_are_read_as_the_split_file_names_them(cirr: Path) -> None:
    listing = cirr / "image_splits" / "split.rc2.val.json"
    edit(listing, lambda places: {name: f"./train/34/{name}.png" for name in places})
    (cirr / "train").mkdir()
    (cirr / "dev").rename(cirr / "train" / "34")
    bench = load_benchmark("mini-cirr", "val", cirr)
    assert bench.image_path(bench.gallery[0]).parent == cirr / "train" / "34" and not bench.notes


def test_files_of_the_mac_beside_the_real_ones_are_left_alone(cirr: Path) -> None:
    for folder, name in (("captions", "cap"), ("image_splits", "split")):
        (cirr / folder / f"._{name}.rc2.val.json").write_bytes(b"\x00\x05\x16\x07")
    (cirr / "dev" / f"._{cirr_name(IDS[0])}.png").write_bytes(b"\x00\x05\x16\x07")
    bench = load_benchmark("mini-cirr", "val", cirr)
    assert len(bench.gallery) == 24 and not bench.image_path(cirr_name(IDS[0])).name.startswith(".")


def test_pictures_are_found_by_stem() -> None:
    names = ["a.png", "b.JPG", "c.txt", "d.webp", "a.jpg", "e", "f.tar.gz"]
    assert by_stem(names) == {"a": "a.jpg", "b": "b.JPG", "d": "d.webp"}


@pytest.mark.parametrize("extension", ["png", "jpg", "webp"])
def test_the_extension_of_a_picture_does_not_matter(tmp_path: Path, extension: str) -> None:
    root = write_fashion_world(tmp_path / "fiq", extension=extension)
    bench = load_benchmark("mini-fashioniq", "val", root)
    assert bench.image_path(fashion_name(IDS[0])) == root / "images" / f"{fashion_name(IDS[0])}.{extension}"
    circo = write_world(tmp_path / "circo")
    folder = circo / "COCO2017_unlabeled" / "unlabeled2017"
    (folder / f"{IDS[0]:012d}.jpg").rename(folder / f"{IDS[0]:012d}.{extension}")
    assert load_benchmark("mini-circo", "val", circo).image_path(IDS[0]).suffix == f".{extension}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[1].update(pairid=5), r"entry 1: query pairid 5 was already used by entry 0"),
        (lambda rows: rows[0].update(pairid="5"), r"'pairid' must be a whole number, not '5'"),
        (lambda rows: rows[0].update(pairid=True), r"'pairid' must be a whole number, not True"),
        (lambda rows: rows[0].__delitem__("caption"), r"\(query 5\): the field 'caption' is missing"),
        (lambda rows: rows[0].update(caption=None), r"'caption' must be a text"),
        (lambda rows: rows[0].__delitem__("target_hard"), r"the field 'target_hard' is missing"),
        (
            lambda rows: rows[0].update(reference="dev-1-0-img0"),
            r"'dev-1-0-img0' is not in the gallery",
        ),
        (lambda rows: rows[0].update(reference=["x"]), r"reference \['x'\] is not in the gallery"),
        (lambda rows: rows[0].update(target_hard="none"), r"target_hard 'none' is not in the gallery \(24"),
        (lambda rows: rows[0].update(target_hard=rows[0]["reference"]), r"is the reference itself"),
        (lambda rows: rows[0].update(target_hard=rows[1]["reference"]), r"is not a member of its own subset"),
        (lambda rows: rows[0].update(reference=rows[1]["reference"]), r"reference .* is not a member"),
        (lambda rows: rows[0]["img_set"]["members"].__delitem__(0), r"must hold 6 different names"),
        (lambda rows: rows[0]["img_set"]["members"].__setitem__(0, "no"), r"members 'no' is not in the gal"),
        (
            lambda rows: rows[0]["img_set"]["members"].__setitem__(0, rows[0]["img_set"]["members"][1]),
            r"must hold 6 different names",
        ),
        (lambda rows: rows[0].update(img_set=[]), r"must hold 6 different names"),
        (lambda rows: [], r"expected a list of queries, one or more"),
        (lambda rows: ["text"], r"expected an object, not 'text'"),
    ],
)
def test_captions_of_cirr_that_are_not_as_published(cirr: Path, change: Edit, message: str) -> None:
    edit(cirr / "captions" / "cap.rc2.val.json", change)
    with pytest.raises(InputError, match=message) as caught:
        load_benchmark("mini-cirr", "val", cirr)
    assert "cap.rc2.val.json" in str(caught.value) and "\n" not in str(caught.value)


def test_the_gallery_is_the_split_file_and_a_target_outside_it_is_refused(cirr: Path) -> None:
    target = json.loads((cirr / "captions" / "cap.rc2.val.json").read_text())[0]["target_hard"]
    edit(cirr / "image_splits" / "split.rc2.val.json", lambda places: places.__delitem__(target))
    with pytest.raises(InputError, match=f"{target}' is not in the gallery"):
        load_benchmark("mini-cirr", "val", cirr)


@pytest.mark.parametrize("place", ["/etc/passwd.png", "../../secret.png", "a/../../b.png", "", 5, "a\\b.png"])
def test_paths_of_a_split_file_stay_below_its_root(cirr: Path, place: object) -> None:
    name = cirr_name(IDS[3])
    edit(cirr / "image_splits" / "split.rc2.val.json", lambda places: places.update({name: place}))
    with pytest.raises(InputError, match=f"image {name}: expected a relative path"):
        load_benchmark("mini-cirr", "val", cirr)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "expected an object"),
        ({}, "expected an object"),
        ({"../x": "./dev/x.png"}, "'../x' is not an image name"),
    ],
)
def test_a_bad_split_file_of_cirr(cirr: Path, content: object, message: str) -> None:
    edit(cirr / "image_splits" / "split.rc2.val.json", lambda places: content)
    with pytest.raises(InputError, match=message):
        load_benchmark("mini-cirr", "val", cirr)


def test_hidden_answers_of_cirr(tmp_path: Path) -> None:
    root = write_cirr_world(tmp_path, splits=("val", "test1"), hidden=("test1",))
    bench = load_benchmark("cirr", "test1", root)
    assert not bench.has_answers and bench.queries[0].targets == () and len(bench.queries[0].members) == 6
    edit(root / "captions" / "cap.rc2.test1.json", lambda rows: rows[0].update(target_hard=cirr_name(IDS[0])))
    with pytest.raises(InputError, match="target_hard|lacks"):
        load_benchmark("cirr", "test1", root)


def test_every_file_must_be_utf8_and_be_there(cirr: Path) -> None:
    path = cirr / "captions" / "cap.rc2.val.json"
    path.write_bytes(path.read_text().encode("utf-16"))
    with pytest.raises(InputError, match="not UTF-8"):
        load_benchmark("mini-cirr", "val", cirr)
    (cirr / "image_splits" / "split.rc2.test.json").unlink()
    with pytest.raises(InputError, match=r"image list .*split\.rc2\.test\.json does not exist"):
        load_benchmark("mini-cirr", "test", cirr)


# --- FashionIQ --------------------------------------------------------------------------------------------


@pytest.fixture
def fashion(tmp_path: Path) -> Path:
    return write_fashion_world(tmp_path / "fiq")


def test_fashioniq_is_three_categories_with_their_own_galleries(fashion: Path) -> None:
    bench = load_benchmark("mini-fashioniq", "val", fashion)
    assert [query.id for query in bench.queries] == [
        f"{category}/{number}" for category in ("dress", "shirt", "toptee") for number in range(4)
    ]
    assert {name: len(gallery) for name, gallery in bench.categories.items()} == {
        "dress": 12, "shirt": 12, "toptee": 12,
    }  # fmt: skip
    assert len(bench.gallery) == 24 and len(set(bench.gallery)) == 24
    part = bench.parts["shirt"]
    assert part.gallery == bench.categories["shirt"] and not part.categories
    assert [query.id for query in part.queries] == ["shirt/0", "shirt/1", "shirt/2", "shirt/3"]
    listed = json.loads((fashion / "image_splits" / "split.shirt.val.json").read_text())
    assert list(part.gallery) == listed
    assert bench.protocol.gallery_size == {"dress": 12, "shirt": 12, "toptee": 12}
    assert (bench.protocol.gallery, bench.protocol.reference) == ("original", "kept")
    assert bench.queries[0].text == "make it red and red on the beach"
    assert len(bench.annotations) == 6


def test_the_union_gallery_is_an_explicit_recorded_option(fashion: Path) -> None:
    original = load_benchmark("mini-fashioniq", "val", fashion)
    union = load_benchmark("mini-fashioniq", "val", fashion, gallery="union")
    for category, part in union.parts.items():
        used = {image for query in part.queries for image in (query.reference, query.target)}
        assert set(part.gallery) == used and len(used) < 12
        assert list(part.gallery) == [image for image in original.categories[category] if image in used]
    assert union.protocol.gallery == "union" != original.protocol.gallery


@pytest.mark.parametrize(
    ("captions", "text"),
    [
        (("is blue ", " is long."), "is blue and is long"),
        (("", "is long"), "is long"),
        (("is blue", "  "), "is blue"),
        (("is blue", "Is blue."), "is blue"),
        (("is blue & red", "has a “bow”?"), "is blue & red and has a “bow”"),
        (("and is blue", "and is long."), "is blue and is long"),
        (("is blue and", "And  long"), "is blue and long"),
        (("is android green", "with sand"), "is android green and with sand"),
        (("and", "is long"), "is long"),
        (("", "."), ""),
    ],
)
def test_two_captions_become_one_text(captions: tuple[str, str], text: str) -> None:
    assert join_captions(captions) == text


def test_both_caption_orders_are_an_option_and_empty_captions_are_counted(fashion: Path) -> None:
    def change(rows: list) -> None:
        rows[0]["captions"] = ["", "is long"]
        rows[1]["captions"] = [" ", ""]
        rows[2]["captions"] = ["is red", "is red"]

    edit(fashion / "captions" / "cap.dress.val.json", change)
    bench = load_benchmark("mini-fashioniq", "val", fashion)
    assert [query.text for query in bench.queries[:3]] == ["is long", EMPTY_TEXT, "is red"]
    assert bench.protocol.empty_texts == 1 and bench.protocol.caption_rule == "c1 and c2"
    assert bench.notes == (
        "1 queries have one empty caption: their other caption alone is the text",
        "1 empty modification text(s) replaced by 'the same image'",
    )
    both = load_benchmark("mini-fashioniq", "val", fashion, both_orders=True)
    assert [query.other_text for query in both.queries[:4]] == [
        "", "", "", "blue on the city and make it blue",
    ]  # fmt: skip
    assert both.protocol.caption_rule == "c1 and c2; CLIP's feature is the mean of both orders"
    assert not any(query.other_text for query in bench.queries)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[2].__delitem__("captions"), r"query shirt/2\): the field 'captions' is missing"),
        (lambda rows: rows[2]["captions"].__delitem__(0), r"'captions' must be a list of two texts"),
        (lambda rows: rows[2].update(captions="is red"), r"'captions' must be a list of two texts"),
        (lambda rows: rows[2]["captions"].__setitem__(0, None), r"'captions' must be a list of two texts"),
        (lambda rows: rows[2].update(candidate="B0"), r"candidate 'B0' is not in the gallery of shirt \(12"),
        (lambda rows: rows[2].__delitem__("target"), r"the field 'target' is missing"),
        (
            lambda rows: rows[2].update(target=fashion_name(ID_OF["red", "car", "city"])),
            r"target .* is not in the gallery of shirt",  # though it is in that of toptee
        ),
        (lambda rows: rows[2].update(target=rows[2]["candidate"]), r"is the reference itself"),
        (lambda rows: {"0": rows[0]}, r"expected a list of queries"),
    ],
)
def test_captions_of_fashioniq_that_are_not_as_published(fashion: Path, change: Edit, message: str) -> None:
    edit(fashion / "captions" / "cap.shirt.val.json", change)
    with pytest.raises(InputError, match=message) as caught:
        load_benchmark("mini-fashioniq", "val", fashion)
    assert "cap.shirt.val.json" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda names: {"a": 1}, "expected a list of image names"),
        (lambda names: names.append(names[0]), "occurs twice"),
        (lambda names: names.append("../../etc/passwd"), "is not a name"),
        (lambda names: names.append(7), "7 is not a name"),
    ],
)
def test_a_bad_split_file_of_fashioniq(fashion: Path, change: Edit, message: str) -> None:
    edit(fashion / "image_splits" / "split.toptee.val.json", change)
    with pytest.raises(InputError, match=message):
        load_benchmark("mini-fashioniq", "val", fashion)


# --- options and missing pictures -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mini-cirr", {"gallery": "union"}, "--gallery union is an option of FashionIQ alone"),
        ("mini-cirr", {"both_orders": True}, "--both-orders is an option of FashionIQ alone"),
        ("mini-fashioniq", {"shared_concept": True}, "--shared-concept is an option of CIRCO alone"),
        ("mini-fashioniq", {"gallery": "small"}, "unknown --gallery 'small': choose original, union"),
        ("mini-cirr", {"reference": "hidden"}, "unknown reference 'hidden': choose kept, removed"),
        ("mini-cirr", {"missing": "skip"}, "unknown --missing 'skip': choose stop, leave-out"),
    ],
)
def test_options_that_a_benchmark_does_not_have(
    tmp_path: Path, name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load_benchmark(name, "val", tmp_path, **options)


def test_missing_pictures_stop_a_run_before_it_starts(fashion: Path, cirr: Path) -> None:
    for image in IDS[:3]:
        (fashion / "images" / f"{fashion_name(image)}.jpg").unlink()
    with pytest.raises(InputError, match=r"3 of the 24 images .* are not in .*images .*--missing leave-out"):
        load_benchmark("mini-fashioniq", "val", fashion)
    assert load_benchmark("mini-fashioniq", "val", fashion, need_images=False).protocol.missing_images == 0
    (cirr / "dev" / f"{cirr_name(IDS[0])}.png").unlink()
    with pytest.raises(InputError, match=r"1 of the 24 images .*\(first: dev/dev-100-0-img0\.png\)"):
        load_benchmark("mini-cirr", "val", cirr)


@pytest.mark.parametrize("role", ["reference", "target", "distractor"])
def test_a_smaller_gallery_is_labelled_and_loses_only_queries_that_need_the_picture(
    fashion: Path, role: str
) -> None:
    whole = load_benchmark("mini-fashioniq", "val", fashion)
    part = whole.parts["toptee"]
    used = {image for query in whole.queries for image in (query.reference, query.target)}
    image = {
        "reference": part.queries[1].reference,
        "target": part.queries[1].target,
        "distractor": next(image for image in part.gallery if image not in used),
    }[role]
    (fashion / "images" / f"{image}.jpg").unlink()
    bench = load_benchmark("mini-fashioniq", "val", fashion, missing="leave-out")
    lost = [query.id for query in whole.queries if image in (query.reference, query.target)]
    assert ("toptee/1" in lost) == (role != "distractor")
    assert [query.id for query in bench.queries] == [q.id for q in whole.queries if q.id not in lost]
    assert image not in bench.gallery and len(bench.gallery) == 23
    assert bench.protocol.gallery_size["toptee"] == 11
    assert (bench.protocol.missing_images, bench.protocol.queries) == (1, 12 - len(lost))
    assert f"1 pictures are missing: the gallery is smaller, and {len(lost)} of 12 queries" in bench.notes[0]


def test_a_subset_without_all_its_members_is_no_query(cirr: Path) -> None:
    (cirr / "dev" / f"{cirr_name(ID_OF['red', 'boat', 'city'])}.png").unlink()
    bench = load_benchmark("mini-cirr", "val", cirr, missing="leave-out")
    assert len(bench.gallery) == 23 and bench.protocol.gallery_size == 23
    assert len(bench.queries) == 6 and all(len(query.members) == 6 for query in bench.queries)
    for path in (cirr / "dev").iterdir():
        path.unlink()
    with pytest.raises(InputError, match="no query can be answered"):
        load_benchmark("mini-cirr", "val", cirr, missing="leave-out")


def test_circo_goes_on_without_missing_pictures_when_asked(tmp_path: Path) -> None:
    root = write_world(tmp_path)
    folder = root / "COCO2017_unlabeled" / "unlabeled2017"
    (folder / f"{ID_OF['red', 'cat', 'beach']:012d}.jpg").unlink()
    bench = load_benchmark("mini-circo", "val", root, missing="leave-out")
    assert len(bench.gallery) == 23 and bench.protocol.missing_images == 1
    assert all(ID_OF["red", "cat", "beach"] not in (q.reference, *q.targets) for q in bench.queries)
    assert 0 < len(bench.queries) < 8


# --- the published files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "queries", "first", "last", "gallery", "references", "empty", "longest", "words"),
    [
        ("val", 4181, "12060", "38762", 2297, 2165, 0, 244, 47),
        ("test1", 4148, "12063", "39059", 2315, 2178, 1, 302, 53),
    ],
)
def test_the_published_counts_of_cirr(
    real_annotations: Path, split: str, queries: int, first: str, last: str, gallery: int, references: int,
    empty: int, longest: int, words: int,
) -> None:  # fmt: skip
    bench = load_benchmark("cirr", split, real_annotations / "cirr", need_images=False)
    ids = [int(query.id) for query in bench.queries]
    assert len(ids) == queries and ids == sorted(set(ids))
    assert (bench.queries[0].id, bench.queries[-1].id) == (first, last)
    assert len(bench.gallery) == bench.protocol.gallery_size == gallery
    assert len({query.reference for query in bench.queries}) == references
    assert all(len(query.members) == 6 and query.reference in query.members for query in bench.queries)
    assert all(len(bench.subset(query)) == 5 for query in bench.queries)
    assert bench.protocol.empty_texts == empty and bench.protocol.reference == "removed"
    texts = [query.text for query in bench.queries]
    assert max(map(len, texts)) == longest and max(len(text.split()) for text in texts) == words
    plain = {query.id for query in bench.queries if not query.text.isascii()}
    assert plain == ({"12236", "14793"} if split == "val" else {"14783"})
    pairs = Counter((query.reference, query.text) for query in bench.queries)
    assert sum(count - 1 for count in pairs.values()) == (6 if split == "val" else 4)
    assert not any("published" in note for note in bench.notes)
    if split == "val":
        targets = {query.target for query in bench.queries}
        assert len(targets) == 2206 and len(targets - {query.reference for query in bench.queries}) == 100
        assert all(query.target in query.members for query in bench.queries)
    else:
        assert not bench.has_answers
        (blank,) = (query for query in bench.queries if query.text == EMPTY_TEXT)
        assert blank.id == "27098"
        assert "¾" in next(query.text for query in bench.queries if query.id == "14783")


def test_the_published_train_split_has_numbered_folders(real_annotations: Path) -> None:
    from cir_utils.layouts.cirr import _places

    places = _places(real_annotations / "cirr" / "image_splits" / "split.rc2.train.json", "mend")
    assert len(places) == 16939
    assert str(places["train-11041-2-img0"]) == "train/34/train-11041-2-img0.png"


@pytest.mark.parametrize(
    ("category", "queries", "original", "union", "empty", "blanks", "same"),
    [
        ("dress", 2017, 3817, 2628, [], 191, 3),
        ("shirt", 2038, 6346, 3089, [1928], 73, 8),
        ("toptee", 1961, 5373, 2902, [676, 1076], 95, 6),
    ],
)
def test_the_published_counts_of_fashioniq(
    real_annotations: Path, category: str, queries: int, original: int, union: int, empty: list[int],
    blanks: int, same: int,
) -> None:  # fmt: skip
    root = real_annotations / "fashioniq"
    bench = load_benchmark("fashioniq", "val", root, need_images=False)
    part = bench.parts[category]
    assert len(part.queries) == queries and len(part.gallery) == original
    assert bench.protocol.gallery_size[category] == original
    small = load_benchmark("fashioniq", "val", root, need_images=False, gallery="union")
    assert len(small.parts[category].gallery) == small.protocol.gallery_size[category] == union
    rows = json.loads((root / "captions" / f"cap.{category}.val.json").read_text(encoding="utf-8"))
    assert [n for n, row in enumerate(rows) if not all(text.strip() for text in row["captions"])] == empty
    assert sum(text != text.strip() for row in rows for text in row["captions"]) == blanks
    twins = [n for n, row in enumerate(rows) if row["captions"][0] == row["captions"][1]]
    assert len(twins) == same
    texts = [query.text for query in part.queries]
    assert all(" and " not in texts[n] or texts[n] in rows[n]["captions"][0] for n in twins)
    for number in empty:
        assert texts[number] == rows[number]["captions"][1].strip(" .,?")
    assert not any(re.match(r"\s|and\b", text) or text.endswith(" and") for text in texts)
    assert all(text == text.strip() and text for text in texts)


def test_the_three_galleries_of_fashioniq_share_images(real_annotations: Path) -> None:
    bench = load_benchmark("fashioniq", "val", real_annotations / "fashioniq", need_images=False)
    assert len(bench.queries) == bench.protocol.queries == 6016 and len(bench.gallery) == 15415
    assert len(set(bench.categories["shirt"]) & set(bench.categories["toptee"])) == 121
    assert bench.protocol.empty_texts == 0
    assert bench.notes == ("3 queries have one empty caption: their other caption alone is the text",)
    assert sum("&" in query.text for query in bench.queries) > 0
    odd = [query.id for query in bench.queries if not query.text.isascii()]
    assert odd == ["toptee/192"]
    with_and = [
        text
        for category in bench.categories
        for row in json.loads(
            (real_annotations / "fashioniq" / "captions" / f"cap.{category}.val.json").read_text("utf-8")
        )
        for text in row["captions"]
        if "&" in text
    ]
    assert len(with_and) == 26 and not any("&amp;" in text for text in with_and)


def test_a_part_of_a_published_split_is_labelled(real_annotations: Path, tmp_path: Path) -> None:
    shutil.copytree(real_annotations / "cirr" / "image_splits", tmp_path / "image_splits")
    rows = json.loads((real_annotations / "cirr" / "captions" / "cap.rc2.val.json").read_text("utf-8"))
    (tmp_path / "captions").mkdir()
    (tmp_path / "captions" / "cap.rc2.val.json").write_text(json.dumps(rows[:2400]), encoding="utf-8")
    bench = load_benchmark("cirr", "val", tmp_path, need_images=False)
    assert bench.notes == ("2,400 queries where the published val split has 4,181",)
    assert bench.protocol.queries == 2400


@pytest.mark.parametrize("split", ["val", "test"])
def test_the_published_texts_of_circo(real_annotations: Path, split: str) -> None:
    bench = load_benchmark("circo", split, real_annotations / "circo", need_images=False)
    assert max(len(query.text.split()) for query in bench.queries) == (23 if split == "val" else 27)
    assert all(query.text.isascii() for query in bench.queries) and bench.protocol.empty_texts == 0
    if split == "val":
        assert len({image for query in bench.queries for image in query.targets}) == 909
        assert {len(query.targets) for query in bench.queries} <= set(range(1, 15))
        aspects = Counter(aspect for query in bench.queries for aspect in query.aspects)
        assert aspects == {
            "statement_with_conjunction": 164, "direct_addressing": 119, "spatial_relations_background": 100,
            "compare_change": 86, "addition": 80, "viewpoint": 54, "comparative_statement": 50,
            "cardinality": 37, "negation": 21,
        }  # fmt: skip
