"""Rankings that follow a slider: what a method asks and encodes is done once, settings are then arithmetic.

:func:`gather` does all that costs (MLLM texts, features, verification), through the workbench and its caches.
:func:`rank` only scores again: for every setting that a slider can take, the rankings are those of
:func:`cir_utils.runs.run_method`, and the metrics those of :mod:`cir_utils.evaluation`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cir_utils.benchmarks import EMPTY_TEXT, ImageId, Query
from cir_utils.errors import InputError
from cir_utils.evaluation import KS, query_values, score_rankings
from cir_utils.methods import KAPPAS, SettingValue, load_method, resolve_settings, xr
from cir_utils.methods.description_only import Descriptions, describe
from cir_utils.scoring import FourCosines, Reranked, exact_scores, four_cosines, rerank
from cir_utils.workbench import Workbench

BOTH = xr.Sides(text=True, vision=True)
#: The settings that only score anew, by method. All others would ask the MLLM again.
MOVABLE = {"sdr-cir": ("alpha", "beta"), "xr": ("lambda", "k_prime", "kappa")}
#: The id of a query that the reader made.
OWN = "yours"


@dataclass(frozen=True)
class SdrEvidence:
    """SDR-CIR on one gallery, before alpha and beta: the cosines of ``F_r``, ``F_d``, ``F_m`` with it, each
    ``(Q, N)`` float64, that of ``F_r`` with ``F_d`` and whether the text is ``vague``, each ``(Q, 1)``."""

    bench: Workbench
    described: Descriptions
    S_r: Tensor
    S_d: Tensor
    S_m: Tensor
    r_d: Tensor
    vague: Tensor


@dataclass(frozen=True)
class XrEvidence:
    """X^R on one gallery, before lambda, k' and kappa.

    ``four`` are the cosines and ``S_t``, ``S_v`` their aligned sums, ``(Q, N)``. ``coarse`` holds for every
    kappa of :func:`kappas` the coarse order, shaped as the workbench's ``places``. The first
    :func:`most_verified` candidates of all these orders were verified: ``correct`` ``(2, Q, N)`` int64 counts
    the statements answered as expected from caption and picture (-1 where nobody asked), ``answers`` has, by
    query and gallery position, the probabilities of "true" by side."""

    bench: Workbench
    captions: list[str]
    imagined: xr.Imagination
    asked: xr.Questions
    four: FourCosines
    S_t: Tensor
    S_v: Tensor
    coarse: dict[float, Tensor]
    correct: Tensor
    answers: list[dict[int, dict[str, list[float]]]]


@dataclass(frozen=True)
class RunEvidence:
    """A method without movable settings on one gallery: its ``order`` ``(Q, C)`` of gallery positions and its
    traces."""

    bench: Workbench
    order: Tensor
    traces: list[dict[str, Any]]


Evidence = SdrEvidence | XrEvidence | RunEvidence


@dataclass(frozen=True)
class State:
    """What is chosen: a ``method`` with its ``evidence`` on every gallery of ``bench`` and its ``settings``;
    and the query that is shown: number ``row`` of the gallery ``category`` ("" where there is one gallery),
    or the reader's ``own``, which is row 0 of an evidence for itself."""

    bench: Workbench
    method: str
    evidence: Mapping[str, Evidence]
    settings: Mapping[str, SettingValue]
    category: str = ""
    row: int = 0
    own: Evidence | None = None

    @property
    def shown(self) -> tuple[Evidence, int]:
        """The evidence that holds the query shown, and its row there."""
        return (self.own, 0) if self.own is not None else (self.evidence[self.category], self.row)


@dataclass(frozen=True)
class Ranked:
    """The query shown, ranked: ``order`` holds its gallery positions, best first; ``terms`` what each score
    is made of, name -> ``(N,)`` float64 in gallery order (NaN where a term does not exist; the last one is
    what is ranked by).

    ``metrics`` are those of all queries of the split at these settings, ``own_metrics`` the values of the one
    shown; both are empty where there are no public answers, the second for a reader's own query too."""

    state: State
    query: Query
    order: list[int]
    terms: dict[str, Tensor]
    metrics: dict[str, float]
    own_metrics: dict[str, float]
    place: dict[int, int] = field(repr=False)

    @property
    def bench(self) -> Workbench:
        return self.state.shown[0].bench

    def rank_of(self, position: int) -> int | None:
        """The rank, from 1, of the picture at a gallery position; None where the protocol removes it."""
        return self.place.get(position)


