"""The fast path against the plain forms: item by item, on the dyadic grid and on random features, for blocks
of every size, every precision of the scan, in memory and from files."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from test_scoring import CUDA, brute_order, dot, dyadic_query, dyadic_unit, fractions, unit

from cir_utils import search
from cir_utils.errors import InputError
from cir_utils.scoring import (
    agreement_bound,
    certified_rrf_topk,
    composed_query,
    debiased_scores,
    exact_scores,
    rank_by,
    rrf,
    summed_scores,
)
from cir_utils.search import debiased_topk, map_features, mapped_array, prepare_gallery, rrf_topk, topk

quick = settings(max_examples=60, deadline=None, derandomize=True)
ignore_settings = pytest.mark.filterwarnings("ignore::cir_utils.scoring.SettingWarning")
STORED = [torch.float32, torch.float16, torch.bfloat16]
SCANS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=["cpu", CUDA])
def device(request):
    return request.param


@st.composite
def block_sizes(draw):
    """Sizes of everything that is done in blocks, down to one row, one query and one pair."""
    return {
        "GROUP": draw(st.sampled_from([1, 2, 4, 64])),
        "CPU_SCORES": draw(st.sampled_from([1, 7, 64, 1 << 22])),
        "QUERIES": draw(st.sampled_from([1, 2, 1024])),
        "PENDING": draw(st.sampled_from([0, 5, 1 << 22])),
        "RRF_SCORES": draw(st.sampled_from([1, 40, 1 << 25])),
        "BLOCK_ELEMENTS": draw(st.sampled_from([1, 100, 1 << 18])),
    }


def with_sizes(sizes, call, *args, **settings):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes.items():
            patch.setattr(search, name, value)
        return call(*args, **settings)


@st.composite
def dyadic_gallery(draw):
    """Few different rows, many times: exact ties, also across blocks."""
    pool = draw(st.lists(dyadic_unit(), min_size=1, max_size=6))
    return draw(st.lists(st.sampled_from(pool), min_size=1, max_size=40))


def random_gallery(rows, width, seed, dtype, twins):
    """Random unit rows, some of them twice (far apart), so that exact ties occur off the grid as well."""
    features = unit(rows, width, seed, dtype)
    if twins and rows > 1:
        features[rows // 2 :][: rows // 4] = features[: rows // 4]
    return features


# --- the best k -------------------------------------------------------------------------------------------


@ignore_settings
@quick
@given(
    st.lists(dyadic_query(), min_size=1, max_size=3),
    dyadic_unit(),
    dyadic_gallery(),
    st.sampled_from([0.0, 0.25, 0.5, 1.0, 4.0]),
    st.integers(1, 45),
    st.sampled_from(STORED),
    st.sampled_from(SCANS),
    block_sizes(),
)
def test_debiased_topk_is_exact_on_the_grid(queries, F_m, rows, beta, k, stored, scan, sizes):
    gallery = with_sizes(sizes, prepare_gallery, torch.tensor(rows, dtype=stored), dtype=scan)
    for F_r, F_d, alpha in queries:
        sides = [torch.tensor([side, side], dtype=torch.float64) for side in (F_r, F_d, F_m)]
        found = with_sizes(sizes, debiased_topk, *sides, gallery, k, alpha=alpha, beta=beta)
        r, d, m = map(fractions, (F_r, F_d, F_m))
        mix = [(1 - Fraction(alpha)) * x + Fraction(alpha) * y for x, y in zip(d, r, strict=True)]
        length = Fraction(math.sqrt(dot(mix, mix)))
        assert length**2 == dot(mix, mix)
        b = Fraction(beta)
        want = [(1 + b) * dot(mix, x) / length - b * (dot(d, x) - dot(m, x)) for x in map(fractions, rows)]
        order = brute_order(want)[:k]
        assert found.items.tolist() == [order, order]
        assert found.scores[0].tolist() == [float(want[item]) for item in order]


@ignore_settings
@quick
@given(
    st.integers(1, 300),
    st.sampled_from([1, 3, 16, 33]),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    st.sampled_from([0.0, 0.4, 3.0]),
    st.integers(1, 320),
    st.sampled_from(STORED),
    st.sampled_from(SCANS),
    st.booleans(),
    block_sizes(),
)
def test_debiased_topk_on_random_features(n, width, seed, alpha, beta, k, stored, scan, twins, sizes):
    rows = random_gallery(n, width, seed, stored, twins)
    sides = [unit(2, width, seed + side, stored) for side in (1, 2, 3)]
    try:
        w = composed_query(*sides, alpha, beta)
    except InputError:  # opposite sides that cancel out, where width is 1
        return
    gallery = with_sizes(sizes, prepare_gallery, rows, dtype=scan)
    found = with_sizes(sizes, debiased_topk, *sides, gallery, k, alpha, beta)
    scores = exact_scores(w, rows)
    order = rank_by(scores)[:, :k]
    assert torch.equal(found.items, order)
    assert torch.equal(found.scores, scores.gather(1, order))
    assert (found.rescored >= min(k, n)).all() and (found.rescored <= n).all()
    # Against the formula with three products: places change only where its scores differ by less than that.
    plain = debiased_scores(*sides, rows, alpha, beta)
    falling = plain.gather(1, found.items)
    bound = 2 * agreement_bound(width, beta)
    assert (falling[:, :-1] - falling[:, 1:] >= -bound).all()
    rest = plain.scatter(1, found.items, -torch.inf).amax(dim=1)
    assert (rest <= falling[:, -1] + bound).all()


def test_few_items_are_scored_again(device):
    rows = unit(3000, 64, 0).to(device)
    W = unit(3, 64, 1).to(device)
    for scan, most in ((torch.float32, 14), (torch.bfloat16, 40), (torch.float16, 20)):
        found = topk(W, prepare_gallery(rows, dtype=scan), 10)
        assert torch.equal(found.items, rank_by(exact_scores(W, rows))[:, :10])
        assert found.rescored.min() >= 10 and found.rescored.max() <= most
        assert found.items.device.type == found.scores.device.type == device


@pytest.mark.parametrize("scan", SCANS)
def test_all_rows_alike_rank_in_gallery_order(scan, monkeypatch):
    monkeypatch.setattr(search, "PENDING", 100)
    rows = unit(1, 24, 0).expand(700, 24).contiguous()
    found = topk(unit(2, 24, 1), prepare_gallery(rows, dtype=scan), 5)
    assert found.items.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert found.scores.unique(dim=1).shape[1] == 1


def test_near_ties_below_the_precision_of_the_scan():
    """Rows that bfloat16 cannot tell apart are put in the order of their stored values."""
    rows = torch.zeros(200, 2, dtype=torch.float64)
    angles = (torch.arange(200, dtype=torch.float64) * 37 % 200) * 1e-6
    rows[:, 0], rows[:, 1] = angles.cos(), angles.sin()
    for scan in SCANS:
        found = topk(torch.tensor([[0.0, 1.0]]), prepare_gallery(rows, dtype=scan), 7)
        assert angles[found.items[0]].mul(1e6).round().tolist() == [199, 198, 197, 196, 195, 194, 193]


@pytest.mark.parametrize("length", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_queries_of_any_length(length):
    rows = unit(300, 16, 0)
    W = unit(2, 16, 1, torch.float64)
    scaled = topk(W * length, prepare_gallery(rows, dtype=torch.float16), 5)
    assert torch.equal(scaled.items, topk(W, prepare_gallery(rows), 5).items)
    assert torch.equal(scaled.scores, exact_scores(W * length, rows).gather(1, scaled.items))


def test_a_query_of_zeros_ties_everything():
    found = topk(torch.zeros(1, 16), prepare_gallery(unit(90, 16, 0)), 4)
    assert found.items.tolist() == [[0, 1, 2, 3]] and found.scores.tolist() == [[0.0] * 4]


def test_no_queries_and_one_item():
    gallery = prepare_gallery(unit(1, 8, 0))
    assert topk(torch.empty(0, 8), gallery, 3).items.shape == (0, 1)
    assert topk(unit(2, 8, 1), gallery, 3).items.tolist() == [[0], [0]]
    assert rrf_topk(torch.empty(0, 8), torch.empty(0, 8), gallery, 3).items.shape == (0, 1)
    assert rrf_topk(unit(2, 8, 1), unit(2, 8, 2), gallery, 3).items.tolist() == [[0], [0]]


def test_no_block_is_larger_than_asked(monkeypatch):
    """The whole score matrix never exists."""
    monkeypatch.setattr(search, "CPU_SCORES", 1024)
    seen = []
    see = search._Best.see
    monkeypatch.setattr(search._Best, "see", lambda *args: (seen.append(args[1].shape), see(*args)))
    topk(unit(4, 16, 1), prepare_gallery(unit(5000, 16, 0)), 5)
    assert {shape[0] for shape in seen} == {4}
    assert max(math.prod(shape) for shape in seen) <= 1024
    assert sum(shape[1] for shape in seen) >= 5000


# --- the bound --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("width", [1, 16, 384, 1024])
def test_errors_stay_within_the_bound(scan, width, queries, device):
    """Also where a sum in 16 bits would lose all small terms (a large one first, many small ones after)."""
    rows = unit(300, width, 0, torch.float64)
    W = unit(queries, width, 1, torch.float64)
    if width > 1:
        tail = 2.0**-9
        rows[0] = W[0] = tail
        rows[0, 0] = W[0, 0] = math.sqrt(1 - (width - 1) * tail**2)
    rows, W = rows.to(device), W.to(device)
    gallery = prepare_gallery(rows, dtype=scan)
    made = search.scan_of(W, scan)
    with search._full_precision():
        S = search._product(made.rounded, gallery.scan)
    error = (S.double() - exact_scores(made.exact, rows)).abs().amax(dim=1)
    bound = made.error(gallery.residual, gallery.norm)
    assert (error <= bound).all()
    # A bound that is worth something: a few roundings of the inputs and one of the output.
    grain = {torch.float32: width * 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[scan]
    assert (bound <= 3.1 * grain + width * 2.0**-21).all()


def test_the_bound_by_hand():
    """w = (1, 0) and a row that bfloat16 rounds: |w||x - x'| + rounding of sum and output."""
    x = torch.tensor([[math.cos(0.3), math.sin(0.3)]], dtype=torch.float64)
    gallery = prepare_gallery(x, dtype=torch.bfloat16)
    off = (x - x.bfloat16().double()).norm().item()
    made = search.scan_of(torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.bfloat16)
    assert made.exact.tolist() == [[0.5, 0.0]] and made.residual.item() == 0
    norm = x.bfloat16().double().norm().item()
    grow = 2 * 2.0**-22 / (1 - 2 * 2.0**-22)
    want = 0.5 * off + (grow + 2.0**-8 * (1 + grow)) * 0.5 * norm
    assert made.error(gallery.residual, gallery.norm).item() == pytest.approx(want, rel=2e-3)
    assert made.error(gallery.residual, gallery.norm).item() >= want


