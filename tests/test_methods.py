"""The methods on a small world: against plain formulas, with every switch, and with the errors they must
survive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_world import ID_OF, IDS, SCENE_OF, VAGUE, Oracle, caption_of, open_bench, write_world

from cir_utils.benchmarks import Benchmark, Protocol, Query
from cir_utils.methods import METHODS, load_method, resolve_settings
from cir_utils.methods import xr as xr_method
from cir_utils.metrics import check_permutations
from cir_utils.scoring import SettingWarning, debiased_scores, rank_by
from cir_utils.workbench import MethodOutput, Workbench


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def bench(world: Path, tiny_clip: Path, cache: Path, oracle: Oracle) -> Workbench:
    return open_bench(world, tiny_clip, cache, oracle=oracle)


def run(bench: Workbench, method: str, **overrides: object) -> MethodOutput:
    return load_method(method)(bench, resolve_settings(method, bench.settings, overrides))


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.trained])
def test_every_ranking_is_a_permutation_of_the_gallery(bench: Workbench, method: str) -> None:
    output = run(bench, method)
    check_permutations(output.rankings, IDS, {query.id: query.targets for query in bench.queries})
    assert [trace["query"] for trace in output.traces] == [query.id for query in bench.queries]
    for trace in output.traces:
        assert [image for image, _ in trace["top"]] == output.rankings[trace["query"]][:10]


def test_a_random_ranking_hangs_on_the_query_alone(bench: Workbench, tiny_clip: Path, oracle: Oracle) -> None:
    fresh = open_bench(bench.benchmark.root, tiny_clip, bench.cache_dir, oracle=oracle)
    found = run(fresh, "random").rankings
    assert found["0"][:5] == [114, 184, 149, 177, 121]
    assert len({tuple(ranking) for ranking in found.values()}) == 8
    assert run(open_bench(bench.benchmark.root, tiny_clip, bench.cache_dir, limit=3), "random").rankings == {
        query: found[query] for query in ("0", "1", "2")
    }
    turned = replace(fresh.benchmark, queries=fresh.benchmark.queries[::-1])
    assert run(random_bench(turned), "random").rankings == found
    assert "encoder" not in fresh.__dict__ and oracle.asked == []


def test_guessing_finds_k_of_n(tmp_path: Path) -> None:
    """Every query has the same target: one ranking for all would give 0 or 1, a biased one another mean.

    Four standard errors: a right program fails one such comparison in 16,000, and the draws are fixed."""
    count, size = 4000, 100
    queries = tuple(Query(f"q{n}", 0, "text", (70,), 70) for n in range(count))
    protocol = Protocol("mini-circo", "val", "made up", size, "kept", "relative caption", False, count)
    bench = random_bench(Benchmark("mini-circo", "val", queries, tuple(range(size)), tmp_path, protocol))
    rankings = run(bench, "random").rankings
    check_permutations(rankings, range(size), {query.id: query.targets for query in queries})
    order = np.array(list(rankings.values()))
    ranks = np.argmax(order == 70, axis=1)
    for k in (1, 5, 10, 50):
        share = k / size
        assert abs((ranks < k).mean() - share) < 4 * np.sqrt(share * (1 - share) / count), k
    # Which picture comes first, and next after picture 0, is even too: chi-squared with about 99 degrees of
    # freedom, mean 99, standard deviation 14.
    after = [row[np.flatnonzero(row == 0)[0] + 1] for row in order if row[-1] != 0]
    for seen, cells in ((order[:, 0], range(size)), (np.array(after), range(1, size))):
        counts = np.bincount(seen, minlength=size)[list(cells)]
        expected = counts.sum() / len(cells)
        assert 50 < ((counts - expected) ** 2 / expected).sum() < 160


def random_bench(benchmark: Benchmark) -> Workbench:
    """A workbench without encoder and MLLM."""
    return Workbench(
        benchmark, profile="mini", encoder="none", mllm="none", prompts="mini", settings={},
        settings_source="", device=torch.device("cpu"), cache_dir=benchmark.root / "no cache",
    )  # fmt: skip


def test_image_only_puts_the_reference_first_and_asks_nobody(bench: Workbench, oracle: Oracle) -> None:
    output = run(bench, "image-only")
    for query in bench.queries:
        assert output.rankings[query.id][0] == query.reference
    assert oracle.asked == []


def test_image_and_text_is_the_mean_of_both(bench: Workbench) -> None:
    query = (bench.reference_features.double() + bench.modification_features.double()) / 2
    scores = query @ bench.gallery_features.double().T
    assert run(bench, "image+text").rankings["0"] == [
        IDS[place] for place in scores[0].argsort(descending=True).tolist()
    ]


def test_sdr_cir_ranks_by_its_formula(bench: Workbench) -> None:
    output = run(bench, "sdr-cir", alpha=0.2, beta=0.5)
    descriptions = [trace["stages"]["description"] for trace in output.traces]
    F_d, F_m = bench.encode_texts(descriptions).features, bench.modification_features
    F_r, x = bench.reference_features, bench.gallery_features

    def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=0))

    for row, query in enumerate(bench.queries[:-1]):
        F_q = 0.8 * F_d[row] + 0.2 * F_r[row]
        scores = [
            1.5 * cosine(F_q, x[a]) - 0.5 * (cosine(F_d[row], x[a]) - cosine(F_m[row], x[a]))
            for a in range(len(IDS))
        ]
        found = [scores[IDS.index(image)] for image in output.rankings[query.id]]
        assert all(high >= low - 1e-12 for high, low in zip(found, found[1:], strict=False))


def test_without_anchor_and_debias_it_is_description_only(bench: Workbench) -> None:
    off = run(bench, "sdr-cir", alpha=0.0, beta=0.0)
    plain = run(bench, "description-only")
    assert off.rankings == plain.rankings
    assert run(bench, "sdr-cir").rankings != plain.rankings


def test_a_plain_description_is_asked_for_without_stages(bench: Workbench, oracle: Oracle) -> None:
    output = run(bench, "description-only", description="plain")
    assert oracle.asked == ["describe_target"] * 8
    assert output.traces[0]["said"][0] == ["target description", "a red cat on the beach"]
    assert output.counts["vague"] == 0
    assert "stages" not in output.traces[0]


def test_one_call_a_query(bench: Workbench, oracle: Oracle) -> None:
    bench.start()
    run(bench, "sdr-cir")
    assert oracle.asked == ["selective_cot"] * 8
    assert bench.cost()["mllm_calls"] == 8
    bench.start()
    run(bench, "sdr-cir")
    assert (bench.cost()["mllm_calls"], bench.cost()["cached_calls"]) == (8, 8)


def test_a_vague_text_falls_back_to_the_reference_and_says_so(bench: Workbench) -> None:
    by_image = run(bench, "image-only").rankings
    for method in ("sdr-cir", "description-only"):
        output = run(bench, method)
        trace = output.traces[7]
        assert trace["text"] == VAGUE and trace["vague"]
        assert output.rankings["7"] == by_image["7"]
        assert output.counts["vague"] == 1
        (note,) = [text for name, text in trace["said"] if name == "note"]
        assert VAGUE in note and "reference image" in note and "thing" in note
        assert not any(other["vague"] for other in output.traces[:7])


@pytest.mark.parametrize("method", ["text-only", "image+text"])
def test_a_long_modification_text_is_cut_and_counted_by_the_baselines(bench: Workbench, method: str) -> None:
    words = " ".join(["red"] * 100)
    first, *others = bench.queries
    bench.queries = (replace(first, text=words), *others)
    output = run(bench, method)
    assert output.counts == {"cut_texts": 1}
    assert [trace["cut"] for trace in output.traces] == [True] + [False] * 7
    # What is left is the front: the text of 75 words, which just fits, is the same query.
    bench.queries = (replace(first, text=" ".join(["red"] * 75)), *others)
    del bench.__dict__["modification_features"]
    whole = run(bench, method)
    assert whole.counts == {"cut_texts": 0} and whole.rankings == output.rankings


def test_long_gallery_captions_are_counted(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    captions = xr_method.gallery_captions(bench)
    captions[3] += " cat" * 100
    monkeypatch.setattr(xr_method, "gallery_captions", lambda bench: captions)
    output = run(bench, "xr", stages="coarse")
    assert (output.counts["cut_captions"], output.counts["cut_texts"]) == (1, 0)


def test_a_long_description_is_cut_behind_its_changes_and_counted(
    world: Path, tiny_clip: Path, cache: Path
) -> None:
    bench = open_bench(world, tiny_clip, cache, oracle=Oracle(long_descriptions=True))
    output = run(bench, "sdr-cir")
    assert output.counts["cut_texts"] == 8
    trace = output.traces[0]
    assert trace["cut"]
    said = dict(trace["said"])
    sent = said["cut: encoded with its changes in front"]
    assert sent == f"red. {said['target description']}" and sent.startswith("red. cat on the beach")
    only = run(bench, "description-only").rankings["0"]
    scores = bench.encode_texts([sent]).features @ bench.gallery_features.T
    assert only == [IDS[place] for place in rank_by(scores)[0].tolist()]
    # The vague query has no changes to put in front.
    assert "cut: encoded with its changes in front" not in dict(output.traces[7]["said"])


def test_unknown_words_are_listed_and_counted(bench: Workbench) -> None:
    output = run(bench, "sdr-cir")
    assert output.counts["unknown_words"] == 1
    assert output.traces[7]["unknown_words"] == ["better"]
    assert output.traces[0]["unknown_words"] == []


def test_settings_outside_the_known_range_become_notes(bench: Workbench) -> None:
    notes = run(bench, "sdr-cir", alpha=0.4, beta=0.9).notes
    assert any("alpha = 0.4 is over 0.3" in note for note in notes)
    assert any("beta = 0.9 is outside" in note for note in notes)
    with pytest.warns(SettingWarning):
        F_r = bench.reference_features
        debiased_scores(F_r, F_r, F_r, bench.gallery_features, 0.4, 0.4)


def test_hints_are_in_traces_and_counts(bench: Workbench) -> None:
    output = run(bench, "sdr-cir", alpha=0.9)
    marked = [trace for trace in output.traces if "hint" in trace]
    assert len(marked) == output.counts["too_close_to_reference"] + output.counts["look_lost"]
    assert all({"to_reference", "to_description", "top"} == set(trace["nearness"]) for trace in output.traces)
    close = [
        trace for trace in marked if trace["hint"].startswith("too close to the reference: try beta 0.45")
    ]
    assert close and output.counts["too_close_to_reference"] == len(close)
    if len(close) >= 2:
        assert any(note.startswith(f"hint for {len(close)} of 7 queries: too close") for note in output.notes)


# --- X^R ----------------------------------------------------------------------------------------------------


def algorithm_1(bench: Workbench, oracle: Oracle, k_prime: int, lam: float, kappa: float) -> list[list[int]]:
    """Algorithm 1 as one would write it from the paper, query by query, with the oracle's answers."""
    N = len(IDS)
    C_a = bench.encode_texts([caption_of(SCENE_OF[image]) for image in IDS]).features.double()
    I_a = bench.gallery_features.double()
    rankings = []
    for query in bench.queries:
        scene = SCENE_OF[int(query.reference)]
        vague = query.text == VAGUE
        colour = query.text.removeprefix("make it ")
        C_t, C_v = bench.encode_texts(
            [caption_of(scene if vague else (colour, *scene[1:])), f"{colour} {scene[1]}"]
        ).features.double()
        s_t = [float(C_t @ C_a[a] + C_t @ I_a[a]) for a in range(N)]
        s_v = [float(C_v @ C_a[a] + C_v @ I_a[a]) for a in range(N)]

        def ranks(scores: list[float]) -> list[int]:
            order = sorted(range(len(scores)), key=lambda a: (-scores[a], a))
            return [order.index(a) + 1 for a in range(len(scores))]

        rank_t, rank_v = ranks(s_t), ranks(s_v)
        fused = [1 / (kappa + rank_t[a]) + 1 / (kappa + rank_v[a]) for a in range(N)]
        order = sorted(range(N), key=lambda a: (-fused[a], a))
        head = order[:k_prime]
        asked = [(colour.split()[-1], True), (scene[0], False)]
        similarity = {a: lam * s_t[a] + (1 - lam) * s_v[a] for a in head}
        low, high = min(similarity.values()), max(similarity.values())
        final = {}
        for a in head:
            words = caption_of(SCENE_OF[IDS[a]]).split()
            right = sum((word in words) == answer for word, answer in asked)
            final[a] = 2 * right * (similarity[a] - low) / (high - low)
        head = sorted(head, key=lambda a: (-final[a], -similarity[a], a))
        rankings.append([IDS[a] for a in head + order[k_prime:]])
    return rankings


