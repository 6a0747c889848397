"""Draws a `Scene` as a small picture-book illustration, with Pillow and numpy only.

How a picture comes about:

1. Everything is drawn as polygons onto one 8-bit *index* canvas, `SUPERSAMPLE` times larger than the picture:
   first the background, then the main objects (one sprite, pasted `count` times), then the prop. An index
   stands for a named part ("sea", "main", "pattern", "rim", ...), not for a colour.
2. A palette, made from the scene's colour, shade, background and style, turns the indices into RGB.
3. The picture is reduced to its final size, which anti-aliases it, and the style's finish (shading, hatching,
   paper grain, tiles) is laid over it.

The same (scene, seed, size) always gives the same bytes: every random choice comes from
`np.random.default_rng(seed)`.

    python -m data_scripts.draw --sheet sheet.png          # contact sheets to look at
    python -m data_scripts.draw --speed                    # milliseconds a picture
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from data_scripts.world import (
    BACKGROUNDS,
    CHOICES,
    COLOURS,
    COUNTS,
    FACINGS,
    HELD_OUT_COLOURS,
    KINDS,
    PATTERNS,
    PROPS,
    SHADES,
    STYLES,
    VARIANTS,
    Scene,
    random_scene,
)

SUPERSAMPLE = 3
RGB = tuple[int, int, int]
Shape = np.ndarray  # (n, 2) float: x to the right, y down; an object fills about -1..1 in both
Part = tuple[str, Shape]  # (name of the palette entry, outline)

# ---------------------------------------------------------------------------------------------------- colours

#: colour -> (light shade, dark shade)
OBJECT_COLOURS: dict[str, tuple[RGB, RGB]] = {
    "red": ((240, 66, 56), (160, 12, 28)),
    "orange": ((255, 158, 58), (232, 106, 0)),
    "yellow": ((255, 236, 104), (236, 196, 0)),
    "green": ((112, 200, 84), (18, 108, 48)),
    "blue": ((98, 172, 248), (24, 58, 176)),
    "purple": ((176, 122, 234), (92, 28, 142)),
    "pink": ((255, 162, 204), (236, 70, 152)),
    "brown": ((172, 120, 82), (110, 64, 36)),
    "white": ((255, 255, 254), (204, 205, 209)),
    "black": ((64, 68, 78), (12, 12, 16)),
}
#: The tone of stripes and spots, for the light and the dark shade.
PATTERN_COLOURS: dict[str, tuple[RGB, RGB]] = {
    "red": ((255, 232, 224), (255, 190, 180)),
    "orange": ((255, 243, 222), (255, 226, 186)),
    "yellow": ((222, 160, 0), (255, 250, 214)),
    "green": ((236, 252, 226), (170, 226, 160)),
    "blue": ((234, 246, 255), (164, 200, 255)),
    "purple": ((246, 236, 255), (214, 176, 250)),
    "pink": ((226, 76, 148), (255, 218, 234)),
    "brown": ((246, 226, 204), (214, 170, 134)),
    "white": ((154, 154, 160), (134, 135, 142)),
    "black": ((206, 208, 214), (160, 163, 172)),
}
#: Parts of the main objects whose colour never changes.
FIXED_COLOURS: dict[str, RGB] = {
    "eye": (255, 255, 250),
    "pupil": (26, 24, 30),
    "glass": (196, 226, 236),
    "tyre": (44, 42, 48),
    "metal": (150, 152, 160),
    "iron": (70, 70, 78),
    "wood": (116, 84, 62),
    "leaf": (92, 150, 76),
    "beak": (240, 150, 50),
    "nose": (222, 116, 124),
    "tongue": (226, 92, 100),
    "glow": (255, 240, 170),
    "coffee": (92, 58, 40),
}
OBJECT_PARTS = ("main", "deep", "lift", "pattern", "rim", "ink", "centre", *FIXED_COLOURS)
PAPER: RGB = (250, 246, 236)

#: Background -> named colours, a little muted so that the main objects stand out.
BACKGROUND_COLOURS: dict[str, dict[str, RGB]] = {
    "beach": {
        "sky": (196, 224, 232), "sun": (250, 222, 130), "sea": (92, 158, 182), "deep": (70, 134, 166),
        "foam": (236, 244, 242), "sand": (232, 210, 164), "wet": (208, 184, 140), "shell": (226, 150, 120),
    },
    "meadow": {
        "sky": (198, 226, 238), "cloud": (246, 249, 250), "far": (164, 202, 134), "near": (132, 182, 102),
        "grass": (104, 156, 82), "petal": (248, 246, 240), "poppy": (222, 120, 110), "heart": (238, 204, 96),
    },
    "autumn park": {
        "sky": (240, 226, 204), "crown": (216, 138, 62), "crown2": (196, 104, 58), "trunk": (122, 92, 72),
        "ground": (198, 164, 108), "path": (220, 196, 152), "leaf": (206, 98, 44), "leaf2": (176, 64, 44),
        "leaf3": (228, 176, 70),
    },
    "snowy park": {
        "sky": (184, 196, 214), "fir": (88, 122, 118), "snow": (236, 241, 247), "drift": (214, 223, 235),
        "bare": (110, 104, 108), "flake": (250, 252, 255),
    },
    "city": {
        "sky": (206, 204, 214), "tower": (140, 146, 166), "tower2": (168, 162, 172),
        "tower3": (122, 128, 150), "window": (246, 226, 150), "pavement": (186, 182, 178),
        "road": (104, 104, 114), "dash": (240, 236, 220),
    },
    "night sky": {
        "sky": (36, 42, 92), "glow": (56, 62, 118), "moon": (248, 238, 190), "star": (250, 244, 210),
        "hill": (26, 30, 66), "hill2": (20, 24, 52),
    },
    "desert": {
        "sky": (248, 214, 170), "sun": (252, 238, 206), "far": (222, 158, 112), "dune": (226, 180, 112),
        "near": (208, 156, 92), "cactus": (96, 138, 92), "spine": (70, 108, 72), "stone": (166, 122, 92),
    },
    "room": {
        "wall": (196, 208, 200), "paper": (184, 198, 190), "skirting": (240, 236, 226),
        "floor": (182, 140, 108),
        "board": (158, 118, 90), "frame": (128, 92, 66), "picture": (232, 222, 198), "motif": (150, 172, 176),
        "pane": (208, 228, 238), "curtain": (190, 120, 112), "rug": (150, 112, 128),
    },
}  # fmt: skip
#: Colours of the props.
PROP_COLOURS: dict[str, RGB] = {
    "halo": (255, 253, 244), "ink": (56, 46, 50), "white": (255, 255, 252), "red": (220, 48, 48),
    "blue": (44, 96, 196),
    "yellow": (252, 206, 60), "violet": (146, 84, 184), "violet2": (112, 58, 150), "black": (34, 32, 38),
    "grey": (96, 94, 104), "green": (70, 158, 84), "teal": (40, 160, 164), "teal2": (24, 120, 126),
    "orange": (242, 140, 44), "wax": (250, 236, 204), "flame": (255, 176, 40), "core": (255, 240, 150),
    "wood": (120, 80, 54), "navy": (30, 62, 132), "page": (250, 246, 230), "steel": (160, 166, 176),
}  # fmt: skip

BACKGROUND_BASE, OBJECT_BASE, PROP_BASE = 0, 40, 80
EMPTY = 255  # in a sprite: not part of the object
INK_BACKGROUND = 39  # contour of background shapes in the styles that have one
OBJECT_INDEX = {name: OBJECT_BASE + i for i, name in enumerate(OBJECT_PARTS)}
PROP_INDEX = {name: PROP_BASE + i for i, name in enumerate(PROP_COLOURS)}


def _mix(a: Sequence[float], b: Sequence[float], share: float) -> RGB:
    """`a` with a `share` of `b`."""
    red, green, blue = (int(round(x + (y - x) * share)) for x, y in zip(a, b, strict=True))
    return red, green, blue


def _luminance(rgb: Sequence[float]) -> float:
    return 0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2]


@cache
def _object_palette(colour: str, shade: str, pattern: str, style: str) -> tuple[RGB, ...]:
    which = SHADES.index(shade)
    return _dressed(
        colour, shade, pattern, style, OBJECT_COLOURS[colour][which], PATTERN_COLOURS[colour][which]
    )


def _dressed(colour: str, shade: str, pattern: str, style: str, main: RGB, marks: RGB) -> tuple[RGB, ...]:
    """RGB of every entry of OBJECT_PARTS, from the colours of the object and of its stripes or spots."""
    deep = _mix(main, (20, 10, 30), 0.36)
    if colour == "black" and shade == "dark":  # hardly darkens any more
        deep = _mix(main, (255, 255, 255), 0.28)
    elif colour == "yellow":  # a darkened yellow turns olive: go towards amber instead
        deep = _mix(main, (196, 118, 0), 0.6)
    elif colour == "white":
        deep = _mix(main, (120, 132, 158), 0.5)
    lift = _mix(main, (255, 255, 255), 0.32)
    ink: RGB = (132, 134, 144) if colour == "black" else (30, 24, 32)
    light_rim, dark_rim = (255, 252, 242), _mix(main, (24, 16, 36), 0.74)
    if style == "outline":
        rim = light_rim
    elif style == "flat":  # like cut paper
        rim = _mix(main, (84, 92, 120), 0.75) if colour == "white" else light_rim
        if pattern != "plain" and min(_luminance(main), _luminance(marks) - 100) > 92:
            rim = _mix(deep, (24, 16, 36), 0.25)  # a light rim would run into the light marks
    else:
        rim = light_rim if _luminance(main) < 92 else dark_rim
    if style == "hatched":
        ink = (150, 150, 158) if colour == "black" else _mix(main, (50, 42, 54), 0.8)
    palette: dict[str, RGB] = {
        "main": main,
        "deep": deep,
        "lift": lift,
        "pattern": marks,
        "rim": rim,
        "ink": ink,
        "centre": (120, 74, 40) if colour in ("yellow", "orange", "white") else (250, 206, 70),
        **FIXED_COLOURS,
    }
    colours = [palette[name] for name in OBJECT_PARTS]
    if style == "pastel":
        colours = [_mix(c, PAPER, 0.12) for c in colours]
    return tuple(colours)


def unnamed_colour(rng: np.random.Generator, barred: np.ndarray, beside: RGB | None = None) -> RGB:
    """A colour that no name of `COLOURS` quite fits (teal, olive, mauve, grey ...): never one whose nearest
    name is `barred` (10,) bool, and one that stands out from `beside`.
    """
    named = np.array([rgb for shades in OBJECT_COLOURS.values() for rgb in shades])
    while True:
        rgb = rng.integers(0, 256, 3)
        away = np.linalg.norm(named - rgb, axis=1)
        clear = beside is None or np.linalg.norm(np.array(beside) - rgb) > 110
        if away.min() > 60 and clear and not barred[int(away.argmin()) // len(SHADES)]:
            return tuple(rgb.tolist())


def unnamed_scene_colour(rng: np.random.Generator, scene: Scene) -> RGB:
    """An unnamed colour for the main objects, near no held-out combination."""
    return unnamed_colour(rng, HELD_OUT_COLOURS[KINDS.index(scene.kind)])


@cache
def _palette(colour: str, shade: str, pattern: str, background: str, style: str) -> tuple[int, ...]:
    """The flat 256-entry RGB palette of a picture."""
    return _table(_object_palette(colour, shade, pattern, style), background, style)


def _table(objects: Sequence[RGB], background: str, style: str) -> tuple[int, ...]:
    table: list[RGB] = [(0, 0, 0)] * 256
    wash = {"outline": 0.22, "pastel": 0.34, "hatched": 0.30, "mosaic": 0.16}.get(style, 0.0)
    if background == "night sky":
        wash *= 0.5
    for i, rgb in enumerate(BACKGROUND_COLOURS[background].values()):
        table[BACKGROUND_BASE + i] = _mix(rgb, PAPER, wash)
    table[INK_BACKGROUND] = (64, 54, 62) if background != "night sky" else (150, 152, 190)
    for i, rgb in enumerate(objects):
        table[OBJECT_BASE + i] = rgb
    for i, rgb in enumerate(PROP_COLOURS.values()):
        table[PROP_BASE + i] = _mix(rgb, PAPER, 0.15) if style == "pastel" else rgb
    return tuple(channel for rgb in table for channel in rgb)


# ------------------------------------------------------------------------------------------- shape vocabulary


def _ellipse(x: float, y: float, rx: float, ry: float | None = None, turn: float = 0.0, n: int = 26) -> Shape:
    """An ellipse about (x, y), turned by `turn` degrees clockwise."""
    ry = rx if ry is None else ry
    a = np.linspace(0, 2 * np.pi, n, endpoint=False)
    return _turn(np.stack([rx * np.cos(a), ry * np.sin(a)], 1), turn) + (x, y)


def _turn(points: Shape, degrees: float) -> Shape:
    a = np.deg2rad(degrees)
    return points @ np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]])


def _poly(*corners: tuple[float, float], r: float = 0.07) -> Shape:
    """A polygon with its corners rounded off over a length of about `r`."""
    p = np.array(corners, float)
    out = []
    for i in range(len(p)):
        before, here, after = p[i - 1], p[i], p[(i + 1) % len(p)]
        into, away = before - here, after - here
        start = here + into * min(0.5, r / (np.hypot(*into) + 1e-9))
        end = here + away * min(0.5, r / (np.hypot(*away) + 1e-9))
        for t in (0.0, 0.33, 0.67, 1.0):
            out.append((1 - t) ** 2 * start + 2 * t * (1 - t) * here + t * t * end)
    return np.array(out)


def _rect(x0: float, y0: float, x1: float, y1: float, r: float = 0.07) -> Shape:
    return _poly((x0, y0), (x1, y0), (x1, y1), (x0, y1), r=r)


def _spline(points: Sequence[tuple[float, float]], closed: bool, per: int = 6) -> Shape:
    """A Catmull-Rom curve through `points`."""
    p = np.array(points, float)
    p = (
        np.concatenate([p[-1:], p, p[:2]])
        if closed
        else np.concatenate([2 * p[:1] - p[1:2], p, 2 * p[-1:] - p[-2:-1]])
    )
    t = np.linspace(0, 1, per, endpoint=False)[:, None]
    out = []
    for a, b, c, d in zip(p[:-3], p[1:-2], p[2:-1], p[3:], strict=True):
        out.append(
            0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)
        )
    if not closed:
        out.append(p[-2:-1])
    return np.concatenate(out)


def _blob(*points: tuple[float, float]) -> Shape:
    """A smooth closed shape through `points`."""
    return _spline(points, closed=True)


def _stroke(*points: tuple[float, float], w: float = 0.1, end: float | None = None) -> Shape:
    """A smooth thick line through `points`, `w` wide (narrowing or widening to `end`), with round ends."""
    line = _spline(points, closed=False)
    slope = np.gradient(line, axis=0)
    normal = np.stack([-slope[:, 1], slope[:, 0]], 1) / (np.hypot(slope[:, 0], slope[:, 1])[:, None] + 1e-9)
    half = np.linspace(w, w if end is None else end, len(line))[:, None] / 2
    left, right = line + normal * half, line - normal * half
    a = np.deg2rad([60, 20, -20, -60])[:, None]

    def cap(centre: Shape, side: Shape) -> Shape:
        ahead = np.array([side[1], -side[0]])
        return centre + side * np.sin(a) + ahead * np.cos(a)

    tail, head = cap(line[-1], left[-1] - line[-1]), cap(line[0], right[0] - line[0])
    return np.concatenate([left, tail, right[::-1], head])


def _lean(parts: list[Part], shear_x: float = 0.0, shear_y: float = 0.0) -> list[Part]:
    """All parts sheared: x moves by shear_x * y, y by shear_y * x."""
    matrix = np.array([[1.0, shear_y], [shear_x, 1.0]])
    return [(name, shape @ matrix) for name, shape in parts]


def _turned(parts: list[Part], degrees: float) -> list[Part]:
    return [(name, _turn(shape, degrees)) for name, shape in parts]


def _eye(x: float, y: float, r: float) -> list[Part]:
    """A white eye looking to the left."""
    return [
        ("eye", _ellipse(x, y, r, r * 1.1)),
        ("pupil", _ellipse(x - r * 0.25, y + r * 0.05, r * 0.6, r * 0.72)),
    ]


# -------------------------------------------------------------------------- the main objects, all facing left


# fmt: off
def _cat(variant: int) -> list[Part]:
    if variant == 0:  # sitting
        hx, hy = -0.26, -0.42
        parts: list[Part] = [
            ("main", _stroke((0.4, 0.82), (0.84, 0.78), (0.93, 0.4), (0.72, 0.12), w=0.24, end=0.2)),
            ("main", _blob((-0.36, -0.1), (0.15, -0.14), (0.5, 0.2), (0.64, 0.66), (0.5, 0.97),
                           (-0.5, 0.97), (-0.5, 0.5))),
            ("deep", _stroke((0.5, 0.42), (0.18, 0.5), (0.1, 0.92), w=0.06)),
            ("deep", _stroke((-0.14, 0.5), (-0.16, 0.94), w=0.06)),
        ]
        wide, tall = 0.5, 0.42
    else:  # standing
        hx, hy = -0.52, -0.24
        parts = [
            ("main", _stroke((0.66, 0.02), (0.9, -0.2), (0.76, -0.62), (0.92, -0.9), w=0.2, end=0.16)),
            ("deep", _rect(-0.34, 0.3, -0.14, 0.88)),
            ("deep", _rect(0.3, 0.3, 0.5, 0.88)),
            ("main", _rect(-0.66, 0.2, -0.42, 0.95, r=0.1)),
            ("main", _rect(0.56, 0.2, 0.8, 0.95, r=0.1)),
            ("main", _blob((-0.6, -0.14), (0.1, -0.14), (0.7, -0.16), (0.88, 0.16), (0.76, 0.5),
                           (0.1, 0.48), (-0.62, 0.5))),
        ]
        wide, tall = 0.44, 0.36
    for side in (-1, 1):
        tip = (hx + side * wide * 0.88, hy - tall * 1.38)
        inner, outer = (hx + side * wide * 0.2, hy - tall * 0.8), (hx + side * wide * 0.98, hy - tall * 0.1)
        parts += [("main", _poly(inner, tip, outer))]
        mid = (hx + side * wide * 0.7, hy - tall * 0.6)
        shrunk = [
            (m + (q - m) * 0.55, n + (s - n) * 0.55)
            for (q, s), (m, n) in ((p, mid) for p in (inner, tip, outer))
        ]
        parts += [("deep", _poly(*shrunk, r=0.04))]
    parts += [("main", _ellipse(hx, hy, wide, tall))]
    fx = hx - 0.08
    parts += _eye(fx - 0.19, hy - 0.02, 0.11) + _eye(fx + 0.19, hy - 0.02, 0.11)
    parts += [("nose", _poly((fx - 0.09, hy + 0.13), (fx + 0.09, hy + 0.13), (fx, hy + 0.23), r=0.03))]
    for side in (-1, 1):
        for dy in (0.0, 0.1):
            parts += [
                ("deep", _stroke((fx + side * 0.24, hy + 0.19 + dy * 0.6),
                                 (fx + side * 0.5, hy + 0.14 + dy * 1.4), w=0.035))
            ]
    return parts


def _dog(variant: int) -> list[Part]:
    if variant == 0:  # sitting
        hx, hy = -0.1, -0.52
        parts: list[Part] = [
            ("main", _stroke((0.45, 0.8), (0.8, 0.72), (0.95, 0.36), w=0.22, end=0.12)),
            ("main", _blob((-0.3, -0.2), (0.2, -0.2), (0.5, 0.2), (0.66, 0.68), (0.5, 0.97), (-0.44, 0.97),
                           (-0.42, 0.4))),
            ("deep", _stroke((0.52, 0.42), (0.2, 0.5), (0.14, 0.92), w=0.06)),
            ("deep", _stroke((-0.12, 0.5), (-0.12, 0.94), w=0.06)),
        ]
    else:  # standing
        hx, hy = -0.46, -0.42
        parts = [
            ("main", _stroke((0.72, -0.0), (0.9, -0.3), (0.94, -0.62), w=0.2, end=0.12)),
            ("deep", _rect(-0.28, 0.3, -0.06, 0.9)),
            ("deep", _rect(0.3, 0.3, 0.5, 0.9)),
            ("main", _rect(-0.6, 0.1, -0.34, 0.96, r=0.1)),
            ("main", _rect(0.58, 0.1, 0.84, 0.96, r=0.1)),
            ("main", _blob((-0.56, -0.24), (0.0, -0.12), (0.7, -0.14), (0.88, 0.1), (0.8, 0.46),
                           (0.1, 0.42), (-0.56, 0.52))),
        ]
    parts += [
        ("deep", _stroke((hx - 0.16, hy + 0.46), (hx + 0.1, hy + 0.46), (hx + 0.34, hy + 0.36), w=0.13)),
        ("glow", _ellipse(hx - 0.08, hy + 0.54, 0.08)),
        ("tongue", _blob((hx - 0.5, hy + 0.2), (hx - 0.3, hy + 0.22), (hx - 0.34, hy + 0.46),
                         (hx - 0.46, hy + 0.48))),
        ("main", _ellipse(hx, hy, 0.42, 0.4)),
        ("main", _blob((hx - 0.2, hy - 0.12), (hx - 0.56, hy - 0.02), (hx - 0.82, hy + 0.06),
                       (hx - 0.78, hy + 0.26), (hx - 0.4, hy + 0.32), (hx - 0.04, hy + 0.3))),
        ("pupil", _ellipse(hx - 0.78, hy + 0.05, 0.12, 0.1)),
        ("deep", _stroke((hx - 0.74, hy + 0.24), (hx - 0.44, hy + 0.22), (hx - 0.3, hy + 0.16), w=0.045)),
        ("deep", _blob((hx + 0.0, hy - 0.34), (hx + 0.28, hy - 0.36), (hx + 0.46, hy + 0.06),
                       (hx + 0.4, hy + 0.42), (hx + 0.2, hy + 0.4), (hx + 0.1, hy + 0.0))),
    ]
    return parts + _eye(hx - 0.22, hy - 0.14, 0.1)


def _bird(variant: int) -> list[Part]:
    if variant == 0:  # perched
        return [
            ("beak", _stroke((-0.05, 0.55), (-0.12, 0.95), w=0.09)),
            ("beak", _stroke((0.2, 0.55), (0.2, 0.95), w=0.09)),
            ("beak", _stroke((-0.3, 0.95), (0.02, 0.95), w=0.08)),
            ("beak", _stroke((0.04, 0.95), (0.36, 0.95), w=0.08)),
            ("deep", _poly((0.35, 0.02), (0.98, -0.26), (1.0, 0.06), (0.9, 0.22), (0.5, 0.45))),
            ("beak", _poly((-0.62, -0.66), (-1.02, -0.46), (-0.6, -0.32))),
            ("main", _blob((-0.7, -0.5), (-0.42, -0.9), (-0.02, -0.74), (0.26, -0.3), (0.66, 0.04),
                           (0.62, 0.4), (0.2, 0.72), (-0.36, 0.62), (-0.68, 0.16))),
            ("deep", _blob((-0.08, -0.16), (0.3, -0.06), (0.84, 0.16), (0.4, 0.42), (0.02, 0.34))),
            *_eye(-0.42, -0.54, 0.12),
        ]
    return [  # flying
        ("deep", _poly((-0.2, 0.1), (-0.5, -0.5), (-0.42, -0.86), (0.0, -0.6), (0.22, 0.0))),
        ("deep", _poly((0.44, 0.1), (0.98, 0.02), (0.86, 0.24), (1.0, 0.44), (0.5, 0.42))),
        ("beak", _poly((-0.72, 0.06), (-1.06, 0.26), (-0.7, 0.36))),
        ("main", _blob((-0.84, 0.14), (-0.6, -0.12), (-0.3, -0.04), (0.2, 0.0), (0.62, 0.22), (0.2, 0.6),
                       (-0.4, 0.64), (-0.78, 0.42))),
        ("main", _poly((-0.24, 0.2), (-0.06, -0.5), (0.42, -0.98), (0.6, -0.74), (0.74, -0.7),
                       (0.7, -0.42), (0.78, -0.3), (0.36, 0.28), (0.0, 0.36), r=0.12)),
        ("deep", _stroke((0.46, -0.72), (0.2, -0.24), w=0.05)),
        ("deep", _stroke((0.62, -0.44), (0.34, -0.06), w=0.05)),
        *_eye(-0.56, 0.12, 0.11),
    ]


def _fish(variant: int) -> list[Part]:
    if variant == 0:  # round-bodied
        parts: list[Part] = [
            ("deep", _poly((0.42, 0.0), (0.8, -0.52), (1.0, -0.5), (0.86, 0.0), (1.0, 0.5), (0.8, 0.52))),
            ("deep", _poly((-0.36, -0.4), (-0.06, -0.84), (0.4, -0.74), (0.42, -0.2))),
            ("deep", _poly((-0.1, 0.4), (0.08, 0.76), (0.36, 0.7), (0.3, 0.3))),
            ("main", _blob((-0.98, 0.06), (-0.66, -0.38), (-0.16, -0.54), (0.36, -0.3), (0.66, 0.0),
                           (0.36, 0.32), (-0.16, 0.54), (-0.66, 0.44))),
            ("deep", _stroke((-0.36, -0.38), (-0.24, 0.02), (-0.36, 0.4), w=0.06)),
            ("deep", _poly((-0.1, 0.06), (0.24, -0.06), (0.22, 0.26))),
            ("deep", _stroke((-0.94, 0.16), (-0.78, 0.2), (-0.7, 0.16), w=0.05)),
        ]
        return parts + _eye(-0.62, -0.1, 0.13)
    parts = [  # angelfish: tall fins
        ("deep", _poly((0.4, 0.0), (0.74, -0.34), (1.0, -0.42), (0.88, 0.0), (1.0, 0.42), (0.74, 0.34))),
        ("main", _blob((-0.3, -0.4), (0.12, -0.76), (0.5, -1.02), (0.86, -1.0), (0.6, -0.76), (0.46, -0.4),
                       (0.3, -0.2))),
        ("main", _blob((-0.3, 0.4), (0.12, 0.76), (0.5, 1.02), (0.86, 1.0), (0.6, 0.76), (0.46, 0.4),
                       (0.3, 0.2))),
        ("main", _blob((-1.0, 0.04), (-0.72, -0.34), (-0.2, -0.6), (0.32, -0.42), (0.6, 0.0), (0.32, 0.42),
                       (-0.2, 0.6), (-0.72, 0.38))),
        ("deep", _stroke((0.1, -0.52), (0.36, -0.6), (0.64, -0.88), w=0.05)),
        ("deep", _stroke((0.1, 0.52), (0.36, 0.6), (0.64, 0.88), w=0.05)),
        ("deep", _stroke((-0.42, -0.42), (-0.32, 0.02), (-0.42, 0.44), w=0.06)),
        ("deep", _stroke((-0.94, 0.12), (-0.82, 0.16), (-0.74, 0.12), w=0.05)),
    ]
    return parts + _eye(-0.62, -0.04, 0.12)


def _wheel(x: float, y: float, r: float) -> list[Part]:
    return [("tyre", _ellipse(x, y, r)), ("metal", _ellipse(x, y, r * 0.48))]


def _car(variant: int) -> list[Part]:
    if variant == 0:  # hatchback
        parts: list[Part] = [
            ("main", _blob((-0.56, 0.0), (-0.4, -0.42), (-0.1, -0.62), (0.5, -0.62), (0.84, -0.44),
                           (0.96, 0.1), (0.2, 0.3))),
            ("main", _poly((-1.0, 0.5), (-0.98, 0.1), (-0.62, -0.08), (0.9, -0.08), (1.0, 0.1),
                           (1.0, 0.5), r=0.14)),
            ("glass", _poly((-0.42, -0.06), (-0.26, -0.42), (0.08, -0.46), (0.08, -0.06))),
            ("glass", _poly((0.18, -0.06), (0.18, -0.46), (0.58, -0.46), (0.76, -0.06))),
        ]
    else:  # pickup
        parts = [
            ("main", _poly((-0.6, 0.0), (-0.46, -0.62), (0.16, -0.62), (0.2, 0.0), r=0.12)),
            ("main", _poly((-1.0, 0.5), (-0.98, 0.06), (-0.66, -0.08), (0.12, -0.08), (0.16, -0.2),
                           (1.0, -0.2), (1.0, 0.5))),
            ("glass", _poly((-0.44, -0.06), (-0.34, -0.46), (0.04, -0.46), (0.06, -0.06))),
            ("deep", _rect(0.18, -0.28, 1.02, -0.12)),
            ("deep", _rect(0.16, -0.12, 0.22, 0.42, r=0.02)),
        ]
    parts += [
        ("deep", _rect(-1.02, 0.4, 1.02, 0.56)),
        ("glow", _ellipse(-0.9, 0.18, 0.1, 0.12)),
        ("tongue", _rect(0.88, 0.08, 1.0, 0.26, r=0.03)),
        ("deep", _stroke((-0.02, 0.1), (0.12, 0.1), w=0.06)),
    ]
    return parts + _wheel(-0.54, 0.52, 0.27) + _wheel(0.56, 0.52, 0.27)


def _boat(variant: int) -> list[Part]:
    hull: list[Part] = [
        ("main", _poly((-1.0, 0.28), (-0.6, 0.36), (0.96, 0.36), (0.76, 0.92), (-0.56, 0.92))),
        ("deep", _poly((-0.98, 0.26), (-0.6, 0.34), (0.98, 0.34), (0.94, 0.5), (-0.86, 0.5), r=0.04)),
    ]
    if variant == 0:  # sailing boat
        return [
            ("wood", _stroke((0.0, -0.92), (0.0, 0.4), w=0.09)),
            ("deep", _poly((-0.02, -1.0), (-0.02, -0.78), (-0.36, -0.88))),
            ("main", _poly((0.08, -0.9), (0.56, -0.3), (0.92, 0.24), (0.08, 0.24))),
            ("lift", _poly((-0.08, -0.68), (-0.08, 0.24), (-0.76, 0.24))),
            *hull,
        ]
    return [  # steamer
        ("deep", _poly((0.3, -0.1), (0.3, -0.86), (0.64, -0.86), (0.64, -0.1))),
        ("main", _rect(0.3, -0.68, 0.64, -0.48, r=0.02)),
        ("main", _rect(-0.5, -0.3, 0.78, 0.4)),
        ("deep", _rect(-0.62, -0.42, 0.86, -0.26)),
        ("glass", _ellipse(-0.24, 0.0, 0.15)),
        ("glass", _ellipse(0.14, 0.0, 0.15)),
        ("glass", _ellipse(0.52, 0.0, 0.15)),
        ("wood", _stroke((-0.8, -0.3), (-0.8, 0.36), w=0.07)),
        ("deep", _poly((-0.8, -0.5), (-0.8, -0.24), (-1.04, -0.37))),
        *hull,
    ]


def _bench(variant: int) -> list[Part]:
    legs: list[Part] = [
        ("iron", _stroke((0.78, 0.2), (0.8, 0.78), w=0.14)),
        ("iron", _stroke((-0.58, 0.2), (-0.58, 0.72), w=0.12)),
    ]
    if variant == 0:  # slatted back
        parts = legs + [
            ("iron", _rect(-0.8, -0.66, -0.66, 0.3)),
            ("iron", _rect(0.7, -0.66, 0.84, 0.3)),
            ("main", _rect(-0.96, -0.62, 0.96, -0.34)),
            ("main", _rect(-0.96, -0.24, 0.96, 0.04)),
        ]
    else:  # arched back over an open gap
        parts = legs + [
            ("iron", _rect(-0.72, -0.2, -0.58, 0.3)),
            ("iron", _rect(0.6, -0.2, 0.74, 0.3)),
            ("main", _blob((-0.98, -0.04), (-0.92, -0.4), (-0.5, -0.74), (0.0, -0.84), (0.5, -0.74),
                           (0.92, -0.4), (0.98, -0.04), (0.5, -0.08), (-0.5, -0.08))),
            ("deep", _stroke((-0.5, -0.6), (-0.5, -0.2), w=0.06)),
            ("deep", _stroke((0.0, -0.7), (0.0, -0.2), w=0.06)),
            ("deep", _stroke((0.5, -0.6), (0.5, -0.2), w=0.06)),
        ]
    parts += [
        ("main", _poly((-0.98, 0.14), (0.98, 0.14), (1.0, 0.42), (-1.0, 0.42))),
        ("deep", _rect(-1.0, 0.38, 1.0, 0.5, r=0.04)),
        ("iron", _stroke((-0.88, 0.4), (-0.9, 0.98), w=0.14)),
        ("iron", _stroke((0.56, 0.44), (0.56, 0.9), w=0.12)),
        ("iron", _stroke((-0.72, -0.2), (-1.04, -0.16), (-1.02, 0.3), w=0.13)),
    ]
    return _lean(parts, shear_y=-0.14)


def _tree(variant: int) -> list[Part]:
    if variant == 0:  # round crown
        parts: list[Part] = [
            ("wood", _poly((-0.22, 0.97), (-0.1, 0.2), (0.14, 0.2), (0.26, 0.97))),
            ("wood", _stroke((0.06, 0.68), (0.36, 0.56), (0.6, 0.34), w=0.14, end=0.1)),
            ("main", _ellipse(0.68, 0.34, 0.26, 0.22)),
            ("main", _blob((-0.86, 0.02), (-0.84, -0.4), (-0.56, -0.66), (-0.26, -0.94), (0.22, -0.92),
                           (0.52, -0.66), (0.8, -0.36), (0.7, 0.06), (0.36, 0.22), (0.0, 0.34), (-0.4, 0.3))),
            ("deep", _stroke((-0.3, 0.08), (0.04, 0.16), (0.36, -0.02), w=0.08)),
            ("deep", _stroke((0.14, -0.36), (0.36, -0.34), (0.54, -0.46), w=0.07)),
            ("lift", _stroke((-0.6, -0.3), (-0.44, -0.54), (-0.2, -0.68), w=0.1)),
        ]
        return _lean(parts, shear_x=0.12)
    parts = [("wood", _rect(-0.14, 0.5, 0.14, 0.98)), ("wood", _stroke((0.06, 0.88), (0.46, 0.76), w=0.11))]
    for top, bottom, wide in ((0.0, 0.72, 0.86), (-0.5, 0.24, 0.66), (-0.98, -0.26, 0.46)):  # conifer
        parts += [
            ("main", _poly((0.0, top - 0.06), (wide * 0.62, bottom - 0.22), (wide, bottom),
                           (0.0, bottom + 0.06), (-wide, bottom))),
            ("deep", _stroke((-wide * 0.7, bottom - 0.06), (0.0, bottom - 0.02),
                             (wide * 0.7, bottom - 0.06), w=0.07)),
        ]
    return _lean(parts, shear_x=0.16)


def _flower(variant: int) -> list[Part]:
    stem: list[Part] = [
        ("leaf", _stroke((0.22, 0.98), (0.16, 0.6), (-0.1, 0.1), w=0.13)),
        ("leaf", _blob((0.16, 0.78), (0.34, 0.46), (0.72, 0.34), (0.92, 0.4), (0.7, 0.68), (0.42, 0.82))),
    ]
    if variant == 0:  # daisy
        x, y = -0.16, -0.28
        petals: list[Part] = []
        for i in range(8):
            a = np.deg2rad(45 * i + 12)
            petals += [
                ("main", _ellipse(x + 0.44 * np.cos(a), y + 0.44 * np.sin(a), 0.28, 0.21, turn=45 * i + 12))
            ]
        rays: list[Part] = [
            ("deep", _stroke((x + 0.26 * c, y + 0.26 * s), (x + 0.42 * c, y + 0.42 * s), w=0.05))
            for c, s in ((np.cos(a), np.sin(a)) for a in np.deg2rad(45 * np.arange(8) + 12))
        ]
        return stem + petals + rays + [("centre", _ellipse(x, y, 0.25))]
    return stem + [  # tulip
        ("deep", _poly((-0.5, -0.3), (-0.34, -0.98), (0.1, -0.6), (0.34, -0.96), (0.4, -0.2), (-0.1, 0.0))),
        ("main", _blob((-0.82, -0.74), (-0.5, -0.62), (-0.16, -0.24), (-0.06, 0.24), (-0.4, 0.22),
                       (-0.74, -0.12))),
        ("main", _blob((0.58, -0.76), (0.3, -0.62), (0.0, -0.24), (-0.2, 0.24), (0.18, 0.22), (0.52, -0.12))),
        ("main", _blob((-0.14, -0.82), (0.16, -0.46), (0.2, -0.1), (0.0, 0.22), (-0.26, 0.22),
                       (-0.46, -0.1), (-0.4, -0.5))),
        ("deep", _stroke((-0.14, -0.46), (-0.12, 0.02), w=0.05)),
    ]


def _cup(variant: int) -> list[Part]:
    if variant == 0:  # mug
        return [
            ("main", _stroke((0.36, -0.24), (0.78, -0.28), (0.92, 0.06), (0.76, 0.42), (0.34, 0.44), w=0.22)),
            ("main", _poly((-0.84, -0.62), (0.5, -0.62), (0.46, 0.86), (0.2, 0.94), (-0.54, 0.94),
                           (-0.8, 0.86))),
            ("deep", _ellipse(-0.17, -0.62, 0.67, 0.2)),
            ("coffee", _ellipse(-0.17, -0.59, 0.55, 0.13)),
        ]
    return [  # teacup on a saucer
        ("main", _stroke((0.56, -0.14), (0.9, -0.2), (0.96, 0.1), (0.5, 0.34), w=0.17)),
        ("deep", _ellipse(-0.08, 0.74, 0.92, 0.2)),
        ("lift", _ellipse(-0.08, 0.69, 0.9, 0.17)),
        ("deep", _rect(-0.36, 0.52, 0.2, 0.74)),
        ("main", _poly((-0.88, -0.4), (0.72, -0.4), (0.62, 0.14), (0.34, 0.54), (-0.5, 0.54),
                       (-0.78, 0.14), r=0.2)),
        ("deep", _ellipse(-0.08, -0.4, 0.8, 0.2)),
        ("coffee", _ellipse(-0.08, -0.37, 0.67, 0.13)),
    ]


def _chair(variant: int) -> list[Part]:
    if variant == 0:  # wooden chair
        return [
            ("deep", _rect(-0.1, 0.1, 0.06, 0.7)),
            ("main", _poly((0.06, -1.0), (0.76, -0.88), (0.76, 0.22), (0.06, 0.06))),
            ("deep", _poly((0.22, -0.7), (0.3, -0.68), (0.3, -0.06), (0.22, -0.08), r=0.03)),
            ("deep", _poly((0.52, -0.65), (0.6, -0.63), (0.6, 0.02), (0.52, 0.0), r=0.03)),
            ("deep", _rect(-0.86, 0.2, -0.68, 0.86)),
            ("deep", _rect(-0.14, 0.4, 0.06, 1.0)),
            ("deep", _rect(0.6, 0.1, 0.78, 0.86)),
            ("deep", _poly((-0.88, 0.18), (-0.04, 0.44), (0.78, 0.18), (0.78, 0.32), (-0.04, 0.6),
                           (-0.88, 0.32), r=0.04)),
            ("main", _poly((-0.9, 0.14), (0.06, -0.06), (0.8, 0.16), (-0.06, 0.46))),
        ]
    return [  # armchair
        ("wood", _stroke((-0.66, 0.74), (-0.7, 0.96), w=0.13)),
        ("wood", _stroke((0.7, 0.74), (0.76, 0.96), w=0.13)),
        ("main", _poly((0.08, -0.9), (0.72, -0.98), (0.96, -0.5), (0.92, 0.5), (0.1, 0.5), r=0.26)),
        ("main", _rect(-0.86, 0.1, 0.92, 0.82, r=0.14)),
        ("lift", _rect(-0.92, 0.0, 0.3, 0.26, r=0.12)),
        ("deep", _rect(-0.74, 0.2, 0.66, 0.5, r=0.15)),
        ("main", _rect(-0.74, 0.32, 0.6, 0.82, r=0.1)),
        ("deep", _stroke((0.3, -0.62), (0.36, -0.1), w=0.05)),
    ]


def _lamp(variant: int) -> list[Part]:
    if variant == 0:  # desk lamp with a bent arm
        return [
            ("deep", _stroke((0.36, 0.84), (0.82, 0.06), w=0.13)),
            ("deep", _stroke((0.82, 0.06), (0.1, -0.66), w=0.13)),
            ("metal", _ellipse(0.82, 0.06, 0.13)),
            ("main", _poly((-0.1, 0.97), (-0.06, 0.8), (0.16, 0.7), (0.6, 0.7), (0.82, 0.8), (0.86, 0.97))),
            ("glow", _ellipse(-0.5, -0.14, 0.25)),
            ("main", _poly((0.0, -1.0), (0.28, -0.72), (0.16, -0.4), (-0.02, 0.3), (-0.98, -0.52),
                           (-0.32, -0.88), r=0.12)),
            ("deep", _stroke((-0.98, -0.5), (-0.04, 0.28), w=0.11)),
        ]
    return [  # table lamp
        ("metal", _stroke((0.12, -0.2), (0.12, 0.3), w=0.12)),
        ("iron", _stroke((-0.62, -0.2), (-0.66, 0.18), w=0.05)),
        ("glow", _ellipse(-0.66, 0.22, 0.08)),
        ("deep", _poly((-0.24, 0.98), (-0.2, 0.84), (0.46, 0.84), (0.5, 0.98))),
        ("main", _blob((-0.02, 0.2), (0.28, 0.2), (0.52, 0.52), (0.36, 0.86), (-0.1, 0.86), (-0.26, 0.52))),
        ("main", _poly((-0.46, -0.92), (0.22, -1.0), (0.76, -0.14), (-0.94, -0.04))),
        ("deep", _stroke((-0.92, -0.08), (0.74, -0.17), w=0.09)),
        ("deep", _stroke((-0.46, -0.9), (0.22, -0.97), w=0.08)),
    ]


def _window(x0: float, y0: float, x1: float, y1: float) -> list[Part]:
    mid_x, mid_y = (x0 + x1) / 2, (y0 + y1) / 2
    return [
        ("glass", _rect(x0, y0, x1, y1, r=0.03)),
        ("deep", _rect(mid_x - 0.025, y0, mid_x + 0.025, y1, r=0.01)),
        ("deep", _rect(x0, mid_y - 0.025, x1, mid_y + 0.025, r=0.01)),
    ]


def _house(variant: int) -> list[Part]:
    if variant == 0:  # pitched roof
        return [
            ("deep", _rect(0.4, -0.92, 0.66, -0.2)),
            ("main", _rect(-0.8, -0.2, 0.8, 0.97, r=0.04)),
            ("deep", _poly((-1.02, -0.06), (-0.96, -0.16), (0.0, -0.98), (0.96, -0.16), (1.02, -0.06))),
            ("wood", _rect(-0.6, 0.36, -0.2, 0.97, r=0.05)),
            ("glow", _ellipse(-0.28, 0.68, 0.05)),
            *_window(0.12, 0.2, 0.56, 0.6),
        ]
    return [  # flat roof
        ("main", _rect(0.2, 0.02, 0.92, 0.97, r=0.03)),
        ("deep", _rect(0.2, -0.1, 1.02, 0.08)),
        ("main", _rect(-0.88, -0.84, 0.34, 0.97, r=0.03)),
        ("deep", _rect(-1.0, -0.97, 0.46, -0.76)),
        ("glass", _rect(-0.7, -0.52, 0.14, -0.16, r=0.03)),
        ("deep", _rect(-0.3, -0.52, -0.25, -0.16, r=0.01)),
        ("deep", _rect(-0.86, 0.22, -0.18, 0.34, r=0.03)),
        ("wood", _rect(-0.72, 0.34, -0.32, 0.97, r=0.04)),
        ("glow", _ellipse(-0.4, 0.68, 0.05)),
        ("glass", _rect(0.46, 0.3, 0.8, 0.66, r=0.03)),
    ]


def _umbrella(variant: int) -> list[Part]:
    if variant == 0:  # rain umbrella with a crook
        a = np.linspace(np.pi, 2 * np.pi, 24)
        dome = np.stack([0.98 * np.cos(a), 0.86 * np.sin(a) + 0.08], 1)
        edge = np.linspace(0.98, -0.98, 33)[1:-1]
        scallops = np.stack([edge, 0.08 - 0.11 * np.abs(np.sin((edge + 0.98) / 1.96 * 4 * np.pi))], 1)
        parts: list[Part] = [
            ("wood", _stroke((0.0, -0.9), (0.0, 0.2), (0.0, 0.76), (0.12, 0.92), (0.28, 0.86),
                             (0.3, 0.72), w=0.11)),
            ("main", np.concatenate([dome, scallops])),
            ("deep", _stroke((-0.05, -0.74), (-0.38, -0.4), (-0.49, 0.04), w=0.055)),
            ("deep", _stroke((0.0, -0.74), (0.0, 0.04), w=0.055)),
            ("deep", _stroke((0.05, -0.74), (0.38, -0.4), (0.49, 0.04), w=0.055)),
        ]
        return _turned(parts, -22)
    left = _spline([(0.0, -0.92), (-0.3, -0.46), (-0.98, 0.02)], closed=False)
    right = _spline([(0.98, 0.02), (0.3, -0.46), (0.0, -0.92)], closed=False)
    fringe = np.array(
        [(x, 0.02 + (0.17 if i % 2 == 0 else 0.04)) for i, x in enumerate(np.linspace(0.9, -0.9, 13))]
    )
    parts = [  # pointed parasol with a straight pole
        ("wood", _stroke((0.0, -0.98), (0.0, 0.96), w=0.11)),
        ("wood", _ellipse(0.0, 0.94, 0.12)),
        ("deep", np.concatenate([right[:1], fringe, left[-1:]])),
        ("main", np.concatenate([left, right])),
        ("deep", _stroke((-0.02, -0.76), (-0.2, -0.34), (-0.4, 0.0), w=0.05)),
        ("deep", _stroke((0.02, -0.76), (0.2, -0.34), (0.4, 0.0), w=0.05)),
    ]
    return _turned(parts, -16)


BUILDERS: dict[str, Callable[[int], list[Part]]] = {
    "cat": _cat, "dog": _dog, "bird": _bird, "fish": _fish, "car": _car, "boat": _boat, "bench": _bench,
    "tree": _tree,
    "flower": _flower, "cup": _cup, "chair": _chair, "lamp": _lamp, "house": _house, "umbrella": _umbrella,
}

# ------------------------------------------------------------------------------------------------------ props


def _ball() -> list[Part]:
    a = np.linspace(0, np.pi / 3, 8)
    parts: list[Part] = [("white", _ellipse(0, 0, 0.92, n=36))]
    for turn, name in ((20, "red"), (140, "blue"), (260, "yellow")):
        wedge = np.concatenate([[(0.0, 0.0)], 0.9 * np.stack([np.cos(a), np.sin(a)], 1)])
        parts += [(name, _turn(wedge, turn))]
    return parts + [("white", _ellipse(0, 0, 0.2))]


def _box() -> list[Part]:
    return [
        ("violet", _rect(-0.8, -0.2, 0.8, 0.92)),
        ("violet2", _rect(-0.92, -0.42, 0.92, -0.06)),
        ("yellow", _rect(-0.17, -0.42, 0.17, 0.92, r=0.02)),
        ("yellow", _rect(-0.8, 0.3, 0.8, 0.54, r=0.02)),
        ("yellow", _blob((0.0, -0.42), (-0.3, -0.94), (-0.72, -0.84), (-0.5, -0.46))),
        ("yellow", _blob((0.0, -0.42), (0.3, -0.94), (0.72, -0.84), (0.5, -0.46))),
    ]


def _hat() -> list[Part]:
    return [
        ("black", _poly((-0.6, -0.9), (0.6, -0.9), (0.5, 0.6), (-0.5, 0.6), r=0.1)),
        ("red", _rect(-0.54, 0.16, 0.54, 0.46, r=0.03)),
        ("black", _ellipse(0, 0.62, 1.0, 0.24)),
        ("grey", _stroke((-0.34, -0.7), (-0.3, 0.0), w=0.1)),
    ]


def _kite() -> list[Part]:
    top, right, bottom, left, mid = (0.3, -1.1), (1.08, -0.4), (-0.2, 0.6), (-0.7, -0.72), (0.14, -0.5)
    return [
        ("ink", _stroke((-0.2, 0.56), (-0.5, 0.66), (-0.3, 0.86), (-0.76, 1.0), w=0.11)),
        ("red", _poly((-0.7, 0.52), (-0.32, 0.8), (-0.3, 0.54), r=0.02)),
        ("blue", _poly((-0.62, 0.82), (-0.06, 1.04), (-0.14, 0.72), r=0.02)),
        ("green", _poly(top, mid, left, r=0.02)),
        ("yellow", _poly(top, right, mid, r=0.02)),
        ("orange", _poly(left, mid, bottom, r=0.02)),
        ("teal", _poly(mid, right, bottom, r=0.02)),
    ]


def _candle() -> list[Part]:
    return [
        ("teal2", _ellipse(0, 0.76, 1.0, 0.24)),
        ("wax", _rect(-0.42, -0.24, 0.42, 0.78)),
        ("orange", _stroke((-0.22, -0.2), (-0.22, 0.1), w=0.1)),
        ("ink", _stroke((0, -0.4), (0, -0.22), w=0.1)),
        ("flame", _blob((0.02, -1.06), (0.34, -0.62), (0.2, -0.32), (-0.2, -0.32), (-0.32, -0.6))),
        ("core", _ellipse(0.0, -0.5, 0.13, 0.18)),
    ]


def _apple() -> list[Part]:
    return [
        ("red", _blob((0.0, -0.42), (0.5, -0.58), (0.88, -0.2), (0.76, 0.5), (0.36, 0.92), (0.0, 0.84),
                      (-0.36, 0.92), (-0.76, 0.5), (-0.88, -0.2), (-0.5, -0.58))),
        ("wood", _stroke((0.0, -0.36), (0.04, -0.66), (0.14, -0.88), w=0.13)),
        ("green", _blob((0.1, -0.6), (0.36, -0.94), (0.8, -0.92), (0.6, -0.62))),
        ("white", _ellipse(-0.44, -0.14, 0.13, 0.22, turn=25)),
    ]


def _book() -> list[Part]:
    return [
        ("navy", _poly((-0.94, -0.2), (0.5, -0.66), (0.96, 0.1), (0.96, 0.34), (-0.46, 0.86),
                       (-0.94, 0.12), r=0.06)),
        ("page", _poly((-0.42, 0.5), (0.9, 0.06), (0.9, 0.28), (-0.42, 0.74), r=0.03)),
        ("blue", _poly((-0.96, -0.22), (0.5, -0.68), (0.98, 0.06), (-0.44, 0.52), r=0.05)),
        ("yellow", _poly((-0.5, -0.12), (0.32, -0.38), (0.5, -0.1), (-0.3, 0.18), r=0.03)),
    ]


def _bucket() -> list[Part]:
    return [
        ("steel", _stroke((-0.76, -0.36), (-0.5, -0.86), (0.0, -0.98), (0.5, -0.86), (0.76, -0.36), w=0.11)),
        ("teal", _poly((-0.84, -0.36), (0.84, -0.36), (0.56, 0.92), (-0.56, 0.92), r=0.1)),
        ("white", _poly((-0.74, 0.1), (0.74, 0.1), (0.68, 0.4), (-0.68, 0.4), r=0.02)),
        ("teal2", _ellipse(0, -0.36, 0.86, 0.2)),
    ]


PROP_BUILDERS: dict[str, Callable[[], list[Part]]] = {
    "ball": _ball, "box": _box, "hat": _hat, "kite": _kite, "candle": _candle, "apple": _apple, "book": _book,
    "bucket": _bucket,
}
# fmt: on


@cache
def _packed(kind: str, variant: int) -> tuple[tuple[int, ...], Shape, tuple[int, ...], tuple[bool, ...]]:
    """The parts of an object or a prop, packed for drawing.

    Returns (palette index of each part, all outlines in one array, where in its flat list each outline ends,
    whether the part belongs to the silhouette).
    """
    if kind in BUILDERS:
        parts, index = BUILDERS[kind](variant), OBJECT_INDEX
    else:
        parts, index = PROP_BUILDERS[kind](), PROP_INDEX
    ends = tuple(int(e) for e in np.cumsum([2 * len(shape) for _, shape in parts]))
    outer = tuple(_reaches_out(i, [shape for _, shape in parts]) for i in range(len(parts)))
    return tuple(index[name] for name, _ in parts), np.concatenate([shape for _, shape in parts]), ends, outer


def _reaches_out(which: int, shapes: Sequence[Shape]) -> bool:
    """Whether an outline comes near the edge of the silhouette that the other shapes make together."""
    image = Image.new("L", (120, 120))
    draw = ImageDraw.Draw(image)
    for i, shape in enumerate(shapes):
        if i != which:
            draw.polygon((shape * 48 + 60).ravel().tolist(), fill=255)
    inside = np.asarray(image.filter(ImageFilter.MinFilter(5))) > 0
    x, y = np.clip(np.round(shapes[which] * 48 + 60), 0, 119).astype(int).T
    return not inside[y, x].all()


# ---------------------------------------------------------------------------------------------------- sprites


@lru_cache(maxsize=256)
def _pattern_mask(pattern: str, half: int) -> Image.Image:
    """Stripes or spots for an object of `half` pixels a unit: an L image, to be cropped at a random place."""
    side = 4 * half
    image = Image.new("L", (side, side))
    draw = ImageDraw.Draw(image)
    if pattern == "striped":
        step, slant = 0.46 * half, 0.5 * half
        for i in range(-4, int(side / step) + 4):
            x = i * step
            draw.polygon(
                [
                    (x + slant, 0),
                    (x + slant + step * 0.43, 0),
                    (x - slant + step * 0.43, side),
                    (x - slant, side),
                ],
                fill=255,
            )
    else:
        step, r = 0.5 * half, 0.155 * half
        for row in range(int(side / step / 0.8) + 2):
            for column in range(int(side / step) + 2):
                x, y = (column + 0.5 * (row % 2)) * step, row * step * 0.8
                draw.ellipse((x - r, y - r, x + r, y + r), fill=255)
    return image


def _mask(chosen: np.ndarray) -> Image.Image:
    """A boolean array as an L image of 0 and 255."""
    return Image.fromarray(chosen.view(np.uint8) * np.uint8(255))


def _sprite(
    kind: str,
    variant: int,
    half: int,
    degrees: float,
    mirrored: bool,
    rim: tuple[int, int],
    ink: tuple[int, int],
) -> Image.Image:
    """One object or prop as an index image (EMPTY around it).

    `half` is the length of one unit in pixels; `rim` and `ink` are (index, width): the rim lies around the
    whole silhouette, the ink (width 0: none) around each part.
    """
    indices, points, ends, outer = _packed(kind, variant)
    a = np.deg2rad(degrees)
    cos, sin = half * np.cos(a), half * np.sin(a)
    flip = -1.0 if mirrored else 1.0
    centre = int(half * 1.2) + rim[1]
    flat = (points @ np.array([[flip * cos, flip * sin], [-sin, cos]]) + centre).ravel().tolist()
    image = Image.new("L", (2 * centre, 2 * centre), EMPTY)
    draw = ImageDraw.Draw(image)
    outlines = []
    start = 0
    for end in ends:
        outlines.append(flat[start:end] + flat[start : start + 4])
        start = end
    for outline, at_edge in zip(outlines, outer, strict=True):
        if at_edge:
            draw.line(outline, fill=rim[0], width=2 * rim[1])
    for index, outline in zip(indices, outlines, strict=True):
        draw.polygon(outline, fill=index)
        if ink[1]:
            draw.line(outline, fill=ink[0], width=ink[1])
    return image


def _layout(count: int, rng: np.random.Generator) -> tuple[float, list[tuple[float, float]]]:
    """(half width, centres) of the main objects as shares of the width; the lower corners stay free."""
    if count == 1:
        return 0.315, [(0.5, 0.5)]
    if count == 2:
        return 0.232, [(0.265, 0.42), (0.735, 0.5)] if rng.random() < 0.5 else [(0.265, 0.5), (0.735, 0.42)]
    if count == 3:
        if rng.random() < 0.6:
            return 0.205, [(0.25, 0.28), (0.75, 0.28), (0.5, 0.7)]
        return 0.192, [(0.5, 0.235), (0.225, 0.57), (0.775, 0.57)]
    if rng.random() < 0.6:
        return 0.175, [(0.28, 0.235), (0.72, 0.235), (0.28, 0.645), (0.72, 0.645)]
    return 0.172, [(0.5, 0.205), (0.205, 0.475), (0.795, 0.475), (0.5, 0.755)]


# ------------------------------------------------------------------------------------------------ backgrounds


class _Board:
    """The index canvas with the colour names of one background; coordinates are shares of the width."""

    def __init__(self, side: int, background: str, ink: int):
        self.image = Image.new("P", (side, side))
        self.draw = ImageDraw.Draw(self.image)
        self.side = side
        self.ink = ink
        self.index = {name: BACKGROUND_BASE + i for i, name in enumerate(BACKGROUND_COLOURS[background])}

    def poly(self, name: str, points: Sequence[tuple[float, float]] | Shape, ink: bool = True) -> None:
        flat = (np.asarray(points) * self.side).ravel().tolist()
        self.draw.polygon(flat, fill=self.index[name])
        if self.ink and ink:
            self.draw.line(flat + flat[:4], fill=INK_BACKGROUND, width=self.ink)

    def rect(self, name: str, x0: float, y0: float, x1: float, y1: float, ink: bool = True) -> None:
        s = self.side
        outline = INK_BACKGROUND if self.ink and ink else None
        self.draw.rectangle((x0 * s, y0 * s, x1 * s, y1 * s), self.index[name], outline, max(1, self.ink))

    def disc(
        self, name: str, x: float, y: float, rx: float, ry: float | None = None, ink: bool = True
    ) -> None:
        s, ry = self.side, rx if ry is None else ry
        outline = INK_BACKGROUND if self.ink and ink else None
        box = ((x - rx) * s, (y - ry) * s, (x + rx) * s, (y + ry) * s)
        self.draw.ellipse(box, self.index[name], outline, max(1, self.ink))

    def line(self, name: str, points: Sequence[tuple[float, float]], width: float) -> None:
        s = self.side
        self.draw.line(
            [(x * s, y * s) for x, y in points], fill=self.index[name], width=max(1, round(width * s))
        )

    def hill(self, name: str, base: float, height: float, waves: float, phase: float) -> None:
        """Everything below a wavy line."""
        x = np.linspace(-0.02, 1.02, 22)
        y = base - height * np.sin(x * waves * 2 * np.pi + phase)
        top = np.stack([x, y], 1)
        self.poly(name, np.concatenate([top, [(1.02, 1.05), (-0.02, 1.05)]]))


def _beach(b: _Board, rng: np.random.Generator) -> None:
    horizon, shore = 0.34 + rng.uniform(-0.02, 0.02), 0.6 + rng.uniform(-0.02, 0.02)
    left = rng.random() < 0.5
    b.rect("sky", 0, 0, 1, 1, ink=False)
    sun_x, sun_y = (0.13 if left else 0.87), 0.13
    for a in np.arange(0, 2 * np.pi, np.pi / 6) + rng.uniform(0, 0.5):
        c, s = np.cos(a), np.sin(a)
        b.line("sun", [(sun_x + 0.12 * c, sun_y + 0.12 * s), (sun_x + 0.17 * c, sun_y + 0.17 * s)], 0.018)
    b.disc("sun", sun_x, sun_y, 0.1)
    b.rect("deep", -0.02, horizon, 1.02, 1.02)
    b.rect("sea", 0, horizon + 0.09, 1, 1, ink=False)
    for y in (horizon + 0.05, horizon + 0.12, horizon + 0.19):
        x = rng.uniform(-0.1, 0.1)
        while x < 1:
            b.line("foam", [(x, y), (x + 0.05, y - 0.013), (x + 0.1, y)], 0.01)
            x += rng.uniform(0.2, 0.3)
    phase = rng.uniform(0, 6)
    b.hill("foam", shore - 0.03, 0.022, 1.5, phase)
    b.hill("wet", shore, 0.022, 1.5, phase)
    b.hill("sand", shore + 0.035, 0.022, 1.5, phase)
    for x, y in rng.uniform((0.02, shore + 0.1), (0.98, 0.98), (5, 2)).tolist():
        a = np.arange(10) * np.pi / 5 + x
        r = np.where(np.arange(10) % 2 == 0, 0.032, 0.013)
        b.poly("shell", np.stack([x + r * np.cos(a), y + r * np.sin(a)], 1))


def _cloud(b: _Board, x: float, y: float, r: float, name: str = "cloud") -> None:
    for dx, dy, k in ((-1.1, 0.25, 0.7), (1.1, 0.25, 0.75), (0, 0, 1.0)):
        b.disc(name, x + dx * r, y + dy * r, r * k, r * k * 0.7)
    b.disc(name, x, y + 0.2 * r, r * 1.3, r * 0.5, ink=False)


def _meadow(b: _Board, rng: np.random.Generator) -> None:
    b.rect("sky", 0, 0, 1, 1, ink=False)
    for x in (rng.uniform(0.05, 0.25), rng.uniform(0.75, 0.95)):
        _cloud(b, x, rng.uniform(0.07, 0.16), rng.uniform(0.06, 0.08))
    b.hill("far", 0.4, 0.07, 0.9, rng.uniform(0, 6))
    b.hill("near", 0.54, 0.05, 0.7, rng.uniform(0, 6))
    for x, y in rng.uniform((0, 0.62), (1, 1), (14, 2)).tolist():
        b.line("grass", [(x - 0.015, y - 0.035), (x, y), (x + 0.015, y - 0.04)], 0.01)
    places = rng.uniform((0.0, 0.5), (1, 0.98), (16, 2)).tolist()
    places += [(x, y) for x, y in rng.uniform((0, 0.5), (0.12, 1), (4, 2)).tolist()]
    places += [(1 - x, y) for x, y in rng.uniform((0, 0.5), (0.12, 1), (4, 2)).tolist()]
    for i, (x, y) in enumerate(sorted(places, key=lambda p: p[1])):
        r = 0.012 + 0.012 * y
        name = "poppy" if i % 3 == 0 else "petal"
        b.disc(name, x - r, y, r, ink=False)
        b.disc(name, x + r, y, r, ink=False)
        b.disc(name, x, y - r, r, ink=False)
        b.disc(name, x, y + r, r, ink=False)
        b.disc("heart", x, y, r * 0.8, ink=False)


def _autumn(b: _Board, rng: np.random.Generator) -> None:
    b.rect("sky", 0, 0, 1, 1, ink=False)
    ground = 0.52 + rng.uniform(-0.02, 0.02)
    for x in (0.03, 0.97, 0.3, 0.68):
        x, top = x + rng.uniform(-0.05, 0.05), rng.uniform(0.1, 0.2)
        b.rect("trunk", x - 0.025, top, x + 0.025, ground + 0.02)
    for i, x in enumerate((0.3, 0.68, 0.02, 0.98)):
        x, y = x + rng.uniform(-0.04, 0.04), rng.uniform(0.1, 0.18)
        name = "crown2" if i % 2 else "crown"
        r = rng.uniform(0.13, 0.17) if i > 1 else rng.uniform(0.1, 0.13)
        for dx, dy, k in ((-0.7, 0.4, 0.75), (0.7, 0.4, 0.75), (0.0, -0.1, 1.0)):
            b.disc(name, x + dx * r, y + dy * r, r * k, r * k * 0.95)
        b.disc(name, x, y + 0.3 * r, r, r * 0.7, ink=False)
    b.hill("ground", ground, 0.02, 1.2, rng.uniform(0, 6))
    b.hill("path", 0.8, 0.03, 0.6, rng.uniform(0, 6))
    places = (
        rng.uniform((0, ground + 0.04), (1, 0.99), (26, 2)).tolist()
        + rng.uniform((0, 0.2), (1, 0.5), (6, 2)).tolist()
    )
    turns = rng.uniform(0, np.pi, len(places)).tolist()
    for i, ((x, y), turn) in enumerate(zip(places, turns, strict=True)):
        c, s = 0.034 * np.cos(turn), 0.034 * np.sin(turn)
        b.poly(
            ("leaf", "leaf2", "leaf3")[i % 3],
            [(x - c, y - s), (x - s * 0.5, y + c * 0.5), (x + c, y + s), (x + s * 0.5, y - c * 0.5)],
            ink=False,
        )


def _fir(b: _Board, x: float, base: float, tall: float) -> None:
    b.rect("bare", x - 0.015, base - 0.06, x + 0.015, base + 0.02)
    for k, wide in ((0.0, 0.34), (0.3, 0.27), (0.58, 0.19)):
        low, high, w = base - tall * k - 0.02, base - tall * (k + 0.46), wide * tall
        b.poly("fir", [(x - w, low), (x, high), (x + w, low)])
        b.poly(
            "snow",
            [
                (x - w * 0.42, high + (low - high) * 0.44),
                (x, high),
                (x + w * 0.42, high + (low - high) * 0.44),
                (x, high + (low - high) * 0.3),
            ],
            ink=False,
        )


def _snowy(b: _Board, rng: np.random.Generator) -> None:
    b.rect("sky", 0, 0, 1, 1, ink=False)
    b.hill("drift", 0.5, 0.04, 0.8, rng.uniform(0, 6))
    left = rng.random() < 0.5
    trees = [(0.09, 0.56, 0.5), (0.3, 0.5, 0.34), (0.66, 0.5, 0.3)]
    for x, base, tall in trees:
        x = x + rng.uniform(-0.03, 0.03)
        _fir(b, x if left else 1 - x, base, tall + rng.uniform(-0.03, 0.03))
    x = 0.93 + rng.uniform(-0.03, 0.03)
    x = x if left else 1 - x
    b.line("bare", [(x, 0.6), (x, 0.12)], 0.035)
    for y, dx in ((0.34, 0.14), (0.26, -0.13), (0.2, 0.1), (0.15, -0.08)):
        b.line("bare", [(x, y), (x + dx, y - 0.14)], 0.018)
    b.hill("snow", 0.6, 0.03, 0.9, rng.uniform(0, 6))
    b.hill("drift", 0.88, 0.03, 0.7, rng.uniform(0, 6))
    for x, y in rng.uniform(0, (1, 0.6), (26, 2)).tolist():
        b.disc("flake", x, y, 0.013, ink=False)


def _city(b: _Board, rng: np.random.Generator) -> None:
    b.rect("sky", 0, 0, 1, 1, ink=False)
    x, i = -0.04, int(rng.integers(3))
    while x < 1.0:
        wide = rng.uniform(0.13, 0.2)
        edge = abs(x + wide / 2 - 0.5) > 0.3
        top = rng.uniform(0.03, 0.16) if edge else rng.uniform(0.1, 0.26)
        b.rect(("tower", "tower2", "tower3")[i % 3], x, top, x + wide, 0.7)
        columns = 3 if wide > 0.16 else 2
        lit = rng.random((9, columns)) < 0.7
        cell = wide / (columns + 0.4)
        for r in range(9):
            y = top + 0.035 + r * 0.062
            if y > 0.62:
                break
            for c in range(columns):
                if lit[r, c]:
                    wx = x + cell * (c + 0.42)
                    b.rect("window", wx, y, wx + cell * 0.5, y + 0.032, ink=False)
        x += wide + 0.005
        i += 1
    b.rect("pavement", -0.02, 0.66, 1.02, 0.76)
    b.rect("road", -0.02, 0.74, 1.02, 1.05)
    x = rng.uniform(-0.15, 0.0)
    while x < 1:
        b.rect("dash", x, 0.865, x + 0.12, 0.89, ink=False)
        x += 0.21


#: A star with four points.
STAR = _ellipse(0, 0, 1, n=8) * np.where(np.arange(8) % 2 == 0, 1.0, 0.42)[:, None]


def _night(b: _Board, rng: np.random.Generator) -> None:
    b.rect("sky", 0, 0, 1, 1, ink=False)
    b.hill("glow", 0.62, 0.05, 0.7, rng.uniform(0, 6))
    x, y = (0.15 if rng.random() < 0.5 else 0.85) + rng.uniform(-0.02, 0.02), 0.15 + rng.uniform(-0.02, 0.02)
    b.disc("moon", x, y, 0.115)
    b.disc("sky", x + 0.055, y - 0.03, 0.098)
    for i, (sx, sy) in enumerate(rng.uniform((0.02, 0.02), (0.98, 0.72), (26, 2)).tolist()):
        if abs(sx - x) < 0.15 and abs(sy - y) < 0.15:
            continue
        r = 0.028 if i % 3 == 0 else 0.014
        b.poly("star", STAR * r + (sx, sy), ink=False)
    b.hill("hill", 0.8, 0.04, 1.0, rng.uniform(0, 6))
    b.hill("hill2", 0.9, 0.03, 0.8, rng.uniform(0, 6))


def _cactus(b: _Board, x: float, base: float, tall: float, flip: float) -> None:
    w = 0.075

    def limb(points: list[tuple[float, float]], width: float) -> None:
        s, ink = b.side, b.ink
        for name, extra in ((INK_BACKGROUND, 2 * ink / s), (b.index["cactus"], 0.0)):
            if extra or name != INK_BACKGROUND:
                r = (width + extra) / 2
                b.draw.line([(px * s, py * s) for px, py in points], fill=name, width=round(2 * r * s))
                for px, py in points:
                    b.draw.ellipse(((px - r) * s, (py - r) * s, (px + r) * s, (py + r) * s), fill=name)

    limb(
        [(x, base - tall * 0.4), (x + flip * 0.1, base - tall * 0.4), (x + flip * 0.1, base - tall * 0.7)],
        w * 0.6,
    )
    limb(
        [
            (x, base - tall * 0.55),
            (x - flip * 0.095, base - tall * 0.55),
            (x - flip * 0.095, base - tall * 0.85),
        ],
        w * 0.6,
    )
    limb([(x, base), (x, base - tall)], w)
    for k in (0.25, 0.5, 0.75):
        b.line("spine", [(x, base - tall * k), (x, base - tall * (k + 0.12))], 0.014)


def _desert(b: _Board, rng: np.random.Generator) -> None:
    b.rect("sky", 0, 0, 1, 1, ink=False)
    left = rng.random() < 0.5
    b.disc("sun", 0.82 if left else 0.18, 0.14, 0.12)
    phase = rng.uniform(0, 6)
    b.poly(
        "far",
        [
            (-0.02, 0.5),
            (-0.02, 0.4),
            (0.1, 0.34),
            (0.26, 0.34),
            (0.36, 0.45),
            (0.6, 0.45),
            (0.7, 0.38),
            (0.88, 0.38),
            (1.02, 0.46),
            (1.02, 0.6),
            (-0.02, 0.6),
        ],
    )
    b.hill("dune", 0.5, 0.05, 0.8, phase)
    _cactus(b, 0.12 if left else 0.88, 0.62, 0.46 + rng.uniform(-0.03, 0.03), 1.0)
    _cactus(b, 0.93 if left else 0.07, 0.6, 0.26 + rng.uniform(-0.03, 0.03), -0.8)
    b.hill("near", 0.68, 0.06, 0.9, phase + 2.2)
    b.hill("dune", 0.86, 0.04, 0.7, phase + 4.0)
    for x, y in rng.uniform((0.02, 0.72), (0.98, 0.98), (5, 2)).tolist():
        b.disc("stone", x, y, 0.028, 0.017)


def _room(b: _Board, rng: np.random.Generator) -> None:
    b.rect("wall", 0, 0, 1, 1, ink=False)
    x = rng.uniform(0, 0.1)
    while x < 1:
        b.rect("paper", x, 0, x + 0.05, 0.7, ink=False)
        x += 0.1
    left = rng.random() < 0.5
    wx = 0.02 if left else 0.64  # window with curtains
    b.rect("frame", wx, 0.05, wx + 0.34, 0.42)
    b.rect("pane", wx + 0.03, 0.08, wx + 0.31, 0.39)
    b.rect("frame", wx + 0.16, 0.05, wx + 0.18, 0.42, ink=False)
    b.rect("frame", wx + 0.02, 0.22, wx + 0.32, 0.24, ink=False)
    b.poly(
        "curtain",
        [(wx - 0.03, 0.02), (wx + 0.1, 0.02), (wx + 0.06, 0.26), (wx + 0.03, 0.46), (wx - 0.03, 0.46)],
    )
    b.poly(
        "curtain",
        [(wx + 0.37, 0.02), (wx + 0.24, 0.02), (wx + 0.28, 0.26), (wx + 0.31, 0.46), (wx + 0.37, 0.46)],
    )
    px, py = (0.74 if left else 0.04) + rng.uniform(-0.02, 0.02), 0.07 + rng.uniform(-0.02, 0.02)
    b.rect("frame", px, py, px + 0.22, py + 0.26)
    b.rect("picture", px + 0.03, py + 0.03, px + 0.19, py + 0.23)
    b.poly(
        "motif",
        [
            (px + 0.03, py + 0.23),
            (px + 0.08, py + 0.11),
            (px + 0.12, py + 0.17),
            (px + 0.15, py + 0.13),
            (px + 0.19, py + 0.23),
        ],
        ink=False,
    )
    b.rect("floor", -0.02, 0.68, 1.02, 1.05)
    b.rect("skirting", -0.02, 0.64, 1.02, 0.695)
    for y in (0.77, 0.86, 0.94):
        b.line("board", [(0, y), (1, y)], 0.01)
        x = rng.uniform(0, 0.4)
        while x < 1:
            b.line("board", [(x, y), (x, y - 0.08)], 0.01)
            x += 0.42


PAINTERS: dict[str, Callable[[_Board, np.random.Generator], None]] = {
    "beach": _beach, "meadow": _meadow, "autumn park": _autumn, "snowy park": _snowy, "city": _city,
    "night sky": _night, "desert": _desert, "room": _room,
}  # fmt: skip

# ----------------------------------------------------------------------------------------------------- styles


@lru_cache(maxsize=8)
def _textures(size: int) -> dict[str, Image.Image]:
    """Fixed overlays of a picture size, as L images: how much of the overlay's colour goes on every pixel."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:size, 0:size].astype(np.float32) / size
    unit = size / 112

    def lines(slope: float, period: float, width: float) -> np.ndarray:
        fine = 4
        v, u = np.mgrid[0 : size * fine, 0 : size * fine].astype(np.float32) / (fine * unit)
        wobble = 0.5 * np.sin(u * 0.16 + v * 0.07) + 0.3 * np.sin(v * 0.23)
        hit = ((u + slope * v + wobble) % period) < width
        return hit.reshape(size, fine, size, fine).mean((1, 3))

    coarse = rng.normal(size=(size // 2 + 1, size // 2 + 1)).repeat(2, 0).repeat(2, 1)[:size, :size]
    grain = 0.6 * rng.normal(size=(size, size)) + 0.55 * coarse
    waves = 0.012 * (np.sin(x * 23) + np.sin(y * 19 + 1) + np.sin((x + y) * 31))
    border = np.minimum(np.minimum(x, 1 - x), np.minimum(y, 1 - y)) + waves
    tile = max(2, round(size / 28))
    row, column = (np.mgrid[0:size, 0:size] % tile).astype(int)
    overlays = {
        "hatch": lines(1.0, 4.0, 1.35),
        "cross": lines(-1.0, 4.0, 1.25),
        "chalk": np.clip(grain - 0.4, 0, 1) * 0.42,
        "tooth": np.clip(-grain - 0.4, 0, 1.5) * 0.12,
        "vignette": 0.34 * np.clip((np.hypot(x - 0.5, y - 0.5) - 0.4) / 0.3, 0, 1) ** 1.5,
        "paper edge": np.clip((0.055 - border) / 0.02, 0, 1),
        "grout": 0.38 * ((row == 0) | (column == 0)),
        "edge": 0.14 * (((row == tile - 1) | (column == tile - 1)) & (row > 0) & (column > 0)),
        "bevel": 0.16 * (((row == 1) | (column == 1)) & (row > 0) & (column > 0)),
    }
    return {name: Image.fromarray((255 * overlay).astype(np.uint8)) for name, overlay in overlays.items()}


@lru_cache(maxsize=128)
def _relief(side: int) -> tuple[Image.Image, Image.Image, Image.Image]:
    """The light on one object, from the upper left: how bright, how dark, and how dark for pencils."""
    y, x = np.mgrid[0:side, 0:side].astype(np.float32) / side
    depth = 0.62 * x + 0.85 * y - 0.34
    bright, dark = 0.5 * np.clip(0.34 - depth, 0, 0.8), 0.42 * np.clip(depth - 0.3, 0, 1)
    pencil = 0.3 + 0.3 * np.clip(depth, 0, 1)
    return tuple(Image.fromarray((255 * a).astype(np.uint8)) for a in (bright, dark, pencil))  # type: ignore[return-value]


def _finish(
    style: str,
    picture: Image.Image,
    figures: Image.Image | None,
    objects: Sequence[tuple[int, int, Image.Image]],
    rng: np.random.Generator,
) -> None:
    """Lays the style's finish over the reduced picture, in place.

    `figures` is the mask of everything but the background (None in the styles that need none); `objects` are
    (left, top, mask) of every main object and the prop.
    """
    size = picture.width
    over = _textures(size)
    if style == "mosaic":
        tile = max(2, round(size / 28))
        across = -(-size // tile)
        tiles = np.asarray(picture.reduce(tile), np.float32) * rng.normal(1.0, 0.045, (across, across, 1))
        small = Image.fromarray(np.clip(tiles, 0, 255).astype(np.uint8))
        blocks = small.resize((across * tile, across * tile), Image.Resampling.NEAREST).crop(
            (0, 0, size, size)
        )
        picture.paste(Image.blend(picture, blocks, 0.58))
        picture.paste((255, 255, 255), None, over["bevel"])
        picture.paste((176, 170, 166), None, over["grout"])
        picture.paste((30, 24, 40), None, over["edge"])
    elif style == "pastel":
        dx, dy = rng.integers(size, size=2).tolist()
        chalk = ImageChops.offset(over["chalk"], dx, dy)
        light = picture.convert("L").point(_CHALK_BY_LIGHT)
        picture.paste(PAPER, None, ImageChops.multiply(chalk, light))
        picture.paste((70, 60, 70), None, ImageChops.offset(over["tooth"], dx, dy))
        picture.paste(PAPER, None, over["paper edge"])
    elif style == "shaded":
        assert figures is not None
        offset = round(size * 0.04)
        cast = ImageChops.offset(figures.filter(ImageFilter.BoxBlur(size / 40)), offset, offset).point(_HALF)
        outside = ImageChops.invert(figures)
        picture.paste(
            (28, 20, 44), None, ImageChops.multiply(ImageChops.lighter(cast, over["vignette"]), outside)
        )
        for left, top, mask in objects:
            bright, dark, _ = _relief(mask.width)
            picture.paste((255, 255, 250), (left, top), ImageChops.multiply(bright, mask))
            picture.paste((34, 14, 40), (left, top), ImageChops.multiply(dark, mask))
    elif style == "hatched":
        assert figures is not None
        ground = ImageChops.multiply(over["cross"], ImageChops.invert(figures)).point(_QUARTER)
        marks = Image.new("L", picture.size)
        for left, top, mask in objects:
            marks.paste(_relief(mask.width)[2], (left, top), mask)
        lines = ImageChops.lighter(ground, ImageChops.multiply(over["hatch"], marks))
        light = picture.convert("L")
        picture.paste((54, 44, 60), None, lines)
        picture.paste((164, 162, 184), None, ImageChops.multiply(lines, light.point(_PALE_PENCIL)))


_HALF = [round(0.5 * i) for i in range(256)]
_QUARTER = [round(0.26 * i) for i in range(256)]
_PALE_PENCIL = [max(0, min(255, 8 * (110 - i))) for i in range(256)]  # on dark ground
_CHALK_BY_LIGHT = [min(255, round(40 + 1.1 * i)) for i in range(256)]


# ------------------------------------------------------------------------------------------------------ scene


def draw_scene(scene: Scene, seed: int, size: int = 112, tint: RGB | None = None) -> Image.Image:
    """The picture of a scene.

    Args:
        scene: what to draw.
        seed: a non-negative integer that decides everything the scene leaves open (small shifts and turns,
            where clouds, leaves and stars are); equal arguments give equal bytes.
        size: width and height in pixels.
        tint: paints the main objects in this colour instead of the scene's.

    Returns:
        An RGB image of size x size pixels.
    """
    rng = np.random.default_rng(seed)
    side = size * SUPERSAMPLE
    unit = side / 336
    style = scene.style
    board = _Board(side, scene.background, round(3 * unit) if style == "outline" else 0)
    PAINTERS[scene.background](board, rng)

    ink_width = {"outline": round(5 * unit), "hatched": round(2 * unit)}.get(style, 0)
    rim_width = max(1, round({"outline": 6, "mosaic": 5}.get(style, 4) * unit))
    share, centres = _layout(scene.count, rng)
    half = round(side * share * rng.uniform(0.95, 1.03))
    sprite = _sprite(
        scene.kind,
        scene.variant,
        half,
        float(rng.uniform(-5, 5)),
        scene.facing == "right",
        (OBJECT_INDEX["rim"], rim_width),
        (OBJECT_INDEX["ink"], ink_width if scene.count == 1 or style != "outline" else round(4 * unit)),
    )
    phase = rng.integers(0, max(1, half // 2), 2).tolist()
    if scene.pattern != "plain":
        marks = _pattern_mask(scene.pattern, half)
        marks = marks.crop((phase[0], phase[1], phase[0] + sprite.width, phase[1] + sprite.height))
        sprite.paste(
            OBJECT_INDEX["pattern"],
            None,
            ImageChops.darker(_mask(np.asarray(sprite) == OBJECT_INDEX["main"]), marks),
        )
    solid = _mask(np.asarray(sprite) != EMPTY)
    small = solid.reduce(SUPERSAMPLE)
    jitter = rng.uniform(-0.018, 0.018, (len(centres), 2)).tolist()
    aside = 0.0 if scene.prop == "none" else (0.035 if scene.side == "left" else -0.035)
    objects = []
    for (x, y), (dx, dy) in zip(centres, jitter, strict=True):
        if scene.count == 1 and aside:
            x, y = x + aside, y - 0.03
        left, top = round((x + dx) * side) - sprite.width // 2, round((y + dy) * side) - sprite.height // 2
        board.image.paste(sprite, (left, top), solid)
        objects.append((left // SUPERSAMPLE, top // SUPERSAMPLE, small))
    turn, shift = float(rng.uniform(-6, 6)), rng.uniform(-0.012, 0.012, 2).tolist()
    if scene.prop != "none":
        prop_half = round(0.118 * side)
        prop = _sprite(
            scene.prop,
            0,
            prop_half,
            turn,
            False,
            (PROP_INDEX["halo"], max(1, round(5 * unit))),
            (PROP_INDEX["ink"], round((4 if style == "outline" else 2) * unit)),
        )
        x = (0.145 if scene.side == "left" else 0.855) + shift[0]
        y = 0.86 + shift[1]
        left, top = round(x * side) - prop.width // 2, round(y * side) - prop.height // 2
        prop_solid = _mask(np.asarray(prop) != EMPTY)
        board.image.paste(prop, (left, top), prop_solid)
        objects.append((left // SUPERSAMPLE, top // SUPERSAMPLE, prop_solid.reduce(SUPERSAMPLE)))

    figures = None
    if style in ("shaded", "hatched"):
        figures = _mask(np.asarray(board.image) >= OBJECT_BASE).reduce(SUPERSAMPLE)
    if tint is None:
        board.image.putpalette(_palette(scene.colour, scene.shade, scene.pattern, scene.background, style))
    else:
        marks = _mix(tint, (255, 255, 255) if _luminance(tint) < 150 else (20, 16, 24), 0.6)
        objects_ = _dressed("brown", scene.shade, scene.pattern, style, tint, marks)
        board.image.putpalette(_table(objects_, scene.background, style))
    picture = board.image.convert("RGB").reduce(SUPERSAMPLE)
    if style not in ("flat", "outline"):
        _finish(style, picture, figures, objects, rng)
    return picture


# ----------------------------------------------------------------------------------------------------- sheets

PLAIN = Scene("cat", "orange", 1, "plain", "meadow", "none", "left", "flat", "light", 0, "left")


def contact_sheet(
    rows: Sequence[Sequence[Any]], draw: Callable[[Any, int, int], Image.Image], size: int = 112
) -> Image.Image:
    """Pictures of `rows` of scenes (of what `draw` draws) in a grid."""
    gap = 4
    wide = max(len(row) for row in rows)
    sheet = Image.new("RGB", (wide * (size + gap) + gap, len(rows) * (size + gap) + gap), (255, 255, 255))
    for r, row in enumerate(rows):
        for c, content in enumerate(row):
            picture = draw(content, 100 * r + c, size)
            sheet.paste(picture, (gap + c * (size + gap), gap + r * (size + gap)))
    return sheet


def _sheets() -> dict[str, list[list[Scene]]]:
    """What to look at: each sheet varies two or three fields."""
    rng = np.random.default_rng(3)

    def plain(**values: Any) -> Scene:
        return Scene(**(PLAIN.as_dict() | values))

    def scene(line: str, **values: str | int) -> Scene:
        """Read a scene off words, e.g. "light red car striped city 2 hat right" (_ stands for a blank)."""
        shade, colour, kind, pattern, background, count, prop, side = line.split()
        spoken = {
            "shade": shade,
            "colour": colour,
            "kind": kind,
            "pattern": pattern,
            "prop": prop,
            "side": side,
        }
        return plain(**spoken, background=background.replace("_", " "), count=int(count), **values)

    looks = (
        "light orange cat plain meadow 1 ball left",
        "light red car striped city 2 hat right",
        "dark green tree plain beach 1 bucket right",
        "dark blue cup spotted room 4 apple left",
        "light white bird plain snowy_park 1 box left",
        "dark black dog plain night_sky 1 none left",
        "light yellow house spotted autumn_park 3 book left",
        "dark pink fish striped desert 4 none left",
    )
    patterned = (
        "light orange cat",
        "light yellow cup",
        "dark blue lamp",
        "light pink bench",
        "light white umbrella",
        "dark purple flower",
    )
    hues = (("cat", "meadow"), ("car", "desert"), ("fish", "night sky"), ("house", "snowy park"))
    grounds = (("chair", "blue"), ("lamp", "red"), ("house", "white"), ("boat", "black"))
    stages = (
        ("left", 1, "beach"),
        ("right", 2, "snowy park"),
        ("left", 3, "city"),
        ("right", 4, "night sky"),
    )
    return {
        "kinds": [
            [
                plain(kind=k, variant=v, facing=f, colour=COLOURS[i % 8], background="room")
                for i, k in enumerate(KINDS)
            ]
            for v in VARIANTS
            for f in FACINGS
        ],
        "colours": [
            [plain(kind=k, colour=c, shade=s, background=b) for c in COLOURS] for k, b in hues for s in SHADES
        ],
        "styles": [[scene(line, style=s) for line in looks] for s in STYLES],
        "patterns": [
            [scene(f"{line} {p} beach {n} none left") for p in PATTERNS for n in COUNTS] for line in patterned
        ],
        "backgrounds": [[plain(kind=k, background=b, colour=c) for b in BACKGROUNDS] for k, c in grounds],
        "props": [
            [plain(kind="dog", colour="purple", prop=q, side=s, count=n, background=b) for q in PROPS[1:]]
            for s, n, b in stages
        ],
        "mixed": [[random_scene(rng) for _ in range(12)] for _ in range(8)],
    }


def command(
    about: str | None,
    sheets: Callable[[], dict[str, list[list[Any]]]],
    draw: Callable[[Any, int, int], Image.Image],
    make: Callable[..., Any],
    fields: dict[str, tuple],
) -> None:
    """The command line of a domain's drawer: contact sheets, and the time a picture takes for every value of
    ``fields``."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sheet", type=Path, help="write NAME-mixed.png, NAME-styles.png, ... beside this path"
    )
    parser.add_argument("--only", help="write only the sheet of this name, to --sheet itself")
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument(
        "--speed", action="store_true", help="measure the time a picture takes, value by value"
    )
    args = parser.parse_args()
    if args.sheet:
        for name, rows in sheets().items():
            if args.only in (None, name):
                path = args.sheet if args.only else args.sheet.with_stem(f"{args.sheet.stem}-{name}")
                contact_sheet(rows, draw, args.size).save(path)
                print(path)
    if args.speed:
        rng = np.random.default_rng(0)
        for field, values in fields.items():
            for value in values:
                drawn = [make(rng, **{field: value}) for _ in range(120)]
                start = time.process_time()
                for i, content in enumerate(drawn):
                    draw(content, i, args.size)
                print(f"{value:12s} {1000 * (time.process_time() - start) / len(drawn):.2f} ms")


if __name__ == "__main__":
    fields = {name: CHOICES[name] for name in ("style", "background", "kind")}
    command(__doc__, _sheets, draw_scene, random_scene, fields)
