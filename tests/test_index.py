"""The FAISS index on the composed query: the flat kind to the item, the others flagged and measured; files
that are whole, mapped, added to, and refused where they do not belong together."""

import hashlib
import importlib.util
import json
import math
import os
import re
import shutil
import signal
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from test_scoring import CUDA, brute_order, dot, dyadic_query, dyadic_unit, fractions, unit
from test_search import STORED, dyadic_gallery, ignore_settings, random_gallery

from cir_utils import index as rooms
from cir_utils.errors import InputError
from cir_utils.files import own_sha256
from cir_utils.index import (
    add_to_index,
    build_index,
    check_belongs,
    debiased_recall,
    debiased_search,
    load_index,
    recall,
    save_index,
    search_index,
    shortlist_search,
)
from cir_utils.scoring import anchored_query, composed_query, exact_scores, rank_by
from cir_utils.search import debiased_topk, map_features, prepare_gallery

faiss = pytest.importorskip("faiss", reason="faiss is not installed (the extra `index`)")

quick = settings(max_examples=40, deadline=None, derandomize=True)
KINDS = ["flat", "hnsw", "ivfpq"]
#: Small enough that ivfpq learns its codes in a moment.
WIDTH, ROWS = 8, 300


@pytest.fixture(params=["cpu", CUDA])
def device(request):
    return request.param


@pytest.fixture(scope="module")
def rows():
    return unit(ROWS, WIDTH, 0)


@pytest.fixture(scope="module")
def sides():
    return [unit(3, WIDTH, seed) for seed in (1, 2, 3)]


def ids_of(count, first=0):
    """Ids that differ from positions, numbers and texts."""
    return [100 + row if row % 2 else f"picture {row}" for row in range(first, first + count)]


@pytest.fixture(scope="module")
def built(rows):
    """One index of each kind; tests that change one build their own."""
    return {kind: build_index(rows, ids_of(ROWS), kind) for kind in KINDS}


# --- flat: exact ------------------------------------------------------------------------------------------


@ignore_settings
@quick
@given(
    st.lists(dyadic_query(), min_size=1, max_size=3),
    dyadic_unit(),
    dyadic_gallery(),
    st.sampled_from([0.0, 0.25, 0.5, 1.0, 4.0]),
    st.integers(1, 45),
    st.sampled_from(STORED),
    st.sampled_from([0, 1, 16]),
)
def test_flat_is_exact_on_the_grid(queries, F_m, gallery, beta, k, stored, slack):
    features = torch.tensor(gallery, dtype=stored)
    index = build_index(features, ids_of(len(gallery)))
    for F_r, F_d, alpha in queries:
        three = [torch.tensor([side, side], dtype=torch.float64) for side in (F_r, F_d, F_m)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rooms, "SLACK", slack)
            found = debiased_search(index, *three, k, alpha, beta)
        r, d, m = map(fractions, (F_r, F_d, F_m))
        mix = [(1 - Fraction(alpha)) * x + Fraction(alpha) * y for x, y in zip(d, r, strict=True)]
        length = Fraction(math.sqrt(dot(mix, mix)))
        b = Fraction(beta)
        want = [(1 + b) * dot(mix, x) / length - b * (dot(d, x) - dot(m, x)) for x in map(fractions, gallery)]
        order = brute_order(want)[:k]
        assert found.exact and found.items.tolist() == [order, order]
        assert found.scores[0].tolist() == [float(want[item]) for item in order]
        assert found.ids[1] == [ids_of(len(gallery))[item] for item in order]
        best = debiased_topk(*three, prepare_gallery(features), k, alpha, beta)
        assert torch.equal(found.items, best.items) and torch.equal(found.scores, best.scores)


