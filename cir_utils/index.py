"""A FAISS index over a gallery's features, searched with SDR-CIR's composed query; every result says whether
it is exact.

The debiased score is one inner product (`cir_utils.scoring.composed_query`), so an index for the largest
inner product serves it directly. Three kinds:

* ``flat``: all rows, float32 (`IndexFlatIP`). Exact: the same items in the same order as
  `cir_utils.search.debiased_topk`, which is faster on most processors; this one is a file that can be shared;
* ``hnsw``: all rows and a graph of near neighbours. Approximate, a fraction of a full scan's time;
* ``ivfpq``: lists around centroids, a byte for every four values. Approximate, a fraction of the memory.

Composed queries are not of unit length, and need not be: a longer query multiplies all its scores. The rows
are of unit length, hence `|w - x|^2 = |w|^2 + 1 - 2 w.x`, so for *any* query the largest inner product is the
smallest distance. The graph and the walk through it are therefore those of plain distances, without what
spoils graphs for inner products elsewhere (a few long rows that are near to everything).

**Never a -1.** FAISS fills a result up with -1 where a graph's walk or the lists it looks into hold too few
items. Such a query is searched again through everything that the index holds, and `Found.widened` says so.

**Threads.** Searches and builds use as many threads as torch is set to (`torch.set_num_threads`) and leave
the setting of both libraries as it was. On Linux FAISS finds torch's OpenMP where torch was imported first,
as it is here: one pool of threads, one setting (so `faiss.omp_set_num_threads` of your own would set torch's,
too). Where faiss was imported first, each has a pool: with both busy there are twice as many threads. On
macOS, where a second OpenMP may end the process ("OMP: Error #15"), install both from one channel
(conda-forge).

FAISS is not a part of the plain installation: ``pip install 'cir-utils[index]'``.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from torch import Tensor

from cir_utils.benchmarks import ImageId
from cir_utils.errors import InputError
from cir_utils.files import open_atomic, own_sha256, read_json, sha256_file, write_json_atomic
from cir_utils.scoring import BLOCK_ELEMENTS, anchored_query, check_rows, composed_query
from cir_utils.search import (
    PENDING,
    Features,
    Gallery,
    MappedFeatures,
    _power,
    check_lengths,
    checked_queries,
    debiased_topk,
    exact_pairs,
    scan_of,
)

Kind = Literal["flat", "hnsw", "ivfpq"]
MANIFEST = "index.json"
#: Items that the flat kind looks at beyond the k wanted: near ties of float32 scores.
SLACK = 16
#: Rows that `ivfpq` learns its centroids and codes from, at most.
TRAINING_ROWS = 1 << 17
#: `ivfpq` has 256 codes a part of a row, each learnt from at least one row.
CODES = 256
#: Longest stored row: unit length within the widest tolerance (`cir_utils.scoring.LENGTH_TOLERANCE`).
LONGEST = 1.01
#: Settings and their usual values; 0 is worked out from the size of the gallery.
USUAL: dict[str, dict[str, int]] = {
    "flat": {},
    "hnsw": {"M": 32, "efConstruction": 200, "efSearch": 256},
    "ivfpq": {"nlist": 0, "m": 0, "nprobe": 32, "head": 4},
}
FILE = r"[0-9a-f]{16}\.faiss"


@dataclass
class SearchIndex:
    """An index in memory, or in a mapped file; make it with `build_index` or `load_index`.

    ``ids``: one a row, in the order of the rows. ``parts``: how many rows came with the build and with every
    `add_to_index`, and the SHA-256 of their float32 values. ``settings``: see `build_index`; ``efSearch``,
    ``nprobe`` and ``head`` may be changed at any time. ``handle``: the FAISS index.
    """

    kind: Kind
    width: int
    ids: list[ImageId]
    parts: list[tuple[int, str]]
    settings: dict[str, int]
    mapped: bool
    handle: Any = field(repr=False)
    known: set[ImageId] = field(repr=False)

    @property
    def count(self) -> int:
        return len(self.ids)

    @property
    def exact(self) -> bool:
        """Whether its results are exact."""
        return self.kind == "flat"


@dataclass(frozen=True)
class Found:
    """The best of an index, on the queries' device: `items` `(Q, k)` int64, gallery positions, best first,
    none twice and never -1, `ids` the same as ids.

    `scores` `(Q, k)` float64 are `exact_scores` of the items to the bit (`ivfpq` without `gallery`: what its
    codes stand for). `exact`: whether these are certainly the best of the whole gallery, in the right order.
    `widened` `(Q,)` bool: the quick search found too few, so everything was looked at.
    """

    items: Tensor
    scores: Tensor
    ids: list[list[ImageId]]
    exact: bool
    widened: Tensor


# --- building ---------------------------------------------------------------------------------------------


def build_index(
    features: Features, ids: Sequence[ImageId], kind: Kind = "flat", **settings: int
) -> SearchIndex:
    """Index `features` `(N, D)`, rows of unit length in float32, float16 or bfloat16 (a tensor on any device,
    or mapped); `ids`, one a row, all different, travel with the index.

    `settings` have FAISS' own names. ``hnsw``: ``M`` (neighbours of a row, 32), ``efConstruction`` (rows
    considered for them, 200), ``efSearch`` (rows that a search keeps in view, 256; more finds more and takes
    longer). ``ivfpq``: ``nlist`` (lists, about 4 sqrt(N)), ``m`` (bytes of a row, D/4), ``nprobe`` (lists
    looked into, 32) and ``head`` (with `gallery`, how many times k items are scored again, 4).

    The graph of ``hnsw`` is the same each time where torch is set to one thread. Raises `InputError` for
    features that are not as described, ids that do not fit, unknown settings, ``ivfpq`` for less than 256
    rows, and where FAISS is not installed.
    """
    if kind not in get_args(Kind):
        raise InputError(f"kind {kind!r} is unknown; choose one of {', '.join(get_args(Kind))}")
    faiss = _faiss()
    _check_gallery(features)
    count, width = features.shape
    used = _settings(kind, settings, count, width)
    names = {
        "flat": "Flat",
        "hnsw": f"HNSW{used.get('M')}",
        "ivfpq": f"IVF{used.get('nlist')},PQ{used.get('m')}x8np",
    }
    handle = faiss.index_factory(width, names[kind], faiss.METRIC_INNER_PRODUCT)
    index = SearchIndex(kind, width, [], [], used, False, handle, set())
    new = _new_ids(ids, index, count)
    with _threads(faiss):
        if kind == "hnsw":
            handle.hnsw.efConstruction = used["efConstruction"]
        if kind == "ivfpq":
            # Small galleries are meant: no warning on standard error that they are small.
            handle.cp.min_points_per_centroid = handle.pq.cp.min_points_per_centroid = 1
            step = math.ceil(count / TRAINING_ROWS)
            handle.train(_take(features, torch.arange(0, count, step)).numpy())
        _add(index, features, new)
    return index


def add_to_index(index: SearchIndex, features: Features, ids: Sequence[ImageId]) -> None:
    """Add rows at the end. An id that the index has already is refused, and then nothing is added.

    ``ivfpq`` keeps the centroids and codes of the build: where what is added looks different, build anew.
    Raises `InputError` as `build_index`, and for a mapped index.
    """
    if index.mapped:
        # FAISS ends the whole process when it is asked to.
        raise InputError("a mapped index cannot be added to; load it with mapped=False, add, and save it")
    _check_whole(index)
    _check_gallery(features, index.width)
    new = _new_ids(ids, index, features.shape[0])
    with _threads(_faiss()):
        _add(index, features, new)


def _add(index: SearchIndex, features: Features, new: list[ImageId]) -> None:
    digest = hashlib.sha256()
    for block in _blocks(features):
        digest.update(block.numpy().data)
        index.handle.add(block.numpy())
    index.ids += new
    index.known.update(new)
    index.parts.append((len(new), digest.hexdigest()))


def _check_gallery(features: Features, width: int | None = None) -> None:
    """Checks all rows before any is added."""
    if not isinstance(features, MappedFeatures):
        check_rows("gallery", features, width)
    elif width not in (None, features.shape[1]):
        raise InputError(
            f"gallery: {features.shape[1]} values wide where {width} were expected; encode pictures with the "
            "CLIP model of the index"
        )
    else:
        for start, stop in _spans(features):
            check_lengths(f"gallery, rows from {start}", features.block(start, stop))
    if features.dtype == torch.float64:
        raise InputError(
            "gallery: float64 features would be rounded in the index, and then rank otherwise; give "
            "features.float()"
        )


def _new_ids(ids: Sequence[ImageId], index: SearchIndex, count: int) -> list[ImageId]:
    """Checked ids of `count` new rows."""
    new = list(ids)
    if len(new) != count:
        raise InputError(f"{len(new)} ids for {count} rows; give one id a row")
    seen: set[ImageId] = set()
    for row, name in enumerate(new):
        if not isinstance(name, (int, str)) or isinstance(name, bool) or not _writable(name):
            raise InputError(f"id {name!r} of row {row}: expected a whole number or a text of valid Unicode")
        if name in index.known or name in seen:
            where = "is in the index already" if name in index.known else "occurs twice"
            raise InputError(f"id {name!r} of row {row} {where}; every row needs an id of its own")
        seen.add(name)
    return new


def _writable(name: ImageId) -> bool:
    try:
        str(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def _settings(kind: Kind, given: dict[str, int], count: int, width: int) -> dict[str, int]:
    """All settings of a kind: what is given, else the usual."""
    if kind == "ivfpq" and count < CODES:
        raise InputError(f"ivfpq needs at least {CODES} rows to learn its codes from, got {count}; use flat")
    usual = dict(USUAL[kind])
    if kind == "ivfpq":
        usual["nlist"] = max(1, min(4 * math.isqrt(count), count // 40))
        usual["m"] = max(parts for parts in range(1, max(1, width // 4) + 1) if width % parts == 0)
    for name, value in given.items():
        if name not in usual:
            have = ", ".join(usual) or "none"
            raise InputError(f"setting {name!r} is unknown to {kind}; its settings are: {have}")
        if not _positive(value) or value < (2 if name == "M" else 1):
            raise InputError(
                f"setting {name} = {value!r}: expected a whole number from {1 + (name == 'M')} on"
            )
    used = usual | given
    if kind == "ivfpq" and width % used["m"]:
        raise InputError(f"setting m = {used['m']}: expected a divisor of the features' width {width}")
    if kind == "ivfpq" and used["nlist"] > min(count, TRAINING_ROWS):
        most = min(count, TRAINING_ROWS)
        raise InputError(f"setting nlist = {used['nlist']}: expected at most {most} lists for {count} rows")
    return used


def _spans(features: Features) -> Iterator[tuple[int, int]]:
    step = max(1, 4 * BLOCK_ELEMENTS // features.shape[1])
    for start in range(0, features.shape[0], step):
        yield start, min(start + step, features.shape[0])


def _blocks(features: Features) -> Iterator[Tensor]:
    """The rows in float32 on the CPU, some at a time."""
    for start, stop in _spans(features):
        rows = features[start:stop] if isinstance(features, Tensor) else features.block(start, stop)
        yield rows.detach().to("cpu", torch.float32).contiguous()


def _part(features: Features, start: int, stop: int) -> Features:
    if isinstance(features, Tensor):
        return features[start:stop]
    place = features.offset + start * features.shape[1] * features.dtype.itemsize
    return replace(features, offset=place, shape=(stop - start, features.shape[1]))


def _take(features: Features, items: Tensor) -> Tensor:
    if isinstance(features, Tensor):
        rows = features.index_select(0, items.to(features.device))
    else:
        rows = features.take(items)
    return rows.detach().to("cpu", torch.float32).contiguous()


# --- searching --------------------------------------------------------------------------------------------


def debiased_search(
    index: SearchIndex,
    F_r: Tensor,
    F_d: Tensor,
    F_m: Tensor,
    k: int,
    alpha: float = 0.1,
    beta: float = 0.4,
    *,
    gallery: Gallery | None = None,
) -> Found:
    """The `min(k, N)` best by SDR-CIR's debiased score: `search_index` with `composed_query`. Raises and
    warns as both."""
    return search_index(index, composed_query(F_r, F_d, F_m, alpha, beta), k, gallery=gallery)


def search_index(index: SearchIndex, W: Tensor, k: int, *, gallery: Gallery | None = None) -> Found:
    """The `min(k, N)` items of the largest inner product with each query `W` `(Q, D)`, as far as the index
    finds them.

    ``flat`` finds them all (proof at `_flat`). Whatever a kind finds is scored again exactly and sorted, ties
    by gallery order; ``ivfpq`` has no rows of its own for that and takes them from `gallery`
    (`cir_utils.search.prepare_gallery` of the features, mapped ones included), then looks at ``head`` times
    as many items and keeps the best. Raises `InputError` for k under 1, queries that are not finite or do not
    match the index, and a gallery of another size.
    """
    if k < 1:
        raise InputError(f"k = {k}: expected at least 1")
    _check_whole(index)
    source = _source(index, gallery)
    wide = checked_queries(
        W.detach().cpu() if isinstance(W, Tensor) else W, _gallery_of(torch.empty(0, index.width))
    )
    k = min(k, index.count)
    faiss = _faiss()
    with _threads(faiss):
        if wide.shape[0] == 0:
            items = torch.empty(0, k, dtype=torch.int64)
            scores, widened = items.double(), items.new_empty(0, dtype=torch.bool)
        elif index.kind == "flat":
            items, scores = _flat(index.handle, wide, k, _own_rows(index))
            widened = torch.zeros(len(wide), dtype=torch.bool)
        else:
            items, scores, widened = _approximate(faiss, index, wide, k, source)
    return _found(index, items, scores, index.exact, widened, W.device)


def shortlist_search(
    index: SearchIndex,
    F_r: Tensor,
    F_d: Tensor,
    F_m: Tensor,
    k: int,
    size: int,
    alpha: float = 0.1,
    beta: float = 0.4,
    *,
    gallery: Gallery | None = None,
) -> Found:
    """The two steps that the composed query makes needless, for comparison: the `size` items nearest to the
    anchored query `F_q`, of these the `min(k, size, N)` best by the debiased score.

    Approximate also on an exact index, but for `size` = N: an item that the Debias step would lift from
    behind place `size` is not seen. Raises and warns as `debiased_search`, for a size under k, and for
    ``ivfpq`` without `gallery`.
    """
    w = composed_query(F_r, F_d, F_m, alpha, beta)
    if size < k:
        raise InputError(f"size = {size}: expected a shortlist of at least k = {k}")
    source = _source(index, gallery)
    if source is None:
        raise InputError(
            "ivfpq keeps no features to debias a shortlist with; give gallery=prepare_gallery(...)"
        )
    head = search_index(index, anchored_query(F_r, F_d, alpha), size, gallery=gallery)
    items, scores = _rescored(w.detach().cpu(), head.items.cpu(), source, min(k, index.count))
    exact = head.exact and size >= index.count
    return _found(index, items, scores, exact, head.widened, w.device)


def _flat(flat: Any, wide: Tensor, k: int, source: Gallery) -> tuple[Tensor, Tensor]:
    """The exact best `k` by a FAISS flat index: items and scores.

    Proof. Scores `s'` in float32 are off by at most `e` (`cir_utils.search`, "The bound"). With `b` the
    `k`-th largest of them, `k` items have exact scores of at least `b - e`, while an item with `s' < b - 2e`
    scores less than that. So the best `k` are in the head as soon as its last score is below `b - 2e`, or the
    head is everything; until then the head doubles.
    """
    count = flat.ntotal
    scan = scan_of(wide, torch.float32)
    reach = 2 * scan.error(0.0, LONGEST)
    items = torch.empty(len(wide), k, dtype=torch.int64)
    scores = torch.empty(len(wide), k, dtype=torch.float64)
    open_ = torch.arange(len(wide))
    head = min(count, k + SLACK)
    while len(open_):
        later = []
        for some in open_.split(max(1, PENDING // head)):
            values, found = (torch.from_numpy(part) for part in flat.search(scan.rounded[some].numpy(), head))
            sure = values[:, -1].double() < values[:, k - 1].double() - reach[some]
            if head == count:
                sure = torch.ones_like(sure)
            items[some[sure]], scores[some[sure]] = _rescored(wide[some[sure]], found[sure], source, k)
            later.append(some[~sure])
        open_ = torch.cat(later)
        head = min(count, 2 * head)
    return items, scores


def _approximate(
    faiss: ModuleType, index: SearchIndex, wide: Tensor, k: int, source: Gallery | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What ``hnsw`` or ``ivfpq`` find: items, scores, and which queries needed a wider search."""
    used = index.settings
    if index.kind == "hnsw":
        head = k
        params = faiss.SearchParametersHNSW(efSearch=max(used["efSearch"], k))
    else:
        head = min(index.count, k * used["head"]) if source is not None else k
        params = faiss.SearchParametersIVF(nprobe=min(used["nprobe"], used["nlist"]))
    # Scaled by powers of two, which changes no order, so that no product overflows in float32.
    scale = _power(-torch.frexp(wide.abs().amax(dim=1)).exponent)
    asked = (wide * scale[:, None]).float().numpy()
    values, items = (torch.from_numpy(part) for part in index.handle.search(asked, head, params=params))
    widened = (items < 0).any(dim=1)
    if bool(widened.any()):
        if index.kind == "hnsw":
            # The graph's own rows: as good as it gets.
            flat = faiss.downcast_index(index.handle.storage)
            items[widened] = _flat(flat, wide[widened], head, _own_rows(index))[0]
        else:
            every = faiss.SearchParametersIVF(nprobe=used["nlist"])
            found = index.handle.search(asked[widened.numpy()], head, params=every)
            values[widened], items[widened] = (torch.from_numpy(part) for part in found)
    if source is None:
        return items, values.double() / scale[:, None], widened
    return *_rescored(wide, items, source, k), widened


