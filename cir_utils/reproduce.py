"""The reproduction matrix: what was published, what a run of ours gives, and whether the two agree.

A condition is a method on a benchmark's split with a backbone under a protocol. There are two kinds:

* published ones, from ``reproduction.yaml`` (protocols, systems, models, tolerances) and the figures of
  ``published_results.csv`` beside it, each with its source;
* those of the mini benchmarks, one for every record in ``results/``: what is expected of them is what their
  record says, so that new weights need new records and nothing else.

Run folders are set beside them. A run belongs to a condition when method, settings, benchmark, split,
backbone and protocol are the condition's; one that differs in its protocol is named and not compared.

Where a server alone knows the answers (CIRCO test, CIRR test1) a run has no metrics: what the server said
goes into a file ``server.json`` in the run folder, ``{"mAP@5": 0.2443, ...}``, fractions.
"""

from __future__ import annotations

import csv
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import yaml
from scipy import stats

from cir_utils import compare
from cir_utils.benchmarks import BENCHMARKS
from cir_utils.errors import InputError
from cir_utils.experiments import slug
from cir_utils.files import read_json
from cir_utils.methods import METHODS, SettingValue, resolve_settings
from cir_utils.profiles import PACKAGE, load_profile
from cir_utils.runs import RECORD, TABLE_METRICS, Run, load_run, run_method
from cir_utils.tables import protocol_line
from cir_utils.typeset import p_text
from cir_utils.workbench import Workbench, open_workbench

MATRIX = PACKAGE / "reproduction.yaml"
PUBLISHED = PACKAGE / "published_results.csv"
#: The kept records of the mini benchmarks (a checkout has them, an installed package does not).
RESULTS = PACKAGE.parent / "results"
#: Where runs are looked for when no folder is named.
RUNS = Path("runs")
SERVER = "server.json"
COLUMNS = (
    "method", "variant", "benchmark", "split", "backbone", "metric", "value", "source", "second_value",
    "second_source", "remark",
)  # fmt: skip
Verdict = Literal["OK", "close", "off", "not run"]
VERDICTS: tuple[Verdict, ...] = ("OK", "close", "off", "not run")
#: What a run of the mini profile may not have been given otherwise.
FIXED = ("encoder", "precision", "preprocessing", "mllm", "prompts", "temperature", "seed")
NO_METHOD = "no implementation"


@dataclass(frozen=True)
class Figure:
    """An expected score: ``value`` is a fraction; ``source`` where it was read; ``remark`` what a reader
    should know (a contradicting source, an inferred backbone)."""

    metric: str
    value: float
    source: str
    remark: str = ""


@dataclass(frozen=True)
class Condition:
    """A row of the matrix: what is run, under which protocol, and what is expected of it.

    ``settings`` are the method's settings that a run gives (all of them for a mini condition, else those that
    differ from the paper's), ``choices`` what it chooses otherwise than the profile (arguments of
    :func:`cir_utils.workbench.open_workbench`). ``missing`` says why it cannot be run, "" where it can.
    ``record`` is our own run that a mini condition must reproduce, None for a published one."""

    id: str
    method: str
    variant: str
    benchmark: str
    split: str
    backbone: str
    protocol: Mapping[str, Any]
    figures: tuple[Figure, ...]
    profile: str
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    choices: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""
    needs: tuple[str, ...] = ()
    record: Run | None = None

    @property
    def name(self) -> str:
        """Method and variant as tables list them."""
        system = matrix()["systems"].get(self.method, {}).get("name", self.method)
        if self.record is not None:
            return self.record.name
        return f"{system}, {self.variant}" if self.variant else system

    @property
    def command(self) -> str:
        """The command that runs it, "" where nothing can."""
        if self.missing:
            return ""
        words = ["cir", "run", self.method, "--benchmark", self.benchmark, "--profile", self.profile]
        words += ["--split", self.split]
        for option, value in self.choices.items():
            words += ["--" + option.replace("_", "-"), *([] if value is True else [str(value)])]
        for name, value in self.settings.items():
            words += ["--set", f"{name}={value}"]
        return shlex.join(words)


@dataclass(frozen=True)
class Kept:
    """A run folder that was found, and the run in it."""

    folder: Path
    run: Run


