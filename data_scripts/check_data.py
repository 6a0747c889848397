"""Is a benchmark's folder complete? Looked at before any model loads.

    python data_scripts/check_data.py BENCHMARK --split S --root DIR

The annotations are read and checked (fields, counts, references, targets and members inside the gallery), and
every picture of the gallery is looked for and opened. What is present, missing, empty (0 bytes) or unreadable
(an error page saved as .jpg, a file that was cut short) is counted by category and by the picture's role:
reference, target, member of a subset, distractor (none of these). A picture with two roles counts in both.

Exit code 0: complete. 3: usable but incomplete (some pictures are missing or bad, or the folder holds only a
part of what was published). 2: unusable (annotations missing or wrong, or no query left to answer), or wrong
usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import Image

from cir_utils.errors import InputError
from cir_utils.files import read_json
from cir_utils.images import FORMATS, MAX_PIXELS, load_image

COMPLETE, INCOMPLETE, UNUSABLE = 0, 3, 2
ROLES = ("reference", "target", "member", "distractor")
STATES = ("present", "missing", "empty", "unreadable")
#: Extensions of pictures, the first of several files of one stem first.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".avif")
CATEGORIES = ("dress", "shirt", "toptee")
COCO_IMAGES = PurePosixPath("COCO2017_unlabeled/unlabeled2017")
COCO_LIST = PurePosixPath("COCO2017_unlabeled/annotations/image_info_unlabeled2017.json")
#: What `fetch_data.py circo-laptop` writes beside the annotations: the pictures that it chose.
LAPTOP_LIST = "laptop_set.json"

#: benchmark -> split -> (queries, gallery) by category ("" where there is none), as published.
PUBLISHED: dict[str, dict[str, dict[str, tuple[int, int]]]] = {
    "circo": {"val": {"": (220, 123_403)}, "test": {"": (800, 123_403)}},
    "cirr": {"val": {"": (4181, 2297)}, "test1": {"": (4148, 2315)}},
    "fashioniq": {"val": {"dress": (2017, 3817), "shirt": (2038, 6346), "toptee": (1961, 5373)}},
    "mini-circo": {"val": {}, "test": {}},
    "mini-cirr": {"val": {}, "test": {}},
    "mini-fashioniq": {"val": {}, "test": {}},
}
MEND = "fetch it with `python -m data_scripts.fetch_data`"
#: Splits whose answers are not public.
HIDDEN = {("circo", "test"), ("cirr", "test1")}


@dataclass(frozen=True)
class Asked:
    """One query as far as pictures go. ``targets`` is empty where the answers are not public."""

    id: str
    reference: str
    targets: tuple[str, ...]
    members: tuple[str, ...] = ()

    @property
    def pictures(self) -> set[str]:
        """All that must be there for the query to be answered and scored."""
        return {self.reference, *self.targets, *self.members}


@dataclass(frozen=True)
class Part:
    """One category's (or the whole split's) queries and gallery: picture name -> published place."""

    category: str
    queries: tuple[Asked, ...]
    gallery: Mapping[str, PurePosixPath]
    empty_texts: int


@dataclass(frozen=True)
class Fault:
    """A picture that is not there or is no use: `state` is one of `STATES`."""

    name: str
    state: str
    why: str
    roles: tuple[str, ...]


@dataclass
class Report:
    """What was found. ``counts``: (category, role) -> state -> pictures."""

    benchmark: str
    split: str
    root: Path
    queries: int = 0
    queries_left: int = 0
    gallery: int = 0
    counts: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sample: bool = False  # the gallery is a sample on purpose, not the published one

    @property
    def code(self) -> int:
        """The exit code: ``COMPLETE``, ``INCOMPLETE`` or ``UNUSABLE``."""
        if self.unusable:
            return UNUSABLE
        return INCOMPLETE if self.incomplete or self.faults else COMPLETE

    def text(self, names: int = 10) -> str:
        """The report for a person, with the first ``names`` faults of each kind."""
        lines = [f"{self.benchmark} {self.split} in {self.root}"]
        if self.queries:
            lines.append(f"queries {self.queries:,}, of which {self.queries_left:,} have all their pictures")
        if self.counts:
            head = ("category", "role", "pictures", *STATES)
            rows = [
                (category or "all", role, f"{sum(states.values()):,}", *(f"{states[s]:,}" for s in STATES))
                for (category, role), states in self.counts.items()
            ]
            widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
            for row in (head, *rows):
                cells = [
                    cell.ljust(w) if i < 2 else cell.rjust(w)
                    for i, (cell, w) in enumerate(zip(row, widths, strict=True))
                ]
                lines.append("  ".join(cells).rstrip())
        for state in STATES[1:]:
            found = [fault for fault in self.faults if fault.state == state]
            lines += [f"{state}: {fault.why} ({', '.join(fault.roles)})" for fault in found[:names]]
            if len(found) > names:
                lines.append(f"{state}: and {len(found) - names:,} more")
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"incomplete: {what}" for what in self.incomplete]
        lines += [f"unusable: {what}" for what in self.unusable]
        bad = Counter(fault.state for fault in self.faults)
        if bad["empty"] + bad["unreadable"]:
            lines.append("to mend: delete the empty and unreadable files, then fetch those pictures again")
        verdict = {COMPLETE: "complete", INCOMPLETE: "usable but incomplete", UNUSABLE: "unusable"}
        lines.append(f"=> {verdict[self.code]}")
        return "\n".join(lines)


def check(benchmark: str, split: str, root: Path | str | None = None) -> Report:
    """Look through a benchmark's folder.

    ``root`` is the folder that holds ``annotations/`` (CIRCO) or ``captions/`` and ``image_splits/``
    (FashionIQ; CIRR: there or one level below in ``cirr/``); the mini benchmarks default to the shipped one.
    Whatever is wrong with the folder is in the report; :class:`InputError` is for an unknown benchmark or
    split (the choices are listed) and a missing ``root``.
    """
    if benchmark not in PUBLISHED:
        raise InputError(f"unknown benchmark {benchmark!r}: choose {', '.join(PUBLISHED)}")
    if split not in PUBLISHED[benchmark]:
        choices = ", ".join(PUBLISHED[benchmark])
        raise InputError(f"unknown split {split!r} of {benchmark}: choose {choices}")
    family = benchmark.removeprefix("mini-")
    if root is None:
        if family == benchmark:
            raise InputError(f"benchmark {benchmark} needs its folder: give --root")
        root = Path(str(files("cir_utils").joinpath("mini", family)))
    report = Report(benchmark, split, Path(root))
    try:
        if not report.root.is_dir():
            raise InputError(f"the folder {root} does not exist; {MEND}")
        parts, bases = READERS[family](report)
    except InputError as error:
        report.unusable.append(str(error))
        return report
    _compare_with_published(report, parts)
    _look_at_pictures(report, parts, bases)
    return report


def _compare_with_published(report: Report, parts: Sequence[Part]) -> None:
    """A part of a split is usable, and said to be a part."""
    for part in parts:
        published = PUBLISHED[report.benchmark][report.split].get(part.category)
        for what, found, wanted in zip(
            ("queries", "pictures in the gallery"),
            (len(part.queries), len(part.gallery)),
            published or (),
            strict=False,
        ):
            if found != wanted and not (report.sample and what.startswith("pictures")):
                where = f"{report.split}, {part.category}" if part.category else report.split
                report.incomplete.append(f"{found:,} {what} where the published {where} has {wanted:,}")
        if part.empty_texts:
            report.notes.append(
                f"{part.empty_texts} empty caption(s){f' of {part.category}' if part.category else ''}: the "
                "loader puts a fixed text in their place"
            )


def _look_at_pictures(report: Report, parts: Sequence[Part], bases: Sequence[Path]) -> None:
    """Find and open every picture of the galleries, once each."""
    wanted: dict[str, PurePosixPath] = {}
    roles: dict[str, dict[str, None]] = {}
    for part in parts:
        wanted.update(part.gallery)
        played = _roles(part)
        for role in ROLES:
            if played[role]:
                report.counts[part.category, role] = Counter()
        for role, names in played.items():
            for name in names:
                roles.setdefault(name, {})[role] = None
    places = find_pictures(bases, wanted)
    state_of: dict[str, str] = {}
    for name, published in wanted.items():
        path = places.get(name)
        state, why = look(path) if path else ("missing", str(published))
        state_of[name] = state
        if state != "present":
            report.faults.append(Fault(name, state, why, tuple(r for r in ROLES if r in roles[name])))
    bad = {fault.name for fault in report.faults}
    for part in parts:
        for role, names in _roles(part).items():
            for name in names:
                report.counts[part.category, role][state_of[name]] += 1
        report.queries += len(part.queries)
        report.queries_left += sum(bad.isdisjoint(query.pictures) for query in part.queries)
    report.gallery = len(wanted)
    if not report.queries_left:
        report.unusable.append("no query has all its pictures")
    elif report.queries_left < report.queries:
        report.incomplete.append(
            f"{report.queries - report.queries_left:,} of {report.queries:,} queries lack a picture "
            "(reference, target or member)"
        )


def _roles(part: Part) -> dict[str, set[str]]:
    """Role -> pictures of the gallery that play it."""
    played = {
        "reference": {query.reference for query in part.queries},
        "target": {name for query in part.queries for name in query.targets},
        "member": {name for query in part.queries for name in query.members},
    }
    return played | {"distractor": set(part.gallery) - set().union(*played.values())}


# --- pictures on disk -------------------------------------------------------------------------------


def find_pictures(bases: Sequence[Path], wanted: Mapping[str, PurePosixPath]) -> dict[str, Path]:
    """Where the pictures lie. ``wanted`` are their published places below any of ``bases``.

    A picture is looked for by stem, whatever its extension: in its published folder, then with the numbered
    sub-folders left out (``train/34/x.png``, ``train/x.png``), then flat. Hidden files (``._x.jpg``) are
    passed over.
    """
    listings: dict[Path, dict[str, str]] = {}

    def listing(folder: Path) -> dict[str, str]:
        if folder not in listings:
            listings[folder] = _by_stem(_file_names(folder))
        return listings[folder]

    found: dict[str, Path] = {}
    for name, published in wanted.items():
        folders = dict.fromkeys((published.parent, PurePosixPath(*published.parts[:-1][:1]), PurePosixPath()))
        for folder in (base / inner for inner in folders for base in bases):
            names = listing(folder)
            # the published name itself, else another extension
            file = names.get(published.name) or names.get(published.stem)
            if file is not None:
                found[name] = folder / file
                break
    return found


def _file_names(folder: Path) -> list[str]:
    """Names of a folder's ordinary, visible files; none when it is absent."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _by_stem(names: Iterable[str]) -> dict[str, str]:
    """Both full names and stems -> file names of pictures; of several of one stem, the first extension."""
    order = {extension: place for place, extension in enumerate(EXTENSIONS)}
    pictures = [name for name in names if os.path.splitext(name)[1].lower() in order]
    found = {name: name for name in pictures}
    for name in sorted(pictures, key=lambda name: (-order[os.path.splitext(name)[1].lower()], name)):
        found[os.path.splitext(name)[0]] = name
    return found


