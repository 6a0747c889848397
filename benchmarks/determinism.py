"""Whether batch sizes, threads and workers change a result.

The same runs are made from an empty cache under each of :data:`VARIATIONS` and compared with the first:
stored features bit by bit, answers, verdicts and their decisions, rankings and metrics byte by byte. From
the folder of the checkout::

    python -m benchmarks.determinism                        # the first 6 queries of mini-circo's val split
    python -m benchmarks.determinism --limit 50 --benchmark mini-cirr

writes `docs/determinism.md`. On a machine with a CUDA device one row more is about it. Give a quiet
machine some minutes for each ten queries: one variation asks for everything one at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from safetensors.numpy import load_file

from benchmarks.bench import machine
from cir_utils import agents, feature_store, workbench
from cir_utils.errors import exit_code
from cir_utils.files import write_atomic
from cir_utils.methods import resolve_settings
from cir_utils.mllm import LocalMLLM
from cir_utils.response_cache import ANSWERS
from cir_utils.runs import run_method
from cir_utils.workbench import open_workbench

ROOT = Path(__file__).resolve().parent.parent
METHODS = ("sdr-cir", "xr")
#: Above this a verification counts as true.
TRUE = 0.5


@dataclass(frozen=True)
class Variation:
    """Sizes of everything that is computed in batches: pictures and texts of the encoder, requests and
    verification pairs that are handed over at a time, tokens of a batch of the MLLM; and threads, of which as
    many compute as read picture files."""

    pictures: int = feature_store.IMAGES_PER_SHARD
    texts: int = feature_store.TEXTS_PER_SHARD
    requests: int = agents.BLOCK_REQUESTS
    pairs: int = agents.BLOCK_PAIRS
    tokens: int = 16_384
    threads: int = 1
    device: str = "cpu"


VARIATIONS = {
    "as it is, one thread": Variation(),
    "two threads": Variation(threads=2),
    "one at a time": Variation(pictures=1, texts=1, requests=1, pairs=1, tokens=1),
    "small odd batches, two threads": Variation(7, 5, 3, 10, 2000, threads=2),
}
ON_GPU = Variation(device="cuda")


@dataclass
class Outcome:
    """What runs made: stored features by content, answers and p("true") by key, and files by method."""

    features: dict[str, np.ndarray] = field(default_factory=dict)
    answers: dict[bytes, str] = field(default_factory=dict)
    verdicts: dict[bytes, float] = field(default_factory=dict)
    rankings: dict[str, bytes] = field(default_factory=dict)
    metrics: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """Of how many things there are two kinds, and by how much they differ at most."""

    features: int
    feature: float
    answers: int
    verdicts: int
    p_true: float
    decisions: int
    rankings: bool
    metrics: bool


@contextlib.contextmanager
def varied(variation: Variation) -> Iterator[None]:
    """Everything in batches of these sizes."""
    before = torch.get_num_threads()
    images = partial(feature_store.image_features, shard_size=variation.pictures)
    texts = partial(feature_store.text_features, shard_size=variation.texts)
    with (
        patch.object(workbench, "image_features", images),
        patch.object(workbench, "text_features", texts),
        patch.object(workbench, "LocalMLLM", partial(LocalMLLM, batch_tokens=variation.tokens)),
        patch.object(agents, "BLOCK_REQUESTS", variation.requests),
        patch.object(agents, "BLOCK_PAIRS", variation.pairs),
    ):
        torch.set_num_threads(variation.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def outcome(
    variation: Variation,
    place: Path,
    benchmark: str = "mini-circo",
    limit: int = 6,
    root: Path | None = None,
    k_prime: int | None = None,
) -> Outcome:
    """The runs of :data:`METHODS` on the first ``limit`` queries of split val, from an empty cache below
    ``place``."""
    with varied(variation):
        bench = open_workbench(
            benchmark, split="val", root=root, limit=limit, device=variation.device, cache_dir=place / "cache"
        )
        for method in METHODS:
            changed = {"k_prime": k_prime} if k_prime and method == "xr" else {}
            run = run_method(bench, method, resolve_settings(method, bench.settings, changed))
            run.save(place / method)
        bench.agents.cache.close()
    return read(place)


def read(place: Path) -> Outcome:
    """What runs have left below ``place``."""
    found = Outcome()
    for method in METHODS:
        found.rankings[method] = (place / method / "rankings.parquet").read_bytes()
        found.metrics[method] = (place / method / "metrics.json").read_bytes()
    for record in (place / "cache").glob("features/*/*-*.json"):
        rows = load_file(record.with_suffix(".safetensors"))["features"]
        found.features |= zip(json.loads(record.read_text())["content"], rows, strict=True)
    with contextlib.closing(sqlite3.connect(place / "cache" / ANSWERS)) as connection:
        found.answers |= connection.execute("SELECT key, text FROM answers")
        found.verdicts |= connection.execute("SELECT key, p_true FROM verdicts")
    return found


def compare(one: Outcome, other: Outcome) -> Difference:
    """How ``other`` differs. A key that one of them lacks (another answer leads to other questions) counts as
    another answer or verdict."""
    steps = [np.abs(one.features[name] - other.features[name]).max() for name in one.features]
    shared = one.verdicts.keys() & other.verdicts.keys()
    gaps = [abs(one.verdicts[key] - other.verdicts[key]) for key in shared]
    flips = [(one.verdicts[key] > TRUE) != (other.verdicts[key] > TRUE) for key in shared]
    apart = len(one.verdicts.keys() ^ other.verdicts.keys())
    keys = one.answers.keys() | other.answers.keys()
    return Difference(
        features=int(sum(step > 0 for step in steps)),
        feature=float(max(steps)),
        answers=sum(one.answers.get(key) != other.answers.get(key) for key in keys),
        verdicts=sum(gap > 0 for gap in gaps) + apart,
        p_true=max(gaps),
        decisions=sum(flips) + apart,
        rankings=one.rankings == other.rankings,
        metrics=one.metrics == other.metrics,
    )


PAGE = """# What is exact, and what is not

