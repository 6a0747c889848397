"""``xr-sdr``: X^R with SDR-CIR's composed query in its coarse stage, and a fine stage that asks how sure the
verifier is. Ours; no paper describes it.

| step | here |
|---|---|
| imagination, captions, questions, verification: X^R's, the same MLLM calls | :mod:`~cir_utils.methods.xr` |
| for each imagined caption ``C_u`` (``u`` = t, v) SDR-CIR's ``w_u`` from ``F_r, C_u, F_m`` | :func:`coarse` |
| ``S^u = C_u . C_a + w_u . I_a``: captions as in X^R, pictures anchored and debiased | :func:`coarse` |
| reciprocal rank fusion of ``S^t`` and ``S^v``; the best ``k'`` | ``xr.coarse_among`` |
| ``normalise(lambda S^t + (1-lambda) S^v) + w^t L^t + w^v L^v`` | :func:`fine` |

``alpha`` and ``beta`` are SDR-CIR's, ``lambda``, ``k_prime`` and ``kappa`` X^R's, taken over as those methods
have them; both of the first at 0 give X^R's coarse stage. Only pictures are anchored: a reference picture
carries a look that no text names, a reference caption is one more text. (On ``val`` anchoring captions too
helped one mini benchmark and hurt another; the shape was chosen there.)

``L^t`` and ``L^v`` are the sums over the statements of ``log p``, where ``p`` is the verifier's probability
of the expected answer from the caption and from the picture, kept within :data:`SURE` so that no single
answer ends a candidate. X^R counts answers, to which 0.51 and 0.99 are the same. ``weight_text`` (``w^t``)
and ``weight_vision`` (``w^v``) calibrate the two against the similarity and are fitted on ``val``.

Order: score, then similarity, then gallery order; after the ``k'`` come the rest in coarse order. A query
without statements is ordered by its similarity. CIRR's subset is ranked by itself, as in X^R.

Ablations by settings: ``verification=counts`` is X^R's fine stage, ``stages=coarse`` ends before either."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cir_utils.methods import xr
from cir_utils.scoring import (
    Reranked,
    SettingWarning,
    composed_query,
    exact_scores,
    normalise_similarity,
    rerank,
)
from cir_utils.workbench import MethodOutput, Workbench

BOTH = xr.Sides(text=True, vision=True)
#: The range in which the verifier's probabilities are believed.
SURE = (0.01, 0.99)


def run(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """The steps above; every ranking is a permutation of the gallery."""
    imagined = xr.imagine(bench, BOTH)
    captions = xr.gallery_captions(bench)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        S_t, S_v = coarse(bench, imagined, captions, settings["alpha"], settings["beta"])
    notes = list(dict.fromkeys(str(warning.message) for warning in warned))  # said for both C_u
    with bench.stage("coarse filtering"):
        order = xr.coarse_among(S_t, S_v, bench.places, settings["kappa"], BOTH)[1]
        members = bench.members
        subset = None
        if members is not None:
            subset = xr.coarse_among(S_t, S_v, members, settings["kappa"], BOTH)[1]
    traces = xr.imagined_traces(bench, imagined)
    counts = xr.imagined_counts(imagined) | {"cut_captions": sum(bench.cut(captions))}
    lam = settings["lambda"]
    if settings["stages"] == "coarse":
        return bench.output(lam * S_t + (1 - lam) * S_v, traces, order, counts, notes, subset)

    head = order[:, : settings["k_prime"]]
    asked = xr.ask(bench, imagined, BOTH)
    rows = xr.union([head] if subset is None else [head, subset])
    checked = xr.verify(bench, asked, rows, captions, BOTH)
    with bench.stage("fine filtering"):
        evidence = Evidence.of(asked, checked, rows, S_t, S_v)
        found = fine(evidence, head, settings)
        final = torch.cat([head.gather(1, found.order), order[:, head.shape[1] :]], dim=1)
        if subset is not None:
            subset = subset.gather(1, fine(evidence, subset, settings).order)
    xr.add_fine(traces, bench, asked, checked, head, found, BOTH)
    shown = torch.zeros_like(S_t).scatter_(1, head, found.scores)
    counts["fallbacks"] += sum(answer.fallback for answer in asked.asked)
    counts["questions"] = sum(asked.counts)
    counts["verified_candidates"] = sum(map(len, rows))
    return bench.output(shown, traces, final, counts, notes, subset)


def scorer(
    part: Workbench, places: Tensor, k: int, points: Sequence[Mapping[str, Any]]
) -> Callable[[Mapping[str, Any]], Tensor]:
    """For ``cir tune``: the fine stage for any weights of ``points``, which share all other settings; the
    candidates are verified once. See :mod:`cir_utils.methods` for the arguments."""
    shared = points[0]
    imagined, captions = xr.imagine(part, BOTH), xr.gallery_captions(part)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingWarning)  # the run with these settings says it
        S_t, S_v = coarse(part, imagined, captions, shared["alpha"], shared["beta"])
    order = xr.coarse_among(S_t, S_v, places, shared["kappa"], BOTH)[1]
    head = order if places is part.members else order[:, : shared["k_prime"]]
    asked = xr.ask(part, imagined, BOTH)
    rows = head.tolist()
    evidence = Evidence.of(asked, xr.verify(part, asked, rows, captions, BOTH), rows, S_t, S_v)

    def rank(point: Mapping[str, Any]) -> Tensor:
        found = fine(evidence, head, point)
        return torch.cat(
            [head.gather(1, found.order), order[:, head.shape[1] : max(k, head.shape[1])]], dim=1
        )

    return rank


def coarse(
    bench: Workbench, imagined: xr.Imagination, captions: Sequence[str], alpha: float, beta: float
) -> tuple[Tensor, Tensor]:
    """``S^t`` and ``S^v``, each ``(Q, N)`` float64; ``captions`` are those of the gallery. Raises
    :class:`~cir_utils.errors.InputError` for an ``alpha`` or ``beta`` outside its range."""
    assert imagined.C_t is not None and imagined.C_v is not None, "both sides are on"
    F_r, F_m, I_a = bench.reference_features, bench.modification_features, bench.gallery_features
    C_a = bench.encode_texts(captions).features

    def aligned(C_u: Tensor) -> Tensor:
        pictures = exact_scores(composed_query(F_r, C_u, F_m, alpha, beta), I_a)
        return pictures.add_(exact_scores(C_u, C_a))

    with bench.stage("coarse filtering"):
        return aligned(imagined.C_t.features), aligned(imagined.C_v.features)


@dataclass(frozen=True)
class Evidence:
    """What the fine stage weighs, by gallery position, all ``(Q, N)``: ``S_t`` and ``S_v``; ``L_t`` and
    ``L_v`` float64, at most 0; and the counts of answers as expected from captions (``text``) and pictures
    (``vision``) int64. The last four are 0 where nobody asked. ``questions`` ``(Q,)`` are the numbers of
    statements."""

    S_t: Tensor
    S_v: Tensor
    L_t: Tensor
    L_v: Tensor
    text: Tensor
    vision: Tensor
    questions: Tensor

    @staticmethod
    def of(
        asked: xr.Questions, checked: xr.Checked, rows: Sequence[Sequence[int]], S_t: Tensor, S_v: Tensor
    ) -> Evidence:
        """From what was checked for the gallery positions ``rows``, query by query."""
        L_t, L_v = torch.zeros_like(S_t), torch.zeros_like(S_v)
        text, vision = torch.zeros_like(S_t, dtype=torch.int64), torch.zeros_like(S_v, dtype=torch.int64)
        for row, (places, answers) in enumerate(zip(rows, checked.answers, strict=True)):
            expected = torch.tensor([s.answer for s in asked.asked[row].statements], dtype=torch.bool)
            for sums, side in ((L_t, "text"), (L_v, "vision")):
                p = torch.tensor([answer[side] for answer in answers], dtype=torch.float64)
                right = torch.where(expected, p, 1 - p).view(len(places), len(expected))
                sums[row, places] = right.clamp(*SURE).log().sum(dim=1).to(sums.device)
            text[row, places] = torch.tensor(checked.text[row], device=text.device)
            vision[row, places] = torch.tensor(checked.vision[row], device=vision.device)
        return Evidence(S_t, S_v, L_t, L_v, text, vision, torch.tensor(asked.counts, device=S_t.device))


def fine(evidence: Evidence, candidates: Tensor, settings: Mapping[str, Any]) -> Reranked:
    """The candidates at gallery positions ``candidates`` ``(Q, C)`` by the last step, or by X^R's
    (``verification=counts``)."""
    own = [
        values.gather(1, candidates)
        for values in (evidence.text, evidence.vision, evidence.L_t, evidence.L_v, evidence.S_t, evidence.S_v)
    ]
    text, vision, L_t, L_v, t, v = own
    lam = settings["lambda"]
    if settings["verification"] == "counts":
        return rerank(text, vision, t, v, lam, questions=evidence.questions, positions=candidates)
    similarity = lam * t + (1 - lam) * v
    normalised = normalise_similarity(similarity)
    scores = normalised + settings["weight_text"] * L_t + settings["weight_vision"] * L_v
    order = candidates.argsort(dim=1, stable=True)
    for key in (similarity, scores):
        order = order.gather(1, key.gather(1, order).sort(dim=1, descending=True, stable=True).indices)
    return Reranked(order=order, scores=scores, similarity=normalised)
