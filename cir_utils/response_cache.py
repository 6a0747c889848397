"""Every answer of an MLLM, kept: one SQLite file, content-addressed, safe for several processes.

A row's key is the SHA-256 of everything that decides the answer: the model's identifier (name and weights),
the prompt text after filling, the generation settings, and the SHA-256 of the bytes of every picture in
order. A changed prompt file, picture or model thus never finds a stale answer. Two tables: generated answers,
and verification probabilities (one row a (prefix, statement) pair). Raw answers are kept with their class, so
that a cut answer is never taken for a complete one. A third table names the models; a row points to its model
(NULL in rows that were written before models were noted), for the reader alone: keys decide what is found.
SQLite does not notice a changed bit in a value, so every row has a checksum over its key and content (NULL in
rows from before there were any); one that differs is a damaged row, which counts as absent.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from cir_utils.errors import InputError
from cir_utils.files import sha256_file
from cir_utils.schemas import KINDS

log = logging.getLogger(__name__)

#: The file's name in the cache folder.
ANSWERS = "answers.sqlite"
VERSION = 1
KEY_BYTES = 32
FINISH_REASONS = ("stop", "length", "refusal")
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (
  key BLOB PRIMARY KEY, text TEXT NOT NULL, finish_reason TEXT NOT NULL, prompt_tokens INTEGER NOT NULL,
  completion_tokens INTEGER NOT NULL, kind TEXT NOT NULL, agent TEXT NOT NULL, model INTEGER,
  checksum INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS verdicts (
  key BLOB PRIMARY KEY, p_true REAL NOT NULL, prompt_tokens INTEGER NOT NULL, model INTEGER,
  checksum INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS models (id INTEGER PRIMARY KEY, identifier TEXT NOT NULL UNIQUE);
"""
_COLUMNS = {
    "answers": "text, finish_reason, prompt_tokens, completion_tokens, kind, agent",
    "verdicts": "p_true, prompt_tokens",
}
#: Columns that files of earlier versions lack; every row of those has NULL there.
_LATER = ("model", "checksum")
_BLOCK = 500
_BUSY_SECONDS = 60.0


