"""One run: a method on a benchmark, its metrics, and the folder that keeps both with everything behind them.

A run folder holds

* ``run.json``: the record: method, settings, protocol, cost, answers by class, counts, seconds a stage,
  versions, hashes of what went in;
* ``metrics.json``: the metrics and their values query by query;
* ``rankings.parquet``: for every query (``query_id``) all gallery ids, best first (``image_ids``; without
  the reference where the protocol removes it); for CIRR also the ranked subset (``subset_ids``);
* ``traces.jsonl``: one line a query: what every agent said and what came first;
* ``SHA256SUMS``: the hashes of these four, checked when they are read (records without rankings and traces,
  as in ``results/``, have none).

The folder appears whole or not at all. What a killed process left half written (hidden ``.run.*`` folders
beside it) goes when the next run is written there and no other process is writing.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cir_utils import __version__, compare
from cir_utils.benchmarks import BENCHMARKS, OWN, Benchmark, Family, ImageId, Query
from cir_utils.device import peak_bytes
from cir_utils.errors import InputError
from cir_utils.evaluation import KS, query_values, score_rankings
from cir_utils.files import MANIFEST, is_there, read_json, verify_manifest, write_manifest
from cir_utils.layouts.fashioniq import CATEGORIES
from cir_utils.methods import SettingValue, load_method
from cir_utils.metrics import LazyRankings, Rankings, check_permutations, check_queries
from cir_utils.profiles import GIVEN, PACKAGE, published_for
from cir_utils.workbench import MethodOutput, Workbench

FORMAT = 1
RECORD, METRICS, RANKINGS, TRACES = "run.json", "metrics.json", "rankings.parquet", "traces.jsonl"
PACKAGES = ("torch", "torchvision", "transformers", "open_clip_torch", "tokenizers", "numpy", "pillow")
#: The columns of each family's results table; the first is what methods are compared and tuned on.
FAMILY_METRICS: dict[Family, tuple[str, ...]] = {
    "circo": ("mAP@5", "mAP@10", "mAP@25", "mAP@50"),
    "cirr": ("R@1", "R@5", "R@10", "R@50", "R_subset@1", "R_subset@2", "R_subset@3"),
    "fashioniq": (
        "mean/R@10",
        "mean/R@50",
        *(f"{category}/R@{k}" for category in CATEGORIES for k in (10, 50)),
    ),
}
TABLE_METRICS = {name: FAMILY_METRICS[entry.family] for name, entry in BENCHMARKS.items()}
#: How many image ids of rankings are written at a time.
WRITTEN_IDS = 4_000_000
SUMMARY = ("method", "benchmark", "split", "profile", "settings", "protocol")
#: Which counts of X^R pruning makes, and the agents that they are about, whose statements about one candidate
#: share the prompt up to the statement.
NOT_ASKED = ("captions_not_asked", "pictures_not_asked")
VERIFIERS = ("verify_caption", "verify_picture")
COST = ("mllm_calls", "cached_calls", "prompt_tokens", "completion_tokens", "parse_failures", "seconds")
#: What records of earlier versions lack.
MORE_COST = ("by_agent", "computed", "pruning")


@dataclass(frozen=True)
class Run:
    """A finished run. ``metrics`` are fractions, the same as ``cir evaluate`` gives (empty where the split
    has no public answers); ``per_query`` holds the values behind them, each ``(Q,)`` in the order of
    ``queries``. ``categories`` names FashionIQ's category of every query, ``()`` elsewhere: there
    ``per_query`` has ``R@k``, and ``metrics`` the means of each category and their mean. ``rankings``,
    ``subsets`` (CIRR) and ``traces`` are empty when a record alone was kept; the list of one query is made
    when it is asked for (``dict(run.rankings)`` has them all)."""

    record: dict[str, Any]
    queries: tuple[str, ...]
    metrics: dict[str, float]
    per_query: dict[str, np.ndarray]
    rankings: Rankings = field(default_factory=dict)
    traces: list[dict[str, Any]] = field(default_factory=list)
    subsets: dict[str, list[ImageId]] = field(default_factory=dict)
    categories: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The label that the run was given, else the method with those of its settings that differ from the
        profile's: ``sdr-cir, beta=0``."""
        if self.record["label"]:
            return str(self.record["label"])
        changed = self.record["overrides"]
        return ", ".join(
            [self.record["method"], *(f"{key}={_short(value)}" for key, value in changed.items())]
        )

    @property
    def headline(self) -> str:
        return TABLE_METRICS[self.record["benchmark"]][0]

    def summary(self) -> dict[str, Any]:
        """What ``cir run --json`` prints: method, benchmark, split, profile, settings, protocol, metrics,
        cost."""
        return {key: self.record[key] for key in SUMMARY} | {
            "metrics": self.metrics,
            "cost": {key: self.record["cost"][key] for key in COST}
            | {key: self.record["cost"][key] for key in MORE_COST if key in self.record["cost"]},
            "counts": self.record["counts"],
            "notes": self.record["notes"],
        }

    def compared(self, name: str | None = None) -> compare.Run:
        """The run as ``cir_utils.compare`` takes it; ``name`` defaults to :attr:`name`."""
        if not self.per_query:
            raise InputError(
                f"run {self.name}: its split {self.record['split']} has no public answers, so no metrics"
            )
        cost = self.record["cost"]
        return compare.Run(
            name=name or self.name,
            queries=self.queries,
            values=self.per_query,
            protocol=self.record["protocol"],
            groups=self.categories,
            columns={
                "MLLM calls": cost["mllm_calls"],
                "parse failures": cost["parse_failures"],
            },
        )

    def save(self, out: Path | None = None, *, whole: bool = True) -> Path:
        """Write the run folder and return its path. ``out`` None makes a new folder below ``runs/``; an
        ``out`` that holds an earlier run is replaced. ``whole`` False keeps record and metrics alone. Raises
        :class:`InputError` for a folder that holds something else or cannot be written."""
        return save_folder(lambda folder: self._write(folder, whole), self.record, out)

    def _write(self, folder: Path, whole: bool) -> None:
        _dump(folder / RECORD, self.record)
        _dump(
            folder / METRICS,
            {
                "metrics": self.metrics,
                "queries": list(self.queries),
                "categories": list(self.categories),
                "per_query": {name: values.tolist() for name, values in self.per_query.items()},
            },
        )
        if not whole:
            return
        self._write_rankings(folder / RANKINGS)
        with open(folder / TRACES, "w", encoding="utf-8") as stream:
            for trace in self.traces:
                stream.write(json.dumps(trace, ensure_ascii=False, allow_nan=False) + "\n")
        write_manifest(folder, (RECORD, METRICS, RANKINGS, TRACES))

    def _write_rankings(self, path: Path) -> None:
        """The rankings in as many row groups as keep little in memory: one, but for the largest galleries."""
        queries = list(self.rankings)
        longest = len(self.rankings[queries[0]]) if queries else 0
        rows = max(1, WRITTEN_IDS // max(1, longest))
        groups = [queries[start : start + rows] for start in range(0, max(1, len(queries)), rows)]
        with pq.ParquetWriter(path, self._table(groups[0][:1]).schema, compression="zstd") as writer:
            for group in groups:
                writer.write_table(self._table(group))

    def _table(self, queries: Sequence[str]) -> pa.Table:
        columns: dict[str, list[Any]] = {
            "query_id": list(queries),
            "image_ids": [self.rankings[query] for query in queries],
        }
        if self.subsets:
            columns["subset_ids"] = [self.subsets[query] for query in queries]
        return pa.table(columns)


def run_method(
    bench: Workbench,
    method: str,
    settings: Mapping[str, SettingValue],
    *,
    label: str | None = None,
) -> Run:
    """Run ``method`` with ``settings`` (all of them: see :func:`cir_utils.methods.resolve_settings`) and
    measure it.

    The method runs on every gallery of the benchmark by itself (FashionIQ's categories). Every ranking is
    checked to be a permutation of its gallery that holds its query's ground truths before a metric is taken.
    On a split without public answers the run has rankings and no metrics, and says so in its
    notes."""
    function = load_method(method)
    bench.start()
    started, begin = datetime.now(UTC), time.perf_counter()
    output = _joined({name: function(part, settings) for name, part in bench.parts.items()})
    seconds = time.perf_counter() - begin
    metrics, per_query = measure(bench.benchmark, bench.queries, output.rankings, output.subsets)
    notes = [*bench.benchmark.notes, *output.notes]
    if not per_query:
        hidden = f"the answers of split {bench.benchmark.split} are not public"
        what = "no targets are marked" if bench.benchmark.name == OWN else hidden
        notes.append(f"{what}: rankings, but no metrics")
    cost: dict[str, Any] = bench.cost() | {"seconds": round(seconds, 3), "by_agent": bench.cost_by_agent()}
    cost |= {"computed": bench.computed(), "pruning": pruned(output.counts, cost["by_agent"])}
    protocol = bench.benchmark.protocol.as_dict() | {"queries": len(bench.queries)}
    overrides = {name: value for name, value in settings.items() if value != bench.usual(name)}
    record = {
        "format": FORMAT,
        "method": method,
        "label": label,
        "benchmark": bench.benchmark.name,
        "split": bench.benchmark.split,
        "profile": bench.profile,
        "settings": dict(settings),
        "overrides": overrides,
        "settings_source": bench.settings_source,
        "setting_sources": {name: _source(bench, name, overrides) for name in settings},
        "choices": bench.choices(),
        "published": published_for(method, bench.benchmark.name),
        "protocol": protocol,
        "cost": cost,
        "answers": bench.answers(),
        "counts": output.counts,
        "notes": notes,
        "caches": list(bench.caches),
        "stages": {name: round(value, 3) for name, value in bench.seconds.items()},
        "peak_memory_mb": peak_memory_mb(),
        "device": str(bench.device),
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
        },
        "versions": versions(),
        "inputs": bench.inputs(),
        "git_commit": git_commit(),
        "started": started.isoformat(timespec="seconds"),
    }
    return Run(
        record=record,
        queries=tuple(query.id for query in bench.queries),
        metrics=metrics,
        per_query=per_query,
        rankings=output.rankings,
        traces=output.traces,
        subsets=output.subsets,
        categories=tuple(query.category for query in bench.queries if query.category),
    )


