"""CIRCO's layout and fields: github.com/miccunifi/CIRCO (Baldrati et al., ICCV 2023).

The gallery is COCO's published image list. A folder may hold a sample of it instead, the laptop set, whose
pictures ``laptop_set.json`` names (`data_scripts/fetch_data.py` writes it): then the protocol says so.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from cir_utils.benchmarks import BENCHMARKS, EMPTY_TEXT, Benchmark, ImageId, Options, Protocol, Query
from cir_utils.errors import InputError
from cir_utils.files import is_there, read_json
from cir_utils.layouts.common import (
    by_stem,
    check_text,
    check_unique,
    empty_note,
    file_names,
    find_pictures,
    is_whole,
    read_rows,
    require,
    without_missing,
)

#: The sample of the gallery for a laptop: how its name begins in the protocol, the file that lists its
#: pictures, and the split whose references and ground truths are all among them.
LAPTOP, LAPTOP_LIST, LAPTOP_SPLIT = "laptop set", "laptop_set.json", "val"
IMAGES = Path("COCO2017_unlabeled") / "unlabeled2017"
IMAGE_LIST = Path("COCO2017_unlabeled") / "annotations" / "image_info_unlabeled2017.json"


def read(name: str, split: str, root: Path, need_images: bool, options: Options) -> Benchmark:
    """One split of CIRCO or its mini twin; see :func:`cir_utils.benchmarks.load_benchmark`."""
    entry = BENCHMARKS[name]
    mend = entry.mend
    path = root / "annotations" / f"{split}.json"
    rows = read_rows(path, mend)
    queries: tuple[Query, ...] = tuple(
        _query(row, f"annotation file {path}, entry {number}", split not in entry.hidden, options, mend)
        for number, row in enumerate(rows)
    )
    check_unique(queries, path)
    if len({bool(query.targets) for query in queries}) > 1:
        first = next(query.id for query in queries if not query.targets)
        raise InputError(
            f"annotation file {path}: query {first} lacks 'gt_img_ids' while others have it; {mend}"
        )

    gallery, origin, notes = _gallery(root, split, need_images, mend)
    known = set(gallery)
    for query in queries if gallery else ():
        for field_name, images in (("reference_img_id", (query.reference,)), ("gt_img_ids", query.targets)):
            for image in images:
                if image not in known:
                    raise InputError(
                        f"annotation file {path}: query {query.id}, {field_name} {image} is not in the "
                        f"gallery ({len(gallery)} images, {origin}); get the image or the full list: {mend}"
                    )
    folder = root / IMAGES
    found: dict[ImageId, Path] = {}
    missing: set[ImageId] = set()
    if need_images:
        found = find_pictures([folder], {image: PurePosixPath(file_name(image)) for image in gallery})
        missing = {image for image in gallery if image not in found}
        first_missing = file_name(min(missing, default=0))
        listing = root / (LAPTOP_LIST if origin.startswith(LAPTOP) else IMAGE_LIST)
        what = (
            f"{len(missing)} of the {len(gallery)} images that {listing} lists are not in {folder} "
            f"(first: {first_missing})"
        )
        queries, more = without_missing(queries, missing, options.missing, what, mend)
        gallery, notes = tuple(image for image in gallery if image not in missing), notes + more
    blank = {str(row["id"]) for row in rows if not row["relative_caption"].strip()}
    empty = sum(query.id in blank for query in queries)
    notes += empty_note(empty)
    concept = options.shared_concept
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
            gallery_size=len(gallery) or None,
            reference=options.reference or "kept",
            caption_rule="<shared concept> that <relative caption>" if concept else "relative caption",
            shared_concept=concept,
            queries=len(queries),
            missing_images=len(missing),
            empty_texts=empty,
        ),
        notes=notes,
        place=lambda image: PurePosixPath(file_name(image)),
        folders=(folder,),
        found=found,
        annotations=(path,),
    )


def _query(row: Any, where: str, need_answers: bool, options: Options, mend: str) -> Query:
    """One entry of the annotation file as a query. ``where`` opens every message."""
    if isinstance(row, dict) and "id" in row:
        where = f"{where} (query {row['id']!r})"
    require(row, ("id", "reference_img_id", "relative_caption", "shared_concept"), where, mend)
    answers = need_answers or "gt_img_ids" in row or "target_img_id" in row
    require(row, ("gt_img_ids", "target_img_id") if answers else (), where, mend)
    for key in ("id", "reference_img_id", "target_img_id"):
        if key in row and not is_whole(row[key]):
            raise InputError(
                f"{where}: the field {key!r} must be a whole number, not {row[key]!r:.40}; {mend}"
            )
    for key in ("relative_caption", "shared_concept"):
        check_text(row[key], key, where, mend)
    reference, targets, target = row["reference_img_id"], row.get("gt_img_ids", []), row.get("target_img_id")
    if answers:
        if not isinstance(targets, list) or not targets or not all(is_whole(image) for image in targets):
            raise InputError(
                f"{where}: the field 'gt_img_ids' must be a list of whole numbers, one or more; {mend}"
            )
        if len(set(targets)) < len(targets):
            raise InputError(f"{where}: the field 'gt_img_ids' repeats an image; {mend}")
        if target not in targets:
            raise InputError(f"{where}: target_img_id {target} is not in gt_img_ids; {mend}")
        if reference in targets:
            raise InputError(f"{where}: reference_img_id {reference} is in gt_img_ids; {mend}")
    aspects = row.get("semantic_aspects", [])
    if not isinstance(aspects, list) or not all(isinstance(aspect, str) and aspect for aspect in aspects):
        raise InputError(f"{where}: the field 'semantic_aspects' must be a list of names; {mend}")
    text, concept = row["relative_caption"].strip(), row["shared_concept"].strip()
    if options.shared_concept and concept and text:
        text = f"{concept} that {text}"
    return Query(
        str(row["id"]),
        reference,
        text or EMPTY_TEXT,
        tuple(targets),
        target,
        concept,
        tuple(dict.fromkeys(aspects)),
    )


def file_name(image_id: ImageId) -> str:
    """COCO's file name of an image id: twelve digits and ``.jpg``."""
    return f"{int(image_id):012d}.jpg"


