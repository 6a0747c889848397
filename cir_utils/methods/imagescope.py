"""ImageScope: collective reasoning in three stages (arXiv:2503.10166, its method section).

| stage | what | here |
|---|---|---|
| 1 | captioner: a caption of every candidate | ``xr.gallery_captions`` |
| 1 | captioner: a caption of the reference | :func:`synthesise` |
| 1 | reasoner: atomic instructions, and the target on three levels of detail | :func:`synthesise` |
| 1 | similarity with picture and caption, the mean over the levels | :func:`similarities` |
| 2 | reasoner: propositions with truth values, from the instructions | ``agents.questions`` |
| 2 | verifier: which hold in each of the best ``verified`` candidates; most first | :func:`by_satisfied` |
| 3 | evaluator: reference and candidate side by side; the first that fits goes to the top | :func:`confirm` |

``S = mean over levels of (1-tau) cos(t, I_a) + tau cos(t, C_a)``. Published settings, from the figures of the
paper and the defaults of its public code: ``tau`` 0.15, 20 candidates verified, 3 compared, greedy decoding.

Choices where the paper is silent, or where its text leaves more than one reading:

* captions are compared as CLIP text features, as in the public code;
* the three levels are asked for in one question, from the reference's caption and ``T_m`` alone. The
  mini-VLM was never shown that question: the set ``mini`` asks for its three nearest tasks instead
  (:meth:`cir_utils.agents.Agents.target_levels`), two of which look at the reference;
* a proposition is a statement with an expected truth value, as X^R's are (one agent writes both), from
  ``T_m`` and the atomic instructions; the mini-VLM also gets what vision imagination found present and
  absent, for it knows the question no other way;
* a proposition holds when the verifier gives its expected answer more than half of the probability (one
  forward pass, no generated text); an unclear one counts for nothing. Verification counts, it does not demand
  that all hold (the relaxed form), and equal counts keep the order of stage 1;
* a query whose propositions cannot be read is verified with one, ``T_m`` itself, expected true (the public
  code skips its verification), counted as a fallback;
* the evaluator looks at the best ``compared`` in turn and stops at the first that it finds fitting, with more
  than half of the probability; where none is, the order stays. Only that one moves;
* behind the verified candidates come the rest in the order of stage 1, so every ranking is a permutation of
  the gallery. A number above the gallery's size means all of it;
* the reference image stays in the ranking or leaves it as the benchmark's protocol says, before stage 2 looks
  at anything;
* CIRR's subset is a ranking of its own, with the five members as the whole gallery, as in the public code.

``verified=0`` and ``compared=0`` leave out stage 2 and stage 3. The scores in traces are the similarities of
stage 1, which alone do not say the final order; counts and verdicts stand beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cir_utils.agents import Levels
from cir_utils.methods.description_only import text_counts
from cir_utils.methods.xr import Checked, Questions, Sides, counts_of, gallery_captions, union, verify
from cir_utils.scoring import exact_scores
from cir_utils.workbench import MethodOutput, Texts, Workbench

PICTURES = Sides(text=False, vision=True)


def run(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """The three stages; every ranking is a permutation of the gallery."""
    captions, levels = synthesise(bench)
    of_gallery = gallery_captions(bench)
    encoded = [bench.encode_texts([own.texts[number] for own in levels]) for number in range(3)]
    C_a = bench.encode_texts(of_gallery).features
    with bench.stage("scoring"):
        S = similarities([level.features for level in encoded], bench.gallery_features, C_a, settings["tau"])
        order = bench.order(S)
        subset = None if bench.members is None else bench.order(S, bench.members)
    traces = _traces(bench, captions, levels, encoded)
    counts = {
        "fallbacks": sum(own.fallback for own in levels),
        **text_counts(encoded),
        "cut_captions": sum(bench.cut(of_gallery)),
    }
    if settings["verified"]:
        with bench.stage("questions"):
            asked = bench.agents.questions(
                bench.texts,
                [own.instructions for own in levels],
                [own.present for own in levels],
                [own.absent for own in levels],
            )
        head = order[:, : settings["verified"]]
        own_head = None if subset is None else subset[:, : settings["verified"]]
        rows = union([head] if own_head is None else [head, own_head])
        checked = verify(bench, Questions(asked), rows, of_gallery, PICTURES)
        order = torch.cat([by_satisfied(checked, rows, head), order[:, head.shape[1] :]], dim=1)
        if subset is not None and own_head is not None:
            rest = subset[:, own_head.shape[1] :]
            subset = torch.cat([by_satisfied(checked, rows, own_head), rest], dim=1)
        counts["fallbacks"] += sum(answer.fallback for answer in asked)
        counts["questions"] = sum(len(answer.statements) for answer in asked)
        counts["verified_candidates"] = sum(map(len, rows))
        _add_verified(traces, bench, Questions(asked), checked, rows, head, order)
    if settings["compared"]:
        with bench.stage("comparing pictures"):
            order, seen = confirm(bench, order, settings["compared"])
            if subset is not None:
                subset = confirm(bench, subset, settings["compared"])[0]
        counts["confirmed"] = sum(bool(found) and found[-1][1] > 0.5 for found in seen)
        _add_compared(traces, bench, seen)
    return bench.output(S, traces, order, counts, subset_order=subset)


def synthesise(bench: Workbench) -> tuple[list[str], list[Levels]]:
    """Stage 1: the references' captions, and from them and ``T_m`` the instructions and the three levels."""
    with bench.stage("captioning the references"):
        captions = [caption.text for caption in bench.agents.caption(bench.reference_paths)]
    with bench.stage("describing"):
        return captions, bench.agents.target_levels(bench.reference_paths, captions, bench.texts)


