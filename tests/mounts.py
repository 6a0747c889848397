"""Small and read-only file systems for one process: mounts that no other process sees and that end with it.

They need root or user namespaces. Run as a program, this tries them and says on stderr what is missing."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
#: Flags of a file system that a mount of it in another user namespace must keep: nosuid, nodev, noexec.
KEPT = 2 | 4 | 8


def own_mounts() -> None:
    """From here on this process's mounts are its own. It must have one thread. Raises ``OSError``."""
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", CLONE_NEWNS)
    except OSError:
        _call("unshare", CLONE_NEWNS | CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)


def mount_disk(folder: Path, size: int) -> None:
    """An empty disk of ``size`` bytes at ``folder`` (whole pages; memory, in truth)."""
    _call("mount", b"tmpfs", bytes(folder), b"tmpfs", KEPT & 6, f"size={size}".encode())


def resize_disk(folder: Path, size: int) -> None:
    _call("mount", b"tmpfs", bytes(folder), b"tmpfs", MS_REMOUNT | KEPT & 6, f"size={size}".encode())


def mount_read_only(folder: Path) -> None:
    """``folder`` as it is, for reading alone."""
    path, kept = bytes(folder), os.statvfs(folder).f_flag & KEPT
    _call("mount", path, path, None, MS_BIND, None)
    _call("mount", None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | kept, None)


@cache
def missing() -> str:
    """Why there are no such mounts here; "" where there are."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=60)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def _call(name: str, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        own_mounts()
        mount_disk(Path(place), 1 << 16)
        resize_disk(Path(place), 1 << 17)
        (Path(place) / "folder").mkdir()
        mount_read_only(Path(place) / "folder")
        try:
            (Path(place) / "folder" / "file").write_text("x")
        except OSError:
            pass
        else:
            sys.exit("a read-only mount can be written")
        _call("umount2", bytes(Path(place) / "folder"), 2)
        _call("umount2", bytes(Path(place)), 2)
