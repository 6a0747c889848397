"""Run notebooks with our own interpreter, and refuse parameters that a notebook does not declare.

papermill alone would run a notebook under whatever kernel its metadata names, in whatever environment that
kernel belongs to, and would only warn of a misspelt parameter. Here the kernel is bound to the interpreter
that runs this code, the parameters are read from the notebook first, and values are checked against the
declared ones."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from cir_utils.errors import InputError
from cir_utils.files import write_atomic
from cir_utils.profiles import PACKAGE

KERNEL = "python3"
TAG = "parameters"
WIDGET = "application/vnd.jupyter.widget-view+json"
NAME = re.compile(r"\d\d_[a-z0-9_]+\.ipynb")
#: nbconvert's page, but pictures keep the alternative text that `plots.figure_alt` gave them.
WITH_ALT = """{%- extends 'index.html.j2' -%}
{%- block data_png scoped -%}
{%- set alt = output | get_metadata('alt', 'image/png') -%}
{{ super() | replace('<img ', '<img alt="' ~ ((alt or 'figure') | escape_html) ~ '" ', 1) }}
{%- endblock data_png -%}
"""


class NotebookFailed(RuntimeError):
    """A cell raised an error or took too long. The message names notebook, cell and error; ``executed`` is
    the copy with the outputs up to there."""

    def __init__(self, message: str, executed: Path) -> None:
        super().__init__(message)
        self.executed = executed


@dataclass(frozen=True)
class Notebook:
    """A notebook file and the literals of its one parameters cell."""

    path: Path
    title: str
    parameters: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.stem


def find_notebooks(folder: Path | None = None) -> list[Notebook]:
    """The tutorial's notebooks (``00_start_here.ipynb`` ...) in order of name, read and checked.

    ``folder`` None means ``notebooks`` in the current folder, else beside the package. Raises
    :class:`InputError` when there is none, or one is not as it should be."""
    places = [folder] if folder is not None else [Path("notebooks"), PACKAGE.parent / "notebooks"]
    for place in places:
        found = (
            sorted(path for path in place.glob("*.ipynb") if NAME.fullmatch(path.name))
            if place.is_dir()
            else []
        )
        if found:
            return [read_notebook(path) for path in found]
    raise InputError(
        f"no notebooks (such as 00_start_here.ipynb) in {' or '.join(str(place) for place in places)}; "
        "run from a checkout of the repository, or name their folder with --notebooks"
    )


def read_notebook(path: Path | str) -> Notebook:
    """A notebook with its declared parameters.

    Raises :class:`InputError` when the file is no notebook, when there is not exactly one cell tagged
    ``parameters``, and when that cell holds anything else than ``NAME = literal`` lines."""
    path = Path(path)
    try:
        node = nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise InputError(f"notebook {path} does not exist; check the path") from None
    except Exception as error:  # nbformat raises many kinds for a damaged file
        raise InputError(f"{path} is not a notebook ({type(error).__name__}); restore it") from None
    tagged = [cell for cell in node.cells if TAG in cell.metadata.get("tags", [])]
    if len(tagged) != 1 or tagged[0].cell_type != "code":
        raise InputError(
            f"notebook {path}: {len(tagged)} cells are tagged {TAG!r}; tag exactly one code cell"
        )
    titles = [
        line[2:].strip()
        for cell in node.cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if line.startswith("# ")
    ]
    return Notebook(path, titles[0] if titles else path.stem, _literals(path, tagged[0].source))


def check_parameters(notebook: Notebook, given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` values for ``notebook``, texts turned into the declared kind (``"5"`` for a declared number
    is 5).

    Raises :class:`InputError` for a name that the notebook does not declare (its parameters are listed) and
    for a value of another kind than the declared one. A declared None takes a number, a text or None."""
    values = {}
    for name, value in given.items():
        if name not in notebook.parameters:
            declared = ", ".join(notebook.parameters) or "none"
            raise InputError(
                f"notebook {notebook.path.name} has no parameter {name!r}; its parameters are {declared}"
            )
        values[name] = _as_declared(notebook, name, value)
    return values


