"""Hints: signs in a ranking that a setting of SDR-CIR should move, and which way.

Two rows of the method's error table ("results too similar to the reference", "results ignore the reference's
visual style") are told apart by how near the top of the ranking lies to the reference image and to the
description. Cosines between two pictures and between a text and a picture live on different scales, so each
is first expressed in standard deviations of that query's own similarities to the whole gallery."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cir_utils.scoring import ALPHA_MAX, BETA_RANGE

#: How many results are looked at.
TOP = 10
#: The top results stand this many standard deviations nearer to the reference than to the description: too
#: close.
CLOSE_MARGIN = 0.5
#: The top results stand less than this many standard deviations nearer to the reference than the gallery at
#: large: the reference's look is lost.
LOST_BELOW = 0.5
#: Steps of the error table. No value is suggested that the scoring would warn of.
BETA_STEP, ALPHA_STEP = 0.1, 0.05


@dataclass(frozen=True)
class Hint:
    """How the top results stand to the reference and to the description (standard deviations above the
    gallery's mean), the ``sign`` seen ("close", "lost" or "") and the ``text`` for the reader ("" without a
    sign)."""

    to_reference: float
    to_description: float
    sign: str
    text: str


def standing(similarities: Tensor, order: Tensor, top: int = TOP) -> Tensor:
    """How far the ``top`` first items of ``order`` stand above the gallery in ``similarities``, in standard
    deviations.

    ``similarities`` is ``(Q, N)``, ``order`` ``(Q, >= top)`` holds gallery positions, best first. Returns
    ``(Q,)`` float64; 0 where all similarities are equal."""
    scores = similarities.double()
    head = scores.gather(1, order[:, :top]).mean(dim=1)
    spread = scores.std(dim=1, correction=0)
    return torch.where(
        spread > 0, (head - scores.mean(dim=1)) / spread.clamp_min(1e-12), torch.zeros_like(head)
    )


def hints(S_r: Tensor, S_d: Tensor, order: Tensor, alpha: float, beta: float) -> list[Hint]:
    """One :class:`Hint` a query for a ranking made with ``alpha`` and ``beta``.

    ``S_r`` and ``S_d`` ``(Q, N)`` are the cosines of ``F_r`` and ``F_d`` with the gallery, ``order`` ``(Q,
    N)`` the ranking. The sign is "close" when the top results stand at least ``CLOSE_MARGIN`` higher in
    similarity to the reference than to the description; it is "lost" when they stand less than ``LOST_BELOW``
    above the gallery in similarity to the reference. Both at once cannot be useful advice: "close" is looked
    at first."""
    found = []
    to_r, to_d = standing(S_r, order), standing(S_d, order)
    for near_r, near_d in zip(to_r.tolist(), to_d.tolist(), strict=True):
        sign = text = ""
        if near_r - near_d >= CLOSE_MARGIN:
            sign = "close"
            text = f"too close to the reference: {_raise('beta', beta, BETA_STEP, BETA_RANGE)}"
        elif near_r < LOST_BELOW:
            sign = "lost"
            text = f"the reference's look is lost: {_raise('alpha', alpha, ALPHA_STEP, (0.0, ALPHA_MAX))}"
        found.append(Hint(near_r, near_d, sign, text))
    return found


def summary(found: list[Hint], alpha: float, beta: float, share: float = 0.25) -> str:
    """One line for a whole run: the sign that at least ``share`` of its queries show (the more frequent of
    the two), or ""."""
    for sign in sorted(("close", "lost"), key=lambda sign: -sum(hint.sign == sign for hint in found)):
        marked = [hint for hint in found if hint.sign == sign]
        if marked and len(marked) >= share * len(found):
            return f"hint for {len(marked)} of {len(found)} queries: {marked[0].text}"
    return ""


def _raise(name: str, value: float, step: float, bounds: tuple[float, float]) -> str:
    least, most = bounds
    if value >= most:
        return f"{name} is {value:g} already; look at the descriptions instead"
    return f"try {name} {min(max(value + step, least), most):g} instead of {value:g}"
