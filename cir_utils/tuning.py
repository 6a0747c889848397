"""Choose the settings of a method on a validation split: alpha, beta, k', lambda, kappa, and whatever else a
method declares (``grid`` and ``scorer`` of its entry in :data:`cir_utils.methods.METHODS`).

Everything that costs is done once: gallery features, descriptions, imaginations, and the verification of
every candidate that any point of the search could send there. A point is then arithmetic on the stored
scores.

The rule, fixed beforehand: the highest value of the metric wins; of equal ones the smallest setting, in the
order of the method's grid (alpha then beta; k' then lambda then kappa). Beside the chosen point stands the
*stability band*, all points that the queries cannot tell from it (:func:`stability_band`). Every split but
val is refused."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from cir_utils import plots
from cir_utils.charts import curves, point_map
from cir_utils.compare import LEVEL, MEAN, SEED, resampled_means
from cir_utils.errors import InputError
from cir_utils.files import write_atomic, write_json_atomic
from cir_utils.methods import (
    PROFILE_METHODS,
    SETTINGS,
    SettingValue,
    check_tunable,
    load_scorer,
    resolve_settings,
)  # fmt: skip
from cir_utils.methods.description_only import describe
from cir_utils.profiles import GIVEN, MINI_SETTINGS, SETTING_NAMES, read_mini_settings
from cir_utils.runs import TABLE_METRICS, git_commit, save_folder, versions
from cir_utils.scoring import exact_scores, first_places
from cir_utils.tables import protocol_line
from cir_utils.typeset import to_csv
from cir_utils.workbench import Workbench

Search = Literal["grid", "random"]
Point = dict[str, SettingValue]
FORMAT = 1
#: The files of a tuning's folder: the record, every point with its value, and the heat map.
RECORD, POINTS, MAP = "tuning.json", "points.csv", "map.png"
#: How many points random search draws, and the most that a grid may have (minutes at milliseconds a point).
DRAWN, MOST = 200, 20_000
#: Bootstrap samples of the stability band, and how many points are resampled at a time.
RESAMPLES, BLOCK = 1999, 500


@dataclass(frozen=True)
class Scored:
    """Points and what they are worth on one metric: ``per_query`` ``(P, Q)`` float64; ``groups`` names the
    category of every query where the metric is a mean over categories, else it is empty. ``prepared`` are the
    seconds of what is done once, ``scored`` those of all points together."""

    points: list[Point]
    per_query: np.ndarray
    groups: list[str]
    prepared: float
    scored: float

    @property
    def values(self) -> np.ndarray:
        """The metric of every point ``(P,)`` float64: the mean over queries, or the mean of the groups'."""
        if not self.groups:
            return self.per_query.mean(axis=1)
        names = np.array(self.groups)
        own = [self.per_query[:, names == name].mean(axis=1) for name in dict.fromkeys(self.groups)]
        return np.mean(own, axis=0)


