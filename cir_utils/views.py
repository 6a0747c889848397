"""Queries and rankings of a workbench, and comparisons of runs, as figures with their alternative text, one
call each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cir_utils.benchmarks import ImageId
from cir_utils.charts import interval_chart, side_by_side
from cir_utils.diagrams import system_diagrams
from cir_utils.plots import figure_alt, ranked_strip, show_query
from cir_utils.runs import Run
from cir_utils.show import escaped, table
from cir_utils.systems import composed, in_family
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


def view_systems(family: str, per_row: int = 2) -> None:
    """Show the systems of ``family`` (of ``systems.FAMILIES``): their drawings, and each in three
    sentences."""
    systems = in_family(family)
    figure_alt(system_diagrams(systems, per_row), ". ".join(system.spoken() for system in systems) + ".")
    table(
        [[f"**{escaped(one.title)}** `{one.name}`", " ".join(map(escaped, one.sentences)), one.source or "–"]
         for one in systems],
        ["system", "in three sentences", "source"],
    )  # fmt: skip


def view_answers(
    bench: Workbench,
    runs: Mapping[str, Run],
    number: int,
    lacking: Mapping[str, str] | None = None,
    first: int = 5,
) -> None:
    """Show what the systems ``runs`` composed for the workbench's query ``number``, and their ``first``
    pictures side by side, true targets and the reference framed. ``lacking`` are systems that did not run,
    each with the reason, which stands in their line."""
    query, path = bench.queries[number], bench.benchmark.image_path
    rows = [
        [f"`{name}`", "; ".join(f"*{what}*: {escaped(text)}" for what, text in composed(run, number))]
        for name, run in runs.items()
    ]
    rows += [[f"`{name}`", f"did not run here: {escaped(why)}"] for name, why in (lacking or {}).items()]
    table(rows, ["system", "what it composed"])
    if not runs:
        return
    heads = {name: list(run.rankings[query.id][:first]) for name, run in runs.items()}
    wanted = {name: [image in query.targets for image in head] for name, head in heads.items()}
    figure_alt(
        side_by_side(
            {name: [path(image) for image in head] for name, head in heads.items()},
            wanted,
            {name: [image == query.reference for image in head] for name, head in heads.items()},
        ),
        f"First {first} pictures for query {query.id}, “{query.text}”; true targets among them: "
        + "; ".join(f"{name} {sum(marks)}" for name, marks in wanted.items())
        + ".",
    )


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
