"""Files for the evaluation servers of CIRR and CIRCO: written from a run, and checked in words.

CIRR takes two JSON files of at most 5 MB, ``recall`` with 50 names a query and ``recall_subset`` with three
members of the query's subset; each also holds ``"version": "rc2"`` and its own ``"metric"``, and the
reference is in no list. CIRCO takes one: 50 integer image ids a query. The official evaluators accept much
that scores wrongly (a part of the queries, short lists, an image twice when it is written once as text), so
everything is checked here before a file is written or uploaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cir_utils.benchmarks import BENCHMARKS, Benchmark, ImageId, Query, check_benchmark, load_benchmark
from cir_utils.errors import InputError
from cir_utils.evaluation import CIRR_METRICS, CIRR_VERSION
from cir_utils.files import read_json, write_atomic
from cir_utils.layouts.common import EXTENSIONS, is_whole
from cir_utils.metrics import plain_id

CIRCO_LENGTH = 50
#: CIRR's server takes 5 MB.
MOST_BYTES = 5_000_000
SERVERS = {
    "cirr": "https://cirr.cecs.anu.edu.au (backup: https://cirr.junjie.au)",
    "circo": "https://circo.micc.unifi.it",
}
#: The split that each server takes.
SERVER_SPLIT = {"cirr": "test1", "circo": "test"}
SHOWN = 3

Table = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What a check found: ``errors`` are broken rules, one sentence each; ``warnings`` are odd but allowed;
    ``notes`` say what could not be checked."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        return not self.errors

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"valid": self.valid} | vars(self)


def check_server(to: str) -> str:
    """``to`` when a server of that name takes files; :class:`InputError` lists the choices."""
    if to not in SERVERS:
        more = "; FashionIQ has no server, its val answers are public" if "fashion" in to else ""
        raise InputError(f"unknown server {to!r}: choose {', '.join(SERVERS)}{more}")
    return to


# --- checking ---------------------------------------------------------------------------------------------


def validate_file(
    path: Path | str,
    to: str,
    root: Path | str | None = None,
    *,
    split: str | None = None,
    benchmark: str | None = None,
) -> Verdict:
    """Check a server file against the annotations below ``root``.

    ``split`` defaults to the one that the server takes, ``benchmark`` to the real one (``mini-cirr`` and
    ``mini-circo`` are for practice). Raises :class:`InputError` when file or annotations cannot be read;
    what is wrong with the file's content is in the verdict."""
    path = Path(path)
    name = benchmark or check_server(to)
    split = split or (SERVER_SPLIT[to] if name == to else "test")
    if check_benchmark(name, split).family != check_server(to):
        raise InputError(f"{name} has no files for the server of {to}; choose another --to")
    bench = load_benchmark(name, split, root, need_images=False)
    verdict = find_faults(read_json(path, "server file"), bench)
    size = path.stat().st_size
    if to == "cirr" and size > MOST_BYTES:
        verdict.errors.append(
            f"the file has {size:,} bytes where the server takes {MOST_BYTES:,}; write it without blanks"
        )
    return verdict


def refusal(path: Path | str, to: str, verdict: Verdict) -> str:
    """One line about a file with ``verdict.errors``."""
    return (
        f"{path} is no valid file for {to}: {'; '.join(verdict.errors)}; mend these, or write the file with "
        f"`cir submit RUN --to {to}`"
    )


