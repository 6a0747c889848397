"""Charts of numbers for the notebooks: curves, means with intervals, calibration, and what verification said.

They follow the rules of `cir_utils.plots` (fixed size, Okabe and Ito's colours, a sign beside every colour)
and are shown with `plots.figure_alt` like all figures."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from cir_utils.errors import InputError
from cir_utils.plots import (
    HATCHES,
    INK,
    MAP,
    MARKERS,
    PLAIN,
    REFERENCE,
    SERIES,
    TARGET,
    Picture,
    _dark,
    _figure,
    _show,
    _spread,
)  # fmt: skip

LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))
RIGHT, WRONG = "#DDEEF9", "#FBE3D6"
#: A share of fewer statements than these says little.
FEW = 10


def curves(
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    marks: Mapping[str, float] | None = None,
    log_x: bool = False,
) -> Figure:
    """Lines over a shared axis, each named at its right end; `marks` are dotted vertical lines with a name.

    Lines differ in colour, dash and marker. One axes. Raises `InputError` for fewer than two points or
    lengths that differ.
    """
    if len(x) < 2 or not series:
        raise InputError("curves: expected at least one series and two points")
    for name, values in series.items():
        if len(values) != len(x):
            raise InputError(f"{name}: {len(values)} values for {len(x)} points; give one a point")
    fig = _figure(7, 3.4)
    axes = fig.subplots()
    every = max(1, len(x) // 12)
    for i, (_, values) in enumerate(series.items()):
        axes.plot(
            x, values, color=SERIES[i % len(SERIES)], linestyle=LINES[i % len(LINES)],
            marker=MARKERS[i % len(MARKERS)], markevery=every, markersize=5, linewidth=2,
        )  # fmt: skip
    if log_x:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        if max(x) < 100 * min(x):
            axes.set_xticks(list(x))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    for name, place in (marks or {}).items():
        axes.axvline(place, color=INK, linestyle=":", linewidth=1)
        axes.annotate(
            name, (place, 0.0), (3, 3), xycoords=("data", "axes fraction"), textcoords="offset points",
            fontsize=9, va="bottom", color=INK,
        )  # fmt: skip
    heights = _spread([values[-1] for values in series.values()], *axes.get_ylim(), len(series))
    low, high = axes.get_ylim()  # labels pushed out at the top or the bottom move back together
    over = max(0.0, max(heights) - high) + min(0.0, min(heights) - low)
    for i, (name, height) in enumerate(zip(series, heights, strict=True)):
        axes.annotate(
            name, (x[-1], height - over), (8, 0), textcoords="offset points", va="center", fontsize=9,
            color=_dark(SERIES[i % len(SERIES)]), fontweight="bold", annotation_clip=False,
        )  # fmt: skip
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(axis="y", color="#E5E5E5")
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title, fontsize=11)
    return fig


def point_map(
    x: Sequence[float],
    y: Sequence[float],
    values: Sequence[float],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    marked: Sequence[bool] = (),
    best: int | None = None,
) -> Figure:
    """Points of a plane, coloured by their `values` (cividis): a heat map of what was drawn at random.

    Points that are `marked` have a black ring, point `best` a thick one in the reference's colour. Two axes:
    the plane and its colour bar. Raises `InputError` when lengths differ or nothing is given.
    """
    if not len(x) or not len(x) == len(y) == len(values) or len(marked) not in (0, len(x)):
        raise InputError("point map: expected an x, a y, a value and a mark for each of one or more points")
    fig = _figure(6, 4.2)
    axes = fig.subplots()
    rings = [INK if ring else "none" for ring in marked] or "none"
    shown = axes.scatter(x, y, c=values, cmap=MAP, s=46, edgecolors=rings, linewidths=1.4)
    if best is not None:
        axes.plot(x[best], y[best], "o", markersize=13, markerfacecolor="none", markeredgecolor=REFERENCE,
                  markeredgewidth=3)  # fmt: skip
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    fig.colorbar(shown, ax=axes)
    if title:
        axes.set_title(title, fontsize=11)
    return fig


def interval_chart(
    names: Sequence[str],
    means: Sequence[float],
    lows: Sequence[float],
    highs: Sequence[float],
    *,
    xlabel: str,
    title: str = "",
    zero: bool = False,
) -> Figure:
    """Means as points with their intervals as bars, one row a name, in the order given.

    With `zero` a line is drawn at 0 and rows whose interval contains it are hollow: for differences. Missing
    bounds (NaN) give a bare point. One axes. Raises `InputError` when lengths differ or nothing is given.
    """
    if not names or not len(names) == len(means) == len(lows) == len(highs):
        raise InputError("interval chart: expected one mean, low and high for each of one or more names")
    fig = _figure(7, 0.36 * len(names) + 1.1)
    axes = fig.subplots()
    for row, (mean, low, high) in enumerate(zip(means, lows, highs, strict=True)):
        bounded = np.isfinite(low) and np.isfinite(high)
        unsure = zero and (not bounded or low <= 0 <= high)
        if bounded:
            axes.plot([low, high], [row, row], color=SERIES[0], linewidth=2.5, solid_capstyle="butt")
        axes.plot(
            mean, row, "o", markersize=8, markeredgecolor=SERIES[0], markeredgewidth=2,
            markerfacecolor="white" if unsure else SERIES[0],
        )  # fmt: skip
    if zero:
        axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(xlabel)
    axes.grid(axis="x", color="#E5E5E5")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title, fontsize=11)
    return fig


def quality_cost(
    names: Sequence[str],
    costs: Sequence[float],
    qualities: Sequence[float],
    kinds: Sequence[str],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
) -> Figure:
    """Quality over cost, one point a name, with a marker and a colour for each of `kinds`.

    The axis of costs is logarithmic from 1 and straight below, so that 0 has a place. A dashed staircase
    joins the names that `not_beaten` gives. One axes. Raises `InputError` for lists of different lengths,
    negative costs, or no name.
    """
    if not names or not len(names) == len(costs) == len(qualities) == len(kinds):
        raise InputError(
            "quality and cost: expected a cost, a quality and a kind for each of one or more names"
        )
    if min(costs) < 0:
        raise InputError(f"quality and cost: a cost of {min(costs):g}; costs are 0 or more")
    fig = _figure(7.4, 4.6)
    axes = fig.subplots()
    axes.set_xscale("symlog", linthresh=1)
    for i, kind in enumerate(dict.fromkeys(kinds)):
        own = [n for n, other in enumerate(kinds) if other == kind]
        axes.plot(
            [costs[n] for n in own], [qualities[n] for n in own], linestyle="none", label=kind,
            color=SERIES[i % len(SERIES)], marker=MARKERS[i % len(MARKERS)], markersize=8, zorder=3,
            markeredgecolor="white",
        )  # fmt: skip
    best = [names.index(name) for name in not_beaten(names, costs, qualities)]
    axes.step(
        [costs[n] for n in best], [qualities[n] for n in best], where="post", color=INK, linestyle="--",
        linewidth=1, zorder=1,
    )  # fmt: skip
    axes.set_xlim(-0.15, max(5.0, 14 * max(costs)))
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    for column in _columns([min(cost, 1) + np.log10(max(cost, 1)) for cost in costs], 0.5):
        right = max(costs[n] for n in column)
        right = 1.3 * right if right >= 1 else right + 0.12
        heights = _spread([qualities[n] for n in column], low, high, 18)
        # Labels pushed out at the top or the bottom move back together.
        over = max(0.0, max(heights) - high) + min(0.0, min(heights) - low)
        for n, height in zip(column, heights, strict=True):
            axes.plot(
                [costs[n], right], [qualities[n], height - over], color=PLAIN, linewidth=0.7, zorder=2
            )  # fmt: skip
            axes.annotate(
                names[n], (right, height - over), (1, 0), textcoords="offset points", fontsize=8, va="center",
                color=INK, annotation_clip=False, zorder=4,
                bbox={"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none"},
            )  # fmt: skip
    ticks = [0, *(10**power for power in range(int(np.log10(axes.get_xlim()[1])) + 1))]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(color="#ECECEC")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    if title:
        axes.set_title(title, fontsize=11)
    return fig


def not_beaten(names: Sequence[str], costs: Sequence[float], qualities: Sequence[float]) -> list[str]:
    """The names that no other one beats: none is better at the same cost or less. In order of cost; of equals
    the first given."""
    best = -np.inf
    kept: list[str] = []
    for n in sorted(range(len(names)), key=lambda n: (costs[n], -qualities[n], n)):
        if qualities[n] > best:
            best = qualities[n]
            kept.append(names[n])
    return kept


def _columns(places: Sequence[float], apart: float) -> list[list[int]]:
    """The numbers of `places` (on a line) in groups: a group ends where the next is `apart` from its
    first."""
    groups: list[list[int]] = []
    for n in sorted(range(len(places)), key=lambda n: places[n]):
        if groups and places[n] - places[groups[-1][0]] < apart:
            groups[-1].append(n)
        else:
            groups.append([n])
    return groups


def side_by_side(
    rankings: Mapping[str, Sequence[Picture]],
    targets: Mapping[str, Sequence[bool]],
    references: Mapping[str, Sequence[bool]],
    per_row: int = 2,
) -> Figure:
    """The first pictures of several rankings, best first, `per_row` rankings in a row, each under its name;
    true targets and the reference image are framed.

    `targets` and `references` say for each picture of each ranking whether it is one. One axes a picture.
    Raises `InputError` for no ranking, or lists of different lengths.
    """
    lengths = {len(row) for group in (rankings, targets, references) for row in group.values()}
    if not rankings or len(lengths) != 1 or 0 in lengths:
        raise InputError("side by side: expected one or more rankings, with as many pictures and marks each")
    count, lines = lengths.pop(), -(-len(rankings) // per_row)
    fig = _figure(7.8, lines * (6.8 / (per_row * count) + 0.4))
    # Narrow columns between the blocks keep two rankings apart.
    blocks = fig.add_gridspec(lines, 2 * per_row - 1, width_ratios=[count, *[0.25, count] * (per_row - 1)])
    for number, (name, pictures) in enumerate(rankings.items()):
        inner = blocks[number // per_row, 2 * (number % per_row)].subgridspec(1, count)
        for i, picture in enumerate(pictures):
            place = fig.add_subplot(inner[0, i])
            role = "target" if targets[name][i] else "reference" if references[name][i] else ""
            _show(place, picture, role)
            if i == 0:
                place.set_title(name, fontsize=9, loc="left", fontweight="bold", pad=6)
    return fig


def calibration(
    probabilities: Sequence[float], truths: Sequence[bool], bins: int = 5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean predicted probability, share of true statements, and count in each of `bins` equal bins of [0, 1].

    Three arrays `(bins,)`; the first two are NaN in an empty bin. A probability of 1 belongs to the last bin.
    Raises `InputError` for lengths that differ or values outside [0, 1].
    """
    p, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(truths, dtype=np.float64)
    if p.shape != truth.shape or p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise InputError(
            "calibration: expected one truth for each probability, and probabilities from 0 to 1"
        )
    place = np.minimum((p * bins).astype(int), bins - 1)
    counts = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(place, p, bins) / counts
        actual = np.bincount(place, truth, bins) / counts
    return predicted, actual, counts