def pruned(counts: Mapping[str, int], by_agent: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """What pruning saved: verifications ``asked``, ``captions_not_asked`` and ``pictures_not_asked``, and the
    ``share_not_asked`` of all; empty for a run without pruning."""
    saved = {name: counts[name] for name in NOT_ASKED if name in counts}
    if not saved:
        return {}
    asked = sum(by_agent[agent]["mllm_calls"] for agent in VERIFIERS if agent in by_agent)
    whole = asked + sum(saved.values())
    return {"asked": asked, **saved, "share_not_asked": sum(saved.values()) / whole if whole else 0.0}


def _source(bench: Workbench, name: str, overrides: Mapping[str, Any]) -> str:
    """Where the value of a setting comes from."""
    if name in overrides:
        return GIVEN
    return bench.settings_source if name in bench.settings else "default of the method"


def measure(
    benchmark: Benchmark,
    queries: Sequence[Query],
    rankings: Mapping[str, Sequence[ImageId]],
    subsets: Mapping[str, Sequence[ImageId]] | None = None,
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """The metrics of full ``rankings`` (and, for CIRR, of ranked ``subsets``), and the values behind them
    query by query, each ``(Q,)``.

    Both are empty where the split has no public answers. Raises :class:`InputError` for rankings that are not
    permutations of their gallery, without the reference where the protocol removes it, and for subsets that
    are not those of their queries (that would be a fault of the method).
    """
    removed = {query: (image,) for query, image in benchmark.removed.items()}
    check_queries(rankings, [query.id for query in queries])
    for category, part in benchmark.parts.items():
        targets = {query.id: query.targets for query in queries if query.category == category}
        own = LazyRankings({query: partial(rankings.__getitem__, query) for query in targets})
        check_permutations(own, part.gallery, targets, removed)
    if subsets:
        for query in queries:
            check_permutations(
                {query.id: subsets[query.id]}, benchmark.subset(query), {query.id: query.targets}
            )
    if not all(query.targets for query in queries):
        return {}, {}
    heads = {query: ranking[: max(KS[benchmark.family])] for query, ranking in rankings.items()}
    return score_rankings(benchmark, heads, subsets), query_values(benchmark, queries, heads, subsets)


def _joined(outputs: Mapping[str, MethodOutput]) -> MethodOutput:
    """The outputs of a method on the parts of a workbench as one: counts added up, notes with the part's
    name."""
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    joined = MethodOutput(LazyRankings({}), [])
    for name, output in outputs.items():
        joined.rankings |= output.rankings
        joined.subsets.update(output.subsets)
        joined.traces.extend(output.traces)
        for count, value in output.counts.items():
            joined.counts[count] = joined.counts.get(count, 0) + value
        joined.notes.extend(f"{name}: {note}" for note in output.notes)
    return joined


def save_folder(
    write: Callable[[Path], None], record: Mapping[str, Any], out: Path | None = None, mark: str = RECORD
) -> Path:
    """A folder that ``write`` fills, whole or not at all; returns its path.

    ``out`` None makes a new folder below ``runs/``, named after ``record``; an ``out`` that holds an earlier
    one, told by its file ``mark``, is replaced. Raises :class:`InputError` for a folder that holds something
    else, cannot be written or finds no room: then an earlier one is as it was."""
    check_out(out, mark)
    place = Path("runs") if out is None else Path(out).parent
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _writing(place):
            part = Path(tempfile.mkdtemp(prefix=".run.", suffix=".part", dir=place))
            try:
                write(part)
                os.chmod(part, 0o755)
                return _swap(part, Path(out)) if out is not None else _place_new(part, place, record)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"run folder below {place} cannot be written ({error.strerror or error}); make room or choose "
            "another --out, and run again: answers and features are kept"
        ) from None


def load_run(folder: Path | str, *, whole: bool = False) -> Run:
    """Read a run folder; ``whole`` also reads rankings and traces.

    Raises :class:`InputError` when it is no run folder, one of another format, or damaged: where the folder
    has hashes, any changed byte is found, and where not, what no run could have written.
    """
    folder = Path(folder)
    again = "run the method again"
    if not is_there(folder / RECORD):
        raise InputError(
            f"{folder} is not a run folder: it has no {RECORD}; give a folder that `cir run` wrote"
        )
    if is_there(folder / MANIFEST):
        verify_manifest(folder, again, only=None if whole else (RECORD, METRICS))
    record, table = read_json(folder / RECORD, "run record"), read_json(folder / METRICS, "metrics file")
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(f"run record {folder / RECORD} has not the format {FORMAT}; {again}")
    _checked(_Record, record, f"run record {folder / RECORD}")
    kept = _checked(_Metrics, table, f"metrics file {folder / METRICS}")
    if record["benchmark"] not in (*BENCHMARKS, OWN):
        raise InputError(
            f"run record {folder / RECORD} is of the benchmark {record['benchmark']!r}, which this "
            f"installation does not know; it knows {', '.join(BENCHMARKS)}"
        )
    rankings: Rankings = {}
    subsets: dict[str, list[ImageId]] = {}
    traces: list[dict[str, Any]] = []
    try:
        if whole:
            missing = [name for name in (RANKINGS, TRACES) if not (folder / name).is_file()]
            if missing:
                raise ValueError(f"it lacks {', '.join(missing)}")
            table = pq.read_table(folder / RANKINGS)
            names = _check_rankings(table, kept.queries)
            rankings = LazyRankings(
                {name: row.as_py for name, row in zip(names, table["image_ids"], strict=True)}
            )
            if "subset_ids" in table.column_names:
                subsets = dict(zip(names, table["subset_ids"].to_pylist(), strict=True))
            with open(folder / TRACES, encoding="utf-8") as stream:
                traces = [json.loads(line) for line in stream]
            if not all(isinstance(trace, dict) and isinstance(trace.get("query"), str) for trace in traces):
                raise ValueError(f"{TRACES} has a line that is not about a query")
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pa.ArrowException) as error:
        raise InputError(f"run folder {folder} is damaged ({error}); {again}") from None
    return Run(
        record=record,
        queries=tuple(kept.queries),
        metrics=dict(kept.metrics),
        per_query={name: np.array(values, dtype=np.float64) for name, values in kept.per_query.items()},
        rankings=rankings,
        traces=traces,
        subsets=subsets,
        categories=tuple(kept.categories),
    )


Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Cost(BaseModel):
    model_config = ConfigDict(strict=True)

    mllm_calls: Count
    cached_calls: Count
    prompt_tokens: Count
    completion_tokens: Count
    parse_failures: Count
    seconds: Number


