"""An index in shards, for galleries that memory does not hold: searched one shard after the other, each
mapped from its file, and merged exactly.

A folder holds ``shards.json`` and one folder a shard, ``00000``, ``00001``, …, each an index as
`cir_utils.index.save_index` writes it: some of the gallery's rows, in gallery order. A search opens a shard,
asks it for the best `k`, lets it go and merges what it found into the best so far, so that a process holds
one shard's ids and whatever pages of its file the system has room for. All scores are `exact_scores`, and
ties go by gallery order within a shard and between them; the best `k` of ``flat`` shards are therefore those
of one ``flat`` index, item by item and score by score.

Opening costs the same for one query as for a thousand: ask many at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from torch import Tensor

from cir_utils.benchmarks import ImageId
from cir_utils.errors import InputError
from cir_utils.files import read_json, write_json_atomic
from cir_utils.index import (
    MANIFEST,
    Found,
    Kind,
    SearchIndex,
    _part,
    build_index,
    check_file,
    load_index,
    open_file,
    read_manifest,
    save_index,
    search_index,
)
from cir_utils.scoring import composed_query
from cir_utils.search import Features, Gallery

SHARDS = "shards.json"
#: Rows of a shard where nothing is said: 3 GB at D = 768.
ROWS = 1 << 20


@dataclass
class ShardedIndex:
    """An index in the folder ``folder``; make it with `open_shards`. ``counts``: rows of each shard."""

    folder: Path
    kind: Kind
    width: int
    counts: tuple[int, ...]
    #: Size and time of change of the FAISS files whose bytes were compared with their hash.
    checked: dict[Path, tuple[int, int]] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def exact(self) -> bool:
        """Whether its results are exact."""
        return self.kind == "flat"


def build_shards(
    features: Features,
    ids: Sequence[ImageId],
    folder: Path | str,
    kind: Kind = "flat",
    *,
    rows: int = ROWS,
    **settings: int,
) -> ShardedIndex:
    """Index `features` `(N, D)` (mapped ones for galleries beyond memory) in shards of `rows` rows each,
    below `folder`; see `cir_utils.index.build_index` for the others.

    Two shards are in memory at most. A shard that is there already, of the same features, ids, kind and
    settings, is kept: a build that was broken off goes on where it was. Raises `InputError` as `build_index`,
    for an id that two rows share, and for `rows` under 1."""
    folder, count = Path(folder), features.shape[0]
    if rows < 1:
        raise InputError(f"rows = {rows}: expected at least 1 row a shard")
    if len(ids) != count:
        raise InputError(f"{len(ids)} ids for {count} rows; give one id a row")
    if len(set(ids)) < count:
        twice = Counter(ids).most_common(1)[0][0]
        raise InputError(f"id {twice!r} occurs twice; every row needs an id of its own")
    counts = []
    for number, start in enumerate(range(0, count, rows)):
        stop = min(start + rows, count)
        part, names = _part(features, start, stop), list(ids[start:stop])
        place = folder / f"{number:05d}"
        if not _is_there(place, part, names, kind, settings):
            save_index(build_index(part, names, kind, **settings), place)
        counts.append(stop - start)
    about = {"format": "cir-shards 1", "kind": kind, "width": features.shape[1], "counts": counts}
    write_json_atomic(folder / SHARDS, about)
    return open_shards(folder)


def open_shards(folder: Path | str) -> ShardedIndex:
    """The index that `build_shards` wrote into `folder`. Files are compared with their hashes when a search
    first reads them. Raises `InputError` for a folder that holds no such index."""
    path = Path(folder) / SHARDS
    try:
        about = _Shards.model_validate(read_json(path, "index in shards"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise InputError(f"index {path}: {where}: {first['msg']}; build the index again") from None
    return ShardedIndex(Path(folder), about.kind, about.width, tuple(about.counts))


def debiased_search_shards(
    index: ShardedIndex,
    F_r: Tensor,
    F_d: Tensor,
    F_m: Tensor,
    k: int,
    alpha: float = 0.1,
    beta: float = 0.4,
    *,
    features: Features | None = None,
) -> Found:
    """The `min(k, N)` best by SDR-CIR's debiased score: `search_shards` with `composed_query`. Raises and
    warns as both."""
    return search_shards(index, composed_query(F_r, F_d, F_m, alpha, beta), k, features=features)


def search_shards(index: ShardedIndex, W: Tensor, k: int, *, features: Features | None = None) -> Found:
    """The `min(k, N)` items of the largest inner product with each query `W` `(Q, D)`, as far as the shards
    find them; `items` are positions in the whole gallery.

    ``ivfpq`` has no rows of its own to score what it finds exactly: give the `features` of the build, mapped,
    and only the rows in question are read. Raises `InputError` as `search_index`, and for shards that are
    missing, damaged or of another index."""
    if features is not None and tuple(features.shape) != (index.count, index.width):
        raise InputError(
            f"features {tuple(features.shape)}, index of {index.count} x {index.width}; give the features "
            "that the index was built from"
        )
    if k < 1:
        raise InputError(f"k = {k}: expected at least 1")
    k, first = min(k, index.count), 0
    items = torch.empty(len(W), 0, dtype=torch.int64, device=W.device)
    scores = torch.empty(len(W), 0, dtype=torch.float64, device=W.device)
    widened = torch.zeros(len(W), dtype=torch.bool, device=W.device)
    names: dict[int, ImageId] = {}
    for number, count in enumerate(index.counts):
        shard = _open(index, number)
        found = search_index(shard, W, k, gallery=_source(index, features, first, first + count))
        # What came before has the smaller positions: a stable sort keeps ties in gallery order.
        items = torch.cat([items, found.items + first], dim=1)
        scores, order = torch.cat([scores, found.scores], dim=1).sort(dim=1, descending=True, stable=True)
        scores, items = scores[:, :k], items.gather(1, order)[:, :k]
        widened |= found.widened
        new = dict(zip((found.items + first).flatten().tolist(), chain.from_iterable(found.ids), strict=True))
        kept = set(items.flatten().tolist())
        names = {place: name for place, name in (names | new).items() if place in kept}
        first += count
    ids = [[names[place] for place in row] for row in items.tolist()]
    return Found(items, scores, ids, index.exact, widened)


def _open(index: ShardedIndex, number: int) -> SearchIndex:
    """A shard, mapped; its file is read whole and compared with its hash the first time, and again when it
    has changed."""
    path = index.folder / f"{number:05d}" / MANIFEST
    about = read_manifest(path)
    said = (about.kind, about.width, about.count)
    if said != (index.kind, index.width, index.counts[number]):
        raise InputError(
            f"index {path}: {about.kind} of {about.count} x {about.width} where {SHARDS} says {index.kind} "
            f"of {index.counts[number]} x {index.width}; build the index again"
        )
    file = path.parent / about.file.name
    state = _state(file)
    if index.checked.get(file) != state:
        check_file(path, about)
        index.checked[file] = state
    return open_file(path, about, mapped=True)


def _state(file: Path) -> tuple[int, int]:
    try:
        stat = file.stat()
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); build the index again") from None
    return stat.st_size, stat.st_mtime_ns


def _source(index: ShardedIndex, features: Features | None, start: int, stop: int) -> Gallery | None:
    """The rows of a shard for exact scores, where it has none of its own; nothing of them is scanned."""
    if features is None or index.kind != "ivfpq":
        return None
    device = features.device if isinstance(features, Tensor) else torch.device("cpu")
    return Gallery((_part(features, start, stop),), torch.float32, device, None, 0.0, 0.0)


def _is_there(
    place: Path, features: Features, ids: list[ImageId], kind: Kind, settings: dict[str, int]
) -> bool:
    """Whether `place` holds the whole index of these."""
    if not (place / MANIFEST).exists():
        return False
    try:
        found = load_index(place, features, mapped=True)
    except InputError:
        return False
    return (found.kind, found.ids) == (kind, ids) and found.settings | settings == found.settings


class _Shards(BaseModel):
    """``shards.json``."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal["cir-shards 1"]
    kind: Kind
    width: PositiveInt
    counts: list[PositiveInt] = Field(min_length=1)
