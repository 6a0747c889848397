"""iSEARLE: SEARLE with noise against the gap between modalities, and hard negatives (arXiv:2405.02951).

The extended version of ``searle`` keeps its two stages, its prompt and its network, and changes:

| paper | here |
|---|---|
| OTI: Gaussian noise on the text features before they are compared with the picture's, which closes the \
gap between the modalities | ``searle.invert(noise=NOISE)`` |
| distillation: batches of pictures that look alike, so that the negatives of the contrastive loss are hard \
| :func:`alike` |

Everything else is as in ``searle``, whose functions are used. ``inversion=optimised`` is iSEARLE-OTI.

Training: ``python -m data_scripts.train_pseudo_words isearle``, on `train` pictures of the mini world. No
MLLM is called.

Choices where public descriptions are silent:

* the noise's expected length is :data:`NOISE` times that of the unit feature;
* a batch is made of groups: a picture drawn at random and its :data:`GROUP` - 1 nearest by image feature
  among a random part of the pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cir_utils.methods.searle import network, ranked
from cir_utils.workbench import MethodOutput, Workbench

NOISE = 0.5
GROUP = 8
#: Among how many pictures a group's members are looked for.
POOL = 1024

__all__ = ["alike", "network", "run"]


def run(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by the cosine with "a photo of $ that T_m", ``$`` being the reference's word."""
    return ranked(bench, settings, "isearle", noise=NOISE)


def alike(features: Tensor, batch: int, rng: np.random.Generator) -> Tensor:
    """The numbers of ``batch`` pictures with unit ``features`` ``(n, D)``, no number twice: groups of
    :data:`GROUP` that look alike."""
    pool = torch.from_numpy(rng.permutation(len(features))[: max(batch, POOL)])
    near = features[pool] @ features[pool].T
    free = torch.ones(len(pool), dtype=torch.bool)
    chosen: list[Tensor] = []
    for seed in rng.permutation(len(pool)).tolist():
        if not free[seed] or sum(map(len, chosen)) >= batch:
            continue
        scores = near[seed].masked_fill(~free, -torch.inf)
        scores[seed] = torch.inf
        size = min(GROUP, batch - sum(map(len, chosen)), int(free.sum()))
        members = scores.topk(size).indices
        free[members] = False
        chosen.append(pool[members])
    return torch.cat(chosen)