def find_faults(table: Any, bench: Benchmark) -> Verdict:
    """Every rule of the server that ``table``, a server file's content, breaks; ``bench`` is the split that
    it is about."""
    verdict = Verdict()
    if not isinstance(table, dict):
        verdict.errors.append(
            f"expected a JSON object {{query id: [image ids]}}, not a {type(table).__name__}"
        )
        return verdict
    cirr = bench.family == "cirr"
    lists, subset = dict(table), False
    if cirr:
        version, metric = lists.pop("version", None), lists.pop("metric", None)
        if version != CIRR_VERSION:
            verdict.errors.append(f"'version' must be {CIRR_VERSION!r}, not {version!r:.40}")
        known_metric = metric in list(CIRR_METRICS)  # of any type
        if not known_metric:
            verdict.errors.append(f"'metric' must be 'recall' or 'recall_subset', not {metric!r:.40}")
        lengths = [len(ranking) for ranking in lists.values() if isinstance(ranking, list)]
        # Without a metric the length tells which file it was meant to be, so that the rest can be checked.
        subset = metric == "recall_subset" or (
            not known_metric and max(lengths, default=0) <= CIRR_METRICS["recall_subset"]
        )
    queries = {query.id: query for query in bench.queries}
    missing = [query for query in queries if query not in lists]
    extra = [key for key in lists if key not in queries]
    span = f"{len(queries)} of {bench.name} {bench.split}"
    if missing:
        verdict.errors.append(f"{len(missing)} of {len(queries)} queries are missing ({_some(missing)})")
    if extra:
        verdict.errors.append(f"{len(extra)} keys are no query of the {span} ({_some(extra)})")

    rankings: dict[str, list[Any]] = {}
    no_list = []
    for key in queries:
        if key in lists:
            if isinstance(lists[key], list):
                rankings[key] = lists[key]
            else:
                no_list.append(key)
    if no_list:
        verdict.errors.append(f"the value of a query must be a list of image ids ({_some(no_list)})")

    known = frozenset(bench.gallery)
    _lengths(verdict, rankings, bench, subset)
    _kinds(verdict, rankings, cirr)
    _repeats(verdict, rankings, cirr)

    def foreign(query: Query, image: Any) -> bool:
        return bool(known) and _is_id(image, cirr) and image not in known

    _images(verdict.errors, rankings, queries, foreign, "is not in the gallery")
    if not known:
        verdict.notes.append("the image list is absent: whether the images exist was not checked")

    def own_reference(query: Query, image: Any) -> bool:
        return image == query.reference or str(image) == str(query.reference)

    if cirr:
        _images(
            verdict.errors, rankings, queries, own_reference, "is the query's own reference, to be removed"
        )
    else:
        _images(verdict.warnings, rankings, queries, own_reference, "is the query's own reference (allowed)")
    if subset:

        def outside(query: Query, image: Any) -> bool:
            return image not in query.members and image in known

        _images(verdict.errors, rankings, queries, outside, "is no member of the query's subset")
    return verdict


def _is_id(image: Any, names: bool) -> bool:
    """Whether ``image`` is written as the server wants it."""
    return isinstance(image, str) if names else is_whole(image)


def _lengths(verdict: Verdict, rankings: Mapping[str, list[Any]], bench: Benchmark, subset: bool) -> None:
    """Every list has exactly the server's length (all there is, in a smaller gallery)."""
    cirr = bench.family == "cirr"
    wanted = CIRR_METRICS["recall_subset" if subset else "recall"] if cirr else CIRCO_LENGTH
    if bench.gallery and not subset:
        wanted = min(wanted, len(bench.gallery) - cirr)
    wrong = [f"query {key}: {len(ranking)}" for key, ranking in rankings.items() if len(ranking) != wanted]
    if wrong:
        verdict.errors.append(f"{len(wrong)} lists do not have exactly {wanted} images ({_some(wrong)})")


def _kinds(verdict: Verdict, rankings: Mapping[str, list[Any]], names: bool) -> None:
    """Ids are integers (CIRCO) or names (CIRR), never file names."""
    files, odd = [], []
    for key, ranking in rankings.items():
        for image in ranking:
            if isinstance(image, str) and (
                image.lower().endswith(EXTENSIONS) or "/" in image or "\\" in image
            ):
                files.append(f"query {key}: {image!r:.60}")
            elif not _is_id(image, names):
                odd.append(f"query {key}: {image!r:.60}")
    if files:
        form = "names without path and extension" if names else "integers"
        verdict.errors.append(
            f"{len(files)} images are written as file names, not as {form} ({_some(files)})"
        )
    if odd:
        form = "names as text" if names else "integers from 0, such as 12, not '000000000012'"
        verdict.errors.append(f"{len(odd)} image ids are not {form} ({_some(odd)})")


def _repeats(verdict: Verdict, rankings: Mapping[str, list[Any]], names: bool) -> None:
    """No image twice in a list, however it is written: for CIRCO ``12``, ``"12"`` and ``"000012.jpg"`` are
    one."""
    wrong = []
    for key, ranking in rankings.items():
        seen: dict[Any, Any] = {}
        for image in ranking:
            if isinstance(image, bool) or not isinstance(image, (int, str)):
                continue
            stem = _without_extension(image) if isinstance(image, str) else image
            plain = stem if names else plain_id(stem)
            if plain in seen:
                both = "" if repr(seen[plain]) == repr(image) else f", as {seen[plain]!r} and as {image!r}"
                wrong.append(f"query {key}: image {plain}{both}")
                break
            seen[plain] = image
    if wrong:
        verdict.errors.append(f"{len(wrong)} lists hold an image twice ({_some(wrong)})")


def _images(
    into: list[str],
    rankings: Mapping[str, list[Any]],
    queries: Mapping[str, Query],
    wrong: Callable[[Query, Any], bool],
    what: str,
) -> None:
    """Add one sentence about the images of ``rankings`` that are ``wrong``."""
    found = [
        f"query {key}: {image!r:.60}"
        for key, ranking in rankings.items()
        for image in ranking
        if isinstance(image, (int, str)) and wrong(queries[key], image)
    ]
    if found:
        into.append(f"{len(found)} times a listed image {what} ({_some(found)})")


