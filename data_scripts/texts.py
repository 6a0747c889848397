"""What people say about the mini world: captions, modification texts, statements, and the model answer of
every task.

Everything here is text made from a `Scene` or from a scene and an `Edit`. The training scripts use it to make
examples, the benchmark builder to write queries, and `evaluate_mini_models.py` to mark answers. Nothing in
`cir_utils` imports it.

`held_out=True` draws wordings that never occur in training texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from data_scripts.world import (
    BACKGROUNDS,
    CHOICES,
    COLOURS,
    COUNTS,
    KINDS,
    PATTERNS,
    PROPS,
    SHADES,
    STYLES,
    Edit,
    Scene,
    held_out,
)

NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four"}
PLURALS = {"fish": "fish", "bench": "benches"}
PLACES = {
    "beach": "at the beach",
    "meadow": "in a meadow",
    "autumn park": "in an autumn park",
    "snowy park": "in a snowy park",
    "city": "in the city",
    "night sky": "under a night sky",
    "desert": "in the desert",
    "room": "in a room",
}
PLACE_SYNONYMS = {
    "beach": ("by the sea", "on the sand by the sea"),
    "meadow": ("on green grass", "in a green field"),
    "autumn park": ("in a park in autumn", "among autumn leaves"),
    "snowy park": ("in winter with snow", "in the snow"),
    "city": ("in front of tall buildings", "on a city street"),
    "night sky": ("at night", "under the stars"),
    "desert": ("among sand dunes", "in a dry desert"),
    "room": ("indoors", "inside a room"),
}
STYLE_PHRASES = {
    "flat": "flat style",
    "outline": "ink outline",
    "shaded": "soft shading",
    "pastel": "pastel drawing",
    "hatched": "pencil hatching",
    "mosaic": "tile mosaic",
}
PATTERN_NOUNS = {"striped": "stripes", "spotted": "spots"}


def article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def plural(kind: str) -> str:
    return PLURALS.get(kind, kind + "s")


def noun(kind: str, count: int) -> str:
    return kind if count == 1 else plural(kind)


def place_noun(background: str) -> str:
    return f"{article(background)} {background}"


def pick(rng: np.random.Generator, options):
    return options[rng.integers(len(options))]


# --- captions --------------------------------------------------------------------------------------


def subject(
    scene: Scene, *, colour: bool = True, pattern: bool = True, count: bool = True, plain: bool = False
) -> str:
    """The main objects as a noun phrase: "two red striped cats"; `plain=True` also says "plain"."""
    words = [NUMBERS[scene.count]] if count else []
    if colour:
        words.append(scene.colour)
    if pattern and (plain or scene.pattern != "plain"):
        words.append(scene.pattern)
    words.append(noun(scene.kind, scene.count))
    return " ".join(words)


def beside(scene: Scene) -> str:
    return "" if scene.prop == "none" else f"with {article(scene.prop)} {scene.prop} on the {scene.side}"


def join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def caption(scene: Scene) -> str:
    """The full caption: all spoken content, nothing unspoken. `read_caption` is its inverse."""
    return join(subject(scene), beside(scene), PLACES[scene.background])


def read_caption(text: str) -> dict[str, str | int | None]:
    """The spoken fields that a text names, by its words (None where a field is not named; pattern: plain)."""
    words = text.lower().replace(",", " ").replace(".", " ").split()
    kinds = {form: kind for kind in KINDS for form in (kind, plural(kind))}
    numbers = {name: number for number, name in NUMBERS.items()}
    found: dict[str, str | int | None] = dict.fromkeys(
        ("kind", "colour", "count", "background", "prop", "side")
    )
    found["pattern"] = next((w for w in words if w in PATTERN_NOUNS), "plain")
    found["kind"] = next((kinds[w] for w in words if w in kinds), None)
    found["colour"] = next((w for w in words if w in COLOURS), None)
    found["count"] = next((numbers[w] for w in words if w in numbers), None)
    found["prop"] = next((w for w in words if w in PROPS), "none")
    found["side"] = next((w for w in words if w in ("left", "right")), "left")
    joined = " ".join(words)
    found["background"] = next((name for name, phrase in PLACES.items() if phrase in joined), None)
    return found


def dense_caption(rng: np.random.Generator, scene: Scene) -> str:
    """One of many ways to describe the whole picture; a third of them name the style, some the shade."""
    head = subject(scene, plain=rng.random() < 0.2)
    if rng.random() < 0.3:
        head = head.replace(scene.colour, f"{scene.shade} {scene.colour}")
    prop = (
        "" if scene.prop == "none" else pick(rng, (beside(scene), f"and {article(scene.prop)} {scene.prop}"))
    )
    place = pick(rng, (PLACES[scene.background], *PLACE_SYNONYMS[scene.background]))
    body = pick(rng, (join(head, prop, place), join(place + ",", head, prop), join(head, place, prop)))
    style = STYLE_PHRASES[scene.style]
    if rng.random() < 0.33:
        body = pick(rng, (f"{body}, {style}", f"{style} of {body}"))
    return pick(rng, (body, body, f"a picture of {body}", f"there is {body}"))


def short_text(rng: np.random.Generator, scene: Scene) -> str:
    """A short alt-text: some of what the picture holds."""
    head = subject(
        scene,
        colour=rng.random() < 0.7,
        pattern=rng.random() < 0.7,
        count=rng.random() < 0.6,
        plain=rng.random() < 0.3,
    )
    extra = rng.random()
    if extra < 0.3:
        head = join(head, pick(rng, (PLACES[scene.background], *PLACE_SYNONYMS[scene.background])))
    elif extra < 0.45 and scene.prop != "none":
        head = join(head, beside(scene) if rng.random() < 0.5 else f"with {article(scene.prop)} {scene.prop}")
    roll = rng.random()
    if roll < 0.06:
        head = pick(rng, (PLACES[scene.background], *PLACE_SYNONYMS[scene.background]))
    elif roll < 0.10 and scene.prop != "none":
        head = f"{article(scene.prop)} {scene.prop}"
    if rng.random() < 0.33:
        style = STYLE_PHRASES[scene.style]
        head = pick(rng, (f"{head}, {style}", f"{style} of {head}"))
    if rng.random() < 0.1:
        head = f"{head}, facing {scene.facing}"
    if rng.random() < 0.1:
        head = head.replace(scene.colour, f"{scene.shade} {scene.colour}")
    return head


# --- edits and modification texts ------------------------------------------------------------------

EDITABLE = ("colour", "kind", "count", "pattern", "background", "prop")


def random_edit(rng: np.random.Generator, scene: Scene, fields: tuple[str, ...] | None = None) -> Edit:
    """One to three changes, each to a value other than the reference's."""
    if fields is None:
        number = rng.choice([1, 2, 3], p=[0.55, 0.38, 0.07])
        weights = np.array([0.22, 0.14, 0.16, 0.14, 0.2, 0.14])
        fields = tuple(rng.choice(EDITABLE, size=number, replace=False, p=weights))
    changes = []
    for field in sorted(
        fields, key=EDITABLE.index
    ):  # one order, so that the answer of every task is determined
        old = getattr(scene, field)
        if field == "prop" and old != "none" and rng.random() < 0.4:
            changes.append((field, "none"))
            continue
        options = [
            value for value in CHOICES[field] if value != old and not (field == "prop" and value == "none")
        ]
        changes.append((field, pick(rng, options)))
    return Edit(tuple(changes))


