"""``cir tutorial``: all notebooks in order, then the results table and the HTML report.

The work folder ``out`` (default ``report``) gets

* ``notebooks/``: the executed notebooks, as ``.ipynb`` and as HTML;
* ``docs/``: the glossary and the notation sheet as HTML, where the notebooks link to them;
* ``work/``: what the notebooks write, each run's folder in ``work/runs/`` (notebooks run in ``out``, with
  ``WORK = "work"``);
* ``index.html``: the report;
* ``tutorial.json``: what ran, with which parameters, in how many seconds.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cir_utils import notebooks as nb
from cir_utils.benchmarks import Benchmark, load_benchmark
from cir_utils.errors import InputError
from cir_utils.experiments import compare_experiments
from cir_utils.files import write_json_atomic
from cir_utils.profiles import default_cache_dir, load_profile
from cir_utils.report import Link, write_report
from cir_utils.response_cache import ANSWERS, ResponseCache
from cir_utils.runs import Run, find_runs, load_run
from cir_utils.workbench import annotation_hashes

MARK = "tutorial.json"
WORK = "work"
REPORT = "index.html"
#: Sheets that every notebook links to, in the folder ``docs`` beside that of the notebooks.
SHEETS = ("glossary.md", "notation.md")


@dataclass(frozen=True)
class CacheState:
    """How much is stored: answers and verdicts of MLLMs, and feature files."""

    answers: int = 0
    verdicts: int = 0
    features: int = 0

    def __str__(self) -> str:
        return f"{self.answers:,} answers, {self.verdicts:,} verdicts, {self.features:,} feature files"


def run_tutorial(
    out: Path,
    folder: Path | None = None,
    *,
    only: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    profile: str = "mini",
    limit: int | None = None,
    device: str = "auto",
    cache_dir: Path | None = None,
    timeout: int = 1800,
) -> str:
    """Run the notebooks and return what to print.

    ``only`` keeps the notebooks whose names start with one of these texts. ``profile``, ``device`` and
    ``limit`` reach the notebooks that declare ``PROFILE``, ``DEVICE`` and ``LIMIT``; ``parameters`` are
    further ones, each of which some notebook must declare. Raises :class:`InputError` before anything runs
    for unknown names and values of the wrong kind, and :class:`cir_utils.notebooks.NotebookFailed` when a
    cell fails."""
    chosen = _chosen(nb.find_notebooks(folder), only)
    given = _parameters(chosen, parameters or {}, {"PROFILE": profile, "DEVICE": device, "LIMIT": limit})
    out, cache = out.absolute(), Path(cache_dir or default_cache_dir()).absolute()
    _prepare(out, fresh=not only)
    before, links, began = cache_state(cache), [], time.perf_counter()
    environment = {"CIR_CACHE": str(cache), "TOKENIZERS_PARALLELISM": "false"}
    if load_profile(profile).shipped:
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    for number, notebook in enumerate(chosen, start=1):
        values = given[notebook.name]
        told = ", ".join(f"{name}={value!r}" for name, value in values.items()) or "its own parameters"
        print(f"[{number}/{len(chosen)}] {notebook.name} with {told}", file=sys.stderr, flush=True)
        executed = out / "notebooks" / f"{notebook.name}.ipynb"
        seconds = nb.execute(notebook, executed, values, cwd=out, timeout=timeout, environment=environment)
        nb.to_html(executed, executed.with_suffix(".html"))
        links.append(Link(notebook.title, f"notebooks/{notebook.name}.html", seconds))
        print(f"      {seconds:.1f} s", file=sys.stderr, flush=True)
    for sheet in SHEETS:
        source = chosen[0].path.parent.parent / "docs" / sheet
        if source.is_file():
            nb.to_html(source, (out / "docs" / sheet).with_suffix(".html"))
    seconds = time.perf_counter() - began
    cached = cache_line(before, cache_state(cache), cache.name)
    runs = [load_run(path, whole=True) for path in find_runs(out / WORK / "runs")]
    text, report = finish(out, runs, links, profile, cached)
    write_json_atomic(
        out / MARK,
        {
            "profile": profile,
            "seconds": round(seconds, 1),
            "notebooks": [
                {
                    "name": notebook.name,
                    "parameters": given[notebook.name],
                    "seconds": round(link.seconds or 0, 1),
                }
                for notebook, link in zip(chosen, links, strict=True)
            ],
            "caches": cached,
        },
    )
    return f"{text}\n{len(chosen)} notebooks in {seconds:.0f} s\n{cached}\nreport: {report}"


def finish(
    out: Path, runs: Sequence[Run], links: Sequence[Link], profile: str, cached: str
) -> tuple[str, Path]:
    """Write the report of ``runs`` into ``out``; return the results as text, and the report's path."""
    groups = _by_protocol(runs)
    largest = max(groups, key=len) if groups else []
    comparison = compare_experiments(largest) if largest else None
    report = write_report(
        out / REPORT,
        "Composed image retrieval: the tutorial's results",
        comparison,
        largest,
        _benchmark(largest, profile),
        links,
        [cached],
    )
    text = (
        comparison.text() if comparison else "no run records: the notebook that runs all methods was not run"
    )
    return text, report


