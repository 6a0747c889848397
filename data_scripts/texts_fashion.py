"""What people say about the fashion domain: the twin of `texts` (read that first), made from a `Garment` or
from a garment and an `Edit`.

The functions have the names and the answer schemas of `texts`; new is `relative_captions`, the two captions
that two shoppers write about one query of FashionIQ.

A pattern and its colour are spoken of as one thing ("white stripes"), so the changes of an edit are first
gathered into `steps`. The wordings of a step come in three forms: what the garment *is*, what it *has*, and
phrases that stand alone; `sentence` puts them together. A comparison ("longer") stands alone only where it
leaves one answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from data_scripts import texts
from data_scripts.texts import (
    STYLE_PHRASES,
    Frame,
    article,
    frames,
    join,
    pick,
)
from data_scripts.world import COLOURS, Edit
from data_scripts.world_fashion import (
    BACKGROUNDS,
    CATEGORIES,
    CHOICES,
    CHOICES_OF,
    DETAILS,
    PATTERNS,
    SECOND_COLOURS,
    Garment,
    unseen,
)

NOUNS = {"dress": "dress", "shirt": "shirt", "toptee": "top"}
PATTERN_NOUNS = {"striped": "stripes", "dotted": "dots", "checked": "checks", "floral": "flowers"}
SLEEVE_NOUNS = {
    "straps": "straps",
    "sleeveless": "no sleeves",
    "short": "short sleeves",
    "long": "long sleeves",
}
NECK_NOUNS = {"round": "round neck", "v": "v neck", "collar": "collar"}
PLACES = {
    "studio": "in a studio",
    "wall": "by a wall",
    "garden": "in a garden",
    **{name: texts.PLACES[name] for name in ("beach", "city", "room", "snowy park", "desert")},
}
PLACE_SYNONYMS = {
    "studio": ("inside a studio", "under studio light"),
    "wall": ("in front of a wall", "at the wall"),
    "garden": ("on garden grass", "in a garden with grass"),
    **{name: texts.PLACE_SYNONYMS[name] for name in ("beach", "city", "room", "snowy park", "desert")},
}
VARIANT_PHRASES = ("on a hanger", "on a model")
#: Dark to light: what "darker" and "lighter" mean.
LIGHTNESS = ("black", "brown", "purple", "blue", "green", "red", "orange", "pink", "yellow", "white")


def noun(garment: Garment) -> str:
    return NOUNS[garment.category]


def a(thing: str) -> str:
    """The thing with its article: "a belt", but "buttons", "lace"."""
    return thing if thing.endswith("s") or thing == "lace" else f"{article(thing)} {thing}"


def marks(garment: Garment) -> str:
    """The pattern as a thing: "white stripes", "plain"."""
    return "plain" if garment.pattern == "plain" else f"{garment.colour2} {PATTERN_NOUNS[garment.pattern]}"


def applicable(garment: Garment) -> tuple[str, ...]:
    """The editable fields that are a choice in the garment's category and state."""
    of = CHOICES_OF[garment.category]
    return tuple(
        f for f in EDITABLE if len(of[f]) > 1 and not (f == "colour2" and garment.pattern == "plain")
    )


# --- captions --------------------------------------------------------------------------------------


def subject(garment: Garment, *, plain: bool = False) -> str:
    """The garment as a noun phrase: "loose sleeveless red maxi dress"; `plain=True` also says "plain"."""
    words = [garment.fit]
    if garment.sleeves == "sleeveless":
        words.append("sleeveless")
    if plain and garment.pattern == "plain":
        words.append("plain")
    words.append(garment.colour)
    if garment.length != "none":
        words.append(garment.length)
    return " ".join([*words, noun(garment)])


def features(garment: Garment) -> list[str]:
    """What it has, as things: ["white stripes", "long sleeves", "v neck", "belt"]."""
    found = [] if garment.pattern == "plain" else [marks(garment)]
    if garment.sleeves != "sleeveless":
        found.append(SLEEVE_NOUNS[garment.sleeves])
    if garment.category != "shirt":  # every shirt has a collar
        found.append(NECK_NOUNS[garment.neckline])
    return found + ([] if garment.detail == "none" else [garment.detail])


