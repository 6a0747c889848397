"""``cir tutorial`` on stand-in notebooks: order, parameters, the table, the report, caches, failures."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from small_world import write_world
from tiny_models import write_tiny_vlm

from cir_utils import tutorial
from cir_utils.cli import main
from cir_utils.errors import InputError
from cir_utils.tutorial import CacheState, cache_line

PARAMETERS = 'PROFILE = "mini"\nDEVICE = "auto"\nLIMIT = None\nWORK = "work"\nNAME = "x"'
RUNS = """
from pathlib import Path
from cir_utils.experiments import METHODS, run_experiments
from cir_utils.workbench import open_workbench
bench = open_workbench("mini-circo", PROFILE, "val", root="{root}", encoder="local-dir:{clip}", mllm="{vlm}",
                       device=DEVICE, limit=LIMIT)
done = run_experiments(bench, Path(WORK) / "runs", METHODS[:6])
print(len(done), LIMIT)
"""


def write(path: Path, *cells: str, parameters: str = PARAMETERS) -> None:
    node = nbformat.v4.new_notebook()
    node.cells = [nbformat.v4.new_markdown_cell(f"# Title of {path.stem}")]
    node.cells.append(nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    node.cells += [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(node, path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_clip: Path) -> Path:
    """Two notebooks: one that leaves a file, and one that reads it and runs six methods."""
    place = tmp_path_factory.mktemp("tutorial")
    write_world(place / "world")
    write_tiny_vlm(place / "vlm")
    (place / "notebooks").mkdir()
    write(
        place / "notebooks" / "00_first.ipynb",
        "from pathlib import Path",
        "Path(WORK).mkdir(exist_ok=True)\n(Path(WORK) / 'left.txt').write_text(NAME)",
    )
    cells = RUNS.format(root=place / "world", clip=tiny_clip, vlm=place / "vlm")
    write(
        place / "notebooks" / "07_last.ipynb",
        "print((__import__('pathlib').Path(WORK) / 'left.txt').read_text())",
        cells,
    )
    return place


@pytest.mark.slow
def test_all_notebooks_then_table_and_report(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["tutorial", "--notebooks", str(folder / "notebooks"), "--cache", "cache", "--device", "cpu"]
    arguments += ["--limit", "3", "--set", "NAME=hello"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "[1/2] 00_first with PROFILE='mini', DEVICE='cpu', LIMIT=3, NAME='hello'" in err
    assert "mini-circo val, 3 queries" in out and "| sdr-cir" in out and "Paired tests" in out
    assert "cache cache: empty before, now" in out
    assert f"report: {tmp_path / 'report' / 'index.html'}" in out
    report = (tmp_path / "report" / "index.html").read_text()
    assert 'href="notebooks/07_last.html"' in report and "Title of 07_last" in report
    executed = nbformat.read(tmp_path / "report" / "notebooks" / "07_last.ipynb", as_version=4)
    assert executed.cells[-2].outputs[0].text == "hello\n" and executed.cells[-1].outputs[-1].text == "6 3\n"
    assert "Title of 07_last" in (tmp_path / "report" / "notebooks" / "07_last.html").read_text()
    record = json.loads((tmp_path / "report" / "tutorial.json").read_text())
    assert [row["name"] for row in record["notebooks"]] == ["00_first", "07_last"]

    assert main(arguments) == 0
    out, _ = capsys.readouterr()
    assert "cache cache: everything was reused" in out and "nothing computed anew" in out


def test_wrong_parameters_are_refused_before_anything_runs(folder: Path, tmp_path: Path) -> None:
    for given, message in (
        (
            {"NAMME": "x"},
            "no chosen notebook has a parameter 'NAMME'; theirs are PROFILE, DEVICE, LIMIT, WORK, NAME",
        ),
        ({"NAME": 5}, "parameter NAME is 'x', so 5 does not fit"),
    ):
        with pytest.raises(InputError, match=message):
            tutorial.run_tutorial(tmp_path / "out", folder / "notebooks", parameters=given)
    with pytest.raises(
        InputError, match="no notebook's name starts with '09': choose from 00_first, 07_last"
    ):
        tutorial.run_tutorial(tmp_path / "out", folder / "notebooks", only=["09"])
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("keep me")
    with pytest.raises(InputError, match="is not empty and holds no earlier tutorial"):
        tutorial.run_tutorial(tmp_path, folder / "notebooks")
    with pytest.raises(InputError, match="is a file"):
        tutorial.run_tutorial(tmp_path / "letter.txt", folder / "notebooks")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_failing_notebook_is_exit_1_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    write(tmp_path / "notebooks" / "00_bad.ipynb", "raise ValueError('no luck')")
    assert main(["tutorial", "--cache", "cache"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "cir: notebook 00_bad.ipynb: cell [3] failed: ValueError: no luck; its executed copy: " in err
    assert "Traceback" not in err


def test_what_is_said_of_caches() -> None:
    assert cache_line(CacheState(), CacheState(2, 3, 1), "c") == (
        "cache c: empty before, now 2 answers, 3 verdicts, 1 feature files"
    )
    assert cache_line(CacheState(2, 3, 1), CacheState(2, 3, 1), "c") == (
        "cache c: everything was reused (2 answers, 3 verdicts, 1 feature files), nothing computed anew"
    )
    assert "new: 1 answers, 0 verdicts, 2 feature files" in cache_line(
        CacheState(2, 3, 1), CacheState(3, 3, 3), "c"
    )
