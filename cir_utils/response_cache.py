"""Every answer of an MLLM, kept: one SQLite file, content-addressed, safe for several processes.

A row's key is the SHA-256 of everything that decides the answer: the model's identifier (name and weights),
the prompt text after filling, the generation settings, and the SHA-256 of the bytes of every picture in
order. A changed prompt file, picture or model thus never finds a stale answer. Two tables: generated answers,
and verification probabilities (one row a (prefix, statement) pair). Raw answers are kept with their class, so
that a cut answer is never taken for a complete one.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from cir_utils.errors import InputError
from cir_utils.files import sha256_file

_VERSION = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (
  key BLOB PRIMARY KEY, text TEXT NOT NULL, finish_reason TEXT NOT NULL, prompt_tokens INTEGER NOT NULL,
  completion_tokens INTEGER NOT NULL, kind TEXT NOT NULL, agent TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS verdicts (
  key BLOB PRIMARY KEY, p_true REAL NOT NULL, prompt_tokens INTEGER NOT NULL
) WITHOUT ROWID;
"""
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


class ResponseCache:
    """The cache in the file ``path`` (made with its folders when absent; ``None`` keeps it in memory).

    ``hits`` and ``misses`` count keys asked for since opening. Writers of other processes are waited for; a
    write is whole or absent. Raises :class:`InputError` for a file that is no cache of this version or is
    damaged.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.hits = 0
        self.misses = 0
        self._lock = threading.RLock()
        self._pid = -1
        self._connection: sqlite3.Connection | None = None
        with self._open():
            pass

    def get_answers(self, keys: Sequence[bytes]) -> dict[bytes, StoredAnswer]:
        """The answers that are there, by key."""
        columns = "key, text, finish_reason, prompt_tokens, completion_tokens, kind, agent"
        return self._get("answers", columns, keys, lambda row: StoredAnswer(*row))

    def put_answers(self, rows: Mapping[bytes, StoredAnswer]) -> None:
        """Keep answers; a key that is there already is written anew."""
        values = (
            (key, a.text, a.finish_reason, a.prompt_tokens, a.completion_tokens, a.kind, a.agent)
            for key, a in rows.items()
        )
        self._put("INSERT OR REPLACE INTO answers VALUES (?,?,?,?,?,?,?)", values)

    def get_verdicts(self, keys: Sequence[bytes]) -> dict[bytes, StoredVerdict]:
        """The verdicts that are there, by key. Tens of thousands a second."""
        return self._get("verdicts", "key, p_true, prompt_tokens", keys, lambda row: StoredVerdict(*row))

    def put_verdicts(self, rows: Mapping[bytes, StoredVerdict]) -> None:
        """Keep verdicts in one transaction."""
        self._put(
            "INSERT OR REPLACE INTO verdicts VALUES (?,?,?)", ((key, *row) for key, row in rows.items())
        )

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

    def _get(
        self, table: str, columns: str, keys: Sequence[bytes], make: Callable[[Sequence[Any]], Row]
    ) -> dict[bytes, Row]:
        wanted = list(dict.fromkeys(keys))
        found: dict[bytes, Row] = {}
        with self._open() as connection:
            for start in range(0, len(wanted), _BLOCK):
                block = wanted[start : start + _BLOCK]
                query = f"SELECT {columns} FROM {table} WHERE key IN ({','.join('?' * len(block))})"
                for row in connection.execute(query, block):
                    found[row[0]] = make(row[1:])
        self.hits += sum(key in found for key in keys)
        self.misses += sum(key not in found for key in keys)
        return found

    def _put(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._open() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(statement, rows)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """The connection of this process (a forked child opens its own), with errors turned into one clear
        line."""
        with self._lock:
            try:
                if self._connection is None or self._pid != os.getpid():
                    self._connection = self._connect()
                    self._pid = os.getpid()
                yield self._connection
            except sqlite3.OperationalError as error:
                raise InputError(
                    f"response cache {self.path}: {error}; check that its folder can be written and has "
                    "room, and that no other program holds the file"
                ) from None
            except sqlite3.DatabaseError as error:
                raise InputError(
                    f"response cache {self.path} is damaged or no cache ({error}); move it away, "
                    "a new one is made"
                ) from None

    def _connect(self) -> sqlite3.Connection:
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"response cache {self.path}: {error.strerror}; choose another place"
                ) from None
        name = ":memory:" if self.path is None else str(self.path)
        connection = sqlite3.connect(
            name, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise InputError(f"response cache {self.path} has format {version}, not {_VERSION}; move it away")
        connection.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={_VERSION}")
        connection.execute("COMMIT")
        return connection


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