def worded(garment: Garment, *, plain: bool = False) -> str:
    """The garment without its background."""
    things = features(garment)
    head = subject(garment, plain=plain)
    return f"{article(head)} {head}" + (f" with {', '.join(things)}" if things else "")


def caption(garment: Garment) -> str:
    """The full caption: all spoken content, nothing unspoken. `read_caption` is its inverse."""
    return f"{worded(garment)}, {PLACES[garment.background]}"


def read_caption(text: str) -> dict[str, str | None]:
    """The spoken fields that a text names, by its words (None where a field is not named; pattern: plain,
    detail and colour2: none; a shirt's collar needs no word).
    """
    words = re.findall(r"[a-z0-9]+", text.lower())
    after = [*words[1:], ""]
    pairs = list(zip(words, after, strict=True))

    def first(options: dict[str, str], default: str | None = None) -> str | None:
        return next((options[word] for word in words if word in options), default)

    found: dict[str, str | None] = {"category": first({n: c for c, n in NOUNS.items()})}
    of_noun = {n: p for p, n in PATTERN_NOUNS.items()}
    found["pattern"] = first(of_noun | {p: p for p in PATTERNS[1:]}, "plain")
    found["colour2"] = next((w for w, n in pairs if w in COLOURS and n in of_noun), "none")
    found["colour"] = next((w for w, n in pairs if w in COLOURS and n not in of_noun), None)
    found["sleeves"] = next((w for w, n in pairs if w in ("short", "long") and n == "sleeves"), None)
    if found["sleeves"] is None:
        bare = "sleeveless" in words or ("no", "sleeves") in pairs
        found["sleeves"] = "sleeveless" if bare else first({"straps": "straps"})
    found["neckline"] = "collar" if "collar" in words else None
    for word, following in pairs:
        if following in ("neck", "neckline") and word in ("round", "v"):
            found["neckline"] = word
    lengths = [w for w, n in pairs if w in CHOICES["length"][1:] and not (w == "long" and n == "sleeves")]
    found["length"] = lengths[0] if lengths else None
    if found["category"] == "shirt":
        found["neckline"], found["length"] = "collar", "none"
    found["fit"] = first({"fitted": "fitted", "loose": "loose"})
    found["detail"] = first({d: d for d in DETAILS[1:]}, "none")
    joined = " ".join(words)
    found["background"] = next((name for name, phrase in PLACES.items() if phrase in joined), None)
    return found


def dense_caption(rng: np.random.Generator, garment: Garment) -> str:
    """One of many ways to describe the whole picture; a third of them name the style, some the shade, some
    what the garment is shown on.
    """
    head = subject(garment, plain=rng.random() < 0.2)
    if rng.random() < 0.3:
        head = head.replace(garment.colour, f"{garment.shade} {garment.colour}")
    things = features(garment)
    rng.shuffle(things)
    things = [a(t) if rng.random() < 0.5 else t for t in things]
    if rng.random() < 0.2:
        head = f"{head} {VARIANT_PHRASES[garment.variant]}"
    last = pick(rng, (", ", " and "))
    having = f"with {', '.join(things[:-1])}{last if things[1:] else ''}{things[-1]}" if things else ""
    place = pick(rng, (PLACES[garment.background], *PLACE_SYNONYMS[garment.background]))
    head = f"{article(head)} {head}"
    body = pick(
        rng, (join(head, having) + f", {place}", join(place + ",", head, having), join(head, place, having))
    )
    style = STYLE_PHRASES[garment.style]
    if rng.random() < 0.33:
        body = pick(rng, (f"{body}, {style}", f"{style} of {body}"))
    return pick(rng, (body, body, f"a picture of {body}", f"there is {body}"))


