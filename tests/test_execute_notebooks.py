"""The script that fills the committed notebooks: all or none, and nothing of this machine in them."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from data_scripts import execute_notebooks


def write(path: Path, *cells: str) -> None:
    node = nbformat.v4.new_notebook()
    node.cells = [nbformat.v4.new_code_cell("N = 3", metadata={"tags": ["parameters"]})]
    node.cells += [nbformat.v4.new_code_cell(cell) for cell in cells]
    path.parent.mkdir(exist_ok=True)
    nbformat.write(node, path)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(execute_notebooks, "ROOT", tmp_path)
    monkeypatch.setattr(execute_notebooks, "WORK", tmp_path / "work")
    monkeypatch.setattr(execute_notebooks, "RECORD", tmp_path / "results" / "notebooks.json")
    return tmp_path / "notebooks"


def test_outputs_are_written_back(place: Path) -> None:
    write(place / "00_a.ipynb", "print(N)")
    assert execute_notebooks.main([]) == 0
    node = nbformat.read(place / "00_a.ipynb", as_version=4)
    assert len(node.cells) == 2 and node.cells[1].outputs[0].text == "3\n"
    assert set(node.metadata) == {"kernelspec", "language_info"}
    assert not execute_notebooks.RECORD.exists()


def test_a_fresh_run_has_no_cache_and_keeps_its_seconds(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIR_CACHE", str(place / "usual"))
    execute_notebooks.RECORD.parent.mkdir()
    execute_notebooks.RECORD.write_text('{"00_a": {"seconds": 5}, "07_z": {"seconds": 6}}')
    write(place / "00_a.ipynb", "import os; print(os.environ['CIR_CACHE'].endswith('/usual'), N)")
    assert execute_notebooks.main(["--fresh"]) == 0
    assert nbformat.read(place / "00_a.ipynb", as_version=4).cells[1].outputs[0].text == "False 3\n"
    kept = json.loads(execute_notebooks.RECORD.read_text())
    assert kept["07_z"] == {"seconds": 6} and 0 < kept["00_a"]["seconds"] != 5
    assert kept["00_a"]["cores"] >= 1 and kept["00_a"]["values"] is None


#: A last cell as the course's notebooks have one.
WRITES = """from pathlib import Path
import json
Path("work").mkdir(exist_ok=True)
_ = Path("work/00_a.json").write_text(json.dumps({}))"""


def test_values_are_those_of_a_fresh_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(place / "00_a.ipynb", WRITES.format("{'mAP': [0.25, N], 'text': 'a'}"))
    assert execute_notebooks.main(["--check"]) == 1
    assert "00_a: no values kept" in capsys.readouterr().out
    assert execute_notebooks.main(["--fresh"]) == 0
    before = (place / "00_a.ipynb").read_bytes()
    assert json.loads(execute_notebooks.RECORD.read_text())["00_a"]["values"] == {
        "mAP": [0.25, 3],
        "text": "a",
    }
    assert execute_notebooks.main(["--check"]) == 0
    assert "00_a: compared exactly" in capsys.readouterr().out
    write(place / "00_a.ipynb", WRITES.format("{'mAP': [0.2501, N], 'text': 'a'}"))
    changed = (place / "00_a.ipynb").read_bytes()
    assert execute_notebooks.main(["--check"]) == 1
    assert "00_a: mAP[0]: 0.2501 where 0.25 is kept" in capsys.readouterr().out
    assert (place / "00_a.ipynb").read_bytes() == changed != before


@pytest.mark.parametrize(
    ("now", "exactly", "elsewhere"),
    [
        ({"a": [0.5, 100], "t": "x"}, 0, 0),
        ({"a": [0.54, 104], "t": "y"}, 3, 0),
        ({"a": [0.56, 106], "t": "x"}, 2, 2),
        ({"a": [0.5], "t": "x"}, 1, 0),
        ({"a": [0.5, None], "t": "x"}, 1, 1),
        ({"a": [0.5, float("nan")], "t": "x"}, 1, 1),
        ({"a": [0.5, 100]}, 1, 0),
    ],
)
def test_numbers_differ_exactly_here_and_within_the_tolerance_elsewhere(
    now: dict[str, object], exactly: int, elsewhere: int
) -> None:
    kept = {"a": [0.5, 100], "t": "x"}
    assert len(list(execute_notebooks.differences(kept, now, True))) == exactly
    assert len(list(execute_notebooks.differences(kept, now, False))) == elsewhere


def test_one_failure_leaves_all_as_they_were(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(place / "00_a.ipynb", "print(N)")
    write(place / "01_b.ipynb", "raise KeyError('x')")
    before = (place / "00_a.ipynb").read_bytes()
    assert execute_notebooks.main([]) == 1
    assert "notebook 01_b.ipynb: cell [2] failed: KeyError" in capsys.readouterr().err
    assert (place / "00_a.ipynb").read_bytes() == before


@pytest.mark.parametrize(
    ("cell", "fault"),
    [
        ("import os; print(os.path.join(os.path.abspath('..'), 'secret'))", "holds the path"),
        ("print('x' * 1_100_000)", "has 1,1"),
    ],
)
def test_paths_and_bulk_are_refused(
    place: Path, cell: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place / "00_a.ipynb", cell)
    assert execute_notebooks.main(["00"]) == 1
    assert fault in capsys.readouterr().err
