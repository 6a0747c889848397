"""How much faster two Ray workers extract features than one, with one thread each: mini-CLIP on the pictures
of the mini benchmarks.

From the folder of the checkout, on a quiet machine of two cores or more::

    python -m benchmarks.ray_workers                               # all pictures, three rounds
    python -m benchmarks.ray_workers --pictures 1000 --rounds 1    # a quick look

One cluster serves all rounds; a round is one worker, then two, each with new processes and an empty cache.
*At work* counts the pictures that are done after every worker has done its first batch, for which it loads
everything; *with starts* is the whole pipeline. Speeds are pictures a second, ratios the median over the
rounds of the ratio within a round. Prints a table, or with ``--json`` one object. The bar is 1.4 at work."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cir_utils.benchmarks import BENCHMARKS, ImageId
from cir_utils.distributed import Pool, Workers, feature_rows, ray_pool
from cir_utils.errors import exit_code
from cir_utils.feature_store import IMAGES_PER_SHARD
from cir_utils.workbench import open_workbench

BAR = 1.4


def pictures(most: int | None) -> tuple[list[ImageId], list[Path]]:
    """Ids and paths of the galleries of the mini benchmarks, as far as whole batches go."""
    paths: dict[Path, None] = {}
    for name in (name for name, entry in BENCHMARKS.items() if entry.shipped):
        for split in ("val", "test"):
            paths |= dict.fromkeys(open_workbench(name, split=split, device="cpu").gallery_paths)
    chosen = list(paths)[:most]
    chosen = chosen[: len(chosen) // IMAGES_PER_SHARD * IMAGES_PER_SHARD]
    return list(range(len(chosen))), chosen


def speeds(ids: list[ImageId], paths: list[Path], pool: Pool) -> dict[str, float]:
    """Pictures a second of a pool that starts anew, on an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        bench = open_workbench("mini-circo", device="cpu", cache_dir=cache)
        begin = time.time()
        rows = list(feature_rows(bench, [(ids, paths)], pool))
        whole = time.time() - begin
    assert sum(row["computed"] for row in rows) == len(paths), "the cache was empty"
    first: dict[int, float] = {}
    for row in sorted(rows, key=lambda row: row["ended"]):
        first.setdefault(row["worker"], row["ended"])
    if len(first) < pool.count:
        raise SystemExit(f"{len(first)} of {pool.count} workers took part: give more --pictures")
    ready, ended = max(first.values()), max(row["ended"] for row in rows)
    after = sum(row["computed"] for row in rows if row["ended"] > ready)
    if not after:
        raise SystemExit("everything was done before all workers had begun: give more --pictures")
    return {"at work": after / (ended - ready), "with starts": len(paths) / whole}


def measure(most: int | None, rounds: int) -> dict[str, Any]:
    """Speeds and ratios of all rounds."""
    ids, paths = pictures(most)
    found: list[dict[str, dict[str, float]]] = []
    with ray_pool(Workers(2, threads=1), "cpu") as two:
        one = Pool(1, 1, 0.0, "cpu")
        for _ in range(rounds):
            found.append({"one": speeds(ids, paths, one), "two": speeds(ids, paths, two)})
    ratios = {
        kind: statistics.median(pair["two"][kind] / pair["one"][kind] for pair in found)
        for kind in ("at work", "with starts")
    }
    return {"pictures": len(paths), "rounds": found, "ratios": ratios, "bar": BAR,
            "holds": ratios["at work"] >= BAR}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pictures", type=int, help="at most so many; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    found = measure(arguments.pictures, arguments.rounds)
    if arguments.json:
        print(json.dumps(found))
        return 0
    print(f"{found['pictures']:,} pictures; pictures a second")
    for number, pair in enumerate(found["rounds"], start=1):
        said = (f"{kind}: {pair['one'][kind]:.0f} and {pair['two'][kind]:.0f}" for kind in pair["one"])
        print(f"round {number}, one worker and two, {'; '.join(said)}")
    for kind, ratio in found["ratios"].items():
        print(f"two workers over one, {kind}: {ratio:.2f}")
    print(f"bar {BAR} at work: {'holds' if found['holds'] else 'does not hold'}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
