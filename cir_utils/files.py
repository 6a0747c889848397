"""Files that are either whole or absent: atomic writes, hashes, and the check of shipped folders."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from cir_utils.errors import InputError

MANIFEST = "SHA256SUMS"
#: Largest JSON file that is read, in bytes; full rankings of CIRCO's gallery have 1 GB.
MAX_JSON_BYTES = 2_000_000_000
#: Where the pipes are that a shell makes, as in ``cir evaluate <(unzip -p ranks.zip)``.
SHELL_PIPES = (("/", "dev"), ("/", "proc"))
MEND_SHIPPED = "reinstall cir_utils, or in a git checkout restore it with `git checkout -- cir_utils/mini`"


def write_atomic(path: Path | str, content: bytes | str) -> None:
    """Write ``content`` (text as UTF-8) to ``path`` so that a reader sees the old file or the new one, never
    a part.

    Missing parent folders are made. The bytes go to a temporary name in the same folder, are flushed to disk,
    and are renamed. The permissions are those of an ordinary new file.
    """
    with open_atomic(path) as stream:
        stream.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def open_atomic(path: Path | str) -> Iterator[BinaryIO]:
    """As :func:`write_atomic`, for what is written piece by piece: nothing is at ``path`` before the block
    ends, and nothing is left when it raises."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json_atomic(path: Path | str, value: Any) -> None:
    """Write ``value`` as indented UTF-8 JSON with a final newline, atomically. NaN and infinity raise
    ``ValueError``.
    """
    write_atomic(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def sha256_file(path: Path | str) -> str:
    """The SHA-256 of a file's bytes, 64 lower-case hex digits. Raises ``OSError`` when the file cannot be
    read, or is no ordinary one (a pipe would be waited for).
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "no ordinary file", str(path))
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_text(text: str) -> str:
    """The SHA-256 of a text's UTF-8 bytes, 64 lower-case hex digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def own_sha256(content: Mapping[str, Any]) -> str:
    """What a JSON object that carries its own hash says under ``own_sha256``: the hash of all the rest."""
    rest = {key: value for key, value in content.items() if key != "own_sha256"}
    return sha256_text(json.dumps(rest, sort_keys=True))


def whole_unicode(text: str) -> str:
    """``text`` with every lone half of a surrogate pair replaced by U+FFFD: what can be written as UTF-8."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_writable(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8 (a file's name may hold any bytes)."""
    return whole_unicode(text) == text


def is_there(path: Path) -> bool:
    """Whether ``path`` is a file, or something that nobody may look at: reading it then says why."""
    try:
        return path.is_file()
    except OSError:
        return True


def read_json(path: Path | str, what: str = "file") -> Any:
    """Read a UTF-8 JSON file (a byte-order mark is tolerated); repeated keys are an error, as they hide
    entries.

    ``what`` names the file's role in messages. Raises :class:`InputError` when the file is missing, larger
    than ``MAX_JSON_BYTES``, not UTF-8 or not JSON (NaN and infinity are not), repeats a key, or holds a text
    that no file could hold.
    """
    path = Path(path)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise InputError(
                    f"{what} {path}: the key {key!r} occurs twice in one object; keep one of the entries"
                )
            found[key] = value
        return found

    def no_number(name: str) -> Any:
        raise InputError(f"{what} {path} holds {name}, which is not JSON; write numbers, or null")

    try:
        if stat.S_ISFIFO(path.stat().st_mode) and path.parts[:2] not in SHELL_PIPES:
            raise InputError(f"{what} {path} is a pipe, which nobody may ever write to; give a file")
        with open(path, "rb") as stream:
            data = stream.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise InputError(
                f"{what} {path} has more than {MAX_JSON_BYTES:,} bytes; check that it is the right file"
            )
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{what} {path} does not exist; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{what} {path} is a folder; give the path of a JSON file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} is not UTF-8 (byte {error.start}); save it again as UTF-8") from None
    except OSError as error:
        raise InputError(
            f"{what} {path} cannot be read ({error.strerror}); check the path and its permissions"
        ) from None
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=no_number)
        if re.search(r"\\u[dD][89a-fA-F]", text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} {path} holds {error.object[error.start]!r}, half of a surrogate pair, which is no "
            "character; write the text again"
        ) from None
    except InputError:
        raise
    except json.JSONDecodeError as error:
        raise InputError(
            f"{what} {path} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}); "
            "fetch or write the file again"
        ) from None
    except ValueError:  # Python's limit of digits
        raise InputError(
            f"{what} {path} holds a whole number of more than {sys.get_int_max_str_digits():,} digits; check "
            "that it is the right file"
        ) from None
    except RecursionError:
        raise InputError(
            f"{what} {path} is nested too deeply to be a {what}; check that it is the right file"
        ) from None


def write_manifest(folder: Path | str, files: Iterable[Path | str] | None = None) -> Path:
    """Write ``SHA256SUMS`` for ``files`` (default: every file below ``folder`` but hidden ones) and return
    its path.
    """
    folder = Path(folder)
    chosen = folder.rglob("*") if files is None else (folder / file for file in files)
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in chosen
        if path.is_file()
        and path.name != MANIFEST
        and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    )
    write_atomic(folder / MANIFEST, "".join(f"{sha256_file(folder / name)}  {name}\n" for name in names))
    return folder / MANIFEST


def verify_manifest(
    folder: Path | str, mend: str = MEND_SHIPPED, only: Collection[str] | None = None
) -> list[str]:
    """Check every file that ``folder/SHA256SUMS`` lists (the format of ``sha256sum``), or those of them that
    are named by ``only``, and return the names of all.

    Raises :class:`InputError` that names the first missing, damaged or unreadable file (or the manifest
    itself) and says ``mend``. Files that the manifest does not list are not looked at.
    """
    folder = Path(folder)
    manifest = folder / MANIFEST
    try:
        lines = manifest.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{manifest} is missing or unreadable; {mend}") from None
    names = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        digest, _, name = line.partition(" ")
        name = name.removeprefix(" ").removeprefix("*")
        if (
            len(digest) != 64
            or not name
            or "\0" in name
            or Path(name).is_absolute()
            or ".." in Path(name).parts
        ):
            raise InputError(f"{manifest}, line {number} is not a line of sha256sum; {mend}")
        names.append(name)
        if only is not None and name not in only:
            continue
        path = folder / name
        try:
            found = sha256_file(path)
        except FileNotFoundError:
            raise InputError(f"{path} is missing; {mend}") from None
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}); {mend}") from None
        if found != digest.lower():
            raise InputError(f"{path} is damaged (its SHA-256 differs from {MANIFEST}); {mend}")
    if not names:
        raise InputError(f"{manifest} lists no file; {mend}")
    return names


def _umask() -> int:
    """The process's file-mode mask (it can only be read by setting it)."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
