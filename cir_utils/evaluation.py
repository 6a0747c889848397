"""Scores of a rankings file against a benchmark's annotations: no images and no model needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cir_utils.benchmarks import Benchmark, Family, ImageId, Query, check_benchmark, load_benchmark
from cir_utils.errors import InputError
from cir_utils.files import read_json
from cir_utils.metrics import (
    SUBSET_KS,
    aspect_map,
    category_means,
    check_queries,
    check_rankings,
    circo_per_query,
    in_order,
    means,
    recall_per_query,
    subset_recall_per_query,
)

KS: dict[Family, tuple[int, ...]] = {
    "circo": (1, 5, 10, 25, 50),
    "cirr": (1, 5, 10, 50),
    "fashioniq": (1, 5, 10, 50),
}
#: A list must reach the largest cut-off, as server files do: a shorter one would silently score too low.
AT_LEAST = 50
#: What CIRR's server files say about themselves.
CIRR_VERSION = "rc2"
CIRR_METRICS = {"recall": AT_LEAST, "recall_subset": max(SUBSET_KS)}
#: Options about the texts that a method gets.
TEXT_OPTIONS = {"both_orders": "--both-orders", "shared_concept": "--shared-concept"}

Rankings = Mapping[str, Sequence[ImageId]]


def evaluate_file(
    path: Path | str, benchmark: str, split: str, root: Path | str | None = None, **options: Any
) -> dict[str, Any]:
    """Score a rankings file, or a server file of CIRCO or CIRR.

    The file is JSON ``{query id: [image ids, best first]}``: every query of the split and no other, at least
    50 images a query (all, in a smaller gallery), each once; CIRCO's ids are integers, the others' names, and
    FashionIQ's queries are called ``dress/0``. A server file of CIRR also holds ``version`` and ``metric``.
    ``root`` and ``options`` are as in :func:`cir_utils.benchmarks.load_benchmark`, without ``both_orders``
    and ``shared_concept``: they say how a method read the texts, which no file of rankings shows. (The
    protocol's caption rule is then the published one; that of a run is in its folder.) Where CIRCO's image
    list is absent, ids that cannot be checked are accepted, and ``notes`` says so.

    Where the protocol removes the reference, it is taken out of the lists before ranks are counted.
    ``R_subset@k`` is taken from the order of the subset's members in the lists, where those hold them all
    (X^R, which verifies the five members by themselves, has a ranking of its own for that: see its run folder
    or the ``recall_subset`` server file).

    Returns ``{"benchmark", "split", "protocol", "metrics", "notes"}``, with the metrics of
    :func:`score_rankings`. Raises :class:`InputError` naming file, query and image for everything that the
    list above excludes, and for a split whose answers are not public.
    """
    path = Path(path)
    for name, flag in TEXT_OPTIONS.items():
        if options.get(name):
            raise InputError(
                f"{flag} says how a method reads the texts, which a file of rankings cannot show: leave it "
                "out here and give it to `cir run`, whose run folder carries it in its protocol"
            )
    bench = load_benchmark(benchmark, split, root, need_images=False, **options)
    require_answers(bench)
    table = read_json(path, "rankings file")
    notes = list(bench.notes)
    try:
        metric = cirr_header(table) if bench.family == "cirr" else None
        if metric is not None:
            table = {key: value for key, value in table.items() if key not in ("version", "metric")}
        if metric == "recall_subset":
            rankings: Rankings = {}
            subsets = _check_subsets(table, bench)
        else:
            rankings = _check_lists(table, bench, explicit=options.get("reference") is not None)
            subsets = _subsets(rankings, bench)
            if bench.family == "cirr" and not subsets:
                notes.append("lists do not hold all members of the subsets: no R_subset@k")
    except InputError as error:
        raise InputError(f"rankings file {path}: {error}") from None
    dropped = sum(bench.removed.get(query) in table[query] for query in rankings)
    if dropped:
        notes.append(f"the reference was taken out of {dropped:,} of {len(rankings):,} lists")
    return {
        "benchmark": bench.name,
        "split": bench.split,
        "protocol": bench.protocol.as_dict(),
        "metrics": score_rankings(bench, rankings, subsets),
        "notes": notes,
    }


def cirr_header(table: Any) -> str | None:
    """The ``metric`` of a CIRR server file, None for a plain rankings file; :class:`InputError` for a header
    that the server does not take."""
    if not isinstance(table, dict) or not {"version", "metric"} & table.keys():
        return None
    if table.get("version") != CIRR_VERSION:
        raise InputError(f"version is {table.get('version')!r:.40}; a server file of CIRR says 'rc2'")
    if table.get("metric") not in list(CIRR_METRICS):  # of any type
        raise InputError(
            f"metric is {table.get('metric')!r:.40}; a server file of CIRR says 'recall' or 'recall_subset'"
        )
    return str(table["metric"])


def query_values(
    bench: Benchmark, queries: Sequence[Query], rankings: Rankings, subsets: Rankings | None = None
) -> dict[str, np.ndarray]:
    """What the metrics are means of: AP@k and 0 or 1 of R@k for every query, each ``(Q,)`` float64 in the
    order of ``queries``. CIRR has ``R_subset@k`` where there are ``subsets``."""
    ks = KS[bench.family]
    target = {query.id: query.target for query in queries if query.target is not None}
    if bench.family == "circo":
        return circo_per_query(rankings, {query.id: query.targets for query in queries}, target or None, ks)
    found = recall_per_query(rankings, target, ks) if rankings or not subsets else {}
    return found | (subset_recall_per_query(subsets, target) if subsets else {})


def score_rankings(bench: Benchmark, rankings: Rankings, subsets: Rankings | None = None) -> dict[str, float]:
    """The benchmark's metrics of checked rankings, fractions at full precision.

    * CIRCO: ``mAP@k`` over all ground truths and ``R@k`` on the target alone for k of 1, 5, 10, 25, 50; then
      ``<aspect>/mAP@10`` for every semantic aspect of the annotations, as the official evaluator gives them.
    * CIRR: ``R@k`` for k of 1, 5, 10, 50; from ``subsets``, rankings of the subsets' members, ``R_subset@k``
      for k of 1, 2, 3.
    * FashionIQ: ``<category>/R@k`` for k of 1, 5, 10, 50, and ``mean/R@k``, the mean of the categories.

    ``rankings`` may hold fewer queries than the benchmark (a run that was limited); the means are over those
    there are. Raises :class:`InputError` for a split whose answers are not public.
    """
    require_answers(bench)
    there = rankings or subsets or {}
    queries = [query for query in bench.queries if query.id in there]
    values = query_values(bench, queries, rankings, subsets)
    if bench.family == "fashioniq":
        return category_means(values, [query.category for query in queries])
    metrics = means(values)
    if bench.family == "circo":
        aspects = aspect_map(
            rankings,
            {query.id: query.targets for query in queries},
            {query.id: query.aspects for query in queries},
        )
        metrics |= {f"{aspect}/mAP@10": value for aspect, value in aspects.items()}
    return metrics


def require_answers(bench: Benchmark) -> None:
    """Raise :class:`InputError`, naming what to do instead, where the ground truths are not public."""
    if bench.has_answers:
        return
    open_splits = [s for s in check_benchmark(bench.name, bench.split).splits if s != bench.split]
    raise InputError(
        f"the answers of {bench.name} {bench.split} are not public: write the server's file with "
        f"`cir submit RUN --to {bench.family}`, or evaluate on --split {' or '.join(open_splits)}"
    )


def _check_lists(table: Any, bench: Benchmark, explicit: bool) -> dict[str, list[ImageId]]:
    """The lists of a rankings file, checked gallery by gallery, references taken out where the protocol says
    so. ``explicit``: the rule for the reference was asked for, so it must show in the lists."""
    integer_ids = bench.family == "circo"
    parts = bench.parts
    if len(parts) > 1 and isinstance(table, Mapping):
        check_queries({str(key): value for key, value in table.items()}, [q.id for q in bench.queries])
    rankings: dict[str, list[ImageId]] = {}
    for part in parts.values():
        own = [query.id for query in part.queries]
        mine = {query: table[query] for query in own} if len(parts) > 1 and isinstance(table, dict) else table
        if part.protocol.reference == "kept":
            _check_kept(mine, part, explicit)
        rankings |= check_rankings(
            mine,
            own,
            integer_ids=integer_ids,
            gallery=part.gallery or None,
            at_least=AT_LEAST,
            removed=part.removed,
        )
    for query_id, ranking in rankings.items() if integer_ids else ():
        below = [image for image in ranking if isinstance(image, int) and image < 0]
        if below:
            raise InputError(f"query {query_id}: {below[0]} is not an image id; ids start at 0")
    return rankings


def _check_kept(table: Any, part: Benchmark, explicit: bool) -> None:
    """A file that was made without references has no figures of a protocol that keeps them: its lists hold
    everything else, or (where keeping was asked for) none holds its reference."""
    rows = table.items() if isinstance(table, dict) else ()
    lists = {query: row for query, row in rows if isinstance(row, list)}
    absent = [query for query in part.queries if query.reference not in lists.get(query.id, ())]
    known = frozenset(part.gallery)
    full = [q for q in absent if len(lists.get(q.id, ())) == len(known) - 1 and q.reference in known]
    if full or (explicit and len(absent) == len(part.queries)):
        first = (full or absent)[0]
        raise InputError(
            f"query {first.id}: its reference {first.reference} is not ranked, so it was removed before; "
            "evaluate with --remove-reference, or rank it too"
        )


def _check_subsets(table: Mapping[str, Any], bench: Benchmark) -> dict[str, list[ImageId]]:
    """The lists of a ``recall_subset`` file: members of the query's own subset, at least three."""
    check_queries(table, [query.id for query in bench.queries])
    found: dict[str, list[ImageId]] = {}
    for query in bench.queries:
        found |= check_rankings(
            {query.id: table[query.id]},
            [query.id],
            integer_ids=False,
            gallery=query.members,
            at_least=CIRR_METRICS["recall_subset"],
            removed=bench.removed,
        )
    return found


def _subsets(rankings: Rankings, bench: Benchmark) -> dict[str, list[ImageId]]:
    """CIRR's subsets in the order of full ``rankings``; none where a list is cut before it holds them."""
    if bench.family != "cirr":
        return {}
    found: dict[str, list[ImageId]] = {}
    for query in bench.queries:
        order = in_order(rankings[query.id], bench.subset(query))
        if order is None:
            return {}
        found[query.id] = order
    return found