def _wordings(scene: Scene, field: str, new) -> tuple[list[str], list[str]]:
    """(training wordings, held-out wordings) of one change."""
    thing, old = noun(scene.kind, scene.count), getattr(scene, field)
    it = "it" if scene.count == 1 else "them"
    if field == "colour":
        return (
            [
                f"make {it} {new}",
                f"make the {thing} {new}",
                f"change the colour to {new}",
                f"the {thing} should be {new}",
                f"{new} instead of {old}",
                f"turn {it} {new}",
                f"in {new}",
                f"i want {it} in {new}",
            ],
            [f"paint {it} {new}", f"not {old} but {new}", f"give the {thing} a {new} colour"],
        )
    if field == "kind":
        one, many = f"{article(new)} {new}", plural(new)
        other = one if scene.count == 1 else many
        was = f"the {thing}"
        return (
            [
                f"replace {was} with {other}",
                f"{other} instead of {was}",
                f"change {was} to {other}",
                f"show {other} instead",
                f"swap {was} for {other}",
            ],
            [f"{other}, not {was}", f"turn {was} into {other}"],
        )
    if field == "count":
        some = f"{NUMBERS[new]} {noun(scene.kind, new)}"
        train = [
            f"show {some}",
            f"{some} instead of {NUMBERS[old]}",
            f"make it {some}",
            f"there should be {some}",
            f"with {some}",
            f"make it {new} {noun(scene.kind, new)}",
        ]
        if new == old + 1:
            train += [f"add one more {scene.kind}", f"one {scene.kind} more", f"add another {scene.kind}"]
        if new == old - 1:
            train += [f"one {scene.kind} fewer", f"take away one {scene.kind}"]
        held = [f"change the number to {NUMBERS[new]}", f"i would like {some}"]
        if new == 2 * old:
            held.append(f"twice as many {plural(scene.kind)}")
        return train, held
    if field == "pattern":
        if new == "plain":
            stuff = PATTERN_NOUNS[old]
            return (
                [
                    f"remove the {stuff}",
                    f"without {stuff}",
                    f"no {stuff}",
                    "make it plain",
                    f"plain, without {stuff}",
                ],
                [f"get rid of the {stuff}", "a plain one"],
            )
        stuff = PATTERN_NOUNS[new]
        train = [
            f"make {it} {new}",
            f"add {stuff}",
            f"with {stuff}",
            f"the {thing} should be {new}",
            f"in a {new} pattern",
        ]
        if old != "plain":
            train.append(f"{stuff} instead of {PATTERN_NOUNS[old]}")
        return train, [f"covered in {stuff}", f"give {it} {stuff}"]
    if field == "background":
        places = (PLACES[new], *PLACE_SYNONYMS[new])
        train = [f"move {it} to {place_noun(new)}", f"the background should be {place_noun(new)}"]
        for place in places:
            train += [place, f"now {place}", f"{place} instead of {PLACES[old]}"]
        return train, [f"place {it} {PLACES[new]}", f"set {places[1]}"]
    assert field == "prop", field
    if new == "none":
        return (
            [f"remove the {old}", f"without the {old}", f"no {old}", f"leave out the {old}"],
            [f"take the {old} away", f"the {old} is gone"],
        )
    a_new = f"{article(new)} {new}"
    if old == "none":
        return [f"add {a_new}", f"with {a_new}", f"with {a_new} beside {it}", f"and {a_new}"], [
            f"put {a_new} there too"
        ]
    return (
        [f"replace the {old} with {a_new}", f"{a_new} instead of the {old}", f"change the {old} to {a_new}"],
        [f"swap the {old} for {a_new}", f"{a_new}, not the {old}"],
    )


