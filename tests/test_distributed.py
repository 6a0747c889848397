"""Features and captions by Ray workers: the bytes of one process, whoever dies; and clusters that leave
nothing behind.

The tests on a cluster take about 50 s on two quiet cores, nearly all of it the start of processes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scripted import ScriptedMLLM
from small_world import open_bench, write_world
from tiny_models import write_tiny_vlm

from cir_utils import agents, distributed
from cir_utils.cli import main
from cir_utils.distributed import (
    FeatureWorker,
    Pool,
    SpreadMLLM,
    Workers,
    extract,
    ray_pool,
    read_shard,
    spread_features,
    write_shard,
)
from cir_utils.encoder import load_encoder
from cir_utils.errors import InputError
from cir_utils.feature_store import IMAGES_PER_SHARD, store_images
from cir_utils.mllm import Answer, Request, Unanswered
from cir_utils.response_cache import ResponseCache

HERE = Pool(2, 1, 0.0, "cpu")
SHARDS = 16
#: Seconds that are waited for something that takes a moment on a quiet machine.
PATIENCE = 300


def paint(folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{number}.png" for number in range(count)]
    for number, path in enumerate(paths):
        rng = np.random.default_rng(number)
        Image.fromarray(rng.integers(0, 255, (40, 32, 3), dtype=np.uint8)).save(path)
    return paths


def features_below(cache: Path) -> dict[str, bytes]:
    """Every file of the feature store, what a killed writer left half written included."""
    folder = cache / "features"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def answers_below(cache: Path) -> dict[str, list[tuple[object, ...]]]:
    with contextlib.closing(sqlite3.connect(cache / "answers.sqlite")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
            for table in ("answers", "verdicts", "models")
        }


# --- a cluster of two workers -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Pool]:
    pytest.importorskip("ray", reason="ray is not installed (the extra `distributed`)")
    with contextlib.ExitStack() as stack:
        try:
            pool = stack.enter_context(ray_pool(Workers(2, threads=1), "cpu"))
        except InputError as error:  # Ray's own limits of seconds are short for a machine with much to do
            pytest.skip(str(error))
        yield pool


def actors(name: str, root: int | None = None) -> list[int]:
    """The processes of Ray's actors that do ``name``, below the process ``root``."""
    root = os.getpid() if root is None else root
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            title = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if title.startswith("ray::") and name in title and root in ancestors(int(place.name)):
                found.append(int(place.name))
    return found


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
        found.append(pid)
    return found


class Killer(threading.Thread):
    """Ends one actor that does ``name`` by SIGKILL as soon as ``begun`` is true; ``left`` is what it then
    says."""

    def __init__(self, name: str, records: Any, total: int) -> None:
        super().__init__(daemon=True)
        self.name_, self.records, self.total = name, records, total
        self.killed, self.done = 0, -1

    def run(self) -> None:
        latest = time.monotonic() + PATIENCE
        while time.monotonic() < latest and not self.killed:
            self.done = self.records()
            running = actors(self.name_)
            if 0 < self.done < self.total and running:
                os.kill(running[0], signal.SIGKILL)
                self.killed = running[0]
            time.sleep(0.005)


