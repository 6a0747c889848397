"""The fast path: exact best `k` of a gallery without the full score matrix, and certificates that say why.

`topk` ranks by inner product with any queries (SDR-CIR's debiased score through the composed query:
`debiased_topk`), `rrf_topk` does X^R's coarse stage on the summed gallery. Both score the gallery block by
block in low precision, keep all items that the error bound leaves in question, and score those few again.

**Exact** means what it means in `cir_utils.scoring`: the order of its `exact_scores` (float64, row by row) of
the stored features, ties by gallery order. The results here equal those of the plain forms there, item by
item, whatever the blocks, the device and the precision of the scan.

**The bound** (`Scan.error`). A scan computes `s' = fl(w'.x')` where `w'`, `x'` are the query `w` and the row
`x` rounded to the scan's precision. With `|.|` the length of a vector,

    w.x - w'.x' = w.(x - x') + (w - w').x'      so      |w.x - w'.x'| <= |w||x - x'| + |w - w'||x'|

by Cauchy and Schwarz; `|x - x'|` and `|w - w'|` are measured. The products of two bfloat16 (or float16)
values are exact in float32. A sum of `D` float32 terms in any order, with or without fused operations, is
off by at most `g sum|w'_i x'_i| <= g|w'||x'|`, `g = D u/(1 - D u)` (Higham, Accuracy and Stability of
Numerical Algorithms, 3.1), with `u` = 2**-24 for rounding to nearest and 2**-22 for matrix units, which may
cut instead of round and align a few bits short. Where the result is stored in 16 bits it is off by
`v|w'||x'|(1 + g)` more (`v` = 2**-8 for bfloat16, 2**-11 for float16). Values that underflow add at most
`4 D 2**-126` (float32 sums, flushed to zero) and the spacing of the smallest values of the result. The
float64 score itself is off by `(ceil(log2 D) + 1) 2**-53 |w||x|`. The sum of all is taken 0.1 % larger, for
the rounding of the bound itself. Queries are scaled by powers of two to lengths of at most 1, which changes
no significand, so that no value overflows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, NonNegativeInt, ValidationError
from torch import Tensor
from torch.nn.functional import pad

from cir_utils.errors import InputError
from cir_utils.scoring import (
    BLOCK_ELEMENTS,
    KAPPA,
    LENGTH_TOLERANCE,
    _check_kappa,
    _same_shape,
    _tree_sum,
    check_rows,
    composed_query,
)

#: Queries that are scanned together.
QUERIES = 1024
#: Scores of a block, on the CPU (they stay in its caches) and on a GPU (they keep it busy).
CPU_SCORES, CUDA_SCORES = 1 << 23, 1 << 28
#: Scores of one group: of every group the largest is looked at first.
GROUP = 32
#: Scores that `rrf_topk` holds at a time, of both lists: as many again are sorted.
RRF_SCORES = 1 << 25
#: Items in question that are kept before they are scored exactly; many only where many rows are alike.
PENDING = 1 << 22
#: The result of a 16-bit product is rounded to nearest: half a unit in the last place.
OUTPUT_ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
#: The spacing of the smallest values of a result.
SMALLEST = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
_STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_NUMPY = {torch.float64: "<f8", torch.float32: "<f4", torch.float16: "<f2", torch.bfloat16: "<i2"}


# --- galleries --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MappedFeatures:
    """Features `(N, D)` in a file, read through memory maps: a block or some rows at a time.

    Every reading makes its own map of what it reads and lets it go, so the process holds no more of the file
    than that (the pages stay in the system's cache as long as there is room).
    """

    path: Path
    offset: int  # of the first row, in bytes
    shape: tuple[int, int]
    dtype: torch.dtype

    def block(self, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` as a view of the file."""
        width = self.shape[1]
        kind = np.dtype(_NUMPY[self.dtype])
        place = self.offset + start * width * kind.itemsize
        # Mode "c" (changes stay in memory): torch takes no arrays that cannot be written.
        rows = torch.from_numpy(np.memmap(self.path, kind, "c", place, (stop - start, width)))
        return rows.view(self.dtype)

    def take(self, items: Tensor) -> Tensor:
        """The rows at `items`, a copy."""
        return self.block(0, self.shape[0]).index_select(0, items)


class _Stored(BaseModel):
    """What a safetensors header says about a tensor."""

    dtype: str
    shape: list[NonNegativeInt]
    data_offsets: tuple[NonNegativeInt, NonNegativeInt]


def map_features(path: Path | str, name: str = "features") -> MappedFeatures:
    """The tensor `name` of a safetensors file, mapped. Raises `InputError` for a file that is none, a name
    that it does not hold, and a tensor that is not `(rows, D)` of floating-point numbers."""
    path = Path(path)
    try:
        with path.open("rb") as stream:
            # The format: 8 bytes with the length of the header, the header (JSON), the data.
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length)) if length < path.stat().st_size else None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); name a safetensors file") from None
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise InputError(f"{path}: expected a safetensors file; write features with safetensors.torch")
    entry = header.get(name)
    if entry is None:
        have = ", ".join(key for key in sorted(header) if key != "__metadata__")
        raise InputError(f"{path}: no tensor {name!r} in it; it holds {have or 'nothing'}")
    try:
        about = _Stored.model_validate(entry)
    except ValidationError:
        raise InputError(
            f"{path}: {name!r} is not described as safetensors does it; write it again"
        ) from None
    dtype, shape, (start, end) = _STORED.get(about.dtype), about.shape, about.data_offsets
    if dtype is None or len(shape) != 2 or 0 in shape:
        raise InputError(
            f"{path}: {name!r} is {about.dtype} {tuple(shape)}, expected floating-point features (rows, D); "
            "write them so"
        )
    size = math.prod(shape) * dtype.itemsize
    if end - start != size or 8 + length + end > path.stat().st_size:
        raise InputError(f"{path}: shorter than its header says; copy it again")
    return MappedFeatures(path, 8 + length + start, (shape[0], shape[1]), dtype)


