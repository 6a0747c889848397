"""Execute the committed notebooks in place, with their own parameters, in order.

    python -m data_scripts.execute_notebooks [--fresh | --check] [NAME ...]

They run under this interpreter in the folder ``work/`` and are written back only when all of them ran,
without anything that differs from machine to machine. Names (or beginnings of names) choose some of them.

With ``--fresh`` they start without stored features and answers, as on a reader's first day. Their seconds
and the values that their last cells write are kept in ``results/notebooks.json``: README's column of minutes
(``data_scripts.make_readme_tables``) is made of the seconds. With ``--check`` they start so too, nothing is
written back, and the values must be those that are kept: exactly on the platform that they come from, within
`TOLERANCE` on another, where a model may choose another word."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
import torch

from cir_utils.errors import InputError
from cir_utils.files import read_json, write_json_atomic
from cir_utils.notebooks import NotebookFailed, execute, find_notebooks, write_notebook
from cir_utils.runs import versions

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "work"
RECORD = ROOT / "results" / "notebooks.json"
#: A notebook with pictures that are too many or too large is refused by code hosts and slow to read.
MOST_BYTES = 1_000_000
#: How far a number may be from the kept one on another platform: absolutely (a score is a fraction), or as a
#: share of it (a count). Texts are not compared there, nor what only one of the two has.
TOLERANCE = 0.05


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


def this_platform() -> dict[str, Any]:
    """What numbers depend on: the machine's instructions, the threads (their number decides the order of some
    sums) and the libraries."""
    capability = torch.backends.cpu.get_cpu_capability()
    about = {"system": platform.system(), "processor": platform.machine(), "vectors": capability}
    return {**about, "threads": torch.get_num_threads(), **versions()}


def values_of(name: str) -> Any:
    """What the last cell of a notebook that has just run wrote, None where it writes nothing."""
    path = WORK / "work" / f"{name}.json"
    return read_json(path, f"values of {name}") if path.exists() else None


def keep(seconds: Mapping[str, float], values: Mapping[str, Any]) -> None:
    """Write seconds and values of notebooks into the record, beside those of others."""
    found = read_json(RECORD, "record of the notebooks") if RECORD.exists() else {}
    about = {"cores": os.cpu_count(), "platform": this_platform()}
    found |= {
        name: {"seconds": round(value, 1), **about, "values": values[name]} for name, value in seconds.items()
    }
    write_json_atomic(RECORD, dict(sorted(found.items())))


def differences(kept: Any, now: Any, same_platform: bool, where: str = "") -> Iterator[str]:
    """Where the values of a run are not the kept ones."""
    numbers = [isinstance(one, int | float) and not isinstance(one, bool) for one in (kept, now)]
    if isinstance(kept, dict) and isinstance(now, dict) and (kept.keys() == now.keys() or not same_platform):
        for key in kept.keys() & now.keys():
            yield from differences(kept[key], now[key], same_platform, f"{where}.{key}")
    elif isinstance(kept, list) and isinstance(now, list) and (len(kept) == len(now) or not same_platform):
        for number, (one, other) in enumerate(zip(kept, now, strict=False)):
            yield from differences(one, other, same_platform, f"{where}[{number}]")
    elif all(numbers):
        allowed = 0.0 if same_platform else TOLERANCE * max(1.0, abs(kept))
        if not abs(kept - now) <= allowed and kept != now:
            yield f"{where.lstrip('.')}: {now} where {kept} is kept"
    elif kept != now and (same_platform or any(numbers) or type(kept) is not type(now)):
        yield f"{where.lstrip('.')}: {now!r} where {kept!r} is kept"


def check(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with the values of notebooks that have just run, by the record."""
    record = read_json(RECORD, "record of the notebooks") if RECORD.exists() else {}
    wrong = []
    for name, now in values.items():
        if "values" not in record.get(name, {}):
            wrong.append(f"{name}: no values kept; python -m data_scripts.execute_notebooks --fresh {name}")
            continue
        same = record[name]["platform"] == this_platform()
        wrong += [f"{name}: {told}" for told in differences(record[name]["values"], now, same)]
        print(f"{name}: compared {'exactly' if same else f'within {TOLERANCE}, on another platform'}")
    return wrong


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--fresh", action="store_true", help="start without a cache, keep seconds and values")
    how.add_argument("--check", action="store_true", help="as --fresh, and compare with what is kept")
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
            values: dict[str, Any] = {}
            # Published annotations that happen to be here would show in the outputs of notebook 10.
            environment = {"CIR_REAL_ANNOTATIONS": ""}
            if arguments.fresh or arguments.check:
                environment["CIR_CACHE"] = str(Path(folder) / "cache")
            for notebook in chosen:
                output = Path(folder) / notebook.path.name
                seconds[notebook.name] = execute(notebook, output, cwd=WORK, environment=environment)
                values[notebook.name] = values_of(notebook.name)
                print(f"{notebook.name}: {seconds[notebook.name]:.0f} s", flush=True)
                if bad := faults(output):
                    raise InputError("; ".join(bad))
                done.append((notebook.path, nbformat.read(output, as_version=4)))
            if arguments.check:
                wrong = check(values)
                print("\n".join(wrong) or "all values are those that are kept")
                return 1 if wrong else 0
            for path, node in done:
                write_notebook(node, path)
            if arguments.fresh:
                keep(seconds, values)
    except (InputError, NotebookFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