# --- what costs -------------------------------------------------------------------------------------------


def gather(bench: Workbench, method: str) -> dict[str, Evidence]:
    """The evidence of ``method`` on every gallery of ``bench``, with the profile's settings for all that
    cannot be moved."""
    return {name: gather_part(part, method) for name, part in bench.parts.items()}


def gather_part(part: Workbench, method: str) -> Evidence:
    """The evidence of ``method`` on the one gallery of ``part``: MLLM texts, features, cosines; for X^R also
    the verification of every candidate that a slider can bring among the ``k'``."""
    settings = resolve_settings(method, part.settings)
    if method == "sdr-cir":
        return _gather_sdr(part, str(settings["description"]))
    if method == "xr":
        return _gather_xr(part)
    output = load_method(method)(part, settings)
    place = part.place_of
    rows = [[place[image] for image in output.rankings[query.id]] for query in part.queries]
    return RunEvidence(part, torch.tensor(rows, device=part.device), output.traces)


def _gather_sdr(part: Workbench, how: str) -> SdrEvidence:
    described = describe(part, how)
    F_r, F_d, gallery = part.reference_features, described.features, part.gallery_features
    return SdrEvidence(
        part,
        described,
        exact_scores(F_r, gallery),
        exact_scores(F_d, gallery),
        exact_scores(part.modification_features, gallery),
        (F_r.double() * F_d.double()).sum(dim=1, keepdim=True),
        torch.tensor(described.vague, device=part.device)[:, None],
    )


def _gather_xr(part: Workbench) -> XrEvidence:
    imagined, captions = xr.imagine(part, BOTH), xr.gallery_captions(part)
    assert imagined.C_t is not None and imagined.C_v is not None, "both sides are on"
    S_t, S_v = xr.similarities(part, imagined, captions)
    coarse = {
        kappa: xr.coarse_among(S_t, S_v, part.places, kappa, BOTH)[1] for kappa in kappas(part.settings)
    }
    most = most_verified(part)
    pool = [
        list(dict.fromkeys(place for order in coarse.values() for place in order[row, :most].tolist()))
        for row in range(len(part.queries))
    ]
    asked = xr.ask(part, imagined, BOTH)
    checked = xr.verify(part, asked, pool, captions, BOTH)
    correct = torch.full((2, *S_t.shape), -1, dtype=torch.int64, device=S_t.device)
    for row, places in enumerate(pool):
        correct[0, row, places] = torch.tensor(checked.text[row], device=S_t.device)
        correct[1, row, places] = torch.tensor(checked.vision[row], device=S_t.device)
    C_a = part.encode_texts(captions).features
    return XrEvidence(
        part,
        captions,
        imagined,
        asked,
        four_cosines(imagined.C_t.features, imagined.C_v.features, C_a, part.gallery_features),
        S_t,
        S_v,
        coarse,
        correct,
        [dict(zip(places, found, strict=True)) for places, found in zip(pool, checked.answers, strict=True)],
    )


def kappas(settings: Mapping[str, SettingValue]) -> list[float]:
    """The values of kappa that can be chosen, rising: those of the tuning grid and the usual one."""
    return sorted({*map(float, KAPPAS), float(settings["kappa"])})


def most_verified(part: Workbench) -> int:
    """The largest ``k'`` that can be chosen: the usual one, or all that is ranked where that is less."""
    return min(int(part.settings["k_prime"]), part.places.shape[1])


def one_query(part: Workbench, reference: ImageId, text: str) -> Workbench:
    """A workbench with the gallery and the models of ``part`` and one query, the reader's own: any gallery
    picture as reference and any text. It has no true targets.

    Raises :class:`InputError` for a reference outside the gallery."""
    if reference not in part.place_of:
        raise InputError(
            f"reference {reference!r:.60} is not in the gallery of {part.benchmark.name} "
            f"{part.benchmark.split}; choose one of its pictures"
        )
    category = part.queries[0].category if part.queries else ""
    query = Query(OWN, reference, " ".join(text.split()) or EMPTY_TEXT, (), None, category=category)
    return part.sharing(dataclasses.replace(part.benchmark, queries=(query,)))


# --- what a slider moves ----------------------------------------------------------------------------------


