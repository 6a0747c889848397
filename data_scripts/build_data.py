"""Make all pictures and annotations of the mini world from nothing, as they are shipped.

    python -m data_scripts.build_data                # all three benchmarks, in place of the shipped ones
    python -m data_scripts.build_data --out DIR      # into a folder that holds none of them
    python -m data_scripts.build_data --check        # build aside, compare every byte with the shipped files

`mini-circo`, `mini-fashioniq` and `mini-cirr` are built side by side in a hidden folder and get their names
when all are whole. The bytes are the same on every run, with any number of workers. They depend on numpy
(random numbers) and on Pillow with its own libjpeg-turbo (drawing and JPEG); `MADE_WITH` says which made the
shipped files.

Exit code 0: done, or every byte is equal. 1: files differ, the first of them named. 2: wrong usage, or the
folder cannot be written.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import PIL
from PIL import features

from cir_utils.errors import InputError, exit_code
from cir_utils.files import MANIFEST, sha256_file
from data_scripts import make_mini_circo, make_mini_cirr, make_mini_fashioniq

SHIPPED = Path(str(files("cir_utils").joinpath("mini")))
#: Folder -> what fills it. The longest job is first, so that two workers end together.
MAKERS: dict[str, Callable[[Path], None]] = {
    "circo": make_mini_circo.write,
    "fashioniq": make_mini_fashioniq.write,
    "cirr": make_mini_cirr.write,
}
#: The libraries that decide bytes, as they were when the shipped files were made.
MADE_WITH = {"numpy": "2.4.6", "Pillow": "13.0.0", "libjpeg-turbo": "3.2.0"}
NAMED = 10  # how many files that differ are named


@dataclass(frozen=True)
class Built:
    """One benchmark's folder: seconds by the clock and of processor time, files, bytes, and the SHA-256 of
    its list of checksums, which stands for them all."""

    name: str
    seconds: float
    processor_seconds: float
    files: int
    bytes: int
    sha256: str


def versions() -> dict[str, str]:
    """The libraries that decide bytes, as they are here."""
    return {
        "numpy": np.__version__,
        "Pillow": PIL.__version__,
        "libjpeg-turbo": features.version_feature("libjpeg_turbo") or "none (another libjpeg)",
    }


def make(
    folder: Path, workers: int = 2, makers: Mapping[str, Callable[[Path], None]] = MAKERS
) -> list[Built]:
    """Build every benchmark into ``folder`` under its name, several at a time."""
    with ProcessPoolExecutor(workers) as executor:
        return list(executor.map(_make_one, makers.items(), [folder] * len(makers)))


def _make_one(job: tuple[str, Callable[[Path], None]], folder: Path) -> Built:
    name, maker = job
    start, processor_start = time.perf_counter(), time.process_time()
    maker(folder / name)
    seconds, processor_seconds = time.perf_counter() - start, time.process_time() - processor_start
    sizes = [(folder / name / file).stat().st_size for file in _file_names(folder / name)]
    manifest = folder / name / MANIFEST
    return Built(name, seconds, processor_seconds, len(sizes), sum(sizes), sha256_file(manifest))


def build(
    out: Path = SHIPPED, workers: int = 2, makers: Mapping[str, Callable[[Path], None]] = MAKERS
) -> list[Built]:
    """Build every benchmark into ``out``; nothing there changes before all are whole.

    Only the shipped folders are replaced. Raises :class:`InputError` where another ``out`` holds a folder of
    the same name (it may be the real benchmark).
    """
    taken = [name for name in makers if (out / name).exists()]
    if taken and out.resolve() != SHIPPED.resolve():
        raise InputError(f"{out / taken[0]} is there already: give --out a folder without {', '.join(taken)}")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=out) as aside:
        made = make(Path(aside), workers, makers)
        for name in makers:
            _put_in_place(Path(aside) / name, out / name)
    return made


def _put_in_place(made: Path, place: Path) -> None:
    """Rename a whole folder to its name; what had the name goes back if that fails, else away."""
    old = made.with_name(f"{made.name}.old")
    if place.exists():
        os.rename(place, old)
    try:
        os.rename(made, place)
    except OSError:
        if old.exists():
            os.rename(old, place)
        raise


def differences(made: Path, shipped: Path, names: Sequence[str] = tuple(MAKERS)) -> list[str]:
    """The files of two builds that are not equal byte by byte, each with what is wrong, by name."""
    found = []
    for name in names:
        new, old = _file_names(made / name), _file_names(shipped / name)
        for file in sorted(new | old):
            path = shipped / name / file
            if file not in old:
                found.append(f"{path} is missing")
            elif file not in new:
                found.append(f"{path} is not a file of this build")
            elif (made / name / file).read_bytes() != path.read_bytes():
                found.append(f"{path} differs")
    return found


def check(
    shipped: Path = SHIPPED, workers: int = 2, makers: Mapping[str, Callable[[Path], None]] = MAKERS
) -> tuple[list[Built], list[str]]:
    """Build aside and compare with ``shipped``: what was built, and the :func:`differences`."""
    with tempfile.TemporaryDirectory() as aside:
        made = make(Path(aside), workers, makers)
        return made, differences(Path(aside), shipped, list(makers))


def _file_names(folder: Path) -> set[str]:
    """The files below a folder, relative to it, but hidden ones."""
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts)}


def describe(made: Sequence[Built]) -> str:
    """What was built: seconds, sizes and hashes."""
    lines = [
        f"mini-{one.name:<10} {one.seconds:6.1f} s ({one.processor_seconds:5.1f} s of one core)  "
        f"{one.files:,} files  {one.bytes / 1e6:5.2f} MB  {MANIFEST} {one.sha256}"
        for one in made
    ]
    total, size, seconds = (
        sum(one.files for one in made),
        sum(one.bytes for one in made),
        sum(one.processor_seconds for one in made),
    )
    lines.append(f"in all {seconds:.1f} s of one core, {total:,} files, {size / 1e6:.2f} MB")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, or build aside and compare; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=SHIPPED, help="folder of the three; default: the shipped one"
    )
    parser.add_argument("--check", action="store_true", help="compare with the files of --out, change none")
    parser.add_argument("--workers", type=int, default=2, help="how many are built at a time (default 2)")
    given = parser.parse_args(arguments)
    here = versions()
    print("with " + ", ".join(f"{name} {version}" for name, version in here.items()))
    differing: list[str] = []
    start = time.perf_counter()
    try:
        if given.workers < 1:
            raise InputError("--workers must be 1 or more")
        if given.check:
            made, differing = check(given.out, given.workers, MAKERS)
        else:
            made = build(given.out, given.workers, MAKERS)
    except (InputError, OSError) as error:
        print(f"build_data: {error}", file=sys.stderr)
        return 2
    print(describe(made))
    print(f"{time.perf_counter() - start:.1f} s by the clock with {given.workers} worker(s)")
    if not given.check:
        print(f"=> built into {given.out}")
        return 0
    for what in differing[:NAMED]:
        print(what)
    if len(differing) > NAMED:
        print(f"and {len(differing) - NAMED:,} more")
    others = [f"{name} {MADE_WITH[name]}" for name, version in here.items() if version != MADE_WITH[name]]
    if differing and others:
        print(f"note: shipped files were made with {', '.join(others)}; other versions may give other bytes")
    print("=> " + (f"{len(differing):,} files differ" if differing else f"equal to {given.out}, every byte"))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