@quick
@given(
    st.integers(1, 200),
    st.sampled_from([2, 16, 33]),
    st.integers(0, 10**6),
    st.integers(1, 220),
    st.sampled_from(STORED),
    st.booleans(),
    st.sampled_from([0, 16]),
)
def test_flat_on_random_features(n, width, seed, k, stored, twins, slack):
    features = random_gallery(n, width, seed, stored, twins)
    W = 3 * torch.randn(2, width, generator=torch.Generator().manual_seed(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rooms, "SLACK", slack)
        found = search_index(build_index(features, range(n)), W, k)
    scores = exact_scores(W, features)
    order = rank_by(scores)[:, :k]
    assert torch.equal(found.items, order) and torch.equal(found.scores, scores.gather(1, order))


def test_near_ties_that_float32_scores_cannot_tell():
    """Rows whose scores differ by less than float32 shows stand in the order of their stored values."""
    noise = torch.randn(500, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    features = (unit(1, 16, 1, torch.float64) + 3e-8 * noise).float()
    W = torch.cat([unit(1, 16, 1), unit(1, 16, 2)])
    scores = exact_scores(W, features)
    assert len(scores[0].unique()) > 300 and len(scores[0].float().unique()) < 10
    assert torch.equal(search_index(build_index(features, range(500)), W, 20).items, rank_by(scores)[:, :20])


def test_all_rows_alike_rank_in_gallery_order(monkeypatch):
    monkeypatch.setattr(rooms, "PENDING", 100)
    index = build_index(unit(1, 16, 0).expand(400, 16).contiguous(), range(400))
    assert search_index(index, unit(3, 16, 1), 5).items.tolist() == [[0, 1, 2, 3, 4]] * 3


@pytest.mark.parametrize("length", [1e-300, 1e30, 1e300])
def test_queries_of_any_length(length, rows, built):
    W = unit(2, WIDTH, 1, torch.float64)
    for kind in KINDS:
        scaled, plain = search_index(built[kind], W * length, 5), search_index(built[kind], W, 5)
        assert torch.equal(scaled.items, plain.items)
    scaled = search_index(built["flat"], W * length, 5)
    assert torch.equal(scaled.scores, exact_scores(W * length, rows).gather(1, scaled.items))


def test_results_come_back_on_the_queries_device(device, rows, sides, built):
    three = [side.to(device) for side in sides]
    found = debiased_search(built["flat"], *three, 4)
    assert {found.items.device.type, found.scores.device.type, found.widened.device.type} == {device}
    assert torch.equal(found.items, debiased_topk(*three, prepare_gallery(rows.to(device)), 4).items)
    again = build_index(rows.to(device), ids_of(ROWS))
    assert again.parts == built["flat"].parts


# --- hnsw and ivfpq: approximate --------------------------------------------------------------------------


def test_approximate_kinds_say_so_and_score_what_they_find_exactly(rows, sides, built):
    gallery = prepare_gallery(rows)
    w = composed_query(*sides)
    for kind, least in (("hnsw", 1.0), ("ivfpq", 0.9)):
        found = debiased_search(built[kind], *sides, 10, gallery=gallery)
        assert not found.exact and not built[kind].exact and not found.widened.any()
        assert torch.equal(found.scores, exact_scores(w, rows).gather(1, found.items))
        assert (found.scores[:, :-1] >= found.scores[:, 1:]).all()
        assert debiased_recall(found.items, *sides, gallery).mean() >= least
        assert found.ids == [[ids_of(ROWS)[item] for item in row] for row in found.items.tolist()]
    coarse = debiased_search(built["ivfpq"], *sides, 10)
    assert not torch.equal(coarse.scores, exact_scores(w, rows).gather(1, coarse.items))
    assert (coarse.scores - exact_scores(w, rows).gather(1, coarse.items)).abs().max() < 1
    assert built["flat"].exact


def test_the_graph_is_the_one_of_distances(rows, built):
    """Rows of unit length: the walk for the largest inner product is the walk for the smallest distance, for
    queries of any length."""
    plain = faiss.IndexHNSWFlat(WIDTH, 32, faiss.METRIC_L2)
    plain.hnsw.efConstruction = 200
    plain.add(rows.numpy())
    W = 1.7 * unit(20, WIDTH, 5)
    few = faiss.SearchParametersHNSW(efSearch=10)
    found = plain.search(W.numpy(), 10, params=few)[1]
    assert built["hnsw"].handle.search(W.numpy(), 10, params=few)[1].tolist() == found.tolist()
    assert (
        recall(torch.from_numpy(found), rank_by(exact_scores(W, rows))[:, :10]) < 1
    ).any()  # not everything


def test_a_graph_in_pieces_is_searched_whole():
    """Two groups of equal rows, hardly linked: a walk that stays in one of them finds too few."""
    two = torch.zeros(2, 16)
    two[0, 0] = two[1, 1] = 1
    features = two.repeat_interleave(100, dim=0)
    index = build_index(features, range(200), "hnsw", M=2, efConstruction=2, efSearch=1)
    W = torch.stack([two[0] + 0.1 * two[1], two[1] + 0.1 * two[0]])
    direct = index.handle.search(W.numpy(), 150, params=faiss.SearchParametersHNSW(efSearch=150))[1]
    assert (direct == -1).any(axis=1).all()
    found = search_index(index, W, 150)
    assert found.widened.tolist() == [True, True] and not found.exact
    assert found.items.tolist() == [list(range(150)), [*range(100, 200), *range(50)]]


def test_lists_that_hold_too_few_are_followed_by_all(rows):
    index = build_index(rows, range(ROWS), "ivfpq", nlist=50, nprobe=1)
    W = unit(4, WIDTH, 6)
    direct = index.handle.search(W.numpy(), 200, params=faiss.SearchParametersIVF(nprobe=1))[1]
    assert (direct == -1).any(axis=1).all()
    found = search_index(index, W, 200)
    assert found.widened.all() and found.items.min() >= 0
    assert all(len(set(row)) == 200 for row in found.items.tolist())
    every = search_index(index, W, 10**6, gallery=prepare_gallery(rows))
    assert torch.equal(every.items, rank_by(exact_scores(W, rows))) and not every.exact


@quick
@given(st.integers(1, 60), st.integers(1, 80), st.integers(2, 4), st.integers(0, 99), st.booleans())
def test_never_minus_one(n, k, M, seed, twins):
    features = random_gallery(n, 4, seed, torch.float32, twins)
    index = build_index(features, range(n), "hnsw", M=M, efConstruction=1, efSearch=1)
    found = search_index(index, unit(3, 4, seed + 1), k)
    assert found.items.shape == (3, min(k, n)) and found.items.min() >= 0
    assert all(len(set(row)) == min(k, n) for row in found.items.tolist())


def test_no_queries(built):
    for kind in KINDS:
        found = search_index(built[kind], torch.empty(0, WIDTH), 3)
        assert found.items.shape == found.scores.shape == (0, 3) and found.ids == []


# --- the shortlist, and recall ----------------------------------------------------------------------------


def test_a_shortlist_debiases_its_head(rows, sides, built):
    scores = exact_scores(composed_query(*sides), rows)
    nearest = rank_by(exact_scores(anchored_query(*sides[:2], 0.1), rows))[:, :12].sort(dim=1).values
    want = nearest.gather(1, rank_by(scores.gather(1, nearest)))[:, :5]
    found = shortlist_search(built["flat"], *sides, 5, 12)
    assert torch.equal(found.items, want) and not found.exact
    assert torch.equal(found.scores, scores.gather(1, want))
    everything = shortlist_search(built["flat"], *sides, 5, ROWS)
    assert torch.equal(everything.items, rank_by(scores)[:, :5]) and everything.exact
    assert not shortlist_search(built["hnsw"], *sides, 5, ROWS).exact
    assert shortlist_search(built["ivfpq"], *sides, 5, 50, gallery=prepare_gallery(rows)).items.min() >= 0


@ignore_settings
def test_a_shortlist_misses_what_debias_lifts():
    """Item 2 is last for F_q and first once the description's share is taken away."""
    F_d = F_r = torch.tensor([[1.0, 0.0]])
    F_m = torch.tensor([[0.0, 1.0]])
    features = torch.tensor([[1.0, 0.0], [0.8, -0.6], [0.0, 1.0]])
    index = build_index(features, ["a", "b", "c"])
    # beta = 2: w = 3 F_q - 2 F_d + 2 F_m = (1, 2), so the scores are 1, -0.4 and 2.
    three = (F_r, F_d, F_m)
    assert debiased_search(index, *three, 1, 0.0, 2.0).ids == [["c"]]
    short = shortlist_search(index, *three, 1, 2, 0.0, 2.0)
    assert short.ids == [["a"]] and short.scores.tolist() == [[1.0]]
    assert debiased_recall(short.items, *three, prepare_gallery(features), 0.0, 2.0).tolist() == [0.0]
    two = shortlist_search(index, *three, 2, 2, 0.0, 2.0)
    assert debiased_recall(two.items, *three, prepare_gallery(features), 0.0, 2.0).tolist() == [0.5]


def test_recall_by_hand():
    best = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [5, 6, 7, 0]])
    items = torch.tensor([[4, 3, 2, 1], [1, 9, 8, 4], [10, 11, 12, 13]])
    assert recall(items, best).tolist() == [1.0, 0.5, 0.0]
    assert recall(items, best[:, :1]).tolist() == [1.0, 1.0, 0.0]
    assert recall(items[:, :1], best).tolist() == [0.25, 0.25, 0.0]
    for bad in ([[1, -1, 2]], [[1, 2, 1]]):
        with pytest.raises(InputError, match="items: row 0 holds -1 or an item twice"):
            recall(torch.tensor(bad), best[:1])
        with pytest.raises(InputError, match="best: row 0 holds -1 or an item twice"):
            recall(best[:1], torch.tensor(bad))
    with pytest.raises(InputError, match="one row a query in both"):
        recall(items, best[:2])


