"""Training rows of the mini-VLM: one shared prefix (pictures, or a caption) and many tasks after it.

A row is one token sequence: the prefix, then branches of (task, answer). A branch sees the prefix and itself,
never another branch, and its positions go on from the prefix, so each branch is exactly the conversation that
the model meets alone at run time. The picture is encoded once for all its tasks, which is what makes training
on a laptop possible.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from data_scripts.domains import Domain
from data_scripts.mini_models import IMAGE_TOKENS, prompt
from data_scripts.texts import VAGUE, pick
from data_scripts.training_texts import VAGUE_MORE
from data_scripts.world import Edit

USER, TURN = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
PICTURE = "<|vision_start|>" + "<|image_pad|>" * IMAGE_TOKENS + "<|vision_end|>"
GRID = int(IMAGE_TOKENS**0.5)
VERIFY_WEIGHT = 6.0
SAY_WEIGHT = 0.9


@dataclass(frozen=True)
class Branch:
    """A task and its answer, with the loss weight of the answer's tokens and of the prompt's last words.

    ``said`` is how the prompt ends when it ends with a true statement. The model learns to say it, too: to
    judge "the box is on the left" it must first find out where the box is, and true or false alone does not
    teach it to look, since knowing the side without comparing is worth nothing.
    """

    prompt: str
    answer: str
    weight: float = 1.0
    said: str = ""


@dataclass
class Row:
    """Token ids (L,), m-rope positions (3, L), segment of each token (0 prefix, 1.. branches), loss weight of
    each token.
    """

    ids: list[int] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


def _edit_and_text(rng: np.random.Generator, domain: Domain, thing) -> tuple[Edit, str]:
    if rng.random() < 0.06:
        return Edit(()), pick(rng, VAGUE + VAGUE_MORE)
    edit = domain.texts.random_edit(rng, thing)
    return edit, domain.training_text(rng, thing, edit)


def describing(rng: np.random.Generator, domain: Domain, thing, task: str) -> Branch:
    """A branch of one of the tasks that answer with text."""
    edit, change = _edit_and_text(rng, domain, thing)
    texts = domain.texts
    if task == "caption":
        return Branch(prompt("caption"), texts.caption(thing))
    if task == "caption_dense":
        return Branch(prompt("caption_dense"), texts.dense_caption(rng, thing), 0.3)
    if task == "describe_target":
        return Branch(prompt("describe_target", modification=change), texts.plain_description(thing, edit))
    if task == "selective_cot":
        name = "selective_cot" if rng.random() < 0.9 else "selective_cot_retry"
        return Branch(prompt(name, modification=change), json.dumps(texts.selective_cot(thing, edit)))
    if task == "imagine_vision":
        return Branch(
            prompt("imagine_vision", modification=change), json.dumps(texts.vision_imagination(thing, edit))
        )
    given = texts.caption(thing)
    if task == "imagine_text":
        text = prompt("imagine_text", caption=given, modification=change)
        return Branch(text, json.dumps(texts.text_imagination(thing, edit)))
    if task == "edit_caption":
        return Branch(
            prompt("edit_caption", caption=given, modification=change), texts.plain_description(thing, edit)
        )
    assert task == "questions", task
    vision = texts.vision_imagination(thing, edit)
    return Branch(
        prompt(
            "questions",
            modification=change,
            modifications=slot(texts.modifications(thing, edit)),
            present=slot(vision["present"]),
            absent=slot(vision["absent"]),
        ),
        json.dumps(texts.questions(thing, edit)),
    )


def slot(items: list[str]) -> str:
    """How the agents write a list into a prompt."""
    return "; ".join(items) or "none"


def _verify(
    rng: np.random.Generator, domain: Domain, thing, name: str, named: bool = True, **slots: str
) -> Branch:
    fact = domain.texts.random_statement(rng, thing, training=True)
    while fact.field == "colour" and not named:
        fact = domain.texts.random_statement(rng, thing, training=True)
    text = prompt(name, statement=fact.text, **slots)
    return Branch(text, str(fact.truth).lower(), VERIFY_WEIGHT, fact.text if fact.truth else "")


def picture_branches(
    rng: np.random.Generator, domain: Domain, thing, named: bool, verifications: int
) -> list[Branch]:
    """True/false statements, the caption, and two of the tasks that change the picture. Where the colour has
    no name (`named` false), statements about all else.
    """
    branches = [_verify(rng, domain, thing, "verify_picture", named) for _ in range(verifications)]
    if not named:
        return branches
    branches.append(describing(rng, domain, thing, "caption"))
    tasks = (
        "selective_cot",
        "selective_cot",
        "imagine_vision",
        "imagine_vision",
        "describe_target",
        "caption_dense",
    )
    branches += [describing(rng, domain, thing, pick(rng, tasks)) for _ in range(2)]
    return branches


def caption_branches(rng: np.random.Generator, domain: Domain, thing, verifications: int) -> list[Branch]:
    """Branches that start with the same caption line (the shared prefix is cut at its end)."""
    given = domain.texts.caption(thing)
    branches = [_verify(rng, domain, thing, "verify_caption", caption=given) for _ in range(verifications)]
    branches += [
        describing(rng, domain, thing, task) for task in ("imagine_text", "edit_caption", "edit_caption")
    ]
    return branches


def pair_branches(rng: np.random.Generator, domain: Domain, first, second, number: int) -> list[Branch]:
    """Comparing two pictures under an instruction: true when the second shows the first with the change
    made.
    """
    branches = []
    for _ in range(number):
        edit = domain.texts.random_edit(rng, first)
        if rng.random() < 0.5:
            changes = domain.difference(first, second).changes
            spoken = tuple(c for c in changes if c[0] not in domain.world.FREE or rng.random() < 0.5)
            edit = Edit(spoken or changes[:1])
        change = domain.training_text(rng, first, edit)
        text = prompt("compare_pictures", modification=change)
        truth = domain.shows(first, edit, second)
        branches.append(Branch(text, str(truth).lower(), VERIFY_WEIGHT))
    return branches


def partner(rng: np.random.Generator, domain: Domain, thing) -> Any:
    """A second picture for `pair_branches`: one to three spoken fields differ."""
    while True:
        other = domain.texts.random_edit(rng, thing).apply(thing)
        redrawn = {name: pick(rng, domain.choices[name]) for name in domain.world.FREE if rng.random() < 0.3}
        other = replace(other, **redrawn)
        if not domain.world.held_out(other) and domain.difference(thing, other).changes:
            return other


def build_row(
    tokenizer: PreTrainedTokenizerFast, pictures: int, branches: list[Branch], shared: str = ""
) -> Row:
    """Lay out one row. `shared` is text that every branch's prompt starts with (kept once, in the prefix)."""
    encode = tokenizer._tokenizer.encode_batch
    texts_ = [USER + PICTURE * pictures + shared]
    for b in branches:
        asked = b.prompt.removeprefix(shared)
        texts_ += [asked.removesuffix(" " + b.said), (" " + b.said if b.said else "") + TURN]
        texts_ += [b.answer + "<|im_end|>"]
    encoded = [e.ids for e in encode(texts_)]
    turn = len(encode([TURN])[0].ids)
    row, position, left = Row(), 0, 0
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    for token in encoded[0]:
        row.ids.append(token)
        if token == pad:
            left = left or IMAGE_TOKENS
            index = IMAGE_TOKENS - left
            row.positions.append((position, position + index // GRID, position + index % GRID))
            left -= 1
            position += GRID if left == 0 else 0
        else:
            row.positions.append((position,) * 3)
            position += 1
    row.segments, row.weights = [0] * len(row.ids), [0.0] * len(row.ids)
    for number, branch in enumerate(branches):
        asked, said, answered = encoded[1 + 3 * number : 4 + 3 * number]
        ids = asked + said + answered
        row.ids += ids
        row.positions += [(position + i,) * 3 for i in range(len(ids))]
        row.segments += [number + 1] * len(ids)
        row.weights += [0.0] * len(asked) + [SAY_WEIGHT] * (len(said) - turn) + [0.0] * turn
        row.weights += [branch.weight] * len(answered)
    return row