def short_text(rng: np.random.Generator, garment: Garment) -> str:
    """A short alt-text: some of what the picture holds."""
    words = [garment.fit] if rng.random() < 0.4 else []
    if garment.pattern != "plain" and rng.random() < 0.4:
        words.append(garment.pattern)
    elif garment.pattern == "plain" and rng.random() < 0.3:
        words.append("plain")
    if garment.sleeves == "sleeveless" and rng.random() < 0.5:
        words.append("sleeveless")
    if rng.random() < 0.7:
        shaded = f"{garment.shade} " if rng.random() < 0.1 else ""
        words.append(shaded + garment.colour)
    if garment.length != "none" and rng.random() < 0.5:
        words.append(garment.length)
    head = " ".join([*words, noun(garment)])
    things = [thing for thing in features(garment) if rng.random() < 0.35]
    if things:
        head += " with " + pick(rng, (", ", " and ")).join(things)
    roll = rng.random()
    if roll < 0.2:
        head = join(head, pick(rng, (PLACES[garment.background], *PLACE_SYNONYMS[garment.background])))
    elif roll < 0.26:
        head = pick(rng, (PLACES[garment.background], *PLACE_SYNONYMS[garment.background]))
    elif roll < 0.32 and things:
        head = a(things[0])
    if rng.random() < 0.33:
        style = STYLE_PHRASES[garment.style]
        head = pick(rng, (f"{head}, {style}", f"{style} of {head}"))
    if rng.random() < 0.1:
        head = f"{head}, {VARIANT_PHRASES[garment.variant]}"
    if rng.random() < 0.1:
        head = f"{head}, facing {garment.facing}"
    return head


# --- edits and modification texts ------------------------------------------------------------------

EDITABLE = ("colour", "pattern", "colour2", "sleeves", "neckline", "length", "fit", "detail", "background")
_WEIGHTS = {
    "colour": 0.2, "pattern": 0.13, "colour2": 0.07, "sleeves": 0.15, "neckline": 0.12, "length": 0.12,
    "fit": 0.1, "detail": 0.15, "background": 0.06,
}  # fmt: skip


def random_edit(rng: np.random.Generator, garment: Garment, fields: tuple[str, ...] | None = None) -> Edit:
    """One to three changes, each to a value other than the reference's. A plain garment that gets a pattern
    gets the pattern's colour in the same edit (then "colour2" is a further entry of `changes`), and no colour
    comes too close to the other.
    """
    if fields is None:
        possible = applicable(garment)
        weights = np.array([_WEIGHTS[f] for f in possible])
        number = rng.choice([1, 2, 3], p=[0.4, 0.43, 0.17])
        fields = tuple(rng.choice(possible, size=number, replace=False, p=weights / weights.sum()))
    wanted, of = set(fields), CHOICES_OF[garment.category]
    new: dict[str, str] = {}
    for field in EDITABLE:
        if field in wanted and field not in ("colour", "colour2"):
            new[field] = pick(rng, [v for v in of[field] if v != getattr(garment, field)])
    pattern = new.get("pattern", garment.pattern)
    if pattern == "plain":
        wanted.discard("colour2")
    elif garment.pattern == "plain":
        wanted.add("colour2")
    if "colour" in wanted:
        kept = pattern != "plain" and "colour2" not in wanted
        options = SECOND_COLOURS[garment.colour2] if kept else COLOURS  # being too close is mutual
        new["colour"] = pick(rng, [c for c in options if c != garment.colour])
    if "colour2" in wanted:
        options = SECOND_COLOURS[new.get("colour", garment.colour)]
        new["colour2"] = pick(rng, [c for c in options if c != garment.colour2])
    if not new:  # the colour of no pattern alone was asked for
        return random_edit(rng, garment, ("colour",))
    # one order, so that the answer of every task is determined
    return Edit(tuple((f, new[f]) for f in EDITABLE if f in new))


@dataclass(frozen=True)
class Step:
    """One change as people speak of it: the field ("pattern" covers its colour), and the values before and
    after in words.
    """

    field: str
    old: str
    new: str


def value_word(field: str, value: str) -> str:
    if field == "sleeves":
        return value if value in ("straps", "sleeveless") else SLEEVE_NOUNS[value]
    if field == "neckline":
        return NECK_NOUNS[value]
    return "long length" if (field, value) == ("length", "long") else value


def state(garment: Garment, field: str) -> str:
    """The value of a field in words; of "pattern": "white stripes" or "plain"."""
    return marks(garment) if field == "pattern" else value_word(field, getattr(garment, field))


