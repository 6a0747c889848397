"""FashionIQ's layout and fields: github.com/XiaoxiaoGuo/fashion-iq (Wu et al., CVPR 2021).

``captions/cap.<category>.<split>.json``, ``image_splits/split.<category>.<split>.json``, and the pictures of
all categories in ``images/`` (or in ``images/<category>/``).
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from cir_utils.benchmarks import BENCHMARKS, EMPTY_TEXT, Benchmark, ImageId, Options, Protocol, Query
from cir_utils.errors import InputError
from cir_utils.files import is_there, read_json
from cir_utils.layouts.common import (
    check_text,
    empty_note,
    find_pictures,
    is_name,
    read_rows,
    require,
    without_missing,
)

CATEGORIES = ("dress", "shirt", "toptee")
#: What is stripped from the ends of a caption before the two are joined, as in SEARLE and CIReVL.
ENDS = " \t\r\n.,?"
#: Shoppers who go on from the first caption begin the second with it; joined, it would stand twice.
STRAY = re.compile(r"^(and\b\s*)+|(\s+and)+$|^and$", re.IGNORECASE)


def read(name: str, split: str, root: Path, need_images: bool, options: Options) -> Benchmark:
    """One split of FashionIQ or its mini twin, all three categories; see
    :func:`cir_utils.benchmarks.load_benchmark`."""
    mend = BENCHMARKS[name].mend
    queries: tuple[Query, ...] = ()
    galleries: dict[str, tuple[ImageId, ...]] = {}
    annotations: list[Path] = []
    blank: dict[str, int] = {}  # how many of a query's two captions are empty
    for category in CATEGORIES:
        path = root / "captions" / f"cap.{category}.{split}.json"
        listing = root / "image_splits" / f"split.{category}.{split}.json"
        rows = read_rows(path, mend)
        gallery = _gallery(listing, mend)
        known = set(gallery)
        own = []
        for number, row in enumerate(rows):
            where = f"annotation file {path}, entry {number} (query {category}/{number})"
            own.append(_query(row, where, category, number, known, options, mend))
            blank[own[-1].id] = sum(not caption.strip(ENDS) for caption in row["captions"])
        if options.gallery == "union":
            used = {image for query in own for image in (query.reference, *query.targets)}
            gallery = tuple(image for image in gallery if image in used)
        queries += tuple(own)
        galleries[category] = gallery
        annotations += [path, listing]

    everything = tuple(dict.fromkeys(image for gallery in galleries.values() for image in gallery))
    folders = [root / "images", *(root / "images" / category for category in CATEGORIES)]
    found: dict[ImageId, Path] = {}
    missing: set[ImageId] = set()
    notes: tuple[str, ...] = ()
    if need_images:
        found = find_pictures(folders, {image: file_name(image) for image in everything})
        missing = {image for image in everything if image not in found}
        first_missing = next((image for image in everything if image in missing), "")
        what = (
            f"{len(missing)} of the {len(everything)} images that {root / 'image_splits'} lists are not in "
            f"{folders[0]} (first: {first_missing})"
        )
        queries, notes = without_missing(queries, missing, options.missing, what, mend)
        everything = tuple(image for image in everything if image not in missing)
        galleries = {
            category: tuple(image for image in gallery if image not in missing)
            for category, gallery in galleries.items()
        }
        for category in CATEGORIES:
            if not any(query.category == category for query in queries):
                raise InputError(f"{what}, and no query of {category} can be answered; {mend}")
    single, empty = (sum(blank[query.id] == count for query in queries) for count in (1, 2))
    if single:
        notes += (f"{single} queries have one empty caption: their other caption alone is the text",)
    notes += empty_note(empty)
    rule = "c1 and c2" + ("; CLIP's feature is the mean of both orders" if options.both_orders else "")
    return Benchmark(
        name=name,
        split=split,
        queries=queries,
        gallery=everything,
        root=root,
        protocol=Protocol(
            benchmark=name,
            split=split,
            gallery=options.gallery,
            gallery_size={category: len(gallery) for category, gallery in galleries.items()},
            reference=options.reference or "kept",
            caption_rule=rule,
            shared_concept=False,
            queries=len(queries),
            missing_images=len(missing),
            empty_texts=empty,
        ),
        notes=notes,
        place=file_name,
        folders=tuple(folders),
        found=found,
        categories=galleries,
        annotations=tuple(annotations),
    )


def file_name(image: ImageId) -> PurePosixPath:
    """A picture's file as FashionIQ names it."""
    return PurePosixPath(f"{image}.jpg")


def join_captions(captions: tuple[str, str]) -> str:
    """The two captions of a query as one text: blanks, ``.,?`` and a stray "and" stripped from their ends,
    joined by "and".

    An empty caption is left out, and a caption that repeats the other (but for case) is not said twice; ""
    when nothing is left.
    """
    first, second = (STRAY.sub("", caption.strip(ENDS)).strip(ENDS) for caption in captions)
    if first.casefold() == second.casefold():
        return first
    return " and ".join(caption for caption in (first, second) if caption)


def _gallery(listing: Path, mend: str) -> tuple[ImageId, ...]:
    """The names of one category's split file, in its order."""
    if not is_there(listing):
        raise InputError(f"image list {listing} does not exist: {mend}")
    names = read_json(listing, "image list")
    if not isinstance(names, list) or not names:
        raise InputError(f"image list {listing}: expected a list of image names, one or more; {mend}")
    seen: set[ImageId] = set()
    for number, image in enumerate(names):
        if not is_name(image):
            raise InputError(f"image list {listing}, image {number}: {image!r:.60} is not a name; {mend}")
        if image in seen:
            raise InputError(f"image list {listing}: {image} occurs twice; {mend}")
        seen.add(image)
    return tuple(names)


def _query(
    row: Any, where: str, category: str, number: int, known: set[ImageId], options: Options, mend: str
) -> Query:
    """One entry of a caption file as a query. ``where`` opens every message."""
    require(row, ("candidate", "target", "captions"), where, mend)
    captions = row["captions"]
    if (
        not isinstance(captions, list)
        or len(captions) != 2
        or not all(isinstance(text, str) for text in captions)
    ):
        raise InputError(f"{where}: the field 'captions' must be a list of two texts; {mend}")
    for caption in captions:
        check_text(caption, "captions", where, mend)
    for key in ("candidate", "target"):
        if not isinstance(row[key], str) or row[key] not in known:
            raise InputError(
                f"{where}: {key} {row[key]!r:.60} is not in the gallery of {category} ({len(known)} images "
                f"of the image list); {mend}"
            )
    if row["candidate"] == row["target"]:
        raise InputError(f"{where}: target {row['target']} is the reference itself; {mend}")
    text, other = join_captions((captions[0], captions[1])), join_captions((captions[1], captions[0]))
    return Query(
        id=f"{category}/{number}",
        reference=row["candidate"],
        text=text or EMPTY_TEXT,
        targets=(row["target"],),
        target=row["target"],
        category=category,
        other_text=other if options.both_orders and other != text else "",
    )
