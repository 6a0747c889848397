"""The index in shards: what one index finds, whatever the shards; one shard open at a time; builds that go
on, and shards that are refused."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from test_scoring import unit

from cir_utils import sharded_index as rooms
from cir_utils.errors import InputError
from cir_utils.index import build_index, load_index, search_index
from cir_utils.scoring import composed_query
from cir_utils.search import debiased_topk, map_features, prepare_gallery
from cir_utils.sharded_index import build_shards, debiased_search_shards, open_shards, search_shards

pytest.importorskip("faiss", reason="faiss is not installed (the extra `index`)")

WIDTH, ROWS = 8, 600


@pytest.fixture(scope="module")
def rows():
    return unit(ROWS, WIDTH, 0)


@pytest.fixture(scope="module")
def sides():
    return [unit(5, WIDTH, seed) for seed in (1, 2, 3)]


def names(count, first=0):
    return [f"picture {number}" for number in range(first, first + count)]


def on_the_grid(count, seed):
    """Rows of four values of 1/2 or -1/2: few scores are possible, and all are exact."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.zeros(count, WIDTH)
    for row in made:
        places = torch.randperm(WIDTH, generator=generator)[:4]
        row[places] = torch.randint(0, 2, (4,), generator=generator) - 0.5
    return made


def same(found, expected):
    assert torch.equal(found.items, expected.items) and torch.equal(found.scores, expected.scores)
    assert found.ids == expected.ids


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(1, 40),
    st.integers(1, 45),
    st.integers(1, 50),
    st.integers(0, 99),
    st.booleans(),
    st.booleans(),
)
def test_flat_shards_are_one_flat_index(tmp_path_factory, n, size, k, seed, twins, grid):
    """Ties in and between shards included: on the grid there are many, and twins make more."""
    draw = on_the_grid if grid else lambda count, seed: unit(count, WIDTH, seed)
    gallery, queries = draw(n, seed), draw(3, seed + 1)
    if twins:
        gallery[n // 2 :] = gallery[: n - n // 2].clone()
    made = build_shards(gallery, names(n), tmp_path_factory.mktemp("shards"), rows=size)
    assert made.counts == tuple(min(size, n - start) for start in range(0, n, size))
    found = search_shards(made, queries, k)
    same(found, search_index(build_index(gallery, names(n)), queries, k))
    assert found.exact and found.items.shape == (3, min(k, n)) and int(found.items.min()) >= 0


def test_the_composed_query_ranks_as_without_an_index(rows, sides, tmp_path):
    made = build_shards(rows, names(ROWS), tmp_path, rows=250)
    found = debiased_search_shards(made, *sides, 40, alpha=0.15, beta=0.35)
    best = debiased_topk(*sides, prepare_gallery(rows), 40, alpha=0.15, beta=0.35)
    assert torch.equal(found.items, best.items) and torch.equal(found.scores, best.scores)
    assert found.ids[0] == [f"picture {item}" for item in best.items[0].tolist()]


@pytest.mark.parametrize("kind", ["hnsw", "ivfpq"])
def test_approximate_shards_say_so_and_never_give_minus_one(kind, rows, sides, tmp_path):
    """Every shard is asked for all that it holds, ivfpq's for more than the lists that it looks into."""
    more = {"hnsw": {"efSearch": 8}, "ivfpq": {"nlist": 8, "m": 4, "nprobe": 1}}[kind]
    made = build_shards(rows, names(ROWS), tmp_path, kind, rows=300, **more)
    w = composed_query(*sides, 0.15, 0.35)
    found = search_shards(made, w, ROWS, features=rows if kind == "ivfpq" else None)
    assert not found.exact and bool(found.widened.all()) == (kind == "ivfpq")
    # Everything was asked for, so everything is there, in the exact order.
    same(found, search_index(build_index(rows, names(ROWS)), w, ROWS))
    few = search_shards(made, w, 10, features=rows if kind == "ivfpq" else None)
    assert all(len(set(row)) == 10 for row in few.items.tolist()) and int(few.items.min()) >= 0
    exact = {(q, i): s for q, i, s in zip_scores(found)}
    assert all(score == exact[q, i] for q, i, score in zip_scores(few)), "scores are exact"


def zip_scores(found):
    for query, (items, scores) in enumerate(zip(found.items.tolist(), found.scores.tolist(), strict=True)):
        for item, score in zip(items, scores, strict=True):
            yield query, item, score


def test_mapped_features_of_half_precision(rows, sides, tmp_path):
    """The file is never read whole: parts of it are mapped for building and for exact scores."""
    stored = rows.half()
    save_file({"features": stored}, tmp_path / "features.safetensors")
    mapped = map_features(tmp_path / "features.safetensors")
    made = build_shards(mapped, range(ROWS), tmp_path / "shards", "ivfpq", rows=300, nlist=4, m=4, nprobe=4)
    found = search_shards(made, sides[0], ROWS, features=mapped)
    expected = search_index(build_index(stored, range(ROWS)), sides[0], ROWS)
    assert torch.equal(found.items, expected.items) and torch.equal(found.scores, expected.scores)


def test_one_shard_is_open_at_a_time(rows, sides, tmp_path, monkeypatch):
    made = build_shards(rows, names(ROWS), tmp_path, rows=100)
    whole, seen = search_index, []

    def watched(index, *rest, **more):
        seen.append(mapped_files(tmp_path))
        return whole(index, *rest, **more)

    monkeypatch.setattr(rooms, "search_index", watched)
    search_shards(made, sides[0], 5)
    if not Path("/proc/self/maps").exists():
        pytest.skip("no /proc/self/maps: what is mapped cannot be seen")
    assert [len(files) for files in seen] == [1] * 6 and len(set.union(*seen)) == 6
    assert not mapped_files(tmp_path), "and none is left"


def mapped_files(folder):
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if str(folder) in line}


