"""Pseudo-words: vectors that stand in a text where a word's token embedding would stand.

All systems that turn a reference picture into a word (textual inversion) meet here: a prompt such as "a photo
of $ that {T_m}" is tokenised, the vector of its pseudo-word takes the place of the token embedding at ``$``,
and the text tower does the rest. It pools where it always does, at the end token of the prompt: the
placeholder's own token plays no part, so a real word's embedding put there gives that word's text feature.

Templates go by the prompt set of the run. The set "default" has the papers' own words. mini-CLIP has never
read "photo" nor "that" and breaks them into pieces, so the set "mini" leaves them out, with the same slots.

The tower is the model's own (:meth:`ClipEncoder.text_outputs`); the vectors are put in by a hook on its
table of token embeddings, so every open_clip text tower that has such a table will do, and gradients reach
the vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from cir_utils.encoder import TEXT_STEP, ClipEncoder
from cir_utils.errors import InputError
from cir_utils.scoring import exact_scores
from cir_utils.workbench import MethodOutput, Workbench

#: The placeholder inside a prompt: a character for private use, which no text holds by accident (templates
#: write ``$``, which a modification text may contain).
WORD = "\ue000"
#: Two words that are one token each in every tokenizer: where the tokens of a prompt differ between them is
#: the placeholder.
STAND_INS = ("a", "the")
BATCH = 256


@dataclass(frozen=True)
class Prompts:
    """Tokenised prompts with ``m`` placeholders in all, in reading order: ``tokens`` ``(n, context_length)``,
    and the ``rows`` and ``columns`` ``(m,)`` of the placeholders in it. ``length`` is the number of positions
    that hold every prompt; ``cut`` says of which prompts the context cuts the end off."""

    tokens: Tensor
    rows: Tensor
    columns: Tensor
    length: int
    cut: list[bool]


def template_for(templates: Mapping[str, str], prompts: str) -> str:
    """The template of a prompt set: its own, else the paper's, which is called "default"."""
    return templates.get(prompts, templates["default"])


def fill(template: str, text: str = "") -> str:
    """A template with ``text`` for ``{T_m}`` and placeholders for every ``$`` that is its own."""
    return template.replace("$", WORD).replace("{T_m}", text.replace(WORD, " "))


def read_prompts(encoder: ClipEncoder, prompts: Sequence[str]) -> Prompts:
    """Tokenise prompts of :func:`fill`. A prompt over the context loses its end, as every text.

    Raises :class:`InputError` for a prompt whose placeholder is beyond the context, and for a tokenizer that
    has no single token for the stand-in words."""
    first, counts = encoder.tokenise([prompt.replace(WORD, STAND_INS[0]) for prompt in prompts])
    second, _ = encoder.tokenise([prompt.replace(WORD, STAND_INS[1]) for prompt in prompts])
    differs = first != second
    for prompt, found in zip(prompts, differs.sum(dim=1).tolist(), strict=True):
        if found != prompt.count(WORD):
            shown = prompt.replace(WORD, "$")
            raise InputError(
                f"prompt {shown[:80]!r}: {found} of its {prompt.count(WORD)} pseudo-words lie in the "
                f"{encoder.context_length} tokens that {encoder.identifier} reads; put them in front"
            )
    rows, columns = differs.nonzero(as_tuple=True)
    length = min(max(counts, default=1), encoder.context_length)
    return Prompts(first, rows, columns, length, [count > encoder.context_length for count in counts])