def _rescored(wide: Tensor, items: Tensor, source: Gallery, k: int) -> tuple[Tensor, Tensor]:
    """The best `k` of each row of `items` `(Q, n)` by exact score, ties by gallery order; their scores."""
    items = items.sort(dim=1).values.to(source.device)
    wide = wide.to(source.device)
    queries = torch.arange(len(wide), device=source.device).repeat_interleave(items.shape[1])
    scores = exact_pairs(wide, queries, items.flatten(), source).view(items.shape)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return items.gather(1, order)[:, :k].cpu(), scores[:, :k].cpu()


def _gallery_of(rows: Tensor) -> Gallery:
    """Rows for `exact_pairs`: nothing is scanned."""
    return Gallery((rows,), torch.float32, rows.device, None, 0.0, 0.0)


def _source(index: SearchIndex, gallery: Gallery | None) -> Gallery | None:
    """Where rows for exact scores come from: the index itself, or for ``ivfpq`` `gallery`."""
    if gallery is not None and (gallery.count, gallery.width) != (index.count, index.width):
        raise InputError(
            f"gallery of {gallery.count} x {gallery.width} features, index of {index.count} x {index.width}; "
            "give the features that the index was built from"
        )
    return gallery if index.kind == "ivfpq" else _own_rows(index)