@dataclass(frozen=True)
class Agreement:
    """How alike two orders of the same methods are: Kendall's tau-b and Spearman's rho in [-1, 1], with
    two-sided p-values (exact without ties, that of rho up to seven methods). ``ours`` and ``published`` are
    the scores in the order of ``methods``; ``mini`` and ``against`` say of which benchmarks."""

    methods: tuple[str, ...]
    ours: tuple[float, ...]
    published: tuple[float, ...]
    tau: float
    tau_p: float
    rho: float
    rho_p: float
    mini: str = ""
    against: str = ""


# --- what is expected -------------------------------------------------------------------------------------


@cache
def matrix() -> dict[str, Any]:
    """``reproduction.yaml``; its parts are read where they are used."""
    return yaml.safe_load(MATRIX.read_text(encoding="utf-8"))


@cache
def published_rows(path: Path = PUBLISHED) -> tuple[dict[str, str], ...]:
    """The rows of the table of published figures as text, values in percent as printed.

    Raises :class:`InputError` that names the first line at fault: other columns, a value outside 0 to 100, a
    name that the matrix does not know, a metric that its benchmark does not have, a figure listed twice."""
    known, rows = matrix(), []
    seen: set[tuple[str, ...]] = set()
    with open(path, encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise InputError(f"{path.name}: its columns must be {', '.join(COLUMNS)}")
        for row in reader:
            faults = [
                f"unknown {column} {row[column]!r}"
                for column, part in (
                    ("method", "systems"), ("benchmark", "benchmarks"), ("backbone", "backbones"),
                    ("source", "sources"), ("second_source", "sources"),
                )
                if row[column] not in known[part] and not (column == "second_source" and not row[column])
            ]  # fmt: skip
            if not faults and row["metric"] not in TABLE_METRICS[row["benchmark"]]:
                faults.append(f"{row['benchmark']} has no metric {row['metric']!r}")
            for column in ("value", "second_value"):
                if not _is_percent(row[column]) and (column == "value" or row[column]):
                    faults.append(f"{column} {row[column]!r} is no number from 0 to 100")
            key = tuple(row[column] for column in COLUMNS[:6])
            if key in seen:
                faults.append(f"{' '.join(key)} is listed twice; keep one value and name the other second")
            if faults:
                raise InputError(f"{path.name}, line {reader.line_num}: {faults[0]}")
            seen.add(key)
            rows.append(row)
    return tuple(rows)


def _is_percent(text: str) -> bool:
    try:
        return 0 <= float(text) <= 100
    except ValueError:
        return False


def conditions(results: Path | None = None) -> list[Condition]:
    """All conditions: those of the mini benchmarks first, one for every record below ``results`` (default:
    the checkout's), then the published ones in the order of the table."""
    return [*mini_conditions(results), *published_conditions()]


def mini_conditions(results: Path | None = None) -> list[Condition]:
    """One condition for every kept run of a mini benchmark; what it must reproduce is the run itself."""
    found = []
    for kept in find_kept([RESULTS if results is None else results]):
        run, record = kept.run, kept.run.record
        if not BENCHMARKS[record["benchmark"]].shipped or not run.metrics:
            continue
        source = f"our record of {record['started'][:10]}"
        wanted = TABLE_METRICS[record["benchmark"]]
        encoder = record["inputs"].get("encoder", {}).get("encoder", "")
        found.append(
            Condition(
                id=f"{record['benchmark']}-{record['split']}/{slug(run.name)}",
                method=record["method"],
                variant="" if run.name == record["method"] else run.name,
                benchmark=record["benchmark"],
                split=record["split"],
                backbone=encoder.partition("@")[0] or "none",
                protocol=record["protocol"],
                figures=tuple(Figure(name, run.metrics[name], source) for name in wanted),
                profile="mini",
                settings=record["settings"],
                missing="" if record["method"] in METHODS else NO_METHOD,
                needs=("nothing: data and models are shipped",),
                record=run,
            )
        )
    return found


@cache
def published_conditions() -> tuple[Condition, ...]:
    """The conditions of the published figures."""
    groups: dict[tuple[str, ...], list[Figure]] = {}
    for row in published_rows():
        key = tuple(row[column] for column in COLUMNS[:5])
        groups.setdefault(key, []).append(
            Figure(row["metric"], float(row["value"]) / 100, row["source"], _remark(row))
        )
    return tuple(_published(key, tuple(figures)) for key, figures in groups.items())


def _remark(row: Mapping[str, str]) -> str:
    second = f"{row['second_value']} in {row['second_source']}" if row["second_value"] else ""
    return "; ".join(part for part in (second, row["remark"]) if part)


def _published(key: tuple[str, ...], figures: tuple[Figure, ...]) -> Condition:
    method, variant, benchmark, split, backbone = key
    system, bench = matrix()["systems"][method], matrix()["benchmarks"][benchmark]
    changed = system.get("variants", {}).get(variant) if variant else {}
    settings = dict((changed or {}).get("settings", {}))
    missing = ""
    if method not in METHODS or changed is None:
        missing = NO_METHOD
    elif set(settings) - set(METHODS[method].settings):
        missing = f"{NO_METHOD} of {', '.join(settings)}"
    mllm = (changed or {}).get("mllm", system.get("mllm"))
    encoder = system.get("encoders", {}).get(backbone, matrix()["backbones"][backbone])
    choices: dict[str, Any] = {"encoder": encoder}
    if mllm:
        choices["mllm"] = mllm
    if "preprocessing" in system:
        choices["preprocessing"] = system["preprocessing"]
    protocol = {
        "benchmark": benchmark,
        "split": split,
        **{key: bench[key] for key in ("gallery", "gallery_size", "reference", "caption_rule", "queries")},
        "shared_concept": False,
        "missing_images": 0,
    }
    if benchmark == "fashioniq" and system.get("both_orders"):
        choices["both_orders"] = True
        protocol["caption_rule"] += "; CLIP's feature is the mean of both orders"
    parts = [benchmark + "-" + split, backbone, slug(f"{method} {variant}")]
    return Condition(
        id="/".join(parts),
        method=method,
        variant=variant,
        benchmark=benchmark,
        split=split,
        backbone=backbone,
        protocol=protocol,
        figures=figures,
        profile="paper",
        settings=settings,
        choices=choices,
        missing=missing,
        needs=_needs(system, bench, backbone, encoder, mllm, missing),
    )


def _needs(
    system: Mapping[str, Any],
    bench: Mapping[str, Any],
    backbone: str,
    encoder: str,
    mllm: str | None,
    missing: str,
) -> tuple[str, ...]:
    """What a run needs, in words: code, pictures, a form, weights, GPU memory, a server's answer."""
    found = ["a method of this name here"] if missing else []
    found.append(f"pictures: {bench['images']}")
    if bench["form"]:
        found.append(f"form: {bench['form']}")
    profile, sizes = load_profile("paper"), matrix()["gpu_gb"]
    local = mllm or (profile.mllm if "models" in system else None)
    weights, memory = [encoder], sizes[backbone]
    if local and local.startswith("server:"):
        found.append(f"an OpenAI-compatible server with {local.removeprefix('server:')} (docs/servers.md)")
    elif local:
        weights.append(local)
        memory = sizes.get(local, profile.needs["gpu_gb"])
    found.append(f"weights: {', '.join(weights)}")
    if system.get("trained"):
        found.append(f"the system's trained weights for {backbone}")
    found.append(f"GPU: {memory:g} GB")
    if bench["server"]:
        found.append(
            f"the answers of the server: cir submit RUN --to {bench['server']}, then its figures in "
            f"RUN/{SERVER}"
        )
    return tuple(found)


def select(chosen: Iterable[Condition], pattern: str) -> list[Condition]:
    """The conditions whose id is ``pattern`` or matches it as a shell pattern (``mini-*/sdr-cir``);
    :class:`InputError` where there is none."""
    everything = list(chosen)
    found = [condition for condition in everything if fnmatchcase(condition.id, pattern)]
    if not found:
        some = ", ".join(condition.id for condition in everything[:3])
        raise InputError(
            f"no condition is called {pattern!r}; `cir reproduce --list` has them all, such as {some}"
        )
    return found


# --- what we have -----------------------------------------------------------------------------------------


def find_kept(folders: Iterable[Path | str]) -> list[Kept]:
    """The runs in ``folders`` and in their folders, in order of path; folders that do not exist have none."""
    paths = {
        path.parent
        for folder in folders
        for level in ("", "*/", "*/*/")
        for path in Path(folder).glob(level + RECORD)
        if not path.parent.name.startswith(".")
    }
    return [Kept(path, load_run(path)) for path in sorted(paths)]


def scores(kept: Kept) -> dict[str, float]:
    """The metrics of a run, fractions: its own, or those that the server gave (``server.json``).

    Raises :class:`InputError` for a ``server.json`` that holds anything but fractions by metric."""
    path = kept.folder / SERVER
    if kept.run.metrics or not path.exists():
        return kept.run.metrics
    found = read_json(path, "server's answer")
    values: dict[str, Any] = found if isinstance(found, dict) else {"": None}
    for name, value in values.items():
        if name not in TABLE_METRICS[kept.run.record["benchmark"]] or not (
            type(value) in (int, float) and 0 <= value <= 1
        ):
            raise InputError(
                f"server's answer {path}: expected fractions by metric, such as "
                f'{{"{kept.run.headline}": 0.2443}}, found {name!r}: {value!r}'
            )
    return values


def belongs(condition: Condition, run: Run) -> bool:
    """Is ``run`` one of this condition's method, settings, benchmark, split and models? (Its protocol is
    looked at by :func:`protocol_differences`.)"""
    record = run.record
    if any(record[key] != getattr(condition, key) for key in ("method", "benchmark", "split")):
        return False
    if condition.record is not None:
        theirs = condition.record.record
        if record == theirs:  # the record reproduces nothing by being there
            return False
        return record["settings"] == theirs["settings"] and all(
            record["choices"][key]["value"] == theirs["choices"][key]["value"] for key in FIXED
        )
    usual = load_profile(condition.profile).benchmark(condition.benchmark).settings
    if condition.missing or record["settings"] != resolve_settings(
        condition.method, usual, condition.settings
    ):
        return False
    if backbone_of(run) != condition.backbone:
        return False
    variants = matrix()["systems"][condition.method].get("variants", {})
    others = [row["mllm"] for row in variants.values() if "mllm" in row]
    if "mllm" in variants.get(condition.variant, {}):
        return _same_mllm(condition.choices["mllm"], run)
    return not any(_same_mllm(mllm, run) for mllm in others)


def backbone_of(run: Run) -> str:
    """The architecture of a run's encoder as the table names it (``ViT-L-14``), "" where it has none."""
    encoder = str(run.record["inputs"].get("encoder", {}).get("encoder", ""))
    return encoder.partition("@")[0].partition(":")[0].removesuffix("-quickgelu")


def _same_mllm(spec: str, run: Run) -> bool:
    used = str(run.record["inputs"].get("mllm", "")).partition("@")[0]
    return used.removeprefix("server:").rpartition("/")[2] == spec.removeprefix("server:").rpartition("/")[2]


def protocol_differences(condition: Condition, run: Run) -> list[str]:
    """In what a run's protocol is not the condition's, in words; empty where their figures may be
    compared."""
    theirs = run.record["protocol"]
    return [
        f"{key} {theirs.get(key)!r} instead of {value!r}"
        for key, value in condition.protocol.items()
        if theirs.get(key) != value
    ]


def model_differences(condition: Condition, run: Run) -> list[str]:
    """Other weights than the condition's, in words: they do not forbid a comparison, but a reader must
    know."""
    inputs, told = run.record["inputs"], []
    if condition.record is not None:
        theirs = condition.record.record["inputs"]
        hashes = [item.get("encoder", {}).get("weights_sha256") for item in (inputs, theirs)]
        for what, ours, before in (
            ("encoder", *hashes),
            ("MLLM", inputs.get("mllm"), theirs.get("mllm")),
        ):
            if ours != before:
                told.append(f"the {what} has other weights than that of the record: make the records anew")
        return told
    encoder = str(inputs.get("encoder", {}).get("encoder", "")).partition("@")[0]
    if encoder != condition.choices["encoder"]:
        told.append(f"encoder {encoder}, not {condition.choices['encoder']}")
    mllm = condition.choices.get("mllm")
    if mllm and not _same_mllm(mllm, run):
        used = str(inputs.get("mllm", "none")).partition("@")[0]
        told.append(f"MLLM {used}, not {mllm.removeprefix('server:')}")
    return told


def platform_differences(first: Run, second: Run) -> list[str]:
    """In what two runs' platforms differ: machine, device, versions of the libraries that decide numbers."""
    pairs = {
        "device": [run.record["device"] for run in (first, second)],
        **{
            f"machine's {key}": [run.record["machine"][key] for run in (first, second)]
            for key in ("system", "processor")
        },
        **{
            name: [run.record["versions"].get(name) for run in (first, second)]
            for name in first.record["versions"]
            if name not in ("python", "cir_utils")
        },
    }
    return [f"{name} {ours}, not {theirs}" for name, (ours, theirs) in pairs.items() if ours != theirs]


# --- whether they agree -----------------------------------------------------------------------------------


def judge(
    expected: float, ours: float | None, tolerance: float, low: float = math.nan, high: float = math.nan
) -> tuple[Verdict, bool]:
    """The verdict on one score, and whether it is too good. All numbers are fractions.

    OK within ``tolerance`` of what is expected; close where that lies in ``[low, high]``, the interval of our
    score (NaN: there is none); off otherwise. A score that is off *above* is too good: the usual cause is a
    leak (a smaller gallery, the reference out of the ranking, answers that were seen), not a better method.
    No score is never 0: it is "not run"."""
    if ours is None:
        return "not run", False
    if abs(ours - expected) <= tolerance + 1e-9:
        return "OK", False
    if low <= expected <= high:
        return "close", False
    return "off", ours > expected


def result_rows(chosen: Sequence[Condition], kept: Sequence[Kept] = ()) -> list[dict[str, Any]]:
    """One row a figure of ``chosen``, beside the newest run of ``kept`` that belongs to its condition.

    The keys: ``condition``, ``method``, ``variant``, ``benchmark``, ``split``, ``backbone``, ``protocol``,
    ``metric``; ``value`` (expected) and ``source``; ``ours`` with its interval ``low``, ``high`` and ``run``
    (the folder), None where there is none; ``verdict``, ``too_good``, ``remark``, ``command``, ``needs``.
    Scores are fractions."""
    newest = sorted(kept, key=lambda one: one.run.record["started"], reverse=True)
    return [row for condition in chosen for row in _rows_of(condition, newest)]


def _rows_of(condition: Condition, newest: Sequence[Kept]) -> list[dict[str, Any]]:
    own = [one for one in newest if belongs(condition, one.run)]
    fair = [one for one in own if not protocol_differences(condition, one.run)]
    one = fair[0] if fair else None
    told: list[str] = []
    found: Mapping[str, float] = {}
    if one is not None:
        found = scores(one)
        told = model_differences(condition, one.run)
        if condition.record is not None:
            told += platform_differences(one.run, condition.record)
        if not found:
            told.append(f"{one.folder} waits for the server's answer: put it into {one.folder / SERVER}")
    elif own:
        told.append(f"{own[0].folder} differs: {protocol_differences(condition, own[0].run)[0]}")
    if condition.missing:
        told.append(condition.missing)
    wanted = [figure.metric for figure in condition.figures if figure.metric in found]
    intervals = _intervals(one.run, wanted, found) if one is not None else {}
    rows = []
    for figure in condition.figures:
        ours = found.get(figure.metric)
        low, high = intervals.get(figure.metric, (math.nan, math.nan))
        verdict, too_good = _verdict(condition, figure, ours, low, high, one)
        rows.append(
            {
                "condition": condition.id,
                "method": condition.method,
                "variant": condition.variant,
                "benchmark": condition.benchmark,
                "split": condition.split,
                "backbone": condition.backbone,
                "protocol": dict(condition.protocol),
                "metric": figure.metric,
                "value": figure.value,
                "source": matrix()["sources"].get(figure.source, figure.source),
                "ours": ours,
                "low": None if math.isnan(low) else low,
                "high": None if math.isnan(high) else high,
                "run": None if one is None or ours is None else str(one.folder),
                "verdict": verdict,
                "too_good": too_good,
                "remark": "; ".join(part for part in (figure.remark, *told) if part),
                "command": condition.command,
                "needs": list(condition.needs),
            }
        )
    return rows


def _verdict(
    condition: Condition, figure: Figure, ours: float | None, low: float, high: float, one: Kept | None
) -> tuple[Verdict, bool]:
    tolerances = matrix()["tolerances"]
    if condition.record is not None:
        # On one platform nothing is left to chance, so no interval excuses a difference there.
        if one is not None and not platform_differences(one.run, condition.record):
            low = high = math.nan
        return judge(figure.value, ours, 0.5 * 10.0 ** -tolerances["mini_decimals"], low, high)
    system = matrix()["systems"][condition.method]
    kind = "with_mllm" if {"mllm", "models"} & set(system) else "without_mllm"
    return judge(figure.value, ours, tolerances[kind] / 100, low, high)


def _intervals(
    run: Run, metrics: Sequence[str], found: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """The interval of every metric over queries: by the bootstrap where there are values of every query, else
    the widest that the mean allows."""
    if not metrics:
        return {}
    level = matrix()["tolerances"]["level"]
    if run.per_query:
        row = compare.results_table([run.compared()], metrics, level=level).iloc[0]
        return {name: (float(row[f"{name} low"]), float(row[f"{name} high"])) for name in metrics}
    z, queries = float(stats.norm.ppf(0.5 + level / 2)), run.record["protocol"]["queries"]
    half = {name: z * math.sqrt(found[name] * (1 - found[name]) / queries) for name in metrics}
    return {name: (found[name] - half[name], found[name] + half[name]) for name in metrics}


def run_condition(condition: Condition, bench: Workbench | None, out: Path | None = None) -> Kept:
    """Run a condition on its workbench and keep its run folder (``out``, else a new one below ``runs/``).

    Raises :class:`InputError` for a condition without an implementation (``bench`` may be None then alone)
    and for models or a server that are not there."""
    if condition.missing:
        raise InputError(
            f"condition {condition.id} cannot be run: {condition.missing}; `cir reproduce --dry-run` lists "
            "those that can"
        )
    assert bench is not None
    settings = resolve_settings(condition.method, bench.settings, condition.settings)
    label = condition.record.record["label"] if condition.record is not None else None
    run = run_method(bench, condition.method, settings, label=label)
    return Kept(run.save(out), run)


def run_conditions(
    chosen: Sequence[Condition],
    *,
    root: Path | None = None,
    device: str = "auto",
    cache_dir: Path | None = None,
    out: Path | None = None,
) -> list[Kept]:
    """:func:`run_condition` for each of ``chosen``, one workbench for neighbours that take the same. Of
    several, those without an implementation are left out."""
    able = [condition for condition in chosen if not condition.missing] or chosen
    kept: list[Kept] = []
    before: tuple[Any, ...] | None = None
    bench: Workbench | None = None
    for condition in able:
        wanted = (condition.benchmark, condition.profile, condition.split, dict(condition.choices))
        if not condition.missing and wanted != before:
            bench, before = None, wanted  # the earlier one's models go before others come
            bench = open_workbench(
                condition.benchmark,
                condition.profile,
                condition.split,
                root=root,
                device=device,
                cache_dir=cache_dir,
                **condition.choices,
            )
        kept.append(run_condition(condition, bench, out))
    return kept


# --- orders -----------------------------------------------------------------------------------------------


def order_agreement(ours: Mapping[str, float], published: Mapping[str, float]) -> Agreement:
    """How alike ``ours`` and ``published`` order the methods that both have (higher is better).

    Kendall's tau-b and Spearman's rho of scipy, ties allowed; NaN where one of the two has all methods equal.
    With few methods neither says much: with four, even the same order has an exact p of 0.08. Raises
    :class:`InputError` for fewer than three methods in common."""
    methods = tuple(name for name in ours if name in published)
    if len(methods) < 3:
        raise InputError(
            f"an order needs three methods or more that both have, not {len(methods)}: run more methods"
        )
    first, second = ([scores[name] for name in methods] for scores in (ours, published))
    if np.ptp(first) == 0 or np.ptp(second) == 0:  # scipy warns of a constant and gives NaN
        tau = tau_p = rho = rho_p = math.nan
    else:
        # scipy's result types differ by version; their fields do not.
        kendall, spearman = (
            cast(Any, stats.kendalltau(first, second)),
            cast(Any, stats.spearmanr(first, second)),
        )
        tau, tau_p = float(kendall.statistic), float(kendall.pvalue)
        rho, rho_p = float(spearman.statistic), _permuted(first, second)
    return Agreement(methods, tuple(first), tuple(second), tau, tau_p, rho, rho_p)


def _permuted(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p of Spearman's rho over all orders (9,999 random ones beyond seven methods): scipy's own
    p is an approximation for long lists, and 0 for any three methods in the same order."""
    ranks = stats.rankdata(first)
    other = stats.rankdata(second) - np.mean(stats.rankdata(second))
    return float(
        stats.permutation_test(
            (ranks,),
            # Sum and spread of the ranks are the same in every order: this grows with rho.
            lambda x, axis: np.sum(x * other, axis=axis),
            permutation_type="pairings",
            vectorized=True,
            n_resamples=9999,
            rng=np.random.default_rng(compare.SEED),
        ).pvalue
    )


def order_agreements(runs: Iterable[Run]) -> list[Agreement]:
    """:func:`order_agreement` of every mini benchmark with every backbone of its real twin, on the headline
    metric: where three methods or more are on both sides. ``runs`` are ours; ablations and runs with changed
    settings are left out."""
    ours: dict[str, dict[str, float]] = {}
    for run in runs:
        record = run.record
        if record["method"] == run.name and BENCHMARKS[record["benchmark"]].shipped and run.metrics:
            ours.setdefault(record["benchmark"], {})[run.name] = run.metrics[run.headline]
    found = []
    for mini, scored in ours.items():
        twin, metric = BENCHMARKS[mini].family, TABLE_METRICS[mini][0]
        for backbone in matrix()["backbones"]:
            published = {
                condition.method: figure.value
                for condition in published_conditions()
                if (condition.benchmark, condition.backbone, condition.variant) == (twin, backbone, "")
                for figure in condition.figures
                if figure.metric == metric
            }
            if len(set(scored) & set(published)) >= 3:
                made = order_agreement(scored, published)
                against = f"{twin} {matrix()['benchmarks'][twin]['split']}, {backbone}, {metric}"
                found.append(replace(made, mini=mini, against=against))
    return found


# --- in words ---------------------------------------------------------------------------------------------


def listing(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows for the terminal: one line a figure, in percent, and how many there are of each verdict."""
    width = max((len(row["condition"]) for row in rows), default=0)
    lines = []
    for row in rows:
        ours = "" if row["ours"] is None else f" ours {100 * row['ours']:6.2f}"
        lines.append(
            f"{row['condition']:{width}}  {row['metric']:12} {100 * row['value']:6.2f}{ours}  {status(row)}"
            f"  [{row['source']}]"
        )
    return "\n".join([*lines, summary(rows)])


def status(row: Mapping[str, Any]) -> str:
    """The verdict on a row in words: ``off (too good)``, ``not run: no implementation``."""
    if row["too_good"]:
        return f"{row['verdict']} (too good)"
    if row["verdict"] == "not run" and not row["command"]:
        return f"not run: {NO_METHOD}"
    return str(row["verdict"])


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many rows have which verdict: ``1,669 figures: 10 OK, 2 close, ...``."""
    count = Counter(row["verdict"] for row in rows)
    parts = [f"{count[verdict]:,} {verdict}" for verdict in VERDICTS]
    good = sum(row["too_good"] for row in rows)
    return f"{len(rows):,} figures: {', '.join(parts)}" + (f"; {good:,} too good" if good else "")


def dry_run(chosen: Sequence[Condition]) -> str:
    """The command of every condition that can be run, with what it needs, and how many cannot."""
    parts = [
        "\n".join([f"# {condition.id}: needs {'; '.join(condition.needs)}", condition.command])
        for condition in chosen
        if condition.command
    ]
    left = len(chosen) - len(parts)
    return "\n".join([*parts, *([f"# {left:,} conditions have {NO_METHOD} here"] if left else [])])


def report(results: Path | None = None, kept: Sequence[Kept] = ()) -> str:
    """The whole matrix as Markdown: the mini benchmarks, how far orders agree, every published figure beside
    ours or "not run", the commands, the sources."""
    chosen = conditions(results)
    records = find_kept([RESULTS if results is None else results])
    rows = result_rows(chosen, [*kept, *(one for one in records if not _is_mini(one.run))])
    by_id: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_id.setdefault(row["condition"], []).append(row)
    mini = {condition.id for condition in chosen if condition.record is not None}
    split = [[row for row in rows if (row["condition"] in mini) == ours] for ours in (False, True)]
    parts = [
        f"Published: {summary(split[0])}.\n",
        f"Our records of the mini benchmarks, run again: {summary(split[1])}.\n",
        tolerance_text(),
    ]
    for name in dict.fromkeys((condition.benchmark, condition.split) for condition in chosen):
        own = [condition for condition in chosen if (condition.benchmark, condition.split) == name]
        parts += [f"## {name[0]} {name[1]}\n", _protocol_text(own[0]), _table(own, by_id)]
    agreements = order_agreements(one.run for one in records)
    parts += ["## Orders\n", orders_text(agreements)]
    parts += ["## Commands\n", _commands(chosen), "## Sources\n"]
    parts.append("\n".join(f"- `{key}`: {text}" for key, text in matrix()["sources"].items()))
    return "\n".join(parts) + "\n"


def tolerance_text() -> str:
    """The rules of the verdicts in words."""
    given = matrix()["tolerances"]
    return (
        f"**OK**: within {given['without_mllm']:g} percentage points of the published figure, "
        f"{given['with_mllm']:g} for a method with an MLLM; a mini figure: equal to {given['mini_decimals']} "
        f"decimals of the fraction. **close**: the figure lies in the {100 * given['level']:.0f} % interval "
        "of our run over queries (a mini figure: only on another platform than that of the record). **off**: "
        "neither; above it is also **too good**, which more often means a leak than a better method. "
        "**not run**: we have no such run; the command is below, or there is no method of that name here.\n"
    )


def orders_text(agreements: Sequence[Agreement]) -> str:
    """The table of rank correlations, one row a pair of benchmark and backbone."""
    if not agreements:
        return "No mini benchmark has three methods or more whose figures were published too.\n"
    lines = [
        "| mini benchmark | published | methods | Kendall's tau | p | Spearman's rho | p | best here first |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for one in agreements:
        order = [one.methods[place] for place in np.argsort(-np.array(one.ours), kind="stable")]
        lines.append(
            f"| {one.mini} | {one.against} | {len(one.methods)} | {one.tau:.2f} | {p_text(one.tau_p)} | "
            f"{one.rho:.2f} | {p_text(one.rho_p)} | {', '.join(order)} |"
        )
    return "\n".join(lines) + "\n"


def _is_mini(run: Run) -> bool:
    return bool(BENCHMARKS[run.record["benchmark"]].shipped)


def _protocol_text(condition: Condition) -> str:
    text = f"Protocol: {protocol_line(condition.protocol)}."
    if condition.record is None:
        text += f" Papers differ: {matrix()['benchmarks'][condition.benchmark]['differs']}."
    return text + " Percent.\n"


def _table(chosen: Sequence[Condition], by_id: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """One row a condition: a cell holds the expected figure, and ours with its verdict where there is one."""
    metrics = TABLE_METRICS[chosen[0].benchmark]
    mini = chosen[0].record is not None
    what, own = ("condition", "run again") if mini else ("system", "ours")
    head = [what, "backbone", *metrics, "source", own, "remarks"]
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("| --- | --- |" + " ---: |" * len(metrics) + " --- | --- | --- |")
    for condition in chosen:
        rows = {row["metric"]: row for row in by_id[condition.id]}
        cells = [_cell(rows[metric]) if metric in rows else "–" for metric in metrics]
        sources = dict.fromkeys(figure.source for figure in condition.figures)
        first = next(iter(rows.values()))
        ours = Path(first["run"]).name if first["run"] else status(first)
        remarks = [f"{figure.metric}: {figure.remark}" for figure in condition.figures if figure.remark]
        shared = {figure.remark for figure in condition.figures}
        if len(shared) == 1:  # a remark on the whole row is said once
            remarks = [remark for remark in shared if remark]
        name = f"`{condition.id}`" if mini else condition.name
        row = [name, condition.backbone, *cells, ", ".join(sources), ours, "; ".join(remarks)]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: Mapping[str, Any]) -> str:
    text = f"{100 * row['value']:.2f}"
    return text if row["ours"] is None else f"{text} ({100 * row['ours']:.2f}, {status(row)})"


def _commands(chosen: Sequence[Condition]) -> str:
    """The command of every published condition that can be run, grouped by what they need."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for condition in chosen:
        if condition.command and condition.record is None:
            groups.setdefault(condition.needs, []).append(condition.command)
    parts = [
        "A mini condition is run by its name, `cir reproduce --run mini-circo-test/sdr-cir`, or several by a "
        "pattern, `cir reproduce --run 'mini-*/image-text'`; it needs nothing. The published ones:\n"
    ]
    for needs, commands in groups.items():
        parts += [f"Needs {'; '.join(needs)}:\n", "```", *commands, "```\n"]
    return "\n".join(parts)
