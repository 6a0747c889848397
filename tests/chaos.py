"""A `cir run` that is killed: the process that runs, and what it did.

:func:`work` is the process. Its batches are small and it writes slowly, so that moments in its life fall into
many batches, and into writing as well as computing. Before it computes a batch it writes a line to its log:
the moment, what kind of batch, and a name for every item. A batch is computed after the one before it was
stored, so the last line of a killed process names all that may have been in flight.

:func:`attempt` starts such a process and kills it. The processes are forked from a server that has imported
everything, as that takes seconds and a run takes few.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cir_utils import agents, feature_store, workbench
from cir_utils.cli import main
from cir_utils.encoder import ClipEncoder
from cir_utils.files import sha256_text
from cir_utils.mllm import LocalMLLM, Request, VerifyItem
from cir_utils.response_cache import ResponseCache

ENCODED, REQUESTS, PAIRS = 4, 4, 24  # a batch of each kind
REPLACE_SECONDS, ROW_SECONDS = 0.02, 0.002
END = "end"
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
    """What a process did: its exit code, its batches (kind, then items) and their moments in seconds; the
    last moment is its end, where it came to it."""

    code: int
    batches: list[tuple[str, ...]] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)


def attempt(arguments: Sequence[str], log: Path, kinds: Sequence[str] = (), after: float = 0.0) -> Attempt:
    """Run ``cir`` with ``arguments`` in a process of its own; with ``kinds``, kill it ``after`` seconds from
    its first batch of one of these kinds, unless it ends before."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=work, args=(list(arguments), log))
    process.start()
    latest = time.monotonic() + PATIENCE
    while kinds and process.is_alive() and not any(batch[0] in kinds for batch in read(log)[0]):
        if time.monotonic() > latest:
            break
        time.sleep(0.001)
    if kinds:
        process.join(after)
        process.kill()
    process.join(PATIENCE)
    assert process.exitcode is not None, f"{arguments} did not end"
    return Attempt(process.exitcode, *read(log))


def read(log: Path) -> tuple[list[tuple[str, ...]], list[float]]:
    """The whole lines of a log: batches and moments."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    rows = [line.split(" ") for line in lines]
    return [tuple(row[1:]) for row in rows if row[1] != END], [float(row[0]) for row in rows]


def work(arguments: list[str], log: Path) -> None:
    """The process."""
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
    code = main(arguments)
    note(END)
    sys.exit(code)


def make_small_and_slow() -> None:
    agents.BLOCK_REQUESTS, agents.BLOCK_PAIRS = REQUESTS, PAIRS
    workbench.image_features = functools.partial(feature_store.image_features, shard_size=ENCODED)
    workbench.text_features = functools.partial(feature_store.text_features, shard_size=ENCODED)
    replace, put = os.replace, ResponseCache._put

    def slow_replace(old: Any, new: Any) -> None:
        time.sleep(REPLACE_SECONDS)
        replace(old, new)

    class SlowRows(dict[bytes, Any]):
        def items(self) -> Iterator[tuple[bytes, Any]]:  # type: ignore[override]
            for row in super().items():
                time.sleep(ROW_SECONDS)
                yield row

    def slow_put(self: ResponseCache, table: str, rows: Mapping[bytes, Any], model: str) -> None:
        put(self, table, SlowRows(rows), model)

    os.replace = slow_replace
    ResponseCache._put = slow_put  # type: ignore[method-assign]


def request_name(request: Request) -> object:
    return request.prompt, [path.name for path in request.images], request.max_new_tokens


def pairs(batch: Sequence[VerifyItem]) -> list[object]:
    return [
        ([path.name for path in item.images], item.prefix, statement)
        for item in batch
        for statement in item.statements
    ]
