"""Benchmarks as published: queries, gallery, protocol. One loader reads the real one and its shipped mini
twin.

A benchmark is read whole and checked before any model is loaded. Files are UTF-8 JSON; what does not follow
the published layout is an :class:`InputError` that names the file, the query, the field and the mend. The
layouts on disk are in ``cir_utils/layouts/``, one file a benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

from cir_utils.errors import InputError
from cir_utils.files import MEND_SHIPPED

ImageId = int | str
Family = Literal["circo", "cirr", "fashioniq"]
Reference = Literal["kept", "removed"]
Missing = Literal["stop", "leave-out"]
Gallery = Literal["original", "union"]

#: What stands in for an empty or blank modification text (X^R's choice); the protocol counts it.
EMPTY_TEXT = "the same image"
#: What a reader's own folder of pictures is called; no registry has it (see ``cir_utils.own_images``).
OWN = "own-images"


@dataclass(frozen=True)
class Query:
    """One query: the reference image ``I_r`` and the modification text ``T_m``, with its answers where they
    are public.

    ``text`` is ``T_m`` as the methods get it: stripped, never empty (see ``EMPTY_TEXT``). ``targets`` are all
    ground truths, ``()`` where the split has no public answers; ``target`` is the one that recall counts, a
    member of ``targets``, or None. ``aspects`` are CIRCO's semantic aspects, ``()`` in files without them.

    ``members`` is CIRR's subset of six look-alikes, the reference among them, ``()`` elsewhere. ``category``
    is FashionIQ's, "" elsewhere. ``other_text`` is FashionIQ's text with the captions in the other order
    where both orders are averaged, else "".
    """

    id: str
    reference: ImageId
    text: str
    targets: tuple[ImageId, ...]
    target: ImageId | None
    shared_concept: str = ""
    aspects: tuple[str, ...] = ()
    members: tuple[ImageId, ...] = ()
    category: str = ""
    other_text: str = ""

    @property
    def pictures(self) -> set[ImageId]:
        """All that must be there for the query to be answered and scored."""
        return {self.reference, *self.targets, *self.members}


@dataclass(frozen=True)
class Protocol:
    """Under which rules a number was made. Part of every result row; rows of different protocols are not
    compared.

    ``gallery`` says where the image list comes from; ``gallery_size`` is None where it is unknown, and one
    size a category for FashionIQ. ``reference`` says whether the reference image stays in the ranking.
    ``caption_rule`` says how ``T_m`` is made of the annotation. ``empty_texts`` counts the queries whose text
    was replaced by ``EMPTY_TEXT``; ``missing_images`` counts pictures of the gallery that are not there and
    were left out, with the queries that need them.
    """

    benchmark: str
    split: str
    gallery: str
    gallery_size: int | dict[str, int] | None
    reference: Reference
    caption_rule: str
    shared_concept: bool
    queries: int
    missing_images: int = 0
    empty_texts: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The fields as a plain dictionary for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Options:
    """Choices where the field disagrees; the defaults are the published ones.

    * ``gallery`` (FashionIQ): ``original``, the image lists of the split files, as in the zero-shot papers;
      or ``union``, the references and targets of the split's queries alone, the "VAL" protocol of some
      supervised papers. The two differ by 5 to 10 points.
    * ``reference``: ``kept`` in the ranking or ``removed`` before ranks are taken; None is the benchmark's
      own rule (CIRR removes it, FashionIQ and CIRCO keep it).
    * ``both_orders`` (FashionIQ): CLIP's feature of ``T_m`` is the mean of "c1 and c2" and "c2 and c1", as in
      SEARLE; the default is the order of the file, as in CIReVL and X^R. Prompts get the file's order always.
    * ``shared_concept`` (CIRCO): ``T_m`` is "<shared concept> that <relative caption>", the sentence which
      CIRCO's annotators completed; the default is the relative caption alone, as in the published code of
      SEARLE and CIReVL.
    * ``missing``: pictures that are not there ``stop`` the run, or ``leave-out`` makes the gallery smaller
      and leaves out the queries whose reference, ground truth or subset member is missing.
    """

    gallery: Gallery = "original"
    reference: Reference | None = None
    both_orders: bool = False
    shared_concept: bool = False
    missing: Missing = "stop"


@dataclass(frozen=True)
class Benchmark:
    """Queries, gallery and protocol of one split.

    ``gallery`` is in the benchmark's own fixed order (CIRCO: by id; the others: as in the split file), which
    also breaks ties; it is ``()`` where the image list is unknown. FashionIQ's queries each rank the gallery
    of their category alone: ``categories`` holds those galleries, and ``gallery`` all their images, each
    once; see :attr:`parts`. ``annotations`` are the files that were read; ``notes`` are sentences for the
    reader of a result.

    ``place`` gives a picture's published place below any of ``folders``; ``found`` are the pictures' files
    where they were looked for (``need_images``), as they need not lie or end as published.
    """

    name: str
    split: str
    queries: tuple[Query, ...]
    gallery: tuple[ImageId, ...]
    root: Path
    protocol: Protocol
    notes: tuple[str, ...] = ()
    place: Callable[[ImageId], PurePosixPath] = field(
        default=lambda image_id: PurePosixPath(str(image_id)), repr=False, compare=False
    )
    folders: tuple[Path, ...] = (Path(),)
    found: Mapping[ImageId, Path] = field(default_factory=dict, repr=False, compare=False)
    categories: Mapping[str, tuple[ImageId, ...]] = field(default_factory=dict)
    annotations: tuple[Path, ...] = ()

    def image_path(self, image_id: ImageId) -> Path:
        """Where the picture with this id lies (the file need not exist when images were not asked for)."""
        return self.found.get(image_id) or self.folders[0] / self.place(image_id)

    @property
    def has_answers(self) -> bool:
        """True when every query's ground truths are public."""
        return all(query.targets for query in self.queries)

    @property
    def family(self) -> Family:
        """The benchmark whose protocol and metrics this one follows: CIRCO's for a folder of one's own."""
        return "circo" if self.name == OWN else BENCHMARKS[self.name].family

    @property
    def parts(self) -> dict[str, Benchmark]:
        """The benchmark by gallery: FashionIQ's categories, each with its own queries and gallery; any other
        is one part called ""."""
        if not self.categories:
            return {"": self}
        return {
            category: replace(
                self,
                queries=tuple(query for query in self.queries if query.category == category),
                gallery=gallery,
                categories={},
            )
            for category, gallery in self.categories.items()
        }

    @property
    def removed(self) -> dict[str, ImageId]:
        """The image that no ranking of a query holds: its reference where the protocol removes it, else
        nothing."""
        if self.protocol.reference == "kept":
            return {}
        return {query.id: query.reference for query in self.queries}

    def subset(self, query: Query) -> tuple[ImageId, ...]:
        """CIRR's subset of ``query`` as it is ranked: five images, or all six where the reference is kept."""
        kept = self.protocol.reference == "kept"
        return tuple(image for image in query.members if kept or image != query.reference)


