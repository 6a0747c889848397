"""The one place where a device name becomes a device, and where its memory is read and kept within."""

from __future__ import annotations

import gc
import logging
import re
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from cir_utils.errors import InputError

log = logging.getLogger(__name__)

#: How the CPU's and other devices' allocators say it; CUDA has a class of its own.
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory", re.IGNORECASE)


class NoMemory(InputError):
    """One item alone needs more memory than the device has."""


def resolve_device(name: str = "auto") -> torch.device:
    """The device for ``auto``, ``cpu``, ``cuda`` or ``cuda:<index>``.

    ``auto`` is the first CUDA device where there is one, else the CPU. ``cuda`` is ``cuda:0``, so that equal
    devices compare equal. Raises :class:`InputError` for another name and for a device that this machine does
    not have.
    """
    if name == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda:0" if count else "cpu")
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise InputError(f"device {name!r} is unknown; choose auto, cpu, cuda or cuda:<index>")
    index = int(match.group(1) or 0)
    if index >= count:
        have = "no CUDA device" if count == 0 else f"{count} CUDA device(s), cuda:0 to cuda:{count - 1}"
        raise InputError(
            f"device {name!r} is not here: this machine has {have}; use --device cpu or --device auto"
        )
    return torch.device("cuda", index)


def peak_bytes() -> int:
    """The most host memory that this process has held so far. On Linux ``ru_maxrss`` also counts what the
    process was before it became this program, a copy of its parent, so the kernel's own mark is read where it
    is."""
    status = Path("/proc/self/status")
    if status.is_file() and "VmHWM:" in (text := status.read_text()):
        return int(text.partition("VmHWM:")[2].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def in_batches(
    numbers: Sequence[int], sizes: Sequence[int], limit: int, run: Callable[[list[int]], None]
) -> int:
    """Call ``run`` for consecutive batches of ``numbers`` whose padded size, the largest of ``sizes`` times
    the count, stays within ``limit`` (at least one each).

    A batch that memory does not hold is not lost: the limit falls to half of that batch, and the batch is
    cut anew. ``run`` must leave nothing half done when it fails. Returns the limit in force at the end, for
    the next call. Raises :class:`NoMemory` where one item alone does not fit.
    """
    rest = list(zip(numbers, sizes, strict=True))
    while rest:
        count, largest = 1, max(1, rest[0][1])
        while count < len(rest) and (count + 1) * max(largest, rest[count][1]) <= limit:
            largest = max(largest, rest[count][1])
            count += 1
        if _fits(run, [number for number, _ in rest[:count]]):
            rest = rest[count:]
        elif count == 1:
            raise NoMemory(
                f"memory does not suffice for one item of {largest} tokens; use a smaller model, "
                "a device with more memory (--device), or smaller pictures"
            )
        else:
            limit = count * largest // 2
            log.warning("out of memory: batches of at most %d tokens from here on", limit)
    return limit


def _fits(run: Callable[[list[int]], None], batch: list[int]) -> bool:
    """Whether memory sufficed for the batch. The error is let go before memory is freed: it holds the frames
    that hold the tensors."""
    try:
        run(batch)
        return True
    except NoMemory:
        pass
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not _NO_MEMORY.search(str(error)):
            raise
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return False
