"""One process that asks a faulty server for thousands of queries: it ends with the rankings of a run on a
server without faults, and holds no more at its end than after its first quarter.

``CIR_SOAK_QUERIES`` says how many (240; ``make chaos`` asks 10,000), ``CIR_CHAOS_SEED`` throws the server's
dice as an earlier time."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("openai", reason="the server extra is not installed")
if not Path("/proc/self/status").is_file():
    pytest.skip("what a process holds is read from /proc", allow_module_level=True)

from chaos import started  # noqa: E402
from small_world import Oracle, open_bench, write_world  # noqa: E402
from soak import METHODS, OVERRIDES, serve, soak, write_queries  # noqa: E402

from cir_utils.agents import Agents  # noqa: E402
from cir_utils.methods import resolve_settings  # noqa: E402
from cir_utils.profiles import load_profile  # noqa: E402
from cir_utils.response_cache import ResponseCache  # noqa: E402
from cir_utils.runs import load_run, run_method  # noqa: E402

QUERIES = int(os.environ.get("CIR_SOAK_QUERIES", "240"))
BLOCK = 100 if QUERIES >= 1000 else 20
SEED = int(os.environ.get("CIR_CHAOS_SEED", random.SystemRandom().randrange(2**32)))
#: Resident memory at each later quarter over that after the first, which is the warm-up.
FLAT = 1.05
COST = ("mllm_calls", "parse_failures")


@pytest.mark.slow
def test_a_faulty_server_changes_no_ranking_and_leaks_nothing(tiny_clip: Path, tmp_path: Path) -> None:
    print(f"\nCIR_CHAOS_SEED={SEED}")
    begin = time.monotonic()
    world = write_world(tmp_path / "world", splits=("val",))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = tmp_path / "soak"
    place.mkdir()
    server = started(serve, port, world, SEED)
    try:
        process = started(soak, f"http://127.0.0.1:{port}/v1", world, tiny_clip, place, QUERIES, BLOCK)
        process.join(3600)
    finally:
        server.terminate()
        server.join(30)
    assert process.exitcode == 0, "see what it printed"
    result = json.loads((place / "result.json").read_text())

    wrong = lost = miscounted = 0
    plain = ResponseCache(tmp_path / "plain.sqlite")
    settings = load_profile("mini").benchmark("mini-circo").settings
    for number in range(QUERIES // BLOCK):
        write_queries(world, number * BLOCK, BLOCK)
        method = METHODS[number % len(METHODS)]
        bench = open_bench(world, tiny_clip, tmp_path / "cache")
        bench.agents = Agents(Oracle().mllm(), plain, "mini")
        expected = run_method(bench, method, resolve_settings(method, settings, OVERRIDES[method]))
        found = load_run(place / str(number), whole=True)
        lost += len(set(expected.queries) - set(found.queries))
        wrong += sum(found.rankings[query] != expected.rankings[query] for query in expected.queries)
        miscounted += any(found.record["cost"][name] != expected.record["cost"][name] for name in COST)
    assert plain.counts() == rows(place / "cache" / "answers.sqlite")

    quarters = result["quarters"]
    first, last = quarters[0], quarters[-1]
    growth = max(one["kib"] for one in quarters) / first["kib"]
    print(
        f"soak: {QUERIES} queries in {QUERIES // BLOCK} runs, {time.monotonic() - begin:.0f} s; runs begun "
        f"again: {sum(result['failed'].values())}; queries lost: {lost}, wrong rankings: {wrong}, runs that "
        f"count otherwise: {miscounted}; MiB {first['kib'] / 1024:.1f} -> {last['kib'] / 1024:.1f} (most "
        f"{growth - 1:+.2%}); objects {first['objects']} -> {last['objects']}; files {first['files']} -> "
        f"{last['files']}, sockets {first['sockets']} -> {last['sockets']}, threads {first['threads']} -> "
        f"{last['threads']}, children {last['children']}"
    )
    print("  MiB after each run: " + " ".join(f"{value / 1024:.0f}" for value in result["kib"]))
    for text, count in Counter(result["failed"]).most_common():
        print(f"  {count} x {text}")
    assert (lost, wrong, miscounted) == (0, 0, 0)
    assert len(quarters) == 4 and last["queries"] == QUERIES
    assert growth < FLAT, quarters
    assert last["objects"] < FLAT * first["objects"], quarters
    for name in ("files", "sockets", "threads", "children"):
        assert last[name] <= first[name], quarters
    assert not list(place.glob(".*")) and not list((place / "cache").rglob("*.part"))


def rows(path: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {
            table: connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
            for table in ("answers", "verdicts")
        }