def steps(garment: Garment, edit: Edit) -> list[Step]:
    """The changes of an edit in order, pattern and pattern's colour as one."""
    target = edit.apply(garment)
    touched = ["pattern" if name == "colour2" else name for name, _ in edit.changes]
    return [Step(f, state(garment, f), state(target, f)) for f in dict.fromkeys(touched)]


#: (form, text): form "is" goes after "is", "has" after "has" or "with", "bare" stands alone.
Wording = Frame


def wordings(garment: Garment, edit: Edit, field: str) -> tuple[list[Wording], list[Wording]]:
    """(training wordings, held-out wordings) of one step. Each names the new value beyond doubt."""
    target, thing = edit.apply(garment), noun(garment)
    old, new = getattr(garment, field), getattr(target, field)
    if field == "colour":
        return (
            frames(
                is_=[
                    new,
                    new,
                    f"more {new}",
                    f"{new} in colour",
                    f"{new} instead of {old}",
                    f"{new} and not {old}",
                ],
                has=[f"{article(new)} {new} colour"],
                bare=[f"in {new}", f"{new} {thing}"],
            ),
            frames(is_=[f"not {old} but {new}"], bare=[f"turn it {new}", f"{article(new)} {new} one"]),
        )
    if field == "pattern":
        return _pattern_wordings(garment, target)
    if field == "sleeves":
        to, was = SLEEVE_NOUNS[new], SLEEVE_NOUNS[old]
        if new == "sleeveless":
            gone = "straps" if old == "straps" else "sleeves"
            told = ["sleeveless", f"sleeveless and has no {gone}", f"sleeveless without {gone}"]
            if old != "straps":
                return (
                    frames(
                        is_=["sleeveless", *told],
                        has=["no sleeves"],
                        bare=["without sleeves", "remove the sleeves"],
                    ),
                    frames(is_=["cut without sleeves"], bare=["take away the sleeves"]),
                )
            return (
                frames(is_=told, bare=["sleeveless instead of straps", f"sleeveless {thing}"]),
                frames(is_=["not on straps but sleeveless"], bare=["get rid of the straps, sleeveless"]),
            )
        train = frames(has=[to, to, f"{to} instead of {was}" if old != "sleeveless" else f"{to} on it"])
        train += frames(bare=[f"add {to}" if old == "sleeveless" else f"{to} now"])
        if new == "straps":
            return (
                train + frames(has=["shoulder straps", "straps on the shoulder"]),
                frames(is_=["cut with straps"], bare=["give it straps"]),
            )
        if {old, new} == {"short", "long"}:
            train += frames(has=[f"{new}er sleeves", f"{new}er sleeves", f"{new}er sleeves than this"])
        return train, frames(has=[f"sleeves cut {new}"], bare=[f"give it {to}", f"the sleeves are {new}"])
    if field == "neckline":
        to, was = a(NECK_NOUNS[new]), a(NECK_NOUNS[old])
        train = frames(has=[to, to, f"{to} instead of {was}"], bare=[f"{to} and not {was}"])
        if new == "collar":
            train += frames(is_=["collared"], has=["a collar on it"])
        else:
            train += frames(has=[f"a {new} neckline"], is_=[f"a {NECK_NOUNS[new]} {thing}"])
        if old == "collar":
            train += frames(has=[f"no collar and {to}"])
        return train, frames(
            bare=[f"not {was} but {to}", f"swap the {NECK_NOUNS[old]} for {to}", f"give it {to}"]
        )
    if field == "length":
        train = frames(is_=[f"a {new} {thing}"])
        if thing == "dress":
            other = {"mini": "mini", "midi": "knee", "maxi": "ankle"}[new]
            train += frames(is_=[f"{new} length", f"{other} length"], has=[f"a {new} length"])
            one_way = old == "midi"
        else:
            train += frames(is_=[new, f"{new} and not {old}"])
            one_way = True
        if one_way:
            word = "longer" if new in ("maxi", "long") else "shorter"
            train += frames(is_=[word, word, f"a {word} {thing}", f"{word} than this"], has=[f"a {word} hem"])
        return train, frames(is_=[f"not {old} but {new}", f"cut to a {new} length"], has=[f"a {new} cut"])
    if field == "fit":
        like, unlike = (("tight", "loose"), ("loose", "tight"))[new == "loose"]
        return (
            frames(
                is_=[new, f"more {new}", f"less {old}", f"{new} and not {old}", f"more {new} and less {old}"],
                has=[f"a {like} fit", f"a less {unlike} fit"],
            ),
            frames(is_=[f"not {old} but {new}"], has=[f"a {like} cut"]),
        )
    if field == "detail":
        if new == "none":
            return (
                frames(
                    has=[f"no {old}", f"no {old} on it"], bare=[f"without the {old}", f"remove the {old}"]
                ),
                frames(bare=[f"get rid of the {old}", f"take the {old} away"]),
            )
        on = {"pocket": " on the front", "lace": " on the hem", "buttons": " on the front"}.get(new, " on it")
        if old == "none":
            return (
                frames(has=[a(new), a(new), a(new) + on], bare=[f"add {a(new)}", f"with {a(new)}"]),
                frames(bare=[f"give it {a(new)}", f"put {a(new)} on it"]),
            )
        return (
            frames(
                has=[f"{a(new)} instead of {a(old)}", f"{a(new)} and no {old}", f"no {old} and has {a(new)}"],
                bare=[f"replace the {old} with {a(new)}", f"change the {old} to {a(new)}"],
            ),
            frames(bare=[f"not {a(old)} but {a(new)}", f"swap the {old} for {a(new)}"]),
        )
    assert field == "background", field
    places = (PLACES[new], *PLACE_SYNONYMS[new])
    return (
        frames(is_=[*places], bare=[*places, f"now {places[0]}", f"{places[0]} instead of {PLACES[old]}"]),
        frames(is_=[f"set {places[0]}"], bare=[f"put it {places[0]}"]),
    )


