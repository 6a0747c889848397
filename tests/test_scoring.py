"""The formulas of SDR-CIR and X^R against hand-made values, exact fractions, and each other."""

import math
import warnings
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cir_utils import scoring
from cir_utils.errors import InputError
from cir_utils.scoring import (
    SettingWarning,
    agreement_bound,
    anchored_query,
    certified_rrf_topk,
    check_features,
    composed_query,
    debiased_scores,
    display_scores,
    exact_scores,
    four_cosines,
    normalise_similarity,
    rank_by,
    ranks_of,
    reciprocal_ranks,
    rerank,
    rrf,
    summed_gallery,
    summed_scores,
    triangle_weights,
)

quick = settings(max_examples=60, deadline=None, derandomize=True)
ignore_settings = pytest.mark.filterwarnings("ignore::cir_utils.scoring.SettingWarning")
CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")],
)
WIDTH = 16


@pytest.fixture(params=["cpu", CUDA])
def device(request):
    return request.param


def unit(rows, width, seed, dtype=torch.float32):
    """Random unit rows, stored as `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return (values / values.norm(dim=1, keepdim=True)).to(dtype)


@st.composite
def dyadic_unit(draw):
    """A unit vector of width 16 whose values are 0 and one of +-1, +-1/2, +-1/4: all sums and products are
    exact.
    """
    size = draw(st.sampled_from([1, 4, 4, 16]))
    places = draw(st.permutations(range(WIDTH)))[:size]
    signs = draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=size, max_size=size))
    vector = [0.0] * WIDTH
    for place, sign in zip(places, signs, strict=True):
        vector[place] = sign / math.sqrt(size)
    return vector


@st.composite
def dyadic_query(draw):
    """(F_r, F_d, alpha) on the dyadic grid whose anchored query has a dyadic length as well (1, 1/2 or
    1/4).
    """
    F_d = draw(dyadic_unit())
    support = [i for i, value in enumerate(F_d) if value]
    kind = draw(st.sampled_from(["off", "same", "half"]))
    if kind == "off":
        return draw(dyadic_unit()), F_d, 0.0
    if kind == "same" or len(support) == 1:
        return F_d, F_d, draw(st.sampled_from([0.0, 0.125, 0.25, 0.5]))
    flips = draw(st.sampled_from([3] if len(support) == 4 else [12, 15]))  # cosine -1/2 (or -7/8)
    F_r = [-value if i in support[:flips] else value for i, value in enumerate(F_d)]
    return F_r, F_d, 0.5


def fractions(vector):
    return [Fraction(value) for value in vector]


def dot(a, b):
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def brute_order(scores):
    """Positions, best first, ties by position: the definition, in Python."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


# --- SDR-CIR ----------------------------------------------------------------------------------------------


def test_debiased_scores_by_hand(device):
    F_d = torch.tensor([[1.0, 0.0]], device=device)
    F_r = torch.tensor([[0.0, 1.0]], device=device)
    F_m = torch.tensor([[0.6, 0.8]], device=device)
    gallery = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], device=device)
    scores = debiased_scores(F_r, F_d, F_m, gallery, alpha=0.2, beta=0.4)
    length = math.sqrt(0.8**2 + 0.2**2)
    want = []
    for x in ([1, 0], [0, 1], [0.6, 0.8]):
        S_q = (0.8 * x[0] + 0.2 * x[1]) / length
        want.append(1.4 * S_q - 0.4 * (x[0] - (0.6 * x[0] + 0.8 * x[1])))
    assert scores.dtype == torch.float64 and scores.shape == (1, 3) and scores.device.type == device
    assert scores[0].tolist() == pytest.approx(want, abs=1e-7)


