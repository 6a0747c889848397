"""Many statements about one picture or caption at the cost of one: verification with a shared prefix.

A verification prompt is a prefix (picture or caption, and the instruction) and a statement. All statements
about one candidate share the prefix. Its keys and values are computed once; each statement is then a *branch*
that sees the prefix and itself, never another branch, with positions that go on from the prefix. Several
branches are packed in one row under a mask, so that no key is copied per statement:

    row:   [ prefix keys | branch 1 | branch 2 | branch 3 | padding ]
    sees:     everybody    itself     itself     itself

That is exactly the computation of the unshared prompts (a causal model's prefix does not depend on what
follows), up to float rounding; ``LocalMLLM.verify_plain`` is the readable form, and a test compares the two.

Written for models with Qwen2-VL's positions (``get_rope_index``) whose layers all attend to everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from cir_utils.device import in_batches

FAMILIES = ("qwen2_vl", "qwen2_5_vl")
#: Tokens of branches packed in one row, and tokens of one forward pass (padding included; halved where memory
#: does not suffice).
ROW_TOKENS = 96
PASS_TOKENS = 6144


@dataclass(frozen=True)
class Tree:
    """A shared prefix and its branches as token ids (pictures already widened to their number of tokens);
    ``features`` has one ``(tokens, D)`` tensor and ``grids`` one ``(t, h, w)`` of patches per picture."""

    prefix: list[int]
    branches: list[list[int]]
    features: tuple[Tensor, ...] = ()
    grids: tuple[tuple[int, int, int], ...] = ()


def supported(model: Any) -> bool:
    """Whether this model's verification can share prefixes."""
    text = model.config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    return model.config.model_type in FAMILIES and kinds == {"full_attention"}


def split_shared(sequences: Sequence[list[int]]) -> tuple[list[int], list[list[int]]]:
    """The longest common prefix of token sequences and what follows it, at least one token each.

    Splitting after tokenisation keeps every token what it is in the whole prompt, whatever the tokenizer
    merges.
    """
    low, high = min(sequences), max(sequences)
    limit = min(map(len, sequences)) - 1
    length = 0
    while length < limit and low[length] == high[length]:
        length += 1
    return sequences[0][:length], [sequence[length:] for sequence in sequences]


def logit_gaps(model: Any, trees: Sequence[Tree], token_true: int, token_false: int) -> list[list[float]]:
    """``logit(token_true) - logit(token_false)`` after every branch of every tree, in the given order."""
    head = model.get_output_embeddings()
    direction = (head.weight[token_true] - head.weight[token_false]).float()
    bias = getattr(head, "bias", None)
    offset = 0.0 if bias is None else float(bias[token_true] - bias[token_false])
    gaps = [[0.0] * len(tree.branches) for tree in trees]

    def run(batch: list[int]) -> None:
        keys_values, next_positions, lengths = _prefixes(model, [trees[i] for i in batch])
        rows = [
            (place, chunk) for place, i in enumerate(batch) for chunk in _rows(trees[i].branches, ROW_TOKENS)
        ]
        sizes = [sum(len(trees[batch[place]].branches[b]) for b in chunk) for place, chunk in rows]
        by_size = sorted(range(len(rows)), key=sizes.__getitem__)
        width = int(lengths.max())

        def run_rows(group: list[int]) -> None:
            taken = [rows[r] for r in group]
            hidden = _branches(
                model,
                [[trees[batch[place]].branches[b] for b in chunk] for place, chunk in taken],
                torch.tensor([place for place, _ in taken], device=lengths.device),
                keys_values,
                next_positions,
                lengths,
            )
            values = iter((hidden.float() @ direction.to(hidden.device) + offset).tolist())
            for place, chunk in taken:
                for b in chunk:
                    gaps[batch[place]][b] = next(values)

        in_batches(by_size, [sizes[r] + width for r in by_size], PASS_TOKENS, run_rows)

    order = sorted(range(len(trees)), key=lambda i: len(trees[i].prefix))
    in_batches(order, [len(trees[i].prefix) for i in order], PASS_TOKENS, run)
    return gaps