@pytest.mark.parametrize(("k_prime", "lam", "kappa"), [(6, 0.15, 60), (3, 0.9, 1), (24, 0.5, 10)])
def test_xr_is_algorithm_1(bench: Workbench, oracle: Oracle, k_prime: int, lam: float, kappa: float) -> None:
    output = run(bench, "xr", k_prime=k_prime, kappa=kappa, **{"lambda": lam})
    expected = algorithm_1(bench, oracle, k_prime, lam, kappa)
    assert [output.rankings[query.id] for query in bench.queries] == expected


def test_xr_fine_stage_only_moves_the_first_k_prime(bench: Workbench) -> None:
    coarse, full = run(bench, "xr", stages="coarse"), run(bench, "xr", k_prime=6)
    assert coarse.rankings != full.rankings
    for query in bench.queries:
        assert set(coarse.rankings[query.id][:6]) == set(full.rankings[query.id][:6])
        assert coarse.rankings[query.id][6:] == full.rankings[query.id][6:]


def test_xr_coarse_asks_and_verifies_nothing(bench: Workbench, oracle: Oracle) -> None:
    run(bench, "xr", stages="coarse")
    assert set(oracle.asked) == {"caption", "imagine_text", "imagine_vision"}
    # Each picture of the gallery once; the references are among them, and equal requests are asked once.
    assert oracle.asked.count("caption") == 24