class _Record(BaseModel):
    """What is read of ``run.json``, here and by those that compare runs; it holds more."""

    model_config = ConfigDict(strict=True)

    method: str
    label: str | None
    benchmark: str
    split: str
    profile: str
    settings: dict[str, SettingValue]
    overrides: dict[str, SettingValue]
    settings_source: str
    setting_sources: dict[str, str]
    protocol: dict[str, Any]
    cost: _Cost
    counts: dict[str, Count]
    notes: list[str]
    caches: list[str]
    stages: dict[str, Number]
    versions: dict[str, str]
    machine: dict[str, Any]
    inputs: dict[str, Any]
    device: str
    started: str


class _Metrics(BaseModel):
    """``metrics.json``."""

    model_config = ConfigDict(strict=True)

    metrics: dict[str, Fraction]
    queries: list[str]
    categories: list[str] = []
    per_query: dict[str, list[Fraction]]

    @model_validator(mode="after")
    def _one_a_query(self) -> _Metrics:
        if bool(self.metrics) != bool(self.per_query):
            raise ValueError("metrics and per_query belong together: expected both, or neither")
        if len(set(self.queries)) < len(self.queries):
            raise ValueError("a query occurs twice")
        lengths = {len(self.categories) or len(self.queries), *map(len, self.per_query.values())}
        if lengths != {len(self.queries)}:
            raise ValueError(f"lists differ in length: expected {len(self.queries)} values, one a query")
        return self