def encode_prompts(encoder: ClipEncoder, prompts: Prompts, words: Tensor) -> Tensor:
    """The text tower's outputs for prompts with ``words`` ``(m, W)`` at their placeholders: ``(n, D)``
    float32, not of unit length. ``W`` is the width of the token embeddings; gradients reach ``words``."""
    table = token_table(encoder)
    if words.shape != (len(prompts.rows), table.embedding_dim):
        raise ValueError(
            f"words of shape {tuple(words.shape)} for {len(prompts.rows)} placeholders of width "
            f"{table.embedding_dim}"
        )

    def put(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output.index_put((prompts.rows, prompts.columns), words.to(output.dtype))

    hook = table.register_forward_hook(put)
    try:
        return encoder.text_outputs(prompts.tokens, prompts.length).float()
    finally:
        hook.remove()


@torch.no_grad()
def compose(encoder: ClipEncoder, prompts: Sequence[str], words: Tensor) -> tuple[Tensor, list[bool]]:
    """Unit features ``(n, D)`` of prompts of :func:`fill` with ``words`` ``(m, W)`` at their placeholders,
    and which prompts were cut. In batches of about equal length."""
    counts = torch.tensor([prompt.count(WORD) for prompt in prompts])
    starts = counts.cumsum(0) - counts
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]) // TEXT_STEP)
    features = torch.empty(len(prompts), encoder.width, device=encoder.device)
    cut = [False] * len(prompts)
    for begin in range(0, len(order), BATCH):
        chosen = order[begin : begin + BATCH]
        places = [int(starts[n]) + i for n in chosen for i in range(int(counts[n]))]
        read = read_prompts(encoder, [prompts[n] for n in chosen])
        features[chosen] = normalize(encode_prompts(encoder, read, words[places]), dim=1)
        for number, is_cut in zip(chosen, read.cut, strict=True):
            cut[number] = is_cut
    return features, cut


def token_table(encoder: ClipEncoder) -> nn.Embedding:
    """The table of token embeddings ``(vocabulary, W)``; :class:`InputError` for a tower without one."""
    model: Any = encoder.model
    table = getattr(getattr(model, "text", model), "token_embedding", None)
    if not isinstance(table, nn.Embedding):
        raise InputError(
            f"encoder {encoder.identifier} has no table of token embeddings to put pseudo-words in: choose "
            "one whose text tower is open_clip's own"
        )
    return table


def embeddings_of(encoder: ClipEncoder, words: Sequence[str]) -> Tensor:
    """The token embeddings ``(n, W)`` of real words; of a word of several tokens, the first one's."""
    read = read_prompts(encoder, [WORD])
    tokens, _ = encoder.tokenise(words)
    return token_table(encoder).weight.detach().float()[tokens[:, read.columns[0]]]


def rank_by_prompts(
    bench: Workbench, templates: Mapping[str, str] | Sequence[str], words: Tensor, source: str
) -> MethodOutput:
    """Rank the gallery by the cosine with each query's prompt, its template filled with ``T_m``.

    ``templates`` are those of the prompt sets, or a list of one a query; ``words`` ``(m, W)`` are the
    pseudo-words of all queries, in order. Where FashionIQ's
    two caption orders are both used (a choice of the protocol), the two unit features are averaged and
    brought to unit length again, as in SEARLE's public evaluation. ``source`` says where the words are from.
    """
    if isinstance(templates, Mapping):
        templates = [template_for(templates, bench.prompts)] * len(bench.queries)
    texts = [fill(template, text) for template, text in zip(templates, bench.texts, strict=True)]
    with bench.stage("encoding texts"):
        features, cut = compose(bench.encoder, texts, words)
        if any(query.other_text for query in bench.queries):
            others = [
                fill(template, query.other_text or query.text)
                for template, query in zip(templates, bench.queries, strict=True)
            ]
            features = normalize(features + compose(bench.encoder, others, words)[0], dim=1)
    traces = bench.plain_traces()
    for trace, text, is_cut in zip(traces, texts, cut, strict=True):
        trace["said"] = [["prompt", text.replace(WORD, "$")]]
        trace["cut"] = is_cut
    with bench.stage("scoring"):
        scores = exact_scores(features, bench.gallery_features)
        return bench.output(scores, traces, counts={"cut_texts": sum(cut)}, notes=[f"pseudo-words: {source}"])