@dataclass(frozen=True)
class Entry:
    """One row of the registry: where a benchmark comes from and who reads it.

    ``shipped`` is a folder under ``cir_utils/mini``, "" for a real benchmark; ``hidden`` are the splits whose
    answers are not public; ``queries`` the published number of queries by split, where there is one."""

    family: Family
    splits: tuple[str, ...]
    shipped: str
    hidden: tuple[str, ...]
    mend: str
    queries: dict[str, int] = field(default_factory=dict)


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
    name: str, split: str, root: Path | str | None = None, *, need_images: bool = True, **options: Any
) -> Benchmark:
    """Read and check one split of a benchmark.

    ``root`` is the benchmark's folder (CIRCO: the one that holds ``annotations/``; the others: ``captions/``
    and ``image_splits/``, for CIRR also one level above, in ``cirr/``); the mini benchmarks default to the
    shipped one. With ``need_images`` every picture of the gallery must be there; without, annotations alone
    are enough, and CIRCO's gallery is the published image list, or unknown where that list is absent (said in
    ``notes``). Pictures are found by name without extension.

    ``options`` are fields of :class:`Options`; what was chosen is part of the protocol.

    Raises :class:`InputError` for an unknown name or split (the choices are listed), an option that the
    benchmark does not have, a missing file, and content that is not as published: repeated query ids, missing
    or ill-typed fields, references, targets or members outside the gallery.
    """
    entry = check_benchmark(name, split)
    chosen = check_options(name, Options(**options))
    root = benchmark_root(name, root)
    if not root.is_dir():
        raise InputError(f"the folder {root} of benchmark {name} does not exist: {entry.mend}")
    read = import_module(f"cir_utils.layouts.{entry.family}").read
    found: Benchmark = read(name, split, root, need_images, chosen)
    published = entry.queries.get(split)
    if published in (None, len(found.queries)):
        return found
    # A part of a split is a fair thing to try, but its figures are not those of the benchmark.
    note = f"{len(found.queries):,} queries where the published {split} split has {published:,}"
    return replace(found, notes=(*found.notes, note))


