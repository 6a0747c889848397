"""Intervals, paired tests and tables against known values."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cir_utils.compare import (
    PAIRED_COLUMNS,
    Run,
    bootstrap_interval,
    effect_size,
    holm,
    paired_permutation,
    paired_table,
    query_table,
    resampled_means,
    results_table,
    to_markdown,
)
from cir_utils.errors import InputError

QUERIES = [str(i) for i in range(40)]
RNG = np.random.default_rng(7)
BASE = RNG.random(40) ** 3
BETTER = np.clip(BASE + RNG.normal(0.15, 0.1, 40), 0, 1)


def run(name, values, queries=QUERIES, **more):
    return Run(name, queries, {"mAP@10": np.asarray(values), "R@10": np.asarray(values) > 0.3}, **more)


# --- intervals --------------------------------------------------------------------------------------------


def test_interval_of_a_normal_sample_is_the_textbook_one():
    values = stats.norm.ppf((np.arange(400) + 0.5) / 400)
    found = bootstrap_interval(values)
    half = 1.96 * values.std() / math.sqrt(400)
    assert found.method == "BCa" and found.mean == pytest.approx(0, abs=1e-12)
    assert (found.low, found.high) == (pytest.approx(-half, rel=0.05), pytest.approx(half, rel=0.05))


def test_interval_is_seeded_and_moves_with_the_values():
    first, again, other = (bootstrap_interval(BASE, seed=seed) for seed in (1, 1, 2))
    assert first == again and first != other
    assert first.mean == pytest.approx(BASE.mean()) and first.low < first.mean < first.high
    scaled = bootstrap_interval(0.5 * BASE + 0.25, seed=1)
    assert (scaled.low, scaled.high) == (
        pytest.approx(0.5 * first.low + 0.25),
        pytest.approx(0.5 * first.high + 0.25),
    )
    narrow = bootstrap_interval(BASE, level=0.5)
    assert first.low < narrow.low < narrow.high < first.high
    assert first.high - first.mean > first.mean - first.low  # AP is skewed to the right, and BCa says so


def test_interval_of_zeros_and_ones_stays_near_the_exact_one():
    values = np.repeat([1.0, 0.0], [30, 70])
    found = bootstrap_interval(values)
    exact = stats.binomtest(30, 100).proportion_ci(method="wilson")
    assert (found.low, found.high) == (
        pytest.approx(exact.low, abs=0.015),
        pytest.approx(exact.high, abs=0.015),
    )


def test_intervals_of_degenerate_samples():
    found = bootstrap_interval([0.25] * 9)
    assert (found.mean, found.low, found.high, found.method) == (0.25, 0.25, 0.25, "constant")
    assert bootstrap_interval([0, 0, 0]).method == "constant"
    one = bootstrap_interval([0.5])
    assert one.mean == 0.5 and math.isnan(one.low) and math.isnan(one.high) and one.method == "single"
    two = bootstrap_interval([0.0, 1.0])
    assert 0 <= two.low <= 0.5 <= two.high <= 1


def test_percentile_stands_in_where_bca_has_no_value(monkeypatch):
    plain = stats.bootstrap

    def without_bca(data, statistic, *, method, **more):
        if method == "BCa":
            return type(
                "Found", (), {"confidence_interval": type("Pair", (), {"low": math.nan, "high": math.nan})}
            )
        return plain(data, statistic, method=method, **more)

    monkeypatch.setattr(stats, "bootstrap", without_bca)
    found = bootstrap_interval(BASE)
    assert found.method == "percentile" and found.low < found.mean < found.high


@pytest.mark.parametrize(
    "values, level, said",
    [
        ([], 0.95, "one value per query"),
        ([[1.0]], 0.95, "one value per query"),
        ([1.0, math.nan], 0.95, "value 1 is not finite"),
        ([1.0, 2.0], 95, "level = 95"),
    ],
)
def test_impossible_samples_raise(values, level, said):
    with pytest.raises(InputError, match=said):
        bootstrap_interval(values, level)


# --- paired tests -----------------------------------------------------------------------------------------


def brute_p(change):
    """Two-sided sign-flip p-value by counting every flip."""
    flips = itertools.product((1, -1), repeat=len(change))
    sums = np.array([sum(s * c for s, c in zip(signs, change, strict=True)) for signs in flips])
    above, below = np.mean(sums >= sum(change) - 1e-12), np.mean(sums <= sum(change) + 1e-12)
    return min(1.0, 2 * min(above, below))


@pytest.mark.parametrize(
    "a, b, p, wins, ties, losses",
    [
        ([1, 2, 3], [0, 0, 0], 0.25, 3, 0, 0),
        ([1, 2, 3, 4, 5], [0] * 5, 2 / 32, 5, 0, 0),
        ([0] * 5, [1, 2, 3, 4, 5], 2 / 32, 0, 0, 5),
        ([3, 0], [0, 1], 1.0, 1, 0, 1),
        ([1, 2, 3, 7, 7, 7], [0, 0, 0, 7, 7, 7], 0.25, 3, 3, 0),  # ties carry no information
        ([7, 7], [7, 7], 1.0, 0, 2, 0),
    ],
)
def test_small_permutation_tests_are_exact(a, b, p, wins, ties, losses):
    found = paired_permutation(a, b)
    assert found.p == pytest.approx(p) and found.exact
    assert (found.wins, found.ties, found.losses) == (wins, ties, losses)
    assert found.difference == pytest.approx(np.mean(a) - np.mean(b))


def test_permutation_test_against_every_flip():
    for seed in range(5):
        change = np.random.default_rng(seed).normal(0.4, 1, 10).round(2)
        assert paired_permutation(change, np.zeros(10)).p == pytest.approx(brute_p(change))


def test_large_permutation_tests_are_sampled_and_seeded():
    found = paired_permutation(BETTER, BASE, seed=3)
    assert (
        not found.exact
        and found.p == pytest.approx(2 / 10000)
        and found == paired_permutation(BETTER, BASE, seed=3)
    )
    assert found.wins + found.ties + found.losses == 40 and found.wins > 30
    change = np.random.default_rng(0).normal(0.1, 1, 200)
    sampled = paired_permutation(change, np.zeros(200)).p
    assert sampled == pytest.approx(stats.ttest_1samp(change, 0).pvalue, abs=0.02)


def test_p_values_of_no_effect_are_level():
    rng = np.random.default_rng(1)
    p = [paired_permutation(rng.random(11), rng.random(11)).p for _ in range(200)]
    assert np.mean(np.array(p) <= 0.1) == pytest.approx(0.1, abs=0.05)


def test_unequal_lengths_raise():
    with pytest.raises(InputError, match="a has 2 values and b 3"):
        paired_permutation([1, 2], [1, 2, 3])


def test_a_single_query_that_differs_is_no_evidence() -> None:
    found = paired_permutation([1, 0, 0.5], [0, 0, 0.5])
    assert (found.p, found.exact, found.wins, found.ties) == (1.0, True, 1, 2)


def grouped(name, values, groups):
    return Run(name, [str(i) for i in range(len(values))], {"R@10": np.array(values)}, groups=groups)


def test_the_interval_of_a_mean_over_groups_resamples_every_group():
    groups = ["a"] * 30 + ["b"] * 10
    values = np.r_[np.ones(30), np.zeros(10)]
    found = bootstrap_interval(values, groups=groups)
    # Within each group nothing varies, so the mean of the two means does not either.
    assert (found.mean, found.low, found.high, found.method) == (0.5, 0.5, 0.5, "constant")
    rng = np.random.default_rng(0)
    values = np.r_[rng.random(30), rng.random(10)]
    found = bootstrap_interval(values, groups=groups)
    assert found.mean == pytest.approx((values[:30].mean() + values[30:].mean()) / 2, abs=1e-15)
    spread = np.sqrt(values[:30].var() / 30 + values[30:].var() / 10) / 2
    assert found.high - found.low == pytest.approx(2 * 1.96 * spread, rel=0.1)
    assert found == bootstrap_interval(values, groups=groups), "seeded"
    with pytest.raises(InputError, match="39 names for 40 values"):
        bootstrap_interval(values, groups=groups[1:])


def test_runs_with_groups_are_compared_on_the_mean_of_the_groups():
    groups = ["a", "a", "a", "b"]
    runs = [grouped("base", [0, 0, 1, 0], groups), grouped("new", [1, 0, 1, 1], groups)]
    assert runs[0].metrics == ["a/R@10", "b/R@10", "mean/R@10"]
    table = results_table(runs, ["mean/R@10", "a/R@10"])
    assert table["mean/R@10"].tolist() == pytest.approx([1 / 6, 5 / 6])
    assert table["a/R@10"].tolist() == pytest.approx([1 / 3, 2 / 3])
    paired = paired_table(runs, [("new", "base")], "mean/R@10")
    assert paired["difference"][0] == pytest.approx(2 / 3)
    assert paired[["wins", "ties", "losses"]].loc[0].tolist() == [2, 2, 0]
    # Flips of +2/3 (query 0, a third of its group) and +2 (query 3, all of its own): of the four sums two are
    # as far from 0.
    assert paired["p"][0] == pytest.approx(0.5)
    with pytest.raises(InputError, match="has no metric 'R@10'"):
        results_table(runs, ["R@10"])


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]).tolist() == [1.0, 1.0]
    assert holm([0.04]).tolist() == [0.04] and holm([]).tolist() == []
    assert holm([0.02, 0.02]).tolist() == [0.04, 0.04]
    for bad in ([1.5], [-0.1], [math.nan]):
        with pytest.raises(InputError, match="0 to 1"):
            holm(bad)


# --- effects, shared resamples, queries -------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, expected",
    [
        ([1, 2, 3], 2.0),  # mean 2, standard deviation 1
        ([-1, -2, -3], -2.0),
        ([1, -1], 0.0),
        ([0.2, 0, 0, 0], 0.5),  # mean 0.05, variance (0.15² + 3 · 0.05²) / 3 = 0.01
        ([0, 0, 0], 0.0),
        ([0], 0.0),
    ],
)
def test_effects_by_hand(changes, expected):
    assert effect_size(changes) == pytest.approx(expected, abs=1e-12)


def test_an_effect_without_spread_has_no_value():
    assert math.isnan(effect_size([0.5])) and math.isnan(effect_size([0.1, 0.1, 0.1]))
    assert math.isnan(effect_size([0.3 - 0.2, 0.1, 1.1 - 1.0])), "equal but for rounding"
    with pytest.raises(InputError, match="value 1 is not finite"):
        effect_size([1, math.inf])


def test_an_effect_over_groups_weighs_each_group_the_same():
    # Group means 1 and 0: mean 1/2; every value is 1/2 away, so the variance is 1/4 · 4/3 = 1/3.
    assert effect_size([1, 1, 1, 0], ["a", "a", "a", "b"]) == pytest.approx(0.5 * math.sqrt(3), abs=1e-12)
    same = effect_size([0.3, -0.1, 0.2, 0.4], ["a", "b", "a", "b"])
    assert same == pytest.approx(effect_size([0.3, -0.1, 0.2, 0.4]), abs=1e-12), "groups of one size"
    with pytest.raises(InputError, match="1 names for 2 values"):
        effect_size([1, 2], ["a"])


def test_an_effect_does_not_grow_with_the_number_of_queries():
    change = BETTER - BASE
    small, large = effect_size(change), effect_size(np.tile(change, 25))
    assert large == pytest.approx(small * math.sqrt(1000 / 999 / (40 / 39)) ** -1, rel=1e-9)
    assert small == pytest.approx(stats.ttest_rel(BETTER, BASE).statistic / math.sqrt(40), rel=1e-12)


def test_resampled_means_share_their_draws():
    values = np.array([[0.0, 1, 2], [1, 2, 3], [0, 2, 4]])
    means = resampled_means(values, 500)
    assert means.shape == (500, 3) and (means == resampled_means(values, 500)).all()
    assert np.allclose(means[:, 1], means[:, 0] + 1) and np.allclose(means[:, 2], 2 * means[:, 0])
    sums = np.round(3 * means[:, 0]).astype(int)
    assert np.allclose(sums, 3 * means[:, 0]) and set(sums) == set(range(7)), "every sum of three draws"
    # A group of one query is drawn whole: its mean is there in every sample.
    grouped = resampled_means([[0.0, 1, 5]], 500, groups=["a", "a", "b"])
    assert set(grouped[:, 0]) == {2.5, 2.75, 3.0}
    with pytest.raises(InputError, match="table of finite numbers"):
        resampled_means([1.0, 2.0])


def test_wins_ties_and_losses_by_query():
    runs = [
        run("base", [0.2, 0.5, 0.5, 0.9], ["q1", "q2", "q3", "q4"]),
        run("new", [0.1, 0.5, 0.8, 1.0], ["q4", "q2", "q3", "q1"]),  # matched by id, not by place
    ]
    table = query_table(runs, [("new", "base")], "mAP@10")
    assert table["query"].tolist() == ["q1", "q3", "q2", "q4"]
    assert table["outcome"].tolist() == ["win", "win", "tie", "loss"]
    assert table["change"].tolist() == pytest.approx([0.8, 0.3, 0, -0.8])
    assert table["value"].tolist() == [1.0, 0.8, 0.5, 0.1]
    assert table["value against"].tolist() == [0.2, 0.5, 0.5, 0.9]
    paired = paired_table(runs, [("new", "base")], "mAP@10", resamples=99)
    counts = table["outcome"].value_counts()
    assert paired[["wins", "ties", "losses"]].loc[0].tolist() == [counts[n] for n in ("win", "tie", "loss")]
    # changes 0.8, 0.3, 0, -0.8: mean 0.075, squares 0.5256, 0.0506, 0.0056, 0.7656 over 3 = 0.4492
    assert paired["effect"][0] == pytest.approx(0.075 / math.sqrt(1.3475 / 3), abs=1e-12)


# --- tables -----------------------------------------------------------------------------------------------


def test_results_table_with_a_baseline():
    runs = [
        run("base", BASE, columns={"mllm_calls": 0}),
        run("better", BETTER, columns={"mllm_calls": 40, "note": "x|y"}),
    ]
    table = results_table(runs, baseline="base", resamples=999)
    assert list(table.columns) == [
        "method", "mAP@10", "mAP@10 low", "mAP@10 high", "R@10", "R@10 low", "R@10 high", *PAIRED_COLUMNS,
        "mllm_calls", "note",
    ]  # fmt: skip
    assert table["method"].tolist() == ["base", "better"]
    assert table["mAP@10"].tolist() == pytest.approx([BASE.mean(), BETTER.mean()])
    assert table[PAIRED_COLUMNS].iloc[0].isna().all()
    assert table["difference"].iloc[1] == pytest.approx(BETTER.mean() - BASE.mean())
    assert table["p (Holm)"].iloc[1] == table["p"].iloc[1] == pytest.approx(2 / 1000)
    text = to_markdown(table).splitlines()
    assert text[0] == (
        "| method | mAP@10 | R@10 | difference | wins | ties | losses | effect | p | p (Holm) | mllm_calls "
        "| note |"
    )
    assert text[1].startswith("| --- | ---: |") and text[1].endswith(" --- |") and len(text) == 4
    low, high = 100 * table["mAP@10 low"].iloc[0], 100 * table["mAP@10 high"].iloc[0]
    assert f"| base | {100 * BASE.mean():.2f} [{low:.2f}, {high:.2f}] |" in text[2]
    assert "| – | – | – | – | – | – | – | 0 | – |" in text[2]
    assert (
        f"| {100 * (BETTER - BASE).mean():+.2f} [+" in text[3] and "| 0.002 | 0.002 | 40 | x\\|y |" in text[3]
    )


def test_tables_of_one_metric_one_run_and_one_query():
    table = results_table([run("a", [0.5], ["q"])], ["mAP@10"])
    assert list(table.columns) == ["method", "mAP@10", "mAP@10 low", "mAP@10 high"]
    assert to_markdown(table) == "| method | mAP@10 |\n| --- | ---: |\n| a | 50.00 |\n"
    alone = results_table([run("a", BASE)], ["mAP@10"], baseline="a", resamples=99)
    assert alone[PAIRED_COLUMNS].isna().all().all()


def test_paired_table_corrects_over_its_rows_and_matches_queries_by_id():
    shuffled = np.random.default_rng(0).permutation(40)
    moved = run("moved", BETTER[shuffled], [QUERIES[i] for i in shuffled])
    noise = run("noise", BASE + np.tile([0.01, -0.01], 20))
    table = paired_table(
        [run("base", BASE), moved, noise], [("moved", "base"), ("noise", "base")], "mAP@10", resamples=999
    )
    assert table["against"].tolist() == ["base", "base"] and table["wins"].tolist()[1] == 20
    assert table["difference"].tolist() == pytest.approx([(BETTER - BASE).mean(), 0], abs=1e-12)
    assert table["p (Holm)"].tolist() == pytest.approx([2 * table["p"][0], table["p"][1]])
    assert (table["difference low"] <= table["difference"]).all() and table["difference low"][0] > 0
    assert to_markdown(table).splitlines()[0].startswith("| method | against | difference | wins |")
    assert isinstance(table, pd.DataFrame)


def test_small_p_values_are_not_printed_as_zero():
    table = pd.DataFrame({"method": ["a"], "p": [0.0002], "calls": [12], "seconds": [1.25]})
    assert to_markdown(table).splitlines()[2] == "| a | < 0.001 | 12 | 1.25 |"


@pytest.mark.parametrize(
    "runs, more, said",
    [
        ([], {}, "at least one run"),
        ([run("a", BASE), run("a", BASE)], {}, "two runs are called 'a'"),
        ([run("a", BASE)], {"metrics": ["mAP@7"]}, "no metric 'mAP@7'; choose one of mAP@10, R@10"),
        ([run("a", BASE)], {"metrics": []}, "at least one metric"),
        ([run("a", BASE)], {"baseline": "z"}, "no run is called 'z'; choose one of a"),
        ([run("a", BASE), run("b", BASE, QUERIES[:-1] + ["x"])], {"baseline": "a"}, "different queries"),
        ([run("a", BASE), run("b", BASE[:9], QUERIES[:9])], {"baseline": "a"}, "different queries"),
        ([run("a", BASE[:9])], {}, "9 values of mAP@10 for 40 queries"),
        ([run("a", BASE, protocol={"split": "val"}), run("b", BASE, protocol={"split": "test"})], {},
         "split: 'val' and 'test'"),
    ],
)  # fmt: skip
def test_tables_refuse_what_is_not_comparable(runs, more, said):
    with pytest.raises(InputError, match=said):
        results_table(runs, resamples=99, **more)
