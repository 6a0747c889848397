"""The fashion domain of the mini world: what a picture of a garment can hold, and when it answers a query.

The twin of `world` (scenes): a picture is fully described by a `Garment`, whose fields are

* **spoken** content, which people and captions name: category, colour, pattern and the pattern's own colour,
  sleeves, neckline, length, fit, one detail, and the background;
* **unspoken** traits, which people see and captions leave out: drawing style, shade of the colour, variant
  (0: on a hanger, 1: worn by a person), and viewpoint (which way hanger or person face).

What a field can be depends on the category (`CHOICES_OF`): a shirt always has a collar and a button front, so
its neckline is no choice, and its length is none; only tops have straps. A field with one choice does not
apply and takes that choice whatever is asked, and the pattern's colour of a plain garment is none: equal
pictures are equal garments.

The written rule of ground truth is `answers`: the edit holds; everything about the garment stays unless
edited; unspoken traits equal the reference's; only the background is free, unless somebody mentioned it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import numpy as np

from data_scripts.world import COLOURS, FACINGS, SHADES, STYLES, UNSPOKEN, VARIANTS, Edit

CATEGORIES = ("dress", "shirt", "toptee")
PATTERNS = ("plain", "striped", "dotted", "checked", "floral")
SLEEVES = ("straps", "sleeveless", "short", "long")
NECKLINES = ("round", "v", "collar")
LENGTHS = ("none", "cropped", "long", "mini", "midi", "maxi")
FITS = ("fitted", "loose")
DETAILS = ("none", "belt", "buttons", "pockets", "lace", "pocket", "logo", "print")
BACKGROUNDS = ("studio", "wall", "garden", "beach", "city", "room", "snowy park", "desert")

#: What an edit may leave free when nobody mentions it.
FREE = ("background",)
#: What stays unless the edit says otherwise.
KEPT = ("category", "colour", "pattern", "colour2", "sleeves", "neckline", "length", "fit", "detail")

#: All values of every field, whatever the category. `colour2` is the pattern's own colour.
CHOICES: dict[str, tuple] = {
    "category": CATEGORIES,
    "colour": COLOURS,
    "pattern": PATTERNS,
    "colour2": ("none", *COLOURS),
    "sleeves": SLEEVES,
    "neckline": NECKLINES,
    "length": LENGTHS,
    "fit": FITS,
    "detail": DETAILS,
    "background": BACKGROUNDS,
    "style": STYLES,
    "shade": SHADES,
    "variant": VARIANTS,
    "facing": FACINGS,
}

#: category -> field -> values.
CHOICES_OF: dict[str, dict[str, tuple]] = {
    "dress": CHOICES
    | {
        "sleeves": ("sleeveless", "short", "long"),
        "length": ("mini", "midi", "maxi"),
        "detail": ("none", "belt", "buttons", "pockets", "lace"),
    },
    "shirt": CHOICES
    | {
        "sleeves": ("sleeveless", "short", "long"),
        "neckline": ("collar",),
        "length": ("none",),
        "detail": ("none", "pocket", "logo", "print"),
    },
    "toptee": CHOICES
    | {
        "neckline": ("round", "v"),
        "length": ("cropped", "long"),
        "detail": ("none", "buttons", "lace", "pocket", "print"),
    },
}

#: Pairs of colours that are too close to tell a pattern from its ground.
TOO_CLOSE = tuple(
    frozenset(pair.split())
    for pair in (
        "red orange",
        "red pink",
        "red brown",
        "red purple",
        "orange yellow",
        "orange brown",
        "orange pink",
        "yellow white",
        "green brown",
        "green blue",
        "blue purple",
        "blue black",
        "purple pink",
        "purple brown",
        "purple black",
        "brown black",
        "pink white",
        "pink brown",
    )
)
#: colour -> the colours that a pattern on it can have.
SECOND_COLOURS: dict[str, tuple[str, ...]] = {
    colour: tuple(c for c in COLOURS if c != colour and frozenset((c, colour)) not in TOO_CLOSE)
    for colour in COLOURS
}


@dataclass(frozen=True)
class Garment:
    """One picture's content.

    Raises:
        ValueError: a field that applies has a value that its category lacks, or a pattern's colour does not
            stand out from the garment's.
    """

    category: str
    colour: str
    pattern: str
    colour2: str
    sleeves: str
    neckline: str
    length: str
    fit: str
    detail: str
    background: str
    style: str
    shade: str
    variant: int
    facing: str

    def __post_init__(self) -> None:
        for name, values in CHOICES_OF[self.category].items():
            if len(values) == 1:
                object.__setattr__(self, name, values[0])
            elif getattr(self, name) not in values:
                listed = ", ".join(map(str, values))
                raise ValueError(f"{self.category}: {name} {getattr(self, name)!r} is not one of {listed}")
        if self.pattern == "plain":
            object.__setattr__(self, "colour2", "none")
        elif self.colour2 not in SECOND_COLOURS[self.colour]:
            raise ValueError(
                f"{self.colour} {self.pattern} {self.category}: colour2 {self.colour2!r} is not one of "
                f"{', '.join(SECOND_COLOURS[self.colour])}"
            )

    def as_dict(self) -> dict[str, str | int]:
        return asdict(self)


assert tuple(CHOICES) == tuple(f.name for f in fields(Garment)) == (*KEPT, *FREE, *UNSPOKEN)


#: (categories, colours), (patterns, colours) and (categories, backgrounds): True for the pairs that no
#: training picture shows, about a tenth of each, spread evenly so that every value is still seen in training.
HELD_OUT_COLOURS = (3 * np.arange(len(CATEGORIES))[:, None] + np.arange(len(COLOURS))) % 10 == 4
HELD_OUT_PATTERNS = (3 * np.arange(len(PATTERNS))[:, None] + np.arange(len(COLOURS))) % 10 == 7
HELD_OUT_BACKGROUNDS = (3 * np.arange(len(CATEGORIES))[:, None] + np.arange(len(BACKGROUNDS))) % 10 == 7


def unseen(category: str, colour: str, pattern: str, background: str) -> bool:
    """True for the combinations that no training picture shows."""
    kind, hue = CATEGORIES.index(category), COLOURS.index(colour)
    return bool(
        HELD_OUT_COLOURS[kind, hue]
        or HELD_OUT_PATTERNS[PATTERNS.index(pattern), hue]
        or HELD_OUT_BACKGROUNDS[kind, BACKGROUNDS.index(background)]
    )


def held_out(garment: Garment) -> bool:
    """True for the garments that no training picture shows."""
    return unseen(garment.category, garment.colour, garment.pattern, garment.background)


def random_garment(rng: np.random.Generator, **fixed) -> Garment:
    """A garment drawn uniformly (a fifth is plain, a quarter has no detail), with the fields in `fixed`
    given.

    Raises:
        ValueError: no garment has those fields (see `Garment`).
    """
    category = fixed.get("category", CATEGORIES[rng.integers(len(CATEGORIES))])
    values = {name: choices[rng.integers(len(choices))] for name, choices in CHOICES_OF[category].items()}
    details = CHOICES_OF[category]["detail"]
    values["detail"] = "none" if rng.random() < 0.25 else details[1 + rng.integers(len(details) - 1)]
    values |= {"category": category} | fixed
    if "colour" not in fixed and values["pattern"] != "plain" and fixed.get("colour2", "none") != "none":
        grounds = SECOND_COLOURS[fixed["colour2"]]  # being too close is mutual
        values["colour"] = grounds[rng.integers(len(grounds))]
    if "colour2" not in fixed:
        seconds = SECOND_COLOURS[values["colour"]]
        values["colour2"] = seconds[rng.integers(len(seconds))]
    return Garment(**values)


def train_garment(rng: np.random.Generator, **fixed) -> Garment:
    """As `random_garment`, without the held-out combinations."""
    while True:
        garment = random_garment(rng, **fixed)
        if not held_out(garment):
            return garment


def answers(reference: Garment, edit: Edit, candidate: Garment) -> bool:
    """The rule of ground truth (module docstring)."""
    wanted = edit.apply(reference)
    mentioned = set(edit.as_dict())
    must_match = (*KEPT, *UNSPOKEN, *(name for name in FREE if name in mentioned))
    return candidate != reference and all(getattr(candidate, n) == getattr(wanted, n) for n in must_match)
