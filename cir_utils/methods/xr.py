"""X^R: imagination, coarse filtering, fine filtering (arXiv:2601.14245, Algorithm 1).

| line | what | here |
|---|---|---|
| 1 | ``C_a``: a caption of every candidate | :func:`gallery_captions` |
| 2 | ``C_r``: a caption of the reference | :func:`imagine` |
| 3 | text imagination ``(C_r, T_m) -> C_t, M_t`` | :func:`imagine` |
| 4 | vision imagination ``(I_r, T_m) -> C_v, M_v`` | :func:`imagine` |
| 5-7 | four cosines ``s_t^t, s_t^v, s_v^t, s_v^v`` of ``C_t, C_v`` with ``C_a, I_a`` | :func:`similarities` |
| 8-9 | ``s^t = s_t^t + s_v^t``, ``s^v = s_t^v + s_v^v`` | :func:`similarities` |
| 10 | reciprocal rank fusion of ``S^t`` and ``S^v``; the best ``k'`` | :func:`coarse_order` |
| 11 | question agent ``(T_m, M_t, M_v) -> Q, A`` | :func:`ask` |
| 12-14 | +1 for every statement answered as expected, from ``C_a`` and from ``I_a`` | :func:`verify` |
| 15 | ``(S_q^t + S_q^v) * normalise(lambda S^t + (1-lambda) S^v)`` | :func:`cir_utils.scoring.rerank` |
| 16 | sort; return the best ``k`` | :func:`run`, which returns the whole gallery |

Choices where the paper is silent, or where its text and the authors' code differ:

* captions and pictures are compared as CLIP features, as the authors' code does (the text names "an MLLM" as
  encoder);
* "aligned within each modality" is read as: grouped by the imagined caption (superscript), across the two
  agents;
* the normalisation is min-max over the ``k'`` candidates, as in the authors' code;
* a statement is answered true when the MLLM gives "true" more probability than "false" (one forward pass, no
  generated text);
* "a fact is true if it passes in both modalities" is stated in the paper, but its score is the sum of the two
  counts: the sum is used;
* the number of statements is not limited; a query without usable questions gets one, ``T_m`` itself, expected
  true;
* order within the ``k'``: final score, then similarity, then gallery order; after the ``k'`` come the rest in
  coarse order, so every ranking is a permutation of the gallery. ``k'`` above the gallery's size means all of
  it. A reference that the protocol removes is out before the fusion ranks anything;
* CIRR's subset metric is a ranking of its own: lines 10 to 16 with the five members as the whole gallery, so
  ``k'`` is 5 (the paper is silent; the authors' code does the same).

``prune=on`` (the default) leaves out questions that cannot change the first places of a ranking
(:func:`verify_for_top`): as many places as the largest cut-off of the benchmark's metrics, and of CIRR's
subsets three. These places, and with them every metric, are those of ``prune=off``; behind them stand the
other candidates by the best score that they can have.

Ablations, by settings:

* ``stages=coarse``: lines 1 to 10 alone; no question is asked and nothing is verified.
* ``vision=off``: every agent that sees a picture is gone, but for the captioner, whose captions are the text
  side's only sight: no ``C_v, M_v`` (line 4), no ``I_a`` in lines 7 and 14. Left is ``S^t = s_t^t`` alone (no
  fusion), questions from ``T_m`` and ``M_t``, verification from captions. ``lambda`` and ``kappa`` then
  decide nothing.
* ``text=off``: every agent that works on texts alone is gone: no captions (lines 1, 2), no ``C_t, M_t`` (line
  3), no ``C_a`` in lines 6 and 13. Left is ``S^v = s_v^v`` alone, questions from ``T_m`` and ``M_v``,
  verification from pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cir_utils.agents import Asked, Imagined
from cir_utils.evaluation import KS
from cir_utils.methods.description_only import text_counts
from cir_utils.metrics import SUBSET_KS
from cir_utils.scoring import Reranked, exact_scores, rank_by, rerank, rrf, summed_scores
from cir_utils.workbench import MethodOutput, Texts, Workbench

#: In place of a count that a pruned verification did not need. It is no number of right answers.
UNASKED = -1


@dataclass(frozen=True)
class Sides:
    """Which sides take part; at least one does."""

    text: bool
    vision: bool


@dataclass(frozen=True)
class Imagination:
    """Lines 2 to 4 for all queries: ``C_r``, and what the text and the vision agent imagined, with the CLIP
    features of ``C_t`` and ``C_v`` ``(Q, D)``. A side that is off has empty lists and None."""

    captions: list[str]
    text: list[Imagined]
    vision: list[Imagined]
    C_t: Texts | None
    C_v: Texts | None


@dataclass(frozen=True)
class Questions:
    """Line 11 for all queries, and the number of statements of each."""

    asked: list[Asked]

    @property
    def counts(self) -> list[int]:
        return [len(asked.statements) for asked in self.asked]


@dataclass(frozen=True)
class Checked:
    """Lines 13 and 14: for every query, in the order of its candidates, how many statements were answered as
    expected from the caption (``text``) and from the picture (``vision``); zeros for a side that is off,
    ``UNASKED`` where :func:`verify_for_top` did not ask. ``answers`` holds, in the same order, each
    statement's probabilities of "true" by side, as far as it was asked."""

    text: list[list[int]]
    vision: list[list[int]]
    answers: list[list[dict[str, list[float]]]]