def _own_rows(index: SearchIndex) -> Gallery:
    """A view of the rows that FAISS holds, made anew for every search: additions move them."""
    faiss = _faiss()
    flat = index.handle if index.kind == "flat" else faiss.downcast_index(index.handle.storage)
    rows = faiss.rev_swig_ptr(flat.get_xb(), index.count * index.width).reshape(index.count, index.width)
    return _gallery_of(torch.from_numpy(rows))


def _found(
    index: SearchIndex, items: Tensor, scores: Tensor, exact: bool, widened: Tensor, device: torch.device
) -> Found:
    ids = [[index.ids[item] for item in row] for row in items.tolist()]
    return Found(items.to(device), scores.to(device), ids, exact, widened.to(device))


def _check_whole(index: SearchIndex) -> None:
    if index.handle.ntotal != index.count:
        raise InputError(
            f"index: {index.handle.ntotal} rows for {index.count} ids, an addition was broken off; load or "
            "build it again"
        )


# --- recall -----------------------------------------------------------------------------------------------


def recall(items: Tensor, best: Tensor) -> Tensor:
    """The share of `best` `(Q, k)` that is among `items` `(Q, n)`, `(Q,)` float64 from 0 to 1, whatever the
    order. Raises `InputError` for another number of queries, -1 and items that occur twice in a row."""
    if items.ndim != 2 or best.ndim != 2 or len(items) != len(best) or 0 in best.shape[1:]:
        raise InputError(
            f"recall needs two tensors of gallery positions, (Q, n) and (Q, k), got {tuple(items.shape)} and "
            f"{tuple(best.shape)}; give one row a query in both"
        )
    for name, rows in (("items", items), ("best", best)):
        rising = rows.sort(dim=1).values
        wrong = (rising[:, :1] < 0).any(dim=1) | (rising[:, 1:] == rising[:, :-1]).any(dim=1)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise InputError(f"{name}: row {row} holds -1 or an item twice; give a ranking's first items")
    both = torch.cat([items, best.to(items)], dim=1).sort(dim=1).values
    return (both[:, 1:] == both[:, :-1]).sum(dim=1).double() / best.shape[1]