def rank(state: State) -> Ranked:
    """Rank all queries of the split at the state's settings, and take the one shown apart.

    Raises :class:`InputError` for a ``k'`` or a kappa that was not prepared."""
    orders = {name: order_of(evidence, state.settings) for name, evidence in state.evidence.items()}
    heads = {}
    for name, evidence in state.evidence.items():
        most = max(KS[evidence.bench.benchmark.family])
        gallery = evidence.bench.benchmark.gallery
        for query, row in zip(evidence.bench.queries, orders[name][:, :most].tolist(), strict=True):
            heads[query.id] = [gallery[place] for place in row]
    evidence, row = state.shown
    own = state.own is not None
    order = (order_of(evidence, state.settings) if own else orders[state.category])[row].tolist()
    query = evidence.bench.queries[row]
    metrics: dict[str, float] = {}
    own_metrics: dict[str, float] = {}
    if all(query.targets for query in state.bench.queries):
        metrics = score_rankings(state.bench.benchmark, heads)
        if not own:
            values = query_values(state.bench.benchmark, [query], heads)
            own_metrics = {name: float(value[0]) for name, value in values.items()}
    return Ranked(
        state,
        query,
        order,
        terms_of(evidence, state.settings, row),
        metrics,
        own_metrics,
        {position: number for number, position in enumerate(order, start=1)},
    )


def order_of(evidence: Evidence, settings: Mapping[str, SettingValue]) -> Tensor:
    """The gallery positions of every query, best first, shaped as the workbench's ``places``: the method's
    own order at these settings."""
    if isinstance(evidence, SdrEvidence):
        alpha, beta = float(settings["alpha"]), float(settings["beta"])
        return evidence.bench.order(sdr_scores(evidence, alpha, beta)["S_f"])
    if isinstance(evidence, XrEvidence):
        coarse, head = _coarse_and_head(evidence, settings)
        found = fine(evidence, settings)
        return torch.cat([head.gather(1, found.order), coarse[:, head.shape[1] :]], dim=1)
    return evidence.order


def sdr_scores(
    evidence: SdrEvidence, alpha: float, beta: float, rows: slice = slice(None)
) -> dict[str, Tensor]:
    """``S_q``, ``S_i`` and ``S_f`` of the queries ``rows``, each ``(rows, N)``. ``S_q`` is the weighted sum
    of ``S_d`` and ``S_r`` over the length of ``F_q``, so no feature is looked at again; a vague query's
    ``S_f`` is ``S_r``."""
    S_r, S_d, r_d = evidence.S_r[rows], evidence.S_d[rows], evidence.r_d[rows]
    length = ((1 - alpha) ** 2 + alpha**2 + 2 * alpha * (1 - alpha) * r_d).clamp_min(1e-12).sqrt()
    S_q = ((1 - alpha) * S_d + alpha * S_r) / length
    S_i = S_d - evidence.S_m[rows]
    S_f = torch.where(evidence.vague[rows], S_r, (1 + beta) * S_q - beta * S_i)
    return {"S_q": S_q, "S_i": S_i, "S_f": S_f}


def fine(evidence: XrEvidence, settings: Mapping[str, SettingValue], rows: slice = slice(None)) -> Reranked:
    """X^R's re-ranking of the first ``k'`` of the coarse order of the queries ``rows``."""
    head = _coarse_and_head(evidence, settings)[1][rows]
    text, vision = (counts[rows].gather(1, head) for counts in evidence.correct)
    return rerank(
        text,
        vision,
        evidence.S_t[rows].gather(1, head),
        evidence.S_v[rows].gather(1, head),
        float(settings["lambda"]),
        questions=torch.tensor(evidence.asked.counts[rows], device=head.device),
        positions=head,
    )


def _coarse_and_head(evidence: XrEvidence, settings: Mapping[str, SettingValue]) -> tuple[Tensor, Tensor]:
    kappa, k_prime, most = float(settings["kappa"]), int(settings["k_prime"]), most_verified(evidence.bench)
    if kappa not in evidence.coarse:
        have = ", ".join(f"{value:g}" for value in evidence.coarse)
        raise InputError(f"kappa = {kappa:g} was not prepared; choose one of {have}")
    if not 1 <= k_prime <= most:
        raise InputError(
            f"k_prime = {k_prime}: the first {most} candidates were verified; choose from 1 to {most}"
        )
    coarse = evidence.coarse[kappa]
    return coarse, coarse[:, :k_prime]