@dataclass(frozen=True)
class Top:
    """A ranking of which the first ``k`` places are wanted: its ``candidates`` ``(Q, C)``, gallery positions
    in coarse order, and their similarities ``S_t`` and ``S_v`` ``(Q, C)``."""

    candidates: Tensor
    S_t: Tensor
    S_v: Tensor
    k: int

    def rows(self, chosen: Sequence[int]) -> Top:
        """The same for some of the queries."""
        return Top(self.candidates[chosen], self.S_t[chosen], self.S_v[chosen], self.k)


def run(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Algorithm 1; every ranking is a permutation of the gallery."""
    sides = Sides(text=settings["text"] == "on", vision=settings["vision"] == "on")
    imagined = imagine(bench, sides)
    captions = gallery_captions(bench) if sides.text else []
    S_t, S_v = similarities(bench, imagined, captions)
    with bench.stage("coarse filtering"):
        fused, order = coarse_among(S_t, S_v, bench.places, settings["kappa"], sides)
        members = bench.members
        subset = None
        if members is not None:
            subset = coarse_among(S_t, S_v, members, settings["kappa"], sides)[1]
    traces = imagined_traces(bench, imagined)
    counts = imagined_counts(imagined) | {"cut_captions": sum(bench.cut(captions))}
    if settings["stages"] == "coarse":
        whole = fused.shape == S_t.shape  # in gallery order then
        shown = fused if whole else torch.zeros_like(S_t).scatter(1, bench.places, fused)
        return bench.output(shown, traces, order, counts, subset_order=subset)

    del fused  # (Q, N) tensors are large: what is done with goes, or is written over
    prune = settings["prune"] == "on"
    # With one side off there is one similarity, and its weight is 1 whatever lambda is.
    lam = settings["lambda"] if sides.text and sides.vision else float(sides.text)
    head = order[:, : settings["k_prime"]]
    tops = [Top(head, S_t.gather(1, head), S_v.gather(1, head), max(KS[bench.benchmark.family]))]
    if subset is not None:
        tops.append(Top(subset, S_t.gather(1, subset), S_v.gather(1, subset), max(SUBSET_KS)))
    asked = ask(bench, imagined, sides)
    # One verification serves both rankings: what stands among the k' and in the subset is asked once.
    rows = candidates_of(tops)
    if prune:
        checked = verify_for_top(bench, asked, tops, captions, sides, lam)
    else:
        checked = verify(bench, asked, rows, captions, sides)
    with bench.stage("fine filtering"):
        statements = torch.tensor(asked.counts, device=head.device)
        fine = [rank_top(top, *counts_of(checked, rows, top.candidates), statements, lam) for top in tops]
        found = fine[0]
        final = torch.cat([head.gather(1, found.order), order[:, head.shape[1] :]], dim=1)
        if subset is not None:
            subset = subset.gather(1, fine[1].order)
    add_fine(traces, bench, asked, checked, head, found, sides)
    # The scores shown in traces are the final ones, for the k' candidates that have them. What a trace lists
    # is among the first places, whose scores are exact.
    shown = S_t.zero_().scatter_(1, head, found.scores)
    counts["fallbacks"] += sum(answer.fallback for answer in asked.asked)
    counts["questions"] = sum(asked.counts)
    counts["verified_candidates"] = sum(
        UNASKED not in pair
        for sides_of in zip(checked.text, checked.vision, strict=True)
        for pair in zip(*sides_of, strict=True)
    )
    notes = []
    if settings["k_prime"] > order.shape[1]:
        had = "were candidates" if prune else "candidates were verified"
        notes.append(f"k' {settings['k_prime']} exceeds the gallery: all {order.shape[1]} {had}")
    if prune:
        saved = unasked(checked, asked)
        counts |= {f"{side}_not_asked": number for side, number in saved.items()}
        notes.append(pruning_note(tops, saved, statements_about(rows, asked, sides)))
        for row, trace in enumerate(traces):
            one = Checked([checked.text[row]], [checked.vision[row]], [checked.answers[row]])
            trace["pruned"] = {"exact_for_top": tops[0].k, "candidates": len(rows[row])} | {
                f"{side}_not_asked": number
                for side, number in unasked(one, Questions([asked.asked[row]])).items()
            }
    return bench.output(shown, traces, final, counts, notes, subset)


def scorer(
    part: Workbench, places: Tensor, k: int, points: Sequence[Mapping[str, Any]]
) -> Callable[[Mapping[str, Any]], Tensor]:
    """For ``cir tune``: both stages for any k', lambda and kappa of ``points``, whose candidates are verified
    once, all together.

    A k' above the gallery's size counts as all of it; the subset's members are all verified whatever k' is.
    All ``points`` have the same sides. See :mod:`cir_utils.methods` for the arguments."""
    sides = Sides(text=points[0]["text"] == "on", vision=points[0]["vision"] == "on")
    imagined = imagine(part, sides)
    captions = gallery_captions(part) if sides.text else []
    S_t, S_v = similarities(part, imagined, captions)
    count = places.shape[1]
    subset = places is part.members
    most: dict[float, int] = {}  # how many candidates are verified in the coarse order of a kappa
    for point in points:
        wanted = count if subset else min(count, point["k_prime"])
        most[point["kappa"]] = max(wanted, most.get(point["kappa"], 0))
    orders = {
        kappa: coarse_among(S_t, S_v, places, kappa, sides)[1][:, : max(own, k)].clone()
        for kappa, own in most.items()
    }
    pool = [
        list(dict.fromkeys(p for kappa, order in orders.items() for p in order[row, : most[kappa]].tolist()))
        for row in range(len(part.queries))
    ]
    asked = ask(part, imagined, sides)
    checked = verify(part, asked, pool, captions, sides)
    correct = torch.zeros(2, *S_t.shape, dtype=torch.int64, device=S_t.device)
    for row, verified in enumerate(pool):
        correct[0, row, verified] = torch.tensor(checked.text[row], device=S_t.device)
        correct[1, row, verified] = torch.tensor(checked.vision[row], device=S_t.device)
    questions = torch.tensor(asked.counts, device=S_t.device)

    def rank(point: Mapping[str, Any]) -> Tensor:
        order = orders[point["kappa"]]
        head = order[:, : count if subset else point["k_prime"]]
        text, vision, t, v = (values.gather(1, head) for values in (correct[0], correct[1], S_t, S_v))
        lam = point["lambda"] if sides.text and sides.vision else float(sides.text)
        fine = rerank(text, vision, t, v, lam, questions=questions, positions=head)
        return torch.cat([head.gather(1, fine.order), order[:, head.shape[1] :]], dim=1)

    return rank


def imagine(bench: Workbench, sides: Sides) -> Imagination:
    """Lines 2 to 4: the reference's caption, ``C_t`` with ``M_t``, and ``C_v`` with ``M_v``."""
    with bench.stage("imagination"):
        captions = (
            [caption.text for caption in bench.agents.caption(bench.reference_paths)] if sides.text else []
        )
        text = bench.agents.imagine_text(captions, bench.texts) if sides.text else []
        vision = bench.agents.imagine_vision(bench.reference_paths, bench.texts) if sides.vision else []
    return Imagination(
        captions=captions,
        text=text,
        vision=vision,
        C_t=bench.encode_texts([answer.target_caption for answer in text]) if text else None,
        C_v=bench.encode_texts([answer.target_caption for answer in vision]) if vision else None,
    )


def gallery_captions(bench: Workbench) -> list[str]:
    """Line 1: ``C_a`` of every gallery picture, in gallery order."""
    with bench.stage("captioning the gallery"):
        return [caption.text for caption in bench.agents.caption(bench.gallery_paths)]


def similarities(bench: Workbench, imagined: Imagination, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Lines 5 to 9: ``S^t`` and ``S^v``, each ``(Q, N)`` float64; zeros for a side that was not imagined.

    ``captions`` are those of the gallery (needed where there is a ``C_t``). The sums are taken over the
    gallery first: two products instead of four (:func:`cir_utils.scoring.four_cosines` is the readable form).
    """
    if imagined.C_t is not None and imagined.C_v is not None:
        C_a = bench.encode_texts(captions).features
        I_a = bench.gallery_features
        with bench.stage("coarse filtering"):
            return (
                summed_scores(imagined.C_t.features, C_a, I_a),
                summed_scores(imagined.C_v.features, C_a, I_a),
            )
    if imagined.C_t is not None:
        C_a = bench.encode_texts(captions).features
        with bench.stage("coarse filtering"):
            S_t = exact_scores(imagined.C_t.features, C_a)
            return S_t, torch.zeros_like(S_t)
    assert imagined.C_v is not None, "one side at least is on"
    with bench.stage("coarse filtering"):
        S_v = exact_scores(imagined.C_v.features, bench.gallery_features)
        return torch.zeros_like(S_v), S_v


def coarse_order(S_t: Tensor, S_v: Tensor, kappa: float, sides: Sides) -> tuple[Tensor, Tensor]:
    """Line 10: the fused scores and the whole gallery in their order, both ``(Q, N)``. With one side off
    there is nothing to fuse: the order is that of the other side's similarities."""
    scores = rrf(S_t, S_v, kappa) if sides.text and sides.vision else (S_t if sides.text else S_v)
    return scores, rank_by(scores)


def coarse_among(
    S_t: Tensor, S_v: Tensor, places: Tensor, kappa: float, sides: Sides
) -> tuple[Tensor, Tensor]:
    """Line 10 for the candidates at gallery positions ``places`` ``(Q, C)`` alone, as if the gallery held
    nothing else: their fused scores in the order of ``places``, and their positions, best first."""
    if places.shape == S_t.shape:  # the whole gallery
        return coarse_order(S_t, S_v, kappa, sides)
    scores, order = coarse_order(S_t.gather(1, places), S_v.gather(1, places), kappa, sides)
    return scores, places.gather(1, order)


def ask(bench: Workbench, imagined: Imagination, sides: Sides) -> Questions:
    """Line 11: statements with expected answers, from ``T_m``, ``M_t`` and ``M_v`` (as far as their sides are
    on)."""
    count = len(bench.queries)
    none: list[Sequence[str]] = [()] * count
    M_t = [answer.modifications for answer in imagined.text] if sides.text else none
    present = [answer.present for answer in imagined.vision] if sides.vision else none
    absent = [answer.absent for answer in imagined.vision] if sides.vision else none
    with bench.stage("questions"):
        return Questions(bench.agents.questions(bench.texts, M_t, present, absent))


def verify(
    bench: Workbench,
    questions: Questions,
    candidates: Sequence[Sequence[int]],
    captions: Sequence[str],
    sides: Sides,
) -> Checked:
    """Lines 12 to 14: every statement about every candidate, read from its caption and seen in its picture.

    ``candidates`` are gallery positions, query by query; ``captions`` those of the gallery. A statement
    counts when its probability of "true" is above one half exactly if it is expected to be true."""
    rows = [(row, place) for row, places in enumerate(candidates) for place in places]
    statements = [[statement.statement for statement in asked.statements] for asked in questions.asked]
    said: dict[str, list[float]] = {}
    if sides.text:
        with bench.stage("verification from captions"):
            said["text"] = bench.agents.verify_captions(
                [(captions[place], statement) for row, place in rows for statement in statements[row]]
            )
    if sides.vision:
        paths = bench.gallery_paths
        with bench.stage("verification from pictures"):
            said["vision"] = bench.agents.verify_pictures(
                [(paths[place], statement) for row, place in rows for statement in statements[row]]
            )
    text: list[list[int]] = [[] for _ in candidates]
    vision: list[list[int]] = [[] for _ in candidates]
    answers: list[list[dict[str, list[float]]]] = [[] for _ in candidates]
    start = 0
    for row, _ in rows:
        expected = [statement.answer for statement in questions.asked[row].statements]
        end = start + len(expected)
        own = {side: probabilities[start:end] for side, probabilities in said.items()}
        start = end
        answers[row].append(own)
        for counts, side in ((text, "text"), (vision, "vision")):
            counts[row].append(correct(own[side], expected) if side in own else 0)
    return Checked(text, vision, answers)


def verify_for_top(
    bench: Workbench,
    questions: Questions,
    tops: Sequence[Top],
    captions: Sequence[str],
    sides: Sides,
    lam: float,
) -> Checked:
    """Lines 12 to 14 as far as the first places of ``tops`` need them, for the candidates of
    :func:`candidates_of`, in that order.

    A candidate's final score is at most (right answers so far + statements still open) * normalised
    similarity. In every round the first ``k`` candidates by this bound are asked about where they are not
    fully verified: their captions, and the pictures of those that their captions have kept among the first.
    Once the first ``k`` are fully verified, every other bound is strictly below the ``k``-th best (in the
    ranking's order, where ties go by similarity and gallery order), and the query is done. A candidate of
    similarity 0 has the score 0 unasked.

    Bounds never rise, so while fewer than ``k`` of them are above a candidate's, no answer about others can
    rule it out. The questions asked are therefore the fewest that prove the first places when captions come
    before pictures, and neither the rounds nor the other queries decide which they are. All open queries
    share a round, which gives the MLLM large batches. ``lam`` as in :func:`cir_utils.scoring.rerank`."""
    rows = candidates_of(tops)
    column_of = [{place: column for column, place in enumerate(row)} for row in rows]
    statements = torch.tensor(questions.counts, device=tops[0].candidates.device)

    def start(on: bool) -> list[list[int]]:
        return [
            [UNASKED if on and count else 0] * len(row)
            for row, count in zip(rows, questions.counts, strict=True)
        ]

    checked = Checked(start(sides.text), start(sides.vision), [[{} for _ in row] for row in rows])
    left = list(range(len(rows)))
    while left:
        text: list[list[int]] = [[] for _ in rows]
        vision: list[list[int]] = [[] for _ in rows]
        known = Checked([checked.text[row] for row in left], [checked.vision[row] for row in left], [])
        for top in (top.rows(left) for top in tops):
            counts = counts_of(known, [rows[row] for row in left], top.candidates)
            for wanted, mask in zip((text, vision), needed(top, *counts, statements[left], lam), strict=True):
                numbers, places = mask.nonzero()[:, 0].tolist(), top.candidates[mask].tolist()
                for number, place in zip(numbers, places, strict=True):
                    if place not in wanted[left[number]]:  # the subset may ask the same
                        wanted[left[number]].append(place)
        left = [row for row in left if text[row] or vision[row]]
        for side, wanted in (("text", text), ("vision", vision)):
            if not any(wanted):
                continue
            only = Sides(text=side == "text", vision=side == "vision")
            found = verify(bench, questions, wanted, captions, only)
            for row in left:
                for place, right, said in zip(
                    wanted[row], getattr(found, side)[row], found.answers[row], strict=True
                ):
                    getattr(checked, side)[row][column_of[row][place]] = right
                    checked.answers[row][column_of[row][place]] |= said
    return checked


def needed(top: Top, text: Tensor, vision: Tensor, statements: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """Whose captions and whose pictures have to be asked about next: two masks ``(Q, C)``.

    ``text`` and ``vision`` ``(Q, C)`` are the counts so far, ``UNASKED`` where they are open (a side that is
    off is not), ``statements`` ``(Q,)`` the numbers of statements."""
    found = rank_top(top, text, vision, statements, lam)
    first = torch.zeros_like(text, dtype=torch.bool).scatter_(1, found.order[:, : top.k], True)
    counted = first & (found.similarity > 0) & (statements > 0)[:, None]
    return counted & (text == UNASKED), counted & (text != UNASKED) & (vision == UNASKED)


def rank_top(top: Top, text: Tensor, vision: Tensor, statements: Tensor, lam: float) -> Reranked:
    """Lines 15 and 16 for the candidates of ``top``, with every count that is ``UNASKED`` at its best: the
    final scores where all is known, and upper bounds elsewhere. Arguments as in :func:`needed`."""
    most = statements[:, None]
    text, vision = (torch.where(count == UNASKED, most, count) for count in (text, vision))
    return rerank(text, vision, top.S_t, top.S_v, lam, questions=statements, positions=top.candidates)


def candidates_of(tops: Sequence[Top]) -> list[list[int]]:
    """The gallery positions of all candidates of each query, each once."""
    return union([top.candidates for top in tops])


def union(candidates: Sequence[Tensor]) -> list[list[int]]:
    """Several lists of gallery positions a query, each ``(Q, C)``, as one: each position once, so that what
    stands in several is asked about once."""
    lists = zip(*(own.tolist() for own in candidates), strict=True)
    return [list(dict.fromkeys(place for own in row for place in own)) for row in lists]


def statements_about(rows: Sequence[Sequence[int]], questions: Questions, sides: Sides) -> int:
    """How many answers it takes to verify all candidates ``rows``."""
    about = sum(len(row) * count for row, count in zip(rows, questions.counts, strict=True))
    return about * (sides.text + sides.vision)


def unasked(checked: Checked, questions: Questions) -> dict[str, int]:
    """The number of statements that were not asked, ``captions`` and ``pictures``."""
    return {
        name: sum(row.count(UNASKED) * count for row, count in zip(counts, questions.counts, strict=True))
        for name, counts in (("captions", checked.text), ("pictures", checked.vision))
    }


def pruning_note(tops: Sequence[Top], saved: Mapping[str, int], whole: int) -> str:
    """What a pruned run knows, and what it saved of ``whole`` answers."""
    exact = f"exact for the top {tops[0].k}" + (f" (subsets: {tops[1].k})" if len(tops) > 1 else "")
    number = sum(saved.values())
    if not number:
        return f"{exact}; pruning saved nothing: all {whole:,} verifications were needed"
    return (
        f"{exact}; pruning saved {number:,} of {whole:,} verifications ({number / whole:.1%}): "
        f"{saved['captions']:,} of captions, {saved['pictures']:,} of pictures"
    )


def counts_of(checked: Checked, rows: Sequence[Sequence[int]], candidates: Tensor) -> tuple[Tensor, Tensor]:
    """The two counts of ``candidates`` ``(Q, C)``, gallery positions, each ``(Q, C)``, from what was checked
    for the positions ``rows``."""
    text: list[list[int]] = []
    vision: list[list[int]] = []
    for row, (known, wanted) in enumerate(zip(rows, candidates.tolist(), strict=True)):
        place_of = {position: place for place, position in enumerate(known)}
        text.append([checked.text[row][place_of[position]] for position in wanted])
        vision.append([checked.vision[row][place_of[position]] for position in wanted])
    return torch.tensor(text, device=candidates.device), torch.tensor(vision, device=candidates.device)


def correct(probabilities: Sequence[float], expected: Sequence[bool]) -> int:
    """How many statements are answered as expected; an unclear answer (a probability of exactly one half) is
    neither true nor false and earns nothing."""
    return sum(p != 0.5 and (p > 0.5) == answer for p, answer in zip(probabilities, expected, strict=True))


def imagined_traces(bench: Workbench, imagined: Imagination) -> list[dict[str, Any]]:
    """The beginning of every trace: what was imagined, and what of it CLIP cut or did not know."""
    traces = bench.plain_traces()
    for number, trace in enumerate(traces):
        trace["said"], trace["agents"] = [], []
        unknown: list[str] = []
        if imagined.text:
            answer = imagined.text[number]
            trace["C_r"], trace["C_t"] = imagined.captions[number], answer.target_caption
            trace["M_t"] = list(answer.modifications)
            trace["said"].append(["imagined from text", answer.target_caption])
        if imagined.vision:
            answer = imagined.vision[number]
            trace["C_v"] = answer.target_caption
            trace["M_v"] = {"present": list(answer.present), "absent": list(answer.absent)}
            trace["said"].append(["imagined from the picture", answer.target_caption])
        for group, encoded in ((imagined.text, imagined.C_t), (imagined.vision, imagined.C_v)):
            if encoded is not None:
                trace["agents"].append(group[number].trace)
                unknown += encoded.unknown[number]
        trace["cut"] = any(
            encoded.cut[number] for encoded in (imagined.C_t, imagined.C_v) if encoded is not None
        )
        trace["unknown_words"] = list(dict.fromkeys(unknown))
    return traces


def imagined_counts(imagined: Imagination) -> dict[str, int]:
    """Fallbacks of the imagination, and what :func:`text_counts` counts of its captions."""
    groups = [encoded for encoded in (imagined.C_t, imagined.C_v) if encoded is not None]
    return {
        "fallbacks": sum(answer.fallback for answer in [*imagined.text, *imagined.vision]),
        **text_counts(groups),
    }


def add_fine(
    traces: list[dict[str, Any]],
    bench: Workbench,
    questions: Questions,
    checked: Checked,
    head: Tensor,
    found: Reranked,
    sides: Sides,
) -> None:
    """What was asked, and for the first results of the fine stage how they answered."""
    gallery = bench.benchmark.gallery
    for row, (trace, asked) in enumerate(zip(traces, questions.asked, strict=True)):
        trace["questions"] = [statement.model_dump() for statement in asked.statements]
        listed = (f"{s.statement} ({'true' if s.answer else 'false'})" for s in asked.statements)
        trace["said"].append(["asked, with the expected answers", "; ".join(listed)])
        trace["agents"].append(asked.trace)
        trace["coarse_top"] = [gallery[place] for place in head[row, :10].tolist()]
        trace["verified"] = [
            {"image": gallery[int(head[row, place])], "coarse_rank": place + 1}
            | _verified(checked, found, row, place, sides)
            for place in found.order[row, :10].tolist()
        ]


def _verified(checked: Checked, found: Reranked, row: int, place: int, sides: Sides) -> dict[str, Any]:
    """What is known of one candidate. A count is None where its side is off or was not asked (``not_asked``
    names those); so is a score that is only known to be at most something."""
    counts = {"text": checked.text[row][place], "vision": checked.vision[row][place]}
    not_asked = [side for side, count in counts.items() if count == UNASKED]
    score, exact = float(found.scores[row, place]), not not_asked or float(found.similarity[row, place]) == 0
    known = [side for side in counts if getattr(sides, side) and side not in not_asked]
    return {
        **{f"correct_{side}": count if side in known else None for side, count in counts.items()},
        "p_true": {side: [round(p, 4) for p in own] for side, own in checked.answers[row][place].items()},
        "not_asked": not_asked,
        "score": score if exact else None,
        **({} if exact else {"score_at_most": score}),
    }
