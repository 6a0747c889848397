"""Damaged caches, and servers that lie, dawdle and go away: the same rankings as without, or one line that
says what happened. Processes that are killed, full disks and clocks are in test_chaos.py.

``CIR_FAULTS`` says how many damages are tried (24; ``make chaos`` tries 1,000), ``CIR_CHAOS_SEED`` repeats
those of an earlier time."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from chat_server import ChatServer, chatting
from small_world import SETTINGS, Oracle, looker, open_bench, write_world

from cir_utils import cache as cache_command
from cir_utils import mllm_server
from cir_utils.agents import Agents
from cir_utils.errors import InputError
from cir_utils.methods import resolve_settings
from cir_utils.response_cache import ANSWERS, ResponseCache
from cir_utils.runs import Run, run_method
from cir_utils.workbench import Workbench

FAULTS = int(os.environ.get("CIR_FAULTS", "24"))
SEED = int(os.environ.get("CIR_CHAOS_SEED", random.SystemRandom().randrange(2**32)))
OVERRIDES = {"k_prime": 6}
COST = ("mllm_calls", "prompt_tokens", "completion_tokens", "parse_failures")


@dataclass
class Place:
    """A small world, a CLIP, and a cache with everything that a run on them needs."""

    world: Path
    clip: Path
    cache: Path
    run: Run
    asked: list[str]

    def bench(self, cache: Path, oracle: Oracle) -> Workbench:
        bench = open_bench(self.world, self.clip, cache, limit=4)
        bench.agents = Agents(oracle.mllm(), ResponseCache(cache / ANSWERS, bench.caches.append), "mini")
        return bench

    def again(self, cache: Path) -> tuple[Run, list[str]]:
        """Another run on ``cache``, and the agents that were asked anew."""
        oracle = Oracle()
        bench = self.bench(cache, oracle)
        with contextlib.closing(bench.agents.cache):
            return run_method(bench, "xr", resolve_settings("xr", SETTINGS, OVERRIDES)), oracle.asked

    def same(self, run: Run) -> bool:
        """Whether rankings, metrics, traces and what was counted are those of the run without a fault."""
        return same(run, self.run)


def same(run: Run, other: Run) -> bool:
    return (
        dict(run.rankings) == dict(other.rankings)
        and run.metrics == other.metrics
        and run.traces == other.traces
        and all(run.record["cost"][name] == other.record["cost"][name] for name in COST)
        and run.record["answers"] == other.record["answers"]
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_clip: Path) -> Place:
    folder = tmp_path_factory.mktemp("faults")
    made = Place(write_world(folder / "world"), tiny_clip, folder / "cache", None, [])  # type: ignore[arg-type]
    made.run, made.asked = made.again(made.cache)
    with ResponseCache(made.cache / ANSWERS) as responses:  # nothing is left in its log
        assert responses.counts()["verdicts"] > 20
    assert len(made.asked) > 60 and not list(made.cache.glob("*-wal"))
    again, asked = made.again(made.cache)
    assert made.same(again) and asked == []
    return made


# --- damage -------------------------------------------------------------------------------------------------


def flip(data: bytearray, dice: random.Random) -> None:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def scribble(data: bytearray, dice: random.Random) -> None:
    start = dice.randrange(len(data))
    part = data[start : start + dice.randrange(1, 64)]
    data[start : start + len(part)] = dice.randbytes(len(part))


def cut(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


def empty(data: bytearray, dice: random.Random) -> None:
    data.clear()


DAMAGES: list[Callable[[bytearray, random.Random], None]] = [flip, flip, flip, scribble, cut, empty]


def test_a_damaged_cache_ranks_as_a_sound_one_or_is_refused_in_one_line(place: Place, tmp_path: Path) -> None:
    """Every file of the cache in turn: a bit flipped, some bytes overwritten, the end cut off, emptied. What
    is refused is moved away, as the line says, and then the run is as it was."""
    print(f"\nCIR_CHAOS_SEED={SEED}")
    dice = random.Random(SEED)
    files = sorted(
        path.relative_to(place.cache)
        for path in place.cache.rglob("*")
        if path.is_file() and not path.name.endswith("lock")
    )
    assert {path.suffix for path in files} == {".sqlite", ".safetensors", ".json"}
    ends: Counter[str] = Counter()
    wrong = 0
    for number in range(FAULTS):
        cache = shutil.copytree(place.cache, tmp_path / str(number))
        # Half of the damage is to the answers, which are one file.
        name = Path(ANSWERS) if number % 2 else files[number // 2 % len(files)]
        damage = DAMAGES[dice.randrange(len(DAMAGES))]
        data = bytearray((cache / name).read_bytes())
        damage(data, dice)
        (cache / name).write_bytes(data)
        kind = "answers" if name.name == ANSWERS else "features"
        try:
            run, asked = place.again(cache)
            told = any("damaged" in text or "empty" in text for text in run.record["caches"])
            end = f"{kind}: {'said and ' * told}made anew" if told or asked else f"{kind}: not touched by it"
        except InputError as error:
            assert kind == "answers" and "\n" not in str(error) and "answers.sqlite" in str(error), error
            end = f"{kind}: refused"
            problems = cache_command.verify(cache).problems
            assert any(problem.file == ANSWERS for problem in problems), (str(error), problems)
            for path in cache.glob(f"{ANSWERS}*"):
                path.rename(tmp_path / path.name)
            run, asked = place.again(cache)
            assert asked == place.asked
        ends[end] += 1
        if not place.same(run):
            wrong += 1
            print(f"{number}: {damage.__name__} of {name}: another result")
        shutil.rmtree(cache)
    counts = "; ".join(f"{end}: {count}" for end, count in sorted(ends.items()))
    print(f"damages: {FAULTS} ({counts}); wrong rankings or counts: {wrong}")
    assert wrong == 0
    assert {end.partition(":")[0] for end in ends} == {"answers", "features"}


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("verdicts", "p_true = 1 - p_true"),
        ("verdicts", "prompt_tokens = prompt_tokens + 4"),
        ("answers", "text = replace(text, 'red', 'rad')"),
        ("answers", "finish_reason = 'length'"),
        ("answers", "agent = 'somebody'"),
    ],
)
def test_a_value_that_changed_in_the_cache_is_found_said_and_asked_again(
    place: Place, tmp_path: Path, table: str, change: str
) -> None:
    """What SQLite's own check does not see."""
    cache = shutil.copytree(place.cache, tmp_path / "cache")
    with contextlib.closing(sqlite3.connect(cache / ANSWERS)) as connection:
        count = connection.execute(f"UPDATE {table} SET {change}").rowcount
        connection.commit()
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    (problem,) = cache_command.verify(cache).problems
    assert problem.file == ANSWERS and "its checksum is not that of its content" in problem.fault
    run, asked = place.again(cache)
    assert place.same(run)
    said = [text for text in run.record["caches"] if "are damaged and not used: they are asked again" in text]
    assert len(said) >= 1 and all(table in text for text in said)
    assert 0 < len(asked) <= count
    assert cache_command.verify(cache).problems == []