@dataclass(frozen=True)
class Tuning:
    """One method tuned: its ``record`` (what was chosen, under what, as in a run record), all ``points`` with
    their ``values`` ``(P,)``, which of them are in the stability ``band`` ``(P,)`` bool, and the number
    ``best`` of the one chosen."""

    record: dict[str, Any]
    points: list[Point]
    values: np.ndarray
    band: np.ndarray
    best: int

    @property
    def chosen(self) -> Point:
        return self.points[self.best]

    def lines(self) -> list[str]:
        """The result for the terminal: what was chosen, what a point cost, and the band."""
        record = self.record
        chosen = ", ".join(f"{name} {value:g}" for name, value in self.chosen.items())
        spread = ", ".join(
            f"{name} {low:g}" if low == high else f"{name} {low:g} to {high:g}"
            for name, (low, high) in record["band"]["ranges"].items()
        )
        best, usual = 100 * record["best"], 100 * record["usual"]["value"]
        lines = [f"{record['method']}: {chosen}: {best:.2f} (usual {usual:.2f})"]
        lines.append(
            f"  {record['search']} of {len(self.points):,} points, {record['ms_per_point']:.1f} ms a point "
            f"after {record['prepare_seconds']:.1f} s"
        )
        lines.append(
            f"  stability band: {record['band']['points']:,} points that the queries cannot tell from it: "
            f"{spread}"
        )
        if record["edges"]:
            lines.append(f"  note: at the end of the grid: {', '.join(record['edges'])}")
        return lines

    def figure(self) -> Figure:
        """The heat map of the first two settings, with the band marked and the chosen point framed; other
        settings of a grid are at their chosen values. One setting alone gives a curve."""
        record, names = self.record, list(self.chosen)
        title = f"{record['method']}, {record['metric']} in percent, {record['benchmark']} {record['split']}"
        percent = 100 * self.values
        if len(names) == 1:
            x = [float(point[names[0]]) for point in self.points]
            inside = [value for value, own in zip(x, self.band, strict=True) if own]
            marks = {"chosen": x[self.best], "band from": min(inside), "to": max(inside)}
            return curves(x, {record["metric"]: percent.tolist()}, xlabel=names[0], ylabel="percent",
                          title=title, marks=marks)  # fmt: skip
        first, second, *rest = names
        if record["search"] == "random":
            x, y = ([float(point[name]) for point in self.points] for name in (first, second))
            return point_map(x, y, percent.tolist(), xlabel=first, ylabel=second, title=title,
                             marked=self.band.tolist(), best=self.best)  # fmt: skip
        grid = record["grid"]
        rows, columns = sorted((first, second), key=lambda name: len(grid[name]), reverse=True)
        table = np.full((len(grid[rows]), len(grid[columns])), np.nan)
        marked = np.zeros(table.shape, dtype=bool)
        for point, value, inside in zip(self.points, percent, self.band, strict=True):
            if all(point[name] == self.chosen[name] for name in rest):
                place = grid[rows].index(point[rows]), grid[columns].index(point[columns])
                table[place], marked[place] = value, inside
        held = ", ".join(f"{name} {self.chosen[name]:g}" for name in rest)
        return plots.heatmap(
            table,
            [f"{value:g}" for value in grid[rows]],
            [f"{value:g}" for value in grid[columns]],
            xlabel=columns,
            ylabel=rows,
            title=f"{title}, {held}" if held else title,
            fmt=".1f",
            outline_best=True,
            marked=marked,
        )

    def table(self) -> pd.DataFrame:
        """Every point: its settings, the metric (a fraction), and whether it is in the band."""
        return pd.DataFrame(self.points).assign(**{self.record["metric"]: self.values, "in band": self.band})

    def save(self, out: Path | None = None) -> Path:
        """Write the tuning's folder (record, points, heat map) as runs are written, and return its path;
        ``out`` None makes a new one below ``runs/``."""
        name = {"method": f"tune-{self.record['method']}"}
        return save_folder(self._write, self.record | name, out, RECORD)

    def _write(self, folder: Path) -> None:
        write_json_atomic(folder / RECORD, self.record)
        write_atomic(folder / POINTS, to_csv(self.table()))
        write_atomic(folder / MAP, plots.figure_png(self.figure()))


@dataclass(frozen=True)
class Tuned:
    """Several methods tuned on one metric of one benchmark: ``values`` by setting name; ``best`` and
    ``usual`` the metric of each method with the chosen and with the profile's settings; ``edges`` names
    settings chosen at the end of their grid. ``choices`` (models, prompts, generation, each with its source)
    and ``protocol`` say under what, as in a run record."""

    methods: dict[str, Tuning]

    @property
    def record(self) -> dict[str, Any]:
        """What all methods share, from the first one's record."""
        return next(iter(self.methods.values())).record

    @property
    def benchmark(self) -> str:
        return str(self.record["benchmark"])

    @property
    def split(self) -> str:
        return str(self.record["split"])

    @property
    def queries(self) -> int:
        return int(self.record["queries"])

    @property
    def metric(self) -> str:
        return str(self.record["metric"])

    @property
    def values(self) -> Point:
        found = {name: value for one in self.methods.values() for name, value in one.chosen.items()}
        order = [*SETTING_NAMES, *found]
        return {name: found[name] for name in dict.fromkeys(order) if name in found}

    @property
    def best(self) -> dict[str, float]:
        return {name: one.record["best"] for name, one in self.methods.items()}

    @property
    def usual(self) -> dict[str, float]:
        return {name: one.record["usual"]["value"] for name, one in self.methods.items()}

    @property
    def edges(self) -> list[str]:
        return [name for one in self.methods.values() for name in one.record["edges"]]

    @property
    def tuned_on(self) -> str:
        return f"{self.benchmark} {self.split}, {self.queries} queries, {self.metric}"

    def as_dict(self) -> dict[str, Any]:
        shared = {key: self.record[key] for key in ("benchmark", "split", "queries", "metric")}
        own = ("search", "random_seed", "points", "chosen", "best", "usual", "band", "ms_per_point")
        return shared | {
            "values": self.values,
            "best": self.best,
            "usual": self.usual,
            "edges": self.edges,
            "choices": self.record["choices"],
            "protocol": self.record["protocol"],
            "methods": {name: {key: one.record[key] for key in own} for name, one in self.methods.items()},
        }

    def describe(self, written: bool) -> str:
        """The result for the terminal."""
        lines = [f"tuned on {self.tuned_on}", protocol_line(self.record["protocol"])]
        given = [
            f"{name} {choice['value']}"
            for name, choice in self.record["choices"].items()
            if choice["source"] == GIVEN
        ]
        if given:
            lines.append(f"{GIVEN}: {', '.join(given)}")
        for one in self.methods.values():
            lines += one.lines()
        lines.append(
            f"written to {MINI_SETTINGS.name}" if written else "not kept; --write makes it the mini profile's"
        )
        return "\n".join(lines)


