"""What the readers of all layouts share: fields with their types, pictures by stem, missing pictures."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from cir_utils.benchmarks import EMPTY_TEXT, ImageId, Missing, Query
from cir_utils.errors import InputError
from cir_utils.files import read_json

#: Extensions of pictures, the first of several files of one stem first.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".avif")


def read_rows(path: Path, mend: str) -> list[Any]:
    """The entries of an annotation file: a JSON list, one or more."""
    if not path.is_file():
        raise InputError(f"annotation file {path} does not exist: {mend}")
    rows = read_json(path, "annotation file")
    if not isinstance(rows, list) or not rows:
        raise InputError(f"annotation file {path}: expected a list of queries, one or more; {mend}")
    return rows


def require(row: Any, fields: Iterable[str], where: str, mend: str) -> None:
    """``row`` is an object with ``fields``. ``where`` opens every message."""
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected an object, not {row!r:.40}; {mend}")
    for key in fields:
        if key not in row:
            raise InputError(f"{where}: the field {key!r} is missing; {mend}")


def is_whole(value: object) -> bool:
    """True for a JSON whole number from 0 (not for true, 1.0 or a text of digits)."""
    return type(value) is int and value >= 0


def is_name(value: object) -> bool:
    """True for an image's name: a text that is one path component, without blanks at its ends."""
    return (
        isinstance(value, str)
        and value not in ("", ".", "..")
        and value == value.strip()
        and not set(value) & set("/\\\0")
    )


def check_unique(queries: Sequence[Query], path: Path, key: str = "id") -> None:
    """Every query has its own id."""
    entry_of: dict[str, int] = {}
    for number, query in enumerate(queries):
        if query.id in entry_of:
            raise InputError(
                f"annotation file {path}, entry {number}: query {key} {query.id} was already used by entry "
                f"{entry_of[query.id]}; give every query its own {key}"
            )
        entry_of[query.id] = number


# --- pictures ---------------------------------------------------------------------------------------------


def file_names(folder: Path) -> set[str]:
    """Names of a folder's ordinary, visible files (``._*`` and the like left out); none when it is absent."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def by_stem(names: Iterable[str]) -> dict[str, str]:
    """Picture files by their names without extension; of several, the extension first in ``EXTENSIONS``."""
    order = {extension: place for place, extension in enumerate(EXTENSIONS)}
    found: dict[str, str] = {}
    pictures = [name for name in names if os.path.splitext(name)[1].lower() in order]
    for name in sorted(pictures, key=lambda name: (-order[os.path.splitext(name)[1].lower()], name)):
        found[os.path.splitext(name)[0]] = name
    return found


def find_pictures(folders: Sequence[Path], wanted: Mapping[ImageId, PurePosixPath]) -> dict[ImageId, Path]:
    """Where the pictures lie. ``wanted`` are their published places below any of ``folders``.

    A picture is looked for by stem, whatever its extension: in its published folder, then with the numbered
    sub-folders left out (``train/34/x.png``, ``train/x.png``), then flat in the folder itself. Those that are
    nowhere are absent from the result.
    """
    listings: dict[Path, tuple[set[str], dict[str, str]]] = {}

    def listing(folder: Path) -> tuple[set[str], dict[str, str]]:
        if folder not in listings:
            names = file_names(folder)
            listings[folder] = (names, by_stem(names))
        return listings[folder]

    found: dict[ImageId, Path] = {}
    for image, published in wanted.items():
        places = dict.fromkeys(
            (published.parent, PurePosixPath(*published.parts[:-1][:1]), PurePosixPath("."))
        )
        for folder in (base / place for place in places for base in folders):
            names, stems = listing(folder)
            name = published.name if published.name in names else stems.get(published.stem)
            if name is not None:
                found[image] = folder / name
                break
    return found


def safe_place(text: Any, where: str, mend: str) -> PurePosixPath:
    """A picture's place as a split file writes it, ``./dev/x.png``: relative, and never above its root."""
    place = PurePosixPath(text) if isinstance(text, str) and text else None
    if place is None or place.is_absolute() or not place.name or ".." in place.parts or "\\" in text:
        raise InputError(f"{where}: expected a relative path such as ./dev/x.png, not {text!r:.60}; {mend}")
    return place


def empty_note(empty: int) -> tuple[str, ...]:
    """The note about queries without a text of their own, none where there are none."""
    return (f"{empty} empty modification text(s) replaced by {EMPTY_TEXT!r}",) if empty else ()


def without_missing(
    queries: Sequence[Query], missing: set[ImageId], options_missing: Missing, what: str, mend: str
) -> tuple[tuple[Query, ...], tuple[str, ...]]:
    """The queries that can be answered without the ``missing`` pictures, and a note about the others.

    ``what`` opens the message that stops everything when ``options_missing`` is "stop"."""
    if not missing:
        return tuple(queries), ()
    if options_missing == "stop":
        raise InputError(f"{what}; {mend}; or go on without them: --missing leave-out")
    kept = tuple(query for query in queries if missing.isdisjoint(query.pictures))
    if not kept:
        raise InputError(f"{what}, and no query can be answered without them; {mend}")
    note = (
        f"{len(missing):,} pictures are missing: the gallery is smaller, and {len(queries) - len(kept):,} of "
        f"{len(queries):,} queries are left out, so these are not the benchmark's figures"
    )
    return kept, (note,)