def test_a_build_that_was_broken_off_goes_on(rows, sides, tmp_path, monkeypatch):
    whole, built = build_index, []

    def counted(part, *rest, **more):
        built.append(len(built))
        if len(built) == 3:
            raise KeyboardInterrupt
        return whole(part, *rest, **more)

    monkeypatch.setattr(rooms, "build_index", counted)
    with pytest.raises(KeyboardInterrupt):
        build_shards(rows, names(ROWS), tmp_path, rows=150)
    with pytest.raises(InputError, match="shards.json does not exist"):
        open_shards(tmp_path)
    made = build_shards(rows, names(ROWS), tmp_path, rows=150)
    assert len(built) == 5, "two were there, the third was begun twice, the fourth came new"
    same(search_shards(made, sides[0], 9), search_index(whole(rows, names(ROWS)), sides[0], 9))
    # A damaged one, and one of other features, are built again, the others kept.
    data = next((tmp_path / "00001").glob("*.faiss"))
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    changed = rows.clone()
    changed[-1] = changed[0]
    made = build_shards(changed, names(ROWS), tmp_path, rows=150)
    assert len(built) == 7
    same(search_shards(made, sides[0], 9), search_index(whole(changed, names(ROWS)), sides[0], 9))


def test_a_shard_is_read_whole_once_and_again_when_it_changed(rows, sides, tmp_path, monkeypatch):
    made = build_shards(rows, names(ROWS), tmp_path, rows=300)
    whole, read = rooms.check_file, []
    monkeypatch.setattr(rooms, "check_file", lambda path, about: (read.append(path), whole(path, about)))
    search_shards(made, sides[0], 5)
    search_shards(made, sides[0], 5)
    assert len(read) == 2
    data = next((tmp_path / "00001").glob("*.faiss"))
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(bytes(content))
    os.utime(data, ns=(1, 1))
    with pytest.raises(InputError, match=f"{data.name}: not the file that .*00001/index.json describes"):
        search_shards(made, sides[0], 5)


def test_shards_that_do_not_belong_together_are_refused(rows, sides, tmp_path):
    made = build_shards(rows, names(ROWS), tmp_path, rows=300)
    other = build_shards(rows[:200], names(200), tmp_path / "other")
    assert load_index(tmp_path / "other" / "00000").count == other.count == 200
    (tmp_path / "00001").rename(tmp_path / "away")
    with pytest.raises(InputError, match="00001/index.json does not exist"):
        search_shards(made, sides[0], 5)
    (tmp_path / "other" / "00000").rename(tmp_path / "00001")
    with pytest.raises(InputError, match="flat of 200 x 8 where shards.json says flat of 300 x 8"):
        search_shards(made, sides[0], 5)
    table = json.loads((tmp_path / "shards.json").read_text())
    for change, said in (
        ({"counts": []}, "counts: "),
        ({"counts": [300, -1]}, "counts.1: "),
        ({"kind": "graph"}, "kind: "),
        ({"format": "cir-shards 2"}, "format: "),
    ):
        (tmp_path / "shards.json").write_text(json.dumps(table | change))
        with pytest.raises(InputError, match=said):
            open_shards(tmp_path)


def test_wrong_input_says_how_to_mend_it(rows, sides, tmp_path):
    for ids, size, said in (
        (names(ROWS), 0, "rows = 0: expected at least 1 row a shard"),
        (names(5), 300, f"5 ids for {ROWS} rows"),
        (["a", *names(ROWS - 2), "a"], 300, "id 'a' occurs twice"),
    ):
        with pytest.raises(InputError, match=said):
            build_shards(rows, ids, tmp_path, rows=size)
    made = build_shards(rows, names(ROWS), tmp_path, rows=300)
    with pytest.raises(InputError, match="k = 0: expected at least 1"):
        search_shards(made, sides[0], 0)
    with pytest.raises(InputError, match="features .*, index of 600 x 8; give the features"):
        search_shards(made, sides[0], 1, features=rows[:10])
    assert search_shards(made, sides[0][:0], 5).items.shape == (0, 5)


def test_the_pages_lines_run(rows, sides, tmp_path, monkeypatch, capsys):
    """The example of `docs/scale.md`."""
    page = Path(rooms.__file__).parent.parent / "docs" / "scale.md"
    if not page.is_file():
        pytest.skip("docs/ is not here: the package is installed")
    (block,) = re.findall(
        r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    save_file({"features": rows}, tmp_path / "features.safetensors")
    monkeypatch.chdir(tmp_path)
    space = dict(zip(("F_r", "F_d", "F_m"), sides, strict=True))
    exec(block, space)
    assert "approximate" in capsys.readouterr().out
    best = debiased_topk(*sides, prepare_gallery(rows), 50).items
    assert space["found"].ids == best.tolist(), "all lists were looked into, and heads scored exactly"
