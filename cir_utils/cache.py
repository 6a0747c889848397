"""Looking into the cache folder, and taking answers out of it and into another: ``cir cache``.

An export is a file of JSON lines. The first says what follows::

    {"format": "cir-answers", "version": 1, "cir_utils": "0.1.0", "answers": 2, "verdicts": 1,
     "models": {"mini-vlm@665e.../float32": {"answers": 2, "verdicts": 1}}}

and every other line is one row of the response cache, answers first, each table in order of its keys::

    {"answer": KEY, "text": "a red car", "finish_reason": "stop", "prompt_tokens": 80,
     "completion_tokens": 4, "class": "good", "agent": "caption", "model": "mini-vlm@665e.../float32"}
    {"verdict": KEY, "p_true": 0.93, "prompt_tokens": 91, "model": "mini-vlm@665e.../float32"}

KEY is the row's key in 64 hex digits (``cir_utils.response_cache``). ``model`` is left out where it was not
noted. No prompt, picture, path or server key is in it, for none is in the cache; the identifier of a served
model holds the server's address, or CIR_SERVER_NAME in its place.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from cir_utils import __version__
from cir_utils.errors import InputError
from cir_utils.files import open_atomic, own_sha256, sha256_file, sha256_text
from cir_utils.response_cache import (
    ANSWERS,
    KEY_BYTES,
    VERSION,
    Entry,
    Merged,
    ResponseCache,
    StoredAnswer,
    StoredVerdict,
    reading,
    row_fault,
    stored,
)

FORMAT, FORMAT_VERSION = "cir-answers", 1
#: The folder of the feature store within the cache folder.
FEATURES = "features"
TABLES = ("answers", "verdicts")
#: A line of an export above this many bytes is none.
MAX_LINE = 32_000_000
#: Problems of one kind that are listed one by one.
LISTED = 3
_ANSWER = {"answer", "text", "finish_reason", "prompt_tokens", "completion_tokens", "class", "agent"}
_VERDICT = {"verdict", "p_true", "prompt_tokens"}
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)  # made once: a dumps with options makes one
_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError)

AGAIN = "nothing to do: the next run that needs it computes it again"
LEFT_OVER = "left by a run that was killed (or is writing now); it can be deleted when no run is going"
MOVE_AWAY = "move it away: a new one is made, and what is asked again or imported fills it"


@dataclass(frozen=True)
class Problem:
    """Something in the cache folder that is not as it was written: the file (relative to the folder), what is
    wrong, and how to mend it."""

    file: str
    fault: str
    mend: str


@dataclass
class Verified:
    """What :func:`verify` read, and what was wrong with it."""

    answers: int = 0
    verdicts: int = 0
    shards: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)


# --- looking ------------------------------------------------------------------------------------------------


def survey(folder: Path) -> dict[str, Any]:
    """What ``cir cache ls`` shows, for JSON: the response cache with its counts by class, agent and model,
    and the feature folders; each with what is damaged as far as that shows without reading everything
    (:func:`verify` does). Changes nothing. Raises :class:`InputError` when the folder does not exist."""
    _check_folder(folder)
    found: dict[str, Any] = {"cache": str(folder), "responses": None, "features": []}
    if (folder / ANSWERS).exists():
        found["responses"] = _survey_answers(folder / ANSWERS)
    for place in _feature_folders(folder):
        found["features"].append(_survey_features(place))
    found["left_over"] = [path.relative_to(folder).as_posix() for path in _left_over(folder)]
    return found


def describe_survey(found: dict[str, Any]) -> str:
    """:func:`survey` for the terminal."""
    lines = [found["cache"]]
    responses = found["responses"]
    if responses is None and not found["features"]:
        lines.append("nothing is kept here yet")
    if responses is not None:
        lines.append(f"{ANSWERS}  {_size(responses['bytes'])}")
        if responses["damaged"]:
            lines.append(f"  damaged: {responses['damaged']}")
        else:
            lines.append(f"  {responses['answers']:,} answers, {responses['verdicts']:,} verdicts")
            for what in ("class", "agent"):
                if responses[f"by_{what}"]:
                    lines.append(f"  answers by {what}: {_listed(responses[f'by_{what}'])}")
            for name, counts in responses["models"].items():
                lines.append(f"  of {name or 'models that were not noted'}: {_listed(counts)}")
    for row in found["features"]:
        lines.append(
            f"{FEATURES}/{row['folder']}  {row['encoder']}, {row['precision']}, {row['preprocessing']}: "
            f"{row['images']:,} images, {row['texts']:,} texts in {row['shards']:,} shards, "
            f"{_size(row['bytes'])}"
        )
        lines += [f"  damaged: {text}" for text in row["damaged"][:LISTED]]
        if len(row["damaged"]) > LISTED:
            lines.append(f"  and {len(row['damaged']) - LISTED:,} more; see `cir cache verify`")
    lines += [f"left over: {name}" for name in found["left_over"]]
    return "\n".join(lines)


def verify(folder: Path) -> Verified:
    """Read everything that the cache folder holds: SQLite's own check of the response cache and every row,
    every shard of features against its record and its SHA-256, and what killed writers left. Changes nothing.
    Raises :class:`InputError` when the folder does not exist."""
    _check_folder(folder)
    done = Verified()
    if (folder / ANSWERS).exists():
        try:
            _verify_answers(folder / ANSWERS, done)
        except (InputError, OSError) as error:
            done.problems.append(Problem(ANSWERS, str(error).partition(";")[0], MOVE_AWAY))
    for place in _feature_folders(folder):
        about, fault, mend = _about(place)
        if fault:
            done.problems.append(Problem(f"{FEATURES}/{place.name}/encoder.json", fault, mend))
        for shard in _shards(place, about, whole=True):
            done.shards += 1
            done.bytes += shard.bytes
            if shard.fault:
                done.problems.append(
                    Problem(f"{FEATURES}/{place.name}/{shard.name}", shard.fault, shard.mend)
                )
    for path in _left_over(folder):
        name = path.relative_to(folder).as_posix()
        done.problems.append(Problem(name, "a file that was not written to its end", LEFT_OVER))
    return done


def describe_verified(folder: Path, done: Verified) -> str:
    """:func:`verify` for the terminal."""
    read = (
        f"{folder}: {done.answers:,} answers, {done.verdicts:,} verdicts and {done.shards:,} shards "
        f"({_size(done.bytes)}) read"
    )
    if not done.problems:
        return f"{read}, all as they were written"
    lines = [f"{problem.file}: {problem.fault}\n  -> {problem.mend}" for problem in done.problems]
    return "\n".join([*lines, f"{read}; problems: {len(done.problems):,}"])


# --- out and in ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exported:
    """The first line of an export, and the rows that were left out because they are damaged."""

    header: dict[str, Any]
    left_out: int


def export_answers(folder: Path, file: Path, model: str | None = None) -> Exported:
    """Write all answers and verdicts, or those of ``model`` alone, to ``file`` (see the top of this module):
    whole or not at all, row by row. Two exports of one cache are the same bytes.

    Raises :class:`InputError` when there is no response cache or it cannot be read, it has nothing of
    ``model``, and when ``file`` is something else than an earlier export or cannot be written.
    """
    path = _response_cache(folder)
    _check_target(file)
    with reading(path) as connection:
        counts: dict[str, Counter[str]] = {table: Counter() for table in TABLES}
        left_out = 0
        for table in TABLES:
            for entry in stored(connection, table):
                if _entry_fault(entry):
                    left_out += 1
                else:
                    counts[table][entry.model] += 1
        names = sorted({name for table in TABLES for name in counts[table]})
        if model is not None and model not in names:
            held = ", ".join(filter(None, names)) or "none, as it names no model"
            raise InputError(
                f"response cache {path} has nothing of model {model!r}: choose {held}; or leave out --model"
            )
        chosen = names if model is None else [model]
        header = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "cir_utils": __version__,
            **{table: sum(counts[table][name] for name in chosen) for table in TABLES},
            "models": {
                name: {table: counts[table][name] for table in TABLES} for name in chosen if name
            },
        }  # fmt: skip
        try:
            with open_atomic(file) as stream:
                stream.write(_line(header))
                for table in TABLES:
                    for entry in stored(connection, table):
                        if entry.model in chosen and not _entry_fault(entry):
                            stream.write(_line(_as_line(entry)))
        except OSError as error:
            raise InputError(
                f"export {file} cannot be written ({error.strerror}); choose another place"
            ) from None
    return Exported(header, left_out)


def import_answers(folder: Path, file: Path, replace: bool = False) -> tuple[dict[str, Any], Merged]:
    """Take the rows of an export into the response cache of ``folder`` (made where there is none), all or
    none; returns the export's first line, and what became of the rows. Rows that are there already are
    skipped, so that importing twice changes nothing.

    Raises :class:`InputError` that names the line of a file that is no whole export, and (unless ``replace``)
    when rows differ from those that are there."""
    try:
        with open(file, "rb") as stream:
            lines = _lines(stream, file)
            header = _header(next(lines, (1, None))[1], file)
            with ResponseCache(folder / ANSWERS) as cache:
                return header, cache.merge(_entries(lines, header, file), replace=replace)
    except OSError as error:
        raise InputError(f"export {file} cannot be read ({error.strerror}); check the path") from None


def describe_models(header: dict[str, Any]) -> list[str]:
    """Of whom an export is, and how it is replayed: lines for the terminal."""
    lines = [f"of {name}: {_listed(counts)}" for name, counts in header["models"].items()]
    noted = {table: sum(counts[table] for counts in header["models"].values()) for table in TABLES}
    rest = {table: header[table] - noted[table] for table in TABLES if header[table] > noted[table]}
    if rest:
        lines.append(
            f"of models that were not noted: {_listed(rest)} (a run's record names its model: inputs.mllm)"
        )
    name = next(iter(header["models"]), "MODEL")
    return [*lines, f"replay: cir run METHOD --benchmark BENCHMARK --mllm replay:{name}"]


# --- the response cache -------------------------------------------------------------------------------------


def _survey_answers(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"file": ANSWERS, "bytes": 0, "damaged": "", "answers": 0, "verdicts": 0}
    found |= {"by_class": {}, "by_agent": {}, "models": {}}
    try:
        found["bytes"] = sum(one.stat().st_size for one in (path, Path(f"{path}-wal")) if one.exists())
        models: dict[str, Counter[str]] = {}
        by_class: Counter[str] = Counter()
        by_agent: Counter[str] = Counter()
        with reading(path) as connection:
            _check_version(connection)
            for table in TABLES:
                for entry in stored(connection, table):
                    found[table] += 1
                    models.setdefault(entry.model, Counter())[table] += 1
                    if isinstance(entry.row, StoredAnswer):
                        by_class[str(entry.row.kind) or "not classed"] += 1
                        by_agent[str(entry.row.agent) or "not noted"] += 1
        found["by_class"], found["by_agent"] = dict(by_class.most_common()), dict(by_agent.most_common())
        found["models"] = {name: dict(models[name]) for name in sorted(models)}
    except (InputError, OSError) as error:
        found["damaged"] = str(error).partition(";")[0]
    return found


def _verify_answers(path: Path, done: Verified) -> None:
    with reading(path) as connection:
        _check_version(connection)
        # SQLite stops at 100 messages of its own accord.
        said = [row[0] for row in connection.execute("PRAGMA integrity_check")]
        if said != ["ok"]:
            fault = f"SQLite finds it damaged ({'; '.join(said[:LISTED])})"
            done.problems.append(Problem(ANSWERS, " ".join(fault.split()), MOVE_AWAY))
        for table in TABLES:
            faults: dict[str, list[str]] = {}
            for entry in stored(connection, table):
                setattr(done, table, getattr(done, table) + 1)
                if fault := _entry_fault(entry):
                    faults.setdefault(fault, []).append(_hex(entry.key))
            for fault, keys in faults.items():
                text = f"{len(keys):,} of its {table}: {fault} (first key {keys[0]})"
                mend = "nothing to do: such rows are not used, and the next run that needs one asks again"
                done.problems.append(Problem(ANSWERS, text, mend))
    done.bytes += path.stat().st_size


def _check_version(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise InputError(f"it has format {version}, not {VERSION}")


def _entry_fault(entry: Entry) -> str:
    if type(entry.key) is not bytes or len(entry.key) != KEY_BYTES:
        return f"its key has not {KEY_BYTES} bytes"
    return row_fault(entry.row) or ("" if entry.sound else "its checksum is not that of its content")


def _hex(key: Any) -> str:
    return key.hex() if isinstance(key, bytes) else repr(key)


def _response_cache(folder: Path) -> Path:
    _check_folder(folder)
    path = folder / ANSWERS
    if not path.is_file():
        raise InputError(
            f"cache folder {folder} holds no answers ({ANSWERS}); run a method with an MLLM first"
        )
    return path


# --- lines of an export -------------------------------------------------------------------------------------


def _as_line(entry: Entry) -> dict[str, Any]:
    row = entry.row
    values: dict[str, Any]
    if isinstance(row, StoredVerdict):
        values = {"verdict": entry.key.hex(), **row._asdict()}
    else:
        values = {
            "answer": entry.key.hex(),
            "text": row.text,
            "finish_reason": row.finish_reason,
            "prompt_tokens": row.prompt_tokens,
            "completion_tokens": row.completion_tokens,
            "class": row.kind,
            "agent": row.agent,
        }
    return values | ({"model": entry.model} if entry.model else {})


def _line(value: dict[str, Any]) -> bytes:
    return (_ENCODER.encode(value) + "\n").encode("utf-8")


def _lines(stream: Any, file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a file with the numbers of their lines."""
    number = 0
    while data := stream.readline(MAX_LINE):
        number += 1
        try:
            if len(data) == MAX_LINE:
                raise ValueError(f"it is longer than {MAX_LINE:,} bytes")
            value = json.loads(data.decode("utf-8"))
            if not isinstance(value, dict):
                raise ValueError("it is no JSON object")
        except (ValueError, RecursionError) as error:
            said = error.msg if isinstance(error, json.JSONDecodeError) else error
            cut = "" if data.endswith(b"\n") else " and ends the file"
            raise _bad(file, number, f"cannot be read ({said}){cut}") from None
        yield number, value


