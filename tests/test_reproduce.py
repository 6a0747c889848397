"""The reproduction matrix: published figures, our runs beside them, verdicts, `cir reproduce`."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import open_bench, write_world

from cir_utils import reproduce
from cir_utils.cli import main
from cir_utils.errors import InputError
from cir_utils.experiments import METHODS, run_experiments
from cir_utils.reproduce import (
    Condition,
    Figure,
    Kept,
    conditions,
    judge,
    order_agreement,
    platform_differences,
    result_rows,
)
from cir_utils.runs import TABLE_METRICS, Run, load_run
from cir_utils.workbench import Workbench
from data_scripts.make_readme_tables import filled

KEYS = {
    "condition", "method", "variant", "benchmark", "split", "backbone", "protocol", "metric", "value",
    "source", "ours", "low", "high", "run", "verdict", "too_good", "remark", "command", "needs",
}  # fmt: skip
B32, L14, G14 = "ViT-B-32", "ViT-L-14", "ViT-bigG-14"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, tiny_clip: Path) -> Workbench:
    place = tmp_path_factory.mktemp("world")
    return open_bench(write_world(place / "world"), tiny_clip, place / "cache")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, bench: Workbench) -> Path:
    """Records of all methods on the small world."""
    folder = tmp_path_factory.mktemp("results")
    run_experiments(bench, folder / "mini-circo-val", METHODS, whole=False)
    return folder


def published(method: str, benchmark: str, backbone: str, variant: str = "") -> Condition:
    (found,) = [
        condition
        for condition in reproduce.published_conditions()
        if (condition.method, condition.benchmark, condition.backbone, condition.variant)
        == (method, benchmark, backbone, variant)
    ]
    return found


def percents(condition: Condition, *metrics: str) -> list[float]:
    by_name = {figure.metric: 100 * figure.value for figure in condition.figures}
    return [round(by_name[metric], 2) for metric in metrics]


# --- the table --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "benchmark", "backbone", "expected"),
    [
        # Reprints by other papers than the source of the row.
        ("sdr-cir", "circo", B32, [23.78, 24.43, 26.58, 27.50]),
        ("sdr-cir", "circo", G14, [33.05, 34.50, 37.21, 38.42]),
        ("sdr-cir", "cirr", L14, [37.61, 67.71, 79.13, 93.81, 71.90, 88.39, 94.63]),
        ("sdr-cir", "fashioniq", L14, [40.84, 61.25, 37.04, 59.15, 41.02, 59.27, 44.47, 65.32]),
        ("xr", "circo", B32, [27.51, 28.33, 30.28, 30.95]),
        ("xr", "circo", L14, [31.38, 32.88, 35.46, 36.50]),
        ("xr", "fashioniq", B32, [36.66, 57.10, 30.94, 52.06, 36.06, 54.66, 42.99, 64.56]),
    ],
)
def test_the_figures_of_both_papers(
    method: str, benchmark: str, backbone: str, expected: list[float]
) -> None:
    metrics = TABLE_METRICS[benchmark][: len(expected)]
    assert percents(published(method, benchmark, backbone), *metrics) == expected


@pytest.mark.parametrize(
    ("method", "backbone", "circo", "cirr", "fashioniq"),
    [
        ("searle", B32, 9.35, 24.00, 22.89),
        ("isearle", L14, 12.50, 25.28, 27.52),
        ("lincir", G14, 19.71, 35.25, 45.11),
        ("fti4cir", L14, 15.05, 25.90, 29.39),
        ("cirevl", L14, 18.57, 24.55, 28.55),
        ("ldre", B32, 17.96, 25.69, 24.81),
        ("imagescope", B32, 25.26, 38.43, 31.42),
        ("wiser", G14, 36.53, 49.54, 44.59),
    ],
)
def test_the_headlines_of_the_baselines(
    method: str, backbone: str, circo: float, cirr: float, fashioniq: float
) -> None:
    found = [
        *percents(published(method, "circo", backbone), "mAP@5"),
        *percents(published(method, "cirr", backbone), "R@1"),
        *percents(published(method, "fashioniq", backbone), "mean/R@10"),
    ]
    assert found == [circo, cirr, fashioniq]


def test_every_system_of_both_papers_has_rows_and_ablations_are_not_the_system() -> None:
    named = {condition.method for condition in reproduce.published_conditions()}
    assert named >= {
        "xr", "sdr-cir", "palavra", "pic2word", "searle", "isearle", "lincir", "fti4cir", "cirevl", "ldre",
        "imagescope", "image-only", "text-only", "image+text",
    }  # fmt: skip
    assert len(reproduce.published_rows()) == 1543
    kappa = published("xr", "circo", B32, "kappa 10")
    assert percents(kappa, "mAP@5", "mAP@10", "mAP@25") == [27.50, 28.31, 30.29]
    assert kappa.command.endswith("--preprocessing clip --set kappa=10")
    anchor = published("sdr-cir", "fashioniq", L14, "Anchor only")
    assert percents(anchor, "mean/R@10", "mean/R@50") == [38.41, 59.01]
    assert anchor.command == (
        "cir run sdr-cir --benchmark fashioniq --profile paper --split val --encoder "
        "ViT-L-14:laion2b_s32b_b82k --mllm server:gpt-4.1-2025-04-14 --set beta=0"
    )


def test_published_averages_are_those_of_their_categories_or_say_so() -> None:
    for condition in reproduce.published_conditions():
        by_name = {figure.metric: figure for figure in condition.figures}
        for k in (10, 50):
            parts = [by_name.get(f"{name}/R@{k}") for name in ("dress", "shirt", "toptee")]
            whole = by_name.get(f"mean/R@{k}")
            if whole is None or None in parts:
                continue
            mean = sum(part.value for part in parts if part is not None) / 3
            told = "categories" in whole.remark
            assert abs(100 * (mean - whole.value)) <= (0.04 if told else 0.0101), (condition.id, k)


def test_contradicting_sources_are_both_kept() -> None:
    (figure,) = [f for f in published("cirevl", "circo", B32).figures if f.metric == "mAP@5"]
    assert (figure.value, figure.remark) == (0.1494, "14.95 in sdr-cir-1")
    (figure,) = [f for f in published("cirevl", "fashioniq", L14).figures if f.metric == "mean/R@50"]
    assert figure.remark == "48.60 in oscar; 48.60 is the mean of the categories"
    assert all("backbone inferred" in figure.remark for figure in published("xr", "circo", L14).figures)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("sdr-cir,,circo,test,ViT-B-32,mAP@5,123,sdr-cir-1,,,", "value '123' is no number from 0 to 100"),
        ("sdr-cir,,circo,test,ViT-B-32,mAP@5,,sdr-cir-1,,,", "value '' is no number"),
        ("sdr-cir,,circo,test,ViT-B-32,R@1,12,sdr-cir-1,,,", "circo has no metric 'R@1'"),
        ("sdr,,circo,test,ViT-B-32,mAP@5,12,sdr-cir-1,,,", "unknown method 'sdr'"),
        ("sdr-cir,,circo,test,ViT-B/32,mAP@5,12,sdr-cir-1,,,", "unknown backbone 'ViT-B/32'"),
        ("sdr-cir,,circo,test,ViT-B-32,mAP@5,12,somewhere,,,", "unknown source 'somewhere'"),
        ("sdr-cir,,circo,test,ViT-B-32,mAP@5,12,sdr-cir-1,13,somewhere,", "unknown second_source"),
        ("sdr-cir,,circo,test,ViT-B-32,mAP@10,12,sdr-cir-1,,,", "is listed twice"),
    ],
)
def test_a_wrong_line_of_the_table_is_named(tmp_path: Path, change: str, told: str) -> None:
    good = "sdr-cir,,circo,test,ViT-B-32,mAP@10,12,sdr-cir-1,,,"
    path = tmp_path / "published.csv"
    path.write_text("\n".join([",".join(reproduce.COLUMNS), good, change]) + "\n")
    with pytest.raises(InputError, match="published.csv, line 3: ") as caught:
        reproduce.published_rows(path)
    assert told in str(caught.value)


def test_a_table_of_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "published.csv"
    path.write_text("method,value\nxr,12\n")
    with pytest.raises(InputError, match="its columns must be method, variant, benchmark"):
        reproduce.published_rows(path)


# --- conditions -------------------------------------------------------------------------------------------


def test_ids_are_unique_and_what_is_not_here_says_so(results: Path) -> None:
    chosen = conditions(results)
    assert len({condition.id for condition in chosen}) == len(chosen)
    osrcir = published("osrcir", "circo", L14)
    assert (osrcir.missing, osrcir.command) == ("no implementation", "")
    assert published("xr", "circo", B32, "questions 3").command == ""
    assert published("sdr-cir", "circo", L14, "without selective extraction").command == ""
    with pytest.raises(InputError, match="circo-test/ViT-L-14/osrcir cannot be run: no implementation"):
        reproduce.run_conditions([osrcir])


def test_needs_name_pictures_form_weights_memory_and_server() -> None:
    needs = "; ".join(published("xr", "cirr", B32).needs)
    for part in (
        "form: NLVR2's form",
        "weights: ViT-B-32:laion2b_s34b_b79k, OpenGVLab/InternVL3-8B-hf",
        "GPU: 24 GB",
        "cir submit RUN --to cirr",
    ):
        assert part in needs, part
    assert "GPU: 180 GB" in published("sdr-cir", "circo", L14, "MLLM Qwen2.5-VL-72B").needs
    served = "; ".join(published("sdr-cir", "fashioniq", L14).needs)
    assert "server with gpt-4.1" in served and "GPU: 6 GB" in served and "--to" not in served
    assert "the system's trained weights for ViT-L-14" in published("lincir", "circo", L14).needs


def test_what_is_expected_of_mini_is_what_the_records_say(results: Path) -> None:
    mini = reproduce.mini_conditions(results)
    assert [condition.id for condition in mini[:3]] == [
        "mini-circo-val/random", "mini-circo-val/image-only", "mini-circo-val/text-only",
    ]  # fmt: skip
    for condition in mini:
        assert condition.record is not None
        for figure in condition.figures:
            assert figure.value == condition.record.metrics[figure.metric]
    (sdr,) = [condition for condition in mini if condition.method == "sdr-cir"]
    assert sdr.command == (
        "cir run sdr-cir --benchmark mini-circo --profile mini --split val --set alpha=0.15 --set beta=0.35 "
        "--set description=selective"
    )


def test_a_pattern_selects_and_an_unknown_name_is_told(results: Path) -> None:
    chosen = conditions(results)
    (one,) = reproduce.select(chosen, "mini-circo-val/xr")
    assert one.method == "xr"
    assert len(reproduce.select(chosen, "mini-*")) == len(METHODS)
    with pytest.raises(InputError, match="no condition is called 'xr'; `cir reproduce --list`"):
        reproduce.select(chosen, "xr")


# --- verdicts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "low", "high", "expected"),
    [
        (None, math.nan, math.nan, ("not run", False)),
        (0.300, math.nan, math.nan, ("OK", False)),
        (0.305, math.nan, math.nan, ("OK", False)),  # at the tolerance
        (0.3051, 0.29, 0.32, ("close", False)),
        (0.27, 0.24, 0.30, ("close", False)),  # at the interval's end
        (0.27, 0.24, 0.2999, ("off", False)),
        (0.33, 0.301, 0.36, ("off", True)),
        (0.33, math.nan, math.nan, ("off", True)),
        (0.0, math.nan, math.nan, ("off", False)),
    ],
)
def test_verdicts(ours: float | None, low: float, high: float, expected: tuple[str, bool]) -> None:
    assert judge(0.300, ours, 0.005, low, high) == expected


def record_of(condition: Condition, **changes: Any) -> dict[str, Any]:
    """The record of a run that belongs to ``condition``, as far as the matrix reads it."""
    usual = {"alpha": 0.2, "beta": 0.4, "description": "selective"} if condition.method == "sdr-cir" else {}
    return {
        "method": condition.method,
        "label": None,
        "overrides": {},
        "benchmark": condition.benchmark,
        "split": condition.split,
        "settings": usual,
        "protocol": {**condition.protocol, "empty_texts": 0},
        "inputs": {
            "encoder": {"encoder": condition.choices["encoder"] + "@0123"},
            "mllm": "server:gpt-4.1-2025-04-14@api.openai.com",
        },
        "cost": {"mllm_calls": 0, "parse_failures": 0},
        "started": "2026-11-01T00:00:00+00:00",
    } | changes


def run_of(condition: Condition, scores: dict[str, float], size: int = 100, **changes: Any) -> Kept:
    """A FashionIQ run by hand with ``size`` queries a category, of which the share of the score is hit."""
    names = ("dress", "shirt", "toptee")
    hits = np.tile(np.arange(size), 3)
    per_query = {name: (hits < size * value).astype(float) for name, value in scores.items()}
    metrics = {f"{part}/{name}": value for name, value in scores.items() for part in (*names, "mean")}
    run = Run(
        record=record_of(condition, **changes),
        queries=tuple(f"{part}/{number}" for part in names for number in range(size)),
        metrics=metrics,
        per_query=per_query,
        categories=tuple(part for part in names for _ in range(size)),
    )
    return Kept(Path("runs/by-hand"), run)


def test_a_run_beside_the_published_figures() -> None:
    """SDR-CIR, FashionIQ, ViT-L-14: published mean 40.84 / 61.25, shirt 41.02 / 59.27."""
    sdr = published("sdr-cir", "fashioniq", L14)
    kept = run_of(sdr, {"R@10": 0.407, "R@50": 0.70}, 1000)
    rows = {row["metric"]: row for row in result_rows([sdr], [kept])}
    assert {row["run"] for row in rows.values()} == {"runs/by-hand"}
    assert (rows["mean/R@10"]["ours"], rows["mean/R@10"]["verdict"]) == (0.407, "OK")
    assert rows["shirt/R@10"]["verdict"] == "OK"  # 40.70 for 41.02
    # 40.70 for 37.04 is beyond the 3.0 points of a 95 % interval over 1,000 queries; 44.47 too, below.
    assert (rows["dress/R@10"]["verdict"], rows["dress/R@10"]["too_good"]) == ("off", True)
    assert (rows["toptee/R@10"]["verdict"], rows["toptee/R@10"]["too_good"]) == ("off", False)
    assert rows["mean/R@50"]["too_good"] and reproduce.status(rows["mean/R@50"]) == "off (too good)"
    low, high = rows["mean/R@10"]["low"], rows["mean/R@10"]["high"]
    assert 0.407 - low == pytest.approx(1.96 * math.sqrt(0.407 * 0.593 / 3000), rel=0.1)
    assert high - 0.407 == pytest.approx(0.407 - low, rel=0.1)
    close = {row["metric"]: row for row in result_rows([sdr], [run_of(sdr, {"R@10": 0.42, "R@50": 0.60})])}
    assert close["mean/R@10"]["verdict"] == "close" and close["shirt/R@50"]["verdict"] == "close"
    assert reproduce.summary(list(close.values())).startswith("8 figures: ")


def test_only_a_run_of_this_condition_and_protocol_is_compared() -> None:
    sdr = published("sdr-cir", "fashioniq", L14)
    scores = {"R@10": 0.407, "R@50": 0.61}

    def verdicts(**changes: Any) -> tuple[set[str], str]:
        rows = result_rows([sdr], [run_of(sdr, scores, **changes)])
        return {row["verdict"] for row in rows}, rows[0]["remark"]

    assert "not run" not in verdicts()[0]
    for other in (
        {"method": "xr"},
        {"split": "test"},
        {"settings": {"alpha": 0.3, "beta": 0.4, "description": "selective"}},
        {"inputs": {"encoder": {"encoder": "ViT-B-32:laion2b_s34b_b79k"}}},
        # this MLLM is a row of its own
        {"inputs": {"encoder": {"encoder": sdr.choices["encoder"]}, "mllm": "server:gpt-4o-mini@x"}},
    ):
        assert verdicts(**other) == ({"not run"}, ""), other
    union = {**sdr.protocol, "gallery": "union"}
    assert verdicts(protocol=union) == (
        {"not run"}, "runs/by-hand differs: gallery 'union' instead of 'original'",
    )  # fmt: skip
    few = {**sdr.protocol, "queries": 50}
    assert verdicts(protocol=few)[1] == "runs/by-hand differs: queries 50 instead of 6016"
    other = {
        "encoder": {"encoder": "ViT-L-14-quickgelu:openai@1"},
        "mllm": "Qwen2.5-VL-3B-Instruct@1/bfloat16",
    }
    seen, remark = verdicts(inputs=other)
    assert "not run" not in seen
    assert remark == (
        "encoder ViT-L-14-quickgelu:openai, not ViT-L-14:laion2b_s32b_b82k; MLLM Qwen2.5-VL-3B-Instruct, not "
        "gpt-4.1-2025-04-14"
    )
    mini = published("sdr-cir", "fashioniq", L14, "MLLM GPT-4o-mini")
    used = {"encoder": {"encoder": mini.choices["encoder"]}, "mllm": "server:gpt-4o-mini@x"}
    assert result_rows([mini], [run_of(mini, {"R@10": 0.3926}, inputs=used)])[0]["verdict"] == "OK"


def test_the_newest_run_counts() -> None:
    sdr = published("sdr-cir", "fashioniq", L14)
    old = run_of(sdr, {"R@10": 0.10}, started="2026-10-01T00:00:00+00:00")
    new = run_of(sdr, {"R@10": 0.4084})
    for kept in permutations([old, new]):
        assert result_rows([sdr], kept)[0]["ours"] == 0.4084


def test_what_a_server_said_is_read_from_the_run_folder(tmp_path: Path) -> None:
    """CIRCO test: 800 queries, published 30.91; at 32.5 the widest interval is 3.25 points on each side."""
    sdr = published("sdr-cir", "circo", L14)
    settings = {"alpha": 0.15, "beta": 0.35, "description": "selective"}
    run = Run(record=record_of(sdr, settings=settings), queries=(), metrics={}, per_query={})
    kept = Kept(tmp_path, run)
    row = result_rows([sdr], [kept])[0]
    assert (row["verdict"], row["ours"]) == ("not run", None)
    assert row["remark"].endswith("server.json") and "waits for the server's answer" in row["remark"]
    answer = tmp_path / "server.json"
    answer.write_text('{"mAP@5": 0.325, "mAP@10": 0.317}')
    first, second, third, _ = result_rows([sdr], [kept])
    assert (first["verdict"], second["verdict"], third["verdict"]) == ("close", "OK", "not run")
    assert first["high"] - first["ours"] == pytest.approx(1.95996 * math.sqrt(0.325 * 0.675 / 800), rel=1e-4)
    answer.write_text('{"mAP@5": 32.5}')
    with pytest.raises(InputError, match="expected fractions by metric.*found 'mAP@5': 32.5"):
        result_rows([sdr], [kept])


# --- mini conditions, run again ---------------------------------------------------------------------------


def test_a_mini_condition_reproduces_its_record(results: Path, bench: Workbench, tmp_path: Path) -> None:
    (sdr,) = reproduce.select(conditions(results), "mini-circo-val/sdr-cir")
    kept = reproduce.run_condition(sdr, bench, tmp_path / "run")
    rows = result_rows([sdr], [kept])
    assert [row["metric"] for row in rows] == list(TABLE_METRICS["mini-circo"])
    assert [(row["verdict"], row["ours"], row["remark"]) for row in rows] == [
        ("OK", figure.value, "") for figure in sdr.figures
    ]
    assert load_run(tmp_path / "run").record["label"] == "sdr-cir"
    assert result_rows([sdr], reproduce.find_kept([tmp_path]))[0]["verdict"] == "OK"

    # The fourth decimal decides; on one platform no interval excuses it.
    changed = tuple(replace(figure, value=figure.value + 0.00006) for figure in sdr.figures)
    worse = result_rows([replace(sdr, figures=changed)], [kept])
    assert {(row["verdict"], row["too_good"]) for row in worse} == {("off", False)}
    changed = tuple(replace(figure, value=figure.value - 0.00006) for figure in sdr.figures)
    better = result_rows([replace(sdr, figures=changed)], [kept])
    assert {(row["verdict"], row["too_good"]) for row in better} == {("off", True)}
    changed = tuple(replace(figure, value=figure.value + 0.00004) for figure in sdr.figures)
    assert {row["verdict"] for row in result_rows([replace(sdr, figures=changed)], [kept])} == {"OK"}


def test_another_platform_and_other_weights_are_told(results: Path, bench: Workbench) -> None:
    (one,) = reproduce.select(conditions(results), "mini-circo-val/image-text")
    assert one.record is not None
    record = json.loads(json.dumps(one.record.record))
    record["versions"]["torch"] = "1.0"
    shifted = tuple(replace(figure, value=figure.value - 0.001) for figure in one.figures)
    kept = Kept(Path("elsewhere"), replace(one.record, record=record))
    row = result_rows([replace(one, figures=shifted)], [kept])[0]
    assert row["verdict"] == "close"  # eight queries: a wide interval
    assert row["remark"].startswith("torch 1.0, not ")
    record["inputs"]["encoder"]["weights_sha256"] = "0" * 64
    row = result_rows([one], [kept])[0]
    assert "the encoder has other weights than that of the record: make the records anew" in row["remark"]


#: They caption or verify pictures of the gallery, which takes minutes; `make reproduce` runs them too.
LONG = ("imagescope", "ldre", "seize", "weimocir", "xr", "xr-sdr")


@pytest.mark.slow  # a minute on one core: 1,968 pictures are encoded, 320 target texts written three times
def test_shipped_mini_rows_reproduce_to_four_decimals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ships gives what its records say; on another platform, within the interval of the figure. New
    weights or pictures need new records: see the remark."""
    monkeypatch.chdir(tmp_path)
    chosen = [one for one in reproduce.select(conditions(), "mini-cirr-test/*") if one.method not in LONG]
    assert {"sdr-cir", "cirevl", "pic2word", "fti4cir", "image+text"} <= {one.method for one in chosen}
    kept = reproduce.run_conditions(chosen, device="cpu", cache_dir=tmp_path / "cache")
    rows = result_rows(chosen, kept)
    assert len(rows) == 7 * len(chosen)
    assert all(one.record is not None for one in chosen)
    for row, condition in zip(rows, [one for one in chosen for _ in range(7)], strict=True):
        told = f"{row['condition']} {row['metric']}: {row['ours']} for {row['value']}; {row['remark']}"
        (run,) = [one.run for one in kept if str(one.folder) == row["run"]]
        here = condition.record is not None and not platform_differences(run, condition.record)
        assert row["verdict"] in (("OK",) if here else ("OK", "close")), told


