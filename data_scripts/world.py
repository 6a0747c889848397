"""The scenes domain of the mini world: what a picture can hold, and when a picture answers a query.

A picture is fully described by a `Scene`. Its fields fall in two kinds:

* **spoken** content, which people and captions name: the main objects (kind, colour, count, pattern), the
  background, and a small second object (prop) on one side of the main objects;
* **unspoken** traits, which people see and captions leave out: drawing style, shade of the colour, variant of
  the object (pose or build), and viewpoint (which way it faces).

Which object is the main one is never in doubt: kinds and props are disjoint sets, main objects stand large in
the middle, the prop is small and stands at the lower left or lower right.

The written rule of ground truth is `answers`: the edit holds; kind, colour, count and pattern stay unless
edited; unspoken traits equal the reference's; only spoken content that nobody mentioned (background, prop,
side of the prop) is free.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace

import numpy as np

KINDS = (
    "cat",
    "dog",
    "bird",
    "fish",
    "car",
    "boat",
    "bench",
    "tree",
    "flower",
    "cup",
    "chair",
    "lamp",
    "house",
    "umbrella",
)
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "white", "black")
COUNTS = (1, 2, 3, 4)
PATTERNS = ("plain", "striped", "spotted")
BACKGROUNDS = (
    "beach",
    "meadow",
    "autumn park",
    "snowy park",
    "city",
    "night sky",
    "desert",
    "room",
)
PROPS = ("none", "ball", "box", "hat", "kite", "candle", "apple", "book", "bucket")
SIDES = ("left", "right")

STYLES = ("flat", "outline", "shaded", "pastel", "hatched", "mosaic")
SHADES = ("light", "dark")
VARIANTS = (0, 1)
FACINGS = ("left", "right")

#: What an edit may leave free when nobody mentions it.
FREE = ("background", "prop", "side")
#: What stays unless the edit says otherwise.
KEPT = ("kind", "colour", "count", "pattern")
UNSPOKEN = ("style", "shade", "variant", "facing")


@dataclass(frozen=True)
class Scene:
    """One picture's content. `side` is the prop's side ("left" where there is no prop, so that equal pictures
    are equal).
    """

    kind: str
    colour: str
    count: int
    pattern: str
    background: str
    prop: str
    side: str
    style: str
    shade: str
    variant: int
    facing: str

    def __post_init__(self) -> None:
        if self.prop == "none" and self.side != "left":
            object.__setattr__(self, "side", "left")

    def as_dict(self) -> dict[str, str | int]:
        return asdict(self)


CHOICES: dict[str, tuple] = {
    "kind": KINDS,
    "colour": COLOURS,
    "count": COUNTS,
    "pattern": PATTERNS,
    "background": BACKGROUNDS,
    "prop": PROPS,
    "side": SIDES,
    "style": STYLES,
    "shade": SHADES,
    "variant": VARIANTS,
    "facing": FACINGS,
}
assert tuple(CHOICES) == tuple(f.name for f in fields(Scene))


#: (kinds, colours) and (kinds, backgrounds): True for the pairs that no training picture shows, a fixed tenth
#: of each, spread evenly so that every value is still seen in training.
HELD_OUT_COLOURS = (3 * np.arange(len(KINDS))[:, None] + np.arange(len(COLOURS))) % 10 == 7
HELD_OUT_BACKGROUNDS = (3 * np.arange(len(KINDS))[:, None] + np.arange(len(BACKGROUNDS))) % 10 == 4


def held_out(scene: Scene) -> bool:
    """True for the combinations that no training picture shows."""
    kind = KINDS.index(scene.kind)
    return bool(
        HELD_OUT_COLOURS[kind, COLOURS.index(scene.colour)]
        or HELD_OUT_BACKGROUNDS[kind, BACKGROUNDS.index(scene.background)]
    )


def random_scene(rng: np.random.Generator, **fixed) -> Scene:
    """A scene drawn uniformly (a third has no prop), with the fields in `fixed` given."""
    values = {name: choices[rng.integers(len(choices))] for name, choices in CHOICES.items()}
    values["prop"] = "none" if rng.random() < 0.3 else PROPS[1 + rng.integers(len(PROPS) - 1)]
    values.update(fixed)
    return Scene(**values)


def train_scene(rng: np.random.Generator, **fixed) -> Scene:
    """As `random_scene`, without the held-out combinations."""
    while True:
        scene = random_scene(rng, **fixed)
        if not held_out(scene):
            return scene


def held_out_scene(rng: np.random.Generator) -> Scene:
    """As `random_scene`, held-out combinations alone."""
    while True:
        scene = random_scene(rng)
        if held_out(scene):
            return scene


@dataclass(frozen=True)
class Edit:
    """A change asked of a reference: field -> new value, e.g. {"colour": "blue", "background": "snowy
    park"}.
    """

    changes: tuple[tuple[str, str | int], ...]

    def as_dict(self) -> dict[str, str | int]:
        return dict(self.changes)

    def apply(self, scene: Scene) -> Scene:
        return replace(scene, **self.as_dict())


def answers(reference: Scene, edit: Edit, candidate: Scene) -> bool:
    """The rule of ground truth (module docstring)."""
    wanted = edit.apply(reference)
    mentioned = set(edit.as_dict())
    must_match = (*KEPT, *UNSPOKEN, *(name for name in FREE if name in mentioned))
    return candidate != reference and all(getattr(candidate, n) == getattr(wanted, n) for n in must_match)