def _pattern_wordings(garment: Garment, target: Garment) -> tuple[list[Wording], list[Wording]]:
    thing = noun(garment)
    was = PATTERN_NOUNS.get(garment.pattern, "")
    if target.pattern == "plain":
        return (
            frames(
                is_=["plain", "plain", "a solid colour", f"plain and has no {was}"],
                has=[f"no {was}", "no pattern"],
                bare=[f"without {was}", f"remove the {was}"],
            ),
            frames(is_=[f"not {garment.pattern} but plain"], bare=[f"get rid of the {was}", "a plain one"]),
        )
    things, both = PATTERN_NOUNS[target.pattern], marks(target)
    held = frames(is_=[f"covered in {both}"], has=[f"a pattern of {both}"], bare=[f"give it {both}"])
    train = frames(
        is_=[f"{target.pattern} in {target.colour2}"],
        has=[
            both,
            both,
            f"{both} on it",
            f"{article(target.colour2)} {target.colour2} {target.pattern} pattern",
        ],
    )
    if garment.pattern == "plain":
        return train + frames(bare=[f"add {both}"]), held
    if garment.pattern == target.pattern:
        return train + frames(
            has=[f"{both} instead of {garment.colour2}", f"{things} in {target.colour2}"]
        ), held
    train += frames(
        is_=[f"{target.pattern} in {target.colour2} and not {garment.pattern}"],
        has=[f"{both} instead of {was}", f"{both} and no {was}"],
    )
    if garment.colour2 == target.colour2:
        train += frames(
            is_=[
                target.pattern,
                f"{target.pattern} instead of {garment.pattern}",
                f"a {target.pattern} {thing}",
            ],
            has=[f"{things} instead of {was}", f"a {target.pattern} pattern"],
        )
    return train, held


def _remark(rng: np.random.Generator, garment: Garment, edit: Edit) -> list[Wording]:
    """True comparisons that hint at a change without naming it; they go beside a full wording."""
    target, found = edit.apply(garment), []
    for step in steps(garment, edit):
        if step.field == "colour":
            lighter = LIGHTNESS.index(target.colour) > LIGHTNESS.index(garment.colour)
            found += frames(is_=["lighter" if lighter else "darker", "a different colour"])
        elif step.field == "pattern":
            found += frames(has=["less pattern" if step.new == "plain" else "a different pattern"])
        elif (
            step.field == "sleeves"
            and garment.sleeves in ("straps", "sleeveless")
            and step.new.endswith("sleeves")
        ):
            found += frames(has=["longer sleeves", "more sleeves"])
        elif step.field == "neckline":
            found += frames(has=["a different neckline"])
        elif step.field == "length" and garment.category == "dress":
            order = CHOICES["length"]
            longer = order.index(target.length) > order.index(garment.length)
            found += frames(is_=["longer" if longer else "shorter"])
    return [pick(rng, found)] if found else []


