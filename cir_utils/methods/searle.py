"""SEARLE: textual inversion by optimisation, and a network that learnt to do it (arXiv:2303.15247).

Optimisation-based textual inversion (OTI) looks for the pseudo-word of one picture by gradient descent; a
network ``phi`` is then trained to give such words at once. At search time "a photo of $ that {T_m}" with the
reference's word is encoded by CLIP's frozen text encoder.

| paper | here |
|---|---|
| OTI: ``v*`` from random numbers; "a photo of v*" in one of many templates must agree with the \
picture, loss ``L_cos = 1 - cos(T, I)`` | :func:`invert`, :data:`TEMPLATES` |
| regularisation ``L_gpt``: the picture's concepts are found by zero-shot classification \
(the ``k`` = 15 nearest); in a generated phrase of one of them the concept is replaced by ``v*``, and both \
phrases must agree | :func:`nearest_concepts`, :func:`regularisation` |
| ``L_OTI = lambda_cos L_cos + lambda_gpt L_gpt`` with 1 and 0.5; 350 steps of AdamW, learning rate 0.02, \
moving average of the word with decay 0.99 | :func:`invert` |
| ``phi``: three layers, GELU, dropout 0.5 | :func:`network` |
| distillation ``L_distil``: symmetric contrastive loss between the words of OTI and those of \
``phi``, temperature 0.25, every other word of the batch of either kind a negative | :func:`distillation` |
| ``L_phi = lambda_distil L_distil + lambda_gpt L_gpt`` with 1 and 0.25 | ``train_pseudo_words`` |

``inversion=network`` is the paper's SEARLE, ``inversion=optimised`` its SEARLE-OTI, which inverts every
reference picture when it is searched for (``oti_steps`` steps each: minutes on a CPU).

Training: ``python -m data_scripts.train_pseudo_words searle``, on `train` pictures of the mini world. No MLLM
is called.

Choices where the paper is silent, or the mini world is another world:

* concepts are the kinds of objects and garments of the mini world (the paper: 20,000 class names of Open
  Images), and their phrases come from its captions (the paper: GPT-Neo); both lie in ``phrases.json`` beside
  the network. ``inversion=optimised`` with another encoder needs such a file beside its network too;
* ``L_OTI`` is divided by the sum of its weights, as in the public code;
* with other numbers of steps than 350 the moving average spans the same share of them: its decay is
  ``1 - 3.5 / steps``;
* our networks take unit features, and have a dropout of 0.1, as they are small (0.5 in the paper);
* the number of a query's random draws is its place in the run: the same words come out on every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from cir_utils.encoder import ClipEncoder
from cir_utils.pseudo_words import WORD, encode_prompts, fill, rank_by_prompts, read_prompts, token_table
from cir_utils.word_networks import as_mapping, load_weights, mapping, picture_inputs, read_phrases
from cir_utils.workbench import MethodOutput, Workbench

PROMPTS = {"default": "a photo of $ that {T_m}", "mini": "$ {T_m}"}
#: Sentences for OTI: in the paper those that CLIP's authors classify with, here a few of them.
TEMPLATES: dict[str, tuple[str, ...]] = {
    "default": ("a photo of $", "a photo of a $", "a good photo of $", "a picture of $", "$"),
    "mini": ("$", "a picture of $", "there is $"),
}
TOP_CONCEPTS = 15
LAMBDA_COS, LAMBDA_GPT_OTI, LAMBDA_GPT_PHI = 1.0, 0.5, 0.25
TEMPERATURE = 0.25
BATCH = 64


@dataclass(frozen=True)
class Concepts:
    """Names of concepts, the unit text features ``(C, D)`` of "a photo of a <name>", and per concept its
    phrases and their unit features ``(p, D)``."""

    names: list[str]
    features: Tensor
    phrases: list[list[str]]
    phrase_features: list[Tensor]


def run(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by the cosine with "a photo of $ that T_m", ``$`` being the reference's word."""
    return ranked(bench, settings, "searle")


def ranked(bench: Workbench, settings: Mapping[str, Any], method: str, noise: float = 0.0) -> MethodOutput:
    """:func:`run` with the network of ``method``; ``noise`` is that of the optimisation."""
    weights = load_weights(method, bench.encoder)
    source = weights.source
    if settings["inversion"] == "optimised":
        steps = int(settings["oti_steps"])
        concepts = read_concepts(bench.encoder, read_phrases(weights.folder))
        with bench.stage("inverting pictures"):
            features = bench.reference_features
            words = invert(
                bench.encoder, features, concepts, steps, bench.prompts, seed=bench.seed, noise=noise
            )
        source = f"optimised for each reference picture in {steps} steps, none of a network"
    else:
        words = as_mapping(weights.tensors).to(bench.device)(picture_inputs(bench, weights))
    return rank_by_prompts(bench, PROMPTS, words, source)


def network(encoder: ClipEncoder, dropout: float = 0.1) -> nn.Sequential:
    """An untrained ``phi`` for ``encoder`` (hidden layers twice as wide as the feature; four times in the
    public code)."""
    width = encoder.width
    return mapping((width, 2 * width, token_table(encoder).embedding_dim), nn.GELU, dropout)


