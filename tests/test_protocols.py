"""The metrics of all three benchmarks against published reference values and an independent evaluator, and
what `cir evaluate` says to files of CIRR and FashionIQ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import IDS, cirr_name, fashion_name, write_cirr_world, write_fashion_world

from cir_utils.benchmarks import Benchmark, load_benchmark
from cir_utils.errors import InputError
from cir_utils.evaluation import evaluate_file, score_rankings
from cir_utils.metrics import circo_metrics, recall_per_query

Rankings = dict[str, list[str]]

# --- reference values -------------------------------------------------------------------------------------


def unit(path: Path) -> np.ndarray:
    features = np.load(path).astype(np.float32)
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def scores_of(folder: Path, name: str) -> np.ndarray:
    return unit(folder / f"{name}_queries.npy") @ unit(folder / f"{name}_gallery.npy").T


def head(scores: np.ndarray, count: int = 52) -> np.ndarray:
    """The places of the first ``count`` of every row, best first."""
    places = np.argpartition(-scores, count, axis=1)[:, :count]
    return np.take_along_axis(places, np.argsort(-np.take_along_axis(scores, places, 1), axis=1), 1)


@pytest.fixture(scope="module")
def cirr_file(real_annotations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rankings of CIRR val by fixed vectors, the reference among them: the first 52, then the members of
    the subset that are not there."""
    bench = load_benchmark("cirr", "val", real_annotations / "cirr", need_images=False)
    scores = scores_of(real_annotations / "derived_features", "cirr_val")
    place_of = {image: place for place, image in enumerate(bench.gallery)}
    rankings: Rankings = {}
    for number, (query, row) in enumerate(zip(bench.queries, head(scores).tolist(), strict=True)):
        members = sorted((place_of[image] for image in query.members), key=lambda p: -scores[number, p])
        rankings[query.id] = [bench.gallery[place] for place in dict.fromkeys([*row, *members])]
    path = tmp_path_factory.mktemp("cirr") / "rankings.json"
    path.write_text(json.dumps(rankings))
    return path


@pytest.mark.parametrize(
    ("options", "recall", "subset"),
    [
        ({}, (18.8472, 42.8127, 55.7283, 82.3248), (94.1641, 99.1868, 99.8804)),
        ({"reference": "kept"}, (17.5317, 41.9039, 54.9868, 82.0856), (62.0904, 95.2404, 99.2346)),
    ],
)
def test_reference_values_of_cirr_without_and_with_the_reference(
    real_annotations: Path, cirr_file: Path, options: dict, recall: tuple, subset: tuple
) -> None:
    result = evaluate_file(cirr_file, "cirr", "val", real_annotations / "cirr", **options)
    expected = {f"R@{k}": value for k, value in zip((1, 5, 10, 50), recall, strict=True)}
    expected |= {f"R_subset@{k}": value for k, value in zip((1, 2, 3), subset, strict=True)}
    assert result["metrics"].keys() == expected.keys()
    for key, value in expected.items():
        assert 100 * result["metrics"][key] == pytest.approx(value, abs=1e-4), key
    assert result["protocol"]["reference"] == options.get("reference", "removed")
    assert (result["protocol"]["queries"], result["protocol"]["gallery_size"]) == (4181, 2297)
    assert any("reference was taken out of" in note for note in result["notes"]) == (not options)


def fashion_rankings(folder: Path, bench: Benchmark, original: Benchmark) -> Rankings:
    """The first 52 of every query of FashionIQ val by fixed vectors, of the gallery of ``bench``."""
    rankings: Rankings = {}
    for category, part in bench.parts.items():
        place_of = {image: place for place, image in enumerate(original.categories[category])}
        scores = scores_of(folder, f"fiq_{category}")[:, [place_of[image] for image in part.gallery]]
        for query, row in zip(part.queries, head(scores).tolist(), strict=True):
            rankings[query.id] = [part.gallery[place] for place in row]
    return rankings