def _without_extension(image: str) -> str:
    return next((image[: -len(end)] for end in EXTENSIONS if image.lower().endswith(end)), image)


def _some(things: Sequence[str]) -> str:
    return ", ".join(things[:SHOWN]) + (", ..." if len(things) > SHOWN else "")


# --- writing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """A server file that was written: its place, whose rankings it holds, its size in bytes, and the check's
    warnings and notes."""

    path: Path
    benchmark: str
    split: str
    size: int
    verdict: Verdict


def write_submissions(
    bench: Benchmark,
    rankings: Mapping[str, Sequence[ImageId]],
    subsets: Mapping[str, Sequence[ImageId]],
    out: Path | str,
) -> list[Written]:
    """Write the server files of a run into the folder ``out``, checked before anything is written.

    ``rankings`` are full ones, best first, ``subsets`` CIRR's ranked subsets. CIRR gives
    ``cirr-<split>-recall.json`` and ``cirr-<split>-recall_subset.json``, CIRCO ``circo-<split>.json``, all
    without blanks. Raises :class:`InputError` that names every broken rule (a run with ``--limit`` lacks
    queries, for example), for a file over 5 MB, and for a folder that cannot be written."""
    out = Path(out)
    check_server(bench.family)
    contents: list[tuple[str, str]] = []
    verdicts = []
    for metric, table in _tables(bench, rankings, subsets).items():
        name = "-".join(part for part in (bench.name, bench.split, metric) if part) + ".json"
        verdict = find_faults(table, bench)
        if not verdict.valid:
            raise InputError(f"the run gives no valid {name}: {'; '.join(verdict.errors)}")
        text = json.dumps(table, separators=(",", ":"), allow_nan=False)
        if bench.family == "cirr" and len(text) > MOST_BYTES:
            raise InputError(
                f"{name} would have {len(text):,} bytes where the server takes {MOST_BYTES:,}; shorten the "
                "image names"
            )
        contents.append((name, text))
        verdicts.append(verdict)
    try:
        for name, text in contents:
            write_atomic(out / name, text)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}); choose another --out") from None
    return [
        Written(out / name, bench.name, bench.split, len(text.encode()), verdict)
        for (name, text), verdict in zip(contents, verdicts, strict=True)
    ]


def _tables(
    bench: Benchmark, rankings: Mapping[str, Sequence[ImageId]], subsets: Mapping[str, Sequence[ImageId]]
) -> dict[str, Table]:
    """The contents of the server files, by metric."""
    if bench.family == "circo":
        return {"": {query: list(ranking[:CIRCO_LENGTH]) for query, ranking in rankings.items()}}
    references = {query.id: query.reference for query in bench.queries}
    tables: dict[str, Table] = {}
    for (metric, length), source in zip(CIRR_METRICS.items(), (rankings, subsets), strict=True):
        tables[metric] = {"version": CIRR_VERSION, "metric": metric}
        for query, ranking in source.items():
            left = [image for image in ranking if image != references.get(query)]
            tables[metric][query] = left[:length]
    return tables


def submit_run(
    folder: Path | str, to: str, root: Path | str | None = None, out: Path | str | None = None
) -> list[Written]:
    """Write the server files of the run in ``folder``, by default beside its record.

    ``root`` is the benchmark's folder, by default that of the run's profile. Raises as
    :func:`write_submissions`, and for a run of another benchmark."""
    from cir_utils.profiles import load_profile
    from cir_utils.runs import load_run

    check_server(to)
    run = load_run(folder, whole=True)
    name, split = run.record["benchmark"], run.record["split"]
    if name not in BENCHMARKS or BENCHMARKS[name].family != to:
        raise InputError(
            f"the run in {folder} is of {name}, which the server of {to} does not take; give another run or "
            "--to"
        )
    if root is None:
        root = load_profile(run.record["profile"]).benchmark(name).root
    bench = load_benchmark(name, split, root, need_images=False)
    return write_submissions(bench, run.rankings, run.subsets, folder if out is None else out)


def describe_written(written: Sequence[Written], to: str) -> str:
    """What was written, for the terminal: files, sizes, where they go."""
    lines = []
    for one in written:
        lines.append(f"{one.path}: {one.size:,} bytes, valid")
        lines += [f"warning: {text}" for text in one.verdict.warnings]
        lines += [f"note: {text}" for text in one.verdict.notes]
    mine, wanted = f"{written[0].benchmark} {written[0].split}", f"{to} {SERVER_SPLIT[to]}"
    if mine == wanted:
        lines.append(f"upload to {SERVERS[to]}")
    else:
        lines.append(f"note: the server takes {wanted}; this is {mine}, for practice")
    return "\n".join(lines)
