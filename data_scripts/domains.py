"""The two domains of the mini world behind one set of names: what training and evaluation scripts loop over.

A picture's content (`Scene` or `Garment`) is a *thing* of its `Domain`. Its labels are one row over the
fields of all domains: the index of each value in the domain's `choices`, `UNKNOWN` where a field is another
domain's or has no name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from data_scripts import (
    draw,
    draw_fashion,
    texts,
    texts_fashion,
    training_texts,
    training_texts_fashion,
    world,
    world_fashion,
)
from data_scripts.world import Edit

UNKNOWN = 255


@dataclass(frozen=True)
class Domain:
    """A world module, its texts and its drawing.

    ``training_text(rng, thing, edit)`` asks for an edit in the ways of training. ``draw(thing, seed)``; with
    ``tint=unnamed(rng, thing)`` in a colour without a name. ``columns`` are where its fields lie in a row of
    labels.
    """

    name: str
    make: type
    world: ModuleType
    texts: ModuleType
    training_text: Callable[..., str]
    draw: Callable[..., Image.Image]
    random: Callable[..., Any]
    train: Callable[..., Any]
    unnamed: Callable[..., draw.RGB]
    columns: slice

    @property
    def choices(self) -> dict[str, tuple]:
        return self.world.CHOICES

    def held_out_thing(self, rng: np.random.Generator):
        """As `random`, held-out combinations alone."""
        while True:
            thing = self.random(rng)
            if self.world.held_out(thing):
                return thing

    def encode(self, thing) -> list[int]:
        """The row of labels."""
        row = [UNKNOWN] * len(FIELDS)
        row[self.columns] = [values.index(getattr(thing, name)) for name, values in self.choices.items()]
        return row

    def decode(self, row: np.ndarray):
        """The thing of a row whose colour has a name."""
        values = zip(self.choices.items(), row[self.columns], strict=True)
        return self.make(**{name: choices[index] for (name, choices), index in values})

    def difference(self, first, second) -> Edit:
        """The edit of spoken fields that turns the first thing into the second, in the texts' order."""
        changes = [
            (name, getattr(second, name))
            for name in self.texts.EDITABLE
            if getattr(first, name) != getattr(second, name)
        ]
        return Edit(tuple(c for c in changes if c != ("colour2", "none")))  # goes with its pattern

    def shows(self, first, edit: Edit, second) -> bool:
        """Whether the second picture shows the first with the change made, as far as words can say: what
        nobody mentioned is free, and so are the unspoken traits.
        """
        wanted, mentioned = edit.apply(first), edit.as_dict()
        fields = (*self.world.KEPT, *(name for name in self.world.FREE if name in mentioned))
        return all(getattr(wanted, name) == getattr(second, name) for name in fields)


_SCENE_FIELDS, _GARMENT_FIELDS = len(world.CHOICES), len(world_fashion.CHOICES)
SCENES = Domain(
    "scenes", world.Scene, world, texts, training_texts.training_text, draw.draw_scene,
    world.random_scene, world.train_scene, draw.unnamed_scene_colour, slice(0, _SCENE_FIELDS),
)  # fmt: skip
FASHION = Domain(
    "fashion", world_fashion.Garment, world_fashion, texts_fashion, training_texts_fashion.training_text,
    draw_fashion.draw_garment,
    world_fashion.random_garment, world_fashion.train_garment, draw_fashion.unnamed_garment_colour,
    slice(_SCENE_FIELDS, _SCENE_FIELDS + _GARMENT_FIELDS),
)  # fmt: skip
DOMAINS = (SCENES, FASHION)
#: "scenes/kind", ... "fashion/facing" -> the values, in the order of a row of labels.
FIELDS: dict[str, tuple] = {
    f"{domain.name}/{name}": values for domain in DOMAINS for name, values in domain.choices.items()
}
#: "scenes/kind" -> its column in a row of labels.
COLUMN = {name: i for i, name in enumerate(FIELDS)}


def domain_of(row: np.ndarray) -> Domain:
    """The domain of a row of labels."""
    return SCENES if row[COLUMN["scenes/kind"]] != UNKNOWN else FASHION
