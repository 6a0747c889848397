"""Execute the committed notebooks in place, with their own parameters, in order.

    python -m data_scripts.execute_notebooks [--fresh] [NAME ...]

They run under this interpreter in the folder ``work/`` and are written back only when all of them ran,
without anything that differs from machine to machine. Names (or beginnings of names) choose some of them.

With ``--fresh`` they start without stored features and answers, as on a reader's first day, and their seconds
are kept in ``results/notebooks.json``: README's column of minutes (``data_scripts.make_readme_tables``) is
made of them."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import nbformat

from cir_utils.errors import InputError
from cir_utils.files import read_json, write_json_atomic
from cir_utils.notebooks import NotebookFailed, execute, find_notebooks, write_notebook

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "work"
RECORD = ROOT / "results" / "notebooks.json"
#: A notebook with pictures that are too many or too large is refused by code hosts and slow to read.
MOST_BYTES = 1_000_000


def faults(path: Path) -> list[str]:
    """What a committed notebook may not have: outputs that are errors, paths of this machine, too many
    bytes."""
    text = path.read_text(encoding="utf-8")
    node = nbformat.reads(text, as_version=4)
    found = [f"{path.name} has {len(text.encode()):,} bytes"] if len(text.encode()) > MOST_BYTES else []
    if any(output.output_type == "error" for cell in node.cells for output in cell.get("outputs", [])):
        found.append(f"{path.name} has an error among its outputs")
    for place in {str(ROOT), str(Path.home()), tempfile.gettempdir()} - {"/"}:
        if f"{place}{os.sep}" in text or f'{place}"' in text:
            found.append(f"{path.name} holds the path {place}")
    return found


def keep_seconds(seconds: Mapping[str, float]) -> None:
    """Write the seconds of notebooks into the record, beside those of others."""
    found = read_json(RECORD, "record of the notebooks") if RECORD.exists() else {}
    machine = {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()}
    found |= {name: {"seconds": round(value, 1), "machine": machine} for name, value in seconds.items()}
    write_json_atomic(RECORD, dict(sorted(found.items())))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fresh", action="store_true", help="start without a cache, and keep the seconds")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args(argv)
    names = arguments.names
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        chosen = [
            notebook
            for notebook in find_notebooks(ROOT / "notebooks")
            if not names or any(notebook.name.startswith(name) for name in names)
        ]
        with tempfile.TemporaryDirectory() as folder:
            done = []
            seconds: dict[str, float] = {}
            # Published annotations that happen to be here would show in the outputs of notebook 10.
            environment = {"CIR_REAL_ANNOTATIONS": ""}
            if arguments.fresh:
                environment["CIR_CACHE"] = str(Path(folder) / "cache")
            for notebook in chosen:
                output = Path(folder) / notebook.path.name
                seconds[notebook.name] = execute(notebook, output, cwd=WORK, environment=environment)
                print(f"{notebook.name}: {seconds[notebook.name]:.0f} s", flush=True)
                if bad := faults(output):
                    raise InputError("; ".join(bad))
                done.append((notebook.path, nbformat.read(output, as_version=4)))
            for path, node in done:
                write_notebook(node, path)
            if arguments.fresh:
                keep_seconds(seconds)
    except (InputError, NotebookFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