def _header(value: dict[str, Any] | None, file: Path) -> dict[str, Any]:
    if value is None or value.get("format") != FORMAT:
        raise _bad(file, 1, f"is not that of an export (it has no format {FORMAT!r})")
    if value.get("version") != FORMAT_VERSION:
        raise InputError(
            f"export {file} has version {value.get('version')!r}, not {FORMAT_VERSION}: "
            "take it in with the version of cir_utils that wrote it"
        )
    models = value.get("models")
    counts = [value, *models.values()] if isinstance(models, dict) else []
    whole = all(isinstance(row, dict) and type(row.get(table)) is int for row in counts for table in TABLES)
    if not counts or not whole:
        raise _bad(file, 1, "lacks the numbers of answers and verdicts, or those of its models")
    return value


def _entries(
    lines: Iterator[tuple[int, dict[str, Any]]], header: dict[str, Any], file: Path
) -> Iterator[Entry]:
    """The rows of an export, checked one by one, and at the end their number."""
    counts = dict.fromkeys(TABLES, 0)
    number = 1
    for number, value in lines:
        verdict = "verdict" in value
        keys = set(value) - {"model"}
        if keys != (_VERDICT if verdict else _ANSWER):
            wanted = ", ".join(sorted(_VERDICT if verdict else _ANSWER))
            raise _bad(file, number, f"has the fields {', '.join(sorted(value)) or 'none'}, not {wanted}")
        model = value.get("model", "")
        if not isinstance(model, str):
            raise _bad(file, number, "has a model that is no text")
        entry = Entry(_key(value["verdict" if verdict else "answer"]), _row(value), model)
        if fault := _entry_fault(entry):
            raise _bad(file, number, f"is no row of a response cache: {fault}")
        if not _storable(entry):
            raise _bad(file, number, "has a text with half of a surrogate pair")
        counts["verdicts" if verdict else "answers"] += 1
        yield entry
    promised = {table: header[table] for table in TABLES}
    if counts != promised:
        raise InputError(
            f"export {file} ends after line {number} with {_listed(counts)}, and its first line promises "
            f"{_listed(promised)}: it is cut or was changed; get the file again; nothing was taken over"
        )