def execute(
    notebook: Notebook,
    output: Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    cwd: Path | None = None,
    timeout: int = 1800,
    environment: Mapping[str, str] | None = None,
) -> float:
    """Run a copy of ``notebook`` with ``parameters`` in folder ``cwd``, write it to ``output``, return the
    seconds.

    The kernel is this interpreter, whatever kernel the notebook names and whether or not any is installed;
    this package is importable there. ``timeout`` is for one cell. Raises :class:`NotebookFailed` when a cell
    fails, after ``output`` was written, and :class:`InputError` as :func:`check_parameters`."""
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    values = check_parameters(notebook, parameters or {})
    output.parent.mkdir(parents=True, exist_ok=True)
    if cwd is not None:
        cwd.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    failure = ""
    with _own_kernel(dict(environment or {})):
        try:
            papermill.execute_notebook(
                str(notebook.path),
                str(output),
                parameters=values,
                kernel_name=KERNEL,
                language="python",
                cwd=None if cwd is None else str(cwd),
                execution_timeout=timeout,
                progress_bar=False,
                log_output=False,
            )
        except PapermillExecutionError as error:
            failure = f"cell [{error.exec_count}] failed: {error.ename}: {error.evalue}"
        except TimeoutError:
            failure = f"a cell took more than {timeout} seconds"
        except DeadKernelError:
            failure = "the kernel died (out of memory?)"
    if output.exists():
        write_notebook(clean(nbformat.read(output, as_version=4)), output)
    if failure:
        raise NotebookFailed(f"notebook {notebook.path.name}: {' '.join(failure.split())}", output)
    return time.perf_counter() - begin


def clean(node: NotebookNode) -> NotebookNode:
    """``node`` without papermill's notes, widgets (their state and the outputs that stood for it, which show
    nothing without a kernel) and execution times, its kernel named ``python3``."""
    for key in ("papermill", "widgets"):
        node.metadata.pop(key, None)
    node.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": KERNEL}
    for cell in node.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
    return node


def write_notebook(node: NotebookNode, path: Path) -> None:
    """Write a notebook atomically."""
    write_atomic(path, nbformat.writes(node) + "\n")


def to_html(path: Path, output: Path) -> None:
    """A notebook, or a sheet of Markdown, as one HTML file that asks nothing of the network: scripts from
    elsewhere are left out. Links to other notebooks and sheets lead to their HTML."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(exclude_input_prompt=True, exclude_output_prompt=True, raw_template=WITH_ALT)
    if path.suffix == ".md":
        cell = nbformat.v4.new_markdown_cell(path.read_text(encoding="utf-8"))
        node = nbformat.v4.new_notebook(cells=[cell], metadata={"title": path.stem})
    else:
        node = nbformat.read(path, as_version=4)
    body, _ = exporter.from_notebook_node(node, {"metadata": {"name": path.stem}})
    body = re.sub(r'(<a\b[^>]*?href="(?!\w+:)[^"#]*?)\.(?:ipynb|md)(?=["#])', r"\1.html", body)
    write_atomic(output, without_foreign_scripts(body))


def without_foreign_scripts(html: str) -> str:
    """``html`` without ``<script>`` elements that load or import anything from another place."""

    def judge(match: re.Match[str]) -> str:
        return (
            ""
            if re.search(r"""(?:src\s*=|import\b)[^>]*?["']\s*(?:https?:)?//""", match.group())
            else match.group()
        )

    return re.sub(r"<script\b.*?</script\s*>", judge, html, flags=re.DOTALL | re.IGNORECASE)


@contextlib.contextmanager
def _own_kernel(environment: dict[str, str]) -> Iterator[None]:
    """A kernel specification for this interpreter, found before any of the user's, and the kernel's
    environment."""
    with tempfile.TemporaryDirectory(prefix="cir-kernel-") as folder:
        place = Path(folder) / "kernels" / KERNEL
        place.mkdir(parents=True)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=40"]
        (place / "kernel.json").write_text(
            json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}), encoding="utf-8"
        )
        paths = {
            "JUPYTER_PATH": _joined(folder, os.environ.get("JUPYTER_PATH")),
            "PYTHONPATH": _joined(str(PACKAGE.parent), os.environ.get("PYTHONPATH")),
        }
        wanted = paths | environment
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _joined(first: str, rest: str | None) -> str:
    return first if not rest else os.pathsep.join([first, rest])


def _literals(path: Path, source: str) -> dict[str, Any]:
    fault = InputError(
        f"notebook {path}: its parameters cell may hold only lines like LIMIT = 20; move the rest below"
    )
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        raise fault from None
    found: dict[str, Any] = {}
    for statement in statements:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            raise fault
        if not isinstance(target, ast.Name):
            raise fault
        try:
            found[target.id] = ast.literal_eval(value)
        except ValueError:
            raise fault from None
    return found


def _as_declared(notebook: Notebook, name: str, value: Any) -> Any:
    declared = notebook.parameters[name]
    if isinstance(value, str) and not isinstance(declared, str):
        with contextlib.suppress(ValueError, SyntaxError):
            value = ast.literal_eval(value)
    if declared is None or value is None:
        fits = value is None or isinstance(value, int | float | str)
    elif isinstance(declared, float):
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        fits = type(value) is type(declared)
    if not fits:
        raise InputError(
            f"notebook {notebook.path.name}: parameter {name} is {declared!r}, so {value!r} does not fit; "
            f"give a value of type {type(declared).__name__}"
        )
    return value
