"""How long the course's methods take on all three mini benchmarks, from an empty cache.

A benchmark is run by one process with one workbench, as `data_scripts.make_readme_tables --run` does it; as
many at a time as there are cores, with one thread each (models this small do not gain from a second). All
pictures and texts are encoded, every MLLM answer is computed, nothing is read that an earlier run has stored.
From the folder of the checkout, with nothing else running::

    python -m benchmarks.mini_profile

writes `mini_profile.json` (machine, seconds of every run, and the bar of `make bench` that is about this: the
minutes by the clock, from the first start to the last end) and prints the table. The exit code is 0 whatever
holds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import AT_MOST, MINUTES, MINUTES_BAR, ROOT, machine
from cir_utils.errors import exit_code
from cir_utils.experiments import METHODS
from cir_utils.files import write_json_atomic
from cir_utils.methods import resolve_settings
from cir_utils.runs import run_method
from cir_utils.workbench import open_workbench

#: The longest first, so that the cores end at about the same time.
BENCHMARKS = ("mini-fashioniq", "mini-circo", "mini-cirr")


def measure(name: str, limit: int | None, cache: Path, threads: int) -> dict[str, float]:
    """Seconds of every method on one benchmark; what methods share is paid by the first that needs it."""
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    bench = open_workbench(name, "mini", "test", limit=limit, cache_dir=cache / name)
    seconds = {"opening": time.perf_counter() - begin}
    for one in METHODS:
        begin = time.perf_counter()
        run_method(bench, one.method, resolve_settings(one.method, bench.settings), label=one.label)
        seconds[one.label] = time.perf_counter() - begin
    return seconds


def measure_all(limit: int | None, cache: Path, cores: int) -> dict[str, dict[str, float]]:
    """`measure` of every benchmark, each in a process of its own, at most `cores` at a time."""
    at_once = min(cores, len(BENCHMARKS))
    with ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn")) as pool:
        running = {
            name: pool.submit(measure, name, limit, cache, max(1, cores // at_once)) for name in BENCHMARKS
        }
        return {name: found.result() for name, found in running.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, help="queries, for a quick look")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder of mini_profile.json")
    chosen = parser.parse_args(argv)
    about = machine()
    with tempfile.TemporaryDirectory(prefix="cir-mini-") as cache:
        begin = time.perf_counter()
        seconds = measure_all(chosen.limit, Path(cache), about["cores"])
        minutes = (time.perf_counter() - begin) / 60
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
