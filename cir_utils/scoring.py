"""The formulas of SDR-CIR and X^R: plain reference forms, and exact faster ones.

Features are tensors `(rows, D)` of unit length in float64, float32, float16 or bfloat16, on one device;
scores are float64 `(Q, N)` on that device (`Q` queries, `N` gallery rows, `D` feature width). Higher is
better.

**Exact** means here: the order of the float64 scores of the stored features, as `exact_scores` computes them,
ties by gallery order. `exact_scores` works row by row with element-wise operations alone, so a score does not
depend on its neighbours, on blocks or on the device; a matrix product would give two equal rows scores that
differ in the last bit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from cir_utils.errors import InputError

KAPPA = 60.0
LAMBDA = 0.15
ALPHA_MAX = 0.3
BETA_RANGE = (0.3, 0.5)
#: Below this length the direction of an anchored query is mostly rounding noise of the stored features.
MIN_QUERY_NORM = 1e-3
#: How far from 1 the length of a stored feature may be: the rounding of its elements, with room to spare.
LENGTH_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}
BLOCK_ELEMENTS = 1 << 18  # 2 MB of float64: a block stays in a core's cache
SMALL_ELEMENTS = 1 << 15  # up to here torch adds with one thread, and numpy's calls cost less
SORT_ELEMENTS = 1 << 22  # 34 rows of CIRCO's gallery: what is needed for a moment is small beside the scores

Normalisation = Literal["minmax", "clamp", "softmax"]
Display = Literal["raw", "clip", "softmax"]


class SettingWarning(UserWarning):
    """A setting outside the range in which the paper's formula is meant to work."""


# --- checks -----------------------------------------------------------------------------------------------


def check_features(name: str, features: Tensor, width: int | None = None) -> Tensor:
    """Return `features` `(rows, D)` as float64 after checking them.

    Raises as `check_rows`.
    """
    check_rows(name, features, width)
    return features.double()