# --- orders -----------------------------------------------------------------------------------------------


def test_orders_are_compared_on_the_methods_that_both_have() -> None:
    ours = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4, "mine": 0.9}
    same = order_agreement(ours, {"a": 1.0, "b": 2.0, "c": 3.0, "d": 9.0, "theirs": 0.0})
    assert same.methods == ("a", "b", "c", "d") and same.ours == (0.1, 0.2, 0.3, 0.4)
    assert (same.tau, same.rho) == (1.0, pytest.approx(1.0))
    assert same.tau_p == pytest.approx(2 / 24) and same.rho_p == pytest.approx(2 / 24)
    # One swap of neighbours: 5 of 6 pairs agree; rho = 1 - 6 * 2 / (4 * 15).
    swapped = order_agreement(ours, {"a": 2.0, "b": 1.0, "c": 3.0, "d": 9.0})
    assert (swapped.tau, swapped.rho) == (pytest.approx(4 / 6), pytest.approx(0.8))
    # rho is 0.8 or more for the same order and three neighbours' swaps, and as often at the other end.
    assert swapped.rho_p == pytest.approx(8 / 24)
    turned = order_agreement(ours, {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0})
    assert (turned.tau, turned.rho) == (-1.0, pytest.approx(-1.0))
    assert math.isnan(order_agreement(ours, {"a": 1.0, "b": 1.0, "c": 1.0}).tau)
    with pytest.raises(InputError, match="three methods or more that both have, not 2"):
        order_agreement(ours, {"a": 1.0, "b": 2.0})


