"""Draws a `Garment` as a small catalogue illustration, with the machinery of `draw` (read that first).

The garment hangs on a hanger or is worn by a person; either way it fills most of the picture and its parts
lie at the same places, so that lengths, sleeves and necklines can be told apart. Dresses are drawn from
head to toe, shirts and tops nearer.

    python -m data_scripts.draw_fashion --sheet sheet.png  # contact sheets to look at
    python -m data_scripts.draw_fashion --speed            # milliseconds a picture
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from data_scripts import draw
from data_scripts.draw import (
    BACKGROUND_COLOURS,
    EMPTY,
    OBJECT_BASE,
    OBJECT_COLOURS,
    PAINTERS,
    RGB,
    SUPERSAMPLE,
    Part,
    Shape,
    _blob,
    _Board,
    _dressed,
    _ellipse,
    _finish,
    _luminance,
    _mask,
    _mix,
    _object_palette,
    _palette,
    _poly,
    _rect,
    _stroke,
    unnamed_colour,
)
from data_scripts.world import SHADES, STYLES
from data_scripts.world_fashion import (
    BACKGROUNDS,
    CATEGORIES,
    CHOICES,
    CHOICES_OF,
    HELD_OUT_COLOURS,
    HELD_OUT_PATTERNS,
    PATTERNS,
    SECOND_COLOURS,
    Garment,
    random_garment,
)

# ---------------------------------------------------------------------------------------------------- colours

#: The backgrounds that scenes do not have; `draw` looks the colours of all of them up by name.
BACKGROUND_COLOURS |= {
    "studio": {
        "back": (206, 204, 216), "light": (222, 220, 230), "floor": (182, 180, 196), "edge": (168, 166, 184),
        "stand": (70, 70, 82), "lamp": (252, 250, 236), "frame": (92, 92, 106), "ray": (236, 234, 236),
    },
    "wall": {
        "mortar": (214, 204, 194), "brick": (190, 128, 108), "brick2": (176, 114, 96),
        "brick3": (202, 146, 122),
        "pavement": (174, 170, 168), "slab": (150, 146, 146),
    },
    "garden": {
        "sky": (202, 228, 236), "hedge": (112, 158, 98), "hedge2": (94, 140, 84), "fence": (246, 244, 236),
        "shadow": (206, 204, 192), "lawn": (158, 198, 116), "rose": (224, 112, 130), "rose2": (240, 190, 96),
        "leaf": (78, 124, 70),
    },
}  # fmt: skip

#: What the palette holds of a garment picture, beside the background. "line" stands out from the garment.
PARTS = (
    "main", "deep", "lift", "rim", "ink", "line", "pattern", "heart", "inner", "band", "button", "belt",
    "buckle", "lace", "hole", "skin", "blush", "hair", "trousers", "shoe", "hanger", "hook", "paper", "frame",
    "sun", "hill", "hill2", "star",
)  # fmt: skip
INDEX = {name: OBJECT_BASE + i for i, name in enumerate(PARTS)}

SKINS: tuple[RGB, ...] = ((248, 214, 186), (224, 178, 140), (150, 102, 74))
HAIRS: tuple[RGB, ...] = ((66, 46, 40), (150, 92, 52), (214, 172, 104), (36, 32, 38))
FIXED: dict[str, RGB] = {
    "buckle": (236, 196, 84),
    "blush": (212, 112, 108),
    "hanger": (186, 134, 88),
    "hook": (120, 122, 132),
    "paper": (252, 248, 232),
    "frame": (52, 48, 60),
    "sun": (246, 176, 40),
    "hill": (40, 140, 140),
    "hill2": (24, 96, 112),
    "star": (214, 44, 62),
    "shoe": (66, 58, 66),
}
CREAM, DARK = (255, 248, 228), (46, 36, 44)


def second_colour(colour2: str) -> RGB:
    """The tone of a pattern's colour, whatever the shade of its ground: between the two shades of objects."""
    light, dark = OBJECT_COLOURS[colour2]
    share = {"white": 0.0, "black": 1.0, "blue": 0.55, "green": 0.6, "purple": 0.6}.get(colour2, 0.4)
    return _mix(light, dark, share)


