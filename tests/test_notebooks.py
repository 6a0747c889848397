"""The notebook runner: our interpreter as the kernel, declared parameters only, failures in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest

from cir_utils.errors import InputError
from cir_utils.notebooks import (
    NotebookFailed,
    check_parameters,
    clean,
    execute,
    find_notebooks,
    read_notebook,
    to_html,
    without_foreign_scripts,
)

PARAMETERS = 'LIMIT = 5  # queries\nPROFILE = "mini"\nSHARE: float = 0.5\nSEED = None'


def write(path: Path, *cells: str, parameters: str | None = PARAMETERS, kernel: str = "my-env") -> Path:
    """A notebook with a title, a parameters cell and code ``cells``, whose metadata names a kernel that
    nobody has."""
    node = nbformat.v4.new_notebook()
    node.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": "python"}
    node.cells = [nbformat.v4.new_markdown_cell("# A title")]
    if parameters is not None:
        node.cells.append(nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    node.cells += [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(node, path)
    return path


def test_parameters_are_read_as_literals(tmp_path: Path) -> None:
    notebook = read_notebook(write(tmp_path / "00_a.ipynb"))
    assert notebook.parameters == {"LIMIT": 5, "PROFILE": "mini", "SHARE": 0.5, "SEED": None}
    assert notebook.title == "A title"


@pytest.mark.parametrize("cell", ["LIMIT = 2 * 3", "import os", "A, B = 1, 2", "LIMIT =", "print(1)"])
def test_a_parameters_cell_of_anything_else_is_refused(tmp_path: Path, cell: str) -> None:
    with pytest.raises(InputError, match="its parameters cell may hold only lines like"):
        read_notebook(write(tmp_path / "00_a.ipynb", parameters=cell))


def test_a_notebook_without_the_tag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="0 cells are tagged 'parameters'; tag exactly one"):
        read_notebook(write(tmp_path / "00_a.ipynb", parameters=None))
    (tmp_path / "01_b.ipynb").write_text("{}")
    with pytest.raises(InputError, match="is not a notebook"):
        read_notebook(tmp_path / "01_b.ipynb")


def test_a_misspelt_parameter_and_a_missing_tag_stop_before_anything_runs(tmp_path: Path) -> None:
    """Report 24: papermill would run with the default values."""
    cell = f"open({str(tmp_path / 'ran')!r}, 'w')"
    path = write(tmp_path / "00_a.ipynb", cell, parameters='dataset = "circo"\nLIMIT = 5')
    for given, message in (
        ({"datset": "cirr"}, "00_a.ipynb has no parameter 'datset'; its parameters are dataset, LIMIT"),
        ({"LIMIT": "many"}, "parameter LIMIT is 5, so 'many' does not fit; give a value of type int"),
    ):
        with pytest.raises(InputError, match=message):
            execute(read_notebook(path), tmp_path / "done.ipynb", given)
    untagged = nbformat.read(path, as_version=4)
    untagged.cells[1].metadata.tags = []
    nbformat.write(untagged, tmp_path / "01_b.ipynb")
    with pytest.raises(InputError, match="0 cells are tagged 'parameters'"):
        execute(read_notebook(tmp_path / "01_b.ipynb"), tmp_path / "done.ipynb", {"dataset": "cirr"})
    assert not (tmp_path / "ran").exists() and not (tmp_path / "done.ipynb").exists()


def test_names_and_kinds_are_checked_against_the_declared_ones(tmp_path: Path) -> None:
    notebook = read_notebook(write(tmp_path / "00_a.ipynb"))
    assert check_parameters(notebook, {"LIMIT": "7", "PROFILE": "5", "SHARE": 1, "SEED": 3}) == {
        "LIMIT": 7,
        "PROFILE": "5",
        "SHARE": 1,
        "SEED": 3,
    }
    with pytest.raises(
        InputError, match="no parameter 'LIMITT'; its parameters are LIMIT, PROFILE, SHARE, SEED"
    ):
        check_parameters(notebook, {"LIMITT": 1})
    for name, value in (
        ("LIMIT", "many"),
        ("LIMIT", 0.5),
        ("LIMIT", True),
        ("SHARE", "half"),
        ("PROFILE", 5),
    ):
        with pytest.raises(InputError, match=f"parameter {name} is .* does not fit"):
            check_parameters(notebook, {name: value})


def test_notebooks_come_in_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("01_b.ipynb", "00_a.ipynb", "notes.ipynb", "02_Big.ipynb"):
        write(tmp_path / name)
    assert [notebook.name for notebook in find_notebooks(tmp_path)] == ["00_a", "01_b"]
    with pytest.raises(InputError, match="--notebooks"):
        find_notebooks(tmp_path / "nowhere")


def test_a_notebook_runs_under_our_interpreter_whatever_kernel_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_PATH", "")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "no-kernels-here"))
    path = write(
        tmp_path / "00_a.ipynb",
        "import sys, os, cir_utils",
        "print(sys.executable, LIMIT, os.environ['MARK'], os.path.basename(os.getcwd()))",
    )
    output = tmp_path / "done" / "00_a.ipynb"
    seconds = execute(
        read_notebook(path),
        output,
        {"LIMIT": 9},
        cwd=tmp_path / "work",
        timeout=120,
        environment={"MARK": "x"},
    )
    assert seconds > 0
    node = nbformat.read(output, as_version=4)
    assert node.cells[-1].outputs[0].text == f"{sys.executable} 9 x work\n"
    assert node.metadata.kernelspec.name == "python3"
    assert "papermill" not in node.metadata
    assert all("papermill" not in cell.metadata for cell in node.cells)
    to_html(output, tmp_path / "a.html")
    html = (tmp_path / "a.html").read_text()
    assert "A title" in html
    assert not [line for line in html.split("<script")[1:] if line.split(">")[0].count("http")]


def test_exported_pages_link_to_exported_pages(tmp_path: Path) -> None:
    sheet = tmp_path / "glossary.md"
    sheet.write_text(
        "# Words\n\n[next](01_b.ipynb), [part](../notebooks/02_c.ipynb#goal), [signs](notation.md), "
        "[paper](https://example.org/a.md), [here](#words)\n"
    )
    to_html(sheet, tmp_path / "glossary.html")
    page = (tmp_path / "glossary.html").read_text()
    assert "<title>glossary</title>" in page
    for address in ("01_b.html", "../notebooks/02_c.html#goal", "notation.html", "https://example.org/a.md"):
        assert f'href="{address}"' in page
    assert 'href="#words"' in page and "ipynb" not in page.partition("<body")[2]


def test_a_failing_cell_is_named_and_the_copy_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "00_a.ipynb", "1 / 0")
    with pytest.raises(
        NotebookFailed, match=r"00_a.ipynb: cell \[\d\] failed: ZeroDivisionError: division by zero"
    ) as caught:
        execute(read_notebook(path), tmp_path / "done.ipynb", timeout=120)
    node = nbformat.read(caught.value.executed, as_version=4)
    assert any(output.output_type == "error" for cell in node.cells for output in cell.get("outputs", []))


def test_a_cell_that_hangs_is_ended(tmp_path: Path) -> None:
    path = write(tmp_path / "00_a.ipynb", "import time; time.sleep(600)")
    with pytest.raises(NotebookFailed, match="a cell took more than 5 seconds"):
        execute(read_notebook(path), tmp_path / "done.ipynb", timeout=5)


def test_clean_drops_what_differs_from_run_to_run() -> None:
    node = nbformat.v4.new_notebook(metadata={"widgets": {"x": 1}, "papermill": {"duration": 3}})
    node.cells = [nbformat.v4.new_code_cell("1", metadata={"papermill": {}, "execution": {}, "tags": ["a"]})]
    shown = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "VBox()"}
    node.cells[0].outputs = [
        nbformat.v4.new_output("display_data", data=shown),
        nbformat.v4.new_output("display_data", data={"text/plain": "kept"}),
    ]
    node = clean(node)
    assert [output.data for output in node.cells[0].outputs] == [{"text/plain": "kept"}]
    assert set(node.metadata) == {"kernelspec"}
    assert node.cells[0].metadata == {"tags": ["a"]}


def test_scripts_from_elsewhere_are_left_out() -> None:
    html = (
        '<script src="https://cdn.example/x.js"></script><script>let a = 1;</script>'
        '<script type="module">import m from "https://cdn.example/m.mjs";</script><p>https://example.org</p>'
    )
    assert without_foreign_scripts(html) == "<script>let a = 1;</script><p>https://example.org</p>"