Model = TypeVar("Model", bound=BaseModel)


def _checked(model: type[Model], value: Any, where: str) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        field_name = ".".join(map(str, first["loc"])) or "content"
        raise InputError(f"{where}: {field_name}: {first['msg']}; run the method again") from None


def _check_rankings(table: pa.Table, queries: Sequence[str]) -> list[str]:
    """The query ids of ``rankings.parquet``; ``ValueError`` where they are not ``queries``, or their lists no
    lists of ids."""
    names = table["query_id"].to_pylist()
    if names != list(queries):
        raise ValueError(f"{RANKINGS} has other queries than {METRICS}")
    for name in ("image_ids", *({"subset_ids"} & set(table.column_names))):
        column = table[name]
        of_ids = pa.types.is_list(column.type) and (
            pa.types.is_integer(column.type.value_type) or pa.types.is_string(column.type.value_type)
        )
        if not of_ids or column.null_count or any(part.values.null_count for part in column.chunks):
            raise ValueError(f"{name} of {RANKINGS} are not lists of ids")
    return names


def find_runs(folder: Path | str) -> list[Path]:
    """The run folders directly below ``folder``, in order of name."""
    return sorted(
        path.parent for path in Path(folder).glob(f"*/{RECORD}") if not path.parent.name.startswith(".")
    )


