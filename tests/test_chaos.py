"""Runs that are killed at random moments and started again: the same rankings, and nothing done twice but the
batch in flight.

``CIR_CHAOS_KILLS`` says how many kills (3, a third of them in each stage; ``make chaos`` makes 50),
``CIR_CHAOS_SEED`` repeats the moments of an earlier time (they are still moments of another process)."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from chaos import Attempt, attempt
from small_world import write_world

from cir_utils.runs import find_runs

KILLS = int(os.environ.get("CIR_CHAOS_KILLS", "3"))
SEED = int(os.environ.get("CIR_CHAOS_SEED", random.SystemRandom().randrange(2**32)))
#: The stages in the order of the run, and the kinds of batches that show that one has begun (or is over).
STAGES = {
    "captioning": ("answers", "images", "verdicts"),
    "feature extraction": ("images", "verdicts"),
    "verification": ("verdicts",),
}


class Runs:
    """Attempts of one run in the folder ``place``, one after the other, on one cache."""

    def __init__(self, world: Path, place: Path) -> None:
        self.place, self.count = place, 0
        place.mkdir()
        self.arguments = ["run", "xr", "--benchmark", "mini-circo", "--root", str(world), "--split", "val"]
        self.arguments += ["--limit", "4", "--set", "k_prime=6", "--device", "cpu"]
        self.arguments += ["--cache", str(place / "cache"), "--out", str(place / "runs" / "xr")]
        #: What was done by all attempts, a batch that was in flight at a kill and done again once.
        self.done: list[tuple[str, ...]] = []

    def attempt(self, stage: str | None = None, after: float = 0.0) -> Attempt:
        self.count += 1
        log = self.place / f"{self.count}.log"
        found = attempt(self.arguments, log, STAGES[stage] if stage else (), after)
        assert found.code == -signal.SIGKILL if stage and found.code else found.code == 0, self.said()
        again = self.done[-1:] == found.batches[:1]
        self.done += found.batches[1:] if again else found.batches
        return found

    def said(self) -> str:
        return "".join(path.read_text() for path in sorted(self.place.glob("*.said")))

    def rankings(self) -> bytes:
        return (self.place / "runs" / "xr" / "rankings.parquet").read_bytes()

    def features(self) -> dict[str, bytes]:
        """Every file of the feature store, what a killed writer left half written included."""
        folder = self.place / "cache" / "features"
        return {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }

    def answers(self) -> dict[str, list[tuple[object, ...]]]:
        """The rows of the response cache, after SQLite has checked the file."""
        with contextlib.closing(sqlite3.connect(self.place / "cache" / "answers.sqlite")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            tables = ("answers", "verdicts")
            return {
                table: connection.execute(f"SELECT * FROM {table} ORDER BY key").fetchall()
                for table in tables
            }


#: The batches that a stage consists of.
OWN = {"captioning": ("answers", "texts"), "feature extraction": ("images",), "verification": ("verdicts",)}


def lengths(found: Attempt) -> dict[str, float]:
    """Seconds of each stage that an attempt which came to its end went through."""
    kinds = [batch[0] for batch in found.batches]
    seconds = {}
    for stage, own in OWN.items():
        if own[0] in kinds:
            first = kinds.index(own[0])
            after = next((i for i in range(first, len(kinds)) if kinds[i] not in own), len(kinds))
            seconds[stage] = found.moments[after] - found.moments[first]
    return seconds


@pytest.mark.slow
def test_killed_runs_end_as_undisturbed_ones_and_do_nothing_twice(tmp_path: Path) -> None:
    """About half a minute on one core, most of it imports; 50 kills take about four."""
    print(f"CIR_CHAOS_SEED={SEED}")
    dice = random.Random(SEED)
    world = write_world(tmp_path / "world")
    undisturbed = Runs(world, tmp_path / "undisturbed")
    whole = undisturbed.attempt()
    kinds = Counter(batch[0] for batch in whole.batches)
    assert kinds["images"] == 6 and kinds["answers"] >= 8 and kinds["verdicts"] >= 6
    items = [(batch[0], item) for batch in whole.batches for item in batch[1:]]
    assert len(set(items)) == len(items)
    expected = undisturbed.rankings(), undisturbed.features(), undisturbed.answers()

    seconds = lengths(whole)
    wanted = Counter(itertools.islice(itertools.cycle(STAGES), KILLS))
    killed: Counter[str] = Counter()
    for number in range(3 * KILLS):  # a run can end before its moment comes: then there is one more
        runs = Runs(world, tmp_path / f"round-{number}")
        for stage in STAGES:
            if killed[stage] < wanted[stage]:
                after = dice.random() * seconds[stage]
                found = runs.attempt(stage, after)
                killed[stage] += found.code != 0
                print(f"round {number}, {stage}, {after:.3f} s: {found.code}, {len(found.batches)} batches")
                if found.code == 0:  # it was faster than the first
                    seconds |= lengths(found)
                    break
        runs.attempt()
        assert runs.done == whole.batches
        assert (runs.rankings(), runs.features(), runs.answers()) == expected
        assert find_runs(runs.place / "runs") == [runs.place / "runs" / "xr"]
        assert "damaged" not in runs.said()
        if killed == wanted:
            break
    assert killed == wanted
