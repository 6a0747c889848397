"""Training rows of the mini-VLM: one shared prefix (pictures, or a caption) and many tasks after it.

A row is one token sequence: the prefix, then branches of (task, answer). A branch sees the prefix and itself,
never another branch, and its positions go on from the prefix, so each branch is exactly the conversation that
the model meets alone at run time. The picture is encoded once for all its tasks, which is what makes training
on a laptop possible.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import numpy as np
from transformers import PreTrainedTokenizerFast

from data_scripts import texts
from data_scripts.mini_models import IMAGE_TOKENS, prompt
from data_scripts.world import CHOICES, Edit, Scene, held_out

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


def _edit_and_text(rng: np.random.Generator, scene: Scene) -> tuple[Edit, str]:
    if rng.random() < 0.06:
        return Edit(()), texts.pick(rng, texts.VAGUE + texts.VAGUE_MORE)
    edit = texts.random_edit(rng, scene)
    return edit, texts.modification_text(rng, scene, edit, training=True)


def _describing(rng: np.random.Generator, scene: Scene, task: str) -> Branch:
    """A branch of one of the tasks that answer with text."""
    edit, change = _edit_and_text(rng, scene)
    if task == "caption":
        return Branch(prompt("caption"), texts.caption(scene))
    if task == "caption_dense":
        return Branch(prompt("caption_dense"), texts.dense_caption(rng, scene), 0.3)
    if task == "describe_target":
        return Branch(prompt("describe_target", modification=change), texts.plain_description(scene, edit))
    if task == "selective_cot":
        name = "selective_cot" if rng.random() < 0.9 else "selective_cot_retry"
        return Branch(prompt(name, modification=change), json.dumps(texts.selective_cot(scene, edit)))
    if task == "imagine_vision":
        return Branch(
            prompt("imagine_vision", modification=change), json.dumps(texts.vision_imagination(scene, edit))
        )
    given = texts.caption(scene)
    if task == "imagine_text":
        text = prompt("imagine_text", caption=given, modification=change)
        return Branch(text, json.dumps(texts.text_imagination(scene, edit)))
    if task == "edit_caption":
        return Branch(
            prompt("edit_caption", caption=given, modification=change), texts.plain_description(scene, edit)
        )
    assert task == "questions", task
    vision = texts.vision_imagination(scene, edit)
    return Branch(
        prompt(
            "questions",
            modification=change,
            modifications=slot(texts.modifications(scene, edit)),
            present=slot(vision["present"]),
            absent=slot(vision["absent"]),
        ),
        json.dumps(texts.questions(scene, edit)),
    )


def slot(items: list[str]) -> str:
    """How the agents write a list into a prompt."""
    return "; ".join(items) or "none"


def _verify(rng: np.random.Generator, scene: Scene, name: str, named: bool = True, **slots: str) -> Branch:
    fact = texts.random_statement(rng, scene, training=True)
    while fact.field == "colour" and not named:
        fact = texts.random_statement(rng, scene, training=True)
    text = prompt(name, statement=fact.text, **slots)
    return Branch(text, str(fact.truth).lower(), VERIFY_WEIGHT, fact.text if fact.truth else "")


def picture_branches(rng: np.random.Generator, scene: Scene, named: bool, verifications: int) -> list[Branch]:
    """True/false statements, the caption, and one of the tasks that change the picture. Where the colour has
    no name (`named` false), statements about all else.
    """
    branches = [_verify(rng, scene, "verify_picture", named) for _ in range(verifications)]
    if not named:
        return branches
    branches.append(_describing(rng, scene, "caption"))
    tasks = (
        "selective_cot",
        "selective_cot",
        "imagine_vision",
        "imagine_vision",
        "describe_target",
        "caption_dense",
    )
    branches.append(_describing(rng, scene, texts.pick(rng, tasks)))
    return branches


def caption_branches(rng: np.random.Generator, scene: Scene, verifications: int) -> list[Branch]:
    """Branches that start with the same caption line (the shared prefix is cut at its end)."""
    given = texts.caption(scene)
    branches = [_verify(rng, scene, "verify_caption", caption=given) for _ in range(verifications)]
    branches += [_describing(rng, scene, "imagine_text"), _describing(rng, scene, "edit_caption")]
    return branches


def pair_branches(rng: np.random.Generator, first: Scene, second: Scene, number: int) -> list[Branch]:
    """Comparing two pictures under an instruction: true when the second shows the first with the change
    made.
    """
    branches = []
    for _ in range(number):
        differing = [f for f in texts.EDITABLE if getattr(first, f) != getattr(second, f)]
        if rng.random() < 0.5:
            fields = [
                f for f in differing if f not in ("background", "prop") or rng.random() < 0.5
            ] or differing[:1]
            edit = Edit(tuple((f, getattr(second, f)) for f in fields))
        else:
            edit = texts.random_edit(rng, first)
        wanted, mentioned = edit.apply(first), edit.as_dict()
        fields = (
            "kind",
            "colour",
            "count",
            "pattern",
            *(f for f in ("background", "prop") if f in mentioned),
        )
        truth = all(getattr(wanted, f) == getattr(second, f) for f in fields)
        change = texts.modification_text(rng, first, edit, training=True)
        text = prompt("compare_pictures", modification=change)
        branches.append(Branch(text, str(truth).lower(), VERIFY_WEIGHT))
    return branches


def partner(rng: np.random.Generator, scene: Scene) -> Scene:
    """A second picture for `pair_branches`: one to three spoken fields differ."""
    while True:
        other = texts.random_edit(rng, scene).apply(scene)
        redrawn = {
            name: texts.pick(rng, CHOICES[name])
            for name in ("background", "prop", "side")
            if rng.random() < 0.3
        }
        other = replace(other, **redrawn)
        if not held_out(other) and any(getattr(other, f) != getattr(scene, f) for f in texts.EDITABLE):
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