@pytest.mark.parametrize(
    ("options", "ks", "dress", "shirt", "toptee", "mean"),
    [
        (
            {},
            (1, 5, 10, 50),
            (20.0793, 45.0174, 57.2137, 82.3996),
            (17.3209, 38.4200, 49.3621, 76.3494),
            (16.9811, 40.4895, 51.5043, 77.5625),
            (None, None, 52.6934, 78.7705),
        ),
        (
            {"gallery": "union"},
            (1, 5, 10, 50),
            (23.7481, 50.4214, 63.0144, 87.0600),
            (23.9450, 48.2826, 60.9912, 85.2306),
            (23.1005, 49.3116, 60.2754, 84.5997),
            (None, None, 61.4270, 85.6301),
        ),
        (
            {"reference": "removed"},
            (10, 50),
            (57.4120, 82.4988),
            (49.5584, 76.5456),
            (51.6063, 77.6135),
            (None, None),
        ),
    ],
)
def test_reference_values_of_fashioniq_in_every_protocol(
    real_annotations: Path, tmp_path: Path, options: dict, ks: tuple, dress: tuple, shirt: tuple,
    toptee: tuple, mean: tuple,
) -> None:  # fmt: skip
    root = real_annotations / "fashioniq"
    original = load_benchmark("fashioniq", "val", root, need_images=False)
    bench = load_benchmark("fashioniq", "val", root, need_images=False, **options)
    path = tmp_path / "rankings.json"
    path.write_text(json.dumps(fashion_rankings(real_annotations / "derived_features", bench, original)))
    result = evaluate_file(path, "fashioniq", "val", root, **options)
    assert len(result["metrics"]) == 16
    for name, values in (("dress", dress), ("shirt", shirt), ("toptee", toptee), ("mean", mean)):
        for k, value in zip(ks, values, strict=True):
            if value is not None:
                assert 100 * result["metrics"][f"{name}/R@{k}"] == pytest.approx(value, abs=1e-4), (name, k)
    assert result["protocol"]["gallery"] == options.get("gallery", "original")
    assert result["protocol"]["reference"] == options.get("reference", "kept")


@pytest.mark.parametrize("metric", ["recall", "recall_subset"])
def test_a_server_file_of_cirr_val_is_scored(real_annotations: Path, tmp_path: Path, metric: str) -> None:
    root = real_annotations / "cirr"
    bench = load_benchmark("cirr", "val", root, need_images=False)
    table: dict[str, Any] = {"version": "rc2", "metric": metric}
    for number, query in enumerate(bench.queries):
        others = [image for image in query.members if image not in (query.reference, query.target)]
        if metric == "recall":
            others = [image for image in bench.gallery[:55] if image not in (query.reference, query.target)]
            others = others[:49]
        place = number % 4
        table[query.id] = [*others[:place], query.target, *others[place:]][: 50 if metric == "recall" else 3]
    path = tmp_path / "file.json"
    path.write_text(json.dumps(table))
    found = evaluate_file(path, "cirr", "val", root)["metrics"]
    share = [np.mean(np.arange(len(bench.queries)) % 4 < k) for k in (1, 2, 3)]
    if metric == "recall":
        assert found == {"R@1": share[0], "R@5": 1, "R@10": 1, "R@50": 1}
    else:
        assert found == {f"R_subset@{k}": value for k, value in zip((1, 2, 3), share, strict=True)}


@pytest.mark.parametrize("name", ["recall", "recall_subset"])
def test_a_split_without_public_answers_names_the_submission_writer(
    real_annotations: Path, name: str
) -> None:
    root = real_annotations / "cirr"
    with pytest.raises(InputError, match="answers of cirr test1 are not public.*`cir submit RUN --to cirr`"):
        evaluate_file(root / "demo_files" / f"test1_pred_ranks_{name}.json", "cirr", "test1", root)