def _row(value: dict[str, Any]) -> StoredAnswer | StoredVerdict:
    if "verdict" in value:
        p_true = value["p_true"]
        return StoredVerdict(float(p_true) if type(p_true) is int else p_true, value["prompt_tokens"])
    return StoredAnswer(
        text=value["text"],
        finish_reason=value["finish_reason"],
        prompt_tokens=value["prompt_tokens"],
        completion_tokens=value["completion_tokens"],
        kind=value["class"],
        agent=value["agent"],
    )


def _storable(entry: Entry) -> bool:
    """Whether the texts of a row can be written as UTF-8, which not every JSON text can."""
    row = entry.row
    try:
        (entry.model if isinstance(row, StoredVerdict) else entry.model + row.text + row.agent).encode()
        return True
    except UnicodeEncodeError:
        return False


def _key(text: Any) -> bytes:
    """The key that hex digits write; what is none gives a key of no length."""
    try:
        return bytes.fromhex(text) if len(text) == 2 * KEY_BYTES else b""
    except (ValueError, TypeError):
        return b""


def _bad(file: Path, number: int, fault: str) -> InputError:
    return InputError(f"export {file}, line {number} {fault}; get the file again; nothing was taken over")


def _check_target(file: Path) -> None:
    """Refuse to put an export in the place of anything but an earlier one."""
    if not file.exists():
        return
    try:
        with open(file, "rb") as stream:
            _header(next(_lines(stream, file), (1, None))[1], file)
    except (OSError, InputError):
        raise InputError(f"{file} exists and is no export; name a new file") from None