@ignore_settings
@quick
@given(
    queries=st.lists(st.tuples(dyadic_query(), dyadic_unit()), min_size=1, max_size=3),
    gallery=st.lists(dyadic_unit(), min_size=1, max_size=12),
    beta=st.sampled_from([0.0, 0.25, 0.375, 0.5, 1.0]),
    double=st.booleans(),
)
def test_plain_and_composed_rank_the_same_on_a_dyadic_grid(queries, gallery, beta, double):
    gallery = gallery + gallery[::-1] if double else gallery  # equal rows: ties
    X = torch.tensor(gallery, dtype=torch.float32)
    for (F_r, F_d, alpha), F_m in queries:
        tensors = [torch.tensor([v], dtype=torch.float32) for v in (F_r, F_d, F_m)]
        plain = debiased_scores(*tensors, X, alpha, beta)
        fast = exact_scores(composed_query(*tensors, alpha, beta), X)
        q = [
            (1 - Fraction(alpha)) * d + Fraction(alpha) * r
            for d, r in zip(fractions(F_d), fractions(F_r), strict=True)
        ]
        length = Fraction(math.sqrt(dot(q, q)))
        assert length**2 == dot(q, q)
        want = []
        for x in map(fractions, gallery):
            S_d, S_m = dot(fractions(F_d), x), dot(fractions(F_m), x)
            want.append((1 + Fraction(beta)) * dot(q, x) / length - Fraction(beta) * (S_d - S_m))
        assert [Fraction(v) for v in plain[0].tolist()] == want
        assert torch.equal(plain, fast)
        assert rank_by(plain)[0].tolist() == brute_order(want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 3, 128, 200])
def test_plain_and_composed_agree_within_the_bound(dtype, width, device):
    for seed, (alpha, beta) in enumerate(
        [(0.1, 0.4), (0.15, 0.35), (0.2, 0.4), (0.05, 0.5), (0.0, 0.4), (0.2, 0.0)]
    ):
        F_r, F_d, F_m = (unit(5, width, 10 * seed + i, dtype).abs().to(device) for i in range(3))
        X = unit(300, width, 10 * seed + 3, dtype).to(device)
        plain = debiased_scores(F_r, F_d, F_m, X, alpha, beta)
        fast = exact_scores(composed_query(F_r, F_d, F_m, alpha, beta), X)
        bound = agreement_bound(width, beta)
        assert bound < 1e-13
        assert float((plain - fast).abs().max()) <= bound
        changed = plain.gather(1, rank_by(fast)).diff(dim=1)  # falling but for swaps inside the bound
        assert float(changed.max()) <= 2 * bound


