"""How sure is a number, and is one method better than another: intervals, paired tests, effects, tables.

All of it works on per-query values (such as AP@10 of every query). The queries are the sample; models and
gallery are held fixed. Everything random is seeded, so the same values give the same table.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from cir_utils.errors import InputError
from cir_utils.typeset import to_markdown as to_markdown

LEVEL = 0.95
RESAMPLES = 9999
SEED = 42
#: What the mean over a run's groups is called.
MEAN = "mean"
#: Values of one resampling batch (8 bytes each): bounds the memory of long query lists.
BATCH_VALUES = 4_000_000

PAIRED_COLUMNS = [
    "difference",
    "difference low",
    "difference high",
    "wins",
    "ties",
    "losses",
    "effect",
    "p",
    "p (Holm)",
]


@dataclass(frozen=True)
class Interval:
    """A mean with its bootstrap interval. `method` says how the interval was made; `low` and `high` are NaN
    for `"single"`.
    """

    mean: float
    low: float
    high: float
    method: Literal["BCa", "percentile", "constant", "single"]


@dataclass(frozen=True)
class Paired:
    """One method against another over the same queries.

    `difference` is mean(a) - mean(b), `p` the two-sided p-value of the sign-flip test (`exact` when every
    flip was counted), `wins`, `ties`, `losses` the numbers of queries where a is above, equal to and below b.
    """

    difference: float
    p: float
    exact: bool
    wins: int
    ties: int
    losses: int


@dataclass(frozen=True)
class Run:
    """What a comparison needs of a run: its name, its queries, and for every metric the values `(Q,)` in that
    order.

    `protocol` is the run's protocol (runs of different protocols are not put into one table); `columns` are
    more cells of the run's row, such as the number of MLLM calls and of parse failures. `groups` names the
    group of every query where figures are given by group (FashionIQ's categories): the metrics are then
    `<group>/M` for every group and `mean/M`, the plain mean of the groups, for every M of `values`.
    """

    name: str
    queries: Sequence[str]
    values: Mapping[str, np.ndarray]
    protocol: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    groups: Sequence[str] = ()

    @property
    def metrics(self) -> list[str]:
        """The metrics that a table can show."""
        if not self.groups:
            return list(self.values)
        names = [*dict.fromkeys(self.groups), MEAN]
        return [f"{name}/{metric}" for name in names for metric in self.values]


def _sample(name: str, values: Any) -> np.ndarray:
    """Values as float64 `(n,)`; `InputError` for another shape, no value, NaN or infinity."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or sample.size == 0:
        raise InputError(
            f"{name}: expected one value per query, got shape {sample.shape}; give a list of numbers"
        )
    if not np.isfinite(sample).all():
        raise InputError(
            f"{name}: value {int(np.flatnonzero(~np.isfinite(sample))[0])} is not finite; give finite values"
        )
    return sample


# --- one sample, two samples ------------------------------------------------------------------------------


def bootstrap_interval(
    values: Any,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    groups: Sequence[str] = (),
) -> Interval:
    """The mean of per-query `values` `(Q,)` with its bootstrap interval over queries. With `groups`, one name
    a query, it is the plain mean of the groups' means, and every group is resampled by itself.

    BCa (Efron 1987, as in `scipy.stats.bootstrap`), which allows for skewed values such as AP. Where BCa has
    no value, the percentile interval; a constant sample gives the point itself (`"constant"`), one query no
    interval (`"single"`). Raises `InputError` for an empty sample, values that are not finite, or a level
    outside (0, 1).
    """
    sample = _sample("values", values)
    if not 0 < level < 1:
        raise InputError(f"level = {level}: expected a number between 0 and 1, such as 0.95")
    parts = _by_group(sample, groups)
    mean = float(np.mean([part.mean() for part in parts]))
    if min(part.size for part in parts) == 1:
        return Interval(mean, float("nan"), float("nan"), "single")
    if all(np.ptp(part) == 0 for part in parts):
        return Interval(mean, mean, mean, "constant")
    methods: tuple[Literal["BCa", "percentile"], ...] = ("BCa", "percentile")
    for method in methods:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", stats.DegenerateDataWarning)
            found = stats.bootstrap(
                parts,
                _mean_of_means,
                confidence_level=level,
                n_resamples=resamples,
                batch=max(1, BATCH_VALUES // sample.size),
                method=method,
                rng=np.random.default_rng(seed),
            ).confidence_interval
        if np.isfinite(found.low) and np.isfinite(found.high):
            return Interval(mean, float(found.low), float(found.high), method)
    return Interval(mean, float("nan"), float("nan"), "single")


def paired_permutation(a: Any, b: Any, resamples: int = RESAMPLES, seed: int = SEED) -> Paired:
    """Is the mean of `a` different from that of `b` over the same queries? The sign-flip permutation test,
    two-sided.

    `a`, `b` are values `(Q,)` of the same queries in the same order. Under the null hypothesis the sign of
    every query's difference is a coin toss; queries without a difference carry no information and are left
    out of the flips. All flips are counted where there are at most `resamples` of them, else `resamples`
    random ones (then p is at least 1 / (resamples + 1)). Without any difference p is 1. Raises `InputError`
    for lengths that differ or values that are not finite.
    """
    first, second = _sample("a", a), _sample("b", b)
    if first.shape != second.shape:
        raise InputError(f"a has {first.size} values and b {second.size}; give the same queries for both")
    change = first - second
    moved = change[change != 0]
    p, exact = 1.0, True
    if moved.size > 1:  # the two flips of a single difference are equally far from zero: p is 1
        exact = 2.0**moved.size <= resamples
        p = float(
            stats.permutation_test(
                (moved,),
                _mean,
                permutation_type="samples",
                vectorized=True,
                n_resamples=resamples,
                batch=max(1, BATCH_VALUES // moved.size),
                rng=np.random.default_rng(seed),
            ).pvalue
        )
    return Paired(
        difference=float(change.mean()),
        p=p,
        exact=exact,
        wins=int((change > 0).sum()),
        ties=int((change == 0).sum()),
        losses=int((change < 0).sum()),
    )


def effect_size(changes: Any, groups: Sequence[str] = ()) -> float:
    """How large a paired difference is beside its spread: the mean of the per-query `changes` `(Q,)` over
    their standard deviation (with Q - 1).

    This is Cohen's d_z. Unlike p, it does not grow with the number of queries. With
    `groups` every group has the same weight in both, as in `bootstrap_interval`. 0 where nothing changes; NaN
    where it has no value: one query, or the same change at every query. Raises `InputError` for an empty
    sample or values that are not finite.
    """
    sample = _sample("changes", changes)
    _by_group(sample, groups)
    weights = _weights(groups)
    mean = float(np.mean(weights * sample))
    if not sample.any():
        return 0.0
    if sample.size < 2:
        return float("nan")
    variance = float(np.mean(weights * (sample - mean) ** 2)) * sample.size / (sample.size - 1)
    # Equal changes differ by rounding alone: that is no spread.
    return mean / variance**0.5 if variance**0.5 > 1e-12 * float(np.abs(sample).max()) else float("nan")


def resampled_means(
    values: Any, resamples: int = RESAMPLES, seed: int = SEED, groups: Sequence[str] = ()
) -> np.ndarray:
    """The means of many samples over the same queries under the same `resamples` bootstrap draws of queries:
    `values` `(P, Q)` -> `(resamples, P)` float64.

    As the draws are shared, differences of two columns are those of a paired bootstrap. With `groups` every
    group is drawn by itself, and the mean is that of the groups' means.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise InputError(f"values: expected a table of finite numbers (P, Q), got shape {table.shape}")
    places = _by_group(np.arange(table.shape[1], dtype=np.float64), groups)
    rng = np.random.default_rng(seed)
    means = np.zeros((resamples, len(table)))
    for own in places:
        columns = own.astype(np.int64)
        draws = rng.multinomial(columns.size, np.full(columns.size, 1 / columns.size), size=resamples)
        means += draws @ table[:, columns].T / columns.size
    return means / len(places)


def _mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.mean(values, axis=axis)


def _mean_of_means(*parts: np.ndarray, axis: int = -1) -> np.ndarray:
    return sum(np.mean(part, axis=axis) for part in parts) / len(parts)


def _by_group(sample: np.ndarray, groups: Sequence[str]) -> tuple[np.ndarray, ...]:
    """The values of every group; all of them where there are no groups."""
    if not groups:
        return (sample,)
    if len(groups) != sample.size:
        raise InputError(f"groups: {len(groups)} names for {sample.size} values; give one a value")
    return tuple(sample[[own == name for own in groups]] for name in dict.fromkeys(groups))


def _weights(groups: Sequence[str]) -> np.ndarray | float:
    """Weights of queries `(Q,)` under which the plain mean of values is the mean of the groups' means."""
    if not groups:
        return 1.0
    sizes = Counter(groups)
    return np.array([len(groups) / len(sizes) / sizes[name] for name in groups])


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Holm's step-down correction (1979): adjusted p-values `(m,)` in the order given, each at most 1.

    Rejecting where the adjusted value is at most 0.05 keeps the chance of any false rejection among the m
    tests at 5 %.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise InputError("p-values: expected a list of numbers from 0 to 1")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


# --- tables -----------------------------------------------------------------------------------------------


def results_table(
    runs: Sequence[Run],
    metrics: Sequence[str] | None = None,
    baseline: str | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """One row a run: every metric with its interval, and against `baseline` the paired test on the first
    metric.

    Columns: `method`; `M`, `M low`, `M high` for each metric M (default: those of the first run), fractions;
    with a `baseline` (a run's name) the columns of `paired_table`, NaN in the baseline's own row; then the
    runs' own `columns`. Raises `InputError` for no run, repeated names, an unknown metric or baseline, or
    runs of different protocols.
    """
    by_name = _by_name(runs)
    chosen = list(metrics) if metrics is not None else runs[0].metrics
    if not chosen:
        raise InputError("metrics: expected at least one metric name, such as mAP@10")
    rows = []
    for run in runs:
        row: dict[str, Any] = {"method": run.name}
        for metric in chosen:
            sample = _sampled(run, metric)
            interval = bootstrap_interval(sample.values, level, resamples, groups=sample.groups)
            row |= {metric: interval.mean, f"{metric} low": interval.low, f"{metric} high": interval.high}
        rows.append(row)
    table = pd.DataFrame(rows)
    if baseline is not None:
        _named(by_name, baseline)
        others = [(run.name, baseline) for run in runs if run.name != baseline]
        paired = paired_table(runs, others, chosen[0], level, resamples).set_index("method")
        table = table.join(paired[PAIRED_COLUMNS], on="method")
    extra = list(dict.fromkeys(name for run in runs for name in run.columns))
    for name in extra:
        table[name] = [run.columns.get(name) for run in runs]
    return table


def paired_table(
    runs: Sequence[Run],
    pairs: Sequence[tuple[str, str]],
    metric: str,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """One row a pair (method, against): is the first better on `metric`? Holm's correction runs over all
    rows.

    Columns: `method`, `against`, `difference` (fraction) with its bootstrap interval `difference low`,
    `difference high`; `wins`, `ties`, `losses` over queries; `effect`, see `effect_size`; `p` of the
    sign-flip test and `p (Holm)`.
    Queries are matched by id. Raises `InputError` for unknown names or metrics, and for runs over different
    queries or protocols.
    """
    by_name = _by_name(runs)
    rows = []
    for name, other in pairs:
        a, b = _named(by_name, name), _named(by_name, other)
        first, second, groups = _aligned(a, b, metric)
        # Weighted so, the mean difference is that of the groups' mean, and a sign flip stays a sign flip.
        weights = _weights(groups)
        test = paired_permutation(weights * first, weights * second, resamples)
        interval = bootstrap_interval(first - second, level, resamples, groups=groups)
        cells = (test.difference, interval.low, interval.high, test.wins, test.ties, test.losses)
        rows.append((name, other, *cells, effect_size(first - second, groups), test.p))
    table = pd.DataFrame(rows, columns=["method", "against", *PAIRED_COLUMNS[:-1]])
    table["p (Holm)"] = holm(table["p"].to_numpy(dtype=np.float64))
    return table


def query_table(runs: Sequence[Run], pairs: Sequence[tuple[str, str]], metric: str) -> pd.DataFrame:
    """Who won which query: one row a pair (method, against) and query, the largest gain of a pair first.

    Columns: `method`, `against`, `query`, the two values `value` and `value against` (fractions), their
    `change`, and the `outcome` "win", "tie" or "loss" of the first. Raises as `paired_table`.
    """
    by_name = _by_name(runs)
    columns = ["method", "against", "query", "value", "value against", "change", "outcome"]
    rows: list[tuple[Any, ...]] = []
    for name, other in pairs:
        a, b = _named(by_name, name), _named(by_name, other)
        first, second, _ = _aligned(a, b, metric)
        queries = _sampled(a, metric).queries
        for place in np.argsort(second - first, kind="stable"):
            change = first[place] - second[place]
            outcome = "win" if change > 0 else "loss" if change < 0 else "tie"
            rows.append((name, other, queries[place], first[place], second[place], change, outcome))
    return pd.DataFrame(rows, columns=columns)


def _by_name(runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by name, after checking names and protocols."""
    if not runs:
        raise InputError("runs: expected at least one run to put into a table")
    found: dict[str, Run] = {}
    for run in runs:
        if run.name in found:
            raise InputError(f"two runs are called {run.name!r}; give each a name of its own")
        found[run.name] = run
        for key in sorted(set(run.protocol) | set(runs[0].protocol)):
            here, there = run.protocol.get(key), runs[0].protocol.get(key)
            if here != there:
                raise InputError(
                    f"runs {runs[0].name!r} and {run.name!r} differ in protocol ({key}: {there!r} and "
                    f"{here!r}), so their numbers are not comparable; compare runs of one protocol"
                )
    return found


def _named(by_name: Mapping[str, Run], name: str) -> Run:
    if name not in by_name:
        raise InputError(f"no run is called {name!r}; choose one of {', '.join(by_name)}")
    return by_name[name]


@dataclass(frozen=True)
class _Sampled:
    """The queries that a metric is taken over, their values `(n,)`, and their groups where it is the mean
    over groups."""

    queries: list[str]
    values: np.ndarray
    groups: list[str]


def _sampled(run: Run, metric: str) -> _Sampled:
    if metric not in run.metrics:
        raise InputError(f"run {run.name!r} has no metric {metric!r}; choose one of {', '.join(run.metrics)}")
    group, _, name = metric.rpartition("/") if run.groups else ("", "", metric)
    values = _sample(f"{run.name} {metric}", run.values[name])
    if values.size != len(run.queries):
        raise InputError(
            f"run {run.name!r}: {values.size} values of {metric} for {len(run.queries)} queries; run again"
        )
    if group in ("", MEAN):
        return _Sampled(list(run.queries), values, list(run.groups))
    own = [place for place, name in enumerate(run.groups) if name == group]
    return _Sampled([run.queries[place] for place in own], values[own], [])


def _aligned(a: Run, b: Run, metric: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """The values of two runs in one order of queries, and the queries' groups."""
    first, second = _sampled(a, metric), _sampled(b, metric)
    place = {query: i for i, query in enumerate(second.queries)}
    if (
        len(place) != len(second.queries)
        or set(place) != set(first.queries)
        or len(first.queries) != len(place)
    ):
        odd = sorted(set(place) ^ set(first.queries))
        which = f" (such as query {odd[0]})" if odd else ""
        raise InputError(
            f"runs {a.name!r} and {b.name!r} rank different queries{which}; run both on the same ones"
        )
    return first.values, second.values[[place[query] for query in first.queries]], first.groups