#: Joins phrases to one text.
Connect = Callable[[np.random.Generator, list[str]], str]


def _connected(rng: np.random.Generator, chunks: list[str]) -> str:
    return pick(rng, (" and ", " and ", " and ", ", ")).join(chunks)


def sentence(
    rng: np.random.Generator, garment: Garment, parts: list[Wording], connect: Connect = _connected
) -> str:
    """The wordings as one caption, the way shoppers write: "is blue with long sleeves", "same but longer"."""
    parts = list(parts)
    rng.shuffle(parts)
    by = {form: [text for f, text in parts if f == form] for form in ("is", "has", "bare")}
    roll = rng.random()
    if roll < 0.3 and by["is"] and by["has"] and not any(" has " in text for text in by["has"]):
        head = f"is {' and '.join(by['is'])} with {' and '.join(by['has'])}"
        chunks = [head, *by["bare"]]
    elif roll < 0.5 and not any(" has " in text for _, text in parts):  # without verbs
        chunks = (
            by["is"]
            + [("with " if by["is"] and rng.random() < 0.5 else "") + t for t in by["has"]]
            + by["bare"]
        )
    else:
        chunks = []
        for form in dict.fromkeys(form for form, _ in parts):
            if form == "bare":
                chunks += by[form]
            else:
                chunks.append(f"{form} {' and '.join(by[form])}")
    text = connect(rng, chunks)
    starts = text.startswith(("is ", "has "))
    if starts and rng.random() < 0.15:
        text = pick(rng, ("it ", f"the {noun(garment)} ", f"this {noun(garment)} ")) + text
    elif rng.random() < 0.1:
        text = pick(rng, ("the same but ", f"same {noun(garment)} but ", "same but ")) + text
    return text


def relative_captions(
    rng: np.random.Generator,
    garment: Garment,
    edit: Edit,
    held_out: bool = False,
    *,
    part: Callable[[str], Wording] | None = None,
    connect: Connect = _connected,
) -> tuple[str, str]:
    """Two captions that two shoppers write about one edit. Together they name every change: each of them all,
    or one the whole and the other a part or a comparison, or each its own part.

    ``held_out`` draws wordings that no training text uses. ``part`` words the change of one field and
    ``connect`` joins phrases where training has ways of its own.
    """
    fields = [step.field for step in steps(garment, edit)]

    def worded_parts(chosen: list[str]) -> list[Wording]:
        if part is not None:
            return [part(field) for field in chosen]
        return [pick(rng, wordings(garment, edit, field)[held_out]) for field in chosen]

    rng.shuffle(fields)
    roll = rng.random()
    if len(fields) > 1 and roll < 0.4:
        cut = int(rng.integers(1, len(fields)))
        sides = [worded_parts(fields[:cut]), worded_parts(fields[cut:])]
    elif roll < 0.75:
        sides = [worded_parts(fields), worded_parts(fields)]
    else:
        some = fields[: int(rng.integers(1, len(fields) + 1))]
        sides = [worded_parts(fields), _remark(rng, garment, edit) or worded_parts(some)]
    first, second = (sentence(rng, garment, parts, connect) for parts in sides)
    while second == first:
        second = sentence(rng, garment, worded_parts(fields), connect)
    return (first, second) if rng.random() < 0.5 else (second, first)


def modification_text(rng: np.random.Generator, garment: Garment, edit: Edit, held_out: bool = False) -> str:
    """A way of asking for the edit, given the reference: two thirds are two captions joined as FashionIQ's
    are, the rest one sentence.
    """
    if rng.random() < 0.67:
        return " and ".join(relative_captions(rng, garment, edit, held_out))
    parts = [pick(rng, wordings(garment, edit, step.field)[held_out]) for step in steps(garment, edit)]
    return sentence(rng, garment, parts)


