"""The one place where a device name becomes a device, and where its memory is read."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import torch

from cir_utils.errors import InputError


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
