"""Run all systems on a mini benchmark and write the tables of README.md from the records of those runs.

    python -m data_scripts.make_readme_tables --run     # run everything, keep the records, write the tables
    python -m data_scripts.make_readme_tables           # write the tables from the kept records
    python -m data_scripts.make_readme_tables --check   # exit 1 when README.md is not what the records give

Records lie in ``results/<benchmark>-<split>/`` (``run.json`` and ``metrics.json`` of every run; rankings and
traces are left out). README.md holds a pair of marks for each table, and what stands between them is
generated:

    <!-- table: mini-circo-test -->
    <!-- end of table -->
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from cir_utils import compare
from cir_utils.errors import InputError
from cir_utils.experiments import METHODS, compare_experiments, load_experiments, run_experiments
from cir_utils.files import write_atomic
from cir_utils.runs import Run
from cir_utils.workbench import open_workbench

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
README = ROOT / "README.md"
MARKS = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def filled(text: str, results: Path = RESULTS) -> str:
    """``text`` with every generated part made anew; :class:`InputError` for a mark whose records are not
    there."""
    return MARKS.sub(lambda match: match[1] + tables(load_experiments(results / match[2])) + match[3], text)


def tables(runs: list[Run]) -> str:
    """The part between two marks: the six methods, the ablations, the paired tests, and where the numbers
    come from."""
    both = compare_experiments(runs)
    systems = {experiment.label for experiment in METHODS}
    first = both.results[both.results["method"].isin(systems)]
    rest = both.results[~both.results["method"].isin(systems)]
    parts = [
        f"{both.protocol}. Percent, with 95 % bootstrap intervals over queries.\n",
        compare.to_markdown(first),
    ]
    if len(rest):
        parts += ["Ablations:\n", compare.to_markdown(rest)]
    if len(both.paired):
        parts += [
            f"Paired sign-flip tests on {both.metric}, differences in percentage points:\n",
            compare.to_markdown(both.paired),
        ]
    return "\n" + "\n".join(parts) + "\n" + origin(runs) + "\n"


def origin(runs: list[Run]) -> str:
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="store_true", help="run all systems first")
    parser.add_argument("--check", action="store_true", help="only say whether README.md is in step")
    parser.add_argument("--benchmark", default="mini-circo")
    parser.add_argument("--split", default="test")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    try:
        if arguments.run:
            bench = open_workbench(arguments.benchmark, "mini", arguments.split, device=arguments.device)
            run_experiments(bench, RESULTS / f"{arguments.benchmark}-{arguments.split}", whole=False)
        before = README.read_text(encoding="utf-8")
        after = filled(before)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.check:
        print(
            "README.md is in step with the records"
            if before == after
            else "README.md is not in step: run me without --check"
        )
        return int(before != after)
    if before != after:
        write_atomic(README, after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