class Judge:
    """The metric of rankings given as gallery positions, on the workbench's device. ``places`` are the
    positions that are ranked: :attr:`Workbench.places`, for R_subset@k :attr:`Workbench.members`."""

    def __init__(self, bench: Workbench, metric: str) -> None:
        family, _, cut = metric.partition("@")
        known = ("mAP", "R") if bench.members is None else ("mAP", "R", "R_subset")
        if family not in known or not cut.isascii() or not cut.isdigit() or int(cut) < 1:
            names = " or ".join(f"{name}@k" for name in known)
            raise InputError(
                f"metric {metric!r} cannot be tuned on; choose {names}, for instance {known[0]}@5"
            )
        if not all(query.targets for query in bench.queries):
            raise InputError(
                f"the answers of {bench.benchmark.name} {bench.benchmark.split} are not public; tune on val"
            )
        self.family, self.k = family, int(cut)
        self.places = bench.places
        if family == "R_subset" and bench.members is not None:
            self.places = bench.members
        places = bench.place_of
        self.relevant = torch.zeros(len(bench.queries), len(places), dtype=torch.bool, device=bench.device)
        for row, query in enumerate(bench.queries):
            wanted = query.targets if family == "mAP" else [query.target]
            self.relevant[row, [places[image] for image in wanted if image is not None]] = True
        self.most = self.relevant.sum(dim=1).clamp(max=self.k).double()

    def per_query(self, order: Tensor) -> Tensor:
        """AP@k or R@k of each query ``(Q,)`` float64; ``order`` ``(Q, >= k)`` holds gallery positions, best
        first."""
        hit = self.relevant.gather(1, order[:, : self.k]).double()
        if self.family != "mAP":
            return hit.amax(dim=1)
        ranks = torch.arange(1, hit.shape[1] + 1, device=hit.device)
        return (hit.cumsum(dim=1) / ranks * hit).sum(dim=1) / self.most

    def __call__(self, order: Tensor) -> float:
        return float(self.per_query(order).mean())


# --- points and their values ------------------------------------------------------------------------------


