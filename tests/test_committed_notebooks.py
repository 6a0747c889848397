"""The tutorial's own notebooks: kept clean, and run by papermill in order and each alone on a few queries."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from cir_utils.notebooks import execute, find_notebooks
from cir_utils.tutorial import run_tutorial
from data_scripts.execute_notebooks import faults

FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = [path.stem for path in sorted(FOLDER.glob("[0-9]*.ipynb"))]
#: How the first cell of every notebook ends.
SHEETS = (
    "\n\nWords are explained in the [glossary](../docs/glossary.md), signs on the [notation sheet]"
    "(../docs/notation.md)."
)
#: Enough for every figure and check cell; the committed outputs use the notebooks' own numbers.
FEW = {"LIMIT": 8, "WHOLE": 0}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features and answers, shared by all notebook tests: what is tested is the notebooks."""
    return tmp_path_factory.mktemp("cache")


def test_the_notebooks_of_the_course_are_all_here():
    assert [name[:2] for name in NAMES] == ["00", "01", "02", "03", "04", "05", "06", "07", "08", "10", "11"]


@pytest.mark.parametrize("name", NAMES)
def test_committed_form(name: str):
    path = FOLDER / f"{name}.ipynb"
    node = nbformat.read(path, as_version=4)
    nbformat.validate(node)
    code = [cell for cell in node.cells if cell.cell_type == "code"]
    tags = [tag for cell in code for tag in cell.metadata.get("tags", [])]
    assert not faults(path)
    assert path.name == path.name.lower() and node.metadata.kernelspec.name == "python3"
    assert tags.count("parameters") == 1 and tags.count("solution") >= 2
    assert "widgets" not in node.metadata
    assert all(cell.execution_count for cell in code), "commit it executed"
    assert max(len(cell.source.splitlines()) for cell in code) <= 30
    assert node.cells[0].source.startswith("# ")
    assert node.cells[0].source.endswith(SHEETS), "the first cell ends with the links to both sheets"


@pytest.mark.notebook
@pytest.mark.slow
def test_all_in_order_end_in_a_table_and_a_report(cache: Path, tmp_path: Path):
    said = run_tutorial(
        tmp_path / "report", FOLDER, parameters=FEW, cache_dir=cache, device="cpu", timeout=900
    )
    assert "| sdr-cir" in said and "| xr, coarse stage only" in said and "Paired tests on" in said
    report = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "data:image/" in report and "image+text" in report
    record = json.loads((tmp_path / "report" / "tutorial.json").read_text())
    assert [row["name"] for row in record["notebooks"]] == NAMES
    assert all(row["parameters"]["LIMIT"] == 8 for row in record["notebooks"])


@pytest.mark.notebook
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_alone(name: str, cache: Path, tmp_path: Path):
    notebook = next(found for found in find_notebooks(FOLDER) if found.name == name)
    values = {key: value for key, value in FEW.items() if key in notebook.parameters}
    environment = {"CIR_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    done = tmp_path / f"{name}.ipynb"
    execute(notebook, done, values, cwd=tmp_path, timeout=900, environment=environment)
    kept = json.loads((tmp_path / "work" / f"{name}.json").read_text())
    assert kept, "the last cell writes the values that tests look at"
    cells = nbformat.read(done, as_version=4).cells
    assert not any(output.output_type == "error" for cell in cells for output in cell.get("outputs", []))