# --- the model answer of every task ----------------------------------------------------------------

FIELD_NAMES = {
    "category": "object", "colour": "colour", "pattern": "pattern", "sleeves": "sleeves",
    "neckline": "neckline", "length": "length", "fit": "fit", "detail": "detail", "background": "background",
}  # fmt: skip
#: In the order of the caption.
_SPOKEN = ("fit", "colour", "length", "category", "pattern", "sleeves", "neckline", "detail")


def _applies(garment: Garment, field: str) -> bool:
    return field == "category" or len(CHOICES_OF[garment.category][field]) > 1


def _word(garment: Garment, field: str) -> str:
    return noun(garment) if field == "category" else state(garment, field)


def description(garment: Garment, edit: Edit) -> str:
    """The selective target description: the edit and what it implies kept, and nothing that nobody
    mentioned.
    """
    target, mentioned = edit.apply(garment), edit.as_dict()
    text = worded(target, plain="pattern" in mentioned)
    return f"{text}, {PLACES[target.background]}" if "background" in mentioned else text


def plain_description(garment: Garment, edit: Edit) -> str:
    """What a plain prompt yields: the whole caption with the edit applied, unmentioned content included."""
    return caption(edit.apply(garment))


def selective_cot(garment: Garment, edit: Edit) -> dict:
    """The four stages of Selective CoT (an empty edit stands for a vague text: no target, nothing to select
    for).
    """
    explicit, implicit, preserved, selected, discarded = [], [], [], [], []
    changed = steps(garment, edit)
    for step in changed:
        explicit.append(f"{FIELD_NAMES[step.field]}: {step.new}")
        if step.old not in ("none", "plain"):
            implicit.append(f"not {step.old}")
            discarded.append(step.old)
    touched = {step.field for step in changed}
    for field in _SPOKEN:
        if field not in touched and _applies(garment, field):
            if (word := _word(garment, field)) != "none":
                preserved.append(FIELD_NAMES[field])
                selected.append(word)
    if "background" not in touched:
        discarded.append(garment.background)
    return {
        "understanding": caption(garment),
        "explicit_targets": explicit,
        "implicit_targets": implicit,
        "preserved": preserved,
        "selected": selected,
        "discarded": discarded,
        "description": description(garment, edit),
    }


def modifications(garment: Garment, edit: Edit) -> list[str]:
    """M_t: the manipulations that turn the reference caption into the target caption."""
    lines = []
    for step in steps(garment, edit):
        if step.old in ("none", "plain"):
            lines.append(f"add {step.new}")
        elif step.new in ("none", "plain"):
            lines.append(f"remove {step.old}")
        else:
            lines.append(f"{step.old} to {step.new}")
    return lines


def text_imagination(garment: Garment, edit: Edit) -> dict:
    return {"target_caption": plain_description(garment, edit), "modifications": modifications(garment, edit)}


def vision_imagination(garment: Garment, edit: Edit) -> dict:
    """C_v and M_v: what must be present in the target, and what must be absent."""
    target = edit.apply(garment)
    order = ("category", "colour", "pattern", "sleeves", "neckline", "length", "fit")
    present = [_word(target, f) for f in order if _applies(target, f)]
    if target.detail != "none":
        present.append(target.detail)
    changed = steps(garment, edit)
    if any(step.field == "background" for step in changed):
        present.append(target.background)
    absent = [step.old for step in changed if step.old not in ("none", "plain")]
    return {"target_caption": description(garment, edit), "present": present, "absent": absent}


def statement(field: str, value, category: str) -> str:
    """A declarative statement of one fact about a picture of a garment of `category`. The value of "colour2"
    is (pattern, its colour).
    """
    thing = NOUNS[category]
    if field in ("colour", "pattern"):
        return f"the {thing} is {value}"
    if field == "category":
        return f"it is {article(NOUNS[value])} {NOUNS[value]}"
    if field == "colour2":
        return f"the {PATTERN_NOUNS[value[0]]} are {value[1]}"
    if field == "sleeves":
        return "it is sleeveless" if value == "sleeveless" else f"it has {SLEEVE_NOUNS[value]}"
    if field == "neckline":
        return f"it has {a(NECK_NOUNS[value])}"
    if field == "length":
        return f"it is {value}" if value in ("cropped", "long") else f"it is {value} length"
    if field == "fit":
        return f"it is {value}"
    if field == "background":
        return f"the background is {article(value)} {value}"
    assert field == "detail", field
    return "it has no detail" if value == "none" else f"it has {a(value)}"