def answers_and_truths(
    answers: Sequence[Sequence[Mapping[str, Sequence[float]]]], expected: Sequence[Sequence[bool]]
) -> dict[str, list[tuple[float, bool]]]:
    """Verification answers laid flat: for each side ("text", "vision") the pairs (probability of "true",
    expected answer).

    `answers` are `xr.Checked.answers`: by query, by candidate, by side, one probability a statement.
    `expected` has the statements' answers by query.
    """
    flat: dict[str, list[tuple[float, bool]]] = {}
    for candidates, wanted in zip(answers, expected, strict=True):
        for sides in candidates:
            for side, said in sides.items():
                flat.setdefault(side, []).extend(zip(said, wanted, strict=True))
    return flat


def calibration_chart(
    said: Mapping[str, tuple[Sequence[float], Sequence[bool]]], bins: int = 5, title: str = ""
) -> Figure:
    """Predicted probability against the share that was true, and how many predictions fell in each bin.

    `said` maps a name to probabilities and truths. On the diagonal a probability means what it says; a point
    that rests on fewer than `FEW` statements is hollow. Two axes: the curve, and the counts below it. Raises
    as `calibration`.
    """
    fig = _figure(5.6, 4.6)
    upper, lower = fig.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    upper.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=":")
    width = 0.8 / bins / len(said)
    for i, (name, (p, truth)) in enumerate(said.items()):
        predicted, actual, counts = calibration(p, truth, bins)
        colour = SERIES[i % len(SERIES)]
        there = counts > 0
        upper.plot(
            predicted[there], actual[there], color=colour, marker=MARKERS[i], linestyle=LINES[i], linewidth=2,
            markersize=7, label=name,
        )  # fmt: skip
        few = there & (counts < FEW)
        upper.plot(
            predicted[few], actual[few], color=colour, marker=MARKERS[i], linestyle="none", markersize=7,
            markerfacecolor="white",
        )  # fmt: skip
        middle = (np.arange(bins) + 0.5) / bins + (i - (len(said) - 1) / 2) * width
        lower.bar(middle, counts, width, color=colour, hatch=HATCHES[i], edgecolor="white")
    upper.set(ylabel=f"share that was true; hollow: under {FEW}", xlim=(-0.02, 1.02), ylim=(-0.04, 1.04))
    upper.legend(fontsize=9, frameon=False)
    lower.set(xlabel='probability of "true" that the verifier gave', ylabel="statements")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    if title:
        upper.set_title(title, fontsize=11)
    return fig