# --- features -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shard:
    """A shard with its record: the name of the file at fault (else the shard's), what it is of, the contents
    that it lists, the bytes of both files, and what is wrong."""

    name: str
    kind: str
    content: list[str]
    bytes: int
    fault: str = ""
    mend: str = ""


def _feature_folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in (folder / FEATURES).iterdir() if path.is_dir())
    except OSError:  # there are none yet
        return []


def _left_over(folder: Path) -> list[Path]:
    """Temporary files of ``write_atomic``."""
    places = [folder, *_feature_folders(folder)]
    return sorted(path for place in places for path in place.glob(".*.part"))


def _about(place: Path) -> tuple[dict[str, Any], str, str]:
    """The description of a folder's encoder (empty where it is damaged), what is wrong with it, and the
    mend."""
    try:
        about = json.loads((place / "encoder.json").read_text(encoding="utf-8"))
        if not isinstance(about, dict):
            raise ValueError("it is no JSON object")
    except FileNotFoundError:
        return {}, "it is missing", AGAIN
    except _DAMAGED as error:
        return {}, f"it cannot be read ({_reason(error)})", "delete it: the next run writes it anew"
    if sha256_text(json.dumps(about, sort_keys=True))[:16] != place.name:
        return {}, "it belongs to a folder of another name", "delete it: the next run writes it anew"
    return about, "", ""