def debiased_recall(
    items: Tensor,
    F_r: Tensor,
    F_d: Tensor,
    F_m: Tensor,
    gallery: Gallery,
    alpha: float = 0.1,
    beta: float = 0.4,
) -> Tensor:
    """Recall@k of found `items` `(Q, k)` against the exact debiased ranking of `gallery`
    (`cir_utils.search.debiased_topk`), `(Q,)` float64. Raises as `recall` and `debiased_topk`."""
    return recall(items, debiased_topk(F_r, F_d, F_m, gallery, items.shape[1], alpha, beta).items.to(items))


# --- files ------------------------------------------------------------------------------------------------


def save_index(index: SearchIndex, folder: Path | str) -> Path:
    """Write the index into `folder`: ``index.json`` (kind, ids, settings, hashes) and, beside it, the FAISS
    file that it names. Returns the path of ``index.json``.

    A FAISS file gets a new name each time and ``index.json`` is replaced last, so whoever is killed on the
    way leaves the index that was there before. The file of an earlier index is then removed. Raises
    `InputError` for a mapped index.
    """
    if index.mapped:
        # FAISS would write the lists of ivfpq as a reference to a file.
        raise InputError(
            "a mapped index is in its folder already; copy that folder, or load with mapped=False"
        )
    _check_whole(index)
    faiss, folder = _faiss(), Path(folder)
    name = f"{secrets.token_hex(8)}.faiss"
    digest, size = hashlib.sha256(), 0
    with open_atomic(folder / name) as stream:

        def write(data: bytes) -> int:
            nonlocal size
            digest.update(data)
            size += len(data)
            return stream.write(data)

        faiss.write_index(index.handle, faiss.PyCallbackIOWriter(write))
    about = {
        "format": "cir-index 1",
        "kind": index.kind,
        "width": index.width,
        "count": index.count,
        "settings": index.settings,
        "features": [{"count": count, "sha256": sha256} for count, sha256 in index.parts],
        "file": {"name": name, "bytes": size, "sha256": digest.hexdigest()},
        "faiss": faiss.__version__,
        "ids": index.ids,
    }
    write_json_atomic(folder / MANIFEST, about | {"own_sha256": own_sha256(about)})
    for old in folder.iterdir():
        left = re.fullmatch(rf"\.({FILE}|{MANIFEST})\..*\.part|{FILE}", old.name)
        if left and old.name != name:
            old.unlink(missing_ok=True)
    return folder / MANIFEST