#: The bytes that close a whole file, by format.
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND", "GIF": b";"}


def look(path: Path) -> tuple[str, str]:
    """(state, why) of a file: ``present``, ``empty`` or ``unreadable``.

    The header is opened; a file whose last bytes are not those of a whole one is decoded, so that one that
    was cut short is found without decoding the others.
    """
    try:
        if path.stat().st_size == 0:
            return "empty", str(path)
        with Image.open(path, formats=FORMATS) as image:
            end = _ENDS.get(image.format or "")
            fits = image.width * image.height <= MAX_PIXELS
        if fits and end is not None and end in _tail(path):
            return "present", ""
    except Exception:  # Pillow raises many things on damaged files; `load_image` puts them into words
        pass
    try:
        load_image(path)
    except InputError as error:
        return "unreadable", str(error)
    except OSError as error:
        return "unreadable", f"image {path} cannot be read ({error.strerror}); check its permissions"
    return "present", ""


def _tail(path: Path, size: int = 16) -> bytes:
    """A file's last bytes."""
    with open(path, "rb") as stream:
        stream.seek(-min(size, path.stat().st_size), os.SEEK_END)
        return stream.read()


# --- annotations ------------------------------------------------------------------------------------


def _rows(path: Path) -> list[dict[str, Any]]:
    """The queries of an annotation file."""
    if not path.is_file():
        raise InputError(f"annotation file {path} is missing; {MEND}")
    rows = read_json(path, "annotation file")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"annotation file {path}: expected a list of queries, one or more")
    return rows