def test_float32_products_stay_float32_whatever_is_set():
    before = torch.get_float32_matmul_precision()
    rows, W = unit(500, 256, 0), unit(4, 256, 1)
    try:
        torch.set_float32_matmul_precision("medium")
        found = topk(W, prepare_gallery(rows, dtype=torch.float32), 20)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(found.items, rank_by(exact_scores(W, rows))[:, :20])


def test_the_precision_of_scans_follows_the_processor(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True}, raising=False)
    assert search.scan_dtype("cpu") == torch.float32
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    assert search.scan_dtype("cpu") == torch.bfloat16
    assert search.scan_dtype("cuda") == torch.float16


# --- X^R's coarse stage -----------------------------------------------------------------------------------


def coarse_plain(C_t, C_v, C_a, I_a, k, kappa):
    S_t, S_v = summed_scores(C_t, C_a, I_a), summed_scores(C_v, C_a, I_a)
    order = rank_by(rrf(S_t, S_v, kappa))[:, :k]
    return order, S_t.gather(1, order), S_v.gather(1, order)


@quick
@given(
    st.lists(st.tuples(dyadic_unit(), dyadic_unit()), min_size=1, max_size=3),
    dyadic_gallery(),
    st.randoms(use_true_random=False),
    st.integers(1, 45),
    st.sampled_from([0.0, 1.0, 60.0, 1e18]),
    st.sampled_from(SCANS),
    block_sizes(),
)
def test_rrf_topk_is_exact_on_the_grid(queries, rows, random, k, kappa, scan, sizes):
    pictures = random.sample(rows, len(rows))
    C_t, C_v = (torch.tensor([pair[side] for pair in queries]) for side in (0, 1))
    C_a, I_a = torch.tensor(rows), torch.tensor(pictures)
    gallery = with_sizes(sizes, prepare_gallery, C_a, I_a, dtype=scan)
    found = with_sizes(sizes, rrf_topk, C_t, C_v, gallery, k, kappa)
    for query, (t, v) in enumerate(queries):
        ranks = []
        for side in (t, v):
            sums = [
                dot(fractions(side), fractions(a)) + dot(fractions(side), fractions(b))
                for a, b in zip(rows, pictures, strict=True)
            ]
            place = {item: rank + 1 for rank, item in enumerate(brute_order(sums))}
            ranks.append([place[item] for item in range(len(rows))])
        fused = [1 / (kappa + a) + 1 / (kappa + b) for a, b in zip(*ranks, strict=True)]
        assert found.items[query].tolist() == brute_order(fused)[:k]


