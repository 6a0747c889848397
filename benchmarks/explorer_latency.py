"""How long the explorer takes from a slider's move to the new picture.

Both methods stand side by side on the queries of a mini benchmark; every slider is moved in turn, and a move
ends when strips, metrics and explanation have their new HTML. What the MLLM says is gathered before (and kept
in the usual cache, so a second call starts in seconds). From the folder of the checkout::

    python -m benchmarks.explorer_latency

prints one JSON object with the median and the slowest of all moves in milliseconds, and the median of each
slider.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from statistics import median

import torch

from cir_utils.explorer import Explorer
from cir_utils.workbench import open_workbench


def moves(explorer: Explorer, count: int) -> dict[str, list[float]]:
    """Milliseconds of ``count`` moves, by slider, each slider in turn going up and down its range."""
    found: dict[str, list[float]] = {name: [] for name in explorer.sliders}
    for number in range(count):
        name = list(found)[number % len(found)]
        slider, step = explorer.sliders[name], number // len(found)
        if hasattr(slider, "options"):
            choices = [value for _, value in slider.options]
        else:
            choices = [slider.min + (slider.max - slider.min) * tenth / 10 for tenth in range(11)]
        chosen = choices[step % len(choices)]
        if chosen == slider.value:  # no move, nothing to measure
            chosen = choices[(step + 1) % len(choices)]
        begin = time.perf_counter()
        slider.value = type(slider.value)(chosen)
        found[name].append(1000 * (time.perf_counter() - begin))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--benchmark", default="mini-circo")
    parser.add_argument("--limit", type=int, default=24, help="queries")
    parser.add_argument("--moves", type=int, default=50)
    chosen = parser.parse_args(argv)
    bench = open_workbench(chosen.benchmark, "mini", "val", device="cpu", limit=chosen.limit)
    explorer = Explorer([bench])
    explorer.sides[1].method.value = "xr"
    explorer.sides[0].pick.value = 3  # the explanation is drawn too
    spent = moves(explorer, chosen.moves)
    every = [value for values in spent.values() for value in values]
    found = vars(chosen) | {
        "gallery": len(bench.benchmark.gallery),
        "threads": torch.get_num_threads(),
        "median_ms": round(median(every), 1),
        "slowest_ms": round(max(every), 1),
        "median_ms_by_slider": {name: round(median(values), 1) for name, values in spent.items()},
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