def test_switched_off_steps_are_the_simpler_methods():
    F_r, F_d, F_m, X = unit(4, 32, 0), unit(4, 32, 1), unit(4, 32, 2), unit(50, 32, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # 0 means "off" and does not warn
        assert torch.allclose(debiased_scores(F_r, F_d, F_m, X, 0, 0), exact_scores(F_d, X), atol=1e-7)
    with pytest.warns(SettingWarning, match="alpha = 1"):
        assert torch.allclose(debiased_scores(F_r, F_d, F_m, X, 1, 0), exact_scores(F_r, X), atol=1e-7)


@pytest.mark.parametrize(
    "alpha, beta, said",
    [
        (0.31, 0.4, "alpha = 0.31"),
        (0.1, 0.29, "beta = 0.29"),
        (0.1, 0.51, "beta = 0.51"),
        (0.1, 5, "beta = 5"),
    ],
)
def test_settings_outside_the_known_range_warn(alpha, beta, said):
    F = unit(1, 8, 0)
    for function in (composed_query, lambda *a: debiased_scores(*a[:3], F, *a[3:])):
        with pytest.warns(SettingWarning, match=said) as record:
            function(F, F, F, alpha, beta)
        assert len(record) == 1


@pytest.mark.parametrize("alpha, beta", [(0.05, 0.5), (0.15, 0.35), (0.2, 0.4), (0.3, 0.3), (0, 0)])
def test_published_settings_do_not_warn(alpha, beta):
    F = unit(1, 8, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        composed_query(F, F, F, alpha, beta)


@pytest.mark.parametrize(
    "alpha, beta", [(-0.1, 0.4), (1.1, 0.4), (math.nan, 0.4), (0.1, -1), (0.1, math.inf), (0.1, math.nan)]
)
def test_impossible_settings_raise(alpha, beta):
    F = unit(1, 8, 0)
    with pytest.raises(InputError, match="expected"):
        composed_query(F, F, F, alpha, beta)


@ignore_settings
def test_anchored_query_has_unit_length_and_cancelling_parts_raise():
    F_r, F_d = unit(6, 24, 0), unit(6, 24, 1)
    assert torch.allclose(
        anchored_query(F_r, F_d, 0.2).norm(dim=1), torch.ones(6, dtype=torch.float64), atol=1e-15
    )
    F_r[4] = -F_d[4]
    with pytest.raises(InputError, match="query 4: F_d and F_r cancel out"):
        composed_query(F_r, F_d, F_d, 0.5, 0.4)


@ignore_settings
def test_triangle_weights_are_the_composed_query():
    F_r, F_d, F_m = unit(7, 48, 0), unit(7, 48, 1), unit(7, 48, 2)
    for alpha, beta in [(0.1, 0.4), (0.2, 0.0), (0.0, 0.4)]:
        w = composed_query(F_r, F_d, F_m, alpha, beta)
        weights = triangle_weights(F_r, F_d, alpha, beta)
        mixed = weights[:, :1] * F_d.double() + weights[:, 1:2] * F_r.double() + weights[:, 2:] * F_m.double()
        assert torch.allclose(weights.sum(dim=1), torch.ones(7, dtype=torch.float64), atol=1e-15)
        assert torch.allclose(
            mixed / mixed.norm(dim=1, keepdim=True), w / w.norm(dim=1, keepdim=True), atol=1e-14
        )
    assert triangle_weights(F_r, F_d, 0.0, 0.0).tolist() == [pytest.approx([1, 0, 0], abs=1e-7)] * 7
    assert triangle_weights(F_r, F_d, 1.0, 0.0).tolist() == [pytest.approx([0, 1, 0], abs=1e-7)] * 7


# --- checks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "features, said",
    [
        ([[1.0, 0.0]], "got list"),
        (torch.ones(2, 3, dtype=torch.int64), "got torch.int64"),
        (torch.tensor([1.0, 0.0]), r"v\[None\]"),
        (torch.zeros(0, 4), "at least one row"),
        (torch.tensor([[1.0, 0.0], [3.0, 4.0]]), "row 1 has length 5"),
        (torch.tensor([[1.0, 0.0], [0.0, math.nan]]), "row 1 holds NaN"),
        (torch.tensor([[0.0, 0.0]]), "row 0 has length 0"),
        (torch.tensor([[1.001, 0.0]]), "length 1.001"),
    ],
)
def test_features_that_are_not_unit_rows_raise(features, said):
    with pytest.raises(InputError, match=said):
        check_features("F_r", features)


def test_rounded_storage_still_counts_as_unit_length():
    for dtype in (torch.float16, torch.bfloat16):
        assert check_features("gallery", unit(200, 100, 0, dtype)).dtype == torch.float64


def test_encoders_that_do_not_match_raise():
    F, other = unit(2, 8, 0), unit(2, 6, 0)
    for arguments in [(other, F, F, F), (F, F, other, F), (F, F, F, other)]:
        with pytest.raises(InputError, match="same CLIP model"):
            debiased_scores(*arguments)
    with pytest.raises(InputError, match="shapes differ"):
        composed_query(F[:1], F, F)
    with pytest.raises(InputError, match="shapes differ"):
        composed_query(F, F, F[:1])
    with pytest.raises(InputError, match="same CLIP model"):
        summed_gallery(F, other)
    with pytest.raises(InputError, match="shapes differ"):
        four_cosines(F, F, F, F[:1])
    with pytest.raises(InputError, match="one width"):
        exact_scores(F, other)


def test_different_devices_raise():
    F = unit(2, 8, 0)
    with pytest.raises(InputError, match="S_t on cpu, S_v on meta"):
        rrf(F, torch.empty(2, 8, device="meta"))


# --- products and order -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 5, 64, 77])
def test_exact_scores_do_not_depend_on_neighbours_or_blocks(monkeypatch, device, width):
    A, B = unit(3, width, 0).to(device), unit(97, width, 1).to(device)
    whole = exact_scores(A, B)
    fractions_ = [
        [
            float(sum((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction(0)))
            for b in B.tolist()
        ]
        for a in A.tolist()
    ]
    assert float((whole.cpu() - torch.tensor(fractions_, dtype=torch.float64)).abs().max()) <= 8 * 2.0**-53
    assert torch.equal(exact_scores(A[1:2], B), whole[1:2])
    assert torch.equal(exact_scores(A, B[40:41]), whole[:, 40:41])
    assert torch.equal(exact_scores(A, B.flip(0)), whole.flip(1))
    monkeypatch.setattr(scoring, "BLOCK_ELEMENTS", 3 * width)
    assert torch.equal(exact_scores(A, B), whole)


def test_arrays_of_other_kinds_score_alike_or_are_refused(device):
    """Report 23: float64, views that are not contiguous, a gallery of one image; what is no tensor, or not of
    unit length, is refused where cosines are meant."""
    A, B = unit(3, 12, 0).to(device), unit(5, 12, 1).to(device)
    whole = exact_scores(A, B)
    strided = B.T.contiguous().T
    every_second = B.repeat_interleave(2, dim=0)[::2]
    assert not strided.is_contiguous() and not every_second.is_contiguous()
    for gallery in (strided, every_second, B.double()):
        assert torch.equal(exact_scores(A, gallery), whole)
        assert torch.equal(summed_scores(A, gallery, gallery), summed_scores(A, B, B))
        assert torch.equal(composed_query(A.T.contiguous().T, A.double(), A), composed_query(A, A, A))
    assert torch.equal(rank_by(exact_scores(A, strided).T.contiguous().T), rank_by(whole))
    assert rank_by(exact_scores(A, B[:1])).tolist() == [[0]] * 3
    assert rank_by(rrf(whole[:, :1], whole[:, :1])).tolist() == [[0]] * 3
    long = 15 * B
    for call in (lambda: debiased_scores(A, A, A, long), lambda: summed_scores(A, B, long)):
        with pytest.raises(InputError, match="row 0 has length 15"):
            call()
    with pytest.raises(InputError, match="two tensors"):
        exact_scores(A.cpu().numpy(), B.cpu().numpy())


def test_exact_scores_are_the_same_on_every_device(device):
    A, B = unit(3, 50, 0), unit(97, 50, 1)
    assert torch.equal(exact_scores(A.to(device), B.to(device)).cpu(), exact_scores(A, B))
    w = composed_query(A, A.flip(0), A)
    assert torch.equal(composed_query(A.to(device), A.flip(0).to(device), A.to(device)).cpu(), w)


def test_equal_rows_tie_and_keep_gallery_order(device):
    A = unit(2, 33, 0).to(device)
    B = unit(5, 33, 1)[[0, 1, 2, 0, 3, 0, 4, 1]].to(device)
    scores = exact_scores(A, B)
    assert torch.equal(scores[:, 0], scores[:, 3]) and torch.equal(scores[:, 0], scores[:, 5])
    for row in rank_by(scores).tolist():
        places = [row.index(i) for i in (0, 3, 5)]
        assert places == sorted(places) and row.index(1) < row.index(7)


def test_ranks_by_hand():
    scores = torch.tensor([[0.5, 0.9, 0.5, 0.1, 0.9]])
    assert rank_by(scores).tolist() == [[1, 4, 0, 2, 3]]
    assert ranks_of(scores).tolist() == [[3, 1, 4, 5, 2]]
    assert rank_by(torch.tensor([[-0.0, 0.0]])).tolist() == [[0, 1]]
    assert reciprocal_ranks(scores, 1).tolist() == [[1 / 4, 1 / 2, 1 / 5, 1 / 6, 1 / 3]]


def test_ranks_do_not_depend_on_the_blocks_of_queries(monkeypatch, device):
    S = (exact_scores(unit(7, 9, 0), unit(40, 9, 1)) * 8).round().to(device)  # with many ties
    T = S.flip(1)
    whole = rank_by(S), ranks_of(S), reciprocal_ranks(S), rrf(S, T)
    assert whole[0].tolist() == [sorted(range(40), key=lambda i, row=row: (-row[i], i)) for row in S.tolist()]
    assert torch.equal(whole[3], 1 / (60 + ranks_of(S).double()) + 1 / (60 + ranks_of(T).double()))
    sort, sorted_rows = torch.sort, []

    def counted(scores, **how):
        sorted_rows.append(len(scores))
        return sort(scores, **how)

    monkeypatch.setattr(torch, "sort", counted)
    for rows in (1, 3, 7):
        monkeypatch.setattr(scoring, "SORT_ELEMENTS", 40 * rows)
        sorted_rows.clear()
        blocks = rank_by(S), ranks_of(S), reciprocal_ranks(S), rrf(S, T)
        assert max(sorted_rows) == rows  # no more than a block is held twice
        assert all(torch.equal(block, found) for block, found in zip(blocks, whole, strict=True))
        with pytest.raises(InputError, match="query 6, gallery item 39"):
            rank_by(torch.cat([S[:6], S[6:].clone().index_fill_(1, torch.tensor([39]).to(device), math.nan)]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_not_finite_raise(bad):
    with pytest.raises(InputError, match="query 1, gallery item 0"):
        rank_by(torch.tensor([[0.0, 1.0], [bad, 0.0]]))
    with pytest.raises(InputError, match=r"\(Q, N\)"):
        rank_by(torch.tensor([0.0, 1.0]))


def test_display_never_changes_the_order():
    scores = torch.tensor([[-0.2, 0.3, -0.5, 0.1]])
    assert display_scores(scores).tolist() == scores.double().tolist()
    assert display_scores(scores, "clip")[0].tolist() == pytest.approx([0, 0.3, 0, 0.1])
    soft = display_scores(scores, "softmax")
    assert float(soft.sum()) == pytest.approx(1) and rank_by(soft).tolist() == rank_by(scores).tolist() == [
        [1, 3, 0, 2]
    ]
    clipped = display_scores(scores, "clip").gather(1, rank_by(scores))
    assert bool((clipped.diff(dim=1) <= 0).all())
    with pytest.raises(InputError, match="raw, clip, softmax"):
        display_scores(scores, "sigmoid")


# --- X^R: coarse filtering --------------------------------------------------------------------------------


def test_four_cosines_by_hand():
    e1, e2, half = [1.0, 0.0], [0.0, 1.0], [0.6, 0.8]
    found = four_cosines(
        torch.tensor([e1]), torch.tensor([e2]), torch.tensor([e1, half]), torch.tensor([half, e2])
    )
    assert found.s_t_t[0].tolist() == pytest.approx([1, 0.6])
    assert found.s_t_v[0].tolist() == pytest.approx([0, 0.8])
    assert found.s_v_t[0].tolist() == pytest.approx([0.6, 0])
    assert found.s_v_v[0].tolist() == pytest.approx([0.8, 1])
    assert found.S_t[0].tolist() == pytest.approx([1.6, 0.6])  # aligned by the query's modality
    assert found.S_v[0].tolist() == pytest.approx([0.8, 1.8])


@quick
@given(
    C_t=dyadic_unit(),
    C_v=dyadic_unit(),
    pairs=st.lists(st.tuples(dyadic_unit(), dyadic_unit()), min_size=1, max_size=10),
)
def test_summed_gallery_equals_four_products_on_a_dyadic_grid(C_t, C_v, pairs):
    C_a, I_a = (torch.tensor([pair[i] for pair in pairs]) for i in (0, 1))
    C_t, C_v = torch.tensor([C_t]), torch.tensor([C_v])
    plain, G = four_cosines(C_t, C_v, C_a, I_a), summed_gallery(C_a, I_a)
    assert torch.equal(plain.S_t, exact_scores(C_t, G)) and torch.equal(plain.S_v, exact_scores(C_v, G))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_summed_gallery_agrees_within_the_bound(dtype, device):
    C_t, C_v, C_a, I_a = (
        unit(rows, 96, seed, dtype).to(device) for seed, rows in enumerate([4, 4, 200, 200])
    )
    plain, G = four_cosines(C_t, C_v, C_a, I_a), summed_gallery(C_a, I_a)
    assert float((plain.S_t - exact_scores(C_t, G)).abs().max()) <= agreement_bound(96, 1)
    assert float((plain.S_v - exact_scores(C_v, G)).abs().max()) <= agreement_bound(96, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_summed_scores_are_those_of_the_summed_gallery_to_the_bit(dtype, device, monkeypatch):
    C, C_a, I_a = (unit(rows, 24, seed, dtype).to(device) for seed, rows in enumerate([5, 300, 300]))
    expected = exact_scores(C, summed_gallery(C_a, I_a))
    assert torch.equal(summed_scores(C, C_a, I_a), expected)
    monkeypatch.setattr(scoring, "BLOCK_ELEMENTS", 24 * 7)  # 43 blocks
    assert torch.equal(summed_scores(C, C_a, I_a), expected)


def test_summed_scores_refuse_what_four_cosines_refuses():
    C, C_a, I_a = (unit(rows, 24, seed) for seed, rows in enumerate([5, 30, 30]))
    with pytest.raises(InputError, match="shapes differ"):
        summed_scores(C, C_a, I_a[:-1])
    with pytest.raises(InputError, match="I_a: 12 values wide where 24 were expected"):
        summed_scores(C, C_a, unit(30, 12, 0))
    with pytest.raises(InputError, match=r"C_a: row \d+ has length 2 where unit"):
        summed_scores(C, 2 * C_a, I_a)


@pytest.mark.parametrize(("value", "message"), [(math.nan, "holds NaN"), (3.0, "has length 3")])
def test_a_bad_row_is_named_in_whatever_block_it_lies(value, message, monkeypatch):
    monkeypatch.setattr(scoring, "BLOCK_ELEMENTS", 24 * 7)
    features = unit(40, 24, 0)
    features[33] = 0
    features[33, 5] = value
    with pytest.raises(InputError, match=f"gallery: row 33 {message}"):
        check_features("gallery", features)


def test_rrf_by_hand():
    S_t, S_v = torch.tensor([[0.9, 0.5, 0.5]]), torch.tensor([[0.1, 0.3, 0.2]])
    assert rrf(S_t, S_v)[0].tolist() == [1 / 61 + 1 / 63, 1 / 62 + 1 / 61, 1 / 63 + 1 / 62]
    assert rrf(S_t, S_v, 0)[0].tolist() == [1 + 1 / 3, 1 / 2 + 1, 1 / 3 + 1 / 2]
    for kappa in (-1, math.nan, math.inf):
        with pytest.raises(InputError, match="kappa"):
            rrf(S_t, S_v, kappa)
    with pytest.raises(InputError, match="shapes differ"):
        rrf(S_t, S_v[:, :2])


def brute_rrf(t, v, kappa):
    def rank(scores, i):
        return 1 + sum(s > scores[i] for s in scores) + sum(s == scores[i] for s in scores[:i])

    return [1 / (kappa + rank(t, i)) + 1 / (kappa + rank(v, i)) for i in range(len(t))]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    data=st.data(),
    n=st.integers(1, 40),
    levels=st.integers(1, 40),
    kappa=st.sampled_from([0, 1, 10, 60, 7.5]),
)
def test_certified_cut_is_the_full_ranking_cut(data, n, levels, kappa):
    row = st.lists(st.integers(0, levels), min_size=n, max_size=n)
    t, v = data.draw(row), data.draw(row)
    k = data.draw(st.integers(1, n + 3))
    S_t, S_v = torch.tensor([t], dtype=torch.float64) / 64, torch.tensor([v], dtype=torch.float64) / 64
    want = brute_rrf(t, v, kappa)
    items, scores = certified_rrf_topk(S_t, S_v, k, kappa)
    assert rrf(S_t, S_v, kappa)[0].tolist() == want
    assert items[0].tolist() == brute_order(want)[:k]
    assert scores[0].tolist() == [want[i] for i in brute_order(want)[:k]]


@pytest.mark.parametrize("kind", ["independent", "same", "reversed", "coarse"])
@pytest.mark.parametrize("k", [1, 10, 100])
def test_certified_cut_on_long_lists(kind, k, device):
    generator = torch.Generator().manual_seed(k)
    S_t = torch.rand(4, 3000, generator=generator, dtype=torch.float64)
    S_v = {
        "independent": torch.rand(4, 3000, generator=generator, dtype=torch.float64),
        "same": S_t,
        "reversed": -S_t,
        "coarse": (S_t * 20).round(),  # thousands of ties
    }[kind].to(device)
    S_t = S_t.to(device)
    fused = rrf(S_t, S_v)
    items, scores = certified_rrf_topk(S_t, S_v, k)
    want = rank_by(fused)[:, :k]
    assert torch.equal(items, want) and torch.equal(scores, fused.gather(1, want))


def test_certified_cut_looks_at_the_head_alone_and_doubles_when_it_must(monkeypatch):
    looked = []
    head = scoring._head
    monkeypatch.setattr(scoring, "_head", lambda scores, top: looked.append(top) or head(scores, top))
    S = torch.rand(1, 5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    certified_rrf_topk(S, S, 100)
    assert looked == [200, 200]  # equal lists: proven at once
    looked.clear()
    items, _ = certified_rrf_topk(S, -S, 100, kappa=1000)  # opposite lists: 1/1050 + 1/5950 < 2/1201
    assert looked == [200, 200, 400, 400, 800, 800]
    assert torch.equal(items, rank_by(rrf(S, -S, 1000))[:, :100])


def test_cuts_of_small_galleries():
    one = torch.tensor([[0.3], [0.1]])
    items, scores = certified_rrf_topk(one, one, 100)
    assert items.tolist() == [[0], [0]] and scores.tolist() == [[2 / 61], [2 / 61]]
    items, _ = certified_rrf_topk(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 2.0, 3.0]]), 7)
    assert items.tolist() == [[2, 1, 0]]
    assert certified_rrf_topk(torch.empty(0, 5), torch.empty(0, 5), 3)[0].shape == (0, 3)
    with pytest.raises(InputError, match="k = 0"):
        certified_rrf_topk(one, one, 0)


# --- X^R: fine filtering ----------------------------------------------------------------------------------


def reranked(S_q_t, S_q_v, S_t, S_v, lam=0.15, questions=9, positions=None, **kind):
    count = len(S_t)
    return rerank(
        torch.tensor([S_q_t]),
        torch.tensor([S_q_v]),
        torch.tensor([S_t], dtype=torch.float64),
        torch.tensor([S_v], dtype=torch.float64),
        lam,
        questions=torch.tensor([questions]),
        positions=torch.tensor([list(range(count)) if positions is None else positions]),
        **kind,
    )


def test_rerank_by_hand():
    found = reranked([1, 2, 0], [1, 1, 3], [1.0, 0.5, 0.0], [1.0, 0.5, 0.0], questions=3)
    assert found.similarity[0].tolist() == pytest.approx([1, 0.5, 0])
    assert found.scores[0].tolist() == pytest.approx([2, 1.5, 0])
    assert found.order.tolist() == [[0, 1, 2]]
    found = reranked([1, 3, 0], [0, 2, 3], [1.0, 0.5, 0.0], [1.0, 0.5, 0.0], questions=3)
    assert found.scores[0].tolist() == pytest.approx([1, 2.5, 0]) and found.order.tolist() == [[1, 0, 2]]


def test_lambda_weighs_the_text_side():
    S_t, S_v = [1.0, 0.0], [0.0, 1.0]
    assert reranked([1, 1], [1, 1], S_t, S_v, lam=1).order.tolist() == [[0, 1]]
    assert reranked([1, 1], [1, 1], S_t, S_v, lam=0).order.tolist() == [[1, 0]]
    assert reranked([1, 1], [1, 1], S_t, S_v).order.tolist() == [[1, 0]]  # 0.15 : 0.85
    for lam in (-0.1, 1.1, math.nan):
        with pytest.raises(InputError, match="lambda"):
            reranked([1, 1], [1, 1], S_t, S_v, lam=lam)


def test_degenerate_similarities_normalise_to_one():
    assert normalise_similarity(torch.tensor([[0.4, 0.4, 0.4]])).tolist() == [[1, 1, 1]]
    assert normalise_similarity(torch.tensor([[-0.7]])).tolist() == [[1]]
    found = reranked([0, 2, 1], [0, 0, 0], [0.4] * 3, [0.4] * 3)
    assert found.scores.tolist() == [[0, 2, 1]] and found.order.tolist() == [[1, 2, 0]]
    one = reranked([2], [1], [0.1], [0.2])
    assert one.scores.tolist() == [[3]] and one.order.tolist() == [[0]]


def test_zero_similarity_scores_zero_whatever_the_answers():
    found = reranked([9, 0], [9, 1], [0.0, 1.0], [0.0, 1.0])
    assert found.scores.tolist() == [[0, 1]] and found.order.tolist() == [[1, 0]]


def test_ties_go_by_similarity_then_by_gallery_order():
    # Scores 0 for all: similarity decides; equal similarity: the earlier gallery position.
    found = reranked(
        [0, 0, 0, 0], [0, 0, 0, 0], [0.1, 0.9, 0.5, 0.9], [0.1, 0.9, 0.5, 0.9], positions=[3, 8, 0, 5]
    )
    assert found.order.tolist() == [[3, 1, 2, 0]]
    # The same products, 1 x 1 and 2 x 1/2, from different similarities.
    found = reranked([2, 1, 0], [0, 0, 0], [0.5, 1.0, 0.0], [0.5, 1.0, 0.0])
    assert found.scores[0].tolist() == [1, 1, 0] and found.order.tolist() == [[1, 0, 2]]


def test_without_questions_the_coarse_order_stays():
    found = reranked([0, 0, 0], [0, 0, 0], [0.1, 0.9, 0.5], [0.1, 0.9, 0.5], questions=0, positions=[7, 2, 4])
    assert found.order.tolist() == [[0, 1, 2]] and found.scores.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("counts", [[-1, 0], [4, 0]])
def test_impossible_counts_raise(counts):
    with pytest.raises(InputError, match="S_q_v"):
        reranked([0, 0], counts, [0.1, 0.2], [0.1, 0.2], questions=3)


def test_normalisations_are_named_and_never_negative():
    similarity = torch.tensor([[-0.5, 0.25, 0.5]])
    assert normalise_similarity(similarity, "clamp").tolist() == [[0, 0.25, 0.5]]
    assert float(normalise_similarity(similarity, "softmax").sum()) == pytest.approx(1)
    assert reranked([1, 1], [1, 0], [-1.0, 1.0], [-1.0, 1.0], normalise="clamp").scores.tolist() == [[0, 1]]
    with pytest.raises(InputError, match="minmax, clamp, softmax"):
        normalise_similarity(similarity, "zscore")


@quick
@given(
    data=st.data(), n=st.integers(1, 12), lam=st.sampled_from([0, 0.25, 0.5, 1]), questions=st.integers(0, 4)
)
def test_rerank_against_python(data, n, lam, questions):
    def drawn(high):
        return data.draw(st.lists(st.integers(0, high), min_size=n, max_size=n))

    S_q_t, S_q_v = drawn(questions), drawn(questions)
    S_t, S_v = [s / 4 for s in drawn(4)], [s / 4 for s in drawn(4)]
    positions = data.draw(st.permutations(range(n)))
    found = reranked(S_q_t, S_q_v, S_t, S_v, lam, questions, list(positions))
    similarity = [lam * a + (1 - lam) * b for a, b in zip(S_t, S_v, strict=True)]
    low, high = min(similarity), max(similarity)
    norm = [1.0 if high == low else (s - low) / (high - low) for s in similarity]
    final = [(a + b) * s for a, b, s in zip(S_q_t, S_q_v, norm, strict=True)]
    want = (
        sorted(range(n), key=lambda i: (-final[i], -similarity[i], positions[i]))
        if questions
        else list(range(n))
    )
    assert found.scores[0].tolist() == final and found.order[0].tolist() == want
    # The bound that lossless pruning rests on.
    assert all(score <= 2 * questions * s for score, s in zip(final, norm, strict=True))