@pytest.mark.slow
def test_features_are_those_of_one_process_whoever_dies(
    cluster: Pool, tmp_path: Path, tiny_clip: Path
) -> None:
    paths = paint(tmp_path / "pictures", SHARDS * IMAGES_PER_SHARD)
    ids = list(range(len(paths)))
    bench = open_bench(write_world(tmp_path / "world"), tiny_clip, tmp_path / "spread")
    killer = Killer("FeatureWorker", lambda: records(tmp_path / "spread"), SHARDS)
    killer.start()
    reused, computed = spread_features(bench, [(ids, paths)], cluster)
    killer.join()
    assert killer.killed and killer.done < SHARDS, "an actor died in the middle"
    assert reused + computed == len(paths)

    alone = load_encoder(f"local-dir:{tiny_clip}")
    assert store_images(alone, ids, paths, tmp_path / "alone") == (0, len(paths))
    expected = features_below(tmp_path / "alone")
    assert features_below(tmp_path / "spread") == expected and len(expected) == 2 * SHARDS + 1

    # A shard that was damaged afterwards is found by its hash, and it alone is done again.
    shard = sorted((tmp_path / "spread" / "features").rglob("*.safetensors"))[SHARDS // 2]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(bytes(content))
    said: list[str] = []
    assert spread_features(bench, [(ids, paths)], cluster, said.append) == (
        len(paths) - IMAGES_PER_SHARD,
        IMAGES_PER_SHARD,
    )
    assert len(said) == 1 and shard.name in said[0] and "SHA-256 differs" in said[0]
    assert features_below(tmp_path / "spread") == expected


def records(cache: Path) -> int:
    return len(list((cache / "features").rglob("image-*.json")))


@pytest.mark.slow
def test_extracted_features_and_captions_serve_runs(
    cluster: Pool,
    tmp_path: Path,
    tiny_clip: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commands, with an actor that dies between two batches of captions."""
    world, vlm = write_world(tmp_path / "world"), write_tiny_vlm(tmp_path / "tiny-vlm", pixels=56)
    models = ["--encoder", f"local-dir:{tiny_clip}", "--mllm", str(vlm), "--max-tokens", "24"]
    common = ["--benchmark", "mini-circo", "--split", "val", "--root", str(world), "--device", "cpu", *models]
    small = 3
    monkeypatch.setattr(agents, "BLOCK_REQUESTS", small)
    whole = distributed._about_mllm
    monkeypatch.setattr(distributed, "_about_mllm", lambda *given: whole(*given) | {"block": small})
    spread, alone = tmp_path / "spread", tmp_path / "alone"
    killer = Killer("AnswerWorker", lambda: len(list(spread.glob("spread/*/*.json"))), 24 // small)
    killer.start()
    arguments = ["extract", *common, "--captions", "--json", "--cache"]
    assert main([*arguments, str(spread), "--workers", "2"]) == 0
    killer.join()
    assert killer.killed
    by_two = json.loads(capsys.readouterr().out)
    assert main([*arguments, str(alone)]) == 0
    by_one = json.loads(capsys.readouterr().out)
    assert by_two | {"seconds": 0} == by_one | {"seconds": 0}
    assert (by_one["pictures"], by_one["computed"], by_one["captions"]) == (24, 24, 24)
    assert features_below(spread) == features_below(alone)
    assert answers_below(spread) == answers_below(alone) and len(answers_below(alone)["answers"]) >= 24
    assert not list(spread.glob("spread/*/*")), "what was merged is removed"

    rankings = {}
    for cache in (spread, alone):
        run = ["run", "xr", *common, "--set", "stages=coarse", "--limit", "3", "--cache", str(cache)]
        assert main([*run, "--out", str(cache / "run")]) == 0
        record = json.loads((cache / "run" / "run.json").read_text())
        captions = record["cost"]["by_agent"]["caption"]
        assert captions["mllm_calls"] == captions["cached_calls"] >= 24
        assert any("24 images reused from the cache, 0 computed" in line for line in record["caches"])
        rankings[cache] = (cache / "run" / "rankings.parquet").read_bytes()
    assert rankings[spread] == rankings[alone]


@pytest.mark.slow
def test_ctrl_c_ends_everything(tmp_path: Path, tiny_clip: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed (the extra `distributed`)")
    world = write_world(tmp_path / "world")
    for turn in range(3):
        code, out, err, mine = interrupted(world, tiny_clip, tmp_path / str(turn))
        latest = time.monotonic() + 30
        while (left := of_session(mine)) and time.monotonic() < latest:
            time.sleep(0.1)
        assert not left and not any(folder.exists() for folder in mine)
        assert "Traceback" not in err
        if code == 0:  # the work was done before the key was pressed
            continue
        if "Ray does not start" in err:
            pytest.skip(err.strip())
        assert (code, out, err.splitlines()[-1:]) == (1, "", ["cir: interrupted"]), err
        assert mine
        return
    pytest.fail("no turn was interrupted: the work takes too little time")


def interrupted(world: Path, tiny_clip: Path, cache: Path) -> tuple[int, str, str, set[Path]]:
    """`cir extract` with two workers, ended as a terminal does when a worker is there: its code, what it
    said, and the folders of its cluster."""
    before = set(Path("/tmp").glob("cir-ray-*"))
    command = [sys.executable, "-m", "cir_utils", "extract", "--benchmark", "mini-circo", "--split", "val"]
    command += ["--root", str(world), "--encoder", f"local-dir:{tiny_clip}", "--cache", str(cache)]
    process = subprocess.Popen(
        [*command, "--workers", "2", "--device", "cpu"],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    latest = time.monotonic() + PATIENCE
    while not actors("FeatureWorker", process.pid) and process.poll() is None and time.monotonic() < latest:
        time.sleep(0.02)
    mine = set(Path("/tmp").glob("cir-ray-*")) - before
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err, mine


def of_session(folders: set[Path]) -> list[str]:
    """Processes that were started with one of the session's folders."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            title = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if any(str(folder) in title for folder in folders):
                found.append(title)
    return found


# --- without a cluster --------------------------------------------------------------------------------------

ANSWERS = [
    Answer("a red car", "stop", 10, 4),
    Answer("", "length", 12, 64),
    Answer("ünïcode…", "refusal", 1, 0),
]


def test_a_shard_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_shard(tmp_path, "name", ANSWERS)
    assert read_shard(tmp_path, "name") == ANSWERS
    assert read_shard(tmp_path, "other") is None


@pytest.mark.parametrize("damage", ["no record", "no data", "a bit", "cut", "another's record", "no JSON"])
def test_a_shard_that_is_not_whole_is_none(damage: str, tmp_path: Path) -> None:
    write_shard(tmp_path, "name", ANSWERS)
    data, record = tmp_path / "name.parquet", tmp_path / "name.json"
    content = data.read_bytes()
    if damage == "no record":
        record.unlink()
    elif damage == "no data":
        data.unlink()
    elif damage == "a bit":
        data.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    elif damage == "cut":
        data.write_bytes(content[:-1])
    elif damage == "another's record":
        write_shard(tmp_path, "other", ANSWERS[:1])
        record.write_bytes((tmp_path / "other.json").read_bytes())
    else:
        record.write_text("[")
    assert read_shard(tmp_path, "name") is None


class Script(ScriptedMLLM):
    """Fails at the picture ``bad``, after it has answered what came before."""

    def __init__(self, bad: str = "") -> None:
        super().__init__(lambda request: f"picture {request.images[0].stem}")
        self.bad, self.loaded = bad, 0

    def generate(self, requests: Sequence[Request]) -> list[Answer]:
        for place, request in enumerate(requests):
            if request.images[0].stem == self.bad:
                came = dict(enumerate(super().generate(requests[:place])))
                raise Unanswered("the server is gone", came)
        return super().generate(requests)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Script:
    """The pipeline in this process, one actor, with a scripted MLLM."""
    script = Script()

    def spread(
        pool: Pool, worker: Any, arguments: Mapping[str, Any], tasks: Any, what: str, failed: Any = None
    ) -> Iterator[dict[str, Any]]:
        actor = worker(**arguments)
        for task in tasks:
            answer = json.loads(actor({"task": json.dumps(task)})["answer"])
            if "error" in answer:
                raise (failed or (lambda message, row: InputError(message)))(answer["error"], answer)
            yield answer

    def opened(*_: Any) -> Script:
        script.loaded += 1
        return script

    monkeypatch.setattr(distributed, "_spread", spread)
    monkeypatch.setattr(distributed, "open_mllm", opened)
    return script


def spread_mllm(folder: Path, identifier: str = "scripted@1") -> SpreadMLLM:
    return SpreadMLLM("x", HERE, folder, {"identifier": identifier, "structured": False, "block": 2})


def test_answers_come_in_order_and_are_not_asked_twice(tmp_path: Path, here: Script) -> None:
    requests = [Request("caption:", (path,)) for path in paint(tmp_path / "pictures", 5)]
    mllm = spread_mllm(tmp_path / "shards")
    answers = mllm.generate(requests)
    assert [answer.text for answer in answers] == [f"picture {number}" for number in range(5)]
    assert answers == ScriptedMLLM(here.answer).generate(requests)
    assert [len(list((tmp_path / "shards").glob(f"*.{kind}"))) for kind in ("json", "parquet")] == [3, 3]
    # A command that was killed before it merged: the next one finds all, and loads no model.
    assert spread_mllm(tmp_path / "shards").generate(requests) == answers
    assert len(here.requests) == 5 and here.loaded == 1
    # Changed pictures, prompts and models are other work.
    paint_again = requests[0].images[0]
    Image.new("RGB", (8, 8)).save(paint_again)
    spread_mllm(tmp_path / "shards").generate(requests)
    assert len(here.requests) == 7
    mllm.forget()
    assert not (tmp_path / "shards").exists()


def test_what_came_before_a_failure_is_kept(tmp_path: Path, here: Script) -> None:
    """By the error for the agents, who keep it; and in the shards that were done."""
    requests = [Request("caption:", (path,)) for path in paint(tmp_path / "pictures", 5)]
    here.bad = "3"
    with pytest.raises(Unanswered, match="the server is gone") as caught:
        spread_mllm(tmp_path / "shards").generate(requests)
    assert {place: answer.text for place, answer in caught.value.answers.items()} == {
        0: "picture 0", 1: "picture 1", 2: "picture 2",
    }  # fmt: skip
    assert len(list((tmp_path / "shards").glob("*.parquet"))) == 1, "a batch that is not whole is no shard"
    asking = agents.Agents(spread_mllm(tmp_path / "shards"), ResponseCache(tmp_path / "a.sqlite"), "mini")
    with pytest.raises(Unanswered):
        asking.caption([request.images[0] for request in requests])
    assert asking.cache.counts()["answers"] == 3


def test_a_worker_with_another_model_is_refused(tmp_path: Path, here: Script) -> None:
    requests = [Request("caption:", (path,)) for path in paint(tmp_path / "pictures", 1)]
    with pytest.raises(InputError, match="x is scripted@1 on one worker and other@2 on another"):
        spread_mllm(tmp_path / "shards", "other@2").generate(requests)
    assert not list(tmp_path.glob("shards/*"))


def test_wrong_input_comes_back_as_one_line(tmp_path: Path, tiny_clip: Path, here: Script) -> None:
    """From the encoder's load and from a picture, without a shard."""
    good = paint(tmp_path / "pictures", 2)
    for spec, paths, said in (
        (f"local-dir:{tmp_path / 'none'}", good, "encoder folder .*none does not exist"),
        (f"local-dir:{tiny_clip}", [good[0], tmp_path / "gone.png"], "gone.png does not exist"),
    ):
        worker = FeatureWorker(spec, {}, str(tmp_path / "cache"), asdict(HERE))
        task = {"ids": [1, 2], "paths": [str(path) for path in paths]}
        answer = json.loads(worker({"task": json.dumps(task)})["answer"])
        assert set(answer) == {"error", "worker", "ended"}
        with pytest.raises(InputError, match=said):
            raise InputError(answer["error"])
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_full_disk_is_one_line(tmp_path: Path, here: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(distributed, "write_atomic", full)
    requests = [Request("caption:", (path,)) for path in paint(tmp_path / "pictures", 1)]
    with pytest.raises(InputError, match="at .*parquet .No space left on device.; see that there is"):
        spread_mllm(tmp_path / "shards").generate(requests)


def test_references_outside_the_gallery_are_extracted_too(tmp_path: Path, tiny_clip: Path) -> None:
    bench = open_bench(write_world(tmp_path / "world"), tiny_clip, tmp_path / "cache")
    references = {query.reference for query in bench.queries}
    gallery = tuple(image for image in bench.benchmark.gallery if image not in references)
    object.__setattr__(bench.benchmark, "gallery", gallery)
    done = extract(bench)
    assert (done.pictures, done.computed) == (len(gallery) + len(bench.queries), done.pictures)
    bench.reference_features, bench.gallery_features  # noqa: B018
    assert [line.split(": ")[1] for line in bench.caches] == [
        f"{len(bench.queries)} images reused from the cache, 0 computed",
        f"{len(gallery)} images reused from the cache, 0 computed",
    ]


def test_extract_says_what_is_wrong(
    tmp_path: Path, tiny_clip: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*arguments: str) -> str:
        assert main(["extract", "--benchmark", "mini-circo", *arguments]) == 2
        return capsys.readouterr().err.strip()

    assert said("--ray", "auto") == (
        "cir: --ray names the cluster of Ray workers; say how many with --workers"
    )
    assert "--workers" in said("--workers", "0")
    assert said("--captions", "--mllm", "replay:mini-vlm@1/float32", "--cache", str(tmp_path)).startswith(
        "cir: a replay has its captions already"
    )
    monkeypatch.setitem(sys.modules, "ray", None)
    assert said("--workers", "2", "--cache", str(tmp_path)) == (
        "cir: Ray workers need the ray package; install it with pip install 'cir-utils[distributed]'"
    )
    with pytest.raises(InputError, match="do not verify"):
        spread_mllm(tmp_path).verdicts([])