# Wordings for training alone. The more ways of asking a model has met, the better it copes with one that it
# has not: so these are composed, not listed. A frame is a text with slots, "[drop|lose] the belt", and has
# one of the forms "do" (a command), "thing" (what is wanted, with no verb) and "say" (a sentence, or a phrase
# that stands alone). No benchmark text is drawn from them, and none makes a held-out wording.

Frame = tuple[str, str]

_ASKS = {
    "do": (
        "{}", "{}", "{}", "{}",
        "[can|could|would|will] you {}", "[please|just|now|simply|kindly] {}", "i [want|need|ask] you to {}",
        "[let us|you could|we should|try to|best to|remember to] {}",
    ),
    "thing": (
        "{}", "{}", "{}",
        "i [want|need|would love|prefer|wish for|am looking for|was hoping for|would rather have] {}",
        "[show me|show|get me|find me|let me see|let us have|have|use|take] {}",
        "[how about|what about|why not|maybe|this time|now|rather|better] {}",
        "[could|can|may] i [have|see|get] {}",
    ),
    "say": ("{}",),
}  # fmt: skip
_CONNECTORS = (
    " and ", " and ", " and ", ", ", ", ", ", and ", " and also ", ", also ", "; ", ". ", " plus ", ", plus ",
    ", then ", " and then ", ", as well as ", " & ",
)  # fmt: skip
_OPENINGS = (
    "[the|] same [picture|image|one|thing|], [but|only|just]",
    "the same [picture|image|one|], [but|only|except]",
    "keep [everything|all|the rest|the others] [the same|as it is|], [but|]",
    "[similar|like this|as here|almost the same|just like this|something similar], but",
    "[everything else|the rest] [the same|unchanged|stays],",
    "[hi|hello|ok|well|thanks|nice|great], [but|]",
)
_CLOSINGS = (
    "[|,] please", ", [thanks|thank you]", "[|,] if [possible|you can]", "[this time|now|instead|here]",
    ", [nothing else|no other change|the rest stays|all else the same|keep the rest|otherwise the same]",
)  # fmt: skip


def spin(rng: np.random.Generator, frame: str) -> str:
    """The frame with one option drawn for each of its slots ("[a|b|]"; an empty option leaves it out)."""
    text = re.sub(r"\[([^\[\]]*)\]", lambda slot: pick(rng, slot[1].split("|")), frame)
    return re.sub(r" +(?=[,;.]|$)|^ +|(?<= ) +|,(?=,)", "", text)


def frames(**lists: list[str]) -> list[Frame]:
    """Frames by form: `frames(do=["drop [it|that]"])`."""
    return [(form.removesuffix("_"), text) for form, texts_ in lists.items() for text in texts_]


def asked(rng: np.random.Generator, frame: Frame) -> str:
    """A frame spun, and put as a request of one kind or another."""
    form, text = frame
    return spin(rng, pick(rng, _ASKS[form]).replace("{}", text))


def connected(rng: np.random.Generator, parts: list[str]) -> str:
    """One training text out of several."""
    text = parts[0]
    for part in parts[1:]:
        text += pick(rng, _CONNECTORS) + part
    return text


def framed(rng: np.random.Generator, text: str) -> str:
    """A training text, two in five times with words before or after that ask for nothing more."""
    roll = rng.random()
    if roll < 0.2:
        text = f"{pick(rng, _OPENINGS)} {text}"
    elif roll < 0.4:
        text = f"{text} {pick(rng, _CLOSINGS)}"
    return spin(rng, text)