def check_out(out: Path | None, mark: str = RECORD) -> None:
    """Refuse a place for a run folder that holds something else than an earlier run, told by its file
    ``mark``."""
    if out is None or not Path(out).exists():
        return
    if not Path(out).is_dir():
        raise InputError(f"--out {out} is a file; name a folder")
    if any(Path(out).iterdir()) and not (Path(out) / mark).is_file():
        raise InputError(f"--out {out} is not empty and holds no run; name a new folder or an earlier run's")


def describe(run: Run, folder: Path) -> str:
    """A finished run for the terminal: metrics in percent, cost, what the reader should know, and where it
    is."""
    from cir_utils.tables import metrics_lines, protocol_line

    cost, counts = run.record["cost"], run.record["counts"]
    lines = [run.name, protocol_line(run.record["protocol"])]
    if run.metrics:
        lines += ["", metrics_lines(run.metrics), ""]
    lines.append(
        f"{cost['seconds']:.1f} s; MLLM calls: {cost['mllm_calls']:,}, of them {cost['cached_calls']:,} "
        f"from the cache; parse failures: {cost['parse_failures']}"
    )
    computed = cost.get("computed")  # records of earlier versions have none
    if computed and computed["forward_passes"]:
        lines.append(
            f"computed: {computed['forward_passes']:,} forward passes, {computed['computed_tokens']:,} of "
            f"{computed['prompt_tokens']:,} prompt tokens, {computed['pictures_encoded']:,} pictures encoded"
        )
    answers = run.record.get("answers", {})
    if set(answers) - {"good"}:
        lines.append("answers: " + ", ".join(f"{count:,} {name}" for name, count in answers.items()))
    server = run.record["inputs"].get("server")
    if server:
        asked = server["generate_calls"] + server["verify_calls"]
        tokens = f"{server['prompt_tokens']:,} + {server['completion_tokens']:,} tokens"
        price = f", {server['cost_dollars']:.4f} US dollars" if "cost_dollars" in server else ""
        lines.append(f"server {server['address']}: {asked:,} requests answered, {tokens}{price}")
    lines += [f"{name.replace('_', ' ')}: {count}" for name, count in counts.items() if count]
    lines += [*run.record["caches"], *(f"note: {note}" for note in run.record["notes"])]
    return "\n".join([*lines, f"run folder: {folder}"])


