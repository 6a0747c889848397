"""The figures of the notebooks: queries, ranked strips, score breakdowns, heatmaps, slopes, the triangle of
weights.

Every function returns a `matplotlib.figure.Figure` of fixed size and resolution; `figure_alt` shows it with
its text for people who do not see it. One code throughout, readable in grey and by colour-blind people
because each colour comes with a sign: a **true target** has a thick blue frame and a tick, the **reference
image** a dashed orange frame and the letter R.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image
from scipy.optimize import isotonic_regression

from cir_utils.errors import InputError
from cir_utils.images import load_image

DPI = 100
COLOURS = 96
THUMBNAIL = 160
TARGET, REFERENCE, PLAIN, INK = "#0072B2", "#D55E00", "#9A9A9A", "#222222"
#: Okabe and Ito's colours in an order that also differs in lightness, with a hatch and a marker each.
SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#777777")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "--")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MAP = "cividis"

Picture = Path | str | Image.Image


def figure_png(fig: Figure) -> bytes:
    """The figure as PNG of at most `COLOURS` colours: the same bytes for the same figure, and a quarter
    of the size.
    """
    raw, small = io.BytesIO(), io.BytesIO()
    for text in fig.findobj(Text):
        text.set_parse_math(False)  # "$5 or $6" out of a query is no formula
    fig.savefig(raw, format="png", dpi=DPI)
    with Image.open(raw) as image:
        image.convert("RGB").quantize(COLOURS, kmeans=2, dither=Image.Dither.NONE).save(
            small, format="PNG", optimize=True
        )
    return small.getvalue()


def figure_alt(fig: Figure, text: str) -> None:
    """Show a figure in a notebook together with its alternative text.

    `text` says what a person who does not see the picture should know; it is the image's `alt` metadata and
    the plain-text form of the output. Raises `InputError` when it is empty.
    """
    from IPython.display import display

    alt = " ".join(text.split())
    if not alt:
        raise InputError("alternative text: expected a sentence that says what the figure shows")
    display({"image/png": figure_png(fig), "text/plain": alt}, metadata={"image/png": {"alt": alt}}, raw=True)


def _figure(width: float, height: float) -> Figure:
    fig = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    fig.get_layout_engine().set(w_pad=0.04, h_pad=0.04)  # type: ignore[union-attr, call-arg]
    return fig


def _thumbnail(picture: Picture) -> np.ndarray:
    """The picture as RGB values, at most `THUMBNAIL` pixels a side."""
    image = picture.convert("RGB") if isinstance(picture, Image.Image) else load_image(picture)
    image = image.copy()
    image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return np.asarray(image)


def _show(axes: Axes, picture: Picture, role: str = "") -> None:
    """Draw a picture with the frame and sign of its role: "target", "reference" or none."""
    axes.imshow(_thumbnail(picture), interpolation="antialiased")
    axes.set_xticks([])
    axes.set_yticks([])
    colour, width, style, sign = {
        "target": (TARGET, 4.0, "-", "✓"),
        "reference": (REFERENCE, 3.0, (0, (3, 1.5)), "R"),
    }.get(role, (PLAIN, 0.8, "-", ""))
    for spine in axes.spines.values():
        spine.set(edgecolor=colour, linewidth=width, linestyle=style)
    if sign:
        axes.text(
            0.03, 0.97, sign, transform=axes.transAxes, ha="left", va="top", color="white", fontsize=10,
            fontweight="bold",
            bbox={"boxstyle": "round,pad=0.2", "facecolor": colour, "edgecolor": "white", "linewidth": 1.2},
        )  # fmt: skip


def _text(axes: Axes, text: str) -> None:
    """Wrapped text in the middle of empty axes, smaller where it is long."""
    axes.axis("off")
    wide, size = (20, 11) if len(text) <= 120 else (30, 7)
    wrapped = textwrap.fill(text, wide)
    axes.text(
        0.5, 0.5, wrapped, transform=axes.transAxes, ha="center", va="center", fontsize=size, color=INK,
        fontstyle="italic",
    )  # fmt: skip


# --- pictures ---------------------------------------------------------------------------------------------


def show_query(reference: Picture, text: str, targets: Sequence[Picture] = (), title: str = "") -> Figure:
    """A query: the reference image, the modification text, and its true targets where `targets` are given.

    Axes: one for the reference, one for the text, one a target.
    """
    fig = _figure(1.45 * (1 + len(targets)) + 1.9, 2.05 if title else 1.75)
    ratios = {"width_ratios": [1.45, 1.9] + [1.45] * len(targets)}
    axes = fig.subplots(1, 2 + len(targets), squeeze=False, gridspec_kw=ratios)[0]
    _show(axes[0], reference, "reference")
    axes[0].set_xlabel("reference image", fontsize=9)
    _text(axes[1], f"“{text}”" + (" →" if targets else ""))
    for place, target in zip(axes[2:], targets, strict=True):
        _show(place, target, "target")
        place.set_xlabel("true target", fontsize=9)
    if title:
        fig.suptitle(title, fontsize=11)
    return fig


def ranked_strip(
    pictures: Sequence[Picture],
    targets: Sequence[bool],
    scores: Sequence[float] | None = None,
    *,
    references: Sequence[bool] | None = None,
    title: str = "",
    first_rank: int = 1,
    per_row: int = 10,
) -> Figure:
    """Ranked pictures from left to right, best first, with rank and score; true targets and the reference
    image are framed.

    `targets` and `references` say for each picture whether it is one. One axes a picture (and blank ones to
    fill the last row). Raises `InputError` for no picture or lists of different lengths.
    """
    count = len(pictures)
    for name, values in (("targets", targets), ("scores", scores), ("references", references)):
        if values is not None and len(values) != count:
            raise InputError(f"{name}: {len(values)} values for {count} pictures; give one a picture")
    if count == 0:
        raise InputError("ranked strip: expected at least one picture")
    columns = min(per_row, count)
    rows = -(-count // columns)
    fig = _figure(max(1.15 * columns, 3), 1.34 * rows + (0.28 if title else 0))
    axes = fig.subplots(rows, columns, squeeze=False).ravel()
    for i, place in enumerate(axes):
        if i >= count:
            place.axis("off")
            continue
        role = "target" if targets[i] else "reference" if references is not None and references[i] else ""
        _show(place, pictures[i], role)
        score = "" if scores is None else f"  {scores[i]:.3f}"
        weight = "bold" if role == "target" else "normal"
        place.set_xlabel(f"{first_rank + i}{score}", fontsize=8, labelpad=3, fontweight=weight)
    if title:
        fig.suptitle(title, fontsize=11)
    return fig


# --- numbers ----------------------------------------------------------------------------------------------


def score_breakdown(
    names: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    targets: Sequence[bool] | None = None,
    title: str = "",
    xlabel: str = "score",
) -> Figure:
    """What each candidate's score is made of: one stacked bar a candidate, a diamond at the sum.

    `parts` maps the name of a term (such as "(1+β)·S_q") to its values, one a candidate; negative values are
    stacked to the left of zero. Candidates run from top (best) to bottom; those marked in `targets` get a
    tick. One axes. Raises `InputError` when lengths differ.
    """
    count = len(names)
    marked = targets if targets is not None else [False] * count
    for name, given in (*parts.items(), ("targets", marked)):
        if len(given) != count:
            raise InputError(f"{name}: {len(given)} values for {count} candidates; give one a candidate")
    if not count or not parts:
        raise InputError("score breakdown: expected at least one candidate and one part")
    fig = _figure(7, 0.32 * count + 1.2)
    axes = fig.subplots()
    rows = np.arange(count)
    ends = {1: np.zeros(count), -1: np.zeros(count)}
    for i, (name, given) in enumerate(parts.items()):
        values = np.asarray(given, dtype=np.float64)
        left = np.where(values >= 0, ends[1], ends[-1])
        axes.barh(
            rows, values, left=left, height=0.7, label=name, color=SERIES[i % len(SERIES)],
            hatch=HATCHES[i % len(HATCHES)], edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        ends[1] += np.maximum(values, 0)
        ends[-1] += np.minimum(values, 0)
    axes.plot(
        ends[1] + ends[-1],
        rows,
        "D",
        color="black",
        markeredgecolor="white",
        markersize=7,
        label="sum",
        linestyle="",
    )
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(
        rows, [f"✓ {name}" if mark else name for name, mark in zip(names, marked, strict=True)], fontsize=9
    )
    for label, mark in zip(axes.get_yticklabels(), marked, strict=True):
        label.set(color=TARGET if mark else INK, fontweight="bold" if mark else "normal")
    axes.invert_yaxis()
    axes.set_xlabel(xlabel)
    axes.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside right upper", fontsize=8, frameon=False)
    if title:
        axes.set_title(title, fontsize=11)
    return fig


def heatmap(
    values: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    xlabel: str = "",
    ylabel: str = "",
    title: str = "",
    fmt: str = ".2f",
    outline_best: bool = False,
    marked: Any = None,
) -> Figure:
    """A table of numbers as colours (cividis, which also reads in grey), every number written into its cell.

    `values` is `(len(rows), len(columns))`; cells that are NaN stay blank. `outline_best` frames the highest
    cell; `marked`, bool of the same shape, puts a dashed frame into every cell that is true. Two axes:
    the table and its colour bar. Raises `InputError` when the shape does not fit the names.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.shape != (len(rows), len(columns)) or not np.isfinite(table).any():
        raise InputError(
            f"heatmap: expected {len(rows)} x {len(columns)} values with a finite one among them, "
            f"got shape {table.shape}"
        )
    fig = _figure(max(3.5, 0.75 * len(columns) + 2), max(2, 0.42 * len(rows) + 1.2))
    axes = fig.subplots()
    image = axes.imshow(np.ma.masked_invalid(table), cmap=MAP, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, fontsize=9)
    axes.set_yticks(range(len(rows)), rows, fontsize=9)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    shades = image.to_rgba(np.ma.masked_invalid(table))
    for (row, column), value in np.ndenumerate(table):
        if np.isfinite(value):
            light = shades[row, column, :3] @ (0.299, 0.587, 0.114) > 0.5
            axes.text(
                column, row, format(value, fmt), ha="center", va="center", fontsize=8,
                color="black" if light else "white",
            )  # fmt: skip
    for row, column in np.argwhere(np.zeros(table.shape, bool) if marked is None else np.asarray(marked)):
        light = shades[row, column, :3] @ (0.299, 0.587, 0.114) > 0.5
        axes.add_patch(
            Rectangle(
                (column - 0.42, row - 0.42), 0.84, 0.84, fill=False, linestyle="--",
                edgecolor="black" if light else "white", linewidth=1,
            )
        )  # fmt: skip
    if outline_best:
        row, column = np.unravel_index(np.nanargmax(table), table.shape)
        axes.add_patch(
            Rectangle(
                (column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=REFERENCE, linewidth=3, clip_on=False
            )
        )
    fig.colorbar(image, ax=axes)
    if title:
        axes.set_title(title, fontsize=11)
    return fig


def slope_chart(
    series: Mapping[str, Sequence[float]],
    steps: Sequence[str],
    *,
    ylabel: str = "",
    title: str = "",
    lower_is_better: bool = False,
    fmt: str = ".1f",
) -> Figure:
    """How values change over steps: one line a series, named and numbered at its ends.

    Every series has one value a step. With `lower_is_better` (such as ranks) the axis points down. One axes.
    Raises `InputError` for fewer than two steps or lengths that differ.
    """
    if len(steps) < 2 or not series:
        raise InputError("slope chart: expected at least one series and two steps")
    for name, values in series.items():
        if len(values) != len(steps):
            raise InputError(f"{name}: {len(values)} values for {len(steps)} steps; give one a step")
    fig = _figure(max(5, 1.6 * len(steps) + 2.2), max(2.8, 0.32 * len(series) + 1.6))
    axes = fig.subplots()
    places = np.arange(len(steps))
    for i, (name, values) in enumerate(series.items()):
        axes.plot(
            places,
            values,
            color=SERIES[i % len(SERIES)],
            marker=MARKERS[i % len(MARKERS)],
            label=name,
            linewidth=2,
        )
    axes.set_xticks(places, steps, fontsize=9)
    axes.set(ylabel=ylabel)
    axes.margins(y=0.12)
    if lower_is_better:
        axes.invert_yaxis()
    if lower_is_better and min(map(min, series.values())) >= 1:  # ranks: there is no place 0
        last, first = sorted(axes.get_ylim(), reverse=True)
        axes.set_yticks([1, *(tick for tick in axes.get_yticks() if max(first, 1.5) < tick <= last)])
    axes.spines[["top", "right"]].set_visible(False)
    for end, align, offset in ((0, "right", -8), (len(steps) - 1, "left", 8)):
        heights = _spread([values[end] for values in series.values()], *axes.get_ylim(), len(series))
        for i, ((name, values), height) in enumerate(zip(series.items(), heights, strict=True)):
            said = format(values[end], fmt)
            axes.annotate(
                f"{said}  {name}" if end else said, (places[end], height), (offset, 0), ha=align, va="center",
                textcoords="offset points", fontsize=9, fontweight="bold", annotation_clip=False,
                color=_dark(SERIES[i % len(SERIES)]),
            )  # fmt: skip
    axes.set_xlim(-0.45, len(steps) - 1 + 0.15)
    if title:
        axes.set_title(title, fontsize=11)
    return fig


def _dark(colour: str) -> tuple[float, ...]:
    """The colour, dark enough to read as text on white."""
    return tuple(0.65 * value for value in to_rgb(colour))


def _spread(values: Sequence[float], low: float, high: float, count: int) -> list[float]:
    """Heights for labels at `values`, moved apart as little as possible so that they do not overlap."""
    gap = abs(high - low) / max(14, 1.4 * count)
    order = np.argsort(values, kind="stable")
    steps = gap * np.arange(len(order))
    heights = np.empty(len(order))
    # Heights a gap apart are, less the gaps below them, in rising order: the nearest such is a regression.
    heights[order] = isotonic_regression(np.asarray(values, dtype=np.float64)[order] - steps).x + steps
    return heights.tolist()


#: The corners of the triangle of weights (F_d, F_r, F_m) on paper, and their names.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
CORNER_NAMES = ("description only\n(F_d)", "image only\n(F_r)", "text only\n(F_m)")


def triangle_grid(steps: int) -> np.ndarray:
    """Weights of (F_d, F_r, F_m) at even distances over the whole triangle, corners included:
    `((steps + 1)(steps + 2) / 2, 3)` float64, rows sum to 1."""
    places = [(d, r, steps - d - r) for d in range(steps + 1) for r in range(steps + 1 - d)]
    return np.array(places, dtype=np.float64) / steps


def weight_triangle(
    weights: Any,
    labels: Sequence[str] | None = None,
    title: str = "",
    *,
    heat: tuple[Any, Any] | None = None,
    methods: Mapping[str, Sequence[float]] | None = None,
    heat_label: str = "",
) -> Figure:
    """Queries as weighted means of (F_d, F_r, F_m): a cloud in the triangle of description, reference image
    and modification text.

    `weights` `(Q, 3)` as `scoring.triangle_weights` gives them (rows sum to 1; points outside the triangle
    have a negative weight and are drawn as crosses). `labels` `(Q,)` name points; without labels the median
    is drawn as a star. `heat` is a pair of weights `(P, 3)` (such as `triangle_grid`) and values `(P,)`, the
    ground of the triangle, with the best of them ringed and a colour bar called `heat_label`; `methods` are
    further named points. One axes, with `heat` a second for the bar.
    """
    given = np.asarray(weights, dtype=np.float64)
    if given.ndim != 2 or given.shape[1] != 3 or not len(given):
        raise InputError(f"weights: expected (Q, 3) with at least one query, got shape {given.shape}")
    points = given @ CORNERS
    fig = _figure(7.2 if heat is not None else 5.4, 5.4 if heat is not None else 4.6)
    axes = fig.subplots()
    if heat is None:
        axes.fill(*CORNERS.T, facecolor="#F4F4F4", edgecolor=INK, linewidth=1.2)
    else:
        _draw_heat(fig, axes, *heat, heat_label)
    below: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 9, "color": INK}
    for corner, name in zip(CORNERS, CORNER_NAMES, strict=True):
        up = corner[1] > 0
        look = below | {"va": "bottom"} if up else below
        axes.text(corner[0], corner[1] + (0.05 if up else -0.05), name, **look)
    inside = (given >= 0).all(axis=1)
    dot: dict[str, Any] = (
        {"markeredgecolor": "white", "markeredgewidth": 0.4} if heat is not None else {"alpha": 0.5}
    )
    axes.plot(*points[inside].T, "o", color=SERIES[0], markersize=5, linestyle="", label="query", **dot)
    if not inside.all():
        axes.plot(
            *points[~inside].T,
            "x",
            color=REFERENCE,
            markersize=6,
            linestyle="",
            label="query outside the triangle",
        )
    for i, (name, place) in enumerate((methods or {}).items()):
        axes.plot(
            *(np.asarray(place, dtype=np.float64) @ CORNERS), MARKERS[1 + i % (len(MARKERS) - 1)],
            color="white", markeredgecolor="black", markeredgewidth=1.5, markersize=10, linestyle="",
            label=name, clip_on=False,
        )  # fmt: skip
    if labels is None:
        median = np.median(given, axis=0)
        axes.plot(
            *(median / median.sum() @ CORNERS),
            "*",
            color="black",
            markeredgecolor="white",
            markersize=15 if heat is None else 11,
            linestyle="",
            label="median",
        )
    else:
        for point, label in zip(points, labels, strict=True):
            axes.annotate(label, point, (6, 4), textcoords="offset points", fontsize=9)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.margins(0.12)
    if heat is None:
        axes.legend(loc="upper left", fontsize=8, frameon=False)
    else:
        fig.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    if title:
        axes.set_title(title, fontsize=11, pad=24)
    return fig


def _draw_heat(fig: Figure, axes: Axes, weights: Any, values: Any, label: str) -> None:
    """The ground of the triangle: values over weights, their best ringed."""
    ground, heights = np.asarray(weights, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if ground.ndim != 2 or ground.shape[1] != 3 or heights.shape != ground.shape[:1] or len(ground) < 3:
        raise InputError(
            f"heat: expected weights (P, 3) and P values, three or more, got {ground.shape} and "
            f"{heights.shape}"
        )
    places = ground @ CORNERS
    image = axes.tripcolor(places[:, 0], places[:, 1], heights, cmap=MAP, shading="gouraud")
    axes.fill(*CORNERS.T, facecolor="none", edgecolor=INK, linewidth=1.2)
    axes.plot(
        *places[heights.argmax()], "o", markerfacecolor="none", markeredgecolor=REFERENCE, markersize=15,
        markeredgewidth=2.5, linestyle="", label=f"best of the map, {heights.max():.1f}", clip_on=False,
    )  # fmt: skip
    fig.colorbar(image, ax=axes, label=label, shrink=0.8)