def read_concepts(encoder: ClipEncoder, phrases: Mapping[str, Sequence[str]]) -> Concepts:
    """``phrases`` of every concept, each with the concept's name in it as a word, with all features."""
    names, texts = list(phrases), [list(each) for each in phrases.values()]
    features = encoder.encode_texts([f"a photo of a {name}" for name in names]).features
    encoded = encoder.encode_texts([text for each in texts for text in each]).features
    return Concepts(names, features, texts, list(encoded.split([len(each) for each in texts])))


def nearest_concepts(features: Tensor, concepts: Concepts) -> Tensor:
    """The numbers of the ``TOP_CONCEPTS`` concepts nearest to unit ``features`` ``(B, D)``, nearest first:
    ``(B, k)``."""
    count = min(TOP_CONCEPTS, len(concepts.names))
    return (features @ concepts.features.T).topk(count, dim=1).indices


def regularisation(
    encoder: ClipEncoder, words: Tensor, nearest: Tensor, concepts: Concepts, rng: np.random.Generator
) -> Tensor:
    """``L_gpt`` of each word of ``words`` ``(B, W)``: one minus the cosine of a phrase of one of its
    ``nearest`` concepts ``(B, k)``, drawn at random, with the same phrase where the word replaces the
    concept's name. ``(B,)``."""
    wanted, changed = [], []
    for row in nearest.tolist():
        number = row[int(rng.integers(len(row)))]
        which = int(rng.integers(len(concepts.phrases[number])))
        pieces = concepts.phrases[number][which].split()
        place = pieces.index(concepts.names[number])
        wanted.append(concepts.phrase_features[number][which])
        changed.append(" ".join([*pieces[:place], WORD, *pieces[place + 1 :]]))
    found = encode_prompts(encoder, read_prompts(encoder, changed), words)
    return 1 - cosine_similarity(found, torch.stack(wanted))


def invert(
    encoder: ClipEncoder,
    features: Tensor,
    concepts: Concepts,
    steps: int,
    prompts: str,
    *,
    seed: int = 0,
    learning_rate: float = 0.02,
    decay: float | None = None,
    noise: float = 0.0,
    lambda_gpt: float = LAMBDA_GPT_OTI,
) -> Tensor:
    """Pseudo-words of pictures with unit ``features`` ``(n, D)`` by OTI: ``(n, W)`` float32, moving averages
    over ``steps`` steps, in the sentences of the prompt set ``prompts``.

    ``noise`` is iSEARLE's: Gaussian noise of that expected length on the text features before they are
    compared with the pictures'. Every batch of :data:`BATCH` pictures has its own random numbers."""
    templates = TEMPLATES.get(prompts, TEMPLATES["default"])
    decay = max(0.0, 1 - 3.5 / steps) if decay is None else decay
    rows = [torch.empty(0, token_table(encoder).embedding_dim, device=features.device)]
    for number, batch in enumerate(features.split(BATCH)):
        rng = np.random.default_rng([seed, number])
        rows.append(
            _invert_batch(
                encoder, batch, concepts, steps, templates, rng, learning_rate, decay, noise, lambda_gpt
            )
        )
    return torch.cat(rows)


def _invert_batch(
    encoder: ClipEncoder,
    features: Tensor,
    concepts: Concepts,
    steps: int,
    templates: Sequence[str],
    rng: np.random.Generator,
    learning_rate: float,
    decay: float,
    noise: float,
    lambda_gpt: float,
) -> Tensor:
    count, width = len(features), token_table(encoder).embedding_dim
    begin = 0.02 * rng.standard_normal((count, width))
    words = torch.tensor(begin, dtype=torch.float32, device=features.device).requires_grad_()
    average = words.detach().clone()
    optimizer = torch.optim.AdamW([words], lr=learning_rate, weight_decay=0.01)
    nearest = nearest_concepts(features, concepts)
    for _ in range(steps):
        with torch.enable_grad():
            chosen = [fill(templates[int(i)]) for i in rng.integers(len(templates), size=count)]
            texts = normalize(encode_prompts(encoder, read_prompts(encoder, chosen), words), dim=1)
            if noise:
                drawn = rng.standard_normal(texts.shape) * noise / texts.shape[1] ** 0.5
                texts = texts + torch.tensor(drawn, dtype=torch.float32, device=texts.device)
            content = 1 - cosine_similarity(texts, features)
            loss = LAMBDA_COS * content
            if lambda_gpt:
                loss = loss + lambda_gpt * regularisation(encoder, words, nearest, concepts, rng)
            (gradient,) = torch.autograd.grad(loss.mean() / (LAMBDA_COS + lambda_gpt), words)
        words.grad = gradient
        optimizer.step()
        average = decay * average + (1 - decay) * words.detach()
    return average


def distillation(found: Tensor, wanted: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """``L_distil`` of a batch: words of the network ``(B, W)`` against those of OTI.

    Each word of either kind must pick the same picture's word of the other kind among all others of the
    batch, those of its own kind too, by cosine over the temperature."""
    both = normalize(torch.cat([found, wanted]), dim=1)
    logits = (both @ both.T / temperature).fill_diagonal_(-torch.inf)
    count = len(found)
    partner = torch.arange(2 * count, device=found.device).roll(count)
    return nn.functional.cross_entropy(logits, partner)