def terms_of(evidence: Evidence, settings: Mapping[str, SettingValue], row: int) -> dict[str, Tensor]:
    """What the scores of query ``row`` are made of, name -> ``(N,)`` float64 in gallery order."""
    if isinstance(evidence, SdrEvidence):
        scores = sdr_scores(evidence, float(settings["alpha"]), float(settings["beta"]), slice(row, row + 1))
        return {
            "S_q": scores["S_q"][0],
            "S_d": evidence.S_d[row],
            "S_m": evidence.S_m[row],
            "S_f": scores["S_f"][0],
        }
    if isinstance(evidence, XrEvidence):
        four, own = evidence.four, slice(row, row + 1)
        missing = torch.full_like(evidence.S_t[row], float("nan"))
        kappa = float(settings["kappa"])
        places = evidence.bench.places[own]
        fused = xr.coarse_among(evidence.S_t[own], evidence.S_v[own], places, kappa, BOTH)[0]
        head = _coarse_and_head(evidence, settings)[1][row]
        return {
            "s_t^t": four.s_t_t[row],
            "s_t^v": four.s_t_v[row],
            "s_v^t": four.s_v_t[row],
            "s_v^v": four.s_v_v[row],
            "RRF": missing.scatter(0, places[0], fused[0]),
            "score": missing.scatter(0, head, fine(evidence, settings, own).scores[0]),
        }
    return {}


def rank_in(values: Tensor, places: Tensor, position: int) -> int | None:
    """The rank, from 1, of a gallery position by ``values`` ``(N,)`` among the positions ``places`` ``(C,)``,
    ties by gallery order; None for a position that is not among them or has no value."""
    own = values[position]
    if bool(own.isnan()) or not bool((places == position).any()):
        return None
    others = values[places]
    return 1 + int((others > own).sum()) + int(((others == own) & (places < position)).sum())


def ticks(evidence: Evidence, row: int, position: int) -> dict[str, str]:
    """How the candidate at a gallery position answered the statements about query ``row``, by side ("text",
    "vision"), one sign a statement: ✓ as expected, ✗ not, ? unclear. Empty where nobody asked."""
    if not isinstance(evidence, XrEvidence) or position not in evidence.answers[row]:
        return {}
    expected = [statement.answer for statement in evidence.asked.asked[row].statements]
    return {
        side: "".join(
            "?" if p == 0.5 else "✓" if (p > 0.5) == answer else "✗"
            for p, answer in zip(found, expected, strict=True)
        )
        for side, found in evidence.answers[row][position].items()
    }


def said(evidence: Evidence, row: int) -> list[tuple[str, str]]:
    """What the MLLM wrote about query ``row``, part by part: (what it is, the text)."""
    if isinstance(evidence, SdrEvidence):
        trace = evidence.described.traces[row]
        stages = trace.get("stages", {})
        found = [
            (name, "; ".join(value) or "none" if isinstance(value, list) else str(value))
            for key, name in STAGES.items()
            if (value := stages.get(key)) is not None
        ]
        return found + [(name, text) for name, text in trace["said"]]
    if isinstance(evidence, XrEvidence):
        text, vision = evidence.imagined.text[row], evidence.imagined.vision[row]
        statements = evidence.asked.asked[row].statements
        return [
            ("C_r, the reference's caption", evidence.imagined.captions[row]),
            ("C_t, imagined from text", text.target_caption),
            ("M_t, what changes", "; ".join(text.modifications) or "none"),
            ("C_v, imagined from the picture", vision.target_caption),
            ("M_v, to be seen", "; ".join(vision.present) or "none"),
            ("M_v, not to be seen", "; ".join(vision.absent) or "none"),
            ("asked", "; ".join(f"{s.statement} ({'true' if s.answer else 'false'})" for s in statements)),
        ]
    return [(name, text) for name, text in evidence.traces[row].get("said", [])]


#: The fields of a Selective CoT answer, in the order of its stages.
STAGES = {
    "understanding": "1 the reference",
    "explicit_targets": "2 explicit targets",
    "implicit_targets": "2 implicit targets",
    "preserved": "2 preserved",
    "selected": "3 selected",
    "discarded": "3 discarded",
}
