"""The tutorial's own notebooks: kept clean, and run by papermill in order and each alone on a few queries."""

from __future__ import annotations

import ast
import json
import re
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
#: The template: the headings of every notebook, in this order.
HEADINGS = (
    "What problem this step solves",
    "What you will learn",
    "Before you start",
    "Parameters",
    "Set-up",
    "Check yourself",
    "Exercises",
    "Recap",
    "Where next",
)
#: Enough for every figure and check cell; the committed outputs use the notebooks' own numbers.
FEW = {"LIMIT": 8, "WHOLE": 0}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features and answers, shared by all notebook tests: what is tested is the notebooks."""
    return tmp_path_factory.mktemp("cache")


def test_the_notebooks_of_the_course_are_all_here():
    assert [name[:2] for name in NAMES] == [f"{number:02d}" for number in range(12)]


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
    outputs = [output for cell in code for output in cell.outputs]
    assert not [each.text for each in outputs if each.get("name") == "stderr"], "a reader would see warnings"
    assert 25 <= len(node.cells) <= 45, f"{len(node.cells)} cells; one idea a cell, 25 to 45 of them"
    longest = max(code, key=lambda cell: len(cell.source.splitlines()))
    assert len(longest.source.splitlines()) <= 30, f"code of this length belongs in the package: {longest.id}"
    assert node.cells[0].source.startswith("# ")
    assert node.cells[0].source.endswith(SHEETS), "the first cell ends with the links to both sheets"


@pytest.mark.parametrize("name", NAMES)
def test_the_template(name: str):
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    said = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    found = re.findall(r"^## (.+)$", said, re.M)
    assert [heading for heading in found if heading in HEADINGS] == list(HEADINGS)
    needs = cells[0].source.partition("## Before you start")[2]
    assert re.search(r"\bminutes?\b", needs), "say how long it takes"
    before = cells[[cell.cell_type for cell in cells].index("code")].metadata.tags
    assert before == ["parameters"], "the parameters are the first code"


@pytest.mark.parametrize("name", NAMES)
def test_exercises_and_checks(name: str):
    """Three to five exercises from warm-up to open, each followed by its solution; every check says what went
    wrong."""
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    exercises = [
        n for n, cell in enumerate(cells) if re.search(r"^\*\*\d+( \(.*?\))?\.\*\*", cell.source, re.M)
    ]
    heads = [re.findall(r"^\*\*(\d+)(?: \((.*?)\))?\.\*\*", cells[n].source, re.M) for n in exercises]
    assert all(len(found) == 1 for found in heads), "one exercise a cell"
    numbers, kinds = zip(*(found[0] for found in heads), strict=True)
    assert 3 <= len(numbers) <= 5 and [int(number) for number in numbers] == list(range(1, 1 + len(numbers)))
    assert kinds[0] == "warm-up" and kinds[-1] == "open"
    solutions = [n for n, cell in enumerate(cells) if "solution" in cell.metadata.get("tags", [])]
    assert solutions == [n + 1 for n in exercises], "every exercise is followed by its solution, tagged so"
    checks = [cell.source for cell in cells if "check" in cell.metadata.get("tags", [])]
    assert checks
    for check in map(ast.parse, checks):
        silent = [ast.unparse(a.test) for a in ast.walk(check) if isinstance(a, ast.Assert) and a.msg is None]
        assert not silent, f"say in words what went wrong: {silent}"


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
