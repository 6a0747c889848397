"""What people say about the fashion domain: the twin of `texts` (read that first), made from a `Garment` or
from a garment and an `Edit`.

The functions have the names and the answer schemas of `texts`; new is `relative_captions`, the two captions
that two shoppers write about one query of FashionIQ.

A pattern and its colour are spoken of as one thing ("white stripes"), so the changes of an edit are first
gathered into `steps`. The wordings of a step come in three forms: what the garment *is*, what it *has*, and
phrases that stand alone; `_sentence` puts them together. A comparison ("longer") stands alone only where it
leaves one answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from data_scripts import texts
from data_scripts.texts import (
    STYLE_PHRASES,
    Frame,
    article,
    asked,
    connected,
    framed,
    frames,
    join,
    pick,
    spin,
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
Wording = tuple[str, str]


def _wordings(garment: Garment, edit: Edit, field: str) -> tuple[list[Wording], list[Wording]]:
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


def _more_wordings(garment: Garment, edit: Edit, field: str) -> list[Frame]:
    """Frames of one step for training alone (see `texts.frames`; further forms here: "is" and "has")."""
    target, thing = edit.apply(garment), noun(garment)
    old, new = getattr(garment, field), getattr(target, field)
    it = f"[it|it|the {thing}|this {thing}]"
    if field == "colour":
        return frames(
            is_=[
                f"{new} [rather than|in place of|and no longer] {old}",
                f"[no longer|no more|not in] {old} but [in|] {new}",
                f"{new}, [not|never|no more] {old}",
                f"{new} [now|this time|in its colour|]",
                f"[dyed|coloured|made in|shown in|done in] {new}",
                f"{article(new)} [nice|deep|lovely|bright|proper] {new}",
                f"{new} [all over|throughout|everywhere]",
            ],
            has=[
                f"the colour {new}",
                f"{article(new)} {new} [colour|look|tone] [rather than {old}|this time|]",
                f"{new} as [its|the|the main] colour",
            ],
            do=[
                f"[make|have|dye|paint|colour|recolour|show] {it} [in|] {new}",
                f"turn the {thing} {new}",
                f"[change|switch|shift|alter] [the colour|{old}|its colour] to {new}",
                f"[replace|exchange] {old} [with|by|for] {new}",
                f"give {it} [{article(new)} {new} look|the colour {new}]",
                f"[go|opt] for {new}",
            ],
            thing=[
                f"the same {thing} in {new}",
                f"{article(new)} {new} [{thing}|version|variant|colour]",
                f"{new} [rather than|in place of] {old}",
                f"one in {new}",
                f"a [nice|lovely|deep|bright|similar] {new} one",
                f"the {new} one of this kind",
                f"[fabric|cloth|material] in {new}",
            ],
            say=[
                f"the [colour|{thing}] [should be|must be|becomes|is] {new} [now|]",
                f"[no|no more|not] {old}, {new} [instead|please|now]",
                f"{old} [becomes|turns into|goes to] {new}",
                f"[rather than|instead of] {old}, {new}",
                f"{new} is [better|nicer] than {old}",
            ],
        )
    if field == "pattern":
        return _pattern_frames(garment, target)
    if field == "sleeves":
        to, was = SLEEVE_NOUNS[new], SLEEVE_NOUNS[old]
        if new == "sleeveless":
            gone, worn = ("straps", "on straps") if old == "straps" else ("sleeves", f"{old} sleeved")
            return frames(
                is_=[
                    f"sleeveless [now|this time|, no {gone}|with no {gone}]",
                    f"[no longer|no more] {worn} but sleeveless",
                    f"sleeveless [rather than|and not|, not] {worn}",
                    "[made|sewn|shown] sleeveless",
                    "[made|sewn|shown|designed] without [any|] sleeves",
                ],
                has=[
                    "no sleeves [at all|any more|this time]",
                    "[zero|not any] sleeves",
                    f"no {was}, no sleeves",
                ],
                do=[
                    f"[drop|lose|leave out|skip|omit|delete|cut off] the {gone}, [sleeveless|no sleeves]",
                    f"[make|have|show] {it} sleeveless",
                    *(
                        []
                        if old == "straps"
                        else [
                            "[drop|lose|skip|omit|leave out|cut off|do away with|get rid of] the sleeves",
                            "take the sleeves [off|out]",
                            "[cut|tear|strip] the sleeves away",
                        ]
                    ),
                ],
                thing=[
                    f"a sleeveless {thing}",
                    f"the same {thing} with no sleeves",
                    "a sleeveless [one|version]",
                ],
                say=[
                    f"i do not [want|like|need] {gone}, sleeveless [please|]",
                    f"no {gone}, [just|] sleeveless",
                    f"the {gone} [should go|must go|have to go|disappear], sleeveless",
                ],
            )
        old_look = f"{old} sleeved" if old in ("short", "long") else old
        listed = frames(
            has=[
                f"{to} [this time|now|as well|on it]",
                *([] if old == "sleeveless" else [f"{to} [rather than|in place of|and no|, not] {was}"]),
            ],
            is_=[f"[made|sewn|shown|worn|done] with {to}", f"no longer {old_look}, with {to}"],
            do=[
                f"[put|sew|use|have] {to} [on it|]",
                f"give the {thing} {to}",
                f"[change|switch] the [sleeves|{was.removeprefix('no ')}] [to|into] {to}",
                f"[add|include] {to} [to it|]",
            ],
            thing=[f"{to} [now|this time|instead]", f"a {thing} with {to}", f"one with {to}", to],
            say=[
                f"no more {was.removeprefix('no ')}, {to}"
                if old != "sleeveless"
                else f"not sleeveless, {to}",
                f"[not|no longer] {'sleeveless' if old == 'sleeveless' else was} but {to}",
                f"there should be {to}",
                f"it [needs|must have|could have] {to}",
            ],
        )
        if new != "straps":
            listed += frames(
                is_=[f"{new} sleeved"],
                has=[
                    f"sleeves that are {new}",
                    f"{new} sleeves, not {old}" if old in ("short", "long") else f"sleeves, {new} ones",
                ],
                say=[
                    f"the sleeves [should be|must be|become] {new}",
                    f"sleeves [in|of] {new} length",
                    f"sleeves [made|sewn|kept|tailored|worn] {new}",
                ],
                thing=[f"a {new} sleeved {thing}"],
            )
        if {old, new} == {"short", "long"}:
            listed += frames(
                do=[f"[make|have|draw] the sleeves {new}[er|]"],
                has=[f"sleeves that are {new}er"],
                say=[f"the sleeves [should be|must be|could be] {new}er", f"the sleeves are too {old}"],
            )
        return listed
    if field == "neckline":
        to, was, bare = a(NECK_NOUNS[new]), a(NECK_NOUNS[old]), NECK_NOUNS[old]
        shaped = (
            "a collar [at the neck|this time|now]" if new == "collar" else f"a {new} [shaped neck|neckline]"
        )
        return frames(
            has=[
                f"{to} [rather than|in place of|, not|and no more] {was}",
                shaped,
                f"{to} and no {bare}",
            ],
            is_=[f"[made|sewn|shown|done] with {to}", f"no longer with {was} but with {to}"],
            do=[
                f"[change|switch|turn|convert] the [{bare}|neckline] [to|into] {to}",
                f"[replace|exchange|trade] the {bare} [with|by|for] {to}",
                f"[put|sew|use|have] {to} [on it|in place of the {bare}]",
                f"give the {thing} {to}",
            ],
            thing=[f"{to} [now|this time|instead]", f"a {thing} with {to}", f"one with {to}", to],
            say=[
                f"the [neckline|neck] [should be|must be|becomes] {to}",
                f"[no|no more|no longer a] {bare}, {to}",
                f"[no|no longer {article(bare)}] {bare} but {to}",
                f"[rather than|instead of] {was}, {to}",
                f"i [prefer|like|want|need] {to}",
            ],
        )
    if field == "length":
        return _length_frames(garment, old, new)
    if field == "fit":
        like, unlike = (("tight", "loose"), ("loose", "tight"))[new == "loose"]
        more = like + ("r" if like.endswith("e") else "er")
        return frames(
            is_=[
                f"{new} [rather than|in place of|, not|and no longer] {old}",
                f"[no longer|no more|less] {old} but [more|] {new}",
                f"[much|a bit|somewhat|] {more} [than this|now|]",
                f"[more|rather|very] {new}",
                f"[made|sewn|worn] {new}",
            ],
            has=[f"a {more} fit [than this|]", f"a {new} fit", f"a fit that is {more}"],
            do=[
                f"[make|have|sew] {it} [{new}|{more}|more {new}]",
                f"[change|switch] the fit [to|from {old} to] {new}",
            ],
            thing=[f"a {new} [{thing}|one|version|fit]", f"a {more} {thing}", f"{new} [now|this time]"],
            say=[
                f"the fit [is|should be|must be|becomes] {new}",
                f"it [is|looks] too {unlike}",
                f"[no|no more|not] {old}, {new} [instead|please|]",
                f"[rather than|instead of] {old}, {new}",
            ],
        )
    if field == "detail":
        return _detail_frames(garment, old, new)
    assert field == "background", field
    place = f"[{'|'.join((PLACES[new], *PLACE_SYNONYMS[new]))}]"
    goal, was = f"{article(new)} {new}", PLACES[old]
    return frames(
        is_=[
            f"[shown|seen|pictured|worn|hanging|placed] {place}",
            f"{place} [rather than|and not|, not] {was}",
            f"[not|no longer] {was} but {place}",
        ],
        has=[f"{goal} [behind it|in the background|as the background]", f"a {new} background"],
        do=[
            f"[show|picture|bring|hang|wear|have|see] {it} {place}",
            f"[move|take|bring] {it} to {goal}",
            f"[change|switch] the [background|scene|place] to {goal}",
        ],
        thing=[f"{goal} behind it", f"the same {thing} {place}", f"a picture {place}"],
        say=[
            f"the [background|scene] [is|should be|becomes] {goal}",
            f"{place} [now|this time|please|instead|]",
            f"[rather than|instead of] {was}, {place}",
        ],
    )


def _pattern_frames(garment: Garment, target: Garment) -> list[Frame]:
    thing, adjective = noun(garment), garment.pattern
    it, was = f"[it|it|the {thing}|this {thing}]", PATTERN_NOUNS.get(adjective, "")
    if target.pattern == "plain":
        return frames(
            is_=[
                f"plain [rather than|and no longer|instead of|, not|, no more] {adjective}",
                f"[no longer|no more] {adjective} but plain",
                f"[free of|empty of] {was}, plain",
                "[all in|in|of] one [solid|single] colour",
            ],
            has=[f"no [{was}|pattern] [at all|any more|this time]", f"no more {was}", "no pattern, plain"],
            do=[
                f"[drop|lose|delete|erase|skip|omit|leave out|do away with] the [{was}|pattern]",
                f"[make|leave|keep|have|turn] the {thing} plain",
                f"take the {was} [off|away]",
                f"take [away|off] the {was}",
            ],
            thing=[
                f"a plain {thing}",
                f"a {thing} [with no|without any] {was}",
                "plain [now|this time]",
                "a [simple|really|nice] plain one",
            ],
            say=[
                f"the {was} [should go|must go|have to go|disappear|are gone]",
                f"i do not [want|like|need] [the|any] {was}",
                f"[no|no more|not] {adjective}, plain [please|instead|]",
            ],
        )
    things, both, tint = PATTERN_NOUNS[target.pattern], marks(target), target.colour2
    listed = frames(
        is_=[
            f"[decorated with|patterned with|full of|dressed in|covered with|wrapped in] {both}",
            f"{target.pattern} [with|in] {tint} [now|]",
            f"covered [all over|fully|partly] in {both}",
            f"[marked|printed|scattered|overlaid] with {both}",
        ],
        has=[
            f"{both} [all over|everywhere|across it|this time|as a pattern]",
            f"{article(tint)} {tint} {target.pattern} [look|design]",
            f"{things} that are {tint}",
            f"[some|plenty of|lots of|many|only] {both}",
            f"{things} [of|coloured|in|dyed] {tint}",
            f"a [layer|print|motif|design|set] of {both}",
            f"a pattern [made of|that is|with] {both}",
        ],
        do=[
            f"[put|draw|paint|print|place|lay|sew] {both} [on|over|across] {it}",
            f"[decorate|cover|fill|mark] {it} with {both}",
            f"[use|have|show|include] {both} [on it|]",
            f"give the {thing} {both}",
            f"give it [some|plenty of|lots of|a print of] {both}",
        ],
        thing=[
            f"a {thing} with {both}",
            f"{both} [now|this time|instead|all over]",
            both,
            f"a {target.pattern} one in {tint}",
            f"one with {both}",
        ],
        say=[
            f"the pattern [is|should be|must be|becomes] {both}",
            f"there should be {both} [on it|]",
            f"i [like|want|prefer] {both}",
        ],
    )
    if garment.pattern == target.pattern:
        listed += frames(
            do=[f"[make|turn|recolour|dye|paint] the {was} {tint}", f"change the {was} to {tint}"],
            has=[f"{both}, [not|no longer|no more] {garment.colour2} ones", f"{was} [now|] in {tint}"],
            say=[f"the {was} [should be|are|turn|must be|become] {tint} [now|]"],
        )
    elif garment.pattern != "plain":
        listed += frames(
            do=[
                f"[replace|exchange|trade] the {was} [with|by|for] {both}",
                f"[change|turn] the {was} [to|into] {both}",
            ],
            has=[f"{both} [rather than|in place of|, no|, not] {was}"],
            say=[
                f"[no|no more|not] {was}, {both}",
                f"not {was} but {both}",
                f"the {was} [become|turn into] {both}",
            ],
        )
    else:
        listed += frames(
            say=[f"[not|no longer] plain but with {both}", f"not plain, {both}"],
            has=[f"{both} rather than nothing"],
        )
    return listed


def _length_frames(garment: Garment, old: str, new: str) -> list[Frame]:
    thing, it = noun(garment), f"[it|it|the {noun(garment)}]"
    listed = frames(
        is_=[
            f"{new} [rather than|in place of|, not|and no longer] {old}",
            f"[no longer|no more] {old} but {new}",
            f"[of|in] {new} length",
            f"[made|sewn|trimmed] to {'' if thing == 'dress' else 'a '}{new} length",
        ],
        has=[f"a {new} length [now|this time|rather than {old}]"],
        do=[
            f"[make|have] {it} {'a ' + new + ' dress' if thing == 'dress' else new}",
            f"[change|switch|set|bring] the length [to|from {old} to] {new}",
        ],
        thing=[f"a {new} {thing}", f"a {new} [version|one|length]", f"{new} [now|this time|length]"],
        say=[
            f"the length [is|should be|must be|becomes] {new}",
            f"[no|no more|not] {old}, {new} [instead|please|]",
            f"[rather than|instead of] {old}, {new}",
        ],
    )
    if thing == "dress" and new != "mini":
        part = {"midi": "knee", "maxi": "ankle"}[new]
        listed += frames(
            is_=[f"[down to|ending at|up to|reaching] the {part}", f"{part} long"],
            do=[f"[make|let] it [reach|end at|go to] the {part}"],
            say=[f"the hem [ends|is|should be|should end] at the {part}"],
        )
    if thing != "dress" or old == "midi":
        word, verb, wrong = "shorter", "shorten", "long"
        if new in ("maxi", "long"):
            word, verb, wrong = "longer", "lengthen", "short"
        listed += frames(
            is_=[f"[a bit|somewhat|much|] {word} [now|this time|than this one]", f"made {word}"],
            has=[f"a hem that is {word}"],
            do=[f"[make|have] {it} {word}", f"{verb} [it|the {thing}|the hem]"],
            say=[f"it [should be|must be|could be] {word}", f"the {thing} is too {wrong}"],
        )
    return listed


def _detail_frames(garment: Garment, old: str, new: str) -> list[Frame]:
    thing, it = noun(garment), f"[it|it|the {noun(garment)}]"
    if new == "none":
        be, go = ("are", "go") if old.endswith("s") else ("is", "goes")
        return frames(
            is_=[f"[free of|without|no longer with] the {old}", f"[made|sewn|shown] without {a(old)}"],
            has=[
                f"no [more|] {old} [any more|at all|this time]",
                f"not any {old}",
            ],
            do=[
                f"[drop|lose|delete|erase|skip|omit|leave out|take off|do away with|hide|cut off] the {old}",
                f"take [away|out|off] the {old}",
                f"[show|have|leave] {it} [without any|with no] {old}",
            ],
            thing=[f"no {old} [at all|any more|this time|on it]", f"a {thing} [with no|without any] {old}"],
            say=[
                f"the {old} [should go|must go|can go|{go} away|{be} not wanted|{be} gone|{be} too much]",
                f"i do not [want|like|need] [the|any] {old}",
                f"there should be no {old} [on it|]",
            ],
        )
    a_new = a(new)
    listed = frames(
        is_=[f"[made|sewn|shown|worn|finished|decorated] with {a_new}"],
        has=[f"{a_new} [this time|now|on it]", f"{a_new} [as a detail|to it]"],
        do=[
            f"[sew|fix|draw|show|place|print|have] {a_new} on {it}",
            f"[finish|decorate|complete] {it} with {a_new}",
            f"give the {thing} {a_new}",
            f"[include|use|show|have] {a_new}",
        ],
        thing=[f"a {thing} with {a_new}", f"{a_new} [now|this time|on it|]", f"one with {a_new}"],
        say=[
            f"there should be {a_new} [on it|]",
            f"{a_new} [{'are' if new.endswith('s') else 'is'}] missing",
            f"it [needs|must have|could have|could use] {a_new}",
            f"i [like|want|miss|prefer] {a_new}",
        ],
    )
    if old == "none":
        return listed + frames(
            has=[f"{a_new} [too|as well|in addition]"],
            do=[f"add {a_new} [to it|too|as well|on it]"],
            say=[f"[plus|also|together with|along with] {a_new}"],
        )
    return listed + frames(
        has=[f"{a_new} [rather than|in place of|, not] {a(old)}", f"{a_new}, no [more|] {old}"],
        is_=[f"[no longer|not] with {a(old)} but with {a_new}"],
        do=[
            f"[exchange|trade|switch|change] the {old} for {a_new}",
            f"[replace|substitute] the {old} by {a_new}",
            f"[turn|make|convert] the {old} into {a_new}",
            f"[drop|remove|lose|skip] the {old} and [add|sew on|use|show] {a_new}",
        ],
        thing=[f"{a_new} [rather than|in place of|and no longer] {a(old)}"],
        say=[
            f"[no|no more|never mind the|forget the] {old}, {a_new}",
            f"no {old} but {a_new}",
            f"the {old} [should become|should be|must become] {a_new}",
            f"[rather than|instead of] {a(old)}, {a_new}",
        ],
    )


#: How training texts ask for what a garment is, and for what it has.
_ASKS = {
    "is": (
        "make it {}", "[it|this] [should|must|could|has to|ought to] be {}", "i [want|need|like] it {}",
        "let it be {}", "{} please", "[one|something] [that is|which is|] {}", "could it be {}", "must be {}",
        "[show me|find me|get me|i need|i want|i would love] one that is {}",
        "[can|could|would] you make it {}", "how about {}", "this time {}", "the same one but {}",
    ),
    "has": (
        "i [want|need|like|prefer|would love|wish for] {}", "[it|this] [should|must|could|has to] have {}",
        "let it have {}", "[show|show me|find me|i need|i want] one [with|that has] {}", "must have {}",
        "{} please", "do it with {}", "[how|what] about {}", "can it have {}", "it comes with {}",
        "the same one [but|] with {}", "have {}", "use {}",
    ),
}  # fmt: skip


#: A longer training text is drawn anew: few benchmark texts are longer.
_MOST_WORDS = 26


def _training_part(rng: np.random.Generator, garment: Garment, edit: Edit, field: str) -> Wording:
    """A wording of one step for training: a third as the benchmarks' own, the rest from `_more_wordings`, and
    half of what the garment is or has put as a request.
    """
    if rng.random() < 0.35:
        form, text = pick(rng, _wordings(garment, edit, field)[0])
    else:
        form, text = pick(rng, _more_wordings(garment, edit, field))
        if form not in ("is", "has"):
            return "bare", asked(rng, (form, text))
    if form in _ASKS and rng.random() < 0.5:
        form, text = "bare", pick(rng, _ASKS[form]).replace("{}", text)
    return form, spin(rng, text)


def _sentence(
    rng: np.random.Generator, garment: Garment, parts: list[Wording], training: bool = False
) -> str:
    """The wordings as one caption, the way shoppers write: "is blue with long sleeves", "same but longer".
    ``training`` connects them in more ways.
    """
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
    if training:
        text = connected(rng, chunks)
    else:
        text = pick(rng, (" and ", " and ", " and ", ", ")).join(chunks)
    starts = text.startswith(("is ", "has "))
    if starts and rng.random() < 0.15:
        text = pick(rng, ("it ", f"the {noun(garment)} ", f"this {noun(garment)} ")) + text
    elif rng.random() < 0.1:
        text = pick(rng, ("the same but ", f"same {noun(garment)} but ", "same but ")) + text
    return text


def relative_captions(
    rng: np.random.Generator, garment: Garment, edit: Edit, held_out: bool = False, training: bool = False
) -> tuple[str, str]:
    """Two captions that two shoppers write about one edit. Together they name every change: each of them all,
    or one the whole and the other a part or a comparison, or each its own part.

    ``held_out`` draws wordings that no training text uses; ``training`` mixes in those of `_training_part`.
    """
    fields = [step.field for step in steps(garment, edit)]

    def worded_parts(chosen: list[str]) -> list[Wording]:
        if training:
            return [_training_part(rng, garment, edit, field) for field in chosen]
        return [pick(rng, _wordings(garment, edit, field)[held_out]) for field in chosen]

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
    first, second = (_sentence(rng, garment, parts, training) for parts in sides)
    while second == first:
        second = _sentence(rng, garment, worded_parts(fields), training)
    return (first, second) if rng.random() < 0.5 else (second, first)


def modification_text(
    rng: np.random.Generator, garment: Garment, edit: Edit, held_out: bool = False, training: bool = False
) -> str:
    """A way of asking for the edit, given the reference: two thirds are two captions joined as FashionIQ's
    are, the rest one sentence.
    """
    if training:
        return _training_text(rng, garment, edit)
    if rng.random() < 0.67:
        return " and ".join(relative_captions(rng, garment, edit, held_out))
    parts = [pick(rng, _wordings(garment, edit, step.field)[held_out]) for step in steps(garment, edit)]
    return _sentence(rng, garment, parts)


def _training_text(rng: np.random.Generator, garment: Garment, edit: Edit) -> str:
    """Half of them two captions, half one sentence, of at most `_MOST_WORDS`."""
    while True:
        if rng.random() < 0.5:
            text = connected(rng, list(relative_captions(rng, garment, edit, training=True)))
        else:
            parts = [_training_part(rng, garment, edit, step.field) for step in steps(garment, edit)]
            text = _sentence(rng, garment, parts, training=True)
            if text.startswith(("is ", "has ")) and rng.random() < 0.3:
                text = spin(rng, f"[i want|i need|show me|find me|get me|can i see] one [that|which] {text}")
            text = framed(rng, text)
        if len(text.split()) <= _MOST_WORDS:
            return text


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
