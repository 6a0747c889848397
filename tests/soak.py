"""A process that asks a faulty server for days: in compressed form, as pauses are short.

:func:`serve` is the server: it gives about one bad reply in ten, and every so often it is gone and comes
back. :func:`soak` is the process that is watched: it runs `cir run` again and again, each time on new
queries, and again after a run that failed. Both are process functions (``chaos.started``)."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from chat_server import ChatServer
from small_world import COLOURS, ID_OF, PLACES, THINGS, Oracle, looker

from cir_utils import mllm_server
from cir_utils.cli import main

#: Bad replies in a thousand, by the words of ``chat_server.ChatServer``.
FAULTS = {
    "429:0.01": 15, "500": 12, "503": 10, "break": 12, "empty": 8, "html": 8, "cut-json": 8, "choices:0": 4,
    "choices:2": 4, "nan": 4, "tokens": 5, "bare": 5, "stranger": 5, "huge": 1, "hang": 0.3,
    "trickle": 0.3,
}  # fmt: skip
#: The server goes after so many requests, and is away for so many seconds.
LIFE, AWAY = (500, 1500), 0.2
SECONDS = 6.0
METHODS = ("sdr-cir", "xr")
OVERRIDES: dict[str, dict[str, int]] = {"sdr-cir": {}, "xr": {"k_prime": 6}}


class Dice(list[str]):
    """A plan without an end."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.left = self.dice.randrange(*LIFE)
        self.words = [*FAULTS, "well"]
        self.weights = [*FAULTS.values(), 1000 - sum(FAULTS.values())]

    def __bool__(self) -> bool:
        return True

    def pop(self, _: object = 0) -> str:  # type: ignore[override]
        self.left -= 1
        if self.left == 0:
            threading.Timer(0.0, os._exit, [0]).start()  # in the middle of whatever it is doing
        return self.dice.choices(self.words, self.weights)[0]


def serve(port: int, world: Path, seed: int) -> None:
    """A process function: a chat server on ``port`` that knows the world's pictures, and starts again."""
    child = 0

    def stop(*_: object) -> None:
        if child:
            os.kill(child, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    look = looker(world, Oracle())
    while True:
        seed += 1
        child = os.fork()
        if not child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            server = ChatServer(port)
            server.look, server.plan = look, Dice(seed)
            server.serve_forever()
        os.waitpid(child, 0)
        time.sleep(AWAY)


def write_queries(world: Path, first: int, count: int) -> None:
    """The world's queries of split val, made anew: ``count`` of them, no text like any other."""
    rows = []
    for number in range(first, first + count):
        colour, old = COLOURS[number % 2], COLOURS[(number % 2 + 1) % 3]
        thing, place = THINGS[number % 4], PLACES[number // 4 % 2]
        targets = [ID_OF[colour, thing, other] for other in PLACES]
        rows.append(
            {
                "id": number,
                "reference_img_id": ID_OF[old, thing, place],
                "relative_caption": f"make it {colour} for the {number}th time",
                "shared_concept": f"a {thing}",
                "gt_img_ids": targets,
                "target_img_id": targets[0],
                "semantic_aspects": ["compare_change"],
            }
        )
    (world / "annotations" / "val.json").write_text(json.dumps(rows))


def soak(url: str, world: Path, clip: Path, place: Path, queries: int, block: int) -> None:
    """A process function: ``queries`` queries in runs of ``block`` each, the methods in turn. Below ``place``
    the cache, the run folders ``0``, ``1``, ... and ``result.json``: failed attempts by message, what the
    process held at each quarter, and its memory in KiB after each run."""
    os.environ |= {"CIR_SERVER_URL": url, "CIR_SERVER_TIMEOUT": str(SECONDS), "CIR_SERVER_NAME": "soak"}
    os.environ |= {"NO_PROXY": "127.0.0.1", "CIR_SERVER_KEY": "none"}
    client = importlib.import_module("openai._base_client")  # of the server extra

    client.INITIAL_RETRY_DELAY = 0.01
    mllm_server.READ_PAUSE = 0.01
    failed: Counter[str] = Counter()
    quarters, kib = [], []
    runs = queries // block
    for number in range(runs):
        write_queries(world, number * block, block)
        method = METHODS[number % len(METHODS)]
        arguments = ["run", method, "-b", "mini-circo", "--root", str(world)]
        arguments += ["--split", "val", "--encoder", f"local-dir:{clip}", "--mllm", "server:m"]
        arguments += ["--device", "cpu", "--cache", str(place / "cache"), "--out", str(place / str(number))]
        for name, value in OVERRIDES[method].items():
            arguments += ["--set", f"{name}={value}"]
        while True:
            said, told = io.StringIO(), io.StringIO()
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(told):
                code = main(arguments)
            if code == 0:
                break
            text = said.getvalue().strip()
            if code != 2 or "\n" in text or "run again" not in text:
                print(text, file=sys.stderr)
                sys.exit(1)
            failed[text.partition("; ")[0].partition(") ")[2][:60]] += 1
            time.sleep(AWAY)
        kib.append(held()["kib"])
        if (number + 1) * 4 % runs < 4:
            quarters.append(held() | {"queries": (number + 1) * block})
    (place / "result.json").write_text(json.dumps({"failed": failed, "quarters": quarters, "kib": kib}))


def held() -> dict[str, int]:
    """What this process holds: resident memory in KiB, Python objects, open files, sockets among them,
    threads, child processes."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    links = []
    for file in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own is gone
            links.append(os.readlink(f"/proc/self/fd/{file}"))
    tasks = list(Path("/proc/self/task").iterdir())
    return {
        "kib": int(status.partition("VmRSS:")[2].split()[0]),
        "objects": len(gc.get_objects()),
        "files": len(links),
        "sockets": sum(link.startswith("socket:") for link in links),
        "threads": threading.active_count(),
        "children": sum(len((task / "children").read_text().split()) for task in tasks),
    }