def _more_wordings(scene: Scene, field: str, new) -> list[Frame]:
    """Frames of one change for training alone."""
    thing, old = noun(scene.kind, scene.count), getattr(scene, field)
    it, be, become = ("it", "is", "becomes") if scene.count == 1 else ("them", "are", "become")
    they = "it" if scene.count == 1 else "they"
    whom = f"[{it}|{it}|the {thing}]"
    if field == "colour":
        return frames(
            do=[
                f"[make|colour|recolour|dye|tint|draw|show|render|have] {whom} [in|] {new}",
                f"[turn|spray|brush|repaint|print] the {thing} {new}",
                f"paint the {thing} in {new}",
                f"[change|switch|shift|convert|alter] [the colour|the colour of the {thing}|{old}] to {new}",
                f"[replace|exchange|trade] {old} [with|by|for] {new}",
                f"use {new} [for the {thing}|as the colour|rather than {old}|here]",
                f"give {whom} [the colour {new}|a coat of {new}|{article(new)} {new} look|{new} paint]",
                f"[go|opt] for {new}",
                f"let {whom} be {new}",
            ],
            thing=[
                f"{new} [rather than|in place of|and no longer|where it was] {old}",
                f"{new} [this time|now|as the colour]",
                f"{new}, [not|no longer|never|and no more] {old}",
                f"{whom} in {new}",
                f"something {new}",
                f"{article(new)} {new} [version|variant|copy]",
                f"a [nice|lovely|bright|deep] {new} one",
                f"the same {thing} in {new}",
                f"the colour {new}",
            ],
            say=[
                f"the {thing} [{be}|{become}|must be|could be|ought to be|would look better] {new} [now|]",
                f"[no longer|no more|not in] {old} but in {new}",
                f"[no longer|no more|not] {old}, {new} [instead|now|please|]",
                f"[rather than|in place of|instead of] {old}, {new}",
                f"{new}, i do not [want|like|need] {old}",
                f"{new} is [better|nicer] than {old}",
                f"i [prefer|like|want|need] {whom} [in|to be] {new}",
                f"the colour [is|should be|must be|becomes] {new}",
                f"{old} [becomes|turns into|goes to] {new}",
            ],
        )
    if field == "kind":
        other = f"{article(new)} {new}" if scene.count == 1 else plural(new)
        was, bare_was = f"the {thing}", f"{article(thing)} {thing}" if scene.count == 1 else thing
        return frames(
            do=[
                f"[convert|transform|change|switch|make|morph] [{was}|{it}] into {other}",
                f"[change|switch|alter] {bare_was} to {other}",
                f"[replace|substitute] {bare_was} [with|by] {other}",
                f"[exchange|trade|switch|change|swap out] {was} for {other}",
                f"[draw|show|put|use|have|paint] {other} [here|there|rather than {was}|where {was} {be}]",
                f"[remove|drop|forget|delete|lose|take out] {was} and [draw|show|add|use|have] {other}",
                f"let {it} [be|become] {other}",
                f"turn {it} into {other}",
                f"make {it} {other}",
            ],
            thing=[
                f"{other} [rather than|in place of|in the place of|where i see] {was}",
                f"{other} [and no|and not a|not] {scene.kind}"
                if scene.count == 1
                else f"{other} [and no|and not|, no more|, no] {thing}",
                f"{other} [this time|now|here|instead]",
                f"{other}",
            ],
            say=[
                f"[not|no longer] {bare_was} but {other}",
                f"[no|no more|not the|never mind the|forget the] {thing}, {other} [now|please|instead|]",
                f"[rather than|instead of|in place of] {was}, {other}",
                f"{was} [should be|should become|{become}|turns into|must be] {other}".replace(
                    "turns", "turns" if scene.count == 1 else "turn"
                ),
                f"{they} should be {other}, [not|never] {bare_was}",
                f"{other}, i do not [want|like|need] {bare_was}",
                f"there [{be}|should be|must be] {other} [instead|now|in place of {was}]",
                f"{other} would be [better|nicer] than {was}",
            ],
        )
    if field == "count":
        return _count_frames(scene, old, new)
    if field == "pattern" and new == "plain":
        stuff = PATTERN_NOUNS[old]
        return frames(
            do=[
                f"[drop|lose|delete|erase|skip|omit|do away with|leave out|wipe off] [the|all the] {stuff}",
                f"take the {stuff} [away|off]",
                f"[make|leave|keep|have|draw] [{it}|the {thing}] plain",
                f"turn {it} plain",
                f"[free|clear|strip] {whom} of [the|all] {stuff}",
                f"use one [solid|single] colour, no {stuff}",
            ],
            thing=[
                f"plain [rather than|instead of|and no longer|, not|, no more] {old}",
                f"no {stuff} [at all|any more|this time|on {it}|]",
                f"{whom} [with no|without any|without the|free of] {stuff}",
                f"{article(thing) + ' ' if scene.count == 1 else ''}plain {thing}",
                f"[just|only] one [solid|single] colour, no {stuff}",
                "a [simple|really|nice] plain one",
            ],
            say=[
                f"the {stuff} [should go|must go|have to go|are gone|disappear|are not wanted|can go]",
                f"i do not [want|like|need] [the|any] {stuff}",
                f"the {thing} [{be}|should be|must be|{become}] plain [now|]",
                f"[no longer|no more|not] {old}, plain [instead|now|]",
                f"there [should be|are] no {stuff}",
                f"[no longer|never] {old} but plain",
            ],
        )
    if field == "pattern":
        stuff = PATTERN_NOUNS[new]
        listed = frames(
            do=[
                f"[draw|put|paint|print|place|lay|show|use] {stuff} [on|over|across|all over] {whom}",
                f"[decorate|cover|mark|fill|dress|pattern|wrap] {whom} [with|in] {stuff}",
                f"[have|make|let] {whom} [wear|get|show|have] {stuff}",
                f"give the {thing} [{stuff}|some {stuff}|a {new} look]",
                f"[turn|make] the {thing} {new}",
                f"[include|add|apply] [some|] {stuff}",
            ],
            thing=[
                f"{stuff} [all over|everywhere|on {it}|on the {thing}|this time]",
                f"a {new} [pattern|design|look|surface]",
                f"{whom} [with|in|full of|covered with|decorated with|wrapped in] {stuff}",
                f"{article(thing) + ' ' if scene.count == 1 else ''}{thing} with {stuff}",
                f"{new} [now|this time|please]",
            ],
            say=[
                f"the {thing} [should have|must have|could have|need|want] {stuff}".replace(
                    "need|want", "needs|wants" if scene.count == 1 else "need|want"
                ),
                f"the {thing} [{be}|{become}|must be|could be] {new} [now|]",
                f"[dressed in|full of|decorated with|covered by|all over with] {stuff}",
                f"i [like|miss|want to see] {stuff} [on {it}|here|]",
                f"there should be {stuff} [on {it}|]",
            ],
        )
        was = PATTERN_NOUNS.get(old, "")
        return listed + frames(
            do=[]
            if not was
            else [
                f"[replace|exchange] the {was} [with|by] {stuff}",
                f"[change|switch|turn] the {was} [to|into] {stuff}",
            ],
            thing=[f"{new} [rather than|and not|, not|, no longer] {old}"]
            if not was
            else [
                f"{stuff} [rather than|in place of|and no|, not] {was}",
            ],
            say=[f"not {old} but {new}", f"[no more|no longer] {old}, {new}"],
        )
    if field == "background":
        place = f"[{'|'.join((PLACES[new], *PLACE_SYNONYMS[new]))}]"
        goal, was = place_noun(new), PLACES[old]
        return frames(
            do=[
                f"[show|draw|have|bring|paint|picture|see|leave] {whom} {place}",
                f"[place|put|set|stand] the {thing} {place}",
                f"[move|bring|take|send|carry|transfer] {whom} to {goal}",
                f"[change|switch|turn|alter] the [background|scene|place|setting] [to|into] {goal}",
                f"[use|have|draw|take|choose|show] {goal} [as the background|behind {it}|in the background]",
                f"[replace|exchange] the {old} [with|by] {goal}",
                f"make the [background|scene|setting] {goal}",
            ],
            thing=[
                f"{goal} [behind|behind {it}|in the background|as the background|rather than the {old}]",
                f"{whom} {place}",
                f"the {thing} {place}",
                f"a picture {place}",
                f"a [different|new|other] [place|background]: {goal}",
            ],
            say=[
                f"{place} [rather than|and not|, not|, no longer|in place of] {was}",
                f"[not|no longer|no more|never] {was} but {place}",
                f"[rather than|instead of|not] {was}, {place}",
                f"{place} [now|this time|please|instead|]",
                f"the [background|scene|setting|place] [is|becomes|must be|could be] {goal} [now|]",
                f"the {thing} [{be}|should be|must be|could be] {place} [now|]",
                f"[with|against|before] {goal} [behind|behind {it}|in the background]",
                f"it [all happens|takes place] {place}",
            ],
        )
    if new == "none":
        return frames(
            do=[
                f"[drop|lose|delete|erase|skip|omit|hide|take out|take off|do away with|cut out] the {old}",
                f"get rid of the {old}",
                f"[clear|move|put|send] the {old} away",
                f"[take|throw] out the {old}",
                f"[show|draw|have|leave] {whom} [without any|with no] {old}",
                f"take away the {old}",
            ],
            thing=[
                f"no {old} [at all|any more|this time|beside {it}|here]",
                f"{whom} [with no|without any|without the|but no] {old}",
                "nothing beside " + it + f", no {old}",
            ],
            say=[
                f"the {old} [should go|must go|has to go|disappears|is not wanted|is removed|is too much]",
                f"i do not [want|like|need] [the|any|that] {old}",
                f"there [should be|is] no {old} [any more|]",
                f"no more {old}",
                f"[without any|free of the|minus the] {old}",
                f"the {old} is [no longer there|left out|not there]",
            ],
        )
    a_new = f"{article(new)} {new}"
    beside_it = f"[beside|next to|near|by|close to] {whom}"
    if old == "none":
        return frames(
            do=[
                f"[put|place|set|draw|lay|show|paint|include|have|drop] {a_new} {beside_it}",
                f"[draw|include|place|paint|insert|bring in|lay down] {a_new} [too|as well|also|there|]",
                f"add {a_new} [too|as well|to it|on the side]",
                f"give {it} {a_new}",
            ],
            thing=[
                f"{a_new} [too|as well|in addition|next to {it}|on the side]",
                f"{a_new} {beside_it}",
                f"{whom} [together with|along with|plus|and] {a_new}",
                f"also {a_new}",
            ],
            say=[
                f"there [is|should be|must be|could be] {a_new} [too|as well|next to {it}|]",
                f"[together with|along with|plus|also] {a_new}",
                f"{a_new} is [missing|needed]",
                f"i also [want|need|would love] {a_new}",
                f"[next to|near|by] {whom} [there is|there should be|put] {a_new}",
            ],
        )
    return frames(
        do=[
            f"[exchange|trade|switch|change] the {old} for {a_new}",
            f"[replace|substitute] the {old} by {a_new}",
            f"[convert|turn|make|transform|change] the {old} into {a_new}",
            f"[drop|remove|forget|lose|take away|delete] the {old} and [add|draw|use|show|put] {a_new}",
            f"[use|draw|put|have|place|show] {a_new} [in place of|rather than|where i see] the {old}",
        ],
        thing=[
            f"{a_new} [rather than|in place of|and not|and no longer|where i see] the {old}",
            f"{a_new} [and no|, no more|, no] {old}",
            f"{a_new} beside {it}, [no|not a] {old}",
        ],
        say=[
            f"[rather than|in place of|instead of] the {old}, {a_new}",
            f"[no|no more|not the|never mind the|forget the] {old}, {a_new} [now|please|instead|]",
            f"the {old} [should be|becomes|turns into|must become|should become] {a_new}",
            f"not {article(old)} {old} but {a_new}",
            f"it should be {a_new}, [not|never] {article(old)} {old}",
            f"there [is|should be] {a_new} [instead|in place of the {old}]",
        ],
    )