def cache_state(folder: Path) -> CacheState:
    """What is stored in a cache folder (nothing is made where there is none)."""
    counts = {"answers": 0, "verdicts": 0}
    if (folder / ANSWERS).exists():
        with ResponseCache(folder / ANSWERS) as cache:
            counts = cache.counts()
    features = sum(1 for _ in folder.glob("features/*/*.safetensors"))
    return CacheState(counts["answers"], counts["verdicts"], features)


def cache_line(before: CacheState, after: CacheState, name: str) -> str:
    """A sentence that says what was reused and what is new."""
    if before == CacheState():
        return f"cache {name}: empty before, now {after}"
    if before == after:
        return f"cache {name}: everything was reused ({after}), nothing computed anew"
    new = CacheState(*(now - then for now, then in zip(_counts(after), _counts(before), strict=True)))
    return f"cache {name}: {before} were there and reused where they fit; new: {new}"


def _counts(state: CacheState) -> tuple[int, int, int]:
    return state.answers, state.verdicts, state.features


def _chosen(found: list[nb.Notebook], only: Sequence[str]) -> list[nb.Notebook]:
    for start in only:
        if not any(notebook.name.startswith(start) for notebook in found):
            names = ", ".join(notebook.name for notebook in found)
            raise InputError(f"no notebook's name starts with {start!r}: choose from {names}")
    return [
        notebook for notebook in found if not only or any(notebook.name.startswith(start) for start in only)
    ]


def _parameters(
    chosen: Sequence[nb.Notebook], given: Mapping[str, Any], usual: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """For every notebook the values it gets: of ``usual`` those it declares, of ``given`` too, where one at
    least must declare each."""
    declared = dict.fromkeys(name for notebook in chosen for name in notebook.parameters)
    for name in [*given, *(["LIMIT"] if usual["LIMIT"] is not None else [])]:
        if name not in declared:
            raise InputError(
                f"no chosen notebook has a parameter {name!r}; theirs are {', '.join(declared) or 'none'}"
            )
    wanted = {name: value for name, value in usual.items() if value is not None} | dict(given)
    return {
        notebook.name: nb.check_parameters(
            notebook, {name: value for name, value in wanted.items() if name in notebook.parameters}
        )
        for notebook in chosen
    }


def _prepare(out: Path, fresh: bool) -> None:
    """Make the work folder ours, and drop an earlier tutorial's results in it when all notebooks run
    again."""
    ours = (out / MARK).is_file()
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out.name} is a file; name a folder")
    if out.is_dir() and any(out.iterdir()) and not ours:
        raise InputError(f"--out {out.name} is not empty and holds no earlier tutorial; name a new folder")
    if ours and fresh:
        for name in (WORK, "notebooks"):
            shutil.rmtree(out / name, ignore_errors=True)
        (out / REPORT).unlink(missing_ok=True)
    try:
        write_json_atomic(out / MARK, {"unfinished": True})
    except OSError as error:
        raise InputError(
            f"--out {out.name} cannot be written ({error.strerror}); name another folder"
        ) from None


def _by_protocol(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs in groups that may stand in one table: equal protocol, with metrics."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.metrics:
            groups.setdefault(repr(sorted(run.record["protocol"].items())), []).append(run)
    return list(groups.values())


def _benchmark(runs: Sequence[Run], profile: str) -> Benchmark | None:
    """The benchmark of ``runs`` with its pictures, where the one that was run is here."""
    if not runs:
        return None
    record = runs[0].record
    name, split = record["benchmark"], record["split"]
    try:
        found = load_benchmark(name, split, load_profile(profile).benchmark(name).root)
    except InputError:
        return None
    return found if annotation_hashes(found) == record["inputs"]["annotations"] else None