def load_index(folder: Path | str, features: Features | None = None, *, mapped: bool = False) -> SearchIndex:
    """The index that `save_index` wrote into `folder`.

    Its file is read once and compared with its SHA-256, mapped or not (FAISS trusts what it reads). A
    `mapped` index then stays in the file: the system reads what a search touches and may let it go again;
    nothing can be added. `features`, where given, are compared with those that the index was built from.
    Raises `InputError` for files that are missing, damaged or do not belong together, other features, and
    where FAISS is not installed.
    """
    _faiss()  # before a large file is read for nothing
    path = Path(folder) / MANIFEST
    about = read_manifest(path)
    check_file(path, about)
    index = open_file(path, about, mapped)
    if features is not None:
        check_belongs(index, features)
    return index


def check_file(path: Path, about: Manifest) -> None:
    """`InputError` where the FAISS file beside ``index.json`` (`path`) is not the one that it describes."""
    file = path.parent / about.file.name
    try:
        if file.stat().st_size != about.file.bytes or sha256_file(file) != about.file.sha256:
            raise InputError(f"{file}: not the file that {path} describes; build the index again")
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); build the index again") from None


def open_file(path: Path, about: Manifest, mapped: bool) -> SearchIndex:
    """The index of a file that `check_file` has read: FAISS trusts what it opens."""
    faiss, file = _faiss(), path.parent / about.file.name
    # Lists are mapped in one way, plain vectors in another.
    flag = faiss.IO_FLAG_MMAP if about.kind == "ivfpq" else faiss.IO_FLAG_MMAP_IFC
    try:
        handle = faiss.read_index(str(file), flag if mapped else 0)
    except RuntimeError:
        raise InputError(f"{file}: FAISS {faiss.__version__} cannot read it; build the index again") from None
    of_kind = {"flat": faiss.IndexFlat, "hnsw": faiss.IndexHNSWFlat, "ivfpq": faiss.IndexIVFPQ}[about.kind]
    said = (about.width, about.count, faiss.METRIC_INNER_PRODUCT)
    if not isinstance(handle, of_kind) or (handle.d, handle.ntotal, handle.metric_type) != said:
        raise InputError(
            f"{file}: holds {type(handle).__name__} of {handle.ntotal} x {handle.d} where {path.name} says "
            f"{about.kind} of {about.count} x {about.width}; build the index again"
        )
    if about.kind == "ivfpq" and getattr(faiss.downcast_InvertedLists(handle.invlists), "filename", None):
        raise InputError(f"{file}: keeps its lists in another file; save the index with save_index")
    parts = [(part.count, part.sha256) for part in about.features]
    ids: list[ImageId] = list(about.ids)
    return SearchIndex(about.kind, about.width, ids, parts, about.settings, mapped, handle, set(ids))