def similarities(levels: Sequence[Tensor], I_a: Tensor, C_a: Tensor, tau: float) -> Tensor:
    """``S`` ``(Q, N)`` float64: the mean over the ``levels``, features ``(Q, D)`` each, of
    ``(1-tau) cos(t, I_a) + tau cos(t, C_a)``; ``I_a`` and ``C_a`` are the features ``(N, D)`` of pictures and
    captions.

    A mean of inner products is the inner product with the mean, so each gallery is multiplied once."""
    mean = torch.stack([level.double() for level in levels]).mean(dim=0)
    S = exact_scores(mean, I_a).mul_(1 - tau)
    S += tau * exact_scores(mean, C_a)
    return S


def by_satisfied(checked: Checked, rows: Sequence[Sequence[int]], candidates: Tensor) -> Tensor:
    """Stage 2: the gallery positions ``candidates`` ``(Q, C)``, those with most propositions satisfied first,
    equal ones in the order given. ``checked`` is what was found for the positions ``rows``."""
    satisfied = counts_of(checked, rows, candidates)[1]
    return candidates.gather(1, satisfied.sort(dim=1, descending=True, stable=True).indices)


def confirm(bench: Workbench, order: Tensor, most: int) -> tuple[Tensor, list[list[tuple[int, float]]]]:
    """Stage 3: ``order`` ``(Q, C)`` with the first candidate that the evaluator finds fitting, among the best
    ``most``, moved to the front; and for each query the gallery positions looked at, in turn, with the
    probability that they fit. After a fitting one a query's further candidates are not asked about."""
    heads = order[:, :most].tolist()
    paths = bench.gallery_paths
    seen: list[list[tuple[int, float]]] = [[] for _ in heads]
    pending = list(range(len(heads)))
    for turn in range(min(most, order.shape[1])):
        triples = [(bench.reference_paths[row], paths[heads[row][turn]], bench.texts[row]) for row in pending]
        for row, p in zip(pending, bench.agents.compare_pictures(triples), strict=True):
            seen[row].append((heads[row][turn], p))
        pending = [row for row in pending if seen[row][-1][1] <= 0.5]
    final = order.clone()
    for row, looked in enumerate(seen):
        if looked and looked[-1][1] > 0.5:
            turn = len(looked) - 1
            final[row, : turn + 1] = order[row, : turn + 1].roll(1)
    return final, seen


def _traces(
    bench: Workbench, captions: Sequence[str], levels: Sequence[Levels], encoded: Sequence[Texts]
) -> list[dict[str, Any]]:
    traces = bench.plain_traces()
    for row, (trace, caption, own) in enumerate(zip(traces, captions, levels, strict=True)):
        trace["caption"] = caption
        trace["levels"] = {"core": own.core, "enhanced": own.enhanced, "comprehensive": own.comprehensive}
        trace["instructions"] = list(own.instructions)
        trace["said"] = [
            ["caption of the reference", caption],
            ["atomic instructions", "; ".join(own.instructions) or "none"],
            *([f"{name} level", text] for name, text in trace["levels"].items()),
        ]
        trace["cut"] = any(level.cut[row] for level in encoded)
        words = [word for level in encoded for word in level.unknown[row]]
        trace["unknown_words"] = list(dict.fromkeys(words))
        trace["agents"] = list(own.traces)
    return traces


def _add_verified(
    traces: list[dict[str, Any]],
    bench: Workbench,
    questions: Questions,
    checked: Checked,
    rows: Sequence[Sequence[int]],
    head: Tensor,
    order: Tensor,
) -> None:
    """The propositions, and how the first candidates of stage 2 fared."""
    gallery = bench.benchmark.gallery
    for row, (trace, asked) in enumerate(zip(traces, questions.asked, strict=True)):
        trace["questions"] = [statement.model_dump() for statement in asked.statements]
        listed = (f"{s.statement} ({'true' if s.answer else 'false'})" for s in asked.statements)
        trace["said"].append(["verified, with the expected answers", "; ".join(listed)])
        trace["agents"].append(asked.trace)
        first = {place: rank for rank, place in enumerate(head[row].tolist(), start=1)}
        known = {place: number for number, place in enumerate(rows[row])}
        trace["verified"] = [
            {
                "image": gallery[place],
                "first_rank": first[place],
                "satisfied": checked.vision[row][known[place]],
                "p_true": [round(p, 4) for p in checked.answers[row][known[place]]["vision"]],
            }
            for place in order[row, : head.shape[1]].tolist()[:10]
        ]


def _add_compared(
    traces: list[dict[str, Any]], bench: Workbench, seen: Sequence[Sequence[tuple[int, float]]]
) -> None:
    """Which candidates the evaluator looked at, and what it found."""
    gallery = bench.benchmark.gallery
    for trace, looked in zip(traces, seen, strict=True):
        trace["compared"] = [{"image": gallery[place], "p_fits": round(p, 4)} for place, p in looked]
        if looked:
            told = (f"image {gallery[place]}: {'fits' if p > 0.5 else 'does not fit'}" for place, p in looked)
            trace["said"].append(["compared with the reference", "; ".join(told)])