def _count_frames(scene: Scene, old: int, new: int) -> list[Frame]:
    things, all_things = noun(scene.kind, new), plural(scene.kind)
    number = {1: "one|1|a single|only one|just one", 2: "two|2|a pair of|a couple of|exactly two"}.get(
        new, f"{NUMBERS[new]}|{new}|exactly {NUMBERS[new]}|{NUMBERS[new]}"
    )
    some, gap = f"[{number}] {things}", abs(new - old)
    step, steps = f"[{NUMBERS[gap]}|{gap}]", noun(scene.kind, gap)
    listed = frames(
        do=[
            f"[draw|have|put|use|paint|give me|make|display] {some} [here|there|]",
            f"[change|alter|raise|lower|bring|set] the [count|amount|number of {all_things}] to "
            f"[{NUMBERS[new]}|{new}]".replace("raise|lower", "raise" if new > old else "lower"),
            f"make it [{NUMBERS[new]}|{new}] [in number|of them|in all]",
            f"[change|go|switch] from {NUMBERS[old]} to {NUMBERS[new]} [{all_things}|]",
            f"[replace|exchange] {NUMBERS[old]} [with|by|for] {some}",
        ],
        thing=[
            f"{some} [this time|now|in all|in the picture|in total|]",
            f"{some} [rather than|in place of|and not|, not] {NUMBERS[old]}",
            f"[{NUMBERS[new]}|{new}] of them",
            f"a [picture|group|number] of [{NUMBERS[new]}|{new}] {things}",
            some,
        ],
        say=[
            f"there [{'is' if new == 1 else 'are'}|must be|could be|ought to be] {some}",
            f"let there be {some}",
            f"[not|no longer|no more] {NUMBERS[old]} but {NUMBERS[new]} [{things}|]",
            f"[rather than|instead of|not] {NUMBERS[old]}, {some}",
            f"the number [is|should be|becomes] [{NUMBERS[new]}|{new}]",
            f"{NUMBERS[old]} {noun(scene.kind, old)} [become|turn into] {NUMBERS[new]}".replace(
                "become|turn", "becomes|turns" if old == 1 else "become|turn"
            ),
        ],
    )
    if new > old:
        listed += frames(
            do=[
                f"[add|draw|put|show|bring in] {step} [more|extra|further|additional] {steps}",
                f"[raise|increase] the number by {step}",
            ],
            thing=[f"{step} [more|extra|further|additional] {steps}", f"{step} more of them"],
            say=[f"there should be {step} more", f"{step} {steps} [more|too few]"],
        )
    else:
        listed += frames(
            do=[
                f"[remove|delete|take away|drop|erase|take out] {step} [of the {all_things}|of them|{steps}]",
                f"[lower|reduce] the number by {step}",
            ],
            thing=[f"{step} {steps} [fewer|less]", f"{step} [fewer|less]"],
            say=[f"there should be {step} fewer", f"{step} {steps} too many"],
        )
    if new == 2 * old:
        return listed + frames(
            do=[f"double [the {all_things}|the number of {all_things}|the number|the count|them]"],
            thing=[
                f"[twice|double] the [number|amount|count] of {all_things}",
                "[twice|double] the number",
                "two times as many",
                f"[twice the number of|double the number of|two times the] {all_things}",
            ],
            say=["the number [doubles|should double|is doubled]"],
        )
    if old == 2 * new:
        return listed + frames(
            do=["[halve|cut in half] the number"],
            thing=[f"half [as many|the number of|the] {all_things}", "half of them"],
        )
    return listed