@dataclass(frozen=True)
class StoredAnswer:
    """A generated answer: raw text, why it ended ("stop", "length", "refusal"), tokens, class
    (``schemas.Kind``), agent."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    kind: str = ""
    agent: str = ""


class StoredVerdict(NamedTuple):
    """A verification: the probability of "true" in [0, 1], and the tokens of its whole prompt."""

    p_true: float
    prompt_tokens: int


Row = TypeVar("Row", StoredAnswer, StoredVerdict)


class Entry(NamedTuple):
    """A row with its key and its model's identifier ("" where that was not noted); ``sound`` says whether its
    checksum is that of its content."""

    key: bytes
    row: StoredAnswer | StoredVerdict
    model: str
    sound: bool = True


@dataclass
class Merged:
    """What :meth:`ResponseCache.merge` did: rows that were ``new``, ``there`` already with the same content,
    or ``replaced``."""

    new: int = 0
    there: int = 0
    replaced: int = 0


class ResponseCache:
    """The cache in the file ``path`` (made with its folders when absent; ``None`` keeps it in memory).

    ``hits`` and ``misses`` count keys asked for since opening. Writers of other processes are waited for; a
    write is whole or absent. A file that cannot be written is read alone: ``read_only``. ``say`` gets a
    sentence about damaged rows that were asked for, and about a file that was found empty. Raises
    :class:`InputError` for a file that is no cache of this version or is damaged.
    """

    def __init__(self, path: Path | str | None = None, say: Callable[[str], None] = log.info) -> None:
        self.path = None if path is None else Path(path)
        self.say = say
        self.read_only = False
        self.hits = 0
        self.misses = 0
        self._lock = threading.RLock()
        self._pid = -1
        self._connection: sqlite3.Connection | None = None
        with self._open():
            pass

    def get_answers(self, keys: Sequence[bytes]) -> dict[bytes, StoredAnswer]:
        """The answers that are there, by key; a damaged row (:func:`row_fault`) counts as absent."""
        return self._get("answers", keys, StoredAnswer)

    def put_answers(self, rows: Mapping[bytes, StoredAnswer], model: str = "") -> None:
        """Keep answers of the model with this identifier; a key that is there already is written anew."""
        self._put("answers", rows, model)

    def get_verdicts(self, keys: Sequence[bytes]) -> dict[bytes, StoredVerdict]:
        """The verdicts that are there, as :meth:`get_answers`. Tens of thousands a second."""
        return self._get("verdicts", keys, StoredVerdict)

    def put_verdicts(self, rows: Mapping[bytes, StoredVerdict], model: str = "") -> None:
        """Keep verdicts in one transaction."""
        self._put("verdicts", rows, model)

    @contextmanager
    def alone(self, keys: Sequence[bytes]) -> Iterator[None]:
        """For whoever is about to compute the rows of ``keys``: no other process is in here for the same
        block, so look again for what another has stored in the meantime. The lock ends with the process that
        holds it, killed or not; it covers one byte, a place of its own for every block, of the empty file
        ``answers.lock`` beside the cache.

        Raises :class:`InputError` for a cache that cannot be written, before anything is computed for it."""
        if self.path is None:
            yield
            return
        if self.read_only:
            raise InputError(
                f"response cache {self.path} cannot be written and lacks answers that are needed, "
                f"{len(keys):,} of them next: name a folder that can be written with --cache or CIR_CACHE "
                "(`cir cache export` and `import` take along what is there)"
            )
        place = int(_digest(*(key.hex() for key in keys)).hex()[:12], 16)
        try:
            stream = open(self.path.with_suffix(".lock"), "ab")
        except OSError as error:
            raise InputError(
                f"response cache {self.path}: its folder cannot be written ({error.strerror}); make room, or "
                "name another with --cache or CIR_CACHE"
            ) from None
        with stream:
            try:
                fcntl.lockf(stream, fcntl.LOCK_EX, 1, place)
            except OSError as error:  # some network file systems have no locks: two may then ask the same
                log.warning("no lock on %s (%s)", stream.name, error.strerror)
            yield

    def merge(self, entries: Iterable[Entry], *, replace: bool = False) -> Merged:
        """Add rows from elsewhere, all of them or (when anything fails, ``entries`` included) none.

        A row that is there with the same content stays; where its model was not noted it is now. One with
        other content is refused with :class:`InputError`, which counts them, unless ``replace``. A block of
        rows is in memory at a time."""
        done, conflicts = Merged(), 0
        first = ""
        with self._open() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            for table, block in _blocks(entries):
                stored = _select(connection, table, list(block))
                known = {entry.key: entry for entry in stored if entry.sound}
                write = []
                for key, entry in block.items():
                    old = known.get(key)
                    if old is None:
                        done.new += 1
                    elif old.row == entry.row and (not entry.model or old.model in ("", entry.model)):
                        done.there += 1
                        if old.model or not entry.model:
                            continue
                    else:
                        conflicts += 1
                        first = first or f"{table}, key {key.hex()}"
                    write.append(entry if entry.model or old is None else entry._replace(model=old.model))
                _insert(connection, table, write)
            if conflicts and not replace:
                raise InputError(
                    f"{conflicts:,} rows differ from those that the response cache {self.path} holds under "
                    f"the same key (first: {first}): nothing was taken over; --replace puts the new ones in "
                    "their place"
                )
        done.replaced = conflicts
        return done

    def models(self) -> list[str]:
        """The identifiers of the models that have answered, as far as they were noted, sorted."""
        with self._open() as connection:
            return [name for (name,) in connection.execute("SELECT identifier FROM models ORDER BY 1")]

    def counts(self) -> dict[str, int]:
        """Rows kept: ``{"answers": n, "verdicts": n}``."""
        with self._open() as connection:
            return {
                table: connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
                for table in ("answers", "verdicts")
            }

    def close(self) -> None:
        """Close the file; the next use opens it again (an in-memory cache is lost)."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def __enter__(self) -> ResponseCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _get(self, table: str, keys: Sequence[bytes], make: Callable[..., Row]) -> dict[bytes, Row]:
        wanted = list(dict.fromkeys(keys))
        found: dict[bytes, Row] = {}
        damaged = 0
        with self._open() as connection:
            checksum = "checksum" if _has(connection, table, "checksum") else "NULL"
            for start in range(0, len(wanted), _BLOCK):
                block = wanted[start : start + _BLOCK]
                marks = _marks(len(block))
                query = f"SELECT key, {checksum}, {_COLUMNS[table]} FROM {table} WHERE key IN ({marks})"
                for key, kept, *values in connection.execute(query, block):
                    row = make(*values)
                    if row_fault(row) or kept not in (None, _checksum(key, row)):
                        damaged += 1
                    else:
                        found[key] = row
        if damaged:
            self.say(
                f"response cache {self.path}: {damaged:,} of the {table} that were asked for are damaged and "
                "not used: they are asked again"
            )
        self.hits += sum(key in found for key in keys)
        self.misses += sum(key not in found for key in keys)
        return found

    def _put(self, table: str, rows: Mapping[bytes, Any], model: str) -> None:
        with self._open() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            _insert(connection, table, (Entry(key, row, model) for key, row in rows.items()))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """The connection of this process (a forked child opens its own), with errors turned into one clear
        line."""
        with self._lock, _clear_errors(self.path):
            if self._connection is None or self._pid != os.getpid():
                self._connection = self._connect()
                self._pid = os.getpid()
            yield self._connection

    def _connect(self) -> sqlite3.Connection:
        name = ":memory:"
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"response cache {self.path}: {error.strerror}; choose another place"
                ) from None
            if self.path.is_file() and not self.path.stat().st_size:
                self.say(f"response cache {self.path} is an empty file: it is made anew")
            self.read_only = self.path.is_file() and not _writable(self.path)
            name = _uri(self.path) if self.read_only else str(self.path)
        connection = sqlite3.connect(
            name, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=self.read_only
        )
        try:
            if not self.read_only:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in ((VERSION,) if self.read_only else (0, VERSION)):
                raise InputError(
                    f"response cache {self.path} has format {version}, not {VERSION}; move it away"
                )
            whole = all(_has(connection, table, name) for table in _COLUMNS for name in _LATER)
            if not self.read_only and not (version and whole):
                _make_tables(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def row_fault(row: StoredAnswer | StoredVerdict) -> str:
    """What is wrong with a row, whatever its key; "" for a sound one."""
    tokens = [row.prompt_tokens]
    if isinstance(row, StoredVerdict):
        if type(row.p_true) is not float or not 0 <= row.p_true <= 1:
            return "p_true is no number in [0, 1]"
    else:
        tokens.append(row.completion_tokens)
        if type(row.text) is not str or type(row.agent) is not str:
            return "text or agent is no text"
        if row.finish_reason not in FINISH_REASONS:
            return f"finish_reason is none of {', '.join(FINISH_REASONS)}"
        if row.kind and row.kind not in KINDS:
            return f"class is none of {', '.join(KINDS)}"
    if any(type(count) is not int or not 0 <= count < 2**63 for count in tokens):
        return "a number of tokens is no whole number of 0 or more"
    return ""


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the cache in ``path`` that changes nothing, in one transaction: all that is read
    belongs to one moment. Errors as :class:`ResponseCache`, of which this is no part: a file of any format
    can be looked at."""
    with _clear_errors(path):
        connection = sqlite3.connect(_uri(path), uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA query_only=ON")
            connection.execute("BEGIN")
            yield connection
        finally:
            connection.close()


def stored(connection: sqlite3.Connection, table: str) -> Iterator[Entry]:
    """All rows of ``table`` ("answers" or "verdicts") in order of their keys, damaged ones included, read one
    by one. Of a file from before models were noted they have none."""
    yield from _select(connection, table, None)


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _uri(path: Path) -> str:
    """The address for a connection that only reads.

    A reader of a file in WAL mode needs two files beside it, which a connection that may write removes again.
    Where nothing can be written nobody writes now, and the file can be read as it is; with what a killed
    writer left in its log, where there is one."""
    left = Path(f"{path}-wal")
    unmerged = left.is_file() and left.stat().st_size > 0
    mode = "mode=rw" if _writable(path) else "mode=ro" if unmerged else "mode=ro&immutable=1"
    return f"{path.resolve().as_uri()}?{mode}"


def _make_tables(connection: sqlite3.Connection) -> None:
    """Tables and columns, as far as they are not there, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    for table in _COLUMNS:
        for name in _LATER:
            if not _has(connection, table, name):
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} INTEGER")
    connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")


