"""What the readers of all layouts share: fields with their types, pictures by stem, missing pictures."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from cir_utils.benchmarks import EMPTY_TEXT, ImageId, Missing, Query
from cir_utils.errors import InputError
from cir_utils.files import is_there, read_json

#: Extensions of pictures, the first of several files of one stem first.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".avif")


#: Longest text of an annotation, in characters: a prompt grows with it, and an MLLM's work with its square.
LONGEST_TEXT = 5_000


def read_rows(path: Path, mend: str) -> list[Any]:
    """The entries of an annotation file: a JSON list, one or more."""
    if not is_there(path):
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
    """True for a JSON whole number from 0 of at most 63 bits (not for true, 1.0 or a text of digits)."""
    return type(value) is int and 0 <= value < 1 << 63


def check_text(value: object, key: str, where: str, mend: str) -> None:
    """``value``, the field ``key``, is a text of at most ``LONGEST_TEXT`` characters. ``where`` opens every
    message."""
    if not isinstance(value, str):
        raise InputError(f"{where}: the field {key!r} must be a text, not {value!r:.40}; {mend}")
    if len(value) > LONGEST_TEXT:
        raise InputError(
            f"{where}: the field {key!r} has {len(value):,} characters, more than the {LONGEST_TEXT:,} that "
            f"are taken; shorten it, or {mend}"
        )


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
    """Names of a folder's ordinary, visible files (``._*`` and the like left out); none when it is absent.
    Raises :class:`InputError` for a folder that cannot be read."""
    return _listed(folder)[0]


def _listed(folder: Path) -> tuple[set[str], set[str]]:
    """:func:`file_names`, and which of them are links."""
    names, links = set(), set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not _is_file(entry):
                    continue
                names.add(entry.name)
                if entry.is_symlink():
                    links.add(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # nothing can be there
            return names, links
        raise InputError(
            f"folder {folder} cannot be read ({error.strerror}); check the folder and its permissions"
        ) from None
    return names, links


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # links in a circle lead to no file
        return False


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

    A folder of ``folders``, and one directly in it, may be a link to anywhere: whoever set up the tree put it
    there. Below them nothing leads out: :class:`InputError` names a link that does.
    """
    listings: dict[Path, tuple[set[str], set[str], dict[str, str]]] = {}
    tops: set[Path] = set()

    def listing(folder: Path) -> tuple[set[str], set[str], dict[str, str]]:
        if folder not in listings:
            names, links = _listed(folder)
            if names:
                _check_inside(folder, tops)
            listings[folder] = (names, links, by_stem(names))
        return listings[folder]

    found: dict[ImageId, Path] = {}
    seen: set[Path] = set()
    for image, published in wanted.items():
        places = dict.fromkeys(
            (published.parent, PurePosixPath(*published.parts[:-1][:1]), PurePosixPath("."))
        )
        for base in folders:
            for top in (base, base / PurePosixPath(*published.parts[:-1][:1])):
                if top not in seen:
                    seen.add(top)
                    tops.add(Path(os.path.realpath(top)))
        for folder in (base / place for place in places for base in folders):
            names, links, stems = listing(folder)
            name = published.name if published.name in names else stems.get(published.stem)
            if name is not None:
                if name in links:
                    _check_inside(folder / name, tops)
                found[image] = folder / name
                break
    return found


def _check_inside(path: Path, tops: Iterable[Path]) -> None:
    """:class:`InputError` where ``path`` leads, by links, to a place below none of the folders ``tops``."""
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(top) for top in tops):
        raise InputError(
            f"{path} is a link that leads out of the benchmark's folder, to {real}; put the picture itself "
            "there, or link the whole folder of pictures"
        )


def safe_place(text: Any, where: str, mend: str) -> PurePosixPath:
    """A picture's place as a split file writes it, ``./dev/x.png``: relative, and never above its root."""
    place = PurePosixPath(text) if isinstance(text, str) and text else None
    if (
        place is None
        or place.is_absolute()
        or not place.name
        or ".." in place.parts
        or set(text) & set("\\\0")
    ):
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