def modification_text(
    rng: np.random.Generator, scene: Scene, edit: Edit, held_out: bool = False, training: bool = False
) -> str:
    """A way of asking for the edit, given the reference. ``training`` draws two thirds of the wordings from
    the frames of `_more_wordings`, and connects them in more ways.
    """
    if training:
        return _training_text(rng, scene, edit)
    parts = []
    for field, new in edit.changes:
        train, held = _wordings(scene, field, new)
        parts.append(pick(rng, held if held_out else train))
    rng.shuffle(parts)
    text = pick(rng, (" and ", ", ", " and ", ", and ")).join(parts)
    if rng.random() < 0.15:
        thing = "picture" if any(field == "kind" for field, _ in edit.changes) else scene.kind
        text = pick(rng, ("the same but ", f"same {thing} but ", "same picture but ")) + text
    return text


def _training_text(rng: np.random.Generator, scene: Scene, edit: Edit) -> str:
    parts = []
    for field, new in edit.changes:
        if rng.random() < 0.35:
            parts.append(pick(rng, _wordings(scene, field, new)[0]))
        else:
            parts.append(asked(rng, pick(rng, _more_wordings(scene, field, new))))
    rng.shuffle(parts)
    return framed(rng, connected(rng, parts))


VAGUE = (
    "make it better",
    "something nicer",
    "change it",
    "improve it",
    "make it more interesting",
    "something else",
    "i do not like it",
    "make it pretty",
    "more of this",
    "a better one",
    "surprise me",
    "something different",
    "make it look good",
    "make it look better",
    "better please",
    "change something",
    "any other",
    "another one please",
    "not this",
    "something more interesting",
    "make it cooler",
    "something cool",
    "a nicer one",
    "i want something else",
    "i want something nice",
    "something prettier",
    "make it more beautiful",
    "more beautiful",
    "show me something else",
    "anything else",
    "i want a change",
    "a different one",
    "less boring",
    "make it less boring",
    "more fun",
    "make it fun",
    "can you improve this",
    "do something with it",
    "another picture",
    "nicer",
    "prettier",
    "different please",
    "make this a bit better",
    "a better picture",
)
#: Further vague texts, for training alone (the tokenizer was built with `VAGUE`).
VAGUE_MORE = (
    "could you make this one nicer to look at",
    "i would like something with more charm",
    "can i have a better looking one",
    "not my taste",
    "this is not what i want",
    "i am not happy with this",
    "i had something else in mind",
    "let me see other options",
    "what else do you have",
    "any better ideas",
    "how about a change",
    "it needs some work",
    "it could be better",
    "it should be more exciting",
    "add some fun",
    "give it more life",
    "bring some change into it",
    "try again",
    "once more, but better",
    "do it again in a better way",
    "please change this a little",
    "a bit more special",
    "much more interesting please",
    "less of the same",
    "the same but nicer",
    "similar but more beautiful",
    "like this, but cooler",
    "same picture, only prettier",
    "turn it into something great",
    "make something good out of it",
    "i want one that looks better",
    "a picture that i will like more",
    "something for a better mood",
    "more lovely and more fun",
    "nicer and cooler please",
    "find me a good one",
    "show me the best one",
    "get me another version",
    "have a look for something new",
    "you know what i like",
    "whatever you think is best",
    "it looks dull, change that",
    "too boring for me",
    "not nice enough",
)
VAGUE_HELD_OUT = ("make it nicer", "something better", "make it different")


