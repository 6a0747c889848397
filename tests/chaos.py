"""A `cir run` that meets misfortune: the process that runs, and what it did.

:func:`work` is the process. Its batches are small and it writes slowly, so that moments in its life fall into
many batches, and into writing as well as computing. Before it computes a batch it writes a line to its log:
the moment, what kind of batch, and a name for every item. A batch is computed after the one before it was
stored, so the last line of a killed process names all that may have been in flight.

:func:`attempt` starts such a process and may kill it. The processes are forked from a server that has
imported everything, as that takes seconds and a run takes few. What else befalls them is a function that they
call first: :func:`read_only`, :func:`jumping_clock`; or another process function: :func:`grow`. Workers of
other engines fit in the same way, as a process function.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import gc
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from mounts import mount_disk, mount_read_only, own_mounts, resize_disk

from cir_utils import agents, feature_store, runs, workbench
from cir_utils.cli import main
from cir_utils.encoder import ClipEncoder
from cir_utils.files import sha256_text
from cir_utils.mllm import LocalMLLM, Request, VerifyItem
from cir_utils.response_cache import ResponseCache

ENCODED, REQUESTS, PAIRS = 4, 4, 24  # a batch of each kind
REPLACE_SECONDS, ROW_SECONDS = 0.02, 0.002
#: Lines of the log that are no batch: the process has begun, it writes the run folder, it ends.
BEGIN, SAVE, END = "begin", "save", "end"
#: What the server imports: these and what they import.
IMPORTED = [
    "cir_utils.runs",
    "cir_utils.workbench",
    "transformers.models.auto.processing_auto",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl",
]
#: Seconds that a process may take to show the line that is waited for.
PATIENCE = 900


@dataclass
class Attempt:
    """What a process did: its exit code, and the lines of its log: moment in seconds, kind, items."""

    code: int
    lines: list[tuple[float, str, tuple[str, ...]]] = field(default_factory=list)

    @property
    def batches(self) -> list[tuple[str, ...]]:
        """Its batches: kind, then items."""
        return [(kind, *items) for _, kind, items in self.lines if kind not in (BEGIN, SAVE, END)]


def started(target: Callable[..., None], *arguments: Any) -> Any:
    """A process with ``target``, running."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def attempt(
    arguments: Sequence[str],
    log: Path,
    kinds: Sequence[str] = (),
    after: float = 0.0,
    first: Callable[[], None] | None = None,
) -> Attempt:
    """Run ``cir`` with ``arguments`` in a process of its own, which calls ``first`` first; with ``kinds``,
    kill it ``after`` seconds from its first line of one of these kinds, unless it ends before."""
    process = started(work, list(arguments), log, first)
    latest = time.monotonic() + PATIENCE
    while kinds and process.is_alive() and not any(kind in kinds for _, kind, _ in read(log)):
        if time.monotonic() > latest:
            break
        time.sleep(0.001)
    if kinds:
        process.join(after)
        process.kill()
    process.join(PATIENCE)
    assert process.exitcode is not None, f"{arguments} did not end"
    return Attempt(process.exitcode, read(log))


