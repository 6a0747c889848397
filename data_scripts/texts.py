"""What people say about the mini world: captions, modification texts, statements, and the model answer of
every task.

Everything here is text made from a `Scene` or from a scene and an `Edit`. The training scripts use it to make
examples, the benchmark builder to write queries, and `evaluate_mini_models.py` to mark answers. Nothing in
`cir_utils` imports it.

`held_out=True` draws wordings that never occur in training texts.
"""

from __future__ import annotations

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


#: A wording with its form: what the form means is said where it is used.
Frame = tuple[str, str]


def frames(**lists: list[str]) -> list[Frame]:
    """Wordings by form: `frames(is_=["red"])`."""
    return [(form.removesuffix("_"), text) for form, texts_ in lists.items() for text in texts_]


def wordings(scene: Scene, field: str, new) -> tuple[list[str], list[str]]:
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


def modification_text(rng: np.random.Generator, scene: Scene, edit: Edit, held_out: bool = False) -> str:
    """A way of asking for the edit, given the reference."""
    parts = []
    for field, new in edit.changes:
        train, held = wordings(scene, field, new)
        parts.append(pick(rng, held if held_out else train))
    rng.shuffle(parts)
    text = pick(rng, (" and ", ", ", " and ", ", and ")).join(parts)
    if rng.random() < 0.15:
        thing = "picture" if any(field == "kind" for field, _ in edit.changes) else scene.kind
        text = pick(rng, ("the same but ", f"same {thing} but ", "same picture but ")) + text
    return text


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