def _need(row: Mapping[str, Any], where: str, **types: type) -> None:
    """Fields with their types (a whole number is no truth value)."""
    for name, kind in types.items():
        value = row.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{where}: the field {name!r} must be {_WORDS[kind]}, not {value!r:.40}")


_WORDS = {int: "a whole number", str: "a text", list: "a list", dict: "an object"}


def _check_part(part: Part, path: Path) -> Part:
    """Every query has its own id, and its pictures are in the gallery."""
    repeated = [name for name, n in Counter(query.id for query in part.queries).items() if n > 1]
    if repeated:
        raise InputError(f"annotation file {path}: query {repeated[0]} occurs twice; fetch the file again")
    for query in part.queries:
        for what, names in (
            ("reference", (query.reference,)),
            ("target", query.targets),
            ("member", query.members),
        ):
            for name in names:
                if name not in part.gallery:
                    raise InputError(
                        f"annotation file {path}: query {query.id}, {what} {name} is not in the gallery "
                        f"({len(part.gallery):,} pictures); take captions and image list of one version"
                    )
        if query.reference in query.targets:
            raise InputError(f"annotation file {path}: query {query.id} has its reference as a target")
    return part


def _place(text: Any, where: str) -> PurePosixPath:
    """A picture's published place: relative, and never above its root."""
    place = PurePosixPath(text) if isinstance(text, str) and text else None
    if place is None or place.is_absolute() or not place.name or ".." in place.parts or "\\" in text:
        raise InputError(f"{where}: expected a relative path such as ./dev/x.png, not {text!r:.60}")
    return place


