"""Queries and rankings of a workbench as figures with their alternative text, one call each."""

from __future__ import annotations

from collections.abc import Sequence

from cir_utils.benchmarks import ImageId
from cir_utils.plots import figure_alt, ranked_strip, show_query
from cir_utils.workbench import Workbench


def view_query(bench: Workbench, number: int, targets: int | Sequence[ImageId] = 2, title: str = "") -> None:
    """Show the workbench's query ``number``: reference image, modification text, and true targets (the first
    ``targets`` of them, or those named)."""
    query, path = bench.queries[number], bench.benchmark.image_path
    chosen = query.targets[:targets] if isinstance(targets, int) else targets
    figure_alt(
        show_query(path(query.reference), query.text, [path(image) for image in chosen], title),
        f"Query {query.id}: the reference image, the text “{query.text}”, and {len(chosen)} of its "
        f"{len(query.targets)} true targets.",
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