# --- an independent evaluator -----------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    rows=st.lists(
        st.tuples(
            st.permutations(range(30)),
            st.sets(st.integers(0, 29), min_size=1, max_size=14),
            st.integers(1, 30),
        ),
        min_size=1,
        max_size=6,
    ),
    k=st.integers(1, 30),
)
def test_trec_eval_agrees_on_recall_and_average_precision(
    rows: list[tuple[list[int], set[int], int]], k: int
) -> None:
    rankings = {f"q{n}": list(ranking)[:length] for n, (ranking, _, length) in enumerate(rows)}
    targets = {f"q{n}": relevant for n, (_, relevant, _) in enumerate(rows)}
    target = {query: min(relevant) for query, relevant in targets.items()}

    def official(relevant: dict[str, set[int]], measure: str) -> dict[str, float]:
        qrels = {query: {f"d{image}": 1 for image in images} for query, images in relevant.items()}
        run = {
            query: {f"d{image}": float(100 - rank) for rank, image in enumerate(ranking)}
            for query, ranking in rankings.items()
        }
        found = pytrec_eval.RelevanceEvaluator(qrels, {f"{measure}.{k}"}).evaluate(run)
        return {query: values[f"{measure}_{k}"] for query, values in found.items()}

    # trec_eval divides by the number of ground truths, CIRCO by min(that, k).
    precise = official(targets, "map_cut")
    expected = [precise[q] * len(images) / min(len(images), k) for q, images in targets.items()]
    assert circo_metrics(rankings, targets, None, (k,))[f"mAP@{k}"] == pytest.approx(
        float(np.mean(expected)), abs=1e-12
    )
    recalled = official({query: {image} for query, image in target.items()}, "recall")
    assert recall_per_query(rankings, target, (k,))[f"R@{k}"].tolist() == [recalled[q] for q in target]


# --- files that must be refused ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds")
    write_cirr_world(folder / "cirr")
    write_fashion_world(folder / "fashioniq")
    return folder


def full(bench: Benchmark) -> Rankings:
    return {query.id: list(part.gallery) for part in bench.parts.values() for query in part.queries}


def evaluate(worlds: Path, name: str, table: object, tmp_path: Path, **options: object) -> dict[str, Any]:
    path = tmp_path / "rankings.json"
    path.write_text(json.dumps(table))
    return evaluate_file(path, f"mini-{name}", "val", worlds / name, **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("shirt/2"), r"1 of 12 queries are missing \(shirt/2\)"),
        (lambda r: r.update({"shirt/4": r["shirt/0"]}), r"1 queries do not belong to this split \(shirt/4\)"),
        (lambda r: r.update({"0": r.pop("dress/0")}), r"queries are missing \(dress/0\)"),
        (
            lambda r: r["dress/0"].__setitem__(0, fashion_name(max(IDS))),
            r"query dress/0: image .* is not in the gallery",  # but in that of another category
        ),
        (lambda r: r["dress/0"].__setitem__(0, r["dress/0"][1]), r"query dress/0: image .* is listed twice"),
        (lambda r: r["dress/0"].__setitem__(0, 7), r"image id 7 has the wrong type; write image names"),
        (lambda r: r["dress/0"].pop(), r"query dress/0: (11 images are listed|its reference)"),
        (lambda r: r.update({"dress/0": "B0"}), r"query dress/0: expected a list"),
    ],
)
def test_rankings_of_fashioniq_that_are_refused(
    worlds: Path, tmp_path: Path, change: Callable[[Rankings], object], message: str
) -> None:
    rankings = full(load_benchmark("mini-fashioniq", "val", worlds / "fashioniq"))
    assert evaluate(worlds, "fashioniq", rankings, tmp_path)["metrics"]["mean/R@50"] == 1
    change(rankings)
    with pytest.raises(InputError, match=message):
        evaluate(worlds, "fashioniq", rankings, tmp_path)
    with pytest.raises(InputError, match="expected a JSON object"):
        evaluate(worlds, "fashioniq", [1], tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(version="rc1"), r"version is 'rc1'; a server file of CIRR says 'rc2'"),
        (lambda r: r.update(metric="R@1", version="rc2"), r"metric is 'R@1'; .* 'recall' or 'recall_subset'"),
        (lambda r: r.update(metric="recall"), r"version is None"),
        (lambda r: r.pop("16"), r"1 of 8 queries are missing \(16\)"),
        (lambda r: r["16"].__setitem__(0, f"{r['16'][0]}.png"), r"is not in the gallery"),
        (lambda r: r["16"].__setitem__(0, r["16"][1]), r"is listed twice"),
        (lambda r: r["16"].pop(0), r"query 16: 22 images are listed \(without its reference\) where 23"),
    ],
)
def test_rankings_of_cirr_that_are_refused(
    worlds: Path, tmp_path: Path, change: Callable[[Rankings], object], message: str
) -> None:
    rankings = full(load_benchmark("mini-cirr", "val", worlds / "cirr"))
    assert evaluate(worlds, "cirr", rankings, tmp_path)["metrics"]["R@50"] == 1
    change(rankings)
    with pytest.raises(InputError, match=message):
        evaluate(worlds, "cirr", rankings, tmp_path)