def read_circo(report: Report) -> tuple[list[Part], list[Path]]:
    """CIRCO: the gallery is COCO's image list, else the laptop set's, else what lies in the folder."""
    root, hidden = report.root, (report.benchmark, report.split) in HIDDEN
    path = root / "annotations" / f"{report.split}.json"
    queries, empty = [], 0
    for number, row in enumerate(_rows(path)):
        where = f"annotation file {path}, entry {number}"
        _need(row, where, id=int, reference_img_id=int, relative_caption=str, shared_concept=str)
        targets: list[int] = []
        if not hidden:
            _need(row, where, target_img_id=int, gt_img_ids=list)
            targets = row["gt_img_ids"]
            if not targets or not all(type(image) is int for image in targets):
                raise InputError(f"{where}: 'gt_img_ids' must be a list of whole numbers, one or more")
            if row["target_img_id"] not in targets or len(set(targets)) < len(targets):
                raise InputError(f"{where}: 'gt_img_ids' must hold 'target_img_id' and repeat nothing")
        empty += not row["relative_caption"].strip()
        queries.append(
            Asked(str(row["id"]), coco_name(row["reference_img_id"]), tuple(map(coco_name, targets)))
        )
    gallery = {name: COCO_IMAGES / name for name in _circo_gallery(report, queries)}
    return [_check_part(Part("", tuple(queries), gallery, empty), path)], [root]