def mapped_array(array: np.memmap) -> MappedFeatures:
    """A `np.memmap` `(rows, D)` of float64, float32 or float16 as features. Raises `InputError` for another
    array, a part of one included (map the part's own place in the file)."""
    known = {"f8": torch.float64, "f4": torch.float32, "f2": torch.float16}
    dtype = known.get(f"{array.dtype.kind}{array.dtype.itemsize}")
    whole = isinstance(array, np.memmap) and not isinstance(array.base, np.memmap) and array.filename
    if dtype is None or not whole or array.ndim != 2 or not array.flags.c_contiguous:
        raise InputError(
            "expected a whole np.memmap (rows, D) of floating-point numbers in C order; map that part of the "
            "file itself"
        )
    return MappedFeatures(Path(str(array.filename)), array.offset, (array.shape[0], array.shape[1]), dtype)


Features = Tensor | MappedFeatures


@dataclass(frozen=True)
class Gallery:
    """A gallery made ready for scans; make it with `prepare_gallery`.

    `parts`: the stored features; a row's value is the float64 sum of its parts. `dtype`: precision of the
    scan. `scan` `(N, D)`: the rows in that precision, or None (they are made block by block). `residual`,
    `norm`: with `scan`, the largest `|x - x'|` and `|x'|` (see the module).
    """

    parts: tuple[Features, ...]
    dtype: torch.dtype
    device: torch.device
    scan: Tensor | None
    residual: float
    norm: float

    @property
    def count(self) -> int:
        return self.parts[0].shape[0]

    @property
    def width(self) -> int:
        return self.parts[0].shape[1]

    def rows(self, items: Tensor) -> Tensor:
        """The exact rows at `items`, `(len(items), D)` float64, a new tensor."""
        rows = self._part(0, items).double()
        for number in range(1, len(self.parts)):
            rows += self._part(number, items)
        return rows

    def float32_rows(self, items: Tensor) -> Tensor:
        """The rows at `items`, each value rounded once to float32."""
        return (self._part(0, items) if len(self.parts) == 1 else self.rows(items)).float()

    def _part(self, number: int, items: Tensor) -> Tensor:
        """A copy of rows of one part. (`index_select` copies whole rows, twice as fast as indexing.)"""
        part = self.parts[number]
        if isinstance(part, Tensor):
            return part.index_select(0, items)
        return part.take(items.cpu()).to(self.device)

    def block(self, start: int, stop: int) -> tuple[Tensor, float, float]:
        """Rows `start` to `stop` for the scan, with the largest `|x - x'|` and `|x'|` among them."""
        if self.scan is not None:
            return self.scan[start:stop], self.residual, self.norm
        return _rounded(self.parts, start, stop, self.dtype, self.device)


def scan_dtype(device: torch.device | str) -> torch.dtype:
    """The fastest precision for scans on a device: float16 on CUDA (as fast as bfloat16, and eight times as
    fine for values below 1), bfloat16 on a CPU with units for it (AMX or AVX-512), else float32."""
    if torch.device(device).type == "cuda":
        return torch.float16
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    units = able.get("amx_bf16", False) or able.get("avx512_bf16", False)
    return torch.bfloat16 if units and torch.backends.mkldnn.is_available() else torch.float32


