"""How changes of scenes are asked for in training, beside the benchmarks' own wordings.

The more ways of asking a model has met, the better it copes with one that it has not: so these are composed,
not listed. A frame is a text with slots, "[drop|lose] the belt", and has one of the forms "do" (a command),
"thing" (what is wanted, with no verb) and "say" (a sentence, or a phrase that stands alone). No benchmark
text is drawn from them, and none makes a held-out wording.
"""

from __future__ import annotations

import re

import numpy as np

from data_scripts.texts import (
    NUMBERS,
    PATTERN_NOUNS,
    PLACE_SYNONYMS,
    PLACES,
    Frame,
    article,
    frames,
    noun,
    pick,
    place_noun,
    plural,
    wordings,
)
from data_scripts.world import Edit, Scene

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


def more_wordings(scene: Scene, field: str, new) -> list[Frame]:
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


def training_text(rng: np.random.Generator, scene: Scene, edit: Edit) -> str:
    """A way of asking for the edit: two thirds of the wordings from the frames of `more_wordings`."""
    parts = []
    for field, new in edit.changes:
        if rng.random() < 0.35:
            parts.append(pick(rng, wordings(scene, field, new)[0]))
        else:
            parts.append(asked(rng, pick(rng, more_wordings(scene, field, new))))
    rng.shuffle(parts)
    return framed(rng, connected(rng, parts))


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