def test_orders_of_records_take_systems_alone(results: Path) -> None:
    runs = [kept.run for kept in reproduce.find_kept([results])]
    by_backbone = {one.against: one for one in reproduce.order_agreements(runs)}
    small = by_backbone["circo test, ViT-B-32, mAP@5"]
    assert small.mini == "mini-circo"
    assert small.methods == ("image-only", "text-only", "image+text", "sdr-cir", "xr")
    assert small.published == (0.0134, *small.published[1:3], 0.2378, 0.2751)
    metrics = {run.name: run.metrics["mAP@5"] for run in runs}
    assert small.ours == tuple(metrics[name] for name in small.methods)
    assert "circo test, ViT-bigG-14, mAP@5" not in by_backbone  # SDR-CIR alone
    assert f"| {small.tau:.2f} | {small.tau_p:.3f} |" in reproduce.orders_text([small])
    assert "No mini benchmark" in reproduce.orders_text([])


# --- the report and the command ---------------------------------------------------------------------------


def test_the_report_lists_every_published_figure_and_every_source(results: Path) -> None:
    text = reproduce.report(results)
    assert text == reproduce.report(results)
    lines = text.splitlines()
    for condition in reproduce.published_conditions():
        cells = [f" {100 * figure.value:.2f} " for figure in condition.figures]
        sources = {figure.source for figure in condition.figures}
        assert any(
            line.startswith(f"| {condition.name} | {condition.backbone} |")
            and all(cell in line for cell in cells)
            and all(source in line for source in sources)
            and "not run" in line
            for line in lines
        ), condition.id
    for key in reproduce.matrix()["sources"]:
        assert f"- `{key}`: " in text, key
    for part in (
        "Published: 1,543 figures: 0 OK, 0 close, 0 off, 1,543 not run.",
        "Protocol: circo test, 800 queries, gallery 123,403, reference kept, text: relative caption.",
        "Protocol: fashioniq val, 6,016 queries, gallery original: dress 3,817 / shirt 6,346 / toptee 5,373",
        "OK**: within 0.1 percentage points of the published figure, 0.5 for a method with an MLLM",
        "| `mini-circo-val/xr` | tiny-clip |",
        "not run: no implementation",
        "## Orders",
    ):
        assert part in text, part