def benchmark_root(name: str, root: Path | str | None) -> Path:
    """``root``, or the shipped folder of a mini benchmark; :class:`InputError` for a real one without it."""
    entry = BENCHMARKS[name]
    if root is not None:
        return Path(root)
    if not entry.shipped:
        raise InputError(f"benchmark {name} needs its folder: give --root, {entry.mend}")
    return Path(str(files("cir_utils").joinpath("mini", entry.shipped)))


def check_options(name: str, options: Options) -> Options:
    """``options`` as they are; :class:`InputError` for an unknown value and for an option that benchmark
    ``name`` does not have."""
    family = BENCHMARKS[name].family
    for what, value, known in (
        ("--gallery", options.gallery, get_args(Gallery)),
        ("reference", options.reference or "kept", get_args(Reference)),
        ("--missing", options.missing, get_args(Missing)),
    ):
        if value not in known:
            raise InputError(f"unknown {what} {value!r}: choose {', '.join(known)}")
    for what, set_, owner, label in (
        ("--gallery union", options.gallery != "original", "fashioniq", "FashionIQ"),
        ("--both-orders", options.both_orders, "fashioniq", "FashionIQ"),
        ("--shared-concept", options.shared_concept, "circo", "CIRCO"),
    ):
        if set_ and family != owner:
            raise InputError(f"{what} is an option of {label} alone; leave it out for {name}")
    return options


BENCHMARKS: dict[str, Entry] = {
    "mini-circo": Entry("circo", ("val", "test"), "circo", (), MEND_SHIPPED),
    "circo": Entry(
        "circo",
        ("val", "test"),
        "",
        ("test",),
        "the folder of CIRCO, with annotations/{val,test}.json from github.com/miccunifi/CIRCO and COCO's "
        "unlabeled images in COCO2017_unlabeled/",
        {"val": 220, "test": 800},
    ),
    "mini-cirr": Entry("cirr", ("val", "test"), "cirr", (), MEND_SHIPPED),
    "cirr": Entry(
        "cirr",
        ("val", "test1"),
        "",
        ("test1",),
        "the folder of CIRR, with captions/ and image_splits/ from the branch cirr_dataset of "
        "github.com/Cuberick-Orion/CIRR and NLVR2's images in dev/ and test1/",
        {"val": 4181, "test1": 4148},
    ),
    "mini-fashioniq": Entry("fashioniq", ("val", "test"), "fashioniq", (), MEND_SHIPPED),
    "fashioniq": Entry(
        "fashioniq",
        ("val",),
        "",
        (),
        "the folder of FashionIQ, with captions/ and image_splits/ from github.com/XiaoxiaoGuo/fashion-iq "
        "and the pictures in images/",
        {"val": 6016},
    ),
}
