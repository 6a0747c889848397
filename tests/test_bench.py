"""`make bench`: the table that it makes of timings, and one real session of a few rows."""

import json

import pytest

pytest.importorskip("benchmarks.bench", reason="benchmarks/ is not here: the package is installed")

from benchmarks import bench

PLAIN, LOW, FINE = "three products, full sort", "ours, certified 16 bit", "ours, float32"


def took(*seconds, peak_mb=100.0):
    return {"seconds": list(seconds), "peak_mb": [peak_mb] * len(seconds), "scaled": 1}


def by_name(rows):
    return {row["name"]: row for row in rows}


def test_ratios_are_medians_of_pairs_and_bars_have_two_senses():
    times = {
        PLAIN: took(10.0, 30.0, 8.0, peak_mb=1000.0),
        FINE: took(1.0, 2.0, 1.0, peak_mb=300.0),
        "torch.mm alone": took(1.0, 1.0, 1.0),
    }
    rows = by_name(bench.table(times, {}))
    speed = rows["debiased top-50, float32, against three products with a full sort: speed"]
    assert (speed["ratio"], speed["bar"], speed["holds"]) == (10.0, 8, True)  # of 10, 15 and 8
    memory = rows["debiased top-50, float32, against the same: peak memory"]
    assert (memory["ratio"], memory["bar"], memory["holds"]) == (0.3, 0.25, False)
    floor = rows["debiased top-50, float32, against torch.mm of the same size: time"]
    assert (floor["ratio"], floor["bar"], floor["holds"]) == (1.0, 1.2, True)


def test_what_is_not_measured_says_why_and_stays_in_the_table(tmp_path):
    missing = {"faiss IndexFlatIP": "No module named 'faiss'"}
    rows = bench.table({FINE: took(1.0)}, missing, bench.beside(tmp_path))
    assert len(rows) == len({row["name"] for row in rows}) == 18
    for row in rows:
        assert (row["ratio"], row["holds"]) == (None, "not measured") and row["reason"]
    against = by_name(rows)["debiased top-50, best path, against FAISS IndexFlatIP: speed"]
    assert against["reason"] == "No module named 'faiss'"


def test_what_other_scripts_measured_stands_in_the_table(tmp_path):
    bar = {"name": bench.MINUTES, "ratio": 7.5, "bar": 8, "sense": "at most", "holds": True}
    (tmp_path / "mini_profile.json").write_text(json.dumps({"bars": [bar]}), encoding="utf-8")
    rows = by_name(bench.table({}, {}, bench.beside(tmp_path)))
    assert rows[bench.MINUTES] == bar and len(rows) == 18
    assert rows["HNSW, clustered features: recall@k"]["reason"] == "by python -m benchmarks.bench_index"


@pytest.mark.slow
def test_a_small_session_writes_rows_and_page(tmp_path, monkeypatch):
    """Every contender ranks the same first query the same way, in a process of its own."""
    few = {name: bench.CONTENDERS[name] for name in (PLAIN, LOW, FINE)}
    monkeypatch.setattr(bench, "CONTENDERS", few)
    sizes = ["--queries", "3", "--gallery", "400", "--width", "16", "--rounds", "1", "--no-growth"]
    assert bench.main([*sizes, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert list(found["times"]) == list(few)
    assert all(set(row) >= {"name", "ratio", "bar", "holds"} for row in found["rows"])
    assert found["rows"][0]["ratio"] > 0
    text = (tmp_path / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert found["machine"]["cpu"] in text and "| MLLM calls" in text and "not measured" in text