def test_a_subset_file_holds_members_of_the_query(worlds: Path, tmp_path: Path) -> None:
    bench = load_benchmark("mini-cirr", "val", worlds / "cirr")
    table: dict[str, Any] = {"version": "rc2", "metric": "recall_subset"}
    table |= {query.id: list(bench.subset(query)) for query in bench.queries}
    found = evaluate(worlds, "cirr", table, tmp_path)["metrics"]
    assert list(found) == ["R_subset@1", "R_subset@2", "R_subset@3"]
    first = [bench.subset(query).index(query.target) for query in bench.queries]
    assert found["R_subset@2"] == np.mean([place < 2 for place in first])
    outside = next(image for image in bench.gallery if image not in bench.queries[2].members)
    with pytest.raises(InputError, match=f"query 27: image '{outside}' is not in the gallery"):
        evaluate(worlds, "cirr", table | {"27": [outside, *table["27"][:2]]}, tmp_path)
    with pytest.raises(InputError, match="query 27: 2 images are listed"):
        evaluate(worlds, "cirr", table | {"27": table["27"][:2]}, tmp_path)


def test_figures_with_the_reference_need_rankings_that_hold_it(worlds: Path, tmp_path: Path) -> None:
    for name in ("cirr", "fashioniq"):
        bench = load_benchmark(f"mini-{name}", "val", worlds / name)
        references = {query.id: query.reference for query in bench.queries}
        whole = full(bench)
        without = {q: [image for image in row if image != references[q]] for q, row in whole.items()}
        evaluate(worlds, name, whole, tmp_path, reference="kept")
        removed = evaluate(worlds, name, without, tmp_path, reference="removed")
        assert removed["metrics"] == evaluate(worlds, name, whole, tmp_path, reference="removed")["metrics"]
        assert removed["protocol"]["reference"] == "removed"
        with pytest.raises(InputError, match="its reference .* is not ranked, so it was removed before"):
            evaluate(worlds, name, without, tmp_path, reference="kept")


def test_lists_that_are_cut_give_no_subset_figures(tmp_path: Path) -> None:
    root = write_cirr_world(tmp_path / "cirr")
    names = [f"dev-9{number:03d}-0-img0" for number in range(60)]
    for split in ("val", "test"):
        path = root / "image_splits" / f"split.rc2.{split}.json"
        places = json.loads(path.read_text()) | {name: f"./dev/{name}.png" for name in names}
        path.write_text(json.dumps(places))
    bench = load_benchmark("mini-cirr", "val", root, need_images=False)
    rankings = {query.id: [*names, *bench.gallery[:24]] for query in bench.queries}
    (tmp_path / "r.json").write_text(json.dumps(rankings))
    assert "R_subset@1" in evaluate_file(tmp_path / "r.json", "mini-cirr", "val", root)["metrics"]
    (tmp_path / "r.json").write_text(json.dumps({query: row[:50] for query, row in rankings.items()}))
    found = evaluate_file(tmp_path / "r.json", "mini-cirr", "val", root)
    assert list(found["metrics"]) == ["R@1", "R@5", "R@10", "R@50"]
    assert found["notes"] == ["lists do not hold all members of the subsets: no R_subset@k"]
    short = {query: row[:49] for query, row in rankings.items()}
    (tmp_path / "r.json").write_text(json.dumps(short))
    with pytest.raises(InputError, match="query 5: 49 images are listed where 50 or more are needed"):
        evaluate_file(tmp_path / "r.json", "mini-cirr", "val", root)


def test_names_of_digits_are_names(worlds: Path, tmp_path: Path) -> None:
    root = tmp_path / "fiq"
    write_fashion_world(root)
    for path in [*root.glob("captions/*.json"), *root.glob("image_splits/*.json")]:
        path.write_text(path.read_text().replace(fashion_name(100), "0012").replace(fashion_name(107), "12"))
    bench = load_benchmark("mini-fashioniq", "val", root, need_images=False)
    assert {"12", "0012"} <= set(bench.gallery)
    (tmp_path / "r.json").write_text(json.dumps(full(bench)))
    found = evaluate_file(tmp_path / "r.json", "mini-fashioniq", "val", root)
    assert found["metrics"] == score_rankings(bench, full(bench))
    assert cirr_name(12) == "dev-12-0-img0"
