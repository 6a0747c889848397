"""The data check finds what is missing, empty or unreadable, by category and role, in every layout in
circulation, and refuses annotations that contradict themselves.
"""

import io
import json
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from PIL import Image

from cir_utils.benchmarks import BENCHMARKS, load_benchmark
from cir_utils.errors import InputError
from cir_utils.layouts.circo import IMAGE_LIST, IMAGES, LAPTOP_LIST
from cir_utils.layouts.common import find_pictures
from data_scripts.check_data import PUBLISHED, check, look, main

ROOT = Path(__file__).resolve().parent.parent


def image_bytes(kind="JPEG", size=(8, 8)):
    buffer = io.BytesIO()
    Image.effect_noise(size, 80).convert("RGB").save(buffer, kind)
    return buffer.getvalue()


JPEG = image_bytes()


def put(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def fashioniq(root, folder="images/{category}", kind=".jpg"):
    """Two queries a category on five pictures: b from a, c from b; d and e are distractors."""
    for category in ("dress", "shirt", "toptee"):
        names = {letter: f"{category[0].upper()}{letter}" for letter in "abcde"}
        rows = [
            {"candidate": names["a"], "target": names["b"], "captions": ["is red", "is long"]},
            {"candidate": names["b"], "target": names["c"], "captions": ["", "is blue"]},
        ]
        put(
            root,
            {
                f"captions/cap.{category}.val.json": rows,
                f"image_splits/split.{category}.val.json": list(names.values()),
            }
            | {f"{folder.format(category=category)}/{name}{kind}": JPEG for name in names.values()},
        )


def cirr(root, level="cirr/", pictures="", folder="dev", **change):
    names = [f"dev-{i}-0-img0" for i in range(8)]
    row = {
        "pairid": 12,
        "reference": names[0],
        "target_hard": names[1],
        "caption": "is red",
        "img_set": {"id": 1, "members": names[:6], "reference_rank": 0, "target_rank": 1},
    } | change
    put(
        root,
        {
            f"{level}captions/cap.rc2.val.json": [row],
            f"{level}image_splits/split.rc2.val.json": {name: f"./{folder}/{name}.png" for name in names},
            f"{level}captions/._cap.rc2.val.json": b"\x00\x05\x16\x07",  # what macOS leaves
        }
        | {f"{pictures}{folder}/{name}.png": JPEG for name in names},
    )
    return names


def circo(root, **change):
    row = {
        "id": 0,
        "reference_img_id": 1,
        "target_img_id": 2,
        "gt_img_ids": [2, 3],
        "relative_caption": "is red",
        "shared_concept": "a cup",
    } | change
    put(
        root,
        {"annotations/val.json": [row]} | {f"{IMAGES}/{i:012d}.jpg": JPEG for i in (1, 2, 3, 4, 5)},
    )


def counted(report):
    """(category, role) -> state -> number, without zeros."""
    return {key: {state: n for state, n in states.items() if n} for key, states in report.counts.items()}


def test_complete_folder():
    for name in ("mini-circo", "mini-cirr"):
        report = check(name, "val")
        assert report.code == 0 and not report.faults and report.queries == report.queries_left >= 170
        assert {state for states in counted(report).values() for state in states} == {"present"}
        assert report.text().endswith("=> complete")


def test_deleted_reference_target_and_distractor_are_told_by_role(tmp_path):
    fashioniq(tmp_path)
    assert check("mini-fashioniq", "val", tmp_path).code == 0
    for name in ("dress/Da", "shirt/Sc", "toptee/Td"):
        (tmp_path / "images" / f"{name}.jpg").unlink()
    report = check("mini-fashioniq", "val", tmp_path)
    assert report.code == 3
    assert [(fault.name, fault.state, fault.roles) for fault in report.faults] == [
        ("Da", "missing", ("reference",)),
        ("Sc", "missing", ("target",)),
        ("Td", "missing", ("distractor",)),
    ]
    found = counted(report)
    assert found["dress", "reference"] == {"present": 1, "missing": 1}
    assert found["shirt", "target"] == {"present": 1, "missing": 1}
    assert found["toptee", "distractor"] == {"present": 1, "missing": 1}
    assert found["dress", "target"] == found["toptee", "reference"] == {"present": 2}
    assert (report.queries, report.queries_left) == (6, 4)
    said = report.text()
    assert "missing: images/Da.jpg (reference)" in said and "2 of 6 queries lack a picture" in said
    assert "3 queries have one empty caption" in said and said.endswith("=> usable but incomplete")


def test_files_that_are_no_pictures_are_told_as_such(tmp_path):
    fashioniq(tmp_path)
    pictures = tmp_path / "images"
    (pictures / "dress/Da.jpg").write_bytes(b"")
    (pictures / "shirt/Sc.jpg").write_bytes(b"<!DOCTYPE html><title>404</title>")
    (pictures / "dress/Dd.jpg").write_bytes(image_bytes(size=(64, 64))[:-700])
    (pictures / "dress/De.jpg").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    report = check("mini-fashioniq", "val", tmp_path)
    assert report.code == 3
    assert {fault.name: fault.state for fault in report.faults} == {
        "Da": "empty",
        "Dd": "unreadable",
        "De": "unreadable",
        "Sc": "unreadable",
    }
    why = {fault.name: fault.why for fault in report.faults}
    assert "HTML" in why["Sc"] and "damaged or incomplete" in why["Dd"] and "LFS" in why["De"]
    assert counted(report)["dress", "reference"] == {"empty": 1, "present": 1}
    assert counted(report)["shirt", "target"] == {"unreadable": 1, "present": 1}
    assert counted(report)["dress", "distractor"] == {"unreadable": 2}
    assert "delete the empty and unreadable files" in report.text()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP"])
def test_whole_picture_is_present_whatever_its_name_and_cut_one_is_not(tmp_path, kind):
    path = tmp_path / "picture.jpg"  # formats are told by content
    content = image_bytes(kind, size=(64, 64))
    path.write_bytes(content)
    assert look(path) == ("present", "")
    path.write_bytes(content[: len(content) // 2])
    assert look(path)[0] == "unreadable"


def test_picture_with_bytes_after_its_end_is_present(tmp_path):
    path = tmp_path / "picture.jpg"
    path.write_bytes(JPEG + bytes(100))
    assert look(path) == ("present", "")


def test_other_modes_and_turned_photos_are_present(tmp_path):
    path = tmp_path / "picture.png"
    for mode in ("RGBA", "LA", "P", "L", "I;16", "1"):
        Image.new(mode, (8, 8)).save(path)
        assert look(path) == ("present", ""), mode
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("CMYK", (8, 4)).save(tmp_path / "turned.jpg", exif=exif)
    assert look(tmp_path / "turned.jpg") == ("present", "")


@pytest.mark.parametrize("folder", ["images", "images/{category}"])
@pytest.mark.parametrize("kind", [".jpg", ".png", ".JPEG"])
def test_fashioniq_layouts_in_circulation(tmp_path, folder, kind):
    fashioniq(tmp_path, folder, kind)
    put(tmp_path, {"images/._Da.jpg": b"\x00", "image_splits/._split.dress.val.json": b"\x00"})
    assert check("mini-fashioniq", "val", tmp_path).code == 0


@pytest.mark.parametrize("level", ["", "cirr/"])
@pytest.mark.parametrize("pictures", ["", "img_raw/", "cirr/", "cirr/img_raw/"])
def test_cirr_layouts_in_circulation(tmp_path, level, pictures):
    if pictures.startswith("cirr/") and not level:
        pictures = pictures.removeprefix("cirr/")
    cirr(tmp_path, level, pictures)
    report = check("mini-cirr", "val", tmp_path)
    assert report.code == 0
    assert counted(report) == {
        ("", "reference"): {"present": 1},
        ("", "target"): {"present": 1},
        ("", "member"): {"present": 6},
        ("", "distractor"): {"present": 2},
    }


def test_numbered_train_folders_may_be_there_or_not(tmp_path):
    wanted = {f"train-{i}-2-img0": PurePosixPath(f"train/{i}/train-{i}-2-img0.png") for i in range(4)}
    put(
        tmp_path,
        {
            "train/0/train-0-2-img0.png": JPEG,  # as published
            "train/train-1-2-img0.png": JPEG,  # downloaded by address
            "train-2-2-img0.jpg": JPEG,  # flat
            "train/3/._train-3-2-img0.png": JPEG,  # not a picture
            "train/3/train-3-2-img0.txt": JPEG,
        },
    )
    assert find_pictures([tmp_path], wanted) == {
        "train-0-2-img0": tmp_path / "train/0/train-0-2-img0.png",
        "train-1-2-img0": tmp_path / "train/train-1-2-img0.png",
        "train-2-2-img0": tmp_path / "train-2-2-img0.jpg",
    }


def test_published_name_wins_over_another_extension(tmp_path):
    put(tmp_path, {"dev/a.jpg": JPEG, "dev/a.png": JPEG, "dev/b.png": JPEG, "dev/b.webp": JPEG})
    wanted = {"a": PurePosixPath("dev/a.png"), "b": PurePosixPath("dev/b.jpg")}
    assert find_pictures([tmp_path], wanted) == {"a": tmp_path / "dev/a.png", "b": tmp_path / "dev/b.png"}


def test_circo_gallery_is_the_list_the_laptop_set_or_the_folder(tmp_path):
    circo(tmp_path, semantic_aspects=["addition"])
    report = check("mini-circo", "val", tmp_path)
    assert report.code == 0 and report.gallery == 5 and "what lies in" in report.text()
    put(tmp_path, {LAPTOP_LIST: {"seed": 0, "distractors": 1, "image_ids": [1, 2, 3, 4]}})
    report = check("mini-circo", "val", tmp_path)
    assert (
        report.code == 0
        and report.gallery == 4
        and "the laptop set of CIRCO val (seed 0, 1 distractors): 4 images" in report.text()
    )
    put(tmp_path, {str(IMAGE_LIST): {"images": [{"id": i} for i in (1, 2, 3, 4, 6)]}})
    report = check("mini-circo", "val", tmp_path)
    assert report.code == 3 and report.gallery == 5
    assert [(fault.name, fault.roles) for fault in report.faults] == [("6", ("distractor",))]


def test_part_of_a_published_benchmark_is_said_to_be_a_part(tmp_path):
    circo(tmp_path)
    report = check("circo", "val", tmp_path)
    assert report.code == 3
    assert report.incomplete == [
        "1 queries where the published val split has 220",
        "5 pictures in the gallery where the published val split has 123,403",
    ]
    put(tmp_path, {LAPTOP_LIST: {"seed": 0, "distractors": 0, "image_ids": [1, 2, 3]}})  # a sample on purpose
    assert check("circo", "val", tmp_path).incomplete == ["1 queries where the published val split has 220"]


def test_splits_without_public_answers_need_none(tmp_path):
    names = cirr(tmp_path)
    captions = tmp_path / "cirr/captions/cap.rc2.val.json"
    (row,) = json.loads(captions.read_text())
    del row["target_hard"]
    put(
        tmp_path,
        {
            "cirr/captions/cap.rc2.test1.json": [row],
            "cirr/image_splits/split.rc2.test1.json": {name: f"./dev/{name}.png" for name in names},
            "cirr/captions/cap.rc2.val.json": [row],
        },
    )
    hidden = check("cirr", "test1", tmp_path)
    assert not hidden.unusable and ("", "target") not in hidden.counts and hidden.queries_left == 1
    (what,) = check("cirr", "val", tmp_path).unusable
    assert "the field 'target_hard' is missing" in what


MEMBERS = [f"dev-{i}-0-img0" for i in range(6)]


@pytest.mark.parametrize(
    "make, change, said",
    [
        (cirr, {"target_hard": "dev-99-0-img0"}, "target_hard 'dev-99-0-img0' is not in the gallery"),
        (
            cirr,
            {"img_set": {"members": [*MEMBERS[:5], "dev-99-0-img0"]}},
            "members 'dev-99-0-img0' is not in the gallery",
        ),
        (cirr, {"img_set": {"members": MEMBERS[:5]}}, "must hold 6 different names as 'members'"),
        (cirr, {"target_hard": "dev-0-0-img0"}, "target_hard dev-0-0-img0 is the reference itself"),
        (cirr, {"pairid": "12"}, "'pairid' must be a whole number, not '12'"),
        (cirr, {"caption": None}, "'caption' must be a text"),
        (circo, {"gt_img_ids": [2, 2]}, "'gt_img_ids' repeats an image"),
        (circo, {"gt_img_ids": ["2", "3"]}, "'gt_img_ids' must be a list of whole numbers"),
        (circo, {"target_img_id": 4}, "target_img_id 4 is not in gt_img_ids"),
        (circo, {"id": True}, "'id' must be a whole number, not True"),
    ],
)
def test_annotations_that_contradict_themselves_are_unusable(tmp_path, make, change, said):
    make(tmp_path, **change)
    report = check(f"mini-{make.__name__}", "val", tmp_path)
    assert report.code == 2 and said in report.unusable[0] and str(tmp_path) in report.unusable[0]


def test_target_outside_the_gallery_is_unusable(tmp_path):
    fashioniq(tmp_path)
    listing = tmp_path / "image_splits/split.shirt.val.json"
    put(tmp_path, {"image_splits/split.shirt.val.json": ["Sa", "Sb", "Sd", "Se"]})
    report = check("mini-fashioniq", "val", tmp_path)
    assert (
        report.code == 2
        and "(query shirt/1): target 'Sc' is not in the gallery of shirt" in report.unusable[0]
    )
    listing.write_bytes(b'["Sa\xff"]')
    assert "UTF-8" in check("mini-fashioniq", "val", tmp_path).unusable[0]
    listing.unlink()
    (what,) = check("mini-fashioniq", "val", tmp_path).unusable
    assert str(listing) in what and "git checkout" in what  # mini benchmarks are shipped
    (what,) = check("fashioniq", "val", tmp_path).unusable
    assert str(listing) in what and "fetch_data" in what


def test_repeated_query_and_paths_that_leave_the_folder_are_unusable(tmp_path):
    cirr(tmp_path)
    captions = tmp_path / "cirr/captions/cap.rc2.val.json"
    captions.write_text(json.dumps(json.loads(captions.read_text()) * 2))
    assert "query pairid 12 was already used by entry 0" in check("mini-cirr", "val", tmp_path).unusable[0]
    cirr(tmp_path, folder="../dev")
    assert "expected a relative path" in check("mini-cirr", "val", tmp_path).unusable[0]


def test_no_query_left_is_unusable(tmp_path):
    names = cirr(tmp_path)
    (tmp_path / "dev" / f"{names[5]}.png").unlink()  # a member of the only subset
    report = check("mini-cirr", "val", tmp_path)
    assert report.code == 2 and report.unusable == ["no query has all its pictures"]


def test_category_without_a_query_left_is_unusable_as_the_loader_finds(tmp_path):
    fashioniq(tmp_path, "images")
    (tmp_path / "images" / "Sb.jpg").unlink()  # in both queries of shirts
    report = check("mini-fashioniq", "val", tmp_path)
    assert report.code == 2 and report.unusable == ["no query of shirt has all its pictures"]
    with pytest.raises(InputError, match="no query of shirt can be answered"):
        load_benchmark("mini-fashioniq", "val", tmp_path, missing="leave-out")


def test_odd_names_in_cocos_folder_are_refused_as_the_loader_refuses_them(tmp_path):
    circo(tmp_path)
    put(tmp_path, {f"{IMAGES}/holiday.jpg": JPEG})
    with pytest.raises(InputError, match="holiday.jpg: expected a name of twelve digits"):
        load_benchmark("mini-circo", "val", tmp_path)
    report = check("mini-circo", "val", tmp_path)
    assert report.code == 2 and "holiday.jpg: expected a name of twelve digits" in report.unusable[0]


@pytest.mark.parametrize(
    "module, arguments",
    [
        ("check_data", ["mini-fashioniq", "--split", "val", "--root", "."]),
        ("fetch_data", []),
    ],
)
@pytest.mark.parametrize("buffered", ["", "1"])
def test_reader_that_goes_away_gives_no_traceback(tmp_path, module, arguments, buffered):
    """As with `| head -1`: the pipe is closed before, or while, the report is written."""
    fashioniq(tmp_path)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", f"data_scripts.{module}", *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": buffered},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(writing)
    assert done.stderr == "" and done.returncode == 1


def test_unknown_names_list_the_choices(tmp_path):
    with pytest.raises(InputError, match="choose mini-circo, circo, mini-cirr, cirr"):
        check("coco", "val", tmp_path)
    with pytest.raises(InputError, match="choose val, test1"):
        check("cirr", "test", tmp_path)
    with pytest.raises(InputError, match="give --root"):
        check("cirr", "val")
    assert check("cirr", "val", tmp_path / "nowhere").code == 2


def test_script_prints_the_report_and_returns_its_code(tmp_path, capsys):
    fashioniq(tmp_path)
    arguments = ["mini-fashioniq", "--split", "val", "--root", str(tmp_path)]
    assert main(arguments) == 0
    (tmp_path / "images/dress/De.jpg").unlink()
    assert main(arguments) == 3
    assert "missing: images/De.jpg (distractor)" in capsys.readouterr().out
    assert main([*arguments[:-1], str(tmp_path / "nowhere")]) == 2
    assert main(["nothing", "--split", "val"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("check_data: unknown benchmark") and error.count("\n") == 1


def test_script_runs_from_anywhere_without_loading_a_model(tmp_path):
    circo(tmp_path)
    script = ROOT / "data_scripts" / "check_data.py"
    lines = (
        "import runpy, sys",
        "sys.argv = ['check_data', 'mini-circo', '--split', 'val', '--root', '.']",
        f"try: runpy.run_path({str(script)!r}, run_name='__main__')",
        "except SystemExit as end: print(end.code, {'torch', 'open_clip'} & set(sys.modules))",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "0 set()", done.stderr


# --- the published files ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, split, queries, counts, empty",
    [
        ("circo", "val", 220, {("", "reference"): 220, ("", "target"): 909}, 0),
        ("circo", "test", 800, {("", "reference"): 798}, 0),
        ("cirr", "val", 4181, {("", "reference"): 2165, ("", "target"): 2206, ("", "member"): 2297}, 0),
        ("cirr", "test1", 4148, {("", "reference"): 2178, ("", "member"): 2315}, 1),
        (
            "fashioniq",
            "val",
            6016,
            {
                ("dress", "reference"): 1331,
                ("dress", "target"): 2017,
                ("dress", "distractor"): 3817 - 2628,
                ("shirt", "reference"): 1541,
                ("shirt", "target"): 2038,
                ("shirt", "distractor"): 6346 - 3089,
                ("toptee", "reference"): 1454,
                ("toptee", "target"): 1961,
                ("toptee", "distractor"): 5373 - 2902,
            },
            3,
        ),
    ],
)
def test_published_counts(real_annotations, name, split, queries, counts, empty):
    report = check(name, split, real_annotations / name)
    assert report.queries == queries
    assert {key: sum(states.values()) for key, states in report.counts.items()} == counts
    assert {state for states in counted(report).values() for state in states} == {"missing"}
    categories = {category for category, _ in counts}
    assert report.unusable == [
        f"no query{f' of {category}' if category else ''} has all its pictures"
        for category in sorted(categories)
    ]
    assert report.code == 2
    if name != "circo":  # its image list is not among the files
        assert report.incomplete == []
        assert (
            report.gallery
            == {"cirr val": 2297, "cirr test1": 2315, "fashioniq val": 15_415}[f"{name} {split}"]
        )
    assert sum(int(note.split()[0]) for note in report.notes if "empty" in note) == empty


def test_published_cirr_is_read_with_and_without_its_level(real_annotations):
    above, inside = (check("cirr", "val", real_annotations / part) for part in ("", "cirr"))
    assert above.counts == inside.counts and above.queries == 4181


def test_published_sizes_are_those_of_the_loaders():
    """One number for the queries of a split: a note of the loader, a line of the check."""
    sums = {
        name: {split: sum(queries for queries, _ in parts.values()) for split, parts in splits.items()}
        for name, splits in PUBLISHED.items()
    }
    assert sums == {name: entry.queries for name, entry in BENCHMARKS.items() if not entry.shipped}
