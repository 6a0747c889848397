"""Runs that meet misfortune and are started again: the same rankings, nothing lost, nothing done or counted
twice, and a line that says what happened.

``make chaos`` runs this in full with test_faults.py and test_soak.py. ``CIR_CHAOS_KILLS`` says how many kills
(6, one at every stage; ``make chaos`` makes 200), ``CIR_CHAOS_SEED`` repeats the moments of an earlier time
(they are still moments of another process)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import mounts
import pytest
from chaos import BEGIN, END, SAVE, Attempt, attempt, grow, jumping_clock, read, read_only, started
from small_world import write_world

from cir_utils.runs import find_runs

KILLS = int(os.environ.get("CIR_CHAOS_KILLS", "6"))
SEED = int(os.environ.get("CIR_CHAOS_SEED", random.SystemRandom().randrange(2**32)))
#: The stages in the order of the run, and the kinds of lines that show that one has begun (or is over). The
#: last one writes a run folder in the place of an earlier run.
STAGES = {
    "start": (BEGIN,),
    "captioning": ("answers", "images", "verdicts", SAVE),
    "feature extraction": ("images", "verdicts", SAVE),
    "verification": ("verdicts", SAVE),
    "writing": (SAVE,),
    "replacing": (SAVE,),
}
#: The lines that a stage consists of.
OWN = {
    "start": (BEGIN,),
    "captioning": ("answers", "texts"),
    "feature extraction": ("images",),
    "verification": ("verdicts",),
    "writing": (SAVE,),
}


class Runs:
    """Attempts of one run in the folder ``place``, one after the other, on one cache."""

    def __init__(self, world: Path, place: Path, cache: Path | None = None) -> None:
        self.place, self.count = place, 0
        place.mkdir()
        self.cache, self.out = cache or place / "cache", place / "runs" / "xr"
        self.arguments = ["run", "xr", "--benchmark", "mini-circo", "--root", str(world), "--split", "val"]
        self.arguments += ["--limit", "4", "--set", "k_prime=6", "--device", "cpu"]
        self.arguments += ["--cache", str(self.cache), "--out", str(self.out)]
        #: What was done by all attempts, a batch that was in flight at a kill and done again once.
        self.done: list[tuple[str, ...]] = []

    @property
    def log(self) -> Path:
        return self.place / f"{self.count}.log"

    def attempt(
        self,
        stage: str | None = None,
        after: float = 0.0,
        first: Callable[[], None] | None = None,
        code: int = 0,
    ) -> Attempt:
        """One attempt, killed in ``stage`` unless it is over before, else ending with ``code``."""
        self.count += 1
        found = attempt(self.arguments, self.log, STAGES[stage] if stage else (), after, first)
        expected = -signal.SIGKILL if stage and found.code else code
        assert found.code == expected, self.said()
        self.add(found.batches)
        return found

    def add(self, batches: list[tuple[str, ...]]) -> None:
        self.done += batches[1:] if self.done[-1:] == batches[:1] else batches

    def said(self) -> str:
        return "".join(path.read_text() for path in sorted(self.place.glob("*.said")))

    def result(self) -> Result:
        return Result(self.folder(), self.features(), self.answers())

    def folder(self) -> dict[str, object]:
        """The run folder: rankings, traces and metrics as bytes, and the numbers of the record that must not
        depend on how often the run was begun."""
        record = json.loads((self.out / "run.json").read_text())
        found: dict[str, object] = {
            name: (self.out / name).read_bytes()
            for name in ("rankings.parquet", "traces.jsonl", "metrics.json")
        }
        cost = record["cost"]
        names = ("mllm_calls", "prompt_tokens", "completion_tokens", "parse_failures", "pruning")
        found["cost"] = {name: cost[name] for name in names}
        found["by agent"] = {
            agent: {name: value for name, value in own.items() if name != "cached_calls"}
            for agent, own in cost["by_agent"].items()
        }
        return found | {name: record[name] for name in ("answers", "counts", "settings", "protocol")}

    def features(self) -> dict[str, bytes]:
        """Every file of the feature store, what a killed writer left half written included."""
        folder = self.cache / "features"
        return {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }

    def answers(self) -> dict[str, list[tuple[object, ...]]]:
        """The rows of the response cache, after SQLite has checked the file."""
        with contextlib.closing(sqlite3.connect(self.cache / "answers.sqlite")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            tables = ("answers", "verdicts")
            return {
                table: connection.execute(f"SELECT * FROM {table} ORDER BY key").fetchall()
                for table in tables
            }


@dataclass
class Result:
    folder: dict[str, object]
    features: dict[str, bytes]
    answers: dict[str, list[tuple[object, ...]]]


@dataclass
class Undisturbed:
    """A run that nothing befell."""

    runs: Runs
    world: Path
    batches: list[tuple[str, ...]]
    lengths: dict[str, float]
    result: Result


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    place = tmp_path_factory.mktemp("undisturbed")
    world = write_world(place / "world")
    runs = Runs(world, place / "whole")
    whole = runs.attempt()
    kinds = Counter(batch[0] for batch in whole.batches)
    assert kinds["images"] == 6 and kinds["answers"] >= 8 and kinds["verdicts"] >= 6
    items = [(batch[0], item) for batch in whole.batches for item in batch[1:]]
    assert len(set(items)) == len(items)
    return Undisturbed(runs, world, whole.batches, lengths(whole), runs.result())


def lengths(found: Attempt) -> dict[str, float]:
    """Seconds of each stage that an attempt which came to its end went through."""
    kinds = [kind for _, kind, _ in found.lines]
    seconds = {}
    for stage, own in OWN.items():
        if own[0] in kinds:
            first = kinds.index(own[0])
            after = next((i for i in range(first, len(kinds)) if kinds[i] not in own), len(kinds) - 1)
            seconds[stage] = found.lines[after][0] - found.lines[first][0]
    return seconds | {"replacing": seconds["writing"]}


def in_one_line(said: str, *words: str) -> None:
    """What a failed attempt prints: one line, with these words in it."""
    assert said.startswith("cir: "), said
    assert len(said.strip().splitlines()) == 1 and "Traceback" not in said, said
    for word in words:
        assert word in said, (word, said)


@pytest.mark.slow
def test_killed_runs_end_as_undisturbed_ones_and_do_nothing_twice(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """SIGKILL at random moments of every stage, the last of them with an earlier run in the way."""
    print(f"\nCIR_CHAOS_SEED={SEED}")
    dice = random.Random(SEED)
    seconds = dict(undisturbed.lengths)
    wanted = Counter(itertools.islice(itertools.cycle(STAGES), KILLS))
    killed: Counter[str] = Counter()
    lost, twice, wrong, rounds = 0, 0, 0, 0
    for number in range(3 * KILLS):  # a run can end before its moment comes: then there is one more
        rounds += 1
        runs = Runs(undisturbed.world, tmp_path / f"round-{number}")
        ended = False
        for stage in STAGES:
            if killed[stage] == wanted[stage]:
                continue
            if stage == "replacing" and not ended:
                runs.attempt()
                ended = True
            elif ended and stage != "replacing":
                continue
            after = dice.random() * seconds[stage]
            found = runs.attempt(stage, after)
            killed[stage] += found.code != 0
            print(f"round {number}, {stage}, {after:.3f} s: {found.code}, {len(found.batches)} batches")
            if found.code == 0:  # it was faster than the first
                seconds |= lengths(found)
                ended = True
            elif stage == "replacing":
                old = [*runs.out.parent.glob(".run.*.old/xr/run.json"), *runs.out.glob("run.json")]
                assert old, "neither the earlier run nor the new one is there"
        runs.attempt()
        done, all_ = Counter(runs.done), Counter(undisturbed.batches)
        lost += (all_ - done).total()
        twice += (done - all_).total()
        wrong += runs.result() != undisturbed.result
        assert find_runs(runs.place / "runs") == [runs.out]
        assert list(runs.out.parent.iterdir()) == [runs.out], "a killed run left something"
        assert "damaged" not in runs.said() and "Traceback" not in runs.said()
        shutil.rmtree(runs.place)
        if killed == wanted:
            break
    stages = ", ".join(f"{count} {stage}" for stage, count in killed.items())
    print(
        f"kills: {killed.total()} ({stages}) in {rounds} runs; batches lost: {lost}, done twice: {twice}; "
        f"rankings, records or caches that differ: {wrong}"
    )
    assert killed == wanted and (lost, twice, wrong) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a small disk", "a limit of file sizes"])
def test_a_full_disk_loses_nothing_that_was_written(
    undisturbed: Undisturbed, tmp_path: Path, kind: str
) -> None:
    """The disks of answers, features and run folder grow until the run ends. Where nothing can be mounted, a
    limit of file sizes still stands for them."""
    mounted = kind == "a small disk"
    if mounted and mounts.missing():
        pytest.skip(f"no small disk: {mounts.missing()}")
    if not mounted and not mounts.missing() and KILLS < 50:
        pytest.skip("a small disk can be had, which is the better test; `make chaos` takes both")
    runs = Runs(undisturbed.world, tmp_path / "grown")
    runs.cache.mkdir()
    runs.out.parent.mkdir()
    sizes = [2**n for n in (12, 14, 16, 17, 18, 19, 20, 22)]
    disks = [(runs.cache, sizes)]
    if mounted:
        disks += [(runs.cache / "features", [2**15, 2**20]), (runs.out.parent, [2**13, 2**20])]
    copied = [runs.cache, runs.out.parent]
    process = started(grow, runs.arguments, runs.log, disks, mounted, copied, tmp_path / "copied")
    process.join(600)
    said = json.loads((tmp_path / "copied" / "said.json").read_text())
    assert process.exitcode == 0, said
    print("\n" + "".join(f"{code}: {text}" for code, text in said))
    *failed, last = said
    assert len(failed) >= (5 if mounted else 3) and last == [0, ""]
    for code, text in failed:
        assert code == 2
        in_one_line(text, "cannot be written" if "response cache" not in text else "has room")
    rooms = ("feature cache", "response cache", "run folder") if mounted else ("cache",)
    assert all(any(room in text for _, text in failed) for room in rooms)

    lines = read(runs.log)
    starts = [i for i, (_, kind, _) in enumerate(lines) if kind == BEGIN] + [len(lines)]
    for start, end in itertools.pairwise(starts):
        runs.add(Attempt(0, lines[start:end]).batches)
    assert runs.done == undisturbed.batches
    runs.cache, runs.out = tmp_path / "copied" / "cache", tmp_path / "copied" / "runs" / "xr"
    assert runs.result() == undisturbed.result


@pytest.mark.slow
def test_a_read_only_cache_serves_what_it_has_and_says_what_it_lacks(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    if mounts.missing():
        pytest.skip(f"nothing can be mounted read-only: {mounts.missing()}")
    runs = Runs(undisturbed.world, tmp_path / "read-only")
    shutil.copytree(undisturbed.runs.cache, runs.cache)
    first = functools.partial(read_only, runs.cache)
    runs.attempt(first=first)
    assert runs.done == [] and runs.result() == undisturbed.result

    shard = sorted(runs.cache.rglob("image-*.json"))[0]
    shard.unlink()
    runs.attempt(first=first, code=2)
    in_one_line(
        runs.log.with_suffix(".said").read_text(), "feature cache", "Read-only file system", "--cache"
    )
    with contextlib.closing(sqlite3.connect(runs.cache / "answers.sqlite")) as connection:
        connection.execute("DELETE FROM answers")
        connection.commit()
        connection.execute("VACUUM")
        connection.commit()
    before = {path.name: path.read_bytes() for path in runs.cache.iterdir() if path.is_file()}
    runs.attempt(first=first, code=2)
    text = runs.log.with_suffix(".said").read_text()
    in_one_line(text, "response cache", "cannot be written and lacks answers", "--cache")
    assert runs.done == [], "it computed what it could not keep"
    assert before == {path.name: path.read_bytes() for path in runs.cache.iterdir() if path.is_file()}
    runs.attempt()
    assert runs.result() == undisturbed.result
    answers = [batch for batch in undisturbed.batches if batch[0] == "answers"]
    images = [batch for batch in runs.done if batch[0] == "images"]
    assert [batch for batch in runs.done if batch[0] == "answers"] == answers
    assert len(images) == 1 and images[0] in undisturbed.batches
    assert len(runs.done) == len(answers) + 1


@pytest.mark.slow
def test_four_processes_on_one_cache_share_the_work(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """Each has its own run folder; what one computes the others wait for and read."""
    four = [Runs(undisturbed.world, tmp_path / name, tmp_path / "cache") for name in "abcd"]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda runs: runs.attempt(), four))
    done = Counter(batch for one in found for batch in one.batches)
    assert done == Counter(undisturbed.batches)
    for runs in four:
        assert runs.result() == undisturbed.result
        assert "damaged" not in runs.said() and "Traceback" not in runs.said()
    took_part = sum(bool(one.batches) for one in found)
    print(f"\nprocesses: 4, with batches of their own: {took_part}; batches done twice: 0, lost: 0")


@pytest.mark.slow
def test_a_jumping_clock_decides_nothing(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """The time of day jumps by decades, and so do the times of change of all files; a kill comes between."""
    dice = random.Random(SEED)
    runs = Runs(shutil.copytree(undisturbed.world, tmp_path / "world"), tmp_path / "jumping")

    def change_times() -> None:
        for path in tmp_path.rglob("*"):
            moment = dice.randrange(0, 2**32) * 10**9
            os.utime(path, ns=(moment, moment))

    change_times()
    runs.attempt("feature extraction", 0.0, functools.partial(jumping_clock, SEED))
    change_times()
    runs.attempt(first=functools.partial(jumping_clock, SEED + 1))
    assert runs.done == undisturbed.batches and runs.result() == undisturbed.result
    change_times()
    found = runs.attempt(first=functools.partial(jumping_clock, SEED + 2))
    assert found.batches == [] and runs.result() == undisturbed.result
    assert found.lines[-1][1] == END
