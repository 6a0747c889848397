"""How changes of garments are asked for in training: the twin of `training_texts` (read that first).

Two more forms stand beside those of that module: what the garment "is" and what it "has", as in
`texts_fashion`.
"""

from __future__ import annotations

import numpy as np

from data_scripts.texts import Frame, article, frames, pick
from data_scripts.texts_fashion import (
    NECK_NOUNS,
    PATTERN_NOUNS,
    PLACE_SYNONYMS,
    PLACES,
    SLEEVE_NOUNS,
    Wording,
    a,
    marks,
    noun,
    relative_captions,
    sentence,
    steps,
    wordings,
)
from data_scripts.training_texts import asked, connected, framed, spin
from data_scripts.world import Edit
from data_scripts.world_fashion import Garment


def more_wordings(garment: Garment, edit: Edit, field: str) -> list[Frame]:
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
    """A wording of one step for training: a third as the benchmarks' own, the rest from `more_wordings`, and
    half of what the garment is or has put as a request.
    """
    if rng.random() < 0.35:
        form, text = pick(rng, wordings(garment, edit, field)[0])
    else:
        form, text = pick(rng, more_wordings(garment, edit, field))
        if form not in ("is", "has"):
            return "bare", asked(rng, (form, text))
    if form in _ASKS and rng.random() < 0.5:
        form, text = "bare", pick(rng, _ASKS[form]).replace("{}", text)
    return form, spin(rng, text)


def training_text(rng: np.random.Generator, garment: Garment, edit: Edit) -> str:
    """Half of them two captions, half one sentence, of at most `_MOST_WORDS`."""

    def part(field: str) -> Wording:
        return _training_part(rng, garment, edit, field)

    while True:
        if rng.random() < 0.5:
            text = connected(rng, list(relative_captions(rng, garment, edit, part=part, connect=connected)))
        else:
            parts = [part(step.field) for step in steps(garment, edit)]
            text = sentence(rng, garment, parts, connected)
            if text.startswith(("is ", "has ")) and rng.random() < 0.3:
                text = spin(rng, f"[i want|i need|show me|find me|get me|can i see] one [that|which] {text}")
            text = framed(rng, text)
        if len(text.split()) <= _MOST_WORDS:
            return text