def grid_points(grid: Mapping[str, Sequence[float]]) -> list[Point]:
    """Every combination of a grid's values, in row order: the last setting moves first."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def random_points(grid: Mapping[str, Sequence[float]], count: int = DRAWN, seed: int = SEED) -> list[Point]:
    """``count`` points drawn at random (Bergstra and Bengio, JMLR 2012) within a grid's ends, in row order;
    the same seed gives the same points.

    A value is drawn evenly along the grid's *steps* and interpolated between them, so a grid that is denser
    at its lower end (k', kappa) is drawn from more densely there. Whole-number settings are rounded, others
    to three decimals; a point that comes twice is kept once. Raises :class:`InputError` for a count below
    one."""
    if count < 1:
        raise InputError(f"points {count} is not valid: give a whole number, 1 or more")
    draws = np.random.default_rng(seed).random((count, len(grid)))
    columns: list[list[SettingValue]] = []
    for (name, values), drawn in zip(grid.items(), draws.T, strict=True):
        found = np.interp(drawn * (len(values) - 1), np.arange(len(values)), values)
        whole = SETTINGS[name].kind is int
        columns.append([round(float(value)) if whole else round(float(value), 3) for value in found])
    return [dict(zip(grid, values, strict=True)) for values in sorted(set(zip(*columns, strict=True)))]


def score_points(
    bench: Workbench,
    method: str,
    metric: str,
    points: Sequence[Point],
    others: Mapping[str, SettingValue] | None = None,
) -> Scored:
    """What ``points``, values of the method's tunable settings, are worth: those of runs with these settings.
    ``others`` are settings of the method that all points share, where they are not the profile's.

    Raises :class:`InputError` for a method without a scorer, a value outside its range, or a metric that
    cannot be tuned on."""
    parts, own = _parts(bench, metric)
    scorer = load_scorer(method)
    wanted = [resolve_settings(method, bench.settings, {**(others or {}), **point}) for point in points]
    tables, groups, prepared, scored = [], [], 0.0, 0.0
    for name, part in parts.items():
        judge = Judge(part, own)
        begin = time.perf_counter()
        rank = scorer(part, judge.places, judge.k, wanted)
        ready = time.perf_counter()
        rows = [judge.per_query(rank(point)) for point in wanted]
        tables.append(torch.stack(rows).cpu().numpy())
        scored += time.perf_counter() - ready
        prepared += ready - begin
        groups += [name] * len(part.queries)
    return Scored(list(points), np.concatenate(tables, axis=1), groups if len(parts) > 1 else [],
                  prepared, scored)  # fmt: skip


def _parts(bench: Workbench, metric: str) -> tuple[dict[str, Workbench], str]:
    """The galleries that a metric is taken over, and its name on each: for FashionIQ those of one category
    (``dress/R@10``) or of all (``mean/R@10``)."""
    if not bench.benchmark.categories:
        return {"": bench}, metric
    name, _, own = metric.rpartition("/")
    if name not in (MEAN, *bench.parts):
        choices = ", ".join(f"{known}/R@10" for known in (MEAN, *bench.parts))
        raise InputError(f"metric {metric!r} cannot be tuned on; choose one such as {choices}")
    return dict(bench.parts) if name == MEAN else {name: bench.parts[name]}, own


def best_of(values: np.ndarray) -> int:
    """The number of the highest of ``values`` ``(P,)``; of equal ones (to 12 decimals, so that the rounding
    of a mean decides nothing) the first, which is the smallest setting."""
    return int(np.argmax(np.round(values, 12)))


def stability_band(
    per_query: np.ndarray, best: int, groups: Sequence[str] = (), resamples: int = RESAMPLES, seed: int = SEED
) -> np.ndarray:
    """Which points the queries cannot tell from point ``best``: ``(P,)`` bool for ``per_query`` ``(P, Q)``.

    A point is in the band when the 95 % bootstrap interval (percentiles, over queries, paired: every point
    under the same draws) of its loss against the best reaches zero. With ``groups`` the groups are drawn one
    by one. The best is also the luckiest on these queries, which overstates its lead: the band is rather too
    narrow than too wide. It is wider than any single point suggests where the metric is flat, and that is
    what it is for: settings inside it are no worse choice."""
    low = np.empty(len(per_query))
    for start in range(0, len(per_query), BLOCK):
        block = slice(start, start + BLOCK)
        losses = resampled_means(per_query[best] - per_query[block], resamples, seed, groups)
        low[block] = np.quantile(losses, (1 - LEVEL) / 2, axis=0)
    return low <= 1e-12


def sdr_grid(
    bench: Workbench,
    metric: str,
    alphas: Sequence[float] | None = None,
    betas: Sequence[float] | None = None,
    description: str = "selective",
) -> Tensor:
    """``metric`` of SDR-CIR for every pair, ``(len(alphas), len(betas))`` float64: the heat map of the
    notebooks. ``description`` is the setting of that name, "selective" or "plain"."""
    return _grid(bench, "sdr-cir", metric, {"alpha": alphas, "beta": betas}, {"description": description})


def sdr_grid_per_query(
    bench: Workbench,
    metric: str,
    alphas: Sequence[float],
    betas: Sequence[float],
    description: str = "selective",
) -> Tensor:
    """The values behind :func:`sdr_grid`, one a query: ``(len(alphas), len(betas), Q)`` float64."""
    points = grid_points({"alpha": alphas, "beta": betas})
    scored = score_points(bench, "sdr-cir", metric, points, {"description": description})
    return torch.from_numpy(scored.per_query).view(len(alphas), len(betas), -1)


def weight_grid(bench: Workbench, metric: str, weights: Any, description: str = "selective") -> Tensor:
    """``metric`` of weighted means of (F_d, F_r, F_m) as queries, ``(P,)`` float64: the map over the triangle
    of notebook 03.

    ``weights`` ``(P, 3)``, the same for every query (`plots.triangle_grid` covers the triangle): its corners
    are description-only, image-only and text-only, (0, 1/2, 1/2) is image+text. A cosine of a sum is the sum
    of cosines over its length, so the three products of `sdr_grid` serve all of them."""
    parts, own = _parts(bench, metric)
    mixes = torch.as_tensor(weights, dtype=torch.float64).tolist()
    return torch.stack([_weighted(part, own, mixes, description) for part in parts.values()]).mean(dim=0)


def _weighted(part: Workbench, metric: str, mixes: list[list[float]], description: str) -> Tensor:
    judge = Judge(part, metric)
    described = describe(part, description)
    S_d, S_r, S_m = (
        exact_scores(F, part.gallery_features)
        for F in (described.features, part.reference_features, part.modification_features)
    )
    vague = torch.tensor(described.vague, device=S_r.device)[:, None]
    values = []
    for d, r, m in mixes:
        scores = torch.where(vague & (d > 0), S_r, d * S_d + r * S_r + m * S_m)
        values.append(judge(judge.places.gather(1, first_places(scores.gather(1, judge.places), judge.k))))
    return torch.tensor(values, dtype=torch.float64)


def chosen_on_few(values: Tensor, few: int, draws: int = 200, seed: int = 42) -> tuple[float, float]:
    """What it is worth to choose a setting on the queries that are reported: ``values`` ``(settings, Q)``.

    ``draws`` times, ``few`` queries are drawn, the setting that is best on them is chosen, and two means are
    noted: on these queries (the boast) and on all others (what holds). Returns their means. Raises
    :class:`InputError` unless both groups have a query."""
    count = values.shape[1]
    if not 0 < few < count:
        raise InputError(f"few = {few} is not valid: give 1 to {count - 1}, so that some of {count} are left")
    generator = torch.Generator().manual_seed(seed)
    boasts, holds = [], []
    for _ in range(draws):
        order = torch.randperm(count, generator=generator).to(values.device)
        ours, theirs = values[:, order[:few]].mean(dim=1), values[:, order[few:]].mean(dim=1)
        chosen = int(ours.argmax())
        boasts.append(float(ours[chosen]))
        holds.append(float(theirs[chosen]))
    return sum(boasts) / draws, sum(holds) / draws


def xr_grid(
    bench: Workbench,
    metric: str,
    k_primes: Sequence[int] | None = None,
    lambdas: Sequence[float] | None = None,
    kappas: Sequence[float] | None = None,
) -> Tensor:
    """``metric`` of X^R for every setting, ``(len(k_primes), len(lambdas), len(kappas))`` float64.

    The candidates of all settings together are verified once. A k' above the gallery's size counts as all of
    it; the subset's members are all verified whatever k' is."""
    return _grid(bench, "xr", metric, {"k_prime": k_primes, "lambda": lambdas, "kappa": kappas}, {})


def _grid(
    bench: Workbench,
    method: str,
    metric: str,
    given: Mapping[str, Sequence[float] | None],
    others: Mapping[str, SettingValue],
) -> Tensor:
    usual = check_tunable(method).grid
    grid = {name: usual[name] if values is None else values for name, values in given.items()}
    scored = score_points(bench, method, metric, grid_points(grid), others)
    return torch.from_numpy(scored.values).view([len(values) for values in grid.values()])


# --- tuning -----------------------------------------------------------------------------------------------


def tune_method(
    bench: Workbench,
    method: str,
    metric: str | None = None,
    search: Search = "grid",
    count: int = DRAWN,
    seed: int = SEED,
    others: Mapping[str, SettingValue] | None = None,
) -> Tuning:
    """Tune ``method`` on ``bench``, whose split must be val; ``metric`` None is the benchmark's headline.
    ``others`` are settings of the method that stay as given, where they are not the profile's.

    ``search`` "grid" tries the method's whole grid, "random" ``count`` points (:func:`random_points`). Raises
    :class:`InputError` for another split, a method without a grid, and a grid of more than :data:`MOST`
    points."""
    if bench.benchmark.split != "val":
        raise InputError(
            f"cir tune refuses split {bench.benchmark.split!r}: settings are chosen on val alone"
        )
    grid = check_tunable(method).grid
    metric = metric or TABLE_METRICS[bench.benchmark.name][0]
    size = int(np.prod([len(values) for values in grid.values()]))
    if search == "grid" and size > MOST:
        raise InputError(f"the grid of {method} has {size:,} points; use --search random")
    points = grid_points(grid) if search == "grid" else random_points(grid, count, seed)
    settings = resolve_settings(method, bench.settings)
    usual = {name: settings[name] for name in grid}
    bench.start()
    started = datetime.now(UTC)
    # The usual settings are scored with the others, so that nothing is prepared twice, and stand last.
    found = score_points(bench, method, metric, [*points, usual], others)
    values, per_query = found.values[:-1], found.per_query[:-1]
    best = best_of(values)
    band = stability_band(per_query, best, found.groups)
    inside = [point for point, own in zip(points, band, strict=True) if own]
    chosen = points[best]
    record = {
        "format": FORMAT,
        "method": method,
        "benchmark": bench.benchmark.name,
        "split": bench.benchmark.split,
        "profile": bench.profile,
        "queries": per_query.shape[1],
        "metric": metric,
        "search": search,
        "random_seed": seed if search == "random" else None,
        "grid": {name: list(values) for name, values in grid.items()},
        "points": len(points),
        "others": dict(others or {}),
        "chosen": chosen,
        "best": float(values[best]),
        "usual": {"settings": usual, "value": float(found.values[-1])},
        "edges": [name for name in grid if search == "grid" and chosen[name] == grid[name][-1]],
        "band": {
            "rule": "95 % paired bootstrap interval of the loss against the best reaches zero",
            "points": len(inside),
            "ranges": {
                name: [min(point[name] for point in inside), max(point[name] for point in inside)]
                for name in grid
            },
        },
        "prepare_seconds": round(found.prepared, 3),
        "ms_per_point": round(1000 * found.scored / (len(points) + 1), 3),
        "settings_source": bench.settings_source,
        "choices": bench.choices(),
        "protocol": bench.benchmark.protocol.as_dict() | {"queries": len(bench.queries)},
        "cost": bench.cost(),
        "stages": {name: round(value, 3) for name, value in bench.seconds.items()},
        "device": str(bench.device),
        "versions": versions(),
        "inputs": bench.inputs(),
        "git_commit": git_commit(),
        "started": started.isoformat(timespec="seconds"),
    }
    return Tuning(record, points, values, band, best)


def tune(
    bench: Workbench, metric: str | None = None, methods: Sequence[str] = PROFILE_METHODS, **how: Any
) -> Tuned:
    """Tune ``methods`` one after another, each as :func:`tune_method` does with the same ``how``. What one
    chose holds for those after it (``xr-sdr`` takes alpha and beta from ``sdr-cir``, and so on)."""
    found: dict[str, Tuning] = {}
    chosen: Point = {}
    for name in methods:
        method = check_tunable(name)
        others = {
            key: value for key, value in chosen.items() if key in method.settings and key not in method.grid
        }
        found[name] = tune_method(bench, name, metric, others=others, **how)
        chosen |= found[name].chosen
    return Tuned(found)


def write_settings(tuned: Tuned) -> None:
    """Keep ``tuned`` as the mini profile's settings of its benchmark (``cir_utils/mini/settings.json``).

    Settings of a method that was not tuned stay as they are there. Raises :class:`InputError` where they were
    tuned on something else, for then one line could not say on what."""
    kept = read_mini_settings()
    entry = dict(kept.get(tuned.benchmark, {}))
    if not set(SETTING_NAMES) <= set(tuned.values) and entry.get("tuned_on") != tuned.tuned_on:
        told = f"were tuned on {entry['tuned_on']}" if entry else "are missing"
        raise InputError(
            f"{MINI_SETTINGS.name}: the other settings of {tuned.benchmark} {told}; tune all of them "
            "together: leave out METHOD"
        )
    kept = kept | {tuned.benchmark: entry | dict(tuned.values) | {"tuned_on": tuned.tuned_on}}
    try:
        write_json_atomic(MINI_SETTINGS, kept)
    except OSError as error:
        raise InputError(
            f"{MINI_SETTINGS.name} cannot be written ({error.strerror}); use a checkout of your own"
        ) from None
