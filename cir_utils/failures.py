"""Where a run went wrong, read from its record: the stage at which X^R lost a query, and the queries that
meet a known limit. Evaluation only: it knows the ground truths, so no method may use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cir_utils.benchmarks import ImageId, Query
from cir_utils.metrics import hits
from cir_utils.runs import Run
from cir_utils.show import unsupported

FOUND = "found"
CUT = "lost by the coarse cut"
PASSED = "a wrong candidate passed every question"
FAILED = "the first candidate failed a question and still won"
#: What each way to fail means, in words.
MEANING = {
    CUT: "no ground truth came among the k' candidates, so verification never saw one: both imagined "
    "captions point elsewhere.",
    PASSED: "the questions could not tell it from a target. What differs is unspoken (style, shade, variant, "
    "viewpoint), or a fact that nobody asked about; or a statement asks for the wrong thing, or the verifier "
    "was wrong about it.",
    FAILED: "the true targets were judged no better, or lay so much lower in similarity that one right "
    "answer more did not lift them.",
}


def first_rank(ranking: Sequence[ImageId], query: Query) -> int | None:
    """The rank, from 1, of the first true target of ``query`` in ``ranking``; None where it holds none."""
    found = hits(ranking, query.targets).nonzero()[0]
    return 1 + int(found[0]) if len(found) else None


def stage_of(xr: Run, coarse: Run, query: Query, number: int, within: int = 5) -> str:
    """The stage at which X^R lost the run's query ``number``: :data:`FOUND` when a true target is among the
    first ``within``, else one of :data:`CUT`, :data:`PASSED`, :data:`FAILED`.

    ``xr`` is a whole run with its traces, ``coarse`` one of its coarse stage alone."""
    rank = first_rank(xr.rankings[query.id], query)
    if rank is not None and rank <= within:
        return FOUND
    before = first_rank(coarse.rankings[query.id], query)
    if before is None or before > int(xr.record["settings"]["k_prime"]):
        return CUT
    trace = xr.traces[number]
    return PASSED if full_marks(trace, trace["verified"][0]) else FAILED


def full_marks(trace: Mapping[str, Any], candidate: Mapping[str, Any]) -> bool:
    """Whether a verified candidate of a trace answered every statement as expected, on both sides."""
    return bool(candidate["correct_text"] == candidate["correct_vision"] == len(trace["questions"]))


def passed_wrongly(trace: Mapping[str, Any], query: Query) -> list[ImageId]:
    """The wrong candidates among the trace's first ten that have full marks, best first: words no longer tell
    them from a target."""
    return [
        each["image"]
        for each in trace["verified"]
        if each["image"] not in query.targets and full_marks(trace, each)
    ]


def weak_words(description: str, query: Query, captions: Mapping[ImageId, str]) -> list[str]:
    """The words of a description that no true target's caption has: what was misread, carried along or
    invented (or what the captioner overlooked). ``captions`` holds at least those of the targets."""
    return unsupported(description, [captions[target] for target in query.targets])