def test_xr_without_vision_sees_pictures_through_captions_only(bench: Workbench, oracle: Oracle) -> None:
    output = run(bench, "xr", vision="off")
    assert set(oracle.asked) == {"caption", "imagine_text", "questions", "verify_caption"}
    trace = output.traces[0]
    assert "C_v" not in trace and "M_v" not in trace
    assert trace["questions"] == [{"statement": "it is red", "answer": True}]
    assert trace["verified"][0]["correct_vision"] is None and trace["verified"][0]["correct_text"] == 1
    C_a = bench.encode_texts([caption_of(scene) for scene in SCENE_OF.values()]).features
    C_t = bench.encode_texts([trace["C_t"]]).features
    order = rank_by(C_t @ C_a.T)[0].tolist()
    assert run(bench, "xr", vision="off", stages="coarse").rankings["0"] == [IDS[place] for place in order]


def test_xr_without_text_reads_no_caption(bench: Workbench, oracle: Oracle) -> None:
    output = run(bench, "xr", text="off")
    assert set(oracle.asked) == {"imagine_vision", "questions", "verify_picture"}
    trace = output.traces[0]
    assert "C_t" not in trace and "C_r" not in trace
    assert trace["verified"][0]["correct_text"] is None
    assert run(bench, "xr", text="off", **{"lambda": 0.9}).rankings == output.rankings