@contextmanager
def _clear_errors(path: Path | None) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise InputError(
            f"response cache {path}: {error}; check that its folder can be written and has "
            "room (--cache or CIR_CACHE names another), and that no other program holds the file"
        ) from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        # SQLite's message about damage quotes it, and what it quotes may be no UTF-8.
        what = error if isinstance(error, sqlite3.Error) else "its tables cannot be read"
        raise InputError(
            f"response cache {path} is damaged or no cache ({what}); move it away, a new one is made"
        ) from None


def _select(connection: sqlite3.Connection, table: str, keys: Sequence[bytes] | None) -> Iterator[Entry]:
    """Rows of ``table`` with these keys; None: all, in order."""
    make: Callable[..., Any] = StoredAnswer if table == "answers" else StoredVerdict
    where = "ORDER BY key" if keys is None else f"WHERE key IN ({_marks(len(keys))})"
    model, checksum = (name if _has(connection, table, name) else "NULL" for name in _LATER)
    names: dict[int | None, str] = {}
    if model == "model":
        names = dict(connection.execute("SELECT id, identifier FROM models"))
    query = f"SELECT key, {model}, {checksum}, {_COLUMNS[table]} FROM {table} {where}"
    for key, number, kept, *values in connection.execute(query, keys or ()):
        row = make(*values)
        yield Entry(key, row, names.get(number, ""), kept in (None, _checksum(key, row)))


