"""Is a benchmark's folder complete? Looked at before any model loads.

    python data_scripts/check_data.py BENCHMARK --split S --root DIR

The annotations are read and checked by the reader that every run uses (fields, counts, references, targets
and members inside the gallery); pictures are looked for as a run looks for them, and each is opened. What is
present, missing, empty (0 bytes) or unreadable (an error page saved as .jpg, a file that was cut short) is
counted by category and by the picture's role: reference, target, member of a subset, distractor (none of
these). A picture with two roles counts in both.

Exit code 0: complete. 3: usable but incomplete (some pictures are missing or bad, or the folder holds only a
part of what was published). 2: unusable (annotations missing or wrong, or no query left to answer), or wrong
usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from PIL import Image

from cir_utils.benchmarks import (
    BENCHMARKS,
    Benchmark,
    ImageId,
    benchmark_root,
    check_benchmark,
    load_benchmark,
)
from cir_utils.errors import InputError, exit_code
from cir_utils.images import FORMATS, MAX_PIXELS, load_image
from cir_utils.layouts import circo
from cir_utils.layouts.common import find_pictures

COMPLETE, INCOMPLETE, UNUSABLE = 0, 3, 2
ROLES = ("reference", "target", "member", "distractor")
STATES = ("present", "missing", "empty", "unreadable")

#: benchmark -> split -> (queries, gallery) by category ("" where there is none), as published.
PUBLISHED: dict[str, dict[str, dict[str, tuple[int, int]]]] = {
    "circo": {"val": {"": (220, 123_403)}, "test": {"": (800, 123_403)}},
    "cirr": {"val": {"": (4181, 2297)}, "test1": {"": (4148, 2315)}},
    "fashioniq": {"val": {"dress": (2017, 3817), "shirt": (2038, 6346), "toptee": (1961, 5373)}},
}
FETCH = "`python -m data_scripts.fetch_data` fetches it, or says whom to ask"


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

    ``root`` is as in :func:`cir_utils.benchmarks.load_benchmark`. Whatever is wrong with the folder is in the
    report; :class:`InputError` is for an unknown benchmark or split (the choices are listed) and a missing
    ``root``.
    """
    check_benchmark(benchmark, split)
    report = Report(benchmark, split, benchmark_root(benchmark, root))
    try:
        found = load_benchmark(benchmark, split, report.root, need_images=False)
        if not found.gallery:
            found = _with_folder_as_gallery(found)
    except InputError as error:
        report.unusable.append(str(error) if BENCHMARKS[benchmark].shipped else f"{error}; {FETCH}")
        return report
    report.sample = found.protocol.gallery.startswith(circo.LAPTOP)
    _compare_with_published(report, found)
    report.notes += [note for note in found.notes if note not in report.incomplete]
    _look_at_pictures(report, found)
    return report


def _with_folder_as_gallery(found: Benchmark) -> Benchmark:
    """CIRCO without an image list: its gallery is what lies in the folder, and what the queries need."""
    folder = found.folders[0]
    needed = {image for query in found.queries for image in query.pictures}
    note = f"the gallery is what lies in {folder.relative_to(found.root)}: the published list is not there"
    ids = sorted({*circo.image_ids(folder), *needed}, key=int)
    return replace(found, gallery=tuple(ids), notes=(note, *found.notes[1:]))


def _compare_with_published(report: Report, found: Benchmark) -> None:
    """A part of a split is usable, and said to be a part."""
    published = PUBLISHED.get(report.benchmark, {}).get(report.split, {})
    for category, (queries, gallery) in published.items():
        part = found.parts[category]
        where = f"{report.split} split of {category}" if category else f"{report.split} split"
        for what, size, wanted in (
            ("queries", len(part.queries), queries),
            ("pictures in the gallery", len(part.gallery), gallery),
        ):
            if size != wanted and not (report.sample and what.startswith("pictures")):
                report.incomplete.append(f"{size:,} {what} where the published {where} has {wanted:,}")


def _look_at_pictures(report: Report, found: Benchmark) -> None:
    """Find and open every picture of the galleries, once each."""
    played = {category: _roles(part) for category, part in found.parts.items()}
    roles: dict[ImageId, dict[str, None]] = {}
    for names_by_role in played.values():
        for role, names in names_by_role.items():
            for name in names:
                roles.setdefault(name, {})[role] = None
    places = find_pictures(found.folders, {image: found.place(image) for image in found.gallery})
    state_of: dict[ImageId, str] = {}
    for image in found.gallery:
        path = places.get(image)
        published = found.image_path(image).relative_to(found.root)
        state, why = look(path) if path else ("missing", str(published))
        state_of[image] = state
        if state != "present":
            report.faults.append(
                Fault(str(image), state, why, tuple(role for role in ROLES if role in roles[image]))
            )
    for category, names_by_role in played.items():
        for role in ROLES:
            if names_by_role[role]:
                states = Counter(state_of[name] for name in names_by_role[role])
                report.counts[category, role] = states
    report.gallery = len(found.gallery)
    for category, part in found.parts.items():
        left = sum(all(state_of[image] == "present" for image in query.pictures) for query in part.queries)
        report.queries += len(part.queries)
        report.queries_left += left
        if not left:
            report.unusable.append(
                f"no query of {category} has all its pictures"
                if category
                else "no query has all its pictures"
            )
    if 0 < report.queries_left < report.queries:
        report.incomplete.append(
            f"{report.queries - report.queries_left:,} of {report.queries:,} queries lack a picture "
            "(reference, target or member)"
        )


def _roles(part: Benchmark) -> dict[str, set[ImageId]]:
    """Role -> pictures of the gallery that play it."""
    played = {
        "reference": {query.reference for query in part.queries},
        "target": {image for query in part.queries for image in query.targets},
        "member": {image for query in part.queries for image in query.members},
    }
    return played | {"distractor": set(part.gallery) - set().union(*played.values())}


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Look, print the report, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", metavar="BENCHMARK", help=", ".join(BENCHMARKS))
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
    sys.exit(exit_code(main))