@quick
@given(
    st.integers(1, 400),
    st.sampled_from([1, 3, 16, 33]),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1.0, 60.0]),
    st.integers(1, 420),
    st.sampled_from(STORED),
    st.sampled_from(SCANS),
    st.booleans(),
    st.booleans(),
    block_sizes(),
)
def test_rrf_topk_on_random_features(n, width, seed, kappa, k, stored, scan, twins, near, sizes):
    C_a = random_gallery(n, width, seed, stored, twins)
    I_a = random_gallery(n, width, seed + 1, stored, twins)
    C_t, C_v = (unit(2, width, seed + side, stored) for side in (2, 3))
    if near:  # lists that nearly agree, as real ones do
        mixed = C_t.double() + 0.05 * C_v.double()
        C_v = (mixed / mixed.norm(dim=1, keepdim=True)).to(stored)
    gallery = with_sizes(sizes, prepare_gallery, C_a, I_a, dtype=scan)
    found = with_sizes(sizes, rrf_topk, C_t, C_v, gallery, k, kappa)
    order, S_t, S_v = coarse_plain(C_t, C_v, C_a, I_a, k, kappa)
    assert torch.equal(found.items, order)
    assert torch.equal(found.S_t, S_t) and torch.equal(found.S_v, S_v)


def test_rrf_topk_scores_little_again(device):
    sides = [unit(2500, 64, seed).to(device) for seed in (0, 1)]
    C_t, C_v = (unit(3, 64, seed).to(device) for seed in (2, 3))
    found = rrf_topk(C_t, C_v, prepare_gallery(*sides, dtype=torch.float32), 20)
    S_t, S_v = summed_scores(C_t, *sides), summed_scores(C_v, *sides)
    assert torch.equal(found.items, certified_rrf_topk(S_t, S_v, 20)[0])
    assert found.rescored.max() <= 40


