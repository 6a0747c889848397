"""Pruned verification of X^R: the first places are those of the plain form, no question is asked that could
be left out, and what was not asked is never taken for a wrong answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import Oracle, open_bench, write_cirr_world, write_world

from cir_utils import runs
from cir_utils.methods import resolve_settings, xr
from cir_utils.runs import run_method
from cir_utils.workbench import Workbench

BOTH = xr.Sides(text=True, vision=True)
GALLERY = 9


class Script:
    """What verification needs of a workbench, with the answers of a table: query -> gallery position -> how
    many statements are answered as expected from the caption and from the picture. Statements are expected to
    be true. ``calls`` has the size of every batch, ``asked`` (side, query, position) of every candidate."""

    def __init__(self, right: Sequence[Sequence[tuple[int, int]]]) -> None:
        self.right = right
        self.agents = self
        self.gallery_paths = [Path(f"{place}") for place in range(len(right[0]))]
        self.calls: list[int] = []
        self.asked: list[tuple[str, int, int]] = []

    def stage(self, name: str) -> Any:
        return nullcontext()

    def verify_captions(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return self._answers("text", [(int(caption), statement) for caption, statement in pairs])

    def verify_pictures(self, pairs: Sequence[tuple[Path, str]]) -> list[float]:
        return self._answers("vision", [(int(path.name), statement) for path, statement in pairs])

    def _answers(self, side: str, pairs: Sequence[tuple[int, str]]) -> list[float]:
        self.calls.append(len(pairs))
        found = []
        for place, statement in pairs:
            query, number = map(int, statement.split("/"))
            if number == 0:
                self.asked.append((side, query, place))
            found.append(0.9 if number < self.right[query][place][side == "vision"] else 0.2)
        return found


def questions(counts: Sequence[int]) -> xr.Questions:
    made = [
        SimpleNamespace(
            statements=tuple(
                SimpleNamespace(statement=f"{query}/{number}", answer=True) for number in range(count)
            )
        )
        for query, count in enumerate(counts)
    ]
    return xr.Questions(made)  # type: ignore[arg-type]


def plainly(script: Script, asked: xr.Questions, tops: list[xr.Top], sides: xr.Sides, lam: float) -> list:
    rows = xr.candidates_of(tops)
    captions = [str(place) for place in range(len(script.gallery_paths))]
    checked = xr.verify(script, asked, rows, captions, sides)  # type: ignore[arg-type]
    return ranked(checked, asked, tops, lam)


def pruned(
    script: Script, asked: xr.Questions, tops: list[xr.Top], sides: xr.Sides, lam: float
) -> tuple[list, xr.Checked]:
    captions = [str(place) for place in range(len(script.gallery_paths))]
    checked = xr.verify_for_top(script, asked, tops, captions, sides, lam)  # type: ignore[arg-type]
    return ranked(checked, asked, tops, lam), checked


def ranked(checked: xr.Checked, asked: xr.Questions, tops: list[xr.Top], lam: float) -> list:
    rows, statements = xr.candidates_of(tops), torch.tensor(asked.counts)
    return [xr.rank_top(top, *xr.counts_of(checked, rows, top.candidates), statements, lam) for top in tops]


def top_of(candidates: Sequence[Sequence[int]], S_t: Any, S_v: Any, k: int) -> xr.Top:
    places = torch.tensor(candidates)
    t, v = (torch.tensor(S, dtype=torch.float64).gather(1, places) for S in (S_t, S_v))
    return xr.Top(places, t, v, k)


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    """Up to three queries over nine pictures. Similarities are few quarters, so that many are equal or the
    lowest (normalised: 0); a query may have no statement."""
    Q = draw(st.integers(1, 3))
    counts = [draw(st.integers(0, 3)) for _ in range(Q)]
    levels = draw(st.sampled_from([1, 2, 5, 40]))
    quarters = st.lists(
        st.lists(st.integers(0, levels - 1).map(lambda n: n / 4), min_size=GALLERY, max_size=GALLERY),
        min_size=Q, max_size=Q,
    )  # fmt: skip
    k_prime = draw(st.integers(1, GALLERY))
    S_t, S_v = draw(quarters), draw(quarters)
    heads = [draw(st.permutations(range(GALLERY)))[:k_prime] for _ in range(Q)]
    tops = [top_of(heads, S_t, S_v, draw(st.integers(1, GALLERY + 2)))]
    if draw(st.booleans()):  # CIRR's subset: five candidates with their own cut-off
        members = [sorted(draw(st.permutations(range(GALLERY)))[:5]) for _ in range(Q)]
        tops.append(top_of(members, S_t, S_v, 3))
    right = [
        [(draw(st.integers(0, count)), draw(st.integers(0, count))) for _ in range(GALLERY)]
        for count in counts
    ]
    return {
        "right": right,
        "asked": questions(counts),
        "tops": tops,
        "sides": draw(st.sampled_from([BOTH, xr.Sides(True, False), xr.Sides(False, True)])),
        "lam": draw(st.sampled_from([0.0, 0.15, 1.0])),
    }


@settings(max_examples=150, deadline=None)
@given(world=worlds())
def test_the_first_places_are_those_of_the_plain_form(world: dict[str, Any]) -> None:
    asked, tops, sides, lam = (world[name] for name in ("asked", "tops", "sides", "lam"))
    script, plain = Script(world["right"]), Script(world["right"])
    found, checked = pruned(script, asked, tops, sides, lam)
    for top, mine, full in zip(tops, found, plainly(plain, asked, tops, sides, lam), strict=True):
        assert torch.equal(mine.order[:, : top.k], full.order[:, : top.k])
        assert torch.equal(
            mine.scores.gather(1, mine.order[:, : top.k]), full.scores.gather(1, full.order[:, : top.k])
        )
        assert bool((mine.scores >= full.scores).all()), "what is not known is a bound, never a low score"
        assert torch.equal(mine.order.sort(dim=1).values, full.order.sort(dim=1).values)
    assert len(set(script.asked)) == len(script.asked), "nothing is asked twice"
    assert set(script.asked) <= set(plain.asked)
    saved = xr.unasked(checked, asked)
    whole = xr.statements_about(xr.candidates_of(tops), asked, sides)
    assert sum(script.calls) + sum(saved.values()) == whole == sum(plain.calls)


@settings(max_examples=60, deadline=None)
@given(world=worlds())
def test_a_query_is_asked_the_same_alone_as_in_company(world: dict[str, Any]) -> None:
    asked, tops, sides, lam = (world[name] for name in ("asked", "tops", "sides", "lam"))
    together = Script(world["right"])
    pruned(together, asked, tops, sides, lam)
    for query in range(len(asked.counts)):
        alone = Script(world["right"])
        one = [top.rows([query]) for top in tops]
        pruned(alone, xr.Questions([asked.asked[query]]), one, sides, lam)
        assert set(alone.asked) == {entry for entry in together.asked if entry[1] == query}


@settings(max_examples=60, deadline=None)
@given(world=worlds())
def test_every_question_was_needed(world: dict[str, Any]) -> None:
    """Of one ranking: whoever was asked about has a bound, before that answer, that fewer than k final scores
    exceed. So no order of asking could have left it out (captions come before pictures)."""
    asked, (top, *_), sides, lam = (world[name] for name in ("asked", "tops", "sides", "lam"))
    script = Script(world["right"])
    _, checked = pruned(script, asked, [top], sides, lam)
    (full,) = plainly(Script(world["right"]), asked, [top], sides, lam)
    text = xr.counts_of(checked, xr.candidates_of([top]), top.candidates)[0]
    for side, query, place in script.asked:
        column = top.candidates[query].tolist().index(place)
        count = asked.counts[query]
        bound = full.similarity[query, column] * (
            (count if side == "text" else int(text[query, column])) + (count if sides.vision else 0)
        )
        assert int((full.scores[query] > bound).sum()) < top.k, (side, query, place)


def world_of(similarity: list[float], right: list[tuple[int, int]], k: int, count: int = 2) -> tuple:
    top = top_of([list(range(len(similarity)))], [similarity], [similarity], k)
    return Script([right]), questions([count]), [top]


def test_by_hand_captions_first_then_the_pictures_that_can_still_matter() -> None:
    # Normalised similarities 1, 0.75, 0.5, 0.25, 0; two statements, k = 1.
    script, asked, tops = world_of([1.0, 0.75, 0.5, 0.25, 0.0], [(0, 2), (2, 2), (0, 0), (2, 2), (2, 2)], 1)
    found, checked = pruned(script, asked, tops, BOTH, 0.15)
    # 0: at most 4, its caption says 0 of 2: at most 2. 1: at most 3, in the end 3. All others are below.
    assert script.asked == [("text", 0, 0), ("text", 0, 1), ("vision", 0, 1)]
    assert found[0].order[0].tolist() == [1, 0, 2, 3, 4]
    assert found[0].scores[0].tolist() == pytest.approx([2.0, 3.0, 2.0, 1.0, 0.0])
    assert checked.text == [[0, 2, -1, -1, -1]] and checked.vision == [[-1, 2, -1, -1, -1]]
    assert checked.answers[0] == [
        {"text": [0.2, 0.2]},
        {"text": [0.9, 0.9], "vision": [0.9, 0.9]},
        {},
        {},
        {},
    ]
    assert xr.unasked(checked, asked) == {"captions": 6, "pictures": 8}
    note = xr.pruning_note(tops, xr.unasked(checked, asked), 20)
    assert note == (
        "exact for the top 1; pruning saved 14 of 20 verifications (70.0%): 6 of captions, 8 of pictures"
    )


def test_a_bound_that_reaches_the_last_place_is_asked_and_one_that_ties_it_behind_is_not() -> None:
    # k = 1; candidate 0 ends at 4 * 0.5 = 2 after its answers, as much as candidate 1 could reach at most.
    first = [1.0, 0.5, 0.0]
    script, asked, tops = world_of(first, [(1, 1), (2, 2), (0, 0)], 1)
    found, _ = pruned(script, asked, tops, BOTH, 0.15)
    assert script.asked == [("text", 0, 0), ("vision", 0, 0)]  # a tie goes to the more similar one
    assert found[0].order[0, 0] == 0
    script, asked, tops = world_of(first, [(1, 0), (2, 2), (0, 0)], 1)
    found, _ = pruned(script, asked, tops, BOTH, 0.15)
    assert ("vision", 0, 1) in script.asked and found[0].order[0, 0] == 1


def test_the_worst_case_saves_nothing_and_says_so() -> None:
    """Equal similarities and no right answer: any candidate could be the first until its last answer."""
    script, asked, tops = world_of([0.5] * 6, [(0, 0)] * 6, 2)
    found, checked = pruned(script, asked, tops, BOTH, 0.15)
    assert sum(script.calls) == 6 * 2 * 2 and xr.unasked(checked, asked) == {"captions": 0, "pictures": 0}
    assert found[0].order[0].tolist() == list(range(6)) and found[0].scores[0].tolist() == [0.0] * 6
    note = xr.pruning_note(tops, xr.unasked(checked, asked), 24)
    assert note == "exact for the top 2; pruning saved nothing: all 24 verifications were needed"


def test_all_open_queries_share_a_round() -> None:
    Q = 20
    similarity = [[1.0, 0.8, 0.6, 0.0]] * Q
    top = top_of([[0, 1, 2, 3]] * Q, similarity, similarity, 2)
    script = Script([[(2, 2)] * 4] * Q)
    pruned(script, questions([2] * Q), [top], BOTH, 0.15)
    # Captions of the first two, then their pictures: 4 * 0.6 is below 4 * 0.8.
    assert script.calls == [Q * 2 * 2, Q * 2 * 2]


# --- whole runs -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds")
    write_world(folder / "circo")
    write_cirr_world(folder / "cirr")
    return folder


def run(bench: Workbench, **overrides: object) -> runs.Run:
    return run_method(bench, "xr", resolve_settings("xr", bench.settings, overrides))


@pytest.mark.parametrize("sides", [{}, {"vision": "off"}, {"text": "off"}])
def test_a_run_is_exact_for_the_largest_cut_off(
    place: Path, tiny_clip: Path, monkeypatch: pytest.MonkeyPatch, sides: dict[str, str]
) -> None:
    monkeypatch.setitem(xr.KS, "circo", (1, 3))
    oracle = Oracle()
    bench = open_bench(place / "circo", tiny_clip, place / "cache", oracle=oracle)
    pruning = run(bench, k_prime=20, **sides)
    asked = oracle.asked.count("verify_caption"), oracle.asked.count("verify_picture")
    plain = run(bench, k_prime=20, prune="off", **sides)
    for query in bench.queries:
        mine, full = pruning.rankings[query.id], plain.rankings[query.id]
        assert mine[:3] == full[:3] and mine[20:] == full[20:] and set(mine) == set(full)
    saved = pruning.record["cost"]["pruning"]
    counts = pruning.record["counts"]
    whole = sum(len(trace["questions"]) for trace in plain.traces) * 20 * (1 if sides else 2)
    assert saved["asked"] + saved["captions_not_asked"] + saved["pictures_not_asked"] == whole
    assert saved["asked"] == (
        pruning.record["cost"]["mllm_calls"] - plain.record["cost"]["mllm_calls"] + whole
    )
    assert 0.4 < saved["share_not_asked"] == 1 - saved["asked"] / whole
    assert (counts["captions_not_asked"], counts["pictures_not_asked"]) == (
        saved["captions_not_asked"],
        saved["pictures_not_asked"],
    )
    # Equal questions go to the model once, whoever asks, so the model saw no more than was asked.
    assert 0 < sum(asked) <= saved["asked"]
    assert any(note.startswith("exact for the top 3; pruning saved ") for note in pruning.record["notes"])
    assert plain.record["cost"]["pruning"] == {} and "captions_not_asked" not in plain.record["counts"]
    assert pruning.record["settings"]["prune"] == "on" and pruning.record["overrides"].get("prune") is None


def test_what_was_not_asked_is_marked_in_traces_and_is_no_zero(
    place: Path, tiny_clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(xr.KS, "circo", (1, 3))
    bench = open_bench(place / "circo", tiny_clip, place / "cache")
    done, plain = run(bench, k_prime=20), run(bench, k_prime=20, prune="off")
    marked = 0
    for trace, full in zip(done.traces, plain.traces, strict=True):
        assert trace["verified"][:3] == full["verified"][:3]
        for row in trace["verified"]:
            for side in ("text", "vision"):
                asked = side not in row["not_asked"]
                marked += not asked
                assert (row[f"correct_{side}"] is not None) == asked == (side in row["p_true"])
            if row["not_asked"] and row["score"] is None:
                assert row["score_at_most"] <= trace["verified"][2]["score"]
            assert ("score_at_most" in row) == (row["score"] is None)
        assert trace["pruned"]["exact_for_top"] == 3 and trace["pruned"]["candidates"] == 20
        assert "pruned" not in full and all(row["not_asked"] == [] for row in full["verified"])
    assert marked > 0
    for side in ("captions", "pictures"):
        told = sum(trace["pruned"][f"{side}_not_asked"] for trace in done.traces)
        assert told == done.record["counts"][f"{side}_not_asked"]
    json.dumps(done.traces, allow_nan=False)


def test_a_candidate_of_similarity_0_is_not_asked_and_scores_0(place: Path, tiny_clip: Path) -> None:
    """The cut-off, 50, is far beyond the k': the one least similar candidate is all that can be saved."""
    bench = open_bench(place / "circo", tiny_clip, place / "cache")
    done, plain = run(bench, k_prime=4), run(bench, k_prime=4, prune="off")
    assert done.rankings == plain.rankings
    for trace in done.traces:
        last = trace["verified"][-1]
        assert last["not_asked"] == ["text", "vision"] and last["score"] == 0.0
        assert last["correct_text"] is last["correct_vision"] is None and last["p_true"] == {}
    statements = done.record["counts"]["questions"]
    assert done.record["counts"]["captions_not_asked"] == statements
    assert done.record["counts"]["verified_candidates"] == 8 * 3