def test_xr_k_prime_beyond_the_gallery_is_all_of_it(bench: Workbench) -> None:
    all_of_it = run(bench, "xr", k_prime=24)
    beyond = run(bench, "xr", k_prime=1000)
    assert beyond.rankings == all_of_it.rankings
    assert beyond.notes[0] == "k' 1000 exceeds the gallery: all 24 were candidates"
    plain = run(bench, "xr", k_prime=1000, prune="off")
    assert plain.rankings == all_of_it.rankings
    assert plain.notes == ["k' 1000 exceeds the gallery: all 24 candidates were verified"]
    assert plain.counts["verified_candidates"] == 8 * 24


def test_xr_puts_a_verified_target_before_a_look_alike(bench: Workbench) -> None:
    output = run(bench, "xr", k_prime=24)
    head = [SCENE_OF[int(image)] for image in output.rankings["0"][:2]]
    assert head[0][0] == "red"
    verified = output.traces[0]["verified"][0]
    assert verified["correct_text"] == verified["correct_vision"] == 2
    assert verified["image"] == output.rankings["0"][0]
    assert ID_OF[head[0]] == verified["image"]


def test_one_half_is_read_as_false() -> None:
    assert xr_method.correct([0.5, 0.5000001, 0.4, 0.4], [False, True, True, False]) == 2