def _survey_features(place: Path) -> dict[str, Any]:
    about, fault, _ = _about(place)
    content: dict[str, set[str]] = {"image": set(), "text": set()}
    damaged = [f"encoder.json: {fault}"] if fault else []
    shards = size = 0
    for shard in _shards(place, about, whole=False):
        shards += 1
        size += shard.bytes
        content[shard.kind].update(shard.content)
        if shard.fault:
            damaged.append(f"{shard.name}: {shard.fault}")
    preprocessing = about.get("preprocessing")
    if isinstance(preprocessing, dict):
        preprocessing = preprocessing.get("name")
    return {
        "folder": place.name,
        "encoder": str(about.get("encoder", "unknown encoder")),
        "precision": str(about.get("precision", "unknown precision")),
        "preprocessing": str(preprocessing or "unknown preprocessing"),
        "shards": shards,
        "images": len(content["image"]),
        "texts": len(content["text"]),
        "bytes": size,
        "damaged": damaged,
    }


def _shards(place: Path, about: dict[str, Any], whole: bool) -> Iterator[_Shard]:
    """The shards of a folder in order of their names; ``whole`` reads and checks their bytes too."""
    files = [path for kind in ("image", "text") for path in place.glob(f"{kind}-*") if path.is_file()]
    stems = {path.stem for path in files if path.suffix in (".safetensors", ".json")}
    for stem in sorted(stems):
        yield _look(place, stem, about, whole)