def _insert(connection: sqlite3.Connection, table: str, entries: Iterable[Entry]) -> None:
    """Write rows, in the place of those with the same key. Call it inside a transaction."""
    entries = list(entries)
    numbers: dict[str, int | None] = {"": None}
    for model in {entry.model for entry in entries} - {""}:
        connection.execute("INSERT OR IGNORE INTO models (identifier) VALUES (?)", [model])
        found = connection.execute("SELECT id FROM models WHERE identifier = ?", [model])
        numbers[model] = found.fetchone()[0]
    columns = f"key, {_COLUMNS[table]}, model, checksum"
    connection.executemany(
        f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({_marks(columns.count(',') + 1)})",
        (
            (key, *_values(row), numbers[model], _checksum(key, row))
            for key, row, model in ((entry.key, _as_read(entry.row), entry.model) for entry in entries)
        ),
    )


def _as_read(row: StoredAnswer | StoredVerdict) -> StoredAnswer | StoredVerdict:
    """A row with numbers of the types that come back, whatever kind of number was given."""
    return StoredVerdict(float(row.p_true), int(row.prompt_tokens)) if isinstance(row, StoredVerdict) else row


def _checksum(key: bytes, row: StoredAnswer | StoredVerdict) -> int:
    """CRC-32 over key and content: against accidents, of which it finds every one of up to 32 bits in a
    row."""
    return zlib.crc32(repr((key, *_values(row))).encode("utf-8", "surrogatepass"))


def _values(row: StoredAnswer | StoredVerdict) -> tuple[Any, ...]:
    if isinstance(row, StoredVerdict):
        return tuple(row)
    return row.text, row.finish_reason, row.prompt_tokens, row.completion_tokens, row.kind, row.agent


def _blocks(entries: Iterable[Entry]) -> Iterator[tuple[str, dict[bytes, Entry]]]:
    """Entries as blocks of one table, each key at most once a block."""
    table = ""
    block: dict[bytes, Entry] = {}
    for entry in entries:
        own = "verdicts" if isinstance(entry.row, StoredVerdict) else "answers"
        if block and (own != table or len(block) == _BLOCK or entry.key in block):
            yield table, block
            block = {}
        table, block[entry.key] = own, entry
    if block:
        yield table, block


def _has(connection: sqlite3.Connection, table: str, name: str) -> bool:
    return any(column[1] == name for column in connection.execute(f"PRAGMA table_info({table})"))


def _marks(count: int) -> str:
    return ",".join("?" * count)


def answer_key(
    model: str,
    prompt: str,
    images: Sequence[str],
    max_new_tokens: int,
    temperature: float,
    seed: int,
    schema: str = "",
    repetition_penalty: float = 1.0,
) -> bytes:
    """The key of a generated answer (32 bytes); ``images`` are the SHA-256 of the pictures' bytes, in order;
    ``schema`` is the JSON Schema that the answer was asked to keep to, if any.

    At temperature 0 the seed decides nothing and is left out, as is a repetition penalty of 1.
    """
    settings = f"{max_new_tokens} {float(temperature)!r} {seed if temperature > 0 else 0}"
    if schema:
        settings += f" {schema}"
    if repetition_penalty != 1:
        settings += f" repetition_penalty {float(repetition_penalty)!r}"
    return _digest("answer", model, settings, *images, prompt)


def verdict_key(model: str, prefix: str, images: Sequence[str], statement: str) -> bytes:
    """The key of a verification of ``statement`` after ``prefix`` (32 bytes)."""
    return verdict_keys(model, prefix, images, [statement])[0]


def verdict_keys(model: str, prefix: str, images: Sequence[str], statements: Sequence[str]) -> list[bytes]:
    """:func:`verdict_key` for many statements after one prefix, at the cost of one short hash each."""
    shared = hashlib.sha256()
    for part in ("verdict", model, *images, prefix):
        _add(shared, part)
    keys = []
    for statement in statements:
        own = shared.copy()
        _add(own, statement)
        keys.append(own.digest())
    return keys


class ImageHashes:
    """SHA-256 of pictures' bytes, computed once per path, size and modification time."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], str] = {}

    def __call__(self, path: Path | str) -> str:
        """64 hex digits; :class:`InputError` names a picture that cannot be read."""
        try:
            stat = os.stat(path)
            key = (str(path), stat.st_size, stat.st_mtime_ns)
            if key not in self._known:
                self._known[key] = sha256_file(path)
        except OSError as error:
            raise InputError(
                f"picture {path} cannot be read ({error.strerror}); check the image folder"
            ) from None
        return self._known[key]


def _add(digest: Any, part: str) -> None:
    """Feed a text with its length before it, so that no two lists of parts feed the same bytes."""
    data = part.encode("utf-8", "surrogatepass")
    digest.update(len(data).to_bytes(8, "big"))
    digest.update(data)


def _digest(*parts: str) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        _add(digest, part)
    return digest.digest()
