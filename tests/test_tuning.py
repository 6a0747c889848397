"""Tuning: the grids equal real runs, the rule for ties, and no look at test."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_world import IDS, Oracle, open_bench, write_world

from cir_utils import tuning
from cir_utils.errors import InputError
from cir_utils.methods import resolve_settings
from cir_utils.metrics import circo_per_query
from cir_utils.profiles import read_mini_settings
from cir_utils.runs import run_method
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
    values = torch.tensor([[0.1, 0.3, 0.3], [0.3, 0.2, 0.1]])
    assert tuning._first_best(values) == (0, 1)
    assert tuning._first_best(torch.zeros(3, 4, 5)) == (0, 0, 0)
    cube = torch.zeros(2, 3, 4)
    cube[1, 2, 3] = 1
    assert tuning._first_best(cube) == (1, 2, 3)


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


def test_every_split_but_val_is_refused(world: Path, tiny_clip: Path, tmp_path: Path) -> None:
    bench = open_bench(world, tiny_clip, tmp_path, split="test")
    with pytest.raises(InputError, match="refuses split 'test'"):
        tuning.tune(bench)


def test_the_second_pass_asks_nothing_new(bench: Workbench, oracle: Oracle) -> None:
    tuning.xr_grid(bench, "mAP@5")
    asked = len(oracle.asked)
    tuning.xr_grid(bench, "mAP@5")
    assert len(oracle.asked) == asked