def _gallery(
    root: Path, split: str, need_images: bool, mend: str
) -> tuple[tuple[ImageId, ...], str, tuple[str, ...]]:
    """Image ids in rising order, where they come from, and notes.

    The published image list decides; without it, the list of the laptop set. Without either, the files of the
    image folder do, when images are needed; else the gallery is unknown.
    """
    listing, folder = root / IMAGE_LIST, root / IMAGES
    if is_there(listing):
        table = read_json(listing, "image list")
        rows = table.get("images") if isinstance(table, dict) else None
        if not isinstance(rows, list) or not rows:
            raise InputError(f"image list {listing}: expected a list 'images', one or more; {mend}")
        ids: set[int] = set()
        for number, row in enumerate(rows):
            image = row.get("id") if isinstance(row, dict) else None
            if not isinstance(image, int) or not is_whole(image):
                raise InputError(f"image list {listing}, image {number}: 'id' must be a whole number; {mend}")
            if image in ids:
                raise InputError(f"image list {listing}: id {image} occurs twice; {mend}")
            ids.add(image)
        return tuple(sorted(ids)), f"image list {IMAGE_LIST.name}", ()
    if split == LAPTOP_SPLIT and is_there(root / LAPTOP_LIST):
        return _laptop_set(root / LAPTOP_LIST)
    if not need_images:
        return (
            (),
            "unknown",
            (f"the image list {IMAGE_LIST.name} is absent: image ids are accepted unchecked",),
        )
    gallery = image_ids(folder)
    if not gallery:
        raise InputError(f"no images in {folder}; {mend}")
    note = f"the gallery is what lies in {IMAGES.name}: {len(gallery)} images, not the published list"
    return gallery, f"files of {IMAGES.name}", (note,)


def image_ids(folder: Path) -> tuple[int, ...]:
    """The ids of a folder's pictures, in rising order; none when it is absent. :class:`InputError` names a
    picture that is not called as COCO's are."""
    stems = by_stem(file_names(folder))
    odd = sorted(name for stem, name in stems.items() if not re.fullmatch("[0-9]{12}", stem))
    if odd:
        raise InputError(
            f"image {folder / odd[0]}: expected a name of twelve digits and .jpg; rename or remove it"
        )
    return tuple(sorted(int(stem) for stem in stems))


def _laptop_set(listing: Path) -> tuple[tuple[ImageId, ...], str, tuple[str, ...]]:
    """The pictures of the laptop set in rising order, its name with seed and number of distractors, and a
    note: figures on it are not those of the published gallery."""
    table = read_json(listing, "list of the laptop set")
    mend = "fetch the set again with `python -m data_scripts.fetch_data circo-laptop`"
    where = f"list of the laptop set {listing}"
    require(table, ("seed", "distractors", "image_ids"), where, mend)
    for key in ("seed", "distractors"):
        if not is_whole(table[key]):
            raise InputError(f"{where}: {key!r} must be a whole number, not {table[key]!r:.40}; {mend}")
    ids = table["image_ids"]
    if not isinstance(ids, list) or not ids or not all(map(is_whole, ids)):
        raise InputError(f"{where}: 'image_ids' must be a list of whole numbers, one or more; {mend}")
    if len(set(ids)) < len(ids):
        raise InputError(f"{where}: 'image_ids' repeats an image; {mend}")
    origin = f"{LAPTOP} of CIRCO val (seed {table['seed']}, {table['distractors']:,} distractors)"
    note = (
        f"the gallery is the {origin}: {len(ids):,} images, so these are not the benchmark's figures; "
        f"{listing.name} lists them"
    )
    return tuple(sorted(ids)), origin, (note,)