def _prefixes(model: Any, trees: Sequence[Tree]) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    """One pass over a batch of prefixes, padded on the right (a causal model's earlier tokens do not see
    padding).

    Returns keys and values of each layer, ``(B, heads, P, d)``; the position that follows each prefix,
    ``(B,)``; and the lengths of the prefixes, ``(B,)``.
    """
    device = model.device
    lengths = torch.tensor([len(tree.prefix) for tree in trees], device=device)
    width = max(1, int(lengths.max()))
    ids = torch.zeros(len(trees), width, dtype=torch.long)
    for row, tree in enumerate(trees):
        ids[row, : len(tree.prefix)] = torch.tensor(tree.prefix, dtype=torch.long)
    ids = ids.to(device)
    inside = torch.arange(width, device=device) < lengths[:, None]
    embeds = model.get_input_embeddings()(ids)
    grids = [grid for tree in trees for grid in tree.grids]
    pictures = (ids == model.config.image_token_id) & inside
    if grids:
        features = torch.cat([part for tree in trees for part in tree.features]).to(embeds)
        embeds = embeds.masked_scatter(pictures[..., None], features)
        positions, _ = model.model.get_rope_index(
            ids,
            mm_token_type_ids=pictures.int(),
            image_grid_thw=torch.tensor(grids, device=device),
            attention_mask=inside.long(),
        )
    else:
        positions = torch.arange(width, device=device).expand(3, len(trees), -1)
    following = positions.amax(dim=0).masked_fill(~inside, -1).amax(dim=1) + 1
    output = model.model.language_model(
        inputs_embeds=embeds,
        position_ids=positions,
        attention_mask={"full_attention": None},
        cache=DynamicCache(config=model.config),
        use_cache=True,
    )
    return [(layer.keys, layer.values) for layer in output.cache.layers], following, lengths


def _branches(
    model: Any,
    rows: Sequence[Sequence[list[int]]],
    place: Tensor,
    keys_values: Sequence[tuple[Tensor, Tensor]],
    next_positions: Tensor,
    lengths: Tensor,
) -> Tensor:
    """One pass over rows of packed branches; ``place`` says which prefix each row continues.

    Returns the last hidden state of every branch, ``(branches of all rows, D)``, row by row.
    """
    device = model.device
    width = max(sum(map(len, row)) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    owner = torch.full((len(rows), width), -1)
    offset = torch.zeros(len(rows), width, dtype=torch.long)
    last: list[int] = []
    for r, row in enumerate(rows):
        flat = [token for branch in row for token in branch]
        ids[r, : len(flat)] = torch.tensor(flat)
        start = 0
        for number, branch in enumerate(row):
            owner[r, start : start + len(branch)] = number
            offset[r, start : start + len(branch)] = torch.arange(len(branch))
            start += len(branch)
            last.append(r * width + start - 1)
    ids, owner, offset = ids.to(device), owner.to(device), offset.to(device)
    causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()
    own = (owner[:, :, None] == owner[:, None, :]) & causal
    past = keys_values[0][0].shape[2]
    seen = (torch.arange(past, device=device) < lengths[place][:, None])[:, None, :].expand(-1, width, -1)
    cache = DynamicCache(config=model.config)
    for layer, (keys, values) in enumerate(keys_values):
        own_place = place.to(keys.device)  # a large model may be spread over devices, layer by layer
        cache.update(keys[own_place], values[own_place], layer)
    output = model.model.language_model(
        inputs_embeds=model.get_input_embeddings()(ids),
        position_ids=(next_positions[place][:, None] + offset).expand(3, -1, -1),
        attention_mask={"full_attention": torch.cat([seen, own], dim=-1)[:, None]},
        cache=cache,
        use_cache=True,
    )
    return output.last_hidden_state.flatten(0, 1)[torch.tensor(last, device=device)]


def _rows(branches: Sequence[list[int]], limit: int) -> Iterator[list[int]]:
    """Branch numbers packed in rows of at most ``limit`` tokens (longer branches have a row of their own), by
    length."""
    row: list[int] = []
    tokens = 0
    for number in sorted(range(len(branches)), key=lambda b: len(branches[b])):
        if row and tokens + len(branches[number]) > limit:
            yield row
            row, tokens = [], 0
        row.append(number)
        tokens += len(branches[number])
    if row:
        yield row
