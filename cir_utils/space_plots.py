"""Figures of the embedding space for the notebooks: grids of pictures, texts against pictures, spreads of
cosines, and maps.

They follow the rules of `cir_utils.plots` (fixed size, Okabe and Ito's colours, a sign beside every colour)
and are shown with `plots.figure_alt` like all figures."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cir_utils.errors import InputError
from cir_utils.plots import INK, MAP, MARKERS, PLAIN, SERIES, TARGET, Picture, _figure, _show, _thumbnail


def picture_grid(
    pictures: Sequence[Picture],
    labels: Sequence[str] | None = None,
    *,
    roles: Sequence[str] | None = None,
    title: str = "",
    per_row: int = 10,
    label_width: int = 16,
) -> Figure:
    """Pictures in rows, with a label under each (wrapped after about `label_width` letters) and the frames of
    `plots` for the roles "target" and "reference".

    One axes a picture, and blank ones to fill the last row. Raises `InputError` for no picture or lists of
    different lengths.
    """
    count = len(pictures)
    for name, values in (("labels", labels), ("roles", roles)):
        if values is not None and len(values) != count:
            raise InputError(f"{name}: {len(values)} values for {count} pictures; give one a picture")
    if count == 0:
        raise InputError("picture grid: expected at least one picture")
    wrapped = [textwrap.fill(label, label_width) for label in labels or [""] * count]
    deep = max(text.count("\n") + 1 if text else 0 for text in wrapped)
    columns = min(per_row, count)
    rows = -(-count // columns)
    fig = _figure(max(1.15 * columns, 3), (1.16 + 0.15 * deep) * rows + (0.28 if title else 0))
    axes = fig.subplots(rows, columns, squeeze=False).ravel()
    for i, place in enumerate(axes):
        if i >= count:
            place.axis("off")
            continue
        _show(place, pictures[i], roles[i] if roles is not None else "")
        place.set_xlabel(wrapped[i], fontsize=8, labelpad=3)
    if title:
        fig.suptitle(title, fontsize=11)
    return fig


def similarity_matrix(
    values: Any,
    rows: Sequence[str],
    pictures: Sequence[Picture],
    *,
    title: str = "",
    row_pictures: Sequence[Picture] | None = None,
    best: bool = True,
) -> Figure:
    """Cosines of texts (or of `row_pictures`) with pictures: a matrix with the pictures above its columns.

    `values` is `(len(rows), len(pictures))`; `rows` are the texts ("" where `row_pictures` stand in their
    place). With `best`, the highest value of every row is framed. Raises `InputError` when the shape does not
    fit.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.shape != (len(rows), len(pictures)) or not table.size:
        raise InputError(
            f"similarity matrix: expected {len(rows)} x {len(pictures)} values, got shape {table.shape}"
        )
    if row_pictures is not None and len(row_pictures) != len(rows):
        raise InputError(f"row_pictures: {len(row_pictures)} for {len(rows)} rows; give one a row")
    left = 0.9 if row_pictures is not None else 2.7
    cell = 0.8
    fig = _figure(left + cell * len(pictures), 0.95 + cell * 0.75 * len(rows) + (0.3 if title else 0))
    axes = fig.subplots(
        len(rows) + 1,
        len(pictures) + 1,
        gridspec_kw={
            "width_ratios": [left] + [cell] * len(pictures),
            "height_ratios": [cell] + [0.75 * cell] * len(rows),
        },
        squeeze=False,
    )
    low, high = table.min(), max(table.max(), table.min() + 1e-9)
    colours = _colours((table - low) / (high - low))
    axes[0, 0].axis("off")
    for column, picture in enumerate(pictures):
        _show(axes[0, column + 1], picture)
    for row, text in enumerate(rows):
        axes[row + 1, 0].axis("off")
        if row_pictures is not None:
            axes[row + 1, 0].imshow(_thumbnail(row_pictures[row]), interpolation="antialiased")
        else:
            axes[row + 1, 0].text(
                1.0, 0.5, textwrap.fill(text, 32), transform=axes[row + 1, 0].transAxes, ha="right",
                va="center", fontsize=8.5, color=INK,
            )  # fmt: skip
        for column in range(len(pictures)):
            place, colour = axes[row + 1, column + 1], colours[row, column]
            place.set_facecolor(colour)
            place.set_xticks([])
            place.set_yticks([])
            top = best and table[row, column] == table[row].max()
            for spine in place.spines.values():
                spine.set(edgecolor=INK if top else "white", linewidth=2.5 if top else 1)
            light = colour[:3] @ (0.299, 0.587, 0.114) > 0.5
            place.text(
                0.5, 0.5, f"{round(table[row, column], 2) + 0.0:.2f}", transform=place.transAxes, ha="center",
                va="center", fontsize=9, color="black" if light else "white",
                fontweight="bold" if top else "normal",
            )  # fmt: skip
    if title:
        fig.suptitle(title, fontsize=11)
    return fig