@lru_cache(maxsize=4096)
def _fashion_palette(
    colour: str,
    colour2: str,
    shade: str,
    background: str,
    style: str,
    skin: int,
    hair: int,
    tint: RGB | None = None,
) -> tuple[int, ...]:
    """The flat 256-entry RGB palette of a garment picture, the garment in `tint` where one is given."""
    dressed = _object_palette(colour, shade, "plain", style)
    if tint is not None:
        dressed = _dressed("brown", shade, "plain", style, tint, tint)
    names = dict(zip(draw.OBJECT_PARTS, dressed, strict=True))
    main = names["main"]
    dark_ground = _luminance(main) < 120
    table = {name: names[name] for name in ("main", "deep", "lift", "rim", "ink")} | FIXED
    table["line"] = _mix(main, (255, 255, 255), 0.55) if dark_ground else _mix(main, (40, 24, 44), 0.62)
    table["inner"] = _mix(main, (24, 16, 30), 0.6)
    table["band"] = _mix(main, (255, 255, 255), 0.2) if dark_ground else _mix(main, (60, 40, 60), 0.16)
    table["button"] = CREAM if dark_ground else DARK
    table["belt"] = (238, 214, 170) if dark_ground else (84, 50, 34)
    table["lace"], table["hole"] = (255, 255, 252), (150, 140, 156)
    table["skin"], table["hair"] = SKINS[skin], HAIRS[hair]
    table["trousers"] = (196, 190, 180) if dark_ground else (84, 92, 112)
    second = main if colour2 == "none" else second_colour(colour2)
    table["pattern"] = second
    table["heart"] = (250, 206, 70) if colour2 not in ("yellow", "orange") else (120, 66, 30)
    if style in ("pastel", "hatched"):
        for name in (*FIXED, "pattern", "skin", "trousers", "belt"):
            table[name] = _mix(table[name], draw.PAPER, 0.1)
    flat = list(_palette(colour, shade, "plain", background, style))
    for name, index in INDEX.items():
        flat[3 * index : 3 * index + 3] = table[name]
    return tuple(flat)


# ----------------------------------------------------------------------------------------------- the garments
# Coordinates: x to the right, y down, both -1..1 over the whole picture. All parts are drawn for facing left:
# the person's hand on the left hip, the price tag on the left.


