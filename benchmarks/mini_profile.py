"""How long the course's methods take on all three mini benchmarks, from an empty cache.

One process, one workbench a benchmark, as `data_scripts.make_readme_tables --run` does: pictures and texts
are encoded, every MLLM answer is computed, nothing is read that an earlier run has stored. From the folder of
the checkout, with nothing else running::

    python -m benchmarks.mini_profile

writes `mini_profile.json` (machine, seconds of every run, and the bar of `make bench` that is about this) and
prints the table. The exit code is 0 whatever holds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench import AT_MOST, MINUTES, MINUTES_BAR, ROOT, machine
from cir_utils.errors import exit_code
from cir_utils.experiments import METHODS
from cir_utils.files import write_json_atomic
from cir_utils.methods import resolve_settings
from cir_utils.runs import run_method
from cir_utils.workbench import open_workbench

BENCHMARKS = ("mini-circo", "mini-cirr", "mini-fashioniq")


def measure(limit: int | None, cache: Path) -> dict[str, dict[str, float]]:
    """Seconds by benchmark and method; what methods share is paid by the first that needs it."""
    seconds: dict[str, dict[str, float]] = {}
    for name in BENCHMARKS:
        begin = time.perf_counter()
        bench = open_workbench(name, "mini", "test", limit=limit, cache_dir=cache / name)
        seconds[name] = {"opening": time.perf_counter() - begin}
        for one in METHODS:
            begin = time.perf_counter()
            run_method(bench, one.method, resolve_settings(one.method, bench.settings), label=one.label)
            seconds[name][one.label] = time.perf_counter() - begin
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, help="queries, for a quick look")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder of mini_profile.json")
    chosen = parser.parse_args(argv)
    about = machine()
    with tempfile.TemporaryDirectory(prefix="cir-mini-") as cache:
        seconds = measure(chosen.limit, Path(cache))
    minutes = sum(sum(own.values()) for own in seconds.values()) / 60
    bar: dict[str, Any] = {"name": MINUTES, "ratio": minutes, "bar": MINUTES_BAR, "sense": AT_MOST}
    bar["holds"] = minutes <= MINUTES_BAR
    found = {"machine": about, "limit": chosen.limit, "seconds": seconds, "bars": [bar]}
    write_json_atomic(chosen.out / "mini_profile.json", found)
    print(f"| seconds | {' | '.join(seconds)} |\n|---|{'--:|' * len(seconds)}")
    for label in seconds[BENCHMARKS[0]]:
        print(f"| {label} | {' | '.join(f'{own[label]:.1f}' for own in seconds.values())} |")
    print(f"{MINUTES}: {minutes:.1f}, at most {MINUTES_BAR}: {'holds' if bar['holds'] else 'does not hold'}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