def test_the_page_takes_the_report_of_its_records(results: Path) -> None:
    text = filled("# Title\n\n<!-- reproduction: all -->\nold\n<!-- end of table -->\n", results)
    assert reproduce.report(results) in text and "old" not in text


def test_runs_stand_beside_the_figures_in_the_report(results: Path) -> None:
    sdr = published("sdr-cir", "fashioniq", L14)
    text = reproduce.report(results, [run_of(sdr, {"R@10": 0.407, "R@50": 0.70})])
    (line,) = [
        line for line in text.splitlines() if line.startswith("| SDR-CIR | ViT-L-14 | 40.84 (40.70, OK)")
    ]
    assert "| 61.25 (70.00, off (too good)) |" in line and "| by-hand |" in line
    assert "1,535 not run" in text


def cir(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["reproduce", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command(
    results: Path,
    bench: Workbench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = tmp_path / "results"
    shutil.copytree(results, own)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce, "RESULTS", own)
    opened: list[Any] = []

    def open_small(*names: str, **choices: Any) -> Workbench:
        opened.append((*names, choices["device"]))
        return bench

    monkeypatch.setattr(reproduce, "open_workbench", open_small)

    code, out, _ = cir(capsys, "--list", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and len(rows) == 1543 + 4 * len(METHODS)
    assert {frozenset(row) for row in rows} == {frozenset(KEYS)}
    assert {row["verdict"] for row in rows} == {"not run"} and not any(row["too_good"] for row in rows)
    (row,) = [
        row for row in rows if row["condition"] == "circo-test/ViT-B-32/sdr-cir" and row["metric"] == "mAP@5"
    ]
    assert (row["value"], row["source"]) == (pytest.approx(0.2378), "SDR-CIR, arXiv:2602.04451, Table 1")
    assert row["protocol"]["gallery_size"] == 123403 and row["command"].startswith("cir run sdr-cir ")

    code, out, _ = cir(capsys, "--run", "mini-circo-val/image-text", "--device", "cpu")
    assert code == 0 and opened == [("mini-circo", "mini", "val", "cpu")]
    assert "4 figures: 4 OK, 0 close, 0 off, 0 not run" in out
    assert len(list((tmp_path / "runs").iterdir())) == 1
    # The run is found where it was kept, and stands beside its record.
    rows = json.loads(cir(capsys, "--list", "--json")[1])["rows"]
    assert [row["metric"] for row in rows if row["verdict"] == "OK"] == list(TABLE_METRICS["mini-circo"])
    assert "4 OK" in cir(capsys, "--list")[1].splitlines()[-1]
    assert "0 OK" in cir(capsys, "--list", "--runs", str(tmp_path / "nowhere"))[1].splitlines()[-1]

    opened.clear()
    code, out, _ = cir(capsys, "--run", "mini-*/*-only", "--json")
    assert len(opened) == 1  # three conditions, one workbench
    assert code == 0 and {row["method"] for row in json.loads(out)["rows"]} == {
        "image-only", "text-only", "description-only",
    }  # fmt: skip

    # A record that says something else: exit 1.
    path = next(own.glob("*/*-text-only/metrics.json"))
    kept = json.loads(path.read_text())
    kept["metrics"]["mAP@5"] += 0.01
    path.write_text(json.dumps(kept))
    code, out, _ = cir(capsys, "--run", "mini-circo-val/text-only")
    assert code == 1 and "3 OK, 0 close, 1 off" in out

    code, out, _ = cir(capsys, "--dry-run")
    assert (
        code == 0
        and "\ncir run xr --benchmark mini-circo --profile mini --split val --set lambda=0.15" in out
    )
    assert "conditions have no implementation here" in out.splitlines()[-1]
    assert cir(capsys, "--dry-run", "--run", "mini-circo-val/random")[1].splitlines()[1:] == [
        "cir run random --benchmark mini-circo --profile mini --split val"
    ]
    code, out, _ = cir(capsys, "--report")
    assert code == 0 and "| `mini-circo-val/image-text` | tiny-clip | " in out and ", OK)" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "reproduce does one thing: give --list, --dry-run, --run COND or --report"),
        (["--list", "--report"], "does one thing"),
        (["--run", "nothing"], "no condition is called 'nothing'"),
        (["--run", "circo-test/ViT-L-14/osrcir"], "cannot be run: no implementation"),
        (["--report", "--json"], "--json belongs to --list and --run"),
        (["--run", "circo-test/*/sdr-cir", "--out", "x"], "--out names the folder of one run"),
        (["--list", "--out", "x"], "--out names the folder of one run"),
        (["--run", "fashioniq-val/ViT-B-32/image-only", "--root", "/nowhere"], "/nowhere"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = cir(capsys, *arguments)
    assert code == 2 and out == "" and told in err and len(err.splitlines()) == 1


def test_a_figure_is_never_zero_where_there_is_no_run() -> None:
    bare = replace(published("sdr-cir", "circo", B32), figures=(Figure("mAP@5", 0.0, "sdr-cir-1"),))
    (row,) = result_rows([bare])
    assert (row["ours"], row["verdict"]) == (None, "not run")
