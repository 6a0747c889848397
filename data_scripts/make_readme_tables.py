"""Run all systems on the mini benchmarks; write the tables of README.md, docs/results.md,
docs/reproduction.md and docs/scale.md from the records.

    python -m data_scripts.make_readme_tables --run     # run everything, keep the records, write the tables
    python -m data_scripts.make_readme_tables --run --benchmark mini-cirr    # run this one; may be repeated
    python -m data_scripts.make_readme_tables --run --only pic2word --only searle    # these rows alone
    python -m data_scripts.make_readme_tables           # write the tables from the kept records
    python -m data_scripts.make_readme_tables --check   # exit 1 when a file is not what the records give

Records lie in ``results/<benchmark>-<split>/`` (``run.json`` and ``metrics.json`` of every run; rankings and
traces are left out). The files hold pairs of marks, and what stands between a pair is generated: the methods
of a benchmark, its ablations and paired tests, the headline metric of several benchmarks, the reproduction
matrix (`cir reproduce --report`), or a part of the plan for large galleries (`cir_utils.scale`).

    <!-- table: mini-circo-test -->
    <!-- end of table -->

    <!-- ablations: mini-circo-test -->
    <!-- end of table -->

    <!-- summary: mini-circo-test mini-cirr-test mini-fashioniq-test -->
    <!-- end of table -->

    <!-- reproduction: all -->
    <!-- end of table -->

    <!-- scale: hours -->
    <!-- end of table -->

The last cell of a table row that begins with a link to a notebook gets its minutes, from
``results/notebooks.json`` (``data_scripts.execute_notebooks --fresh``).
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from cir_utils import compare, reproduce, scale
from cir_utils.benchmarks import BENCHMARKS
from cir_utils.errors import InputError
from cir_utils.experiments import ALL, METHODS, OTHERS, load_experiments, pairs_among, run_experiments
from cir_utils.files import read_json, write_atomic
from cir_utils.runs import Run, find_runs
from cir_utils.tables import comparison
from cir_utils.workbench import open_workbench

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
README = ROOT / "README.md"
DOCS = ROOT / "docs"
DOCUMENTS = (README, DOCS / "results.md", DOCS / "reproduction.md", DOCS / "scale.md")
#: The benchmarks that ``--run`` runs when none is named.
MINI = tuple(name for name, entry in BENCHMARKS.items() if entry.shipped)
MARKS = re.compile(
    r"(<!-- (table|ablations|summary|reproduction|scale): ([a-z0-9 -]+?) -->\n).*?(<!-- end of table -->)",
    re.DOTALL,
)
#: A row of the table of notebooks: all but the last cell, and the notebook's name.
ROW = re.compile(r"^(\| \[[^]]*\]\(notebooks/(\w+)\.ipynb\) \|.*\|)[^|\n]*\|$", re.MULTILINE)
LABELS = tuple(experiment.label for experiment in METHODS + OTHERS)
PERCENT = "Percent, with 95 % bootstrap intervals over queries."


def filled(text: str, results: Path = RESULTS) -> str:
    """``text`` with every generated part made anew; :class:`InputError` for a mark whose records are not
    there."""
    parts: dict[str, Callable[[list[list[Run]]], str]] = {
        "table": lambda groups: methods_table(groups[0]),
        "ablations": lambda groups: ablations(groups[0]),
        "summary": summary,
    }

    def part(match: re.Match[str]) -> str:
        if match[2] == "scale":
            return f"{match[1]}\n{scale.part(match[3], results, DOCS / 'benchmarks.md')}\n{match[4]}"
        if match[2] == "reproduction":
            return f"{match[1]}\n{reproduce.report(results)}\n{match[4]}"
        groups = [records(name, results) for name in match[3].split()]
        return f"{match[1]}\n{parts[match[2]](groups)}\n{match[4]}"

    return ROW.sub(lambda row: f"{row[1]} {minutes(row[2], results)} |", MARKS.sub(part, text))


def minutes(notebook: str, results: Path = RESULTS) -> str:
    """Whole minutes that a notebook took, rounded up; "not measured" without a record of it."""
    path = results / "notebooks.json"
    found = read_json(path, "record of the notebooks") if path.exists() else {}
    return str(math.ceil(found[notebook]["seconds"] / 60)) if notebook in found else "not measured"


def records(name: str, results: Path = RESULTS) -> list[Run]:
    """The kept runs of ``name``, such as ``mini-circo-test``."""
    if not find_runs(results / name):
        raise InputError(
            f"results/{name} holds no records, which a table of that name is made of; make them with "
            f"`python -m data_scripts.make_readme_tables --run --benchmark {name.rpartition('-')[0]}`"
        )
    return load_experiments(results / name)


def summary(groups: Sequence[Sequence[Run]]) -> str:
    """One row a method, the random ranking first; one column a benchmark: its headline metric. The course's
    methods must be there; any other system that one benchmark has, all must have."""
    ran = {run.name for runs in groups for run in runs} | {experiment.label for experiment in METHODS}
    labels = [label for label in LABELS if label in ran]
    table, told = pd.DataFrame({"method": labels}), []
    for runs in groups:
        by_name = {run.name: run for run in runs}
        name, split = runs[0].record["benchmark"], runs[0].record["split"]
        missing = [label for label in labels if label not in by_name]
        if missing:
            raise InputError(
                f"results/{name}-{split} holds no record of {', '.join(missing)}; make all with "
                f"`python -m data_scripts.make_readme_tables --run --benchmark {name}`"
            )
        metric = runs[0].headline
        found = comparison([by_name[label] for label in labels], pairs=[], metrics=[metric]).results
        for end in ("", " low", " high"):
            table[f"{name} {metric}{end}"] = found[f"{metric}{end}"]
        told.append(f"{name} {split}, {len(runs[0].queries)} queries")
    return f"{'; '.join(told)}. {PERCENT}\n\n{compare.to_markdown(table)}"


def methods_table(runs: Sequence[Run]) -> str:
    """The methods with all columns of the benchmark, and where the numbers come from."""
    both = comparison([run for run in runs if run.name in LABELS], pairs=[])
    return f"{both.protocol}. {PERCENT}\n\n{compare.to_markdown(both.results)}\n{origin(runs)}"


def ablations(runs: Sequence[Run]) -> str:
    """The ablations, the paired tests of all runs, and where the numbers come from."""
    both = comparison(runs, pairs=pairs_among(runs), metrics=[runs[0].headline])
    parts = [f"{both.protocol}. {PERCENT}\n"]
    rest = [run for run in runs if run.name not in LABELS]
    if rest:
        parts.append(compare.to_markdown(comparison(rest, pairs=[]).results))
    if len(both.paired):
        parts += [
            f"Paired sign-flip tests on {both.metric}, differences in percentage points:\n",
            compare.to_markdown(both.paired),
        ]
    return "\n".join([*parts, origin(runs)])


def origin(runs: Sequence[Run]) -> str:
    """A sentence about models, settings and day, read from the records."""
    inputs = {key: value for run in runs for key, value in run.record["inputs"].items()}
    settings = {
        name: value
        for run in runs
        if not run.record["overrides"]
        for name, value in run.record["settings"].items()
    }
    told = ", ".join(
        f"{name} {value:g}" if not isinstance(value, str) else f"{name} {value}"
        for name, value in settings.items()
    )
    models = [inputs["encoder"]["encoder"]] if "encoder" in inputs else []
    models += [inputs["mllm"]] if "mllm" in inputs else []
    days = sorted({run.record["started"][:10] for run in runs})
    sources = sorted({run.record["settings_source"] for run in runs})
    return (
        f"Models {', '.join(models) or 'none'}; settings {told or 'none'} ({'; '.join(sources)}); "
        f"run on {' to '.join(dict.fromkeys((days[0], days[-1])))}.\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="store_true", help="run all systems first")
    parser.add_argument("--check", action="store_true", help="only say whether the files are in step")
    parser.add_argument(
        "--benchmark", action="append", choices=(*MINI, "all"), help="what --run runs; may be repeated"
    )
    labels = [experiment.label for experiment in ALL]
    parser.add_argument(
        "--only", action="append", choices=labels, help="a row that --run runs; may be repeated"
    )
    parser.add_argument("--split", default="test")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args(argv)
    chosen = arguments.benchmark or ["all"]
    try:
        for name in MINI if arguments.run else ():
            if name in chosen or "all" in chosen:
                bench = open_workbench(name, "mini", arguments.split, device=arguments.device)
                wanted = [one for one in ALL if one.label in (arguments.only or labels)]
                run_experiments(bench, RESULTS / f"{name}-{arguments.split}", wanted, whole=False)
        before = {path: path.read_text(encoding="utf-8") for path in DOCUMENTS}
        after = {path: filled(text, RESULTS) for path, text in before.items()}
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    behind = [path for path in DOCUMENTS if before[path] != after[path]]
    if arguments.check:
        names = ", ".join(path.name for path in behind or DOCUMENTS)
        told = "not in step: run me without --check" if behind else "in step with the records"
        print(f"{names}: {told}")
        return int(bool(behind))
    for path in behind:
        write_atomic(path, after[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