def check_belongs(index: SearchIndex, features: Features) -> None:
    """`InputError` where `features` are not, to the bit in float32, those that the index was built from."""
    if tuple(features.shape) != (index.count, index.width):
        raise InputError(
            f"features {tuple(features.shape)}, index of {index.count} x {index.width}; build the index "
            "again, or add what is new"
        )
    start = 0
    for count, sha256 in index.parts:
        digest = hashlib.sha256()
        stop = start + count
        for block in _blocks(_part(features, start, stop)):
            digest.update(block.numpy().data)
        if digest.hexdigest() != sha256:
            raise InputError(
                f"features: rows {start} to {stop - 1} are not those of the index; build the index again"
            )
        start = stop


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Part(_Checked):
    count: PositiveInt
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class _File(_Checked):
    name: str = Field(pattern=rf"^{FILE}$")  # lies in the folder
    bytes: PositiveInt
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(_Checked):
    """``index.json``."""

    format: Literal["cir-index 1"]
    kind: Kind
    width: PositiveInt
    count: PositiveInt
    settings: dict[str, Annotated[int, Field(gt=0, lt=1 << 31)]]
    features: list[_Part]
    file: _File
    faiss: str
    ids: list[int | str]
    own_sha256: str


def read_manifest(path: Path) -> Manifest:
    """Checked content of ``index.json``."""
    content = read_json(path, "index")
    try:
        about = Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise InputError(f"index {path}: {where}: {first['msg']}; build the index again") from None
    rows = sum(part.count for part in about.features)
    for amiss, what in (
        (set(about.settings) != set(USUAL[about.kind]), f"settings are not those of {about.kind}"),
        (len(about.ids) != about.count, f"{len(about.ids)} ids where count is {about.count}"),
        (rows != about.count, f"features of {rows} rows where count is {about.count}"),
        (len(set(about.ids)) < len(about.ids), "an id occurs twice"),
        (about.own_sha256 != own_sha256(content), "it was changed since it was written"),
    ):
        if amiss:
            raise InputError(f"index {path}: {what}; build the index again")
    return about


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


# --- FAISS ------------------------------------------------------------------------------------------------


def _faiss() -> ModuleType:
    """FAISS, loaded when it is needed."""
    try:
        import faiss
    except ImportError:
        raise InputError(
            "an index needs the faiss package; install it with pip install 'cir-utils[index]'"
        ) from None
    return faiss


@contextmanager
def _threads(faiss: ModuleType) -> Iterator[None]:
    """FAISS works with as many threads as torch, and is then set as it was."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(torch.get_num_threads())
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
