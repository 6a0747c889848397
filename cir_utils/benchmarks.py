"""Benchmarks as published: queries, gallery, protocol. One loader reads the real one and its shipped mini
twin.

A benchmark is read whole and checked before any model is loaded. Files are UTF-8 JSON; what does not follow
the published layout is an :class:`InputError` that names the file, the query, the field and the mend.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from cir_utils.errors import InputError
from cir_utils.files import MEND_SHIPPED, read_json

ImageId = int | str

#: What stands in for an empty or blank modification text (X^R's choice); the protocol counts it.
EMPTY_TEXT = "the same image"


@dataclass(frozen=True)
class Query:
    """One query: the reference image ``I_r`` and the modification text ``T_m``, with its answers where they
    are public.

    ``text`` is ``T_m`` as the methods get it: stripped, never empty (see ``EMPTY_TEXT``). ``targets`` are all
    ground truths, ``()`` where the split has no public answers; ``target`` is the one that recall counts, a
    member of ``targets``, or None. ``aspects`` are CIRCO's semantic aspects, ``()`` in files without them.
    """

    id: str
    reference: ImageId
    text: str
    targets: tuple[ImageId, ...]
    target: ImageId | None
    shared_concept: str = ""
    aspects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Protocol:
    """Under which rules a number was made. Part of every result row; rows of different protocols are not
    compared.

    ``gallery`` says where the image list comes from; ``gallery_size`` is None where it is unknown.
    ``reference`` says whether the reference image stays in the ranking. ``caption_rule`` says how ``T_m`` is
    made of the annotation. ``empty_texts`` counts the queries whose text was replaced by ``EMPTY_TEXT``;
    ``missing_images`` counts pictures of the gallery that are not there and were left out.
    """

    benchmark: str
    split: str
    gallery: str
    gallery_size: int | None
    reference: Literal["kept", "removed"]
    caption_rule: str
    shared_concept: bool
    queries: int
    missing_images: int = 0
    empty_texts: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The fields as a plain dictionary for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Benchmark:
    """Queries, gallery and protocol of one split.

    ``gallery`` is in the benchmark's own fixed order (CIRCO: by id), which also breaks ties; it is ``()``
    where the image list is unknown. ``notes`` are sentences for the reader of a result.
    """

    name: str
    split: str
    queries: tuple[Query, ...]
    gallery: tuple[ImageId, ...]
    root: Path
    protocol: Protocol
    notes: tuple[str, ...] = ()
    locate: Callable[[ImageId], Path] = field(
        default=lambda image_id: Path(str(image_id)), repr=False, compare=False
    )

    def image_path(self, image_id: ImageId) -> Path:
        """Where the picture with this id lies (the file need not exist when images were not asked for)."""
        return self.locate(image_id)

    @property
    def has_answers(self) -> bool:
        """True when every query's ground truths are public."""
        return all(query.targets for query in self.queries)


Reader = Callable[[str, str, Path, bool, bool, str], Benchmark]


@dataclass(frozen=True)
class Entry:
    """One row of the registry: where a benchmark comes from and who reads it."""

    read: Reader
    splits: tuple[str, ...]
    shipped: str  # folder under cir_utils/mini, "" for a real benchmark
    hidden: tuple[str, ...]  # splits whose answers are not public
    mend: str


def benchmark_names() -> tuple[str, ...]:
    """The names that :func:`load_benchmark` takes."""
    return tuple(BENCHMARKS)


def check_benchmark(name: str, split: str) -> Entry:
    """The registry row of ``name``; :class:`InputError` lists the choices for an unknown name or split."""
    if name not in BENCHMARKS:
        raise InputError(f"unknown benchmark {name!r}: choose {', '.join(BENCHMARKS)}")
    entry = BENCHMARKS[name]
    if split not in entry.splits:
        raise InputError(f"unknown split {split!r} of {name}: choose {', '.join(entry.splits)}")
    return entry