# --- the model answer of every task ----------------------------------------------------------------

FIELD_NAMES = {
    "kind": "object",
    "colour": "colour",
    "count": "number",
    "pattern": "pattern",
    "background": "background",
    "prop": "beside",
}


def value_word(field: str, value) -> str:
    return NUMBERS[value] if field == "count" else str(value)


def description(scene: Scene, edit: Edit) -> str:
    """The selective target description: the edit and what it implies kept, and nothing that nobody
    mentioned.
    """
    target, mentioned = edit.apply(scene), edit.as_dict()
    parts = [subject(target, plain="pattern" in mentioned)]
    if mentioned.get("prop", "none") != "none":
        parts.append(f"with {article(target.prop)} {target.prop}")
    if "background" in mentioned:
        parts.append(PLACES[target.background])
    return join(*parts)


def plain_description(scene: Scene, edit: Edit) -> str:
    """What a plain prompt yields: the whole caption with the edit applied, unmentioned content included."""
    return caption(edit.apply(scene))


def selective_cot(scene: Scene, edit: Edit) -> dict:
    """The four stages of Selective CoT (an empty edit stands for a vague text: no target, nothing to select
    for).
    """
    mentioned = edit.as_dict()
    explicit, implicit, preserved, selected, discarded = [], [], [], [], []
    for field, new in edit.changes:
        explicit.append(f"{FIELD_NAMES[field]}: {value_word(field, new)}")
        old = getattr(scene, field)
        if old not in ("none", "plain"):
            implicit.append(f"not {value_word(field, old)}")
            discarded.append(value_word(field, old))
    for field in ("count", "colour", "pattern", "kind"):
        if field not in mentioned:
            preserved.append(FIELD_NAMES[field])
            selected.append(value_word(field, getattr(scene, field)))
    for field in ("prop", "background"):
        if field not in mentioned and getattr(scene, field) != "none":
            discarded.append(value_word(field, getattr(scene, field)))
    return {
        "understanding": caption(scene),
        "explicit_targets": explicit,
        "implicit_targets": implicit,
        "preserved": preserved,
        "selected": selected,
        "discarded": discarded,
        "description": description(scene, edit),
    }


def modifications(scene: Scene, edit: Edit) -> list[str]:
    """M_t: the manipulations that turn the reference caption into the target caption."""
    lines = []
    for field, new in edit.changes:
        old = getattr(scene, field)
        if field == "prop" and old == "none":
            lines.append(f"add {new}")
        elif field == "prop" and new == "none":
            lines.append(f"remove {old}")
        else:
            lines.append(f"{value_word(field, old)} to {value_word(field, new)}")
    return lines


def text_imagination(scene: Scene, edit: Edit) -> dict:
    return {"target_caption": plain_description(scene, edit), "modifications": modifications(scene, edit)}


