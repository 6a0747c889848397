"""The whole data build: the same bytes on every run and with any number of workers, put in place when whole,
and a check that names the file that differs. On few queries; about 4 seconds.
"""

import shutil
from functools import partial

import pytest

from cir_utils.errors import InputError
from cir_utils.files import MANIFEST, sha256_file, verify_manifest
from data_scripts import build_data, make_mini_circo, make_mini_cirr
from data_scripts.build_data import MAKERS, SHIPPED, build, check, differences, main

FEW = {"val": 1, "test": 1}
CIRR = {"cirr": partial(make_mini_cirr.write, subset_numbers=FEW)}
TINY = {"circo": partial(make_mini_circo.write, families=FEW)} | CIRR


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(folder, what was said of it)."""
    out = tmp_path_factory.mktemp("data") / "new" / "mini"
    return out, build(out, workers=2, makers=TINY)


@pytest.fixture
def copy(built, tmp_path):
    return shutil.copytree(built[0], tmp_path / "mini")


def test_bytes_are_the_same_again_and_with_another_number_of_workers(built):
    out, made = built
    again, found = check(out, workers=1, makers=TINY)
    assert found == []
    assert [(one.name, one.files, one.bytes, one.sha256) for one in again] == [
        (one.name, one.files, one.bytes, one.sha256) for one in made
    ]


def test_build_is_whole_and_leaves_nothing_beside_it(built):
    out, made = built
    assert sorted(path.name for path in out.iterdir()) == ["circo", "cirr"]
    for one in made:
        names = verify_manifest(out / one.name)
        assert one.files == len(names) + 1 > 60  # and the list of checksums itself
        assert one.bytes == sum((out / one.name / name).stat().st_size for name in [*names, MANIFEST])
        assert one.sha256 == sha256_file(out / one.name / MANIFEST)


def test_every_damage_is_named(built, copy):
    first, second, third = sorted((copy / "cirr" / "dev").iterdir())[:3]
    first.write_bytes(first.read_bytes()[:-1] + b"x")
    second.unlink()
    third.rename(third.with_name("other.jpg"))
    (copy / "cirr" / ".DS_Store").write_bytes(b"")  # hidden files are nobody's
    assert differences(built[0], copy, list(TINY)) == [
        f"{first} differs",
        f"{second} is missing",
        f"{third} is missing",
        f"{third.with_name('other.jpg')} is not a file of this build",
    ]


def test_check_ends_with_1_and_the_damaged_file_and_changes_nothing(copy, monkeypatch, capsys):
    monkeypatch.setattr(build_data, "MAKERS", CIRR)
    damaged = copy / "cirr" / "cirr" / "captions" / "cap.rc2.test.json"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole.replace(b"make", b"Make", 1) if b"make" in whole else whole + b"\n")
    before = damaged.read_bytes()
    assert main(["--check", "--out", str(copy), "--workers", "1"]) == 1
    out = capsys.readouterr().out
    assert f"{damaged} differs" in out and "=> 1 files differ" in out
    assert damaged.read_bytes() == before
    damaged.write_bytes(whole)
    assert main(["--check", "--out", str(copy), "--workers", "1"]) == 0
    assert "every byte" in capsys.readouterr().out


def _fails(folder):
    raise OSError("no space left")


def test_failed_build_leaves_the_old_files(copy, monkeypatch, capsys):
    monkeypatch.setattr(build_data, "SHIPPED", copy)
    monkeypatch.setattr(build_data, "MAKERS", CIRR | {"circo": _fails})
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert main(["--out", str(copy)]) == 2
    assert capsys.readouterr().err == "build_data: no space left\n"
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_shipped_folder_alone_is_replaced(copy, monkeypatch):
    """Another folder of that name may hold the real benchmark."""
    with pytest.raises(InputError, match="cirr is there already: give --out a folder without cirr"):
        build(copy, makers=CIRR)
    (copy / "cirr" / "old.txt").touch()
    monkeypatch.setattr(build_data, "SHIPPED", copy)
    build(copy, workers=1, makers=CIRR)
    assert not (copy / "cirr" / "old.txt").exists() and verify_manifest(copy / "cirr")
    assert sorted(path.name for path in copy.iterdir()) == ["circo", "cirr"]


def test_all_shipped_benchmarks_are_built():
    assert sorted(MAKERS) == sorted(path.parent.name for path in SHIPPED.glob(f"*/{MANIFEST}"))
