"""``xr-sdr`` on the small world: what it shares with X^R, its two new terms by hand, and their weights."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from small_world import Oracle, caption_of, open_bench, write_cirr_world, write_world

from cir_utils.methods import load_method, resolve_settings, xr, xr_sdr
from cir_utils.scoring import debiased_scores
from cir_utils.workbench import MethodOutput, Workbench


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def bench(world: Path, tiny_clip: Path, tmp_path: Path) -> Workbench:
    return open_bench(world, tiny_clip, tmp_path, oracle=Oracle())


def run(bench: Workbench, method: str, **overrides: object) -> MethodOutput:
    return load_method(method)(bench, resolve_settings(method, bench.settings, overrides))


@pytest.mark.parametrize("stages", ["coarse", "full"])
def test_without_anchor_debias_and_probabilities_it_is_xr(bench: Workbench, stages: str) -> None:
    same = run(bench, "xr-sdr", alpha=0, beta=0, verification="counts", stages=stages, k_prime=9)
    theirs = run(bench, "xr", stages=stages, k_prime=9, **({"prune": "off"} if stages == "full" else {}))
    assert dict(same.rankings) == dict(theirs.rankings)
    assert same.counts.get("questions") == theirs.counts.get("questions")


def test_pictures_are_compared_with_the_composed_query_and_captions_with_the_caption(
    bench: Workbench,
) -> None:
    imagined, captions = xr.imagine(bench, xr_sdr.BOTH), xr.gallery_captions(bench)
    S_t, S_v = xr_sdr.coarse(bench, imagined, captions, 0.2, 0.4)
    C_a = bench.encode_texts(captions).features
    F_r, F_m, I_a = bench.reference_features, bench.modification_features, bench.gallery_features
    for found, C_u in ((S_t, imagined.C_t), (S_v, imagined.C_v)):
        plain = C_u.features.double() @ C_a.double().T + debiased_scores(
            F_r, C_u.features, F_m, I_a, 0.2, 0.4
        )
        assert torch.allclose(found, plain, atol=1e-6)


def test_the_fine_stage_adds_weighted_log_likelihoods_to_the_similarity(bench: Workbench) -> None:
    """The script says 0.9 or 0.2: an answer as expected has p 0.9 (or 0.8 where "false" is), another 0.2 (or
    0.1)."""
    bench.agents.mllm  # noqa: B018 - the scripted one
    settings = dict(k_prime=24, weight_text=0.5, weight_vision=0.25, stages="full", kappa=60)
    output = run(bench, "xr-sdr", **settings, **{"lambda": 0.15})
    imagined, captions = xr.imagine(bench, xr_sdr.BOTH), xr.gallery_captions(bench)
    S_t, S_v = xr_sdr.coarse(bench, imagined, captions, bench.settings["alpha"], bench.settings["beta"])
    similarity = (0.15 * S_t + 0.85 * S_v)[0]
    normalised = (similarity - similarity.min()) / (similarity.max() - similarity.min())
    statements = output.traces[0]["questions"]
    assert [statement["answer"] for statement in statements] == [True, False]
    expected = {}
    for place, path in enumerate(bench.gallery_paths):
        words = captions[place].split()
        log = 0.0
        for statement in statements:
            p = 0.9 if statement["statement"].split()[-1] in words else 0.2
            log += math.log(p if statement["answer"] else 1 - p)
        assert captions[place] == caption_of(tuple(words[i] for i in (1, 2, -1))), path
        expected[bench.benchmark.gallery[place]] = float(normalised[place]) + 0.75 * log
    order = sorted(expected, key=lambda image: -expected[image])
    assert output.rankings["0"] == order
    first, score = output.traces[0]["top"][0]
    assert score == pytest.approx(expected[first], abs=1e-9)
    assert output.counts["verified_candidates"] == 8 * 24


def test_probabilities_are_kept_within_what_is_believed() -> None:
    asked = xr.Questions([_asked([True, False])])
    checked = xr.Checked([[2]], [[0]], [[{"text": [1.0, 0.0], "vision": [0.0, 0.5]}]])
    S = torch.zeros(1, 3, dtype=torch.float64)
    found = xr_sdr.Evidence.of(asked, checked, [[1]], S, S)
    assert found.L_t[0].tolist() == pytest.approx([0, 2 * math.log(0.99), 0])
    assert found.L_v[0].tolist() == pytest.approx([0, math.log(0.01) + math.log(0.5), 0])
    assert found.text.tolist() == [[0, 2, 0]] and found.questions.tolist() == [2]


def test_without_weights_the_similarity_orders_and_ties_go_by_gallery() -> None:
    S_t = torch.tensor([[0.5, 0.9, 0.5, 0.1]], dtype=torch.float64)
    L = torch.tensor([[-1.0, -9.0, 0.0, -2.0]], dtype=torch.float64)
    none = torch.zeros(1, 4, dtype=torch.int64)
    evidence = xr_sdr.Evidence(S_t, S_t, L, L, none, none, torch.tensor([1]))
    settings = {"lambda": 0.5, "verification": "probabilities", "weight_text": 0.0, "weight_vision": 0.0}
    candidates = torch.tensor([[3, 2, 1, 0]])
    assert candidates.gather(1, xr_sdr.fine(evidence, candidates, settings).order).tolist() == [[1, 0, 2, 3]]
    weighed = xr_sdr.fine(evidence, candidates, settings | {"weight_text": 0.125})
    # 0.5 - 0.125, 1 - 1.125, 0.5, 0 - 0.25 in gallery order
    assert candidates.gather(1, weighed.order).tolist() == [[2, 0, 1, 3]]
    assert weighed.scores.tolist() == [[-0.25, 0.5, -0.125, 0.375]]


def test_subsets_are_ranked_by_themselves(tmp_path: Path, tiny_clip: Path) -> None:
    root = write_cirr_world(tmp_path / "cirr")
    bench = open_bench(root, tiny_clip, tmp_path / "cache", oracle=Oracle(), benchmark="mini-cirr")
    output = run(bench, "xr-sdr", k_prime=3)
    for query in bench.queries:
        assert sorted(output.subsets[query.id]) == sorted(bench.benchmark.subset(query))
        assert len(output.rankings[query.id]) == len(bench.places[0])


def _asked(answers: list[bool]):
    from types import SimpleNamespace

    return SimpleNamespace(statements=[SimpleNamespace(answer=answer) for answer in answers])