def versions() -> dict[str, str]:
    """Versions of Python, this package and the libraries that decide numbers."""
    found = {"python": platform.python_version(), "cir_utils": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """The commit of the checkout that this package runs from (with ``-dirty`` where files differ), else
    None."""
    try:
        top = _git("rev-parse", "--show-toplevel")
        if Path(top).resolve() != PACKAGE.parent:
            return None
        dirty = _git("status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "HEAD") + ("-dirty" if dirty else "")
    except (OSError, subprocess.SubprocessError):
        return None


def peak_memory_mb() -> dict[str, int]:
    """The most memory that this process has held so far, in MiB: ``host``, and ``cuda`` where there is such a
    device."""
    found = {"host": peak_bytes() // 2**20}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.max_memory_allocated() // 2**20
    return found


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(PACKAGE.parent), *arguments], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()


def _short(value: SettingValue) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n", encoding="utf-8")


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """Holds a lock on the folder ``place`` that others who write there share and that ends with the process.
    Whoever has it alone first clears away what killed ones left, and puts back an earlier run that one of
    them was about to replace."""
    folder = os.open(place, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for old in place.glob(".run.*.old"):
                for run in old.iterdir():
                    if not (place / run.name).exists():
                        os.rename(run, place / run.name)
            for left in [*place.glob(".run.*.old"), *place.glob(".run.*.part")]:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:  # others are writing, or the file system has no such locks: nothing is cleared away
            pass
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_SH)
        yield
    finally:
        os.close(folder)


def _place_new(part: Path, place: Path, record: Mapping[str, Any]) -> Path:
    """Move the finished folder to a free name: method, benchmark, split, the encoder where there is one, and
    the second it started. A name that another process takes in the meantime is passed over."""
    moment = datetime.fromisoformat(record["started"]).strftime("%Y%m%d-%H%M%S")
    encoder = record["inputs"].get("encoder", {}).get("encoder", "").partition("@")[0]
    parts = [record["method"], f"{record['benchmark']}-{record['split']}", encoder, moment]
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", "--".join(part for part in parts if part))
    number = 1
    while True:
        target = place / (stem if number == 1 else f"{stem}-{number}")
        try:
            os.rename(part, target)  # fails where a folder with content is
            return target
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            number += 1


def _swap(part: Path, target: Path) -> Path:
    """Put the finished folder in its place; an earlier run there is moved away first and removed after. Its
    name stays, so that it can be put back after a kill between the two steps."""
    if not target.exists():
        os.rename(part, target)
        return target
    old = Path(tempfile.mkdtemp(prefix=".run.", suffix=".old", dir=target.parent))
    try:
        os.rename(target, old / target.name)
        try:
            os.rename(part, target)
        except OSError:
            os.rename(old / target.name, target)
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
    return target