def test_rows_from_before_checksums_are_used(place: Place, tmp_path: Path) -> None:
    cache = shutil.copytree(place.cache, tmp_path / "cache")
    with contextlib.closing(sqlite3.connect(cache / ANSWERS)) as connection:
        for table in ("answers", "verdicts"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
        connection.commit()
    assert cache_command.verify(cache).problems == []
    run, asked = place.again(cache)
    assert place.same(run) and asked == []
    with contextlib.closing(sqlite3.connect(cache / ANSWERS)) as connection:
        assert connection.execute("SELECT COUNT(*), COUNT(checksum) FROM verdicts").fetchone()[1] == 0


# --- servers ------------------------------------------------------------------------------------------------


@dataclass
class Served:
    """Runs of X^R on the small world with a model behind a server."""

    place: Place
    server: ChatServer
    cache: Path

    def run(self) -> Run:
        bench = open_bench(self.place.world, self.place.clip, self.cache, limit=4)
        responses = ResponseCache(self.cache / ANSWERS)
        bench.agents = Agents(mllm_server.ServerMLLM("server:m"), responses, "mini")
        with contextlib.closing(responses):
            return run_method(bench, "xr", resolve_settings("xr", SETTINGS, OVERRIDES))

    def rows(self) -> int:
        with ResponseCache(self.cache / ANSWERS) as responses:
            return sum(responses.counts().values())


Serve = Callable[..., contextlib.AbstractContextManager[Served]]


def serve_for(place: Place, folder: Path, patch: pytest.MonkeyPatch) -> Serve:
    """Servers whose clients pause briefly; each has a cache of its name below ``folder``."""
    patch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    patch.setattr(mllm_server, "READ_PAUSE", 0.01)
    for name in ("KEY", "CONCURRENCY", "TIMEOUT", "PRICES"):
        patch.delenv(f"CIR_SERVER_{name}", raising=False)
    patch.setenv("CIR_SERVER_NAME", "here")
    patch.setenv("NO_PROXY", "127.0.0.1")

    @contextlib.contextmanager
    def start(name: str, port: int = 0) -> Iterator[Served]:
        with chatting(port) as server:
            server.look = looker(place.world, Oracle())
            patch.setenv("CIR_SERVER_URL", server.url)
            shutil.copytree(place.cache / "features", folder / name / "features", dirs_exist_ok=True)
            yield Served(place, server, folder / name)

    return start


@pytest.fixture
def served(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    return serve_for(place, tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def honest(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, int]]:
    """The run with a server without faults, and how many requests it takes."""
    pytest.importorskip("openai", reason="the server extra is not installed")
    with pytest.MonkeyPatch.context() as patch:
        with serve_for(place, tmp_path_factory.mktemp("honest"), patch)("honest") as server:
            run, requests = server.run(), len(server.server.log)
            assert requests == server.rows() > 60
    return run, requests


#: Lies that are believed as far as they do no harm, and those after which the request is made again.
BELIEVED = {"no counts": ("tokens", "bare"), "another model": ("stranger",)}
UNREADABLE = {"no reply": ("nan", "choices:0", "choices:2", "cut-json", "html", "huge", "empty")}


@pytest.mark.parametrize("kind", [*BELIEVED, *UNREADABLE])
def test_a_lying_server_is_asked_again_or_not_believed(
    honest: tuple[Run, int], served: Serve, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Two replies out of seven are lies."""
    expected, requests = honest
    monkeypatch.setenv("CIR_SERVER_CONCURRENCY", "1")  # else a request could meet three in a row
    lies = itertools.cycle((BELIEVED | UNREADABLE)[kind])
    with served("lying") as lying:
        lying.server.plan = [next(lies) if n % 7 in (2, 3) else "well" for n in range(requests)]
        found = lying.run()
        account = found.record["inputs"]["server"]
        assert dict(found.rankings) == dict(expected.rankings) and found.metrics == expected.metrics
        assert found.record["cost"]["mllm_calls"] == expected.record["cost"]["mllm_calls"]
        assert found.record["answers"] == expected.record["answers"]
        assert account["generate_calls"] + account["verify_calls"] == requests == lying.rows()
        told = sum(n % 7 in (2, 3) for n in range(requests))
        assert len(lying.server.log) == requests + (told if kind in UNREADABLE else 0)
        assert account["unreadable"] == (told if kind in UNREADABLE else 0)
        assert account["uncounted"] == (told if kind == "no counts" else 0)
        assert account["prompt_tokens"] == 10 * (requests - account["uncounted"])
        assert account["served"] == (["m-2026", "somebody-else"] if kind == "another model" else ["m-2026"])
        with contextlib.closing(sqlite3.connect(lying.cache / ANSWERS)) as connection:
            assert connection.execute("SELECT MIN(prompt_tokens) FROM answers").fetchone()[0] >= 0


def test_half_a_surrogate_pair_can_be_kept(honest: tuple[Run, int], served: Serve) -> None:
    with served("half") as half:
        half.server.plan = ["half"] * 10
        half.run()
        with contextlib.closing(sqlite3.connect(half.cache / ANSWERS)) as connection:
            texts = [text for (text,) in connection.execute("SELECT text FROM answers")]
        assert sum(text.endswith("\ufffd") for text in texts) == 10


def test_a_server_that_goes_and_one_that_restarts_in_mid_run(honest: tuple[Run, int], served: Serve) -> None:
    """It goes and stays away, which is one line; the next run asks for the rest alone, and does not notice
    that the server is another from some request on."""
    expected, requests = honest
    with served("gone") as gone:
        port = gone.server.server_address[1]
        gone.server.plan = ["well"] * (requests // 2) + ["break"] * 1000
        with pytest.raises(InputError) as caught:
            gone.run()
        kept = gone.rows()
        assert requests // 2 - 8 <= kept <= requests // 2 + 8
    assert "gave no reply" in str(caught.value) and "start the server" in str(caught.value)
    assert "answers already had are kept: run again" in str(caught.value)
    with pytest.raises(InputError, match="gave no reply .*; start the server, or mend CIR_SERVER_URL"):
        gone.run()
    assert gone.rows() == kept
    with served("gone", port) as back:
        restarts = []

        def restart() -> None:
            """A new server on the old one's port as soon as it has answered a few."""
            while len(back.server.log) < (requests - kept) // 2:
                time.sleep(0.001)
            back.server.shutdown()
            back.server.server_close()
            with chatting(port) as new:
                new.look = back.server.look
                restarts.append(new)
                over.wait(60)

        over = threading.Event()
        thread = threading.Thread(target=restart)
        thread.start()
        try:
            found = back.run()
        finally:
            over.set()
            thread.join()
        account = found.record["inputs"]["server"]
        assert restarts and restarts[0].log, "the new server was never asked"
        assert account["generate_calls"] + account["verify_calls"] == requests - kept
        assert back.rows() == requests
        assert same(found, expected)


def test_a_slow_server_changes_nothing(
    honest: tuple[Run, int], served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All replies come late and some never, which are asked for again; a server that gives single bytes
    without end is one line, and what came before is kept."""
    expected, _ = honest
    monkeypatch.setenv("CIR_SERVER_TIMEOUT", "3")
    with served("slow") as slow:
        slow.server.pause = 0.02
        slow.server.plan = ["well"] * 20 + ["hang"] + ["well"] * 20 + ["hang"]
        found = slow.run()
        assert same(found, expected)
        assert found.record["inputs"]["server"]["retries"] >= 2
        monkeypatch.setenv("CIR_SERVER_TIMEOUT", "1")
        shutil.rmtree(slow.cache)
        slow.server.plan = ["well"] * 30 + ["trickle"] * 1000
        with pytest.raises(InputError, match="did not answer in time; raise CIR_SERVER_TIMEOUT"):
            slow.run()
        kept = slow.rows()
        assert 20 <= kept <= 30
        slow.server.plan = []
        monkeypatch.setenv("CIR_SERVER_TIMEOUT", "60")
        assert same(slow.run(), expected)
