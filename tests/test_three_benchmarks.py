"""Runs on CIRR and FashionIQ: each gallery by itself, the reference out before anything is ranked, subsets as
galleries of their own; measured, kept, compared and tuned."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_world import (
    IDS,
    Oracle,
    cirr_name,
    fashion_name,
    open_bench,
    write_cirr_world,
    write_fashion_world,
    write_world,
)
from torch.nn.functional import normalize

from cir_utils import tuning
from cir_utils.errors import InputError
from cir_utils.evaluation import evaluate_file
from cir_utils.experiments import METHODS, compare_experiments, run_experiments
from cir_utils.methods import load_method, resolve_settings, xr
from cir_utils.metrics import category_means
from cir_utils.runs import Run, load_run, measure, run_method
from cir_utils.scoring import rerank, rrf
from cir_utils.tables import comparison, protocol_line
from cir_utils.workbench import Workbench, annotation_hashes

NAMES = [experiment.method for experiment in METHODS]
FASHION_METRICS = [f"{part}/R@{k}" for part in ("dress", "shirt", "toptee", "mean") for k in (1, 5, 10, 50)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    write_cirr_world(folder / "cirr", hidden=("test",))
    write_fashion_world(folder / "fashioniq")
    write_world(folder / "circo")
    return folder


@pytest.fixture(scope="module")
def cirr(place: Path, tiny_clip: Path) -> Workbench:
    return open_bench(place / "cirr", tiny_clip, place / "cache", benchmark="mini-cirr")


@pytest.fixture(scope="module")
def fashion(place: Path, tiny_clip: Path) -> Workbench:
    return open_bench(place / "fashioniq", tiny_clip, place / "cache", benchmark="mini-fashioniq")


def run(bench: Workbench, method: str, **overrides: object) -> Run:
    return run_method(bench, method, resolve_settings(method, bench.settings, overrides))


# --- CIRR -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", NAMES)
def test_no_ranking_of_cirr_holds_its_reference(cirr: Workbench, method: str) -> None:
    done = run(cirr, method)
    everything = {cirr_name(image) for image in IDS}
    for query in cirr.queries:
        assert set(done.rankings[query.id]) == everything - {query.reference}
        assert len(done.rankings[query.id]) == 23
        assert set(done.subsets[query.id]) == set(query.members) - {query.reference}
        assert len(done.subsets[query.id]) == 5
    assert list(done.metrics) == ["R@1", "R@5", "R@10", "R@50", "R_subset@1", "R_subset@2", "R_subset@3"]
    assert done.metrics["R@50"] == 1 and done.record["protocol"]["reference"] == "removed"
    assert done.traces[0]["subset"] == done.subsets[cirr.queries[0].id]


@pytest.mark.parametrize("method", [name for name in NAMES if name not in ("xr", "imagescope")])
def test_one_score_ranks_the_subset_as_it_ranks_the_gallery(cirr: Workbench, method: str) -> None:
    done = run(cirr, method)
    for query in cirr.queries:
        members = set(query.members)
        assert done.subsets[query.id] == [image for image in done.rankings[query.id] if image in members]


def test_a_kept_reference_is_ranked_and_said(place: Path, tiny_clip: Path) -> None:
    bench = open_bench(
        place / "cirr", tiny_clip, place / "cache", benchmark="mini-cirr", options={"reference": "kept"}
    )
    done = run(bench, "image-only")
    for query in bench.queries:
        assert done.rankings[query.id][0] == done.subsets[query.id][0] == query.reference
        assert len(done.rankings[query.id]) == 24 and len(done.subsets[query.id]) == 6
    assert done.metrics["R@1"] == 0 and "reference kept" in protocol_line(done.record["protocol"])


def test_the_reference_leaves_circo_when_asked(place: Path, tiny_clip: Path) -> None:
    bench = open_bench(place / "circo", tiny_clip, place / "cache", options={"reference": "removed"})
    done = run(bench, "image-only")
    assert all(query.reference not in done.rankings[query.id] for query in bench.queries)
    assert all(len(ranking) == 23 for ranking in done.rankings.values())


@pytest.mark.parametrize("k_prime", [3, 23, 1000])
def test_xr_fuses_and_verifies_as_if_the_reference_did_not_exist(cirr: Workbench, k_prime: int) -> None:
    done = run(cirr, "xr", k_prime=k_prime)
    check_xr(cirr, done.rankings, cirr.places.tolist(), min(k_prime, 23))


def test_xr_ranks_a_subset_as_a_gallery_of_five(cirr: Workbench) -> None:
    done = run(cirr, "xr", k_prime=3)
    assert cirr.members is not None
    check_xr(cirr, done.subsets, cirr.members.tolist(), 5)
    coarse = run(cirr, "xr", stages="coarse")
    sides = xr.Sides(text=True, vision=True)
    S_t, S_v = xr.similarities(cirr, xr.imagine(cirr, sides), xr.gallery_captions(cirr))
    for row, (query, members) in enumerate(zip(cirr.queries, cirr.members.tolist(), strict=True)):
        fused = rrf(S_t[row : row + 1, members], S_v[row : row + 1, members], 60)[0].tolist()
        order = sorted(range(5), key=lambda place: (-fused[place], place))
        assert coarse.subsets[query.id] == [cirr.benchmark.gallery[members[place]] for place in order]


def check_xr(bench: Workbench, rankings: dict[str, list], candidates: list[list[int]], k_prime: int) -> None:
    """``rankings`` are those of Algorithm 1 on a gallery that holds the ``candidates`` alone, computed here
    query by query on cut-down score tables."""
    sides = xr.Sides(text=True, vision=True)
    imagined = xr.imagine(bench, sides)
    captions = xr.gallery_captions(bench)
    S_t, S_v = xr.similarities(bench, imagined, captions)
    asked = xr.ask(bench, imagined, sides)
    for row, query in enumerate(bench.queries):
        places = candidates[row]
        t, v = S_t[row : row + 1, places], S_v[row : row + 1, places]
        fused = rrf(t, v, bench.settings["kappa"])[0]
        order = sorted(range(len(places)), key=lambda place: (-float(fused[place]), place))
        head = torch.tensor([order[:k_prime]])
        one = xr.verify(
            bench,
            xr.Questions([asked.asked[row]]),
            [[places[place] for place in order[:k_prime]]],
            captions,
            sides,
        )
        fine = rerank(
            torch.tensor(one.text),
            torch.tensor(one.vision),
            t.gather(1, head),
            v.gather(1, head),
            bench.settings["lambda"],
            questions=torch.tensor([asked.counts[row]]),
            positions=head,
        )
        final = [order[place] for place in fine.order[0].tolist()] + order[k_prime:]
        assert rankings[query.id] == [bench.benchmark.gallery[places[place]] for place in final], query.id


def test_the_subset_costs_no_more_than_its_own_answers(place: Path, tiny_clip: Path, tmp_path: Path) -> None:
    oracle = Oracle()
    bench = open_bench(place / "cirr", tiny_clip, tmp_path, benchmark="mini-cirr", oracle=oracle)
    done = run(bench, "xr", k_prime=23, prune="off")  # the five are among the 23
    assert done.record["counts"]["verified_candidates"] == 8 * 23
    # Captions of the gallery and the references, two imaginations and the questions: once each, not again
    # for the subset.
    assert done.record["cost"]["mllm_calls"] == 24 + 8 + 16 + 8 + 8 * 23 * 2 * 2
    assert run(bench, "xr", k_prime=1).record["counts"]["verified_candidates"] <= 8 * 6


def test_a_run_of_cirr_is_kept_with_its_subsets(cirr: Workbench, tmp_path: Path) -> None:
    done = run(cirr, "xr")
    back = load_run(done.save(tmp_path / "one"), whole=True)
    assert back.subsets == done.subsets and back.rankings == done.rankings and back.metrics == done.metrics
    assert list(back.record["inputs"]["annotations"]) == ["cap.rc2.val.json", "split.rc2.val.json"]
    foreign = [*done.subsets["5"][:-1], cirr.queries[0].reference]
    with pytest.raises(InputError, match="query 5: .*is not in the gallery"):
        measure(cirr.benchmark, cirr.queries, done.rankings, done.subsets | {"5": foreign})
    with_reference = dict(done.rankings)
    with_reference["5"] = [*done.rankings["5"][:-1], cirr.queries[0].reference]
    with pytest.raises(InputError, match="query 5: image .* is not in the gallery"):
        measure(cirr.benchmark, cirr.queries, with_reference, done.subsets)


def test_hidden_answers_of_cirr_give_rankings_and_no_metrics(place: Path, tiny_clip: Path) -> None:
    from cir_utils.benchmarks import BENCHMARKS, Entry

    BENCHMARKS["hidden-cirr"] = Entry("cirr", ("test",), "", ("test",), "mend")
    try:
        bench = open_bench(
            place / "cirr", tiny_clip, place / "cache", "test", Oracle(), benchmark="hidden-cirr"
        )
        done = run(bench, "text-only")
        assert done.metrics == {} and len(done.rankings) == len(done.subsets) == 8
        assert any("not public: rankings, but no metrics" in note for note in done.record["notes"])
    finally:
        del BENCHMARKS["hidden-cirr"]


# --- FashionIQ --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", NAMES)
def test_every_category_ranks_its_own_gallery(fashion: Workbench, method: str) -> None:
    done = run(fashion, method)
    for query in fashion.queries:
        assert sorted(done.rankings[query.id]) == sorted(fashion.benchmark.categories[query.category])
    assert list(done.metrics) == FASHION_METRICS and done.subsets == {}
    assert [trace["query"] for trace in done.traces] == [query.id for query in fashion.queries]
    assert done.categories == tuple(["dress"] * 4 + ["shirt"] * 4 + ["toptee"] * 4)
    for k in (1, 5):
        found = [done.metrics[f"{part}/R@{k}"] for part in ("dress", "shirt", "toptee")]
        assert done.metrics[f"mean/R@{k}"] == pytest.approx(sum(found) / 3, abs=1e-15)
        assert done.metrics[f"dress/R@{k}"] == done.per_query[f"R@{k}"][:4].mean()


def test_xr_fuses_within_the_category(fashion: Workbench) -> None:
    done = run(fashion, "xr", k_prime=6)
    for part in fashion.parts.values():
        check_xr(part, done.rankings, part.places.tolist(), 6)


def test_categories_share_models_features_and_accounts(place: Path, tiny_clip: Path, tmp_path: Path) -> None:
    oracle = Oracle()
    bench = open_bench(place / "fashioniq", tiny_clip, tmp_path, benchmark="mini-fashioniq", oracle=oracle)
    done = run(bench, "xr", k_prime=4, prune="off")
    assert oracle.asked.count("caption") == 24, "a picture of two categories is captioned once"
    # 3 x 12 captions of galleries, 12 of references, 24 imaginations, 12 for questions, and 4 candidates x 2
    # statements x 2 sides a query.
    assert done.record["cost"]["mllm_calls"] == 36 + 12 + 24 + 12 + 12 * 4 * 2 * 2
    assert done.record["counts"]["verified_candidates"] == 12 * 4
    assert sum("24 images" in line or "images: 24" in line for line in bench.caches) <= 1
    part = bench.parts["toptee"]
    assert part.encoder is bench.encoder and part.agents is bench.agents
    places = [bench.place_of[image] for image in part.benchmark.gallery]
    assert torch.equal(part.gallery_features, bench.gallery_features[places])


def test_a_method_is_not_run_over_several_galleries_at_once(fashion: Workbench) -> None:
    with pytest.raises(ValueError, match="bench.parts"):
        load_method("text-only")(fashion, {})


def test_a_limit_takes_queries_of_every_category(fashion: Workbench, place: Path, tiny_clip: Path) -> None:
    def limited(limit: int) -> Workbench:
        return open_bench(
            place / "fashioniq", tiny_clip, place / "cache", benchmark="mini-fashioniq", limit=limit
        )

    chosen = [query.id for query in limited(5).queries]
    assert chosen == ["dress/0", "dress/1", "shirt/0", "shirt/1", "toptee/0"]
    done = run(limited(5), "text-only")
    assert list(done.metrics) == FASHION_METRICS and done.record["protocol"]["queries"] == 5
    with pytest.raises(InputError, match="limit 2 is not valid: give a number of queries, 3 or more"):
        limited(2)


def test_both_orders_average_the_features_of_the_text(
    place: Path, tiny_clip: Path, fashion: Workbench
) -> None:
    bench = open_bench(
        place / "fashioniq",
        tiny_clip,
        place / "cache",
        benchmark="mini-fashioniq",
        options={"both_orders": True},
    )
    part = bench.parts["dress"]
    texts = [query.text for query in part.queries]
    assert texts[0] == "make it red and red on the beach"
    one = bench.encode_texts(texts).features
    others = ["red on the beach and make it red", *(query.other_text for query in part.queries[1:])]
    other = bench.encode_texts(others)
    assert torch.allclose(part.modification_features, normalize((one + other.features) / 2, dim=1), atol=1e-6)
    assert not torch.allclose(part.modification_features, one, atol=1e-3)
    done = run(bench, "text-only")
    assert "both orders" in protocol_line(done.record["protocol"])
    done.save(place / "both")
    with pytest.raises(InputError, match="differ in protocol .*caption_rule"):
        comparison([load_run(place / "both"), run(fashion, "text-only")])


def test_runs_of_the_two_galleries_are_not_put_into_one_table(
    fashion: Workbench, place: Path, tiny_clip: Path
) -> None:
    union = open_bench(
        place / "fashioniq",
        tiny_clip,
        place / "cache",
        benchmark="mini-fashioniq",
        options={"gallery": "union"},
    )
    small = run(union, "text-only")
    assert all(
        set(small.rankings[query.id]) == set(union.benchmark.categories[query.category])
        for query in union.queries
    )
    assert "gallery union: dress" in protocol_line(small.record["protocol"])
    with pytest.raises(InputError, match="differ in protocol .*gallery"):
        comparison([run(fashion, "text-only"), small])


def test_metrics_of_a_run_are_those_of_evaluate(fashion: Workbench, cirr: Workbench, tmp_path: Path) -> None:
    for bench, name in ((fashion, "mini-fashioniq"), (cirr, "mini-cirr")):
        done = run(bench, "image+text")
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(dict(done.rankings)))
        found = evaluate_file(path, name, "val", bench.benchmark.root)
        assert found["metrics"] == done.metrics
        assert found["protocol"] == done.record["protocol"]


def test_a_comparison_of_categories_has_the_mean_first(fashion: Workbench, tmp_path: Path) -> None:
    done = run_experiments(fashion, tmp_path / "runs", METHODS[1:4], whole=False)
    back = [load_run(tmp_path / "runs" / name) for name in ("02-image-only", "03-text-only", "04-image-text")]
    assert [one.metrics for one in back] == [one.metrics for one in done]
    table = compare_experiments(back)
    assert table.metric == "mean/R@10"
    shown = [name for name in table.results.columns if "/" in name and not name.endswith(("low", "high"))]
    assert shown[:4] == ["mean/R@10", "mean/R@50", "dress/R@10", "dress/R@50"]
    for name in ("mean/R@1", "shirt/R@1"):
        one = comparison(back, name)
        assert one.results[name].tolist() == pytest.approx([run.metrics[name] for run in back], abs=1e-15)
        change = back[1].metrics[name] - back[0].metrics[name]
        assert one.paired["difference"][0] == pytest.approx(change, abs=1e-12)
        assert int(one.paired[["wins", "ties", "losses"]].loc[0].sum()) == (12 if "mean" in name else 4)
    with pytest.raises(InputError, match="has no metric 'R@10'; choose one of dress/R@1"):
        comparison(back, "R@10")


def test_means_of_categories_do_not_weigh_by_size() -> None:
    found = category_means({"R@10": np.array([1.0, 0.0, 0.0, 1.0])}, ["a", "a", "a", "b"])
    assert found == {"a/R@10": pytest.approx(1 / 3), "b/R@10": 1.0, "mean/R@10": pytest.approx(2 / 3)}
    with pytest.raises(InputError, match="no query"):
        category_means({"R@10": np.array([])}, [])


def test_annotations_of_every_file_are_in_the_record(fashion: Workbench) -> None:
    hashes = annotation_hashes(fashion.benchmark)
    names = [f"{category}.val.json" for category in ("dress", "shirt", "toptee")]
    assert sorted(hashes) == [f"{kind}.{name}" for kind in ("cap", "split") for name in names]
    assert fashion.benchmark.image_path(fashion_name(IDS[0])).is_file()


# --- tuning -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "metric"),
    [("cirr", "R@1"), ("cirr", "R_subset@1"), ("fashion", "mean/R@1"), ("fashion", "shirt/R@1")],
)
@pytest.mark.filterwarnings("ignore::cir_utils.scoring.SettingWarning")
def test_grids_equal_runs(which: str, metric: str, cirr: Workbench, fashion: Workbench) -> None:
    bench = cirr if which == "cirr" else fashion
    grid = tuning.sdr_grid(bench, metric, (0.0, 0.5), (0.0, 1.0))
    fine = tuning.xr_grid(bench, metric, (2, 9), (0.0, 0.8), (1, 60))
    for row, alpha in enumerate((0.0, 0.5)):
        for column, beta in enumerate((0.0, 1.0)):
            found = run(bench, "sdr-cir", alpha=alpha, beta=beta).metrics[metric]
            assert float(grid[row, column]) == pytest.approx(found, abs=1e-12)
    for a, k_prime in enumerate((2, 9)):
        for b, lam in enumerate((0.0, 0.8)):
            for c, kappa in enumerate((1, 60)):
                found = run(bench, "xr", k_prime=k_prime, kappa=kappa, **{"lambda": lam}).metrics[metric]
                assert float(fine[a, b, c]) == pytest.approx(found, abs=1e-12)


def test_tuning_maximises_the_headline_of_each_benchmark(cirr: Workbench, fashion: Workbench) -> None:
    for bench, metric in ((cirr, "R@1"), (fashion, "mean/R@10")):
        tuned = tuning.tune(bench)
        assert tuned.metric == metric and tuned.best["sdr-cir"] >= tuned.usual["sdr-cir"]
        assert tuned.queries == len(bench.queries)
    with pytest.raises(InputError, match="choose one such as mean/R@10, dress/R@10"):
        tuning.sdr_grid(fashion, "R@10")
    with pytest.raises(InputError, match="choose mAP@k or R@k or R_subset@k"):
        tuning.Judge(cirr, "hits")
