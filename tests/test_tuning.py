"""Tuning: the grids equal real runs, the rule for ties, and no look at test."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from small_world import IDS, Oracle, open_bench, write_world

from cir_utils import tuning
from cir_utils.errors import InputError
from cir_utils.files import read_json
from cir_utils.methods import (
    METHODS,
    PROFILE_METHODS,
    SETTINGS,
    Method,
    Setting,
    load_scorer,
    resolve_settings,
    tunable,
)
from cir_utils.metrics import circo_per_query
from cir_utils.profiles import SETTING_NAMES, read_mini_settings
from cir_utils.runs import run_method
from cir_utils.scoring import exact_scores, first_places, rank_by
from cir_utils.workbench import Workbench


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture(scope="module")
def bench(
    world: Path, tmp_path_factory: pytest.TempPathFactory, tiny_clip: Path, oracle: Oracle
) -> Workbench:
    return open_bench(world, tiny_clip, tmp_path_factory.mktemp("cache"), oracle=oracle)


@pytest.mark.parametrize("metric", ["mAP@5", "mAP@10", "R@3"])
def test_the_judge_gives_the_benchmarks_metric(bench: Workbench, metric: str) -> None:
    order = torch.stack([torch.randperm(24, generator=torch.Generator().manual_seed(q)) for q in range(8)])
    rankings = {
        query.id: [IDS[place] for place in row.tolist()]
        for query, row in zip(bench.queries, order, strict=True)
    }
    targets = {query.id: query.targets for query in bench.queries}
    target = {query.id: query.target for query in bench.queries if query.target is not None}
    expected = circo_per_query(rankings, targets, target, (3, 5, 10))[metric]
    assert tuning.Judge(bench, metric).per_query(order).tolist() == pytest.approx(
        expected.tolist(), abs=1e-15
    )


@pytest.mark.parametrize("metric", ["mAP", "mAP@0", "F1@5", "mAP@x", ""])
def test_an_unknown_metric_is_refused(bench: Workbench, metric: str) -> None:
    with pytest.raises(InputError, match="choose mAP@k or R@k"):
        tuning.Judge(bench, metric)


@pytest.mark.filterwarnings("ignore::cir_utils.scoring.SettingWarning")
@pytest.mark.parametrize("description", ["selective", "plain"])
def test_the_grid_of_sdr_cir_equals_runs(bench: Workbench, description: str) -> None:
    alphas, betas = (0.0, 0.15, 0.5), (0.0, 0.35, 1.0)
    grid = tuning.sdr_grid(bench, "mAP@5", alphas, betas, description)
    for row, alpha in enumerate(alphas):
        for column, beta in enumerate(betas):
            overrides = {"alpha": alpha, "beta": beta, "description": description}
            run = run_method(bench, "sdr-cir", resolve_settings("sdr-cir", bench.settings, overrides))
            assert float(grid[row, column]) == pytest.approx(run.metrics["mAP@5"], abs=1e-12)


def test_the_grid_is_the_mean_of_its_queries(bench: Workbench) -> None:
    alphas, betas = (0.0, 0.2), (0.0, 0.4)
    each = tuning.sdr_grid_per_query(bench, "mAP@5", alphas, betas)
    run = run_method(
        bench, "sdr-cir", resolve_settings("sdr-cir", bench.settings, {"alpha": 0.2, "beta": 0.4})
    )
    assert each[1, 1].tolist() == pytest.approx(run.per_query["mAP@5"].tolist(), abs=1e-12)
    assert torch.equal(tuning.sdr_grid(bench, "mAP@5", alphas, betas), each.mean(dim=2))


def test_the_corners_of_the_weights_are_the_methods(bench: Workbench) -> None:
    weights = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0.5, 0.5)]
    values = tuning.weight_grid(bench, "mAP@5", weights)
    names = ("description-only", "image-only", "text-only", "image+text")
    measured = [
        run_method(bench, name, resolve_settings(name, bench.settings)).metrics["mAP@5"] for name in names
    ]
    assert values.tolist() == pytest.approx(measured, abs=1e-12)
    assert len(set(measured)) > 1


def test_choosing_on_few_queries_boasts() -> None:
    """Setting 0 is right on the first half of the queries, setting 1 on the second: whoever chooses on one
    query boasts with 1, and what holds on the other three is 1/3."""
    values = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    boast, holds = tuning.chosen_on_few(values, 1, draws=20)
    assert boast == 1 and holds == pytest.approx(1 / 3)
    assert tuning.chosen_on_few(torch.ones(3, 5), 2) == (1, 1), "equal settings, nothing to boast of"
    with pytest.raises(InputError, match="give 1 to 3"):
        tuning.chosen_on_few(values, 4)


def test_the_grid_of_xr_equals_runs(bench: Workbench) -> None:
    k_primes, lambdas, kappas = (3, 10, 1000), (0.0, 0.6), (1, 60)
    grid = tuning.xr_grid(bench, "mAP@5", k_primes, lambdas, kappas)
    for a, k_prime in enumerate(k_primes):
        for b, lam in enumerate(lambdas):
            for c, kappa in enumerate(kappas):
                overrides = {"k_prime": k_prime, "lambda": lam, "kappa": kappa}
                run = run_method(bench, "xr", resolve_settings("xr", bench.settings, overrides))
                assert float(grid[a, b, c]) == pytest.approx(run.metrics["mAP@5"], abs=1e-12)


def test_the_smallest_of_equal_settings_is_chosen() -> None:
    points = tuning.grid_points({"alpha": (0.0, 0.1), "beta": (0.0, 0.5, 1.0)})
    assert points[:2] == [{"alpha": 0.0, "beta": 0.0}, {"alpha": 0.0, "beta": 0.5}] and len(points) == 6
    values = np.array([0.1, 0.3, 0.3, 0.3, 0.2, 0.1])
    assert points[tuning.best_of(values)] == {"alpha": 0.0, "beta": 0.5}
    assert tuning.best_of(np.zeros(6)) == 0
    assert tuning.best_of(np.array([0.3, 0.1 + 0.2])) == 0, "rounding of a mean decides nothing"
    assert tuning.best_of(np.array([0.3, 0.3 + 1e-9])) == 1


def test_the_first_places_are_those_of_the_whole_order() -> None:
    coarse = torch.randint(0, 40, (6, 200), generator=torch.Generator().manual_seed(2)).double() / 8
    assert (first_places(coarse, 5) == rank_by(coarse)[:, :5]).all(), (
        "five of a kind on average, ties by place"
    )
    assert first_places(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 3).tolist() == [[1, 2, 3]]
    assert first_places(torch.tensor([[1.0, 2.0]]), 5).tolist() == [[1, 0]]


def test_random_points_are_drawn_along_the_grid_and_are_seeded() -> None:
    grid = {"k_prime": (10, 20, 100), "lambda": (0.0, 1.0)}
    points = tuning.random_points(grid, 400, seed=3)
    assert points == tuning.random_points(grid, 400, seed=3)
    assert points != tuning.random_points(grid, 400, seed=4)
    pairs = [tuple(point.values()) for point in points]
    assert pairs == sorted(set(pairs)) and 390 <= len(points) <= 400
    depths = [point["k_prime"] for point in points]
    assert all(type(depth) is int and 10 <= depth <= 100 for depth in depths)
    assert all(point["lambda"] == round(float(point["lambda"]), 3) for point in points)
    # Half of the draws fall on the grid's first step, though it is a ninth of the range.
    assert 0.42 < sum(depth < 20 for depth in depths) / len(depths) < 0.58
    # The first draw by hand: u along two steps, on the first of which a step is 10 wide: 10 + 2 u · 10.
    first = np.random.default_rng(3).random(2)
    assert {"k_prime": round(10 + 20 * first[0]), "lambda": round(first[1], 3)} in points and first[0] < 0.5
    with pytest.raises(InputError, match="points 0 is not valid"):
        tuning.random_points(grid, 0)


def test_the_stability_band_by_hand() -> None:
    best = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2])
    points = np.array(
        [
            best,
            best - 0.1,  # worse at every query: no sample of queries hides that
            best - 0.1 * np.eye(8)[0],  # worse at one: (7/8)^8 = 34 % of the samples leave it out
            best - 0.1 * (np.arange(8) < 2),  # at two: (6/8)^8 = 10 %
            best - 0.1 * (np.arange(8) < 4),  # at four: (4/8)^8 = 0.4 %, less than 2.5 %
            best + np.where(np.arange(8) % 2, 0.1, -0.1),  # as often better as worse
        ]
    )
    assert tuning.stability_band(points, 0).tolist() == [True, False, True, True, False, True]
    # Two groups: in the first it is always worse, which a sample of that group shows every time.
    grouped = points[2:3] - 0.1 * (np.arange(8) < 1)
    assert tuning.stability_band(np.stack([best, grouped[0]]), 0, ["a"] + ["b"] * 7).tolist() == [True, False]


def test_the_values_of_groups_are_the_mean_of_their_means() -> None:
    scored = tuning.Scored([{}, {}], np.array([[1.0, 0, 0, 1], [0, 0, 1, 1]]), ["a", "a", "a", "b"], 0, 0)
    assert scored.values.tolist() == pytest.approx([(1 / 3 + 1) / 2, (1 / 3 + 1) / 2])
    assert tuning.Scored([{}], np.array([[1.0, 0, 0, 1]]), [], 0, 0).values.tolist() == [0.5]


def test_what_is_declared_tunable_can_be_tuned() -> None:
    assert set(PROFILE_METHODS) <= set(tunable())
    for name in tunable():
        method = METHODS[name]
        assert callable(load_scorer(name)) and set(method.grid) <= set(method.settings)
        for setting, values in method.grid.items():
            assert list(values) == sorted(set(values)) and len(values) > 1
            ends = [resolve_settings(name, dict.fromkeys(SETTING_NAMES, 1), {setting: v}) for v in values]
            assert [end[setting] for end in ends] == list(values)


@pytest.mark.filterwarnings("ignore::cir_utils.scoring.SettingWarning")
@pytest.mark.parametrize("method", tunable())
def test_a_scorer_ranks_as_a_run_does(bench: Workbench, method: str) -> None:
    """Points between the grid's, so that nothing is right by being on it."""
    points = tuning.random_points(METHODS[method].grid, 3, seed=1)
    found = tuning.score_points(bench, method, "mAP@5", points)
    for point, values in zip(points, found.per_query, strict=True):
        run = run_method(bench, method, resolve_settings(method, bench.settings, point))
        assert values.tolist() == pytest.approx(run.per_query["mAP@5"].tolist(), abs=1e-12)


