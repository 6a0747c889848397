"""Failures: the stage at which a query is lost, and what words can no longer tell apart."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cir_utils import failures
from cir_utils.benchmarks import Query

QUERY = Query("q", 1, "make it blue", (7, 8), 7)
QUESTIONS = [{"statement": "it is blue", "answer": True}, {"statement": "it is red", "answer": False}]


def candidate(image: int, text: int = 2, vision: int = 2) -> dict[str, Any]:
    return {"image": image, "correct_text": text, "correct_vision": vision}


def runs(final: list[int], coarse: list[int], *verified: dict[str, Any]) -> tuple[Any, Any]:
    trace = {"questions": QUESTIONS, "verified": list(verified)}
    whole = SimpleNamespace(rankings={"q": final}, record={"settings": {"k_prime": 4}}, traces=[trace])
    return whole, SimpleNamespace(rankings={"q": coarse})


@pytest.mark.parametrize(
    "final, coarse, first, stage",
    [
        ([1, 2, 7, 3, 8], [1, 2, 3, 7, 8], candidate(1), failures.FOUND),
        ([1, 2, 3, 4, 7], [1, 2, 3, 4, 7], candidate(1), failures.CUT),
        ([1, 2, 3, 7, 8], [1, 7, 2, 3, 8], candidate(1), failures.PASSED),
        ([1, 2, 3, 7, 8], [1, 7, 2, 3, 8], candidate(1, vision=1), failures.FAILED),
        ([1, 2, 3, 7, 8], [1, 7, 2, 3, 8], candidate(1, text=1), failures.FAILED),
    ],
)
def test_the_stage_that_lost_a_query(
    final: list[int], coarse: list[int], first: dict[str, Any], stage: str
) -> None:
    assert failures.stage_of(*runs(final, coarse, first), QUERY, 0, within=3) == stage
    assert stage == failures.FOUND or failures.MEANING[stage]


def test_first_rank() -> None:
    assert failures.first_rank([3, 8, 7], QUERY) == 2
    assert failures.first_rank([3, 4], QUERY) is None


def test_full_marks_are_right_on_both_sides_for_every_statement() -> None:
    whole, _ = runs([], [], candidate(3), candidate(7), candidate(4, vision=1), candidate(5))
    assert failures.passed_wrongly(whole.traces[0], QUERY) == [3, 5]


def test_weak_words_are_those_that_no_target_has() -> None:
    captions = {7: "two blue cats in a room", 8: "two blue cats at the beach"}
    assert failures.weak_words("two blue striped cats at the beach", QUERY, captions) == ["striped"]
    only_first = replace(QUERY, targets=(7,))
    assert failures.weak_words("two blue striped cats at the beach", only_first, captions) == [
        "striped",
        "beach",
    ]