def is_true(garment: Garment, field: str, value, category: str) -> bool:
    """Whether `statement(field, value, category)` holds: what is said of "the dress" presupposes a dress."""
    if field in ("colour", "pattern"):
        return garment.category == category and getattr(garment, field) == value
    if field == "colour2":
        return (garment.pattern, garment.colour2) == value
    return getattr(garment, field) == value


def _fact(garment: Garment, field: str):
    """The value that `statement` takes."""
    return (garment.pattern, garment.colour2) if field == "colour2" else getattr(garment, field)


def questions(garment: Garment, edit: Edit) -> dict:
    """Q and A: every change as a statement that must hold, its old value as one that must not, and what is
    kept.
    """
    target, mentioned = edit.apply(garment), edit.as_dict()
    items = []
    for field, new in edit.changes:
        old = getattr(garment, field)
        if field == "detail" and new == "none":
            items.append((statement(field, old, target.category), False))
            continue
        items.append((statement(field, _fact(target, field), target.category), True))
        if old not in ("none", "plain") and field != "colour2":
            items.append((statement(field, old, target.category), False))
    for field in ("colour", "pattern", "colour2", "sleeves", "neckline", "length", "fit", "detail"):
        kept = field not in mentioned and _applies(target, field) and getattr(target, field) != "none"
        if kept and not (field == "colour2" and "pattern" in mentioned and garment.pattern == "plain"):
            items.append((statement(field, _fact(target, field), target.category), True))
    return {"statements": [{"statement": text, "answer": answer} for text, answer in items]}


@dataclass(frozen=True)
class Statement:
    text: str
    truth: bool
    field: str


#: How often statements are about each field when answers are marked, and when the mini-VLM is trained.
STATEMENT_FIELDS = tuple(
    (
        "colour colour pattern pattern colour2 sleeves sleeves neckline length fit detail detail category "
        "background"
    ).split()
)
TRAINING_FIELDS = (*STATEMENT_FIELDS, *"colour2 neckline length fit detail detail".split())


def random_statement(rng: np.random.Generator, garment: Garment, training: bool = False) -> Statement:
    """A statement about the garment, true or false with equal chance; some false ones have the right value
    and a wrong category.

    ``training`` weighs the fields by `TRAINING_FIELDS` and makes no false statement that describes a held-out
    combination: no picture of it is ever seen, and that must not teach that there is none.
    """
    field = pick(rng, TRAINING_FIELDS if training else STATEMENT_FIELDS)
    if field == "colour2" and garment.pattern == "plain":
        field = "pattern"
    elif not _applies(garment, field):
        field = "detail"
    truth = bool(rng.random() < 0.5)
    category, value = garment.category, _fact(garment, field)

    def others(name: str) -> list:
        shown = {n: getattr(garment, n) for n in ("category", "colour", "pattern", "background")}
        wrong = [v for v in CHOICES_OF[garment.category][name] if v != getattr(garment, name)]
        return [v for v in wrong if not (training and name in shown and unseen(**(shown | {name: v})))]

    if not truth:
        wrong_category = field in ("colour", "pattern") and rng.random() < 0.1
        if field == "colour2":
            options = [(garment.pattern, colour) for colour in COLOURS if colour != garment.colour2]
        else:
            options = others("category" if wrong_category else field)
        if not options:  # whatever else one could say is held out
            truth = True
        elif wrong_category:
            category = pick(rng, options)
        else:
            value = pick(rng, options)
    text = statement(field, value, category)
    assert is_true(garment, field, value, category) == truth, (garment, text)
    return Statement(text, truth, field)


assert set(PLACES) == set(PLACE_SYNONYMS) == set(BACKGROUNDS) and set(NOUNS) == set(CATEGORIES)
assert set(PATTERN_NOUNS) == set(PATTERNS[1:]) and set(LIGHTNESS) == set(COLOURS)