def test_rrf_of_a_gallery_of_twins_keeps_its_order():
    rows = unit(1, 16, 0).expand(300, 16).contiguous()
    gallery = prepare_gallery(rows, rows, dtype=torch.bfloat16)
    assert rrf_topk(unit(1, 16, 1), unit(1, 16, 2), gallery, 4).items.tolist() == [[0, 1, 2, 3]]


# --- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [*STORED, torch.float64])
def test_mapped_features_give_the_same(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "CPU_SCORES", 2048)
    rows, other = unit(700, 16, 0, stored), unit(700, 16, 4, stored)
    save_file({"other": other, "features": rows}, tmp_path / "f.safetensors")
    mapped = map_features(tmp_path / "f.safetensors")
    assert (mapped.shape, mapped.dtype) == ((700, 16), stored)
    assert torch.equal(mapped.block(3, 9), rows[3:9])
    assert torch.equal(mapped.take(torch.tensor([5, 5, 699])), rows[[5, 5, 699]])
    W, V = unit(3, 16, 1), unit(3, 16, 2)
    for scan in SCANS:
        found, want = (topk(W, prepare_gallery(side, dtype=scan), 9) for side in (mapped, rows))
        assert torch.equal(found.items, want.items) and torch.equal(found.scores, want.scores)
    both = prepare_gallery(mapped, map_features(tmp_path / "f.safetensors", "other"), dtype=torch.float32)
    order, S_t, _ = coarse_plain(W, V, rows, other, 9, 60)
    found = rrf_topk(W, V, both, 9)
    assert torch.equal(found.items, order) and torch.equal(found.S_t, S_t)