def prepare_gallery(
    *parts: Features, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Gallery:
    """Make features `(N, D)` ready for scans in `dtype` (float32, bfloat16 or float16; `scan_dtype` of the
    device where None). Two parts, `prepare_gallery(C_a, I_a)`, are X^R's summed gallery.

    Tensors are kept where they are, with one rounded copy beside them (none where they have that precision
    already). Mapped features stay in their file: they are rounded block by block in every scan, on `device`
    (CPU where None), and take no memory. Raises `InputError` for features that are not of unit length or do
    not match, and another `dtype`.
    """
    if not parts:
        raise InputError("prepare_gallery: no features given; give one tensor or mapped file, or two to add")
    tensors = [part for part in parts if isinstance(part, Tensor)]
    for number, part in enumerate(parts):
        if isinstance(part, Tensor):
            check_rows(f"gallery part {number + 1}", part, parts[0].shape[1])
        if tuple(part.shape) != tuple(parts[0].shape):
            raise InputError(
                f"gallery part {number + 1}: shape {tuple(part.shape)} where {tuple(parts[0].shape)} was "
                "expected; give one row per gallery item in every part"
            )
    where = (
        torch.device(device) if device is not None else tensors[0].device if tensors else torch.device("cpu")
    )
    if any(part.device != where for part in tensors):
        raise InputError("gallery parts on different devices; move them to one device")
    kind = dtype if dtype is not None else scan_dtype(where)
    if kind not in OUTPUT_ROUNDING:
        raise InputError(f"scans in {kind} are not supported; choose float32, bfloat16 or float16")
    if len(tensors) < len(parts):
        return Gallery(parts, kind, where, None, 0.0, 0.0)
    count, width = parts[0].shape
    itself = len(parts) == 1 and tensors[0].dtype == kind
    scan = tensors[0] if itself else torch.empty(count, width, dtype=kind, device=where)
    residual = norm = 0.0
    step = max(1, 4 * BLOCK_ELEMENTS // width)
    for start in range(0, count, step):
        block, off, length = _rounded(parts, start, min(start + step, count), kind, where)
        if not itself:
            scan[start : start + step] = block
        residual, norm = max(residual, off), max(norm, length)
    return Gallery(parts, kind, where, scan, residual, norm)


def _rounded(
    parts: tuple[Features, ...], start: int, stop: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, float, float]:
    """Rows `start` to `stop` in `dtype`, with upper bounds on `|x - x'|` and `|x'|`."""
    blocks = []
    for number, part in enumerate(parts):
        rows = part[start:stop] if isinstance(part, Tensor) else part.block(start, stop).to(device)
        if not isinstance(part, Tensor):
            check_lengths(f"gallery part {number + 1}, rows from {start}", rows)
        blocks.append(rows)
    # float32 holds float16 and bfloat16 values, and a value less its 16-bit rounding, without error.
    wide = torch.float64 if len(parts) > 1 or blocks[0].dtype == torch.float64 else torch.float32
    exact = blocks[0].to(wide)
    for other in blocks[1:]:
        exact = exact + other.to(wide)
    rounded = exact.to(dtype)
    same = rounded.to(wide)
    norm = float(torch.linalg.vector_norm(same, dim=1).max())
    residual = 0.0 if same is exact else float(torch.linalg.vector_norm(exact - same, dim=1).max())
    return rounded, residual * (1 + 1e-4), norm * (1 + 1e-4)


def check_lengths(name: str, rows: Tensor) -> None:
    """`check_rows` of `rows` `(n, D)`, done quickly where nothing is amiss; raises as it does."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    off = (torch.linalg.vector_norm(rows, dim=1, dtype=wide) - 1).abs().max()
    if not float(off) <= LENGTH_TOLERANCE[rows.dtype] / 2:
        check_rows(name, rows)


# --- scans ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scan:
    """Some queries made ready for a scan: `exact` `(Q, D)` float64 and `rounded` in the scan's precision,
    both scaled by `scale` `(Q,)`, powers of two; `length`, `residual`: `|w|` and `|w - w'|`, scaled."""

    exact: Tensor
    rounded: Tensor
    scale: Tensor
    length: Tensor
    residual: Tensor

    def error(self, residual: float, norm: float) -> Tensor:
        """How far the scores of a scan can be from the exact ones, `(Q,)` float64: see the module."""
        width, dtype = self.exact.shape[1], self.rounded.dtype
        unit = 2.0**-24 if dtype == torch.float32 else 2.0**-22
        grow = width * unit / (1 - width * unit)
        out = OUTPUT_ROUNDING[dtype]
        rounded = self.length + self.residual
        bound = self.length * residual + self.residual * norm
        bound = bound + (grow + out * (1 + grow)) * rounded * norm
        bound = bound + (width.bit_length() + 1) * 2.0**-53 * self.length * (norm + residual)
        return bound * 1.001 + 4 * width * 2.0**-126 + SMALLEST[dtype]


def checked_queries(W: Tensor, gallery: Gallery) -> Tensor:
    """`W` `(Q, D)` as float64. Raises `InputError` for another width than the gallery's, another device, or
    values that are not finite."""
    if not isinstance(W, Tensor) or W.ndim != 2 or W.shape[1] != gallery.width:
        have = f"shape {tuple(W.shape)}" if isinstance(W, Tensor) else type(W).__name__
        raise InputError(
            f"queries: expected a tensor (Q, {gallery.width}) as wide as the gallery, got {have}; one query "
            "w is w[None]"
        )
    if W.device != gallery.device:
        raise InputError(f"queries on {W.device}, gallery on {gallery.device}; move them to one device")
    wide = W.double()
    if not bool(torch.isfinite(wide).all()):
        row = int((~torch.isfinite(wide)).any(dim=1).nonzero()[0])
        raise InputError(f"queries: row {row} holds NaN or infinity; score finite features")
    return wide


def _power(exponent: Tensor) -> Tensor:
    """2 to whole numbers, float64, exact (`torch.ldexp` does it in float32)."""
    powers = np.ldexp(1.0, exponent.clamp(-1000, 1000).cpu().numpy())
    return torch.from_numpy(powers).to(exponent.device)


def scan_of(wide: Tensor, dtype: torch.dtype) -> Scan:
    """Queries `(Q, D)` float64, scaled and rounded."""
    # The largest value first: the square of a large one would overflow.
    largest = wide.abs().amax(dim=1)
    scale = _power(-torch.frexp(largest).exponent)
    scale = scale * _power(-torch.frexp(torch.linalg.vector_norm(wide * scale[:, None], dim=1)).exponent)
    exact = wide * scale[:, None]
    rounded = exact.to(dtype)
    length = torch.linalg.vector_norm(exact, dim=1) * (1 + 1e-9)
    residual = torch.linalg.vector_norm(exact - rounded.double(), dim=1) * (1 + 1e-9)
    return Scan(exact, rounded, scale, length, residual)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Products are summed in float32, and float32 ones are not rounded first, whatever the process set."""
    matmul = torch.backends.cuda.matmul
    before = (
        torch.get_float32_matmul_precision(),
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
    )
    torch.set_float32_matmul_precision("highest")
    matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        matmul.allow_fp16_reduced_precision_reduction = before[1]
        matmul.allow_bf16_reduced_precision_reduction = before[2]


def _product(A: Tensor, X: Tensor, out: Tensor | None = None) -> Tensor:
    """Inner products `(Q, n)` of rows; one query goes through the matrix-vector product, which reads `X` once
    as fast as memory gives it."""
    if A.shape[0] > 1:
        return torch.mm(A, X.T, out=out)
    return torch.mv(X, A[0], out=out[0] if out is not None else None)[None]


def _block_rows(queries: int, gallery: Gallery) -> int:
    """Rows of a block: a multiple of `GROUP`, near the number of scores that suits the device."""
    scores = CUDA_SCORES if gallery.device.type == "cuda" else CPU_SCORES
    rows = scores // max(1, queries)
    if gallery.scan is None:  # the block itself takes memory too
        rows = min(rows, scores // gallery.width)
    rows = min(rows, gallery.count + GROUP, 1 << 20)
    return max(GROUP, rows // GROUP * GROUP)


def _below(values: Tensor, dtype: torch.dtype) -> Tensor:
    """`values` float64 in `dtype`, none larger than it was (a little smaller): thresholds stay safe."""
    if dtype == torch.float64:
        return values
    unit = max(OUTPUT_ROUNDING[dtype], 2.0**-24)
    return (values - 2 * unit * values.abs() - 2.0**-120 - 2 * SMALLEST[dtype]).to(dtype)


def _peaks(S: Tensor, group: int, positive: bool) -> Tensor:
    """The largest score of every group of columns, `(Q, n/group)`.

    On a CPU 16-bit scores are compared as integers, several times as fast: in that order the positive ones
    stand as they should, and above the negative ones. So where all thresholds are `positive` the right
    groups pass; the peak of a group without a positive score is then one of its scores, not the largest.
    """
    if group == 1:
        return S
    groups = S.view(S.shape[0], -1, group)
    if positive and S.dtype.itemsize == 2 and S.device.type == "cpu":
        return groups.view(torch.int16).amax(dim=2).view(S.dtype)
    return groups.amax(dim=2)


def _reaching(S: Tensor, peaks: Tensor, group: int, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where scores `S` `(Q, n)` are at least the row's `threshold` `(Q,)`: rows, columns, scores; sorted by
    row, then column."""
    rows, columns = (peaks >= threshold[:, None]).nonzero(as_tuple=True)
    if group == 1:
        return rows, columns, S[rows, columns]
    some = S.view(S.shape[0], -1, group)[rows, columns]
    which, place = (some >= threshold[rows, None]).nonzero(as_tuple=True)
    return rows[which], columns[which] * group + place, some[which, place]


def exact_pairs(W: Tensor, queries: Tensor, items: Tensor, gallery: Gallery) -> Tensor:
    """`exact_scores` of the pairs (`W[queries[i]]`, item `items[i]` of `gallery`): `(pairs,)` float64, equal
    to the bit. `W` `(Q, D)` float64; `queries` and `items` `(pairs,)` int64."""
    out = torch.empty(items.shape[0], dtype=torch.float64, device=W.device)
    step = max(1, BLOCK_ELEMENTS // gallery.width)
    for start in range(0, items.shape[0], step):
        some = slice(start, start + step)
        terms = gallery.rows(items[some])
        terms *= W.index_select(0, queries[some])
        out[some] = _tree_sum(terms.T)
    return out


# --- the best k -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TopK:
    """The best of a gallery: `items` `(Q, k)` int64, best first, `scores` `(Q, k)` float64 (`exact_scores` to
    the bit), `rescored` `(Q,)` int64: how many items were scored exactly."""

    items: Tensor
    scores: Tensor
    rescored: Tensor


def debiased_topk(
    F_r: Tensor,
    F_d: Tensor,
    F_m: Tensor,
    gallery: Gallery,
    k: int,
    alpha: float = 0.1,
    beta: float = 0.4,
) -> TopK:
    """The `min(k, N)` best by SDR-CIR's debiased score: `topk` with `composed_query`. Raises and warns as
    both."""
    return topk(composed_query(F_r, F_d, F_m, alpha, beta), gallery, k)


def topk(W: Tensor, gallery: Gallery, k: int) -> TopK:
    """The `min(k, N)` gallery items of the largest inner product with each query `W` `(Q, D)`: the first `k`
    of `rank_by(exact_scores(W, gallery))`, in memory that does not grow with `N`.

    Proof. `low` is the `k`-th largest of `s' - error` over items seen, so `k` items score at least that. An
    item is dropped only where `s' + error < low`, so it scores less than all of those. The rest are scored
    exactly. Raises `InputError` for k under 1 and queries that are not finite or do not match the gallery.
    """
    if k < 1:
        raise InputError(f"k = {k}: expected at least 1")
    wide = checked_queries(W, gallery)
    k = min(k, gallery.count)
    with _full_precision():
        found = [_topk_of(some, gallery, k) for some in wide.split(QUERIES)]
    return TopK(*(torch.cat(column) for column in zip(*found, strict=True)))


def _topk_of(wide: Tensor, gallery: Gallery, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """`topk` for one batch of queries."""
    scan = scan_of(wide, gallery.dtype)
    count = wide.shape[0]
    state = _Best(scan, gallery, k)
    rows = _block_rows(count, gallery)
    buffer = torch.empty(count, rows, dtype=gallery.dtype, device=gallery.device)
    for start in range(0, gallery.count if count else 0, rows):
        stop = min(start + rows, gallery.count)
        X, residual, norm = gallery.block(start, stop)
        if stop - start == rows:
            S = _product(scan.rounded, X, buffer)
        else:
            S = pad(_product(scan.rounded, X), (0, (start - stop) % GROUP), value=-torch.inf)
        state.see(S, start, stop, scan.error(residual, norm))
    return state.result(wide)


class _Best:
    """The items in question so far of one batch of queries, and what is known about the `k`-th best."""

    def __init__(self, scan: Scan, gallery: Gallery, k: int) -> None:
        count, device = scan.exact.shape[0], gallery.device
        self.scan, self.gallery, self.k = scan, gallery, k
        self.lows = torch.empty(count, 0, dtype=torch.float64, device=device)  # largest lower bounds
        self.floor = torch.full((count,), -torch.inf, dtype=torch.float64, device=device)
        self.waiting: list[Tensor] = []  # lower bounds that are not yet among `lows`
        self.updated = 0
        empty = torch.empty(0, dtype=torch.int64, device=device)
        self.pending: list[tuple[Tensor, Tensor, Tensor]] = []  # query, item, upper bound
        self.known = (empty, empty, empty.double())  # query, item, exact score (scaled)
        self.rescored = torch.zeros(count, dtype=torch.int64, device=device)

    def see(self, S: Tensor, start: int, stop: int, error: Tensor) -> None:
        """Look at scores `S` `(Q, n)` of rows `start` to `stop`; what exceeds the gallery is -inf."""
        group = GROUP
        while group > 1 and 4 * group * self.k > stop:
            group //= 2
        positive = bool((_below(self.floor - error, S.dtype) > 0).all())
        peaks = _peaks(S, group, positive)
        self.waiting.append(peaks.double() - error[:, None])
        width = sum(part.shape[1] for part in self.waiting)
        if stop >= 2 * self.updated or width > max(1024, 8 * self.k):
            self._update(stop)
        queries, columns, scores = _reaching(S, peaks, group, _below(self.floor - error, S.dtype))
        real = columns < stop - start
        queries, columns, scores = queries[real], columns[real], scores[real]
        self.pending.append((queries, columns + start, scores.double() + error[queries]))
        if sum(part[0].shape[0] for part in self.pending) > PENDING:
            self._settle()

    def _update(self, seen: int) -> None:
        bounds = torch.cat([self.lows, *self.waiting], dim=1)
        self.lows = bounds.topk(min(self.k, bounds.shape[1]), dim=1, sorted=False).values
        if self.lows.shape[1] == self.k:
            self.floor = torch.maximum(self.floor, self.lows.amin(dim=1))
        self.waiting, self.updated = [], seen

    def _settle(self) -> None:
        """Score what is pending exactly, and keep the best `k`."""
        if not self.pending:
            return
        queries, items, upper = (torch.cat(column) for column in zip(*self.pending, strict=True))
        self.pending = []
        inside = upper >= self.floor[queries]
        queries, items = queries[inside], items[inside]
        if items.shape[0] == 0:
            return
        if self.gallery.dtype != torch.float32:
            queries, items = self._refine(queries, items)
        self.rescored += torch.bincount(queries, minlength=self.rescored.shape[0])
        scores = exact_pairs(self.scan.exact, queries, items, self.gallery)
        # Earlier items stand first for every query, so ties stay in gallery order.
        columns = zip(self.known, (queries, items, scores), strict=True)
        queries, items, scores = (torch.cat(column) for column in columns)
        order, best, last = _best_of_each(queries, scores, self.k, self.rescored.shape[0])
        self.known = queries[order[best]], items[order[best]], scores[order[best]]
        self._raise(scores[order], last)

    def _refine(self, queries: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """The items that float32 scores leave in question: cheaper than exact ones, and a hundred times as
        fine as those of a 16-bit scan."""
        count = self.rescored.shape[0]
        by_query = torch.sort(queries, stable=True).indices
        queries, items = queries[by_query], items[by_query]
        each = torch.bincount(queries, minlength=count)
        fine = scan_of(self.scan.exact, torch.float32)
        scores = torch.empty(items.shape[0], dtype=torch.float32, device=items.device)
        start = 0
        for query, number in enumerate(each.tolist()):
            stop = start + number
            for some in range(start, stop, 4096):
                part = slice(some, min(some + 4096, stop))
                torch.mv(self.gallery.float32_rows(items[part]), fine.rounded[query], out=scores[part])
            start = stop
        length = 1.01 * len(self.gallery.parts)  # of a row: unit length, within the tolerance
        error = fine.error(2.0**-24 * length, length) / fine.scale
        wide = scores.double() / fine.scale[queries]
        order, _, last = _best_of_each(queries, wide - error[queries], self.k, count)
        self._raise((wide - error[queries])[order], last)
        inside = wide + error[queries] >= self.floor[queries]
        return queries[inside], items[inside]

    def _raise(self, scores: Tensor, last: Tensor) -> None:
        """The floor to `scores[last]`, the `k`-th best of every query that has so many."""
        known = torch.where(last >= 0, scores[last], -torch.inf)
        self.floor = torch.maximum(self.floor, known)

    def result(self, wide: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if wide.shape[0] == 0:
            none = torch.empty(0, self.k, dtype=torch.int64, device=wide.device)
            return none, none.double(), self.rescored
        self._update(self.gallery.count)
        self._settle()
        items, scores = (column.view(-1, self.k) for column in self.known[1:])
        return items, scores / self.scan.scale[:, None], self.rescored


def _best_of_each(queries: Tensor, scores: Tensor, k: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of a query and a score, sorted by query and then falling score (ties as given): their order,
    which places of it are among the query's best `k`, and the place of every query's `k`-th (-1 where it has
    fewer)."""
    order = torch.sort(scores, descending=True, stable=True).indices
    order = order[torch.sort(queries[order], stable=True).indices]
    each = torch.bincount(queries, minlength=count)
    first = torch.cumsum(each, dim=0) - each
    best = torch.arange(queries.shape[0], device=queries.device) - first[queries[order]] < k
    return order, best, torch.where(each >= k, first + k - 1, -1)


# --- X^R's coarse stage -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CoarseTopK:
    """The best by reciprocal rank fusion: `items` `(Q, k)` int64, best first; `S_t`, `S_v` `(Q, k)` float64,
    their summed similarities (`summed_scores` to the bit); `rescored` `(Q,)` int64: how many scores were
    computed exactly to find the order."""

    items: Tensor
    S_t: Tensor
    S_v: Tensor
    rescored: Tensor


def rrf_topk(C_t: Tensor, C_v: Tensor, gallery: Gallery, k: int, kappa: float = KAPPA) -> CoarseTopK:
    """The `min(k, N)` best of X^R's coarse stage for imagined captions `C_t`, `C_v` `(Q, D)`: the first `k`
    of `rank_by(rrf(summed_scores(C_t, ...), summed_scores(C_v, ...), kappa))`, some queries at a time.

    `gallery` is `prepare_gallery(C_a, I_a, dtype=torch.float32)`; other precisions are exact too, and slower:
    ranks far down the lists decide between items that stand alike in the head, and need fine scores.

    Proof. With scores known up to an error, an item's rank lies between 1 + the number of those surely
    greater and the number of those possibly greater or equal; both are counted in the sorted scores (values
    alone, no order of items). That bounds the fused score. An item outside the top `K` of both lists has its
    bound from the `K`-th scores; where the `k`-th largest lower bound is strictly above it, only the members
    of the two lists are in question (else `K` doubles), and of these the ones that reach that cut. Where
    bounds overlap in their order, ranks are made exact, the widest first: all items within the errors are
    scored exactly. Raises as `summed_scores`, for k under 1 and kappa under 0.
    """
    _check_kappa(kappa)
    if k < 1:
        raise InputError(f"k = {k}: expected at least 1")
    _same_shape(C_t=C_t, C_v=C_v)
    wide = torch.stack([checked_queries(C_t, gallery), checked_queries(C_v, gallery)], dim=1)  # (Q, 2, D)
    count, n = wide.shape[0], gallery.count
    k = min(k, n)
    items = torch.empty(count, k, dtype=torch.int64, device=gallery.device)
    sums = torch.empty(count, 2, k, dtype=torch.float64, device=gallery.device)
    rescored = torch.zeros(count, dtype=torch.int64, device=gallery.device)
    step = max(1, RRF_SCORES // (2 * n))
    # One place for the scores of all steps: fresh memory costs as much as sorting what is put there.
    scores = torch.empty(2 * min(step, count), n, device=gallery.device)
    rising = torch.empty_like(scores)
    with _full_precision(), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for start in range(0, count, step):
            some = slice(start, min(start + step, count))
            queries = wide[some].reshape(-1, gallery.width)
            scan = scan_of(queries, gallery.dtype)
            S, R = scores[: len(queries)], rising[: len(queries)]
            error = _all_scores(scan, gallery, S)
            _sort_rows(S, R, pool)
            low, ordered = (rows.view(-1, 2, n).cpu().numpy() for rows in (S, R))
            lists = [_Lists(*row) for row in zip(low, ordered, error.view(-1, 2).cpu().numpy(), strict=True)]
            rows = [_rrf_row(one, k, kappa) for one in lists]
            items[some], rescored[some] = _answered(rows, scan.exact, gallery)
            for row in range(some.start, some.stop):
                of_best = gallery.rows(items[row])
                for side in (0, 1):
                    sums[row, side] = _tree_sum((of_best * wide[row, side]).T)
    return CoarseTopK(items, sums[:, 0], sums[:, 1], rescored)


def _all_scores(scan: Scan, gallery: Gallery, S: Tensor) -> Tensor:
    """Scores of a few queries with the whole gallery, into `S` `(Q, N)` float32, and their error `(Q,)`."""
    residual = norm = 0.0
    step = max(1, CPU_SCORES // gallery.width) if gallery.scan is None else gallery.count
    for start in range(0, gallery.count, step):
        X, off, length = gallery.block(start, min(start + step, gallery.count))
        residual, norm = max(residual, off), max(norm, length)
        if X.shape[0] == gallery.count and S.dtype == X.dtype:
            torch.mm(scan.rounded, X.T, out=S)
        else:
            S[:, start : start + step] = scan.rounded @ X.T
    return scan.error(residual, norm)


def _sort_rows(S: Tensor, ordered: Tensor, pool: ThreadPoolExecutor) -> None:
    """The values of every row of `S` `(Q, N)` float32, rising, into `ordered`. On the CPU numpy sorts with
    vector instructions, twenty times as fast as `torch.sort`."""
    if S.device.type != "cpu":
        ordered.copy_(S.sort(dim=1).values)
        return

    values, rising = S.numpy(), ordered.numpy()

    def one(row: int) -> None:  # numpy lets the other threads run, and starts none of its own
        rising[row] = values[row]
        rising[row].sort()

    list(pool.map(one, range(len(values))))


#: What a query whose ranking is being found asks for: exact scores of items with its lists 0 and 1; the
#: answer is the same two arrays of scores, and the result the ranking.
_Asks = Generator[list[np.ndarray], list[np.ndarray], np.ndarray]


def _answered(rows: list[_Asks], queries: Tensor, gallery: Gallery) -> tuple[Tensor, Tensor]:
    """The rankings `(Q, k)` of some queries, and how many exact scores each of them needed `(Q,)`. What all
    of them ask for in one round is computed together. `queries` `(2Q, D)`: the lists' queries by turns."""
    best: list[np.ndarray] = [np.empty(0, np.int64)] * len(rows)
    rescored = torch.zeros(len(rows), dtype=torch.int64, device=gallery.device)

    def go_on(row: int, answer: list[np.ndarray] | None) -> tuple[int, list[np.ndarray]] | None:
        try:
            return row, rows[row].send(answer)  # type: ignore[arg-type]  # None starts it
        except StopIteration as end:
            best[row] = end.value
            return None

    asked = [one for one in map(go_on, range(len(rows)), [None] * len(rows)) if one]
    while asked:
        which = [2 * row + side for row, _ in asked for side in (0, 1)]
        wanted = [items for _, both in asked for items in both]
        sizes = np.array([len(items) for items in wanted])
        pairs = torch.from_numpy(np.repeat(which, sizes)).to(gallery.device)
        places = torch.from_numpy(np.concatenate(wanted)).to(gallery.device)
        exact = exact_pairs(queries, pairs, places, gallery).cpu().numpy()
        rescored += torch.bincount(pairs // 2, minlength=len(rows))
        parts = np.split(exact, np.cumsum(sizes)[:-1])
        answers = [parts[2 * number : 2 * number + 2] for number in range(len(asked))]
        asked = [one for one in map(go_on, [row for row, _ in asked], answers) if one]
    return torch.from_numpy(np.stack(best)).to(gallery.device), rescored


@dataclass(frozen=True)
class _Lists:
    """One query's two lists of scores: `low`, `ordered` `(2, N)` float32, the scan's scores and the same
    sorted, `error` `(2,)`."""

    low: np.ndarray
    ordered: np.ndarray
    error: np.ndarray

    def window(self, side: int, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores below and above which others surely lie below and above those of `items`."""
        low = self.low[side, items].astype(np.float64)
        reach = 2 * self.error[side]
        down = np.nextafter((low - reach).astype(np.float32), np.float32(-np.inf))
        return down, np.nextafter((low + reach).astype(np.float32), np.float32(np.inf))

    def above(self, side: int, values: np.ndarray) -> np.ndarray:
        """How many scores are greater than each of `values`."""
        return self.low.shape[1] - np.searchsorted(self.ordered[side], values, "right")

    def near(self, side: int, items: np.ndarray, among: np.ndarray | None) -> np.ndarray:
        """The items that lie in the windows of `items` in one list, rising. `among`: items that hold all
        these, rising (None: look in the whole gallery)."""
        down, up = self.window(side, items)
        values = self.low[side] if among is None else self.low[side, among]
        if len(items) <= 4:
            inside = np.zeros(len(values), dtype=bool)
            for begin, end in zip(down, up, strict=True):
                inside |= (values >= begin) & (values <= end)
        else:  # in some window: more windows begin at or below the value than end below it
            inside = np.searchsorted(np.sort(down), values, "right") > np.searchsorted(np.sort(up), values)
        near = np.flatnonzero(inside)
        return near if among is None else among[near]

    def ranks(self, side: int, items: np.ndarray, near: np.ndarray, exact: np.ndarray) -> np.ndarray:
        """Exact ranks of `items` in one list, from the exact scores of all that are `near` them."""
        order = np.argsort(-exact, kind="stable")
        place = np.empty(len(near), dtype=np.int64)
        place[order] = np.arange(len(near))
        # Of the others, exactly those above the window are before it.
        up = self.window(side, items)[1]
        sure = np.sort(self.low[side, near])
        others = self.above(side, up) - (len(near) - np.searchsorted(sure, up, "right"))
        return 1 + others + place[np.searchsorted(near, items)]


def _rrf_row(lists: _Lists, k: int, kappa: float) -> _Asks:
    """`rrf_topk` for one query: the `k` best items, best first, once `_answered` gives what it asks for."""
    n = lists.low.shape[1]
    top = min(n, 2 * k)
    while True:
        edge = lists.ordered[:, n - top]
        heads = [np.flatnonzero(lists.low[side] >= edge[side]) for side in (0, 1)]
        union = np.union1d(*heads)
        first, last = np.empty((2, 2, len(union)), dtype=np.int64)  # the best and the worst rank it can have
        outside = 0.0
        for side in (0, 1):
            down, up = lists.window(side, union)
            first[side] = 1 + lists.above(side, up)
            last[side] = lists.above(side, np.nextafter(down, np.float32(-np.inf)))
            beyond = np.nextafter(np.float32(edge[side] + 2 * lists.error[side]), np.float32(np.inf))
            outside += float(1 / (kappa + 1 + lists.above(side, beyond)))
        # Rounded division and addition are monotone, so these bounds hold for the rounded scores too.
        high, low = _fused(first, kappa), _fused(last, kappa)
        cut = np.partition(low, len(low) - k)[len(low) - k]  # the union holds at least `top >= k` items
        if len(union) == n or cut > outside:
            break
        top = min(n, 2 * top)
    keep = high >= cut
    items, first, last = union[keep], first[:, keep], last[:, keep]
    while True:
        high, low = _fused(first, kappa), _fused(last, kappa)
        order = np.lexsort((items, -low, -high))
        unsure, run = _unsure(high[order], low[order], k)
        if not unsure.any():
            return items[order[:k]]
        chosen, run = order[unsure], run[unsure]
        # Of every run, what moves the fused score most: an open rank in a head keeps those beside it unsure
        # whose own rank far down the other list does not matter once it is known.
        width = 1 / (kappa + first[:, chosen]) - 1 / (kappa + last[:, chosen])
        most = np.zeros(run[-1] + 1)
        np.maximum.at(most, run, width.max(axis=0))
        unknown = [chosen[(width[side] > 0) & (width[side] >= most[run] / 8)] for side in (0, 1)]
        near = []
        for side in (0, 1):
            here = items[unknown[side]]
            head = lists.window(side, here)[0] >= edge[side]
            groups = (here[head], heads[side]), (here[~head], None)
            found = [lists.near(side, some, among) for some, among in groups if len(some)]
            near.append(np.unique(np.concatenate([here[:0], *found])))
        exact = yield near
        for side in (0, 1):
            some = unknown[side]
            first[side, some] = last[side, some] = lists.ranks(side, items[some], near[side], exact[side])


def _fused(ranks: np.ndarray, kappa: float) -> np.ndarray:
    return 1 / (kappa + ranks[0].astype(np.float64)) + 1 / (kappa + ranks[1].astype(np.float64))


def _unsure(high: np.ndarray, low: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Which items, sorted by falling upper bound, are not exact and share a run of overlapping bounds that
    begins before place `k`; and the number of every item's run."""
    lowest = np.minimum.accumulate(low)
    begins = np.append(True, lowest[:-1] > high[1:])  # strictly below all before it
    starts = np.flatnonzero(begins)
    run = np.cumsum(begins) - 1
    size = np.diff(np.append(starts, len(high)))
    return (size[run] > 1) & (starts[run] < k) & (low < high), run