def verification_table(
    pictures: Sequence[Picture],
    statements: Sequence[str],
    expected: Sequence[bool],
    said: Mapping[str, Sequence[Sequence[bool]]],
    targets: Sequence[bool],
    labels: Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """Candidates' pictures down the side, statements across, and in each cell what was answered.

    `said` maps a side ("caption", "picture") to its answers, one row a candidate, one value a statement. An
    answer as expected has a blue ground and a tick, another an orange ground and a cross; `T` and `F` are the
    answers themselves. `labels` are written under the pictures. Axes: one a picture, then the table. Raises
    `InputError` when lengths differ.
    """
    rows, columns = len(pictures), len(statements)
    if not rows or not columns or len(expected) != columns or len(targets) != rows:
        raise InputError(
            "verification table: expected an answer a statement and a mark a picture, one or more"
        )
    for side, answers in said.items():
        if len(answers) != rows or any(len(row) != columns for row in answers):
            raise InputError(f"{side}: expected answers for {rows} pictures and {columns} statements")
    fig = _figure(1.5 + 1.15 * columns, 0.75 + 1.12 * rows + (0.3 if title else 0))
    grid = fig.add_gridspec(
        rows + 1, 2, width_ratios=(1, 1.15 * columns), height_ratios=(0.62, *[1.0] * rows)
    )
    for row, picture in enumerate(pictures):
        place = fig.add_subplot(grid[row + 1, 0])
        _show(place, picture, "target" if targets[row] else "")
        if labels is not None:
            place.set_xlabel(labels[row], fontsize=8, labelpad=2)
    table = fig.add_subplot(grid[:, 1])
    table.set(xlim=(0, columns), ylim=(rows, -0.62))
    table.axis("off")
    for column, (statement, answer) in enumerate(zip(statements, expected, strict=True)):
        table.text(
            column + 0.5, -0.08, f"{textwrap.fill(statement, 17)}\nexpected: {_letter(answer)}",
            ha="center", va="bottom", fontsize=8, color=INK,
        )  # fmt: skip
    height = 0.8 / len(said)
    for line, (side, answers) in enumerate(said.items()):
        for row in range(rows):
            for column in range(columns):
                answer = bool(answers[row][column])
                right = answer == bool(expected[column])
                low = row + 0.1 + line * height
                table.fill_between(
                    [column + 0.04, column + 0.96], low, low + 0.92 * height, linewidth=0,
                    color=RIGHT if right else WRONG,
                )  # fmt: skip
                table.text(
                    column + 0.5, low + 0.46 * height, f"{side}: {_letter(answer)} {'✓' if right else '✗'}",
                    ha="center", va="center", fontsize=9, color=TARGET if right else REFERENCE,
                    fontweight="normal" if right else "bold",
                )  # fmt: skip
    if title:
        fig.suptitle(title, fontsize=11)
    return fig


def _letter(answer: bool) -> str:
    return "T" if answer else "F"