def cosine_spread(
    samples: Mapping[str, Sequence[float]], *, xlabel: str = "cosine", title: str = ""
) -> Figure:
    """How samples of cosines spread: one row each with its quartiles as a box, 5 % and 95 % as whiskers, and
    the median written beside it. Raises `InputError` for an empty sample."""
    for name, values in samples.items():
        if not len(values):
            raise InputError(f"{name}: there is no value to show")
    if not samples:
        raise InputError("cosine spread: expected at least one sample")
    fig = _figure(7, 0.5 * len(samples) + 1.0)
    axes = fig.subplots()
    for row, (_, values) in enumerate(samples.items()):
        ends = np.percentile(np.asarray(values, dtype=np.float64), [5, 25, 50, 75, 95])
        colour = SERIES[row % len(SERIES)]
        axes.plot(ends[[0, 4]], [row, row], color=colour, linewidth=2)
        axes.barh(row, ends[3] - ends[1], left=ends[1], height=0.5, color=colour, alpha=0.55, edgecolor=INK)
        axes.plot([ends[2]] * 2, [row - 0.25, row + 0.25], color=INK, linewidth=2.5)
        axes.annotate(
            f"{ends[2]:.2f}", (ends[2], row - 0.25), (0, 2), textcoords="offset points", ha="center",
            fontsize=8,
        )  # fmt: skip
    axes.set_yticks(range(len(samples)), list(samples), fontsize=9)
    axes.set_ylim(len(samples) - 0.5, -0.7)
    axes.set_xlabel(xlabel)
    axes.grid(axis="x", color="#E5E5E5")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if title:
        axes.set_title(title, fontsize=11)
    return fig


def feature_map(
    gallery: Any,
    targets: Sequence[bool],
    points: Mapping[str, tuple[float, float]],
    *,
    xlabel: str = "",
    ylabel: str = "",
    lines: Mapping[str, tuple[float, float, float]] | None = None,
    title: str = "",
) -> Figure:
    """A map of features: the gallery as small dots, true targets as crosses in a ring, named `points` as
    larger marks.

    `gallery` `(N, 2)` and every point are coordinates that the caller has chosen, such as two cosines. Of
    `lines`, `(a, b, c)` is the line `a x + b y = c`. One axes. Raises `InputError` when the shapes do not
    fit.
    """
    dots = np.asarray(gallery, dtype=np.float64)
    marked = np.asarray(targets, dtype=bool)
    if dots.ndim != 2 or dots.shape[1] != 2 or marked.shape != dots.shape[:1]:
        raise InputError(
            f"feature map: expected coordinates (N, 2) and N marks, got {dots.shape} and {marked.shape}"
        )
    fig = _figure(6.4, 4.6)
    axes = fig.subplots()
    axes.margins(0.08)
    axes.plot(*dots[~marked].T, ".", color=PLAIN, markersize=3, linestyle="", label="gallery picture")
    axes.plot(
        *dots[marked].T, "o", color="white", markeredgecolor=TARGET, markeredgewidth=2, markersize=10,
        linestyle="", label="true target",
    )  # fmt: skip
    axes.plot(*dots[marked].T, "x", color=TARGET, markersize=5, linestyle="")
    for i, (name, place) in enumerate(points.items()):
        axes.plot(
            *place, MARKERS[i % len(MARKERS)], color=SERIES[1 + i % (len(SERIES) - 1)], markersize=11,
            markeredgecolor=INK, linestyle="", label=name,
        )  # fmt: skip
        axes.annotate(
            name.split(" ")[0], place, (-9, -14), textcoords="offset points", fontsize=10, fontweight="bold",
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
        )  # fmt: skip
    limits = {"xlim": axes.get_xlim(), "ylim": axes.get_ylim()}  # lines may leave the picture
    for i, (name, (a, b, c)) in enumerate((lines or {}).items()):
        style = ("--", "-", ":", "-.")[i % 4]
        if abs(b) > 1e-12:
            axes.axline((0, c / b), slope=-a / b, color=INK, linestyle=style, linewidth=1.5, label=name)
        else:
            axes.axvline(c / a, color=INK, linestyle=style, linewidth=1.5, label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel, **limits)
    axes.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    if title:
        axes.set_title(title, fontsize=11)
    return fig


