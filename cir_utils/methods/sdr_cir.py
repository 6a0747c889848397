"""SDR-CIR: Selective CoT, then a two-step ranking, Anchor and Debias (arXiv:2602.04451, section 3).

| step | here |
|---|---|
| ``F_r``: CLIP feature of the reference image | ``bench.reference_features`` |
| Selective CoT, four stages in one call; its description goes to CLIP | ``description_only.describe`` |
| ``F_d``: CLIP feature of the description | ``described.features`` |
| ``F_m``: CLIP feature of ``T_m`` | ``bench.modification_features`` |
| Anchor: ``F_q = (1-alpha) F_d + alpha F_r`` | inside :func:`cir_utils.scoring.composed_query` |
| Debias: ``S_i = S_d - S_m``, ``S_f = (1+beta) S_q - beta S_i`` | the same: ``S_f`` is one product with it |
| rank by ``S_f`` | ``bench.output`` |

Choices where the paper is silent:

* features are brought to unit length before they are mixed (the paper does not say; cosines need it only
  after);
* the reference image stays in the ranking or leaves it as the benchmark's protocol says, which is no part of
  the method;
* ties go by gallery order;
* a vague modification text (nothing explicit, nothing implied) ranks by the reference image alone, labelled
  as such.

``alpha=0`` switches the Anchor off, ``beta=0`` the Debias step; both at 0 is ``description-only``.
``description=plain`` leaves out Selective CoT. One MLLM call a query, and a second where the description
repeated the reference.

Every trace carries a hint where the first results are too close to the reference, or have lost its look
(``cir_utils.hints``); a sign shown by a quarter of the queries becomes a note of the run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cir_utils.hints import TOP, hints, summary
from cir_utils.methods.description_only import describe, with_fallback
from cir_utils.scoring import composed_query, exact_scores, first_places
from cir_utils.workbench import MethodOutput, Workbench

#: How many queries are looked at together for hints, so that their similarities take little memory.
HINTED = 128


def run(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by ``S_f``; vague queries by ``cos(F_r, x)``."""
    alpha, beta = settings["alpha"], settings["beta"]
    described = describe(bench, settings["description"])
    F_r, F_d, F_m = bench.reference_features, described.features, bench.modification_features
    gallery = bench.gallery_features
    with bench.stage("scoring"), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        query = composed_query(F_r, F_d, F_m, alpha, beta)
        scores = with_fallback(bench, described, exact_scores(query, gallery))
        order = bench.order(scores)
    notes = [str(warning.message) for warning in warned]
    with bench.stage("hints"):
        advice = [
            hint
            for r, d, rows in zip(F_r.split(HINTED), F_d.split(HINTED), order.split(HINTED), strict=True)
            for hint in hints(r @ gallery.T, d @ gallery.T, rows, alpha, beta)
        ]
    useful = [hint for hint, is_vague in zip(advice, described.vague, strict=True) if not is_vague]
    for hint, is_vague, trace in zip(advice, described.vague, described.traces, strict=True):
        trace["nearness"] = {
            "top": TOP,
            "to_reference": round(hint.to_reference, 3),
            "to_description": round(hint.to_description, 3),
        }
        if hint.sign and not is_vague:
            trace["hint"] = hint.text
            trace["said"].append(["hint", hint.text])
    counts = described.counts | {
        "too_close_to_reference": sum(hint.sign == "close" for hint in useful),
        "look_lost": sum(hint.sign == "lost" for hint in useful),
    }
    line = summary(useful, alpha, beta)
    return bench.output(scores, described.traces, order, counts, notes + ([line] if line else []))


def scorer(
    part: Workbench, places: Tensor, k: int, points: Sequence[Mapping[str, Any]]
) -> Callable[[Mapping[str, Any]], Tensor]:
    """For ``cir tune``: ``S_f`` for any alpha and beta from three products that are made once.

    ``S_q`` is the weighted sum of ``S_d`` and ``S_r`` over the length of ``F_q``, so no feature is looked at
    again. All ``points`` have one ``description``. See :mod:`cir_utils.methods` for the arguments."""
    described = describe(part, points[0]["description"])
    F_r, F_d, gallery = part.reference_features, described.features, part.gallery_features
    S_r, S_d = exact_scores(F_r, gallery).gather(1, places), exact_scores(F_d, gallery).gather(1, places)
    S_i = S_d - exact_scores(part.modification_features, gallery).gather(1, places)
    cosine = (F_r.double() * F_d.double()).sum(dim=1, keepdim=True)
    vague = torch.tensor(described.vague, device=S_r.device)[:, None]

    def rank(point: Mapping[str, Any]) -> Tensor:
        alpha, beta = point["alpha"], point["beta"]
        length = ((1 - alpha) ** 2 + alpha**2 + 2 * alpha * (1 - alpha) * cosine).clamp_min(1e-12).sqrt()
        S_q = ((1 - alpha) * S_d + alpha * S_r) / length
        S_f = torch.where(vague, S_r, (1 + beta) * S_q - beta * S_i)
        return places.gather(1, first_places(S_f, k))

    return rank