@pytest.mark.parametrize("kind", ["float64", "float32", "float16"])
def test_a_numpy_map_gives_the_same(kind, tmp_path):
    rows = unit(200, 16, 0).numpy().astype(kind)
    np.save(tmp_path / "f.npy", rows)
    features = mapped_array(np.load(tmp_path / "f.npy", mmap_mode="r"))
    found = topk(unit(2, 16, 1), prepare_gallery(features), 5)
    want = topk(unit(2, 16, 1), prepare_gallery(torch.from_numpy(rows)), 5)
    assert torch.equal(found.items, want.items) and torch.equal(found.scores, want.scores)


def test_a_map_that_cannot_be_used_is_refused(tmp_path):
    np.save(tmp_path / "f.npy", np.eye(4, dtype="int32"))
    whole = np.load(tmp_path / "f.npy", mmap_mode="r")
    for array in (whole, np.eye(4)):
        with pytest.raises(InputError, match="whole np.memmap"):
            mapped_array(array)
    np.save(tmp_path / "f.npy", np.eye(4))
    with pytest.raises(InputError, match="whole np.memmap"):
        mapped_array(np.load(tmp_path / "f.npy", mmap_mode="r")[1:])


def test_files_that_are_no_features_are_refused(tmp_path):
    path = tmp_path / "f.safetensors"
    with pytest.raises(InputError, match="f.safetensors: cannot be read"):
        map_features(path)
    for content in (b"", b"hello", b"\x05" + bytes(7) + b"hello", (2**60).to_bytes(8, "little") + b"{}"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="f.safetensors: expected a safetensors file"):
            map_features(path)
    save_file({"features": torch.eye(4, dtype=torch.int32), "flat": torch.ones(3)}, path)
    with pytest.raises(InputError, match="'features' is I32"):
        map_features(path)
    with pytest.raises(InputError, match="'flat' is F32"):
        map_features(path, "flat")
    with pytest.raises(InputError, match="no tensor 'other' in it; it holds features, flat"):
        map_features(path, "other")
    save_file({"features": torch.eye(4)}, path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match="shorter than its header says"):
        map_features(path)


def test_mapped_rows_that_are_not_unit_are_found_in_the_scan(tmp_path):
    rows = unit(200, 16, 0)
    rows[150] *= 2
    save_file({"features": rows}, tmp_path / "f.safetensors")
    gallery = prepare_gallery(map_features(tmp_path / "f.safetensors"))
    with pytest.raises(InputError, match="row 150 has length 2"):
        topk(unit(1, 16, 1), gallery, 3)


# --- wrong input ------------------------------------------------------------------------------------------


def test_wrong_input_says_how_to_mend_it():
    rows = unit(20, 16, 0)
    gallery = prepare_gallery(rows)
    with pytest.raises(InputError, match="k = 0: expected at least 1"):
        topk(rows, gallery, 0)
    with pytest.raises(InputError, match="k = 0: expected at least 1"):
        rrf_topk(rows, rows, gallery, 0)
    with pytest.raises(InputError, match=r"expected a tensor \(Q, 16\)"):
        topk(rows[0], gallery, 1)
    with pytest.raises(InputError, match="row 1 holds NaN or infinity"):
        topk(torch.stack([rows[0], rows[0] * math.inf]), gallery, 1)
    with pytest.raises(InputError, match="gallery part 1: row .* has length 2"):
        prepare_gallery(rows * 2)
    with pytest.raises(InputError, match=r"gallery part 2: shape \(5, 16\) where \(20, 16\)"):
        prepare_gallery(rows, rows[:5])
    with pytest.raises(InputError, match="choose float32, bfloat16 or float16"):
        prepare_gallery(rows, dtype=torch.float64)
    with pytest.raises(InputError, match="no features given"):
        prepare_gallery()
    with pytest.raises(InputError, match="shapes differ"):
        rrf_topk(rows[:2], rows[:1], gallery, 1)
    with pytest.raises(InputError, match="kappa = -1"):
        rrf_topk(rows, rows, gallery, 1, kappa=-1)
    with pytest.raises(InputError, match="not of unit|length 2"):
        debiased_topk(rows[:1] * 2, rows[:1], rows[:1], gallery, 1)