@pytest.mark.parametrize("side", ["text", "vision"])
def test_points_share_the_settings_that_are_not_tuned(bench: Workbench, side: str) -> None:
    point: tuning.Point = {"k_prime": 4, "lambda": 0.5, "kappa": 60}
    found = tuning.score_points(bench, "xr", "mAP@5", [point], {side: "off"})
    run = run_method(bench, "xr", resolve_settings("xr", bench.settings, {**point, side: "off"}))
    assert found.per_query[0].tolist() == pytest.approx(run.per_query["mAP@5"].tolist(), abs=1e-12)


def test_tuning_gives_the_best_of_the_grid_and_keeps_it(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = tuning.tune(bench)
    assert tuned.metric == "mAP@5" and tuned.queries == 8 and tuned.split == "val"
    assert tuned.best["sdr-cir"] >= tuned.usual["sdr-cir"]
    settings = resolve_settings(
        "xr", bench.settings, {n: tuned.values[n] for n in ("k_prime", "lambda", "kappa")}
    )
    assert run_method(bench, "xr", settings).metrics["mAP@5"] == pytest.approx(tuned.best["xr"], abs=1e-12)
    assert tuned.best["xr"] >= tuned.usual["xr"]
    assert "tuned on mini-circo val, 8 queries, mAP@5" in tuned.describe(written=False)

    path = tmp_path / "settings.json"
    monkeypatch.setattr(tuning, "MINI_SETTINGS", path)
    monkeypatch.setattr("cir_utils.profiles.MINI_SETTINGS", path)
    tuning.write_settings(tuned)
    kept = read_mini_settings(path)["mini-circo"]
    assert {name: kept[name] for name in tuned.values} == tuned.values
    assert kept["tuned_on"] == "mini-circo val, 8 queries, mAP@5"


def test_the_folder_of_a_tuning(bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tuned = tuning.tune_method(bench, "sdr-cir")
    folder = tuned.save()
    assert folder.parent == Path("runs") and folder.name.startswith("tune-sdr-cir--mini-circo-val--")
    assert sorted(path.name for path in folder.iterdir()) == ["map.png", "points.csv", "tuning.json"]
    record = read_json(folder / "tuning.json")
    assert record == tuned.record and record["method"] == "sdr-cir" and record["protocol"]["queries"] == 8
    rows = list(csv.DictReader((folder / "points.csv").read_text().splitlines()))
    assert len(rows) == record["points"] == 11 * 21
    assert [float(row["mAP@5"]) for row in rows] == tuned.values.tolist(), "every digit is kept"
    best = max(rows, key=lambda row: float(row["mAP@5"]))  # the first of equals
    assert (float(best["alpha"]), float(best["beta"])) == tuple(record["chosen"].values())
    in_band = [row for row in rows if row["in band"] == "True"]
    assert best in in_band and len(in_band) == record["band"]["points"]
    inside = [float(row["alpha"]) for row in in_band]
    assert record["band"]["ranges"]["alpha"] == [min(inside), max(inside)]
    usual = run_method(bench, "sdr-cir", resolve_settings("sdr-cir", bench.settings))
    assert record["usual"]["value"] == pytest.approx(usual.metrics["mAP@5"], abs=1e-12)
    assert record["ms_per_point"] > 0 and f"{record['ms_per_point']:.1f} ms a point" in tuned.lines()[1]
    with Image.open(folder / "map.png") as picture:
        assert picture.format == "PNG" and picture.width > 300
    # The chosen folder is replaced by another tuning, but nothing else is.
    assert tuned.save(folder) == folder
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note.txt").write_text("keep")
    with pytest.raises(InputError, match="is not empty and holds no run"):
        tuned.save(tmp_path / "mine")


def test_a_random_search_is_repeatable_and_says_so(bench: Workbench) -> None:
    first, again = (tuning.tune_method(bench, "xr", None, "random", 12, 5) for _ in range(2))
    assert first.points == again.points and (first.values == again.values).all() and first.best == again.best
    assert first.record["search"] == "random" and first.record["random_seed"] == 5
    assert first.record["points"] == len(first.points) <= 12 and first.record["edges"] == []
    assert "random of 12 points" in first.lines()[1]
    assert first.band[first.best]
    axes = first.figure().axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("k_prime", "lambda")
    assert len(axes.collections[0].get_offsets()) == len(first.points)


def test_the_map_of_three_settings_is_the_plane_through_the_chosen_point(bench: Workbench) -> None:
    points = tuning.grid_points({"k_prime": (3, 5), "lambda": (0.0, 0.5, 1.0), "kappa": (1, 60)})
    values = np.arange(12) / 100
    record = {
        "method": "xr", "metric": "mAP@5", "benchmark": "b", "split": "val", "search": "grid",
        "grid": {"k_prime": [3, 5], "lambda": [0.0, 0.5, 1.0], "kappa": [1, 60]},
    }  # fmt: skip
    figure = tuning.Tuning(record, points, values, values > 0.07, 11).figure()
    axes = figure.axes[0]
    assert axes.get_title() == "xr, mAP@5 in percent, b val, kappa 60"
    # Rows are lambda, the longer one; kappa 60 has the odd points 1, 3, ..., 11.
    assert np.asarray(axes.images[0].get_array()).round(6).tolist() == [[1, 7], [3, 9], [5, 11]]
    dashed = sorted(p.get_center().round(6).tolist() for p in axes.patches if p.get_linestyle() == "--")
    assert dashed == [[1.0, 1.0], [1.0, 2.0]], "9 and 11 are in the band"


def test_a_method_is_made_tunable_in_a_few_lines(
    bench: Workbench, world: Path, tiny_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scorer(part, places, k, points):  # type: ignore[no-untyped-def]
        S_r = exact_scores(part.reference_features, part.gallery_features).gather(1, places)
        S_m = exact_scores(part.modification_features, part.gallery_features).gather(1, places)
        return lambda point: places.gather(
            1, rank_by((1 - point["share"]) * S_m + point["share"] * S_r)[:, :k]
        )

    monkeypatch.setitem(sys.modules, "cir_utils.methods.mix", SimpleNamespace(scorer=scorer))
    monkeypatch.setitem(SETTINGS, "share", Setting(float, "of the reference", default=0.5))
    grid = {"share": (0.0, 0.25, 0.5, 0.75, 1.0)}
    monkeypatch.setitem(METHODS, "mix", Method("mix:run", "a mix", ("share",), grid, "mix:scorer"))
    tuned = tuning.tune_method(bench, "mix")
    found = [run_method(bench, name, {}).metrics["mAP@5"] for name in ("text-only", "image-only")]
    assert tuned.values[[0, 4]].tolist() == pytest.approx(found, abs=1e-12)
    assert tuned.record["usual"] == {"settings": {"share": 0.5}, "value": tuned.values[2]}
    assert tuned.figure().axes[0].get_xlabel() == "share"
    assert "mix: share" in tuning.tune(bench, methods=["mix"]).describe(written=False)
    test = open_bench(world, tiny_clip, tmp_path, split="test")
    with pytest.raises(InputError, match="cir tune refuses split 'test': settings are chosen on val alone"):
        tuning.tune_method(test, "mix")
    monkeypatch.setitem(METHODS, "mix", Method("mix:run", "", ("share",), {"share": tuple(range(20_001))}))
    with pytest.raises(InputError, match="the grid of mix has 20,001 points; use --search random"):
        tuning.tune_method(bench, "mix")
    with pytest.raises(InputError, match="image-only has no setting that is tuned on stored scores; choose"):
        tuning.tune_method(bench, "image-only")


def test_one_methods_settings_are_kept_beside_the_others(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "settings.json"
    monkeypatch.setattr(tuning, "MINI_SETTINGS", path)
    monkeypatch.setattr("cir_utils.profiles.MINI_SETTINGS", path)
    one = tuning.tune(bench, methods=["sdr-cir"])
    with pytest.raises(InputError, match="other settings of mini-circo are missing; tune all of them"):
        tuning.write_settings(one)
    entry = {
        "alpha": 0.5, "beta": 2, "lambda": 0.65, "k_prime": 7, "kappa": 9,
        "weight_text": 0, "weight_vision": 0.1, "tuned_on": one.tuned_on,
    }  # fmt: skip
    path.write_text(json.dumps({"mini-circo": entry}))
    tuning.write_settings(one)
    assert read_mini_settings(path)["mini-circo"] == entry | one.values
    path.write_text(json.dumps({"mini-circo": entry | {"tuned_on": "something else"}}))
    with pytest.raises(InputError, match="were tuned on something else"):
        tuning.write_settings(one)


def test_every_split_but_val_is_refused(world: Path, tiny_clip: Path, tmp_path: Path) -> None:
    bench = open_bench(world, tiny_clip, tmp_path, split="test")
    with pytest.raises(InputError, match="refuses split 'test'"):
        tuning.tune(bench)


def test_the_second_pass_asks_nothing_new(bench: Workbench, oracle: Oracle) -> None:
    tuning.xr_grid(bench, "mAP@5")
    asked = len(oracle.asked)
    tuning.xr_grid(bench, "mAP@5")
    assert len(oracle.asked) == asked