def _look(place: Path, stem: str, about: dict[str, Any], whole: bool) -> _Shard:
    kind = stem.partition("-")[0]
    data, manifest = place / f"{stem}.safetensors", place / f"{stem}.json"
    size = 0
    content: list[str] = []
    name, fault, mend = data.name, "", ""
    try:
        size = sum(path.stat().st_size for path in (data, manifest) if path.exists())
        if not manifest.exists():
            return _Shard(name, kind, [], size, "it has no record beside it", LEFT_OVER)
        name, mend = manifest.name, AGAIN
        record = json.loads(manifest.read_text(encoding="utf-8"))
        listed = record["content"]
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise ValueError("it does not list what the shard holds")
        if f"{kind}-{sha256_text(' '.join(listed))[:32]}" != stem:
            raise ValueError("it is of another shard")
        lists = ("ids",) if kind == "image" else ("ids", "cut", "tokens", "unknown")
        if any(len(record[name]) != len(listed) for name in lists):
            raise ValueError("its lists differ in length")
        if record.get("own_sha256") != own_sha256(record):
            raise ValueError("it was changed since it was written")
        if about and record["encoder"] != about:
            raise ValueError("it is of another encoder")
        content, name = listed, data.name
        if not data.exists():
            raise ValueError("it is missing, and its record is there")
        if whole:
            _check_shard(data, record, len(content))
    except _DAMAGED as error:
        fault = _reason(error)
    return _Shard(name, kind, content, size, fault, mend if fault else "")


def _check_shard(data: Path, record: dict[str, Any], rows: int) -> None:
    """``ValueError`` for a shard that is not the bytes of its record, or not the features of its contents."""
    if sha256_file(data) != record["sha256"]:
        raise ValueError("its SHA-256 differs from its record")
    with safe_open(data, framework="numpy") as stream:
        features = stream.get_slice("features")
        shape, dtype = list(features.get_shape()), features.get_dtype()
    if shape != [rows, record["encoder"]["width"]] or dtype != "F32":
        raise ValueError(f"it holds {dtype} {shape}, not F32 {[rows, record['encoder']['width']]}")


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"it cannot be read ({error.strerror})"
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    if type(error) is ValueError:  # one of ours
        return str(error)
    return f"it cannot be read ({' '.join(str(error).split()) or type(error).__name__})"


# --- words --------------------------------------------------------------------------------------------------


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(
            f"cache folder {folder} does not exist: no run has kept anything there; "
            "name another with --cache or CIR_CACHE"
        )


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count / 1e3:,.1f} kB"