# --- adding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_additions_are_found_and_their_ids_travel(kind, rows, sides):
    index = build_index(rows[:280], ids_of(280), kind)
    add_to_index(index, rows[280:281].half(), ids_of(1, 280))
    add_to_index(index, rows[281:], ids_of(19, 281))
    assert (index.count, index.ids) == (ROWS, ids_of(ROWS))
    held = torch.cat([rows[:280], rows[280:281].half().float(), rows[281:]])
    gallery = prepare_gallery(held)
    found = search_index(index, held[[285, 299]], 3, gallery=gallery)
    assert found.ids[0][0] == ids_of(1, 285)[0] and found.ids[1][0] == ids_of(1, 299)[0]
    found = debiased_search(index, *sides, 9, gallery=gallery)
    assert debiased_recall(found.items, *sides, gallery).mean() >= (0.8 if kind == "ivfpq" else 1)
    check_belongs(index, held)
    with pytest.raises(InputError, match="rows 280 to 280 are not those"):
        check_belongs(index, rows)
    if kind == "flat":
        assert torch.equal(found.items, debiased_topk(*sides, gallery, 9).items)


def test_wrong_additions_add_nothing(rows, built):
    index = build_index(rows[:10], ids_of(10))
    for ids, message in (
        (["new", ids_of(10)[3]], f"id {ids_of(10)[3]} of row 1 is in the index already"),
        (["new", "new"], "id 'new' of row 1 occurs twice"),
        (["new"], "1 ids for 2 rows"),
        (["new", 1.0], "id 1.0 of row 1: expected a whole number or a text"),
        (["new", True], "id True of row 1: expected"),
        (["new", "\ud800"], "of valid Unicode"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            add_to_index(index, rows[10:12], ids)
    with pytest.raises(InputError, match="row 1 has length 2"):
        add_to_index(index, rows[10:12] * torch.tensor([[1.0], [2.0]]), ["new", "other"])
    with pytest.raises(InputError, match="4 values wide where 8 were expected"):
        add_to_index(index, unit(2, 4, 0), ["new", "other"])
    assert (index.count, index.handle.ntotal, len(index.parts)) == (10, 10, 1)
    add_to_index(index, rows[10:12], ["new", "other"])
    assert index.ids[10:] == ["new", "other"]


def test_a_broken_addition_is_noticed(rows):
    index = build_index(rows[:10], ids_of(10))
    index.handle.add(rows[10:12].numpy())  # as when memory ends on the way
    for use in (lambda: search_index(index, rows[:1], 1), lambda: add_to_index(index, rows[:1], ["x"])):
        with pytest.raises(InputError, match="12 rows for 10 ids, an addition was broken off"):
            use()


# --- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_index_comes_back_from_its_folder(kind, mapped, rows, sides, built, tmp_path):
    gallery = prepare_gallery(rows)
    path = save_index(built[kind], tmp_path / "a" / "b")
    assert path == tmp_path / "a" / "b" / "index.json"
    index = load_index(path.parent, rows, mapped=mapped)
    assert (index.kind, index.ids, index.parts, index.settings, index.width, index.mapped) == (
        kind, ids_of(ROWS), built[kind].parts, built[kind].settings, WIDTH, mapped
    )  # fmt: skip
    want = debiased_search(built[kind], *sides, 7, gallery=gallery)
    found = debiased_search(index, *sides, 7, gallery=gallery)
    assert torch.equal(found.items, want.items) and torch.equal(found.scores, want.scores)
    assert (found.ids, found.exact) == (want.ids, want.exact)
    if mapped:
        (file,) = path.parent.glob("*.faiss")
        if Path("/proc/self/maps").exists():
            assert str(file) in Path("/proc/self/maps").read_text()
        with pytest.raises(InputError, match="a mapped index cannot be added to"):
            add_to_index(index, rows[:1], ["new"])
        with pytest.raises(InputError, match="a mapped index is in its folder already"):
            save_index(index, tmp_path / "c")
    else:
        add_to_index(index, unit(1, WIDTH, 9), ["new"])
        save_index(index, path.parent)
        more = torch.cat([rows, unit(1, WIDTH, 9)])
        again = load_index(path.parent, more)
        assert search_index(again, more[-1:], 1, gallery=prepare_gallery(more)).ids == [["new"]]
        assert len(list(path.parent.iterdir())) == 2  # the file of the earlier index is gone


def test_mapped_features_build_the_same_index(rows, sides, tmp_path, monkeypatch):
    monkeypatch.setattr(rooms, "BLOCK_ELEMENTS", 64)
    save_file({"features": rows.half()}, tmp_path / "f.safetensors")
    mapped = map_features(tmp_path / "f.safetensors")
    for kind in KINDS:
        index = build_index(mapped, ids_of(ROWS), kind)
        want = build_index(rows.half(), ids_of(ROWS), kind)
        assert index.parts == want.parts
        found = debiased_search(index, *sides, 5, gallery=prepare_gallery(mapped))
        plain = debiased_search(want, *sides, 5, gallery=prepare_gallery(rows.half()))
        assert torch.equal(found.items, plain.items) and torch.equal(found.scores, plain.scores)
    add_to_index(index, mapped, ids_of(ROWS, ROWS))
    both = torch.cat([rows.half()] * 2)
    save_file({"features": both}, tmp_path / "both.safetensors")
    check_belongs(index, map_features(tmp_path / "both.safetensors"))
    check_belongs(index, both.float())
    both[ROWS + 7] = both[0]
    save_file({"features": both}, tmp_path / "both.safetensors")
    with pytest.raises(InputError, match="rows 300 to 599 are not those of the index"):
        check_belongs(index, map_features(tmp_path / "both.safetensors"))
    save_file({"features": rows * 2}, tmp_path / "long.safetensors")
    with pytest.raises(InputError, match="row . has length 2"):
        build_index(map_features(tmp_path / "long.safetensors"), ids_of(ROWS))
    with pytest.raises(InputError, match="8 values wide where 4 were expected"):
        add_to_index(build_index(unit(3, 4, 0), range(3)), mapped, ids_of(ROWS))


@pytest.mark.parametrize("moment", ["in the FAISS file", "before its name", "before the manifest's name"])
def test_a_killed_save_leaves_the_old_index(moment, rows, built, tmp_path):
    """A real kill, in a process of its own."""
    save_index(built["flat"], tmp_path)
    new = build_index(rows.flip(0).contiguous(), range(ROWS))
    child = os.fork()
    if child == 0:
        calls = []

        def die(*args):
            calls.append(args)
            if moment == "before the manifest's name" and len(calls) == 1:
                return  # the FAISS file's
            os.kill(os.getpid(), signal.SIGKILL)

        if moment == "in the FAISS file":
            # After the first bytes have gone to the stream.
            digest = rooms.hashlib.sha256()
            rooms.hashlib = type("dying", (), {"sha256": lambda: type("d", (), {"update": die})()})
            del digest
        else:
            os.fsync = die
        save_index(new, tmp_path)
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    index = load_index(tmp_path, rows)
    assert index.ids == ids_of(ROWS)
    assert len(list(tmp_path.iterdir())) > 2  # something was left
    save_index(new, tmp_path)
    assert load_index(tmp_path, rows.flip(0).contiguous()).ids == list(range(ROWS))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_save_that_fails_leaves_the_old_index(rows, built, tmp_path, monkeypatch):
    save_index(built["hnsw"], tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("cir_utils.files.os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            save_index(built["flat"], tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_files_that_do_not_belong_together_are_refused(rows, built, tmp_path):
    save_index(built["flat"], tmp_path / "good")
    (file,) = (tmp_path / "good").glob("*.faiss")
    whole = json.loads((tmp_path / "good" / "index.json").read_text())
    about = {key: value for key, value in whole.items() if key != "own_sha256"}
    content = file.read_bytes()

    def refused(match, about=about, content=content, **changes):
        folder = tmp_path / "bad"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "good", folder)
        if content is None:
            (folder / file.name).unlink()
        else:
            (folder / file.name).write_bytes(content)
        said = about | changes
        (folder / "index.json").write_text(json.dumps({"own_sha256": own_sha256(said)} | said))
        for mapped in (False, True):
            with pytest.raises(InputError, match=match) as error:
                load_index(folder, mapped=mapped)
            assert "\n" not in str(error.value) and str(folder) in str(error.value)

    other = bytearray(content)
    other[-3] ^= 1
    refused("not the file that .* describes; build the index again", content=bytes(other))
    refused("not the file that .* describes", content=content[:-4])
    refused("cannot be read .No such file", content=None)
    refused("299 ids where count is 300", ids=about["ids"][1:])
    refused("an id occurs twice", ids=[*about["ids"][:-1], about["ids"][0]])
    refused("ids.0", ids=[0.5, *about["ids"][1:]])
    refused("holds IndexFlatIP of 300 x 8 where index.json says flat of 300 x 4", width=4)
    refused("settings are not those of hnsw", kind="hnsw")
    graph = {"kind": "hnsw", "settings": {"M": 32, "efConstruction": 200, "efSearch": 256}}
    refused("holds IndexFlatIP of 300 x 8 where index.json says hnsw", **graph)
    refused("holds IndexFlatIP of 300 x 8 where index.json says flat of 299 x 8", count=299,
            ids=about["ids"][1:], features=[{"count": 299, "sha256": "0" * 64}])  # fmt: skip
    refused("features of 299 rows where count is 300", features=[{"count": 299, "sha256": "0" * 64}])
    refused("format", format="cir-index 9")
    refused("kind", kind="annoy")
    refused("file.name", file=about["file"] | {"name": f"../good/{file.name}"})
    refused("settings.efSearch", settings={"efSearch": "many"})
    refused("more: Extra inputs", more=1)
    refused("it was changed since it was written", about=whole, ids=[*about["ids"][:-1], "another"])
    refused("own_sha256", own_sha256=None)
    wrong = b"no index at all"
    told = {"name": file.name, "bytes": len(wrong), "sha256": hashlib.sha256(wrong).hexdigest()}
    refused("FAISS .* cannot read it", content=wrong, file=told)
    distances = faiss.IndexFlatL2(WIDTH)
    distances.add(rows.numpy())
    wrong = faiss.serialize_index(distances).tobytes()
    told = {"name": file.name, "bytes": len(wrong), "sha256": hashlib.sha256(wrong).hexdigest()}
    refused("holds IndexFlat.* build the index again", content=wrong, file=told)
    with pytest.raises(InputError, match="does not exist"):
        load_index(tmp_path / "nowhere")
    with pytest.raises(InputError, match="rows 0 to 299 are not those of the index"):
        load_index(tmp_path / "good", rows.flip(0))
    with pytest.raises(InputError, match=r"features \(299, 8\), index of 300 x 8"):
        load_index(tmp_path / "good", rows[1:])


def test_lists_in_another_file_are_refused(built, tmp_path):
    """A FAISS file may name any other file as the place of its lists."""
    save_index(built["ivfpq"], tmp_path)
    (file,) = tmp_path.glob("*.faiss")
    shutil.copy(file, tmp_path / "elsewhere")
    handle = load_index(tmp_path, mapped=True).handle
    faiss.downcast_InvertedLists(handle.invlists).filename = str(tmp_path / "elsewhere")
    faiss.write_index(handle, str(file))
    about = json.loads((tmp_path / "index.json").read_text())
    content = file.read_bytes()
    about["file"] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    about["own_sha256"] = own_sha256(about)
    (tmp_path / "index.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="keeps its lists in another file"):
        load_index(tmp_path)


# --- wrong input ------------------------------------------------------------------------------------------


def test_wrong_input_says_how_to_mend_it(rows, sides, built):
    flat = built["flat"]
    with pytest.raises(InputError, match="kind 'lsh' is unknown; choose one of flat, hnsw, ivfpq"):
        build_index(rows, range(ROWS), "lsh")
    with pytest.raises(InputError, match="setting 'ef' is unknown to hnsw; its settings are: M, efCons"):
        build_index(rows, range(ROWS), "hnsw", ef=3)
    with pytest.raises(InputError, match="setting 'M' is unknown to flat; its settings are: none"):
        build_index(rows, range(ROWS), M=3)
    for wrong in (0, 1, 2.0, True):
        with pytest.raises(InputError, match=f"setting M = {wrong}: expected a whole number from 2 on"):
            build_index(rows, range(ROWS), "hnsw", M=wrong)
    with pytest.raises(InputError, match="m = 3: expected a divisor of the features' width 8"):
        build_index(rows, range(ROWS), "ivfpq", m=3)
    with pytest.raises(InputError, match="nlist = 301: expected at most 300 lists"):
        build_index(rows, range(ROWS), "ivfpq", nlist=301)
    with pytest.raises(InputError, match="ivfpq needs at least 256 rows"):
        build_index(rows[:255], range(255), "ivfpq")
    with pytest.raises(InputError, match="give features.float()"):
        build_index(rows.double(), range(ROWS))
    with pytest.raises(InputError, match="got ndarray"):
        build_index(rows.numpy(), range(ROWS))
    with pytest.raises(InputError, match="k = 0: expected at least 1"):
        search_index(flat, rows, 0)
    with pytest.raises(InputError, match=r"expected a tensor \(Q, 8\)"):
        search_index(flat, unit(1, 4, 0), 1)
    with pytest.raises(InputError, match="row 0 holds NaN or infinity"):
        search_index(flat, rows[:1] * math.nan, 1)
    with pytest.raises(InputError, match="gallery of 20 x 8 features, index of 300 x 8"):
        search_index(built["ivfpq"], rows[:1], 1, gallery=prepare_gallery(rows[:20]))
    with pytest.raises(InputError, match="size = 4: expected a shortlist of at least k = 5"):
        shortlist_search(flat, *sides, 5, 4)
    with pytest.raises(InputError, match="ivfpq keeps no features"):
        shortlist_search(built["ivfpq"], *sides, 5, 10)


def test_without_faiss_the_room_opens_and_says_what_to_install(rows, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    spec = importlib.util.spec_from_file_location("cir_utils_index_without_faiss", rooms.__file__)
    fresh = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, fresh)
    spec.loader.exec_module(fresh)
    with pytest.raises(InputError, match=re.escape("pip install 'cir-utils[index]'")):
        fresh.build_index(rows, range(ROWS))
    with pytest.raises(InputError, match=re.escape("pip install 'cir-utils[index]'")):
        fresh.load_index("anywhere")


def test_threads_are_torchs_and_stay_as_they_were(rows, built, monkeypatch):
    before = faiss.omp_get_max_threads(), torch.get_num_threads()
    seen = []

    class Watched:
        ntotal = ROWS
        get_xb = built["flat"].handle.get_xb

        def search(self, *args):
            seen.append(faiss.omp_get_max_threads())
            raise KeyboardInterrupt

    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    with pytest.raises(KeyboardInterrupt):
        search_index(replace(built["flat"], handle=Watched()), rows[:2], 3)
    monkeypatch.undo()
    assert seen == [3]
    assert (faiss.omp_get_max_threads(), torch.get_num_threads()) == before


# --- the page and the benchmark ---------------------------------------------------------------------------


def test_the_pages_lines_run(tmp_path, monkeypatch, capsys):
    """`docs/faiss.md` on a stand-in for the workbench."""
    page = Path(rooms.__file__).parent.parent / "docs" / "faiss.md"
    if not page.is_file():
        pytest.skip("docs/ is not here: the package is installed")
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    gallery, texts = unit(200, 16, 0), unit(8, 16, 1)
    bench = SimpleNamespace(
        benchmark=SimpleNamespace(gallery=tuple(range(1000, 1200))),
        gallery_features=gallery,
        reference_features=gallery[:8],
        modification_features=texts,
        texts=["a text"] * 8,
        encode_texts=lambda given: SimpleNamespace(features=texts.flip(0)[: len(given)]),
    )
    monkeypatch.setattr("cir_utils.workbench.open_workbench", lambda name: bench)
    monkeypatch.chdir(tmp_path)
    space: dict = {}
    for block in blocks:
        exec(block, space)
    best = debiased_topk(gallery[:8], texts.flip(0), texts, prepare_gallery(gallery), 50, 0.15, 0.35).items
    assert space["found"].ids[0] == [1000 + item for item in best[0].tolist()]  # a graph of 200: all found
    out = capsys.readouterr().out
    assert "approximate" in out and "recall@50 against the exact ranking: 1.000, worst query 1.00" in out
    assert load_index("mini-circo.index").ids[-2:] == [1199, "a picture of mine"]


def test_a_small_benchmark_measures_every_kind(tmp_path, capsys):
    bench_index = pytest.importorskip("benchmarks.bench_index", reason="benchmarks/ is not here")
    out = tmp_path / "b.json"
    sizes = "--rows 600 --width 16 --clusters 10 --queries 3 --k 10 --rounds 2 --cores 1 --ef-search 20"
    arguments = [*sizes.split(), "--shortlist", "40", "--keep", str(tmp_path / "graph"), "--out", str(out)]
    assert bench_index.main(arguments) == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in found["rows"]}
    assert {name: row["exact"] for name, row in rows.items() if not name.startswith("scan")} == {
        "flat": True,
        "hnsw, efSearch 20": False,
        "ivfpq, its codes alone": False,
        "ivfpq, head scored again": False,
        "shortlist of 40, flat": False,
        "shortlist of 40, hnsw": False,
    }
    assert all(row["recall"] == 1 for row in rows.values() if row["exact"])
    assert 0.5 < rows["ivfpq, its codes alone"]["recall"] <= rows["ivfpq, head scored again"]["recall"]
    assert [row["name"] for row in found["bars"]][0] == "HNSW, clustered features: recall@k"
    assert found["bars"][0]["ratio"] == rows["hnsw, efSearch 20"]["recall"]
    assert found["bars"][1]["ratio"] == rows["hnsw, efSearch 20"]["speed"]["1"]
    assert "| ivfpq, its codes alone | no |" in capsys.readouterr().out
    # The features are the same from the same seed, so that the graph is taken up again.
    assert bench_index.main(arguments) == 0
    assert "building anew" not in capsys.readouterr().err
    assert bench_index.main([*arguments, "--seed", "1"]) == 0
    assert "building anew: features: rows 0 to 599 are not those of the index" in capsys.readouterr().err


def test_a_speed_is_against_the_better_scan_round_by_round():
    bench_index = pytest.importorskip("benchmarks.bench_index", reason="benchmarks/ is not here")
    times = {"scan, float32": {1: [4.0, 9.0, 2.0]}, "scan, bfloat16": {1: [2.0, 10.0, 8.0]}}
    assert bench_index._speed(times | {"hnsw": {1: [1.0, 1.0, 1.0]}}, "hnsw", 1) == 2.0  # of 2, 9 and 2
    rows = [
        {"name": "hnsw, efSearch 1", "recall": 0.9, "speed": {"1": 90.0, "2": 80.0}},
        {"name": "hnsw, efSearch 2", "recall": 0.98, "speed": {"1": 30.0, "2": 9.0}},
        {"name": "hnsw, efSearch 3", "recall": 0.99, "speed": {"1": 20.0, "2": 8.0}},
        {"name": "flat", "recall": 1.0, "speed": {"1": 1.0, "2": 1.0}},
    ]
    said = bench_index.bars(rows, 2)
    assert [(row["ratio"], row["holds"], row["by"]) for row in said] == [
        (0.98, True, "hnsw, efSearch 2"), (30.0, True, "hnsw, efSearch 2"), (9.0, False, "hnsw, efSearch 2")
    ]  # fmt: skip
    assert not bench_index.bars(rows[:1], 2)[0]["holds"]
