"""How many questions lossless pruning leaves out of X^R's verification.

Every query of the mini benchmarks is ranked twice with the profile's settings, once with all k' candidates
verified and once with what the first k places need (:func:`cir_utils.methods.xr.verify_for_top`). Both must
have the same first k, with the same scores. A call is a statement about a candidate's caption or picture,
whether or not the response cache has the answer: a second run asks the same and computes nothing, and the
answers of `cir tune` (split val) are used as they are. From the folder of the checkout::

    python -m benchmarks.pruning
    python -m benchmarks.pruning --benchmark mini-circo --limit 8     # a quick look

writes `pruning.json` (machine, settings, a row for each benchmark and pair of k and k', and the bars of
`make bench` that are about this) and prints the table. The exit code is 0 whatever holds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import NOT_HERE, machine
from cir_utils.errors import exit_code
from cir_utils.files import write_json_atomic
from cir_utils.methods import xr
from cir_utils.workbench import Workbench, open_workbench

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ("mini-circo", "mini-cirr", "mini-fashioniq")
#: (k, k'), and the most calls that pruning may leave, as a share of all; the second pair is only reported.
PAIRS = {(10, 50): 0.6, (50, 100): 1.0}
BOTH = xr.Sides(text=True, vision=True)
COUNTS = ("queries", "calls", "calls_pruned", "captions_not_asked", "pictures_not_asked", "different")


def measure(bench: Workbench, pairs: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """For each (k, k'): the numbers of :data:`COUNTS`, added up over the galleries of ``bench``;
    ``different`` is the number of queries whose first k are not those of the plain form."""
    totals = [dict.fromkeys(COUNTS, 0) for _ in pairs]
    for part in bench.parts.values():
        for total, found in zip(totals, _measure_part(part, pairs), strict=True):
            for name in COUNTS:
                total[name] += found[name]
    return [
        {"k": k, "k_prime": k_prime, **total, "share_saved": 1 - total["calls_pruned"] / total["calls"]}
        for (k, k_prime), total in zip(pairs, totals, strict=True)
    ]


def _measure_part(bench: Workbench, pairs: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    lam = float(bench.settings["lambda"])
    imagined, captions = xr.imagine(bench, BOTH), xr.gallery_captions(bench)
    S_t, S_v = xr.similarities(bench, imagined, captions)
    order = xr.coarse_among(S_t, S_v, bench.places, float(bench.settings["kappa"]), BOTH)[1]
    asked = xr.ask(bench, imagined, BOTH)
    statements = torch.tensor(asked.counts, device=order.device)
    pool = order[:, : max(k_prime for _, k_prime in pairs)].tolist()
    everything = xr.verify(bench, asked, pool, captions, BOTH)
    found = []
    for k, k_prime in pairs:
        head = order[:, :k_prime]
        top = xr.Top(head, S_t.gather(1, head), S_v.gather(1, head), k)
        rows = xr.candidates_of([top])
        pruned = xr.verify_for_top(bench, asked, [top], captions, BOTH, lam)
        plain, mine = (
            xr.rank_top(top, *xr.counts_of(checked, places, head), statements, lam)
            for checked, places in ((everything, pool), (pruned, rows))
        )
        first, same = plain.order[:, :k], mine.order[:, :k]
        equal = (first == same) & (plain.scores.gather(1, first) == mine.scores.gather(1, same))
        calls, saved = xr.statements_about(rows, asked, BOTH), xr.unasked(pruned, asked)
        found.append(
            {
                "queries": len(rows),
                "calls": calls,
                "calls_pruned": calls - sum(saved.values()),
                "captions_not_asked": saved["captions"],
                "pictures_not_asked": saved["pictures"],
                "different": int((~equal).any(dim=1).sum()),
            }
        )
    return found


def bars(rows: Sequence[dict[str, Any]], computed: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of `make bench` about verification, over all benchmarks measured: ``ratio`` is the share of
    calls that is left, and how often a picture of a gallery was encoded (which only a run with an empty cache
    shows). A bar does not hold where a single query came out different."""
    found = []
    for (k, k_prime), bar in PAIRS.items():
        own = [row for row in rows if (row["k"], row["k_prime"]) == (k, k_prime)]
        ratio = sum(row["calls_pruned"] for row in own) / sum(row["calls"] for row in own)
        name = f"MLLM calls for verification, pruned over not, k={k}, k'={k_prime}"
        holds = ratio <= bar and not any(row["different"] for row in own)
        found.append({"name": name, "ratio": ratio, "bar": bar, "sense": "at most", "holds": holds})
    encoded, pictures = (
        sum(one.get(name, 0) for one in computed.values()) for name in ("pictures_encoded", "pictures")
    )
    last: dict[str, Any] = {"name": "vision features of a candidate, times encoded", "bar": 1}
    if encoded < pictures:
        reason = "a cache held answers about some pictures; give an empty --cache"
        return [*found, last | {"ratio": None, "sense": "at most", "holds": NOT_HERE, "reason": reason}]
    ratio = encoded / pictures
    return [*found, last | {"ratio": ratio, "sense": "at most", "holds": ratio <= 1}]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    lines = [
        "| benchmark | queries | k | k' | calls, all verified | calls, pruned | saved | captions not asked "
        "| pictures not asked | first k |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = [row[name] for name in ("queries", "k", "k_prime", "calls", "calls_pruned")]
        cells = [row["benchmark"], *(f"{number:,}" for number in numbers), f"{row['share_saved']:.1%}"]
        cells += [f"{row[name]:,}" for name in ("captions_not_asked", "pictures_not_asked")]
        cells.append("identical" if not row["different"] else f"{row['different']} queries differ")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--benchmark", action="append", help="one of the profile's; may be repeated")
    parser.add_argument("--profile", default="mini")
    parser.add_argument("--split", default="val")
    parser.add_argument("--limit", type=int, help="queries")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cache", type=Path, help="folder of features and answers")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder of pruning.json")
    chosen = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    settings, computed = {}, {}
    for name in chosen.benchmark or BENCHMARKS:
        bench = open_workbench(
            name, chosen.profile, chosen.split, device=chosen.device, cache_dir=chosen.cache,
            limit=chosen.limit,
        )  # fmt: skip
        bench.start()
        begin = time.perf_counter()
        rows += [{"benchmark": name, **row} for row in measure(bench, list(PAIRS))]
        settings[name] = bench.settings
        # Answers that no cache held: a picture is encoded once, whatever is asked about it.
        seconds = round(time.perf_counter() - begin, 1)
        computed[name] = bench.computed() | {"pictures": len(bench.benchmark.gallery), "seconds": seconds}
    about = {"profile": chosen.profile, "split": chosen.split, "limit": chosen.limit, "settings": settings}
    found = {"machine": machine(), **about, "rows": rows, "bars": bars(rows, computed), "computed": computed}
    write_json_atomic(chosen.out / "pruning.json", found)
    print(table(rows))
    for bar in found["bars"]:
        if bar["ratio"] is None:
            print(f"{bar['name']}: {bar['holds']} ({bar['reason']})")
        else:
            verdict = "holds" if bar["holds"] else "does not hold"
            print(f"{bar['name']}: {bar['ratio']:.2f}, at most {bar['bar']:g} is wanted: {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