def load_benchmark(
    name: str,
    split: str,
    root: Path | str | None = None,
    *,
    need_images: bool = True,
    shared_concept: bool = False,
) -> Benchmark:
    """Read and check one split of a benchmark.

    ``root`` is the benchmark's folder (CIRCO: the one that holds ``annotations/``); the mini benchmarks
    default to the shipped one. With ``need_images`` every picture of the gallery must be there; without,
    annotations alone are enough, and the gallery is the published image list, or unknown where that list is
    absent (said in ``notes``).

    ``shared_concept`` makes ``T_m`` of CIRCO's two texts, "<shared concept> that <relative caption>": the
    sentence which CIRCO's annotators completed. The default is the relative caption alone, as in the
    published code of SEARLE and CIReVL. The choice is part of the protocol.

    Raises :class:`InputError` for an unknown name or split (the choices are listed), a missing file, and
    content that is not as published: repeated query ids, missing or ill-typed fields, references or targets
    outside the gallery.
    """
    entry = check_benchmark(name, split)
    if root is None:
        if not entry.shipped:
            raise InputError(f"benchmark {name} needs its folder: give --root, {entry.mend}")
        root = Path(str(files("cir_utils").joinpath("mini", entry.shipped)))
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"the folder {root} of benchmark {name} does not exist: {entry.mend}")
    return entry.read(name, split, root, need_images, shared_concept, entry.mend)


# --- CIRCO ---
# Layout and fields: github.com/miccunifi/CIRCO (Baldrati et al., ICCV 2023). The mini twin has the same.

CIRCO_IMAGES = Path("COCO2017_unlabeled") / "unlabeled2017"
CIRCO_LIST = Path("COCO2017_unlabeled") / "annotations" / "image_info_unlabeled2017.json"


def _read_circo(
    name: str, split: str, root: Path, need_images: bool, shared_concept: bool, mend: str
) -> Benchmark:
    path = root / "annotations" / f"{split}.json"
    if not path.is_file():
        raise InputError(f"annotation file {path} does not exist: {mend}")
    rows = read_json(path, "annotation file")
    if not isinstance(rows, list) or not rows:
        raise InputError(f"annotation file {path}: expected a list of queries, one or more; {mend}")
    need_answers = split not in BENCHMARKS[name].hidden
    queries = [
        _circo_query(row, f"annotation file {path}, entry {number}", need_answers, shared_concept, mend)
        for number, row in enumerate(rows)
    ]
    entry_of: dict[str, int] = {}
    for number, query in enumerate(queries):
        if query.id in entry_of:
            raise InputError(
                f"annotation file {path}, entry {number}: query id {query.id} was already used by entry "
                f"{entry_of[query.id]}; give every query its own id"
            )
        entry_of[query.id] = number
    if len({bool(query.targets) for query in queries}) > 1:
        first = next(query.id for query in queries if not query.targets)
        raise InputError(
            f"annotation file {path}: query {first} lacks 'gt_img_ids' while others have it; {mend}"
        )

    gallery, origin, notes = _circo_gallery(root, need_images, mend)
    known = set(gallery)
    for query in queries if gallery else ():
        for field_name, images in (("reference_img_id", (query.reference,)), ("gt_img_ids", query.targets)):
            for image in images:
                if image not in known:
                    raise InputError(
                        f"annotation file {path}: query {query.id}, {field_name} {image} is not in the "
                        f"gallery ({len(gallery)} images, {origin}); get the image or the full list: {mend}"
                    )
    empty = sum(not row["relative_caption"].strip() for row in rows)
    if empty:
        notes += (f"{empty} empty modification text(s) replaced by {EMPTY_TEXT!r}",)
    images_folder = root / CIRCO_IMAGES
    return Benchmark(
        name=name,
        split=split,
        queries=tuple(queries),
        gallery=gallery,
        root=root,
        protocol=Protocol(
            benchmark=name,
            split=split,
            gallery=origin,
            gallery_size=len(gallery) or None,
            reference="kept",
            caption_rule="<shared concept> that <relative caption>" if shared_concept else "relative caption",
            shared_concept=shared_concept,
            queries=len(queries),
            empty_texts=empty,
        ),
        notes=notes,
        locate=lambda image_id: images_folder / circo_file_name(image_id),
    )


