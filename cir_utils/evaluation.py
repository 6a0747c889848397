"""Scores of a rankings file against a benchmark's annotations: no images and no model needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cir_utils.benchmarks import Benchmark, ImageId, check_benchmark, load_benchmark
from cir_utils.errors import InputError
from cir_utils.files import read_json
from cir_utils.metrics import aspect_map, check_rankings, circo_metrics

KS = (1, 5, 10, 25, 50)
#: A list must reach the largest cut-off, as server files do: a shorter one would silently score too low.
AT_LEAST = max(KS)


def evaluate_file(
    path: Path | str,
    benchmark: str,
    split: str,
    root: Path | str | None = None,
    *,
    shared_concept: bool = False,
) -> dict[str, Any]:
    """Score a rankings file or a CIRCO server file.

    The file is JSON ``{query id: [image ids, best first]}``: every query of the split and no other, at least
    50 images a query (all, in a smaller gallery), each once, written as integers. ``root`` is as in
    :func:`cir_utils.benchmarks.load_benchmark`. Where the published image list is absent, ids that cannot be
    checked are accepted, and ``notes`` says so.

    Returns ``{"benchmark", "split", "protocol", "metrics", "notes"}``, with the metrics of
    :func:`score_rankings`. Raises :class:`InputError` naming file, query and image for everything that the
    list above excludes, and for a split whose answers are not public.
    """
    path = Path(path)
    bench = load_benchmark(benchmark, split, root, need_images=False, shared_concept=shared_concept)
    require_answers(bench)
    table = read_json(path, "rankings file")
    try:
        rankings = check_rankings(
            table,
            [query.id for query in bench.queries],
            integer_ids=True,
            gallery=bench.gallery or None,
            at_least=AT_LEAST,
        )
        for query_id, ranking in rankings.items():
            below = [image for image in ranking if isinstance(image, int) and image < 0]
            if below:
                raise InputError(f"query {query_id}: {below[0]} is not an image id; ids start at 0")
    except InputError as error:
        raise InputError(f"rankings file {path}: {error}") from None
    return {
        "benchmark": bench.name,
        "split": bench.split,
        "protocol": bench.protocol.as_dict(),
        "metrics": score_rankings(bench, rankings),
        "notes": list(bench.notes),
    }


def score_rankings(bench: Benchmark, rankings: Mapping[str, Sequence[ImageId]]) -> dict[str, float]:
    """The benchmark's metrics of checked rankings, fractions at full precision.

    CIRCO: ``mAP@k`` over all ground truths and ``R@k`` on the target alone for k of 1, 5, 10, 25, 50; then
    ``<aspect>/mAP@10`` for every semantic aspect of the annotations. Equal to the official evaluator's
    figures.

    ``rankings`` may hold fewer queries than the benchmark (a run that was limited); the means are over those
    there are. Raises :class:`InputError` for a split whose answers are not public.
    """
    require_answers(bench)
    queries = [query for query in bench.queries if query.id in rankings]
    targets = {query.id: query.targets for query in queries}
    target = {query.id: query.target for query in queries if query.target is not None}
    metrics = circo_metrics(rankings, targets, target, KS)
    aspects = aspect_map(rankings, targets, {query.id: query.aspects for query in queries})
    return metrics | {f"{aspect}/mAP@10": value for aspect, value in aspects.items()}


def require_answers(bench: Benchmark) -> None:
    """Raise :class:`InputError`, naming what to do instead, where the ground truths are not public."""
    if bench.has_answers:
        return
    open_splits = [s for s in check_benchmark(bench.name, bench.split).splits if s != bench.split]
    raise InputError(
        f"the answers of {bench.name} {bench.split} are not public: write the server's file with "
        f"`cir submit RUN --to {bench.name}`, or evaluate on --split {' or '.join(open_splits)}"
    )