def read(log: Path) -> list[tuple[float, str, tuple[str, ...]]]:
    """The whole lines of a log."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    rows = [line.split(" ") for line in lines]
    return [(float(row[0]), row[1], tuple(row[2:])) for row in rows]


def work(arguments: list[str], log: Path, first: Callable[[], None] | None = None) -> None:
    """The process."""
    if first is not None:
        first()
    note = watched(log)
    note(BEGIN)
    code = main(arguments)
    note(END)
    sys.exit(code)


def watched(log: Path) -> Callable[..., None]:
    """Make this process's batches small and its writing slow, and have it say what it does: in ``log``, whose
    next line the returned function writes; what it prints goes beside it."""
    said = os.open(log.with_suffix(".said"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    torch.set_num_threads(1)
    make_small_and_slow()
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(kind: str, items: Iterable[object] = ()) -> None:
        names = [sha256_text(repr(item))[:16] for item in items]
        os.write(lines, (" ".join([str(time.monotonic()), kind, *names]) + "\n").encode())

    def watch(owner: type, name: str, kind: str, items_of: Callable[[Any], Iterable[object]]) -> None:
        whole = getattr(owner, name)

        def noted(self: object, batch: Any, *rest: Any, **more: Any) -> Any:
            note(kind, items_of(batch))
            return whole(self, batch, *rest, **more)

        setattr(owner, name, noted)

    watch(ClipEncoder, "encode_images", "images", lambda paths: [path.name for path in paths])
    watch(ClipEncoder, "encode_texts", "texts", list)
    watch(LocalMLLM, "generate", "answers", lambda batch: [request_name(request) for request in batch])
    watch(LocalMLLM, "verdicts", "verdicts", pairs)
    watch(runs.Run, "save", SAVE, lambda out: [])
    return note


def make_small_and_slow() -> None:
    agents.BLOCK_REQUESTS, agents.BLOCK_PAIRS = REQUESTS, PAIRS
    workbench.image_features = functools.partial(feature_store.image_features, shard_size=ENCODED)
    workbench.text_features = functools.partial(feature_store.text_features, shard_size=ENCODED)
    put = ResponseCache._put

    def slowly(call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*given: Any, **more: Any) -> Any:
            time.sleep(REPLACE_SECONDS)
            return call(*given, **more)

        return slow

    class SlowRows(dict[bytes, Any]):
        def items(self) -> Iterator[tuple[bytes, Any]]:  # type: ignore[override]
            for row in super().items():
                time.sleep(ROW_SECONDS)
                yield row

    def slow_put(self: ResponseCache, table: str, rows: Mapping[bytes, Any], model: str) -> None:
        put(self, table, SlowRows(rows), model)

    os.replace, os.rename = slowly(os.replace), slowly(os.rename)
    shutil.rmtree = slowly(shutil.rmtree)  # type: ignore[assignment]
    runs._dump = slowly(runs._dump)
    ResponseCache._put = slow_put  # type: ignore[method-assign]


def request_name(request: Request) -> object:
    return request.prompt, [path.name for path in request.images], request.max_new_tokens


def pairs(batch: Sequence[VerifyItem]) -> list[object]:
    return [
        ([path.name for path in item.images], item.prefix, statement)
        for item in batch
        for statement in item.statements
    ]


# --- misfortune ---------------------------------------------------------------------------------------------


def read_only(folder: Path) -> None:
    """This process can read ``folder`` and not write it."""
    own_mounts()
    mount_read_only(folder)


def jumping_clock(seed: int) -> None:
    """The time of day jumps by up to forty years either way, whenever it is asked for."""
    dice, real, real_ns = random.Random(seed), time.time, time.time_ns
    now = datetime.datetime.now

    def jump() -> int:
        return dice.randrange(-40 * 365 * 86_400, 40 * 365 * 86_400)

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return now(tz) + datetime.timedelta(seconds=jump())

    time.time, time.time_ns = (lambda: real() + jump()), (lambda: real_ns() + jump() * 10**9)
    runs.datetime = Jumping  # type: ignore[misc]


def grow(
    arguments: list[str],
    log: Path,
    disks: list[tuple[Path, list[int]]],
    mounted: bool,
    copied: list[Path],
    out: Path,
) -> None:
    """A process function: run on disks that are too small, and again whenever one of them has grown; in the
    end the folders ``copied`` go to ``out``, as the disks end with the process.

    A disk is a folder and its sizes in bytes, one after the other; the disk at fault is the last of those
    whose folder the message names. Without ``mounted`` there is one, in whose place the largest file that may
    be written grows. ``out/said.json`` has exit code and message of every attempt."""
    if mounted:
        own_mounts()
        for folder, sizes in disks:
            folder.mkdir(parents=True, exist_ok=True)
            mount_disk(folder, sizes.pop(0))
    note = watched(log)
    said: list[tuple[int, str]] = []
    code = -1
    while code:
        if not mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (disks[0][1].pop(0), resource.RLIM_INFINITY))
        note(BEGIN)
        with contextlib.redirect_stderr(io.StringIO()) as stream:
            code = main(arguments)
        note(END)
        gc.collect()
        said.append((code, stream.getvalue()))
        full = [disk for disk in disks if not mounted or str(disk[0]) in said[-1][1]]
        if code and not (full and full[-1][1]):
            break
        if code and mounted:
            resize_disk(full[-1][0], full[-1][1].pop(0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for folder in copied:
        shutil.copytree(folder, out / folder.name)
    (out / "said.json").write_text(json.dumps(said))
    sys.exit(code)