def _circo_query(row: Any, where: str, need_answers: bool, shared_concept: bool, mend: str) -> Query:
    """One entry of the annotation file as a query. ``where`` opens every message."""
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected an object, not {row!r:.40}; {mend}")
    if "id" in row:
        where = f"{where} (query {row['id']!r})"
    required = ["id", "reference_img_id", "relative_caption", "shared_concept"]
    if need_answers or "gt_img_ids" in row or "target_img_id" in row:
        required += ["gt_img_ids", "target_img_id"]
    for key in required:
        if key not in row:
            raise InputError(f"{where}: the field {key!r} is missing; {mend}")
        value = row[key]
        if key in ("id", "reference_img_id", "target_img_id") and not is_circo_id(value):
            raise InputError(f"{where}: the field {key!r} must be a whole number, not {value!r:.40}; {mend}")
        if key in ("relative_caption", "shared_concept") and not isinstance(value, str):
            raise InputError(f"{where}: the field {key!r} must be a text, not {value!r:.40}; {mend}")
    reference, targets, target = row["reference_img_id"], row.get("gt_img_ids", []), row.get("target_img_id")
    if "gt_img_ids" in required:
        if not isinstance(targets, list) or not targets or not all(is_circo_id(image) for image in targets):
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
    if shared_concept and concept and text:
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


def circo_file_name(image_id: ImageId) -> str:
    """COCO's file name of an image id: twelve digits and ``.jpg``."""
    return f"{int(image_id):012d}.jpg"


def is_circo_id(value: object) -> bool:
    """True for a JSON whole number from 0 (not for true, 1.0 or a text of digits)."""
    return type(value) is int and value >= 0


def _circo_gallery(root: Path, need_images: bool, mend: str) -> tuple[tuple[int, ...], str, tuple[str, ...]]:
    """Image ids in rising order, where they come from, and notes.

    The published image list decides. Without it, the files of the image folder do, when images are needed;
    else the gallery is unknown.
    """
    listing, folder = root / CIRCO_LIST, root / CIRCO_IMAGES
    if listing.is_file():
        table = read_json(listing, "image list")
        rows = table.get("images") if isinstance(table, dict) else None
        if not isinstance(rows, list) or not rows:
            raise InputError(f"image list {listing}: expected a list 'images', one or more; {mend}")
        ids: set[int] = set()
        for number, row in enumerate(rows):
            image = row.get("id") if isinstance(row, dict) else None
            if not isinstance(image, int) or not is_circo_id(image):
                raise InputError(f"image list {listing}, image {number}: 'id' must be a whole number; {mend}")
            if image in ids:
                raise InputError(f"image list {listing}: id {image} occurs twice; {mend}")
            ids.add(image)
        if need_images:
            there = _file_names(folder)
            missing = sorted(image for image in ids if circo_file_name(image) not in there)
            if missing:
                raise InputError(
                    f"{len(missing)} of the {len(ids)} images that {listing} lists are not in {folder} "
                    f"(first: {circo_file_name(missing[0])}); {mend}"
                )
        return tuple(sorted(ids)), f"image list {CIRCO_LIST.name}", ()
    if not need_images:
        return (
            (),
            "unknown",
            (f"the image list {CIRCO_LIST.name} is absent: image ids are accepted unchecked",),
        )
    found = {name for name in _file_names(folder) if name.endswith(".jpg")}
    odd = sorted(name for name in found if not re.fullmatch(r"[0-9]{12}\.jpg", name))
    if odd:
        raise InputError(
            f"image {folder / odd[0]}: expected a name of twelve digits and .jpg; rename or remove it"
        )
    if not found:
        raise InputError(f"no images in {folder}; {mend}")
    gallery = tuple(sorted(int(name[:12]) for name in found))
    note = f"the gallery is what lies in {CIRCO_IMAGES.name}: {len(gallery)} images, not the published list"
    return gallery, f"files of {CIRCO_IMAGES.name}", (note,)


def _file_names(folder: Path) -> set[str]:
    """Names of a folder's ordinary, visible files (``._*`` and the like left out); none when it is absent."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return set()


BENCHMARKS: dict[str, Entry] = {
    "mini-circo": Entry(_read_circo, ("val", "test"), "circo", (), MEND_SHIPPED),
    "circo": Entry(
        _read_circo,
        ("val", "test"),
        "",
        ("test",),
        "the folder of CIRCO, with annotations/{val,test}.json from github.com/miccunifi/CIRCO and COCO's "
        "unlabeled images in COCO2017_unlabeled/",
    ),
}