def vision_imagination(scene: Scene, edit: Edit) -> dict:
    """C_v and M_v: what must be present in the target, and what must be absent."""
    target, mentioned = edit.apply(scene), edit.as_dict()
    present = [f"{NUMBERS[target.count]} {noun(target.kind, target.count)}", target.colour, target.pattern]
    if mentioned.get("prop", "none") != "none":
        present.append(target.prop)
    if "background" in mentioned:
        present.append(target.background)
    absent = [
        value_word(f, getattr(scene, f))
        for f, _ in edit.changes
        if getattr(scene, f) not in ("none", "plain")
    ]
    return {"target_caption": description(scene, edit), "present": present, "absent": absent}


def statement(field: str, value, kind: str, count: int) -> str:
    """A declarative statement of one fact about a picture whose main objects are of `kind`."""
    thing, be = noun(kind, count), "is" if count == 1 else "are"
    if field == "colour" or field == "pattern":
        return f"the {thing} {be} {value}"
    if field == "count":
        return f"there {'is' if value == 1 else 'are'} {NUMBERS[value]} {noun(kind, value)}"
    if field == "kind":
        return f"it shows {f'{article(value)} {value}' if count == 1 else plural(value)}"
    if field == "background":
        return f"the background is {place_noun(value)}"
    if field == "side":
        return f"the {value[0]} is on the {value[1]}"
    assert field == "prop", field
    return "there is nothing beside" if value == "none" else f"there is {article(value)} {value}"


def is_true(scene: Scene, field: str, value, kind: str) -> bool:
    """Whether `statement(field, value, kind, ...)` holds: statements about the main objects presuppose their
    kind.
    """
    if field in ("colour", "pattern", "count"):
        return scene.kind == kind and getattr(scene, field) == value
    if field == "side":
        return (scene.prop, scene.side) == value
    return getattr(scene, field) == value


def questions(scene: Scene, edit: Edit) -> dict:
    """Q and A: every change as a statement that must hold, its old value as one that must not, and what is
    kept.
    """
    target, mentioned = edit.apply(scene), edit.as_dict()
    items = []
    for field, new in edit.changes:
        if field == "prop" and new == "none":
            items.append((statement("prop", scene.prop, target.kind, target.count), False))
            continue
        items.append((statement(field, new, target.kind, target.count), True))
        old = getattr(scene, field)
        if old not in ("none", "plain"):
            items.append((statement(field, old, target.kind, target.count), False))
    for field in ("count", "colour", "pattern"):
        if field not in mentioned:
            items.append((statement(field, getattr(target, field), target.kind, target.count), True))
    return {"statements": [{"statement": text, "answer": answer} for text, answer in items]}


@dataclass(frozen=True)
class Statement:
    text: str
    truth: bool
    field: str


#: How often statements are about each field when answers are marked, and when the mini-VLM is trained: there
#: the fields that are hard to see come up more often.
STATEMENT_FIELDS = tuple("colour colour count count kind pattern pattern background prop prop side".split())
TRAINING_FIELDS = (
    *STATEMENT_FIELDS,
    *"kind kind kind pattern pattern colour side side side side side side side".split(),
)


def random_statement(rng: np.random.Generator, scene: Scene, training: bool = False) -> Statement:
    """A statement about the scene, true or false with equal chance; some false ones have the right value and
    a wrong kind.

    ``training`` weighs the fields by `TRAINING_FIELDS` and makes no false statement that describes a held-out
    combination: no picture of it is ever seen, and that must not teach that there is none.
    """
    field = pick(rng, TRAINING_FIELDS if training else STATEMENT_FIELDS)
    if field == "side" and scene.prop == "none":
        field = "prop"
    truth = bool(rng.random() < 0.5)
    kind = scene.kind
    value = (scene.prop, scene.side) if field == "side" else getattr(scene, field)

    def others(name: str) -> list:
        wrong = [v for v in CHOICES[name] if v != getattr(scene, name)]
        return [v for v in wrong if not (training and held_out(replace(scene, **{name: v})))]

    if not truth:
        if field in ("colour", "pattern", "count") and rng.random() < 0.15:
            kind = pick(rng, others("kind"))
        elif field == "side":
            value = (scene.prop, "right" if scene.side == "left" else "left")
        else:
            value = pick(rng, others(field))
    count = scene.count if rng.random() < 0.7 else pick(rng, COUNTS)
    text = statement(field, value, kind, count)
    assert is_true(scene, field, value, kind) == truth, (scene, text)
    return Statement(text, truth, field)


def vocabulary_lines() -> list[str]:
    """Words that later domains need, so that the tokenizer knows them before the models do."""
    fashion = """
        dress shirt toptee top sleeve sleeves sleeveless short long neckline round v neck collar collared
        knee ankle mini midi maxi length fit loose tight fitted belt buttons button pocket pockets print
        logo floral polka dots dotted checked plaid solid lace graphic darker lighter brighter more less
        same colour color style casual formal shorter longer wider with without has have is are not no and
        but instead of cut crop cropped hem strap straps one shoulder design pattern navy beige gray grey
        teal gold silver cream person woman model wall studio street garden hanger
    """.split()
    return [" ".join(fashion), *(f" {w}" for w in fashion)]


assert (
    set(STYLE_PHRASES) == set(STYLES)
    and set(PLACES) == set(BACKGROUNDS)
    and len(SHADES) == 2
    and PATTERNS[0] == "plain"
)