def check_rows(name: str, features: Tensor, width: int | None = None) -> None:
    """Check `features` `(rows, D)` block by block, without a float64 copy of a whole gallery.

    Raises `InputError` that names `name` when they are not a two-dimensional floating tensor with at least
    one row, hold NaN or infinity, are not of unit length (within `LENGTH_TOLERANCE` of their dtype), or are
    not `width` wide.
    """
    if not isinstance(features, Tensor) or features.dtype not in LENGTH_TOLERANCE:
        have = str(features.dtype) if isinstance(features, Tensor) else type(features).__name__
        raise InputError(
            f"{name}: expected a floating-point torch tensor (rows, D), got {have}; convert it first"
        )
    if features.ndim != 2 or 0 in features.shape:
        raise InputError(
            f"{name}: expected features (rows, D) with at least one row, got shape {tuple(features.shape)}; "
            "one vector v is v[None]"
        )
    if width is not None and features.shape[1] != width:
        raise InputError(
            f"{name}: {features.shape[1]} values wide where {width} were expected; encode pictures and texts "
            "with the same CLIP model"
        )
    if features.numel() <= BLOCK_ELEMENTS:
        lengths = torch.linalg.vector_norm(features.double(), dim=1)
    else:
        rows = max(1, BLOCK_ELEMENTS // features.shape[1])
        # Filled in place: small results kept between the blocks' copies would keep those from being given
        # back.
        lengths = torch.empty(features.shape[0], dtype=torch.float64, device=features.device)
        for block, some in zip(features.split(rows), lengths.split(rows), strict=True):
            torch.linalg.vector_norm(block.double(), dim=1, out=some)
    off = lengths.sub(1).abs_()
    if float(off.max()) <= LENGTH_TOLERANCE[features.dtype]:  # NaN is not
        return
    if not bool(torch.isfinite(lengths).all()):
        row = int((~torch.isfinite(lengths)).nonzero()[0])
        raise InputError(f"{name}: row {row} holds NaN or infinity; encode it again")
    row = int(off.argmax())
    raise InputError(
        f"{name}: row {row} has length {float(lengths[row]):.6g} where unit length was expected; divide "
        "every row by its length (torch.nn.functional.normalize)"
    )


def check_settings(alpha: float, beta: float) -> None:
    """Check the two settings of SDR-CIR; 0 switches a step off and is always accepted (the paper's
    ablations).

    Raises `InputError` for alpha outside [0, 1] or beta negative or not finite. Warns (`SettingWarning`) for
    alpha over 0.3, where the reference outweighs the text, and for beta outside 0.3 to 0.5.
    """
    if not 0 <= alpha <= 1:
        raise InputError(
            f"alpha = {alpha}: expected a number from 0 to 1 (the published ones are 0.05 to 0.2)"
        )
    if not (math.isfinite(beta) and beta >= 0):
        raise InputError(
            f"beta = {beta}: expected a finite number from 0 on (the published ones are 0.35 to 0.5)"
        )
    if alpha > ALPHA_MAX:
        warnings.warn(
            f"alpha = {alpha} is over {ALPHA_MAX}: the reference image outweighs the modification text",
            SettingWarning,
            stacklevel=3,
        )
    low, high = BETA_RANGE
    if beta != 0 and not low <= beta <= high:
        warnings.warn(
            f"beta = {beta} is outside {low} to {high}, the range that is known to work",
            SettingWarning,
            stacklevel=3,
        )


def _check_scores(name: str, scores: Tensor) -> Tensor:
    """Scores `(Q, N)` as float64; `InputError` for another shape, NaN or infinity."""
    if not isinstance(scores, Tensor) or scores.ndim != 2 or scores.shape[1] == 0:
        have = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise InputError(
            f"{name}: expected a tensor of scores (Q, N) with N > 0, got {have}; one row s is s[None]"
        )
    wide = scores.double()
    if not all(bool(torch.isfinite(rows).all()) for rows in _row_blocks(wide)):
        row, column = (~torch.isfinite(wide)).nonzero()[0].tolist()
        raise InputError(
            f"{name}: NaN or infinity for query {row}, gallery item {column}; score finite features"
        )
    return wide


def _same_place(**tensors: Tensor) -> None:
    """`InputError` when two tensors lie on different devices."""
    places = {name: tensor.device for name, tensor in tensors.items()}
    if len(set(places.values())) > 1:
        where = ", ".join(f"{name} on {place}" for name, place in places.items())
        raise InputError(f"tensors on different devices ({where}); move them to one device")


def _same_shape(**tensors: Tensor) -> None:
    """`InputError` when two tensors differ in shape or device."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        what = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(
            f"shapes differ where they should be equal: {what}; give one row per query in every tensor"
        )
    _same_place(**tensors)


# --- products and order -----------------------------------------------------------------------------------


def exact_scores(A: Tensor, B: Tensor) -> Tensor:
    """Inner products `(Q, N)` float64 of the rows of `A` `(Q, D)` and `B` `(N, D)`, the same for any block or
    batch.

    The products of a pair are added in a fixed tree (halves folded onto each other), so one pair's score
    depends on that pair alone: equal rows have equal scores on every device. The rounding error is at most
    `(ceil(log2 D) + 1) * 2**-53 * |a|*|b|`. Raises `InputError` when widths or devices differ.
    """
    if not isinstance(A, Tensor) or not isinstance(B, Tensor):
        raise InputError(
            f"inner products need two tensors, got {type(A).__name__}, {type(B).__name__}; torch.from_numpy "
            "makes one of an array"
        )
    if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[1]:
        raise InputError(
            f"inner products need two tensors (rows, D) of one width, got {tuple(A.shape)}, {tuple(B.shape)}"
        )
    _same_place(A=A, B=B)
    return _scores_by_block(A, B.shape[0], lambda rows: B[rows].double())


def summed_scores(C: Tensor, C_a: Tensor, I_a: Tensor) -> Tensor:
    """X^R's aligned sums `(Q, N)` float64: `exact_scores(C, summed_gallery(C_a, I_a))` to the bit, with no
    more than a block of the summed gallery in memory (all of it takes 760 MB for CIRCO at `D` = 768).

    `C` `(Q, D)` are imagined captions, `C_t` for `S^t` or `C_v` for `S^v`. Raises as `four_cosines`.
    """
    check_rows("C", C)
    check_rows("C_a", C_a, C.shape[1])
    check_rows("I_a", I_a, C.shape[1])
    _same_shape(C_a=C_a, I_a=I_a)
    _same_place(C=C, C_a=C_a)
    return _scores_by_block(C, C_a.shape[0], lambda rows: C_a[rows].double() + I_a[rows].double())


def _scores_by_block(A: Tensor, count: int, gallery_rows: Callable[[slice], Tensor]) -> Tensor:
    """`exact_scores` of `A` `(Q, D)` and a gallery of `count` rows, given in float64 by `gallery_rows`."""
    queries = A.double()
    out = torch.empty(A.shape[0], count, dtype=torch.float64, device=A.device)
    rows = max(1, BLOCK_ELEMENTS // max(1, A.shape[1]))
    for start in range(0, count, rows):
        block = gallery_rows(slice(start, start + rows)).T.contiguous()
        for query in range(A.shape[0]):
            out[query, start : start + rows] = _tree_sum(block * queries[query][:, None])
    return out


def _tree_sum(terms: Tensor) -> Tensor:
    """Sums over the first axis of `terms` `(D, rows)`, overwriting them: the second half is added onto the
    first until one row is left (of an odd number, the middle one waits). Each column's sum depends on that
    column alone."""
    if terms.device.type == "cpu" and terms.numel() <= SMALL_ELEMENTS:
        rows = terms.numpy()
        while len(rows) > 1:
            rest = len(rows) // 2
            np.add(rows[:rest], rows[-rest:], out=rows[:rest])
            rows = rows[:-rest]
        return torch.from_numpy(rows[0])
    while terms.shape[0] > 1:
        terms, second = terms.chunk(2)  # of an odd number, the first half is one longer
        terms.narrow(0, 0, second.shape[0]).add_(second)
    return terms[0]


def _row_blocks(scores: Tensor) -> Sequence[Tensor]:
    """`scores` `(Q, N)` in views of as many rows as make a block."""
    return scores.split(max(1, SORT_ELEMENTS // max(1, scores.shape[1])))


def rank_by(scores: Tensor) -> Tensor:
    """Gallery positions `(Q, N)` int64, best first: falling score, ties by gallery order."""
    wide = _check_scores("scores", scores)
    order = torch.empty(wide.shape, dtype=torch.int64, device=wide.device)
    for some, rows in zip(_row_blocks(wide), _row_blocks(order), strict=True):
        rows.copy_(torch.sort(some, dim=1, descending=True, stable=True).indices)
    return order


def first_places(scores: Tensor, k: int) -> Tensor:
    """The first `k` columns of `rank_by(scores)`, `(Q, k)` int64, without sorting whole rows (for fewer than
    3k equal scores at the cut, beyond which the choice among equals is not the gallery's)."""
    places = scores.topk(min(4 * k, scores.shape[1]), dim=1).indices.sort(dim=1).values
    values = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    return places.gather(1, values.indices)[:, :k]


def ranks_of(scores: Tensor) -> Tensor:
    """Ranks `(Q, N)` int64 from 1: 1 + the number of greater scores + the number of equal ones earlier in the
    gallery.
    """
    ranks = rank_by(scores)
    places = torch.arange(1, ranks.shape[1] + 1, device=ranks.device)
    for rows in _row_blocks(ranks):
        order = rows.clone()
        rows.scatter_(1, order, places.expand_as(order))
    return ranks


def display_scores(scores: Tensor, how: Display = "raw") -> Tensor:
    """Scores `(Q, N)` made pleasant to read: as they are, clipped at 0 from below, or softmax over the
    gallery.

    For display alone: rank by the raw scores, always. (Clipping makes ties of all negative scores, softmax
    may round small differences away.) Raises `InputError` for another `how`.
    """
    if how not in get_args(Display):
        raise InputError(f"display {how!r} is unknown; choose one of {', '.join(get_args(Display))}")
    wide = _check_scores("scores", scores)
    return wide.clamp(min=0) if how == "clip" else wide.softmax(dim=1) if how == "softmax" else wide


# --- SDR-CIR ----------------------------------------------------------------------------------------------


def anchored_query(F_r: Tensor, F_d: Tensor, alpha: float) -> Tensor:
    """`F_q = (1 - alpha) F_d + alpha F_r` at unit length, `(Q, D)` float64 (SDR-CIR, Anchor step).

    Ranking by cosine does not see the length of `F_q`, and unit length makes the cosine an inner product.
    Raises `InputError` for features that are not of unit length, and where the two cancel out (`|F_q|` under
    `MIN_QUERY_NORM`).
    """
    return _anchor(F_r, F_d, alpha)[0]


def _anchor(F_r: Tensor, F_d: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """`F_q / |F_q|` `(Q, D)` and `|F_q|` `(Q, 1)`."""
    d = check_features("F_d", F_d)
    r = check_features("F_r", F_r, d.shape[1])
    _same_shape(F_r=r, F_d=d)
    q = (1 - alpha) * d + alpha * r
    norm = _tree_sum(q.square().T.contiguous()).sqrt()[:, None]
    if float(norm.min()) < MIN_QUERY_NORM:
        row = int(norm.argmin())
        raise InputError(
            f"query {row}: F_d and F_r cancel out at alpha = {alpha} (|F_q| = {float(norm[row]):.2g}), so "
            "F_q has no direction; choose another alpha"
        )
    return q / norm, norm


def debiased_scores(
    F_r: Tensor, F_d: Tensor, F_m: Tensor, gallery: Tensor, alpha: float = 0.1, beta: float = 0.4
) -> Tensor:
    """SDR-CIR's score `S_f = (1 + beta) S_q - beta (S_d - S_m)`, `(Q, N)` float64: three gallery products.

    `S_q = cos(F_q, x)` with `F_q = (1 - alpha) F_d + alpha F_r`, `S_d = cos(F_d, x)`, `S_m = cos(F_m, x)` for
    every row `x` of `gallery` `(N, D)`; `F_r`, `F_d`, `F_m` are `(Q, D)`. alpha = 0 switches the Anchor step
    off, beta = 0 the Debias step. The score lies in [-(1 + 3 beta), 1 + 3 beta] and may be negative. Raises
    and warns as `composed_query`.
    """
    check_settings(alpha, beta)
    q = anchored_query(F_r, F_d, alpha)
    d, m = F_d.double(), check_features("F_m", F_m, q.shape[1])
    _same_shape(F_d=d, F_m=m)
    check_rows("gallery", gallery, q.shape[1])
    S_q, S_d, S_m = (exact_scores(side, gallery) for side in (q, d, m))
    return (1 + beta) * S_q - beta * (S_d - S_m)


def composed_query(F_r: Tensor, F_d: Tensor, F_m: Tensor, alpha: float = 0.1, beta: float = 0.4) -> Tensor:
    """The one vector `w` `(Q, D)` float64 whose inner product with a gallery row is SDR-CIR's score `S_f`.

    `w = (1 + beta) F_q/|F_q| - beta F_d + beta F_m` (not of unit length): `exact_scores(w, gallery)` equals
    `debiased_scores` up to `agreement_bound`, with one gallery product instead of three, and any index for
    the largest inner product serves it. Raises `InputError` for features that are not of unit length, differ
    in shape or device, or cancel out in `F_q`, and for settings out of range; warns (`SettingWarning`) for
    alpha over 0.3 and beta outside 0.3 to 0.5 (0 is "switched off").
    """
    check_settings(alpha, beta)
    q = anchored_query(F_r, F_d, alpha)
    d, m = F_d.double(), check_features("F_m", F_m, q.shape[1])
    _same_shape(F_d=d, F_m=m)
    return (1 + beta) * q - beta * d + beta * m


def agreement_bound(width: int, beta: float) -> float:
    """How far `exact_scores(composed_query(...), x)` and `debiased_scores(...)` can lie apart, for features
    `width` wide.

    Both add `ceil(log2 D)` levels of rounded sums over terms of total length at most `1 + 3 beta` (times the
    length tolerance of the features); a few more roundings combine them.
    """
    levels = max(width - 1, 0).bit_length()
    return (2 * levels + 16) * (1 + 3 * beta) * 1.05 * 2.0**-53


def triangle_weights(F_r: Tensor, F_d: Tensor, alpha: float, beta: float) -> Tensor:
    """`w` of `composed_query` read as weights of (`F_d`, `F_r`, `F_m`), divided by their sum: `(Q, 3)`
    float64, rows sum to 1.

    `[(1 + beta)(1 - alpha)/|F_q| - beta, (1 + beta) alpha/|F_q|, beta]`: coordinates in a triangle whose
    corners are description-only (1, 0, 0), image-only (0, 1, 0) and text-only (0, 0, 1). They depend on
    `|F_q|`, hence on the query. The first can be negative (outside the triangle). Raises as `composed_query`.
    """
    check_settings(alpha, beta)
    _, norm = _anchor(F_r, F_d, alpha)
    d, r = (1 + beta) * (1 - alpha) / norm - beta, (1 + beta) * alpha / norm
    weights = torch.cat([d, r, torch.full_like(norm, beta)], dim=1)
    return weights / weights.sum(dim=1, keepdim=True)


# --- X^R: coarse filtering --------------------------------------------------------------------------------


@dataclass(frozen=True)
class FourCosines:
    """X^R's four similarities, each `(Q, N)` float64 (Algorithm 1, lines 6 and 7).

    The subscript is the agent (text: sees the candidate's caption; vision: sees its picture), the superscript
    the imagined caption (t: `C_t`, v: `C_v`). `S_t` and `S_v` are the sums aligned by the query's modality
    (lines 8 and 9).
    """

    s_t_t: Tensor
    s_t_v: Tensor
    s_v_t: Tensor
    s_v_v: Tensor

    @property
    def S_t(self) -> Tensor:
        """`S^t = s_t^t + s_v^t`, in [-2, 2]."""
        return self.s_t_t + self.s_v_t

    @property
    def S_v(self) -> Tensor:
        """`S^v = s_t^v + s_v^v`, in [-2, 2]."""
        return self.s_t_v + self.s_v_v


def four_cosines(C_t: Tensor, C_v: Tensor, C_a: Tensor, I_a: Tensor) -> FourCosines:
    """X^R's similarity agents, plain form: the imagined captions `C_t`, `C_v` `(Q, D)` against captions and
    pictures of the gallery, `C_a`, `I_a` `(N, D)`. Both sides are CLIP features (the paper names an MLLM as
    encoder; the authors' code uses CLIP). Raises `InputError` for features that are not of unit length or do
    not match.
    """
    check_rows("C_t", C_t)
    for name, features in (("C_v", C_v), ("C_a", C_a), ("I_a", I_a)):
        check_rows(name, features, C_t.shape[1])
    _same_shape(C_t=C_t, C_v=C_v)
    _same_shape(C_a=C_a, I_a=I_a)
    return FourCosines(
        s_t_t=exact_scores(C_t, C_a),
        s_t_v=exact_scores(C_v, C_a),
        s_v_t=exact_scores(C_t, I_a),
        s_v_v=exact_scores(C_v, I_a),
    )


def summed_gallery(C: Tensor, I: Tensor) -> Tensor:  # noqa: E741 - the design's name for pictures
    """Candidate captions plus candidate pictures, `C_a + I_a`, `(N, D)` float64 (not of unit length).

    One product with it is `S^t` (or `S^v`): `exact_scores(C_t, summed_gallery(C_a, I_a))` equals
    `four_cosines(...).S_t` up to `agreement_bound(D, 1)`. Four gallery products become two and the gallery is
    stored once. Raises as `four_cosines`.
    """
    check_rows("C_a", C)
    check_rows("I_a", I, C.shape[1])
    _same_shape(C_a=C, I_a=I)
    total = C.to(torch.float64, copy=True)
    for rows, pictures in zip(total.split(4096), I.split(4096), strict=True):
        rows += pictures.double()
    return total


def _check_kappa(kappa: float) -> None:
    if not (math.isfinite(kappa) and kappa >= 0):
        raise InputError(f"kappa = {kappa}: expected a finite number from 0 on (the published one is 60)")


def reciprocal_ranks(scores: Tensor, kappa: float = KAPPA) -> Tensor:
    """`1 / (kappa + rank)` for scores `(Q, N)`, float64, rank from 1, ties by gallery order."""
    _check_kappa(kappa)
    wide = _check_scores("scores", scores)
    found = torch.empty_like(wide)
    for some, rows in zip(_row_blocks(wide), _row_blocks(found), strict=True):
        rows.copy_(1 / (kappa + ranks_of(some).double()))
    return found


def rrf(S_t: Tensor, S_v: Tensor, kappa: float = KAPPA) -> Tensor:
    """Reciprocal rank fusion of two score tensors `(Q, N)`: `1/(kappa + rank_t) + 1/(kappa + rank_v)`,
    float64.

    X^R, Algorithm 1, line 10; 1/(kappa + rank) with kappa = 60 is the form of the authors' code. Rank the
    result with `rank_by` (ties by gallery order). Raises `InputError` for shapes or devices that differ,
    scores that are not finite, kappa under 0.
    """
    _same_shape(S_t=S_t, S_v=S_v)
    v = _check_scores("S_v", S_v)
    fused = reciprocal_ranks(S_t, kappa)
    for some, rows in zip(_row_blocks(v), _row_blocks(fused), strict=True):
        rows += reciprocal_ranks(some, kappa)
    return fused


def certified_rrf_topk(S_t: Tensor, S_v: Tensor, k: int, kappa: float = KAPPA) -> tuple[Tensor, Tensor]:
    """The `min(k, N)` best of `rrf(S_t, S_v, kappa)` without a full sort: positions `(Q, k)` int64 and scores
    `(Q, k)` float64.

    The same items, order and score bits as ranking all of `rrf`. Only items in the top `K` of either list are
    looked at: any other scores at most `2/(kappa + K + 1)`, and where the `k`-th best found is strictly above
    that, it is proven; otherwise `K` doubles. Raises as `rrf`, and for k under 1.
    """
    _same_shape(S_t=S_t, S_v=S_v)
    _check_kappa(kappa)
    if k < 1:
        raise InputError(f"k = {k}: expected at least 1")
    t, v = _check_scores("S_t", S_t), _check_scores("S_v", S_v)
    n = t.shape[1]
    k = min(k, n)
    found = [_certified_row(t[row], v[row], k, kappa) for row in range(t.shape[0])]
    if not found:
        return rank_by(t)[:, :k], t[:, :k]
    return torch.stack([items for items, _ in found]), torch.stack([scores for _, scores in found])


def _certified_row(t: Tensor, v: Tensor, k: int, kappa: float) -> tuple[Tensor, Tensor]:
    """`certified_rrf_topk` for one query: scores `t`, `v` `(N,)`."""
    n = t.shape[0]
    top = min(n, 2 * k)
    while True:
        head_t, head_v = _head(t, top), _head(v, top)
        rank = torch.zeros(2, n, dtype=torch.int64, device=t.device)  # 0: not known
        places = torch.arange(1, top + 1, device=t.device)
        rank[0, head_t], rank[1, head_v] = places, places
        union = (rank > 0).any(dim=0).nonzero()[:, 0]
        known = rank[:, union]
        # Rounded division and addition are monotone, so these bounds hold for the rounded scores too.
        low = (1 / (kappa + torch.where(known > 0, known, n).double())).sum(dim=0)
        high = (1 / (kappa + torch.where(known > 0, known, top + 1).double())).sum(dim=0)
        keep = high >= low.topk(k).values[-1]  # the union holds at least `top >= k` items
        union, known = union[keep], known[:, keep]
        for row, scores in enumerate((t, v)):
            missing = known[row] == 0
            if bool(missing.any()):
                known[row, missing] = _ranks_at(scores, union[missing])
        fused = 1 / (kappa + known[0].double()) + 1 / (kappa + known[1].double())
        best = torch.sort(fused, descending=True, stable=True)  # `union` rises, so ties stay in gallery order
        if top == n or float(best.values[k - 1]) > 2 / (kappa + top + 1):
            return union[best.indices[:k]], best.values[:k]
        top = min(n, 2 * top)


def _head(scores: Tensor, top: int) -> Tensor:
    """Positions of the `top` best of `scores` `(N,)`, best first, ties by gallery order (`topk` breaks them
    as it likes).
    """
    edge = scores.topk(top).values[-1]
    above = (scores > edge).nonzero()[:, 0]
    level = (scores == edge).nonzero()[: top - above.shape[0], 0]
    best = torch.sort(scores[above], descending=True, stable=True).indices
    return torch.cat([above[best], level])


def _ranks_at(scores: Tensor, items: Tensor) -> Tensor:
    """Ranks of some `items` in `scores` `(N,)` by one pass that sorts the row into their (sorted) scores."""
    n = scores.shape[0]
    levels = torch.unique(scores[items])  # rising
    bucket = torch.searchsorted(levels, scores)  # the first level >= score
    count = torch.bincount(bucket, minlength=levels.shape[0] + 1)
    at_most = torch.cumsum(count, dim=0)  # at_most[i]: scores <= levels[i]
    mine = torch.searchsorted(levels, scores[items])
    greater = n - at_most[mine]
    equal = (
        (bucket < levels.shape[0]) & (levels[bucket.clamp(max=levels.shape[0] - 1)] == scores)
    ).nonzero()[:, 0]
    keys = torch.sort(bucket[equal] * n + equal).values
    before = torch.searchsorted(keys, mine * n + items) - torch.searchsorted(keys, mine * n)
    return 1 + greater + before


# --- X^R: fine filtering ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reranked:
    """The result of `rerank` over the `k'` candidates of every query.

    `order` `(Q, k')` int64: places in the given candidate list, best first. `scores`, `similarity` `(Q, k')`
    float64: final score and normalised similarity of the candidates, in the order given.
    """

    order: Tensor
    scores: Tensor
    similarity: Tensor


def normalise_similarity(similarity: Tensor, how: Normalisation = "minmax") -> Tensor:
    """Similarities `(Q, k')` made comparable within each row, float64, never negative.

    `minmax`: onto [0, 1], the worst candidate 0 and the best 1; where all are equal (or there is one
    candidate) every one is 1. `clamp`: negative ones become 0. `softmax`: sums to 1. Raises `InputError` for
    another `how`.
    """
    if how not in get_args(Normalisation):
        raise InputError(
            f"normalisation {how!r} is unknown; choose one of {', '.join(get_args(Normalisation))}"
        )
    wide = _check_scores("similarity", similarity)
    if how == "clamp":
        return wide.clamp(min=0)
    if how == "softmax":
        return wide.softmax(dim=1)
    low, high = wide.amin(dim=1, keepdim=True), wide.amax(dim=1, keepdim=True)
    span = high - low
    return torch.where(span > 0, (wide - low) / torch.where(span > 0, span, 1.0), 1.0)


def rerank(
    S_q_t: Tensor,
    S_q_v: Tensor,
    S_t: Tensor,
    S_v: Tensor,
    lam: float = LAMBDA,
    *,
    questions: Tensor,
    positions: Tensor,
    normalise: Normalisation = "minmax",
) -> Reranked:
    """X^R's cross-modal re-ranking of the `k'` candidates (Algorithm 1, lines 15 and 16).

    Score = `(S_q^t + S_q^v) * normalise(lam S^t + (1 - lam) S^v)`. All tensors are `(Q, k')` with the
    candidates in coarse order: `S_q_t`, `S_q_v` are the numbers of questions answered as expected from the
    caption and from the picture; `S_t`, `S_v` the summed similarities of these candidates; `positions` their
    places in the gallery. `questions` `(Q,)` is the number of questions asked.

    Order: falling score, then falling similarity (before normalisation), then gallery order. A query without
    questions keeps its coarse order. The normalisation over the `k'` candidates is min-max, as in the
    authors' code (the paper does not say). Raises `InputError` for shapes or devices that differ, counts
    below 0 or above `questions`, and lam outside [0, 1].
    """
    if not 0 <= lam <= 1:
        raise InputError(f"lambda = {lam}: expected a number from 0 to 1 (the published one is 0.15)")
    _same_shape(S_q_t=S_q_t, S_q_v=S_q_v, S_t=S_t, S_v=S_v, positions=positions)
    _same_place(S_t=S_t, questions=questions)
    if questions.shape != S_t.shape[:1]:
        raise InputError(
            f"questions: expected one number a query {tuple(S_t.shape[:1])}, got {tuple(questions.shape)}"
        )
    for name, count in (("S_q_t", S_q_t), ("S_q_v", S_q_v)):
        if bool(((count < 0) | (count > questions[:, None])).any()):
            raise InputError(
                f"{name}: expected counts from 0 to the number of questions; count its right answers"
            )
    t, v = _check_scores("S_t", S_t), _check_scores("S_v", S_v)
    similarity = lam * t + (1 - lam) * v
    normalised = normalise_similarity(similarity, normalise)
    scores = (S_q_t + S_q_v).double() * normalised
    order = positions.argsort(dim=1, stable=True)
    for key in (similarity, scores):
        order = order.gather(1, key.gather(1, order).sort(dim=1, descending=True, stable=True).indices)
    coarse = torch.arange(t.shape[1], device=t.device).expand_as(order)
    order = torch.where((questions > 0)[:, None], order, coarse)
    return Reranked(order=order, scores=scores, similarity=normalised)