def _mirrored(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The left half of an outline whose right half is given, in the order that closes it."""
    return [(-x, y) for x, y in reversed(points)]


class _Cut:
    """The measures that all parts of a garment share."""

    def __init__(self, garment: Garment):
        self.dress = garment.category == "dress"
        loose = garment.fit == "loose"
        self.loose = loose
        covered = garment.sleeves in ("short", "long")
        if self.dress:
            self.neck, self.shoulder, self.armpit = (
                (0.2, -0.58),
                (0.34 if covered else 0.29, -0.52),
                (0.29, -0.28),
            )
            self.waist_y = -0.06
            hem_y = {"mini": 0.4, "midi": 0.65, "maxi": 0.89}[garment.length]
            share = (hem_y - self.waist_y) / 0.9
            if loose:
                self.side = [(0.26, -0.06), (0.36, 0.07), (0.4 + 0.4 * share, hem_y)]
            else:
                self.side = [(0.2, -0.06), (0.33, 0.16), (0.33, 0.3), (0.34 - 0.05 * share, hem_y)]
            self.shoulder_joint, self.elbow, self.hand = (0.31, -0.44), (0.56, -0.1), (0.7, 0.24)
            self.bent, self.straight = ((0.68, -0.06), (0.27, 0.08)), ((0.49, -0.1), (0.54, 0.24))
            self.arm, self.sleeve = 0.105, (0.3 if loose else 0.21)
            self.head = (0.0, -0.82, 0.14)
        else:
            self.neck, self.shoulder, self.armpit = (
                (0.23, -0.6),
                (0.5 if covered else 0.42, -0.5),
                (0.44, -0.14),
            )
            self.waist_y = 0.2
            hem_y = {"none": 0.6, "cropped": 0.13, "long": 0.74}[garment.length]
            if loose:
                self.side = [(0.53, 0.06), (0.57, hem_y * 0.6), (0.6, hem_y)]
            elif hem_y < 0.2:
                self.side = [(0.36, hem_y)]
            else:
                self.side = [(0.34, 0.18), (0.4, 0.46), (0.42, hem_y)]
            self.shoulder_joint, self.elbow, self.hand = (0.43, -0.42), (0.7, 0.06), (0.84, 0.54)
            self.bent, self.straight = ((0.86, 0.12), (0.4, 0.36)), ((0.62, 0.06), (0.68, 0.54))
            self.arm, self.sleeve = 0.16, (0.4 if loose else 0.29)
            self.head = (0.0, -0.92, 0.2)
        if garment.detail == "lace":  # the trimming is part of the length
            self.side[-1] = (self.side[-1][0], hem_y - 0.07)
        self.hem_y = self.side[-1][1]
        self.hem = self.side[-1][0]
        self.depth = {"round": 0.18, "v": 0.44, "collar": 0.2}[garment.neckline]


def _along(path: Sequence[tuple[float, float]], share: float) -> list[tuple[float, float]]:
    """The first `share` of a polyline's length."""
    points = np.array(path, float)
    steps = np.hypot(*np.diff(points, axis=0).T)
    left = share * steps.sum()
    out = [path[0]]
    for start, end, step in zip(points[:-1], points[1:], steps, strict=True):
        if left <= step:
            out.append(tuple((start + (end - start) * left / step).tolist()))
            break
        out.append(tuple(end.tolist()))
        left -= step
    return out


def _arms(c: _Cut, worn: bool) -> list[list[tuple[float, float]]]:
    """The paths of the two arms: worn, one hand rests on the hip; on the hanger both sleeves hang."""
    sx, sy = c.shoulder_joint
    if worn:
        return [[(-sx, sy), *((-x, y) for x, y in c.bent)], [(sx, sy), *c.straight]]
    (ex, ey), (hx, hy) = c.elbow, c.hand
    return [[(-sx, sy), (-ex * 0.98, ey + 0.03), (-hx * 0.9, hy)], [(sx, sy), c.elbow, c.hand]]


def _body(c: _Cut, worn: bool) -> list[Part]:
    """The person behind the garment, or the hanger with its price tag."""
    if not worn:
        x, y = c.shoulder
        top = c.neck[1] - 0.02
        return [
            (
                "hook",
                _stroke(
                    (0.0, top),
                    (0.0, top - 0.14),
                    (0.09, top - 0.22),
                    (0.02, top - 0.32),
                    (-0.09, top - 0.25),
                    w=0.06,
                ),
            ),
            ("frame", _stroke((-0.03, top - 0.1), (-0.26, top - 0.2), (-0.42, top - 0.12), w=0.025)),
            (
                "frame",
                _poly(
                    (-0.4, top - 0.2),
                    (-0.29, top - 0.1),
                    (-0.36, top + 0.06),
                    (-0.62, top - 0.03),
                    (-0.56, top - 0.22),
                    r=0.02,
                ),
            ),
            (
                "paper",
                _poly(
                    (-0.41, top - 0.17),
                    (-0.325, top - 0.1),
                    (-0.38, top + 0.025),
                    (-0.585, top - 0.045),
                    (-0.535, top - 0.19),
                    r=0.02,
                ),
            ),
            ("star", _stroke((-0.51, top - 0.08), (-0.42, top - 0.05), w=0.045)),
            (
                "hanger",
                _stroke((-x * 0.86, y + 0.06), (-0.06, top), (0.06, top), (x * 0.86, y + 0.06), w=0.08),
            ),
        ]
    hx, hy, r = c.head
    nx, ny = c.neck
    sx, sy = c.shoulder_joint
    parts: list[Part] = [
        ("hair", _ellipse(hx + 0.03, hy - 0.02, r * 1.22, r * 1.3)),
        ("hair", _ellipse(hx + r * 1.0, hy - r * 0.9, r * 0.55)),
    ]
    if c.dress:
        parts += [
            ("skin", _stroke((-0.12, 0.1), (-0.13, 0.55), (-0.15, 0.9), w=0.2, end=0.1)),
            ("skin", _stroke((0.13, 0.1), (0.15, 0.55), (0.12, 0.9), w=0.2, end=0.1)),
            ("shoe", _blob((-0.3, 0.97), (-0.24, 0.9), (-0.1, 0.88), (-0.08, 0.97))),
            ("shoe", _blob((-0.02, 0.97), (0.04, 0.9), (0.17, 0.88), (0.18, 0.97))),
        ]
    else:
        parts += [
            ("skin", _poly((-0.34, -0.2), (0.34, -0.2), (0.36, 0.5), (-0.36, 0.5))),
            (
                "trousers",
                _poly(
                    (-0.35, 0.28),
                    (0.35, 0.28),
                    (0.47, 1.1),
                    (0.05, 1.1),
                    (0.0, 0.75),
                    (-0.05, 1.1),
                    (-0.47, 1.1),
                ),
            ),
        ]
    parts += [("skin", _stroke(*path, w=c.arm, end=c.arm * 0.8)) for path in _arms(c, worn)]
    parts += [
        ("skin", _poly((-nx * 0.6, hy), (nx * 0.6, hy), (nx * 0.7, ny), (sx, sy - 0.06), (sx, sy + 0.2),
                       (-sx, sy + 0.2), (-sx, sy - 0.06), (-nx * 0.7, ny))),
        ("skin", _ellipse(hx - 0.02, hy, r, r * 1.18)),
        ("hair", _blob((hx - r * 1.0, hy - 0.3 * r), (hx - r * 0.6, hy - r * 1.16),
                       (hx + r * 0.4, hy - r * 1.2), (hx + r * 1.02, hy - 0.1 * r),
                       (hx + r * 0.2, hy - 0.62 * r))),
        ("ink", _ellipse(hx - 0.5 * r, hy + 0.08 * r, 0.1 * r, 0.14 * r)),
        ("ink", _ellipse(hx + 0.16 * r, hy + 0.08 * r, 0.1 * r, 0.14 * r)),
        ("blush", _stroke((hx - 0.36 * r, hy + 0.6 * r), (hx - 0.16 * r, hy + 0.66 * r),
                          (hx + 0.04 * r, hy + 0.6 * r), w=0.13 * r)),
    ]  # fmt: skip
    return parts


def _neck_hole(c: _Cut, neckline: str) -> Shape:
    nx, ny = c.neck
    if neckline == "round":
        a = np.linspace(0, np.pi, 16)
        return np.stack([nx * np.cos(a), ny + c.depth * np.sin(a)], 1)
    return np.array([(nx * (0.7 if neckline == "collar" else 1.0), ny), (0.0, ny + c.depth),
                     (-nx * (0.7 if neckline == "collar" else 1.0), ny)])  # fmt: skip


def _cloth(c: _Cut, garment: Garment, worn: bool) -> list[Part]:
    """The garment without its sleeves."""
    parts: list[Part] = []
    if garment.sleeves == "straps":
        top = c.armpit[1] - 0.18
        middle = {"round": 0.06, "v": 0.24}[garment.neckline]
        for side in (-1, 1):
            parts.append(
                ("main", _stroke((side * 0.24, c.neck[1] + 0.02), (side * 0.27, top + 0.05), w=0.075))
            )
        right = [(0.3, top - 0.02), (0.42, top + 0.1), *c.side]
        dip = (
            [(-0.2, top + 0.02), (-0.1, top + middle), (0.1, top + middle), (0.2, top + 0.02)]
            if garment.neckline == "round"
            else [(-0.2, top + 0.02), (0.0, top + middle), (0.2, top + 0.02)]
        )
        outline = [*right, *_mirrored(right), *dip]
        parts.append(("main", _poly(*outline, r=0.06)))
        edge = [(-0.3, top - 0.02), *dip, (0.3, top - 0.02)]
        parts += [("line", _stroke(*edge[i : i + 2], w=0.035)) for i in range(len(edge) - 1)]
    else:
        right = [c.neck, c.shoulder, c.armpit, *c.side]
        parts.append(("main", _poly(*right, *_mirrored(right), r=0.05)))
    return parts


def _sleeves(c: _Cut, garment: Garment, worn: bool) -> list[Part]:
    """The arm on the hip, which lies before the garment, and both sleeves."""
    parts: list[Part] = []
    paths = _arms(c, worn)
    share = {"short": 0.36, "long": 0.93}.get(garment.sleeves, 0.0)
    if worn:
        parts.append(("skin", _stroke(*paths[0][0 if share else 1 :], w=c.arm, end=c.arm * 0.8)))
    for path in paths if share else ():
        sleeve = _along(path, share)
        parts.append(("main", _stroke(*sleeve, w=c.sleeve, end=c.sleeve * (0.95 if share < 0.5 else 0.72))))
        (x0, y0), (x1, y1) = sleeve[-2:]
        size = np.hypot(x1 - x0, y1 - y0)
        wide = c.sleeve * (1.0 if share < 0.5 else 0.78) / 2
        px, py = -(y1 - y0) / size * wide, (x1 - x0) / size * wide
        parts.append(("line", _stroke((x1 + px, y1 + py), (x1 - px, y1 - py), w=0.045)))
    return parts


def _neck(c: _Cut, garment: Garment, worn: bool) -> list[Part]:
    if garment.sleeves == "straps":
        return []
    nx, ny = c.neck
    hole = _neck_hole(c, garment.neckline)
    parts: list[Part] = [("skin" if worn else "inner", hole)]
    if not worn:
        parts.append(
            ("hanger", _stroke((-nx * 0.7, ny + 0.06), (0.0, ny + 0.01), (nx * 0.7, ny + 0.06), w=0.06))
        )
        parts.append(("hook", _stroke((0.0, ny + 0.02), (0.0, ny - 0.1), w=0.06)))
    if garment.neckline == "collar":
        for s in (-1, 1):
            flap = np.array([(0.0, c.depth + 0.02), (nx * 0.72, -0.06), (nx * 1.12, 0.02),
                             (nx * 1.06, c.depth * 1.1), (nx * 0.52, c.depth * 1.6)])  # fmt: skip
            flap = flap * (s, 1) + (0, ny)
            parts.append(("line", _poly(*flap.tolist(), r=0.02)))
            middle = flap.mean(0)
            parts.append(("lift", _poly(*((flap - middle) * 0.72 + middle).tolist(), r=0.02)))
        return parts
    rim = [tuple(point) for point in hole.tolist()]
    if garment.neckline == "round":
        parts.append(("line", _stroke(*rim[::3], w=0.05)))
    else:
        parts += [("line", _stroke(rim[0], rim[1], w=0.05)), ("line", _stroke(rim[1], rim[2], w=0.05))]
    return parts


def _seams(c: _Cut, garment: Garment) -> list[Part]:
    """The folds and seams that make a dress a dress."""
    if not c.dress:
        return []
    w = c.side[0][0]
    parts: list[Part] = []
    if garment.detail != "belt":
        parts.append(("deep", _stroke((-w, c.waist_y), (0.0, c.waist_y + 0.03), (w, c.waist_y), w=0.035)))
    for x in (-0.55, 0.0, 0.55):
        start = (x * w, c.waist_y + 0.09)
        end = (x * c.hem * 0.9, c.hem_y - 0.05)
        parts.append(("deep", _stroke(start, end, w=0.02, end=0.035)))
    return parts


def _details(c: _Cut, garment: Garment) -> list[Part]:
    nx, ny = c.neck
    parts: list[Part] = []
    front = ny + c.depth
    if garment.sleeves == "straps":
        front = c.armpit[1] + {"round": -0.12, "v": 0.06}[garment.neckline]
    if garment.category == "shirt" or garment.detail == "buttons":
        big = garment.detail == "buttons"
        wide = 0.065 if big else 0.045
        parts.append(("band", _rect(-wide, front, wide, c.hem_y - 0.01, r=0.01)))
        parts += [
            ("line", _stroke((s * wide, front + 0.02), (s * wide, c.hem_y - 0.02), w=0.02)) for s in (-1, 1)
        ]
        number = max(2, round((c.hem_y - front) / (0.2 if big else 0.24)))
        for y in np.linspace(front + 0.09, c.hem_y - 0.09, number).tolist():
            parts.append(("button", _ellipse(0.0, y, 0.048 if big else 0.032, n=10)))
    if garment.detail == "belt":
        w = c.side[0][0] + 0.02
        parts.append(("belt", _rect(-w, c.waist_y - 0.06, w, c.waist_y + 0.06, r=0.02)))
        parts.append(("buckle", _rect(-0.085, c.waist_y - 0.085, 0.085, c.waist_y + 0.085, r=0.02)))
        parts.append(("belt", _rect(-0.035, c.waist_y - 0.04, 0.035, c.waist_y + 0.04, r=0.01)))
    elif garment.detail == "pockets":
        for s in (-1, 1):
            parts += _pocket(s * (0.25 if c.loose else 0.175), 0.1, 0.125, 0.2)
    elif garment.detail == "pocket":
        parts += _pocket(0.24, c.armpit[1] - 0.04, 0.13, 0.23)
    elif garment.detail == "lace":
        y = c.hem_y
        parts.append(("lace", _rect(-c.hem, y - 0.06, c.hem, y + 0.03, r=0.01)))
        parts.append(("line", _rect(-c.hem, y - 0.075, c.hem, y - 0.045, r=0.01)))
        number = max(5, round(2 * c.hem / 0.14))
        step = 2 * c.hem / number
        for i in range(number):
            x = -c.hem + (i + 0.5) * step
            parts += [("lace", _ellipse(x, y + 0.02, step * 0.54, 0.075, n=12))]
            parts += [("hole", _ellipse(x, y + 0.02, 0.028, n=8))]
    elif garment.detail == "logo":
        x, y = 0.24, c.armpit[1] + 0.06
        parts.append(("frame", _ellipse(x, y, 0.125)))
        parts.append(("paper", _ellipse(x, y, 0.1)))
        a = np.arange(10) * np.pi / 5 - np.pi / 2
        r = np.where(np.arange(10) % 2 == 0, 0.095, 0.042)
        parts.append(("star", np.stack([x + r * np.cos(a), y + r * np.sin(a)], 1)))
    elif garment.detail == "print":
        top = max(front - 0.02, -0.34) if garment.category == "toptee" else -0.2
        s = min(0.24, max(0.13, (c.hem_y - top) / 2 - 0.03))
        y = min(top + s + 0.02, c.hem_y - s - 0.05)
        parts.append(("frame", _rect(-s - 0.03, y - s - 0.03, s + 0.03, y + s + 0.03, r=0.04)))
        parts.append(("paper", _rect(-s, y - s, s, y + s, r=0.02)))
        parts.append(("sun", _ellipse(s * 0.36, y - s * 0.38, s * 0.34)))
        parts.append(
            (
                "hill",
                _poly((-s, y + s), (-s, y + 0.2 * s), (-s * 0.4, y - s * 0.55), (s * 0.3, y + s), r=0.02),
            )
        )
        parts.append(
            (
                "hill2",
                _poly((-s * 0.3, y + s), (s * 0.35, y + 0.05 * s), (s, y + s * 0.75), (s, y + s), r=0.02),
            )
        )
    return parts


def _pocket(x: float, y: float, half: float, tall: float) -> list[Part]:
    outer = [
        (x - half, y),
        (x + half, y),
        (x + half, y + tall * 0.8),
        (x, y + tall),
        (x - half, y + tall * 0.8),
    ]
    inner = [(x + (px - x) * 0.72, y + 0.035 + (py - y) * 0.78) for px, py in outer]
    return [
        ("line", _poly(*outer, r=0.02)),
        ("band", _poly(*inner, r=0.02)),
        ("line", _rect(x - half * 1.1, y - 0.02, x + half * 1.1, y + 0.06, r=0.01)),
    ]


@lru_cache(maxsize=1024)
def _packed(garment: Garment) -> tuple[tuple[int, ...], Shape, tuple[int, ...]]:
    """(palette index of each part, all outlines in one array, where each ends). Only the fields that decide
    shapes matter; the caller sets the others to fixed values.
    """
    c, worn = _Cut(garment), garment.variant == 1
    parts = _body(c, worn) + _cloth(c, garment, worn) + _neck(c, garment, worn) + _seams(c, garment)
    parts += _details(c, garment) + _sleeves(c, garment, worn)
    shapes = [np.asarray(shape, float) for _, shape in parts]
    ends = tuple((2 * np.cumsum([len(s) for s in shapes])).tolist())
    return tuple(INDEX[name] for name, _ in parts), np.concatenate(shapes), ends


#: Parts that no ink is drawn around.
NO_INK = {
    INDEX[name] for name in ("line", "deep", "ink", "blush", "hole", "button", "star", "sun", "hill", "hill2")
}


def _figure(
    garment: Garment,
    side: int,
    degrees: float,
    shift: tuple[float, float],
    rim_width: int,
    ink_width: int,
    seam_width: int,
) -> Image.Image:
    """Garment and wearer as an index image of the whole picture (EMPTY around them)."""
    shaped = Garment(
        **garment.as_dict()
        | {"colour": "red", "pattern": "plain", "background": "studio", "style": "flat", "shade": "light",
           "facing": "left"}
    )  # fmt: skip
    indices, points, ends = _packed(shaped)
    half = 0.5 * side
    a = np.deg2rad(degrees)
    cos, sin = half * np.cos(a), half * np.sin(a)
    flip = -1.0 if garment.facing == "right" else 1.0
    sway = 0.06 if garment.variant else 0.12  # what hangs sways to one side, who stands leans a little
    matrix = np.array([[1.0, 0.0], [-sway, 1.0]]) @ np.array([[flip * cos, flip * sin], [-sin, cos]])
    flat = (points @ matrix + (half * (1 + shift[0]), half * (1 + shift[1]))).ravel().tolist()
    image = Image.new("L", (side, side), EMPTY)
    pen = ImageDraw.Draw(image)
    outlines, start = [], 0
    for end in ends:
        outlines.append(flat[start:end] + flat[start : start + 4])
        start = end
    for outline in outlines:
        pen.line(outline, fill=INDEX["rim"], width=2 * rim_width)
    for index, outline in zip(indices, outlines, strict=True):
        pen.polygon(outline, fill=index)
        if ink_width and index not in NO_INK:
            pen.line(outline, fill=INDEX["ink"], width=ink_width)
        elif index == INDEX["main"]:
            pen.line(outline, fill=INDEX["deep"], width=seam_width)
    return image


# --------------------------------------------------------------------------------------------------- patterns


@lru_cache(maxsize=32)
def _marks(pattern: str, side: int) -> tuple[tuple[str, Image.Image], ...]:
    """(palette entry, where it goes) of a pattern, as L images a third larger than the picture, to be cropped
    at a random place. Later ones cover earlier ones.
    """
    wide = round(1.34 * side)
    if pattern in ("striped", "checked"):
        y, x = np.mgrid[0:wide, 0:wide].astype(np.float32) / side
        if pattern == "striped":
            return (("pattern", _mask((y + 0.1 * x) % 0.12 < 0.042)),)
        return (("pattern", _mask((x % 0.135 < 0.033) | (y % 0.135 < 0.033))),)
    canvas, hearts = Image.new("L", (wide, wide)), Image.new("L", (wide, wide))
    pen, heart_pen = ImageDraw.Draw(canvas), ImageDraw.Draw(hearts)
    step = (0.12 if pattern == "dotted" else 0.205) * side
    for row in range(int(wide / step / 0.8) + 2):
        for column in range(int(wide / step) + 2):
            x, y = (column + 0.5 * (row % 2)) * step, row * step * 0.8
            if pattern == "dotted":
                r = 0.034 * side
                pen.ellipse((x - r, y - r, x + r, y + r), fill=255)
                continue
            r = 0.03 * side
            for i in range(5):
                a = 2 * np.pi * (i / 5 + 0.13 * row + 0.29 * column)
                px, py = x + 0.042 * side * np.cos(a), y + 0.042 * side * np.sin(a)
                pen.ellipse((px - r, py - r, px + r, py + r), fill=255)
            r = 0.022 * side
            heart_pen.ellipse((x - r, y - r, x + r, y + r), fill=255)
    return (("pattern", canvas),) if pattern == "dotted" else (("pattern", canvas), ("heart", hearts))


# ------------------------------------------------------------------------------------------------ backgrounds


def _studio(b: _Board, rng: np.random.Generator) -> None:
    b.rect("back", 0, 0, 1, 1, ink=False)
    b.disc("light", 0.5 + rng.uniform(-0.04, 0.04), 0.42, 0.44, 0.5, ink=False)
    b.poly("floor", [(-0.02, 0.86), (0.12, 0.8), (0.88, 0.8), (1.02, 0.86), (1.02, 1.05), (-0.02, 1.05)])
    b.line("edge", [(0.12, 0.8), (0.12, -0.02)], 0.012)
    b.line("edge", [(0.88, 0.8), (0.88, -0.02)], 0.012)
    for side in (-1, 1):  # two lamps with square screens on stands
        x, y = 0.5 + side * (0.41 + rng.uniform(-0.02, 0.02)), 0.17 + rng.uniform(-0.03, 0.03)
        b.line("stand", [(x, y), (x, 0.9)], 0.018)
        b.line("stand", [(x - 0.07, 0.95), (x, 0.86), (x + 0.07, 0.95)], 0.018)
        turned = np.array([(-0.075, -0.11), (0.075, -0.085), (0.075, 0.115), (-0.075, 0.09)]) * (side, 1)
        b.poly("frame", turned * 1.28 + (x, y))
        b.poly("lamp", turned + (x, y), ink=False)


def _wall(b: _Board, rng: np.random.Generator) -> None:
    b.rect("mortar", 0, 0, 1, 1, ink=False)
    tall, wide = 0.078, 0.17
    offset = rng.uniform(0, wide)
    names = ("brick", "brick2", "brick", "brick3")
    for row in range(11):
        x = -offset - (0.5 * wide if row % 2 else 0.0)
        kinds = rng.integers(4, size=9).tolist()
        for k in kinds:
            b.rect(names[k], x, row * tall, x + wide - 0.014, row * tall + tall - 0.013, ink=False)
            x += wide
    b.rect("pavement", -0.02, 0.86, 1.02, 1.05)
    x = rng.uniform(-0.2, 0.0)
    while x < 1:
        b.line("slab", [(x, 1.0), (x + 0.08, 0.86)], 0.012)
        x += 0.28


def _garden(b: _Board, rng: np.random.Generator) -> None:
    b.rect("sky", 0, 0, 1, 1, ink=False)
    for i, x in enumerate(np.arange(-0.02, 1.05, 0.13)):
        r = 0.1 + 0.025 * rng.random()
        b.disc("hedge2" if i % 2 else "hedge", x, 0.27 + 0.04 * rng.random(), r)
    b.rect("hedge", 0, 0.28, 1, 0.6, ink=False)
    for i, (x, y) in enumerate(rng.uniform((0, 0.22), (1, 0.5), (20, 2)).tolist()):
        if i % 2:
            b.disc("hedge2", x, y, 0.035, 0.022, ink=False)
        else:
            b.disc("rose" if i % 4 else "rose2", x, y, 0.026, ink=False)
    b.rect("lawn", -0.02, 0.78, 1.02, 1.05)
    x = rng.uniform(-0.1, 0.0)
    for y in (0.54, 0.7):
        b.rect("shadow", -0.02, y, 1.02, y + 0.035)
    while x < 1.02:  # pickets
        b.poly("fence", [(x, 0.84), (x, 0.48), (x + 0.035, 0.44), (x + 0.07, 0.48), (x + 0.07, 0.84)])
        x += 0.105
    for i, (x, y) in enumerate(rng.uniform((0, 0.87), (1, 0.98), (9, 2)).tolist()):
        b.line("leaf", [(x, y + 0.03), (x, y)], 0.012)
        b.disc("rose2" if i % 2 else "rose", x, y, 0.024, ink=False)


PAINTERS |= {"studio": _studio, "wall": _wall, "garden": _garden}
assert set(BACKGROUNDS) <= set(PAINTERS)


# ----------------------------------------------------------------------------------------------- the picture


def unnamed_garment_colour(rng: np.random.Generator, garment: Garment) -> RGB:
    """An unnamed colour for the garment: it stands out from the pattern, and is near no held-out
    combination.
    """
    barred = (
        HELD_OUT_COLOURS[CATEGORIES.index(garment.category)]
        | HELD_OUT_PATTERNS[PATTERNS.index(garment.pattern)]
    )
    return unnamed_colour(rng, barred, None if garment.pattern == "plain" else second_colour(garment.colour2))


def draw_garment(garment: Garment, seed: int, size: int = 112, tint: RGB | None = None) -> Image.Image:
    """The picture of a garment.

    Args:
        garment: what to draw.
        seed: a non-negative integer that decides everything the garment leaves open (small shifts and turns,
            where the background's things are, skin and hair of the person); equal arguments give equal bytes.
        size: width and height in pixels.
        tint: paints the garment in this colour instead of its own.

    Returns:
        An RGB image of size x size pixels.
    """
    rng = np.random.default_rng(seed)
    side = size * SUPERSAMPLE
    unit = side / 336
    style = garment.style
    board = _Board(side, garment.background, round(3 * unit) if style == "outline" else 0)
    PAINTERS[garment.background](board, rng)
    ink_width = {"outline": round(4 * unit), "hatched": round(2 * unit)}.get(style, 0)
    rim_width = max(1, round({"outline": 5, "mosaic": 4}.get(style, 3) * unit))
    shift = rng.uniform(-0.02, 0.02), rng.uniform(-0.015, 0.015)
    figure = _figure(garment, side, float(rng.uniform(-3, 3)), shift, rim_width, ink_width, round(2 * unit))
    index = np.asarray(figure)
    solid = _mask(index != EMPTY)
    phase = rng.integers(0, side // 3, 2).tolist()
    if garment.pattern != "plain":
        cloth = _mask(index == INDEX["main"])
        for name, marks in _marks(garment.pattern, side):
            marks = marks.crop((phase[0], phase[1], phase[0] + side, phase[1] + side))
            figure.paste(INDEX[name], None, ImageChops.darker(cloth, marks))
    board.image.paste(figure, (0, 0), solid)
    skin, hair = int(rng.integers(len(SKINS))), int(rng.integers(len(HAIRS)))
    figures = None
    if style in ("shaded", "hatched"):
        figures = solid.reduce(SUPERSAMPLE)
    board.image.putpalette(
        _fashion_palette(
            garment.colour, garment.colour2, garment.shade, garment.background, style, skin, hair, tint
        )
    )
    picture = board.image.convert("RGB").reduce(SUPERSAMPLE)
    if style not in ("flat", "outline"):
        _finish(style, picture, figures, [(0, 0, figures)] if figures else [], rng)
    return picture


# ----------------------------------------------------------------------------------------------------- sheets

PLAIN = Garment("dress", "red", "plain", "none", "short", "round", "midi", "fitted", "none", "studio",
                "flat", "light", 0, "left")  # fmt: skip


def _sheets() -> dict[str, list[list[Garment]]]:
    """What to look at: each sheet varies two or three fields."""
    rng = np.random.default_rng(3)

    def some(**values: Any) -> Garment:
        return random_garment(rng, **values)

    def plain(category: str, **values: Any) -> Garment:
        first = {name: choices[0] for name, choices in CHOICES_OF[category].items()}
        return Garment(**(first | {"category": category, "sleeves": "short"} | values))

    sheets = {}
    for category in CATEGORIES:
        of = CHOICES_OF[category]
        sheets[f"{category}-cuts"] = [
            [
                plain(
                    category,
                    sleeves=s,
                    neckline=n,
                    fit=f,
                    variant=v,
                    colour=c,
                    length=of["length"][i % len(of["length"])],
                )
                for i, (s, n) in enumerate((s, n) for s in of["sleeves"] for n in of["neckline"])
            ]
            for f, v, c in (
                ("fitted", 0, "blue"),
                ("fitted", 1, "yellow"),
                ("loose", 0, "black"),
                ("loose", 1, "white"),
            )
        ]
        sheets[f"{category}-details"] = [
            [
                plain(
                    category,
                    detail=d,
                    fit=f,
                    variant=v,
                    colour=c,
                    length=of["length"][-1],
                    sleeves="long",
                    style=s,
                )
                for d in of["detail"]
                for f in of["fit"]
            ]
            for v, c, s in (
                (0, "red", "flat"),
                (1, "white", "shaded"),
                (0, "black", "mosaic"),
                (1, "green", "pastel"),
            )
        ]
        sheets[f"{category}-lengths"] = [
            [
                plain(category, length=n, fit=f, variant=v, colour="purple", background=b)
                for n in of["length"]
                for f in of["fit"]
                for v in (0, 1)
            ]
            for b in ("room", "wall")
        ]
    sheets["patterns"] = [
        [
            some(pattern=p, colour=c, background="studio", style="flat", category=k)
            for p in CHOICES["pattern"][1:]
            for k in CATEGORIES
        ]
        for c in CHOICES["colour"]
    ]
    sheets["pairs"] = [
        [
            plain(
                "toptee",
                pattern=("dotted", "striped", "checked", "floral")[i % 4],
                colour=c,
                colour2=d,
                fit="loose",
                length="long",
                shade=s,
            )
            for i, d in enumerate(SECOND_COLOURS[c])
        ]
        for c in SECOND_COLOURS
        for s in SHADES
    ]
    sheets["styles"] = [[some(style=s, variant=i % 2) for i in range(12)] for s in STYLES]
    sheets["backgrounds"] = [[some(background=b, variant=i % 2) for b in BACKGROUNDS] for i in range(4)]
    sheets["mixed"] = [[some() for _ in range(12)] for _ in range(8)]
    return sheets


if __name__ == "__main__":
    fields = {name: CHOICES[name] for name in ("style", "background", "pattern")}
    draw.command(__doc__, _sheets, draw_garment, random_garment, fields)