Generated by `python -m benchmarks.determinism` (`benchmarks/determinism.py`). Do not edit.

**The mini profile on a processor.** The same inputs and settings on the same platform give byte-equal
`rankings.parquet` and `metrics.json`, whatever the batch sizes and the number of threads. Features are the
same bits: a batch of one row is computed beside a copy of itself, as BLAS libraries take another path for a
single row. Probabilities of verifications are not the same bits, as padding and neighbours shift the sums
in a batch; X^R ranks by their decisions. (`xr-sdr` ranks by the probabilities: candidates that lie closer
than that shift may change places.) Scores are float64 sums of one routine, ties go by gallery order.

{table}

Machine: {machine}. {queries} queries of {benchmark}, split val, methods {methods}, each variation from an
empty cache: {features:,} features, {answers:,} answers, {verdicts:,} verdicts. The least certain verdict
was {margin:.1e} from the line between true and false.

**Stored results** reproduce exactly anywhere: features and answers are content-addressed and checked when
read ([the cache](cache.md)), and `--mllm replay:MODEL` ranks from published answers. Runs that were
killed and begun again, four processes on one cache, and runs after damage to the cache end with the same
bytes (`make chaos`).

**Another platform** (processor, BLAS library, version of torch) can move the last bits of features, and
with them the order of two candidates whose scores differ by less than that. **A GPU** does so too, and
its kernels may differ from one batch size to another. {gpu} Run records name device, machine and
versions.

**A server** decides for itself how it batches; greedy answers of one model can differ between two
requests with the same text. Temperature, seed and token limit are sent, and the record says which of them
were refused. What a server answered is kept, so that a second run ranks from the same answers; nothing
beyond that can be promised.
"""


def page(rows: dict[str, Difference], base: Outcome, benchmark: str, limit: int) -> str:
    lines = [
        "| variation | features that differ | most | answers that differ | verdicts that differ | most "
        "| decisions | rankings | metrics |",
        "|---|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {row.features:,} | {row.feature:.0e} | {row.answers:,} | {row.verdicts:,} | "
            f"{row.p_true:.0e} | {row.decisions:,} | {same(row.rankings)} | {same(row.metrics)} |"
        )
    here = machine()
    gpu = "The last row is about one." if torch.cuda.is_available() else "Not measured here: no CUDA device."
    return PAGE.format(
        table="\n".join(lines),
        machine=f"{here['cpu']}, {here['cores']} cores, torch {here['torch']}",
        queries=limit,
        benchmark=benchmark,
        methods=" and ".join(METHODS),
        features=len(base.features),
        answers=len(base.answers),
        verdicts=len(base.verdicts),
        margin=min(abs(p - TRUE) for p in base.verdicts.values()),
        gpu=gpu,
    )


def same(equal: bool) -> str:
    return "byte-equal" if equal else "**differ**"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--benchmark", default="mini-circo")
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "determinism.md", help="the page")
    chosen = parser.parse_args(arguments)
    variations = VARIATIONS | ({"on the GPU": ON_GPU} if torch.cuda.is_available() else {})
    rows: dict[str, Difference] = {}
    base: Outcome | None = None
    with tempfile.TemporaryDirectory() as place:
        for number, (name, variation) in enumerate(variations.items()):
            found = outcome(variation, Path(place) / str(number), chosen.benchmark, chosen.limit)
            base = base or found
            rows[name] = compare(base, found)
            print(f"{name}: {rows[name]}", flush=True)
    assert base is not None
    write_atomic(chosen.out, page(rows, base, chosen.benchmark, chosen.limit))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