def test_a_subset_is_exact_for_its_own_cut_off(
    place: Path, tiny_clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(xr.KS, "cirr", (1, 2))
    bench = open_bench(place / "cirr", tiny_clip, place / "cache", benchmark="mini-cirr")
    done, plain = run(bench, k_prime=15), run(bench, k_prime=15, prune="off")
    for query in bench.queries:
        assert done.subsets[query.id][:3] == plain.subsets[query.id][:3]
        assert set(done.subsets[query.id]) == set(plain.subsets[query.id])
        assert done.rankings[query.id][:2] == plain.rankings[query.id][:2]
    for name in ("R_subset@1", "R_subset@2", "R_subset@3", "R@1"):
        assert done.metrics[name] == plain.metrics[name]
    assert done.record["cost"]["pruning"]["share_not_asked"] > 0.2
    assert any("exact for the top 2 (subsets: 3)" in note for note in done.record["notes"])


def test_text_for_the_terminal_and_the_summary(place: Path, tiny_clip: Path) -> None:
    bench = open_bench(place / "circo", tiny_clip, place / "cache")
    done = run(bench, k_prime=6)
    assert done.summary()["cost"]["pruning"] == done.record["cost"]["pruning"]
    assert "note: exact for the top 50; pruning saved" in runs.describe(done, Path("x"))
    del done.record["cost"]["pruning"], done.record["cost"]["by_agent"], done.record["cost"]["computed"]
    assert "pruning" not in done.summary()["cost"]  # a record of an earlier version
    assert "note: exact" in runs.describe(done, Path("x"))


def test_the_benchmark_counts_what_pruning_asks_cached_or_not(place: Path, tiny_clip: Path) -> None:
    pruning = pytest.importorskip("benchmarks.pruning", reason="benchmarks/ is not here: it is not packaged")
    bench = open_bench(place / "circo", tiny_clip, place / "cache")
    pairs = [(2, 10), (24, 24)]
    first, second = pruning.measure(bench, pairs), pruning.measure(bench, pairs)
    assert first == second, "the second time every answer was known"
    few, all_of_it = first
    statements = 8 * 2
    assert (few["queries"], few["calls"], few["different"]) == (8, statements * 10 * 2, 0)
    assert few["calls_pruned"] < 0.6 * few["calls"]
    assert few["calls"] - few["calls_pruned"] == few["captions_not_asked"] + few["pictures_not_asked"]
    assert few["share_saved"] == 1 - few["calls_pruned"] / few["calls"]
    # Where all places are wanted, only the least similar candidate of a query is not asked about.
    assert (all_of_it["captions_not_asked"], all_of_it["pictures_not_asked"]) == (statements, statements)
    row = {"benchmark": "x", **few}
    assert pruning.table([row]).endswith("| identical |")
    assert pruning.table([row | {"different": 1}]).endswith("| 1 queries differ |")
    made = [
        row | {"k": k, "k_prime": k_prime, "calls": 100, "calls_pruned": 50} for k, k_prime in pruning.PAIRS
    ]
    cold = {"x": {"pictures": 24, "pictures_encoded": 24}, "y": {"pictures": 6, "pictures_encoded": 9}}
    found = [(bar["ratio"], bar["holds"]) for bar in pruning.bars(made, cold)]
    assert found == [(0.5, True), (0.5, True), (1.1, False)]
    made[0]["different"] = 1
    found = [(bar["ratio"], bar["holds"]) for bar in pruning.bars(made, {"x": {"pictures": 24}})]
    assert found == [(0.5, False), (0.5, True), (None, "not measured")]
