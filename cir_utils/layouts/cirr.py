"""CIRR's layout and fields: github.com/Cuberick-Orion/CIRR, branch cirr_dataset (Liu et al., ICCV 2021).

Annotations lie in ``captions/`` and ``image_splits/`` below the root, or one level deeper in ``cirr/`` (the
trees of SEARLE and CLIP4Cir); pictures in ``dev/``, ``test1/`` and ``train/<n>/``, beside either, or in
``img_raw/`` (CIRR's own tree).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from cir_utils.benchmarks import BENCHMARKS, EMPTY_TEXT, Benchmark, ImageId, Options, Protocol, Query
from cir_utils.errors import InputError
from cir_utils.files import is_there, read_json
from cir_utils.layouts.common import (
    check_text,
    check_unique,
    empty_note,
    find_pictures,
    is_name,
    is_whole,
    read_rows,
    require,
    safe_place,
    without_missing,
)

MEMBERS = 6


def read(name: str, split: str, root: Path, need_images: bool, options: Options) -> Benchmark:
    """One split of CIRR or its mini twin; see :func:`cir_utils.benchmarks.load_benchmark`."""
    entry = BENCHMARKS[name]
    mend = entry.mend
    inner = root / "cirr" if (root / "cirr" / "captions").is_dir() else root
    path, listing = (
        inner / "captions" / f"cap.rc2.{split}.json",
        inner / "image_splits" / f"split.rc2.{split}.json",
    )
    rows = read_rows(path, mend)
    places = _places(listing, mend)
    queries: tuple[Query, ...] = tuple(
        _query(row, f"annotation file {path}, entry {number}", split not in entry.hidden, places, mend)
        for number, row in enumerate(rows)
    )
    check_unique(queries, path, "pairid")
    if len({bool(query.targets) for query in queries}) > 1:
        first = next(query.id for query in queries if not query.targets)
        raise InputError(
            f"annotation file {path}: query {first} lacks 'target_hard' while others have it; {mend}"
        )

    gallery: tuple[ImageId, ...] = tuple(places)
    origin = f"image list {listing.name}"
    # The annotations' own folder may be the `cirr` level, with the pictures beside it.
    bases = [base for top in dict.fromkeys((root, inner)) for base in (top, top / "img_raw", top / "images")]
    if root.name == "cirr":
        bases.append(root.parent)
    found: dict[ImageId, Path] = {}
    missing: set[ImageId] = set()
    notes: tuple[str, ...] = ()
    if need_images:
        found = find_pictures(bases, places)
        missing = {image for image in gallery if image not in found}
        first_missing = next((str(places[image]) for image in gallery if image in missing), "")
        what = (
            f"{len(missing)} of the {len(gallery)} images that {listing} lists are not below {root} "
            f"(first: {first_missing})"
        )
        queries, notes = without_missing(queries, missing, options.missing, what, mend)
        gallery = tuple(image for image in gallery if image not in missing)
        moved = sum(path.parent.name != places[image].parent.name for image, path in found.items())
        if moved:
            notes += (f"{moved:,} pictures lie flat, not in the folders that {listing.name} names",)
    blank = {str(row["pairid"]) for row in rows if not row["caption"].strip()}
    empty = sum(query.id in blank for query in queries)
    notes += empty_note(empty)
    return Benchmark(
        name=name,
        split=split,
        queries=queries,
        gallery=gallery,
        root=root,
        protocol=Protocol(
            benchmark=name,
            split=split,
            gallery=origin,
            gallery_size=len(gallery),
            reference=options.reference or "removed",
            caption_rule="caption",
            shared_concept=False,
            queries=len(queries),
            missing_images=len(missing),
            empty_texts=empty,
        ),
        notes=notes,
        place=places.__getitem__,
        folders=tuple(bases),
        found=found,
        annotations=(path, listing),
    )


def _places(listing: Path, mend: str) -> dict[ImageId, PurePosixPath]:
    """The gallery: every image's name with its published place, in the order of the split file.

    The split file alone is the gallery: not every target is somebody's reference.
    """
    if not is_there(listing):
        raise InputError(f"image list {listing} does not exist: {mend}")
    table = read_json(listing, "image list")
    if not isinstance(table, dict) or not table:
        raise InputError(f"image list {listing}: expected an object {{name: path}}, one or more; {mend}")
    places: dict[ImageId, PurePosixPath] = {}
    for image, text in table.items():
        if not is_name(image):
            raise InputError(f"image list {listing}: {image!r:.60} is not an image name; {mend}")
        places[image] = safe_place(text, f"image list {listing}, image {image}", mend)
    return places


def _query(row: Any, where: str, need_answers: bool, known: Mapping[ImageId, Any], mend: str) -> Query:
    """One entry of the annotation file as a query. ``where`` opens every message."""
    if isinstance(row, dict) and "pairid" in row:
        where = f"{where} (query {row['pairid']!r})"
    answers = need_answers or (isinstance(row, dict) and "target_hard" in row)
    require(row, ("pairid", "reference", "caption", "img_set"), where, mend)
    require(row, ("target_hard",) if answers else (), where, mend)
    if not is_whole(row["pairid"]):
        raise InputError(
            f"{where}: the field 'pairid' must be a whole number, not {row['pairid']!r:.40}; {mend}"
        )
    check_text(row["caption"], "caption", where, mend)
    members = row["img_set"].get("members") if isinstance(row["img_set"], dict) else None
    if (
        not isinstance(members, list)
        or not all(isinstance(member, str) for member in members)
        or len(members) != MEMBERS
        or len(set(members)) != MEMBERS
    ):
        raise InputError(f"{where}: 'img_set' must hold {MEMBERS} different names as 'members'; {mend}")
    reference, target = row["reference"], row.get("target_hard")
    for key, images in (
        ("reference", [reference]),
        ("target_hard", [target] if answers else []),
        ("members", members),
    ):
        for image in images:
            if not isinstance(image, str) or image not in known:
                raise InputError(
                    f"{where}: {key} {image!r:.60} is not in the gallery ({len(known)} images of the image "
                    f"list); {mend}"
                )
    for key, image in (("reference", reference), *((("target_hard", target),) if answers else ())):
        if image not in members:
            raise InputError(f"{where}: {key} {image} is not a member of its own subset; {mend}")
    if answers and target == reference:
        raise InputError(f"{where}: target_hard {target} is the reference itself; {mend}")
    return Query(
        id=str(row["pairid"]),
        reference=reference,
        text=row["caption"].strip() or EMPTY_TEXT,
        targets=(target,) if answers else (),
        target=target,
        members=tuple(members),
    )