def _circo_gallery(report: Report, queries: Sequence[Asked]) -> list[str]:
    listing, laptop = report.root / COCO_LIST, report.root / LAPTOP_LIST
    if listing.is_file():
        table = read_json(listing, "image list")
        rows = table.get("images") if isinstance(table, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise InputError(f"image list {listing}: expected a list 'images'; fetch the file again")
        ids: Any = [row.get("id") for row in rows]
        if not all(type(i) is int for i in ids) or len(set(ids)) < len(ids):
            raise InputError(f"image list {listing}: expected one whole number 'id' an image, each once")
        return sorted(coco_name(i) for i in ids)
    if laptop.is_file():
        table = read_json(laptop, "list of the laptop set")
        ids = table.get("image_ids") if isinstance(table, dict) else None
        if not isinstance(ids, list) or not all(type(i) is int for i in ids):
            raise InputError(f"list of the laptop set {laptop}: expected 'image_ids'; fetch the set again")
        report.sample = True
        report.notes.append(f"the gallery is the laptop set of {LAPTOP_LIST}, not the published list")
        return sorted(map(coco_name, ids))
    there = [name for name in _file_names(report.root / COCO_IMAGES) if name.endswith(".jpg")]
    odd = sorted(name for name in there if len(name) != 16 or not name[:12].isdigit())
    if odd:
        report.notes.append(f"{len(odd)} file(s) in {COCO_IMAGES} are not named as COCO's, such as {odd[0]}")
    report.notes.append(f"the gallery is what lies in {COCO_IMAGES}: the published list is not there")
    return sorted((set(there) - set(odd)).union(*(query.pictures for query in queries)))


def coco_name(image_id: int) -> str:
    """COCO's file name of an image id: twelve digits and ``.jpg``."""
    return f"{image_id:012d}.jpg"


def read_cirr(report: Report) -> tuple[list[Part], list[Path]]:
    """CIRR (rc2): the gallery is the split file and nothing else."""
    root = report.root
    inner = root / "cirr" if (root / "cirr" / "captions").is_dir() else root
    path = inner / "captions" / f"cap.rc2.{report.split}.json"
    listing = inner / "image_splits" / f"split.rc2.{report.split}.json"
    rows = _rows(path)
    if not listing.is_file():
        raise InputError(f"image list {listing} is missing; {MEND}")
    table = read_json(listing, "image list")
    if not isinstance(table, dict) or not table:
        raise InputError(f"image list {listing}: expected an object of name and path")
    gallery = {name: _place(text, f"image list {listing}, {name!r}") for name, text in table.items()}
    queries, empty = [], 0
    for number, row in enumerate(rows):
        where = f"annotation file {path}, entry {number}"
        _need(row, where, pairid=int, reference=str, caption=str, img_set=dict)
        members = row["img_set"].get("members")
        if not isinstance(members, list) or len(set(map(str, members))) != 6:
            raise InputError(f"{where}: 'members' of 'img_set' must be six different pictures")
        targets: tuple[str, ...] = ()
        if (report.benchmark, report.split) not in HIDDEN:
            _need(row, where, target_hard=str)
            targets = (row["target_hard"],)
        if not {row["reference"], *targets} <= set(members):
            raise InputError(f"{where}: reference and target must be among the six 'members'")
        empty += not row["caption"].strip()
        queries.append(Asked(str(row["pairid"]), row["reference"], targets, tuple(members)))
    part = _check_part(Part("", tuple(queries), gallery, empty), path)
    tops = dict.fromkeys((root, inner))
    return [part], [base for top in tops for base in (top, top / "img_raw", top / "images")]


def read_fashioniq(report: Report) -> tuple[list[Part], list[Path]]:
    """FashionIQ: three categories, the gallery of each its split file (the original protocol)."""
    root, parts = report.root, []
    for category in CATEGORIES:
        path = root / "captions" / f"cap.{category}.{report.split}.json"
        listing = root / "image_splits" / f"split.{category}.{report.split}.json"
        rows = _rows(path)
        if not listing.is_file():
            raise InputError(f"image list {listing} is missing; {MEND}")
        names = read_json(listing, "image list")
        if not isinstance(names, list) or not names or len(set(map(str, names))) < len(names):
            raise InputError(f"image list {listing}: expected a list of names, each once")
        gallery = {name: _place(f"{name}.jpg", f"image list {listing}") for name in names}
        queries, empty = [], 0
        for number, row in enumerate(rows):
            where = f"annotation file {path}, entry {number}"
            _need(row, where, candidate=str, target=str, captions=list)
            captions = row["captions"]
            if len(captions) != 2 or not all(isinstance(caption, str) for caption in captions):
                raise InputError(f"{where}: 'captions' must be two texts")
            empty += sum(not caption.strip() for caption in captions)
            queries.append(Asked(f"{category}/{number}", row["candidate"], (row["target"],)))
        parts.append(_check_part(Part(category, tuple(queries), gallery, empty), path))
    return parts, [root / "images", *(root / "images" / category for category in CATEGORIES), root]


READERS = {"circo": read_circo, "cirr": read_cirr, "fashioniq": read_fashioniq}


def main(arguments: Sequence[str] | None = None) -> int:
    """Look, print the report, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", metavar="BENCHMARK", help=", ".join(PUBLISHED))
    parser.add_argument("--split", required=True, help="val, test or test1")
    parser.add_argument("--root", type=Path, help="the benchmark's folder; not needed for mini benchmarks")
    given = parser.parse_args(arguments)
    try:
        report = check(given.benchmark, given.split, given.root)
    except InputError as error:
        print(f"check_data: {error}", file=sys.stderr)
        return UNUSABLE
    print(report.text())
    return report.code


if __name__ == "__main__":
    sys.exit(main())
