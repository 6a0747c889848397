"""Queries and rankings of a workbench, and comparisons of runs, as figures with their alternative text, one
call each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cir_utils.benchmarks import ImageId
from cir_utils.charts import interval_chart
from cir_utils.plots import figure_alt, ranked_strip, show_query
from cir_utils.tables import Comparison
from cir_utils.workbench import Workbench


def view_query(bench: Workbench, number: int, targets: int | Sequence[ImageId] = 2, title: str = "") -> None:
    """Show the workbench's query ``number``: reference image, modification text, and true targets (the first
    ``targets`` of them, or those named)."""
    query, path = bench.queries[number], bench.benchmark.image_path
    chosen = query.targets[:targets] if isinstance(targets, int) else targets
    figure_alt(
        show_query(path(query.reference), query.text, [path(image) for image in chosen], title),
        f"Query {query.id}: the reference image, the text “{query.text}”"
        + (f", and {len(chosen)} of its {len(query.targets)} true targets." if query.targets else "."),
    )


def view_ranking(
    bench: Workbench,
    number: int,
    images: Sequence[ImageId],
    scores: Sequence[float] | None = None,
    title: str = "",
    per_row: int = 7,
) -> int:
    """Show ``images``, best first, as results of query ``number``, true targets and the reference framed;
    return the number of true targets among them."""
    query, path = bench.queries[number], bench.benchmark.image_path
    wanted = [image in query.targets for image in images]
    ranks = ", ".join(str(rank) for rank, hit in enumerate(wanted, start=1) if hit) or "none"
    figure_alt(
        ranked_strip(
            [path(image) for image in images],
            wanted,
            scores,
            references=[image == query.reference for image in images],
            title=title,
            per_row=per_row,
        ),
        f"{title or 'Ranked pictures'}; query {query.id}, “{query.text}”; true targets among these "
        f"{len(images)}, by place: {ranks}.",
    )
    return sum(wanted)


def view_results(comparison: Comparison, title: str = "") -> None:
    """Show the comparison's metric, one row a run, with the 95 % intervals of its means."""
    _intervals(
        list(comparison.results["method"]),
        comparison.results,
        comparison.metric,
        f"{comparison.metric} in percent, with 95 % intervals over queries",
        title or comparison.protocol.split(", gallery")[0],
        zero=False,
    )


def view_differences(comparison: Comparison, title: str = "Paired differences over queries") -> None:
    """Show the paired differences of the comparison with their 95 % intervals; hollow where it may be 0."""
    paired = comparison.paired
    _intervals(
        [f"{row['method']}  −  {row['against']}" for _, row in paired.iterrows()],
        paired,
        "difference",
        f"difference in {comparison.metric}, points; hollow: may be 0",
        title,
        zero=True,
    )


def _intervals(names: list[str], table: Any, column: str, xlabel: str, title: str, zero: bool) -> None:
    """Means and intervals of ``table`` in percent, as a chart whose text holds all of them."""
    means, lows, highs = (list(100 * table[f"{column}{end}"]) for end in ("", " low", " high"))
    figure_alt(
        interval_chart(names, means, lows, highs, xlabel=xlabel, title=title, zero=zero),
        "; ".join(
            f"{name} {mean:{'+' if zero else ''}.1f} [{low:.1f}, {high:.1f}]"
            for name, mean, low, high in zip(names, means, lows, highs, strict=True)
        ),
    )