def plane_of_query(
    F_r: Sequence[float], F_d: Sequence[float], F_m: Sequence[float], alpha: float
) -> dict[str, tuple[float, float]]:
    """A query's vectors in the plane that `F_d` and `F_r` span, where the Anchor step happens.

    `F_d` is (1, 0) and `F_r` has its angle to it, anticlockwise. "mix" is `(1-alpha) F_d + alpha F_r`, "F_q"
    the same at unit length: both lie in the plane. `F_m` does not; its coordinates are its shadow, so it is
    shorter than 1. The vectors are `(D,)` of unit length. Raises `InputError` when `F_d` and `F_r` point the
    same or the opposite way, for they span no plane.
    """
    d, r, m = (np.asarray(F, dtype=np.float64) for F in (F_d, F_r, F_m))
    cosine = float(d @ r)
    aside = r - cosine * d
    sine = float(np.linalg.norm(aside))
    if sine < 1e-6:
        raise InputError("plane of a query: F_d and F_r lie on one line; choose another query")
    e = aside / sine
    mix = ((1 - alpha) + alpha * cosine, alpha * sine)
    length = float(np.hypot(*mix))
    return {
        "F_d": (1.0, 0.0),
        "F_r": (cosine, sine),
        "F_m": (float(m @ d), float(m @ e)),
        "mix": mix,
        "F_q": (mix[0] / length, mix[1] / length),
    }


def query_plane(
    F_r: Sequence[float], F_d: Sequence[float], F_m: Sequence[float], alpha: float, title: str = ""
) -> Figure:
    """The geometry of one query, as `plane_of_query` gives it: arrows for F_d, F_r, F_q and the shadow of
    F_m, the line from F_d to F_r on which α moves, and the circle of unit length.

    One axes. Raises as `plane_of_query`.
    """
    at = plane_of_query(F_r, F_d, F_m, alpha)
    fig = _figure(7.2, 4)
    axes = fig.subplots()
    turn = np.linspace(-0.15, max(np.pi / 2, np.arctan2(at["F_r"][1], at["F_r"][0])) + 0.1, 200)
    axes.plot(np.cos(turn), np.sin(turn), color=PLAIN, linewidth=1, linestyle=":", label="length 1")
    axes.plot(
        *zip(at["F_d"], at["F_r"], strict=True), color=INK, linewidth=1.2, linestyle="--",
        label="(1-α) F_d + α F_r, α from 0 to 1",
    )  # fmt: skip
    names = {
        "F_d": "F_d description", "F_r": "F_r reference image", "F_q": f"F_q anchored, α = {alpha:g}",
        "F_m": "F_m text (its shadow)",
    }  # fmt: skip
    for i, (key, name) in enumerate(names.items()):
        colour = SERIES[(0, 5, 2, 3)[i]]
        axes.annotate(
            "", at[key], (0, 0),
            arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 2.5 if key != "F_m" else 1.5,
                        "linestyle": "-" if key != "F_m" else (0, (4, 2)), "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
        axes.plot(
            *at[key], MARKERS[i], color=colour, markeredgecolor=INK, markersize=8, linestyle="", label=name
        )
        axes.annotate(
            key,
            at[key],
            (8, 6 if key != "F_m" else -16),
            textcoords="offset points",
            fontsize=10,
            fontweight="bold",
            color=INK,
        )
    axes.plot(
        *at["mix"], "k+", markersize=9, markeredgewidth=2, label="the mean, before its length is made 1"
    )
    axes.set_aspect("equal")
    axes.set(xlabel="along F_d", ylabel="across F_d, towards F_r")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(0.12)
    fig.legend(loc="outside right center", fontsize=8, frameon=False)
    if title:
        fig.suptitle(textwrap.fill(title, 80), fontsize=11)
    return fig


def _colours(shares: np.ndarray) -> np.ndarray:
    """Shares in [0, 1] as colours `(..., 4)` of the map that all figures use."""
    from matplotlib import colormaps

    return np.asarray(colormaps[MAP](shares))
