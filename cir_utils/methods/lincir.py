"""LinCIR: a mapping network learnt from texts alone, by self-masking projection (arXiv:2312.01998).

A projection ``phi`` turns a CLIP feature into a pseudo-word. It is trained on captions, without a picture: a
caption's own feature goes through ``phi``, and the word that comes out, put in the place of the caption's
keywords, must give the caption's feature again. At search time the reference's *image* feature goes through
the same network; noise added in training covers the distance between the two modalities.

| paper | here |
|---|---|
| ``phi``, three layers, GELU and dropout 0.5 between them | :func:`network` |
| keywords (runs of adjectives and nouns) of a caption replaced by the word | :func:`masked` |
| self-masking projection: mean squared error of the two text features | :func:`loss` |
| noise ``Unif(0, 1) x N(0, 1)`` on the feature before ``phi`` | :func:`noised` |
| "a photo of $ that {T_m}" at search time | :data:`PROMPTS` |

Training: ``python -m data_scripts.train_pseudo_words lincir``, on texts of `train` worlds. No MLLM is called.

Choices where the paper is silent:

* keywords: without a tagger, a run of words that are not among :data:`FUNCTION_WORDS` is a keyword run; it is
  taken with its article, as the public code takes determiners too. A caption without any gets one word,
  drawn at random, masked;
* all runs of a caption get the same word (the public code does so);
* our networks are small and have a dropout of 0.1 (0.5 in the paper);
* our networks take unit features. The paper's noise has ``sqrt(D)`` times the length of one entry, set
  against features whose length is 10 or so; here the noise is scaled so that its expected length before
  the uniform factor is :data:`NOISE` times that of the feature;
* the error compares unit features (the public code's, raw ones): length plays no part in a search by cosine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, normalize

from cir_utils.encoder import ClipEncoder
from cir_utils.pseudo_words import WORD, encode_prompts, rank_by_prompts, read_prompts, token_table
from cir_utils.word_networks import as_mapping, load_weights, mapping, picture_inputs
from cir_utils.workbench import MethodOutput, Workbench

PROMPTS = {"default": "a photo of $ that {T_m}", "mini": "$ {T_m}"}
#: Words that end a run of keywords.
FUNCTION_WORDS = frozenset(
    "at be beside but facing for from has in into is it make next not of on same that there this to under "
    "with without and , . ; & : ? !".split()
)
NOISE = 1.0


def run(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by the cosine with "a photo of $ that T_m", ``$`` being ``phi`` of the reference's feature."""
    weights = load_weights("lincir", bench.encoder)
    words = as_mapping(weights.tensors).to(bench.device)(picture_inputs(bench, weights))
    return rank_by_prompts(bench, PROMPTS, words, weights.source)


def network(encoder: ClipEncoder, dropout: float = 0.1) -> nn.Sequential:
    """An untrained ``phi`` for ``encoder``."""
    width = encoder.width
    return mapping((width, 2 * width, token_table(encoder).embedding_dim), nn.GELU, dropout)


def masked(rng: np.random.Generator, text: str) -> str:
    """``text`` with a placeholder for every run of keywords; the punctuation behind a word stays."""
    parts: list[str] = []
    for piece in text.split():
        word = piece.rstrip(",.;:?!")
        ending = piece[len(word) :]
        is_key = bool(word) and word.lower() not in FUNCTION_WORDS
        if is_key and parts and parts[-1] == WORD:
            parts[-1] = WORD + ending
        else:
            parts.append((WORD if is_key else word) + ending)
    if not any(WORD in part for part in parts) and parts:
        parts[int(rng.integers(len(parts)))] = WORD
    return " ".join(parts)


def noised(features: Tensor, generator: torch.Generator, scale: float = NOISE) -> Tensor:
    """Unit ``features`` ``(B, D)`` with Gaussian noise, each row's by a factor drawn from [0, 1), and brought
    to unit length again."""
    count, width = features.shape
    factor = torch.rand(count, 1, generator=generator)
    noise = torch.randn(count, width, generator=generator) * scale / width**0.5
    return normalize(features + (factor * noise).to(features.device), dim=1)


def loss(encoder: ClipEncoder, words: Tensor, texts: list[str], features: Tensor) -> Tensor:
    """Mean over the batch of ``|a - b|^2``, ``a`` being the unit feature of a masked text of :func:`masked`
    with its word of ``words`` ``(B, W)`` at every placeholder, ``b`` the text's own of ``features``."""
    prompts = read_prompts(encoder, texts)
    found = normalize(encode_prompts(encoder, prompts, words[prompts.rows]), dim=1)
    return mse_loss(found, features, reduction="sum") / len(texts)
