"""Drawings of the systems in boxes and arrows, from the table in :mod:`cir_utils.systems`.

A box's kind shows in its shape, line and shade together, so that a drawing reads in grey; the label says it
in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from cir_utils.errors import InputError
from cir_utils.plots import INK, REFERENCE, TARGET, _figure
from cir_utils.systems import System

#: kind -> (shape, face, edge, line style, line width, colour of the text, style of the text)
LOOKS = {
    "picture": ("square,pad=0.0", "#FBE3D6", REFERENCE, "-", 1.6, INK, "normal"),
    "text": ("square,pad=0.0", "white", INK, ":", 1.4, INK, "italic"),
    "mllm": ("round,pad=0.0,rounding_size=0.14", "#BFDDF0", TARGET, "-", 1.8, INK, "normal"),
    "clip": ("square,pad=0.0", "#EDEDED", "#666666", "-", 1.0, INK, "normal"),
    "training": ("square,pad=0.0", "white", "#007A5A", (0, (1, 1.5)), 1.4, INK, "italic"),
    "network": ("round,pad=0.0,rounding_size=0.14", "#D5EFE6", "#007A5A", "--", 1.6, INK, "normal"),
    "word": ("round,pad=0.0,rounding_size=0.22", "#FFF3D1", "#9A6A00", "-.", 1.6, INK, "normal"),
    "score": ("square,pad=0.0", "white", INK, "-", 1.0, INK, "normal"),
    "ranking": ("square,pad=0.0", "#333333", "#333333", "-", 1.0, "white", "normal"),
}  # fmt: skip
#: The kinds in words, for a legend.
MEANING = {
    "picture": "a picture",
    "text": "a text",
    "mllm": "asked of an MLLM",
    "clip": "CLIP, frozen",
    "training": "training, before",
    "network": "trained network",
    "word": "pseudo-word",
    "score": "arithmetic",
    "ranking": "the result",
}
WIDE, HIGH = 0.84, 0.56


def system_diagrams(systems: Sequence[System], per_row: int = 2) -> Figure:
    """The drawings of ``systems`` in a grid, ``per_row`` in a row, all on one scale.

    One axes a system, its title above. Raises :class:`InputError` for no system."""
    if not systems or per_row < 1:
        raise InputError("system diagrams: expected at least one system, and one or more in a row")
    columns = min(per_row, len(systems))
    rows = math.ceil(len(systems) / columns)
    across = 1 + max(box.column for system in systems for box in system.boxes.values())
    down = [
        1 + max(box.row for system in systems[start : start + columns] for box in system.boxes.values())
        for start in range(0, len(systems), columns)
    ]
    fig = _figure(9.4, 0.54 * sum(down) + 0.44 * rows)
    axes = fig.subplots(rows, columns, squeeze=False, gridspec_kw={"height_ratios": [d + 0.3 for d in down]})
    for number, place in enumerate(axes.ravel()):
        place.axis("off")
        if number < len(systems):
            _draw(place, systems[number], across, down[number // columns])
    return fig


def legend() -> Figure:
    """One box of every kind with what it stands for. One axes."""
    fig = _figure(9.4, 0.82)
    axes = fig.subplots()
    axes.axis("off")
    axes.set(xlim=(-0.5, len(MEANING) - 0.5), ylim=(0.45, -0.45))
    for column, (kind, meaning) in enumerate(MEANING.items()):
        _box(axes, kind, meaning.replace(", ", ",\n").replace("-", "-\n").replace(" ", "\n", 1), column, 0, 8)
    return fig


def _draw(axes: Axes, system: System, across: float, down: float) -> None:
    axes.set(xlim=(-0.5, across - 0.5), ylim=(down - 0.5, -0.5))
    axes.set_title(system.title, fontsize=10, loc="left", fontweight="bold", pad=3)
    size = 8.5 if across > 5 else 7.6
    drawn = {
        key: _box(axes, box.kind, box.label, box.column, box.row, size) for key, box in system.boxes.items()
    }
    for key, box in system.boxes.items():
        for before in box.after:
            other = system.boxes[before]
            axes.annotate(
                "", (box.column, box.row), (other.column, other.row),
                arrowprops={
                    "arrowstyle": "-|>", "color": INK, "linewidth": 1.1, "mutation_scale": 9,
                    "patchA": drawn[before], "patchB": drawn[key], "shrinkA": 0, "shrinkB": 0,
                },
            )  # fmt: skip


def _box(axes: Axes, kind: str, label: str, column: float, row: float, size: float) -> FancyBboxPatch:
    shape, face, edge, line, width, colour, style = LOOKS[kind]
    patch = FancyBboxPatch(
        (column - WIDE / 2, row - HIGH / 2), WIDE, HIGH, boxstyle=shape, facecolor=face, edgecolor=edge,
        linestyle=line, linewidth=width, zorder=2,
    )  # fmt: skip
    axes.add_patch(patch)
    axes.text(
        column, row, label, ha="center", va="center", fontsize=size, color=colour, fontstyle=style, zorder=3,
        linespacing=1.05,
    )  # fmt: skip
    return patch
