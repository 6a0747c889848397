"""Fetch the real benchmarks' files: annotations, COCO's unlabeled images, or the laptop set.

    python -m data_scripts.fetch_data                                  # what there is
    python -m data_scripts.fetch_data circo-annotations --root data/circo
    python -m data_scripts.fetch_data circo-laptop --root data/circo-laptop

What is fetched, from where, under which licence and with which hash is in `data_registry.toml`. A download
goes on where it was cut, is verified, and gets its name only then; what is there and whole is not fetched
again. Sets that are bound to a licence or a form (`cirr-images`, `fashioniq-images`) are never fetched: the
script prints what to get, from whom and into which folder, and then checks the folder.

`circo-laptop` is CIRCO val with every ground truth and reference, and a seeded sample of distractors of
COCO's unlabeled images, one picture at a time, under 1 GB in all. Which pictures it chose stands in
`laptop_set.json`; their hashes, as fetched, in `SHA256SUMS`.

Exit code 0: all there and verified. 3: usable but incomplete. 2: unusable, or wrong usage. 1: a download
failed (run the same command again: it goes on).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import sys
import time
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pooch
import requests
from tqdm import tqdm

from cir_utils.errors import InputError, exit_code
from cir_utils.files import read_json, write_json_atomic, write_manifest
from cir_utils.images import load_image
from cir_utils.layouts.circo import IMAGE_LIST, IMAGES, LAPTOP_LIST, file_name
from data_scripts.check_data import PUBLISHED, check

REGISTRY = Path(__file__).with_name("data_registry.toml")
#: Seconds to wait for a connection, and for the next bytes.
TIMEOUT = (10.0, 60.0)
#: Attempts in a row without a new byte before a download is given up, and seconds before the second one
#: (twice as many before each further one).
ATTEMPTS, PAUSE = 5, 1.0
#: Bytes that are written at a time; when a connection is cut, less than that is lost.
CHUNK = 1 << 14
#: Answers that mean "not now"; other answers from 400 on mean "not at all".
PASSING = {408, 425, 429, 500, 502, 503, 504}
#: The laptop set: how many distractors are drawn, the bytes of pictures at which no more are fetched (1 GB
#: with room for the last one), and how many pictures the server may lack before something else is wrong.
DISTRACTORS, MOST_BYTES, MOST_GONE = 4000, 990_000_000, 50

Check = Callable[[Path], None]


class FetchFailed(Exception):
    """A download that did not come about, in one line; running the command again goes on with it."""


class Gone(FetchFailed):
    """The server says that it does not have the file, does not give it, or twice gives something else."""


@dataclass(frozen=True)
class Remote:
    """One file of the registry. ``size`` and ``sha256`` are None where they are not known; then ``unknown``
    says why not, and ``verified`` what is checked in their place.
    """

    path: str
    url: str
    size: int | None = None
    sha256: str | None = None
    unknown: str = ""
    verified: str = ""


@dataclass(frozen=True)
class Source:
    """One set of the registry. A set with ``ask`` is described and checked, never fetched."""

    name: str
    benchmark: str
    source: str
    licence: str
    credit: str
    about: int
    ask: str
    files: tuple[Remote, ...]


def load_registry(path: Path = REGISTRY) -> dict[str, Source]:
    """The sets by name."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        name: Source(
            name=name,
            benchmark=entry["benchmark"],
            source=entry["source"],
            licence=entry["licence"],
            credit=entry["credit"],
            about=entry.get("about", 0),
            ask=entry.get("ask", "").strip(),
            files=tuple(
                Remote(
                    path=file["path"],
                    url=entry["base"] + file["from"],
                    size=file.get("bytes"),
                    sha256=file.get("sha256"),
                    unknown=file.get("unknown", ""),
                    verified=file.get("verified", ""),
                )
                for file in entry.get("files", ())
            ),
        )
        for name, entry in table.items()
    }


# --- one file ---------------------------------------------------------------------------------------


def fetch_file(remote: Remote, root: Path, session: requests.Session, check: Check | None = None) -> Path:
    """Bring one file to ``root / remote.path`` through pooch, and return that path.

    A file that is there and right (its hash where one is known, else ``check``) is left alone. Otherwise it
    is downloaded beside its place, goes on where it was cut, is verified (size, hash, ``check``, which raises
    :class:`InputError`), and is renamed: nothing wrong ever stands under the final name. A download that is
    wrong is thrown away and done once more. Raises :class:`FetchFailed` when the server cannot be reached,
    and :class:`Gone` when the file is not to be had or is not what it should be.
    """
    path = root / remote.path
    if path.is_file() and remote.sha256 is None and check is not None:
        try:
            check(path)
        except InputError:
            path.unlink()
    shelf = pooch.Pooch(
        path=path.parent,
        base_url="",
        registry={path.name: f"sha256:{remote.sha256}" if remote.sha256 else None},
        urls={path.name: remote.url},
        retry_if_failed=1,
    )
    try:
        shelf.fetch(
            path.name, downloader=partial(_download, session=session, remote=remote, place=path, check=check)
        )
    except InputError as error:  # from the check, twice
        raise Gone(str(error)) from None
    except ValueError:  # from pooch or about the size, twice
        raise Gone(
            f"{remote.url} is not the file of the registry (SHA-256 {remote.sha256}): the server sent "
            "something else twice; try another network, or compare with the source's web page"
        ) from None
    return path


def _download(
    url: str,
    output_file: str | Path,
    _: Any,
    *,
    session: requests.Session,
    remote: Remote,
    place: Path,
    check: Check | None,
) -> None:
    """A downloader for pooch: fills ``output_file`` by way of a hidden ``.NAME.part``, which survives a cut.

    Content that is wrong raises ``ValueError``, after which pooch calls again.
    """
    part = place.with_name(f".{place.name}.part")
    tag = place.with_name(f".{place.name}.part.tag")
    fruitless = 0
    while True:
        before = part.stat().st_size if part.is_file() else 0
        try:
            _receive(url, part, tag, session, remote.size)
            break
        except Gone:
            raise
        except (requests.exceptions.RequestException, FetchFailed) as error:
            now = part.stat().st_size if part.is_file() else 0
            fruitless = 0 if now > before else fruitless + 1
            if fruitless >= ATTEMPTS:
                raise FetchFailed(
                    f"{url}: {_one_line(error)} ({ATTEMPTS} attempts); run the same command again, it goes "
                    f"on after the {now:,} bytes that are here"
                ) from None
            time.sleep(PAUSE * 2 ** max(fruitless - 1, 0))
    tag.unlink(missing_ok=True)
    try:
        size = part.stat().st_size
        if remote.size not in (None, size):
            raise ValueError(f"{size:,} bytes where the registry has {remote.size:,}")
        if check is not None:
            check(part)
    except InputError as error:
        part.unlink()
        raise InputError(str(error).replace(str(part), f"from {url}")) from None
    except ValueError:
        part.unlink()
        raise
    os.replace(part, output_file)


def _receive(url: str, part: Path, tag: Path, session: requests.Session, size: int | None) -> None:
    """One request: append to ``part`` what is missing, or start it over when the server cannot go on.

    Raises a requests exception when the connection fails or is cut, :class:`Gone` when the file is not to be
    had, :class:`FetchFailed` for an answer that may be another one later.
    """
    have = part.stat().st_size if part.is_file() else 0
    if size is not None and have > size:
        part.unlink()
        have = 0
    if size is not None and have == size and have:
        return
    # identity: the bytes of the file, so that lengths and ranges count them
    headers = {"Accept-Encoding": "identity", "User-Agent": "cir-utils (data_scripts/fetch_data.py)"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if tag.is_file():
            headers["If-Range"] = tag.read_text()
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        if answer.status_code == 416:  # nothing after what is here: whole already, or another file by now
            total = answer.headers.get("Content-Range", "").rpartition("/")[2]
            if total == str(have):
                return
            part.unlink(missing_ok=True)
            raise FetchFailed("the server cannot go on with the part that is here; starting over")
        if answer.status_code in PASSING:
            raise FetchFailed(f"the server answers {answer.status_code} {answer.reason}")
        if answer.status_code >= 400:
            raise Gone(f"{url}: the server answers {answer.status_code} {answer.reason}")
        start = _start_of(answer)
        if start not in (0, have):
            part.unlink(missing_ok=True)
            raise FetchFailed("the server sent another range than the one asked for; starting over")
        # strong tags alone can vouch that two ranges are of one file
        mark = answer.headers.get("ETag", "")
        if mark.startswith('"'):
            tag.write_text(mark)
        elif not start:
            tag.unlink(missing_ok=True)
        length = answer.headers.get("Content-Length")
        received = 0
        with (
            open(part, "ab" if start else "wb") as stream,
            tqdm(
                total=start + int(length) if length else None,
                initial=start,
                unit="B",
                unit_scale=True,
                desc=part.name.strip(".").removesuffix(".part"),
                disable=not length or int(length) < 5_000_000,
            ) as bar,
        ):
            for chunk in answer.iter_content(CHUNK):
                stream.write(chunk)
                received += len(chunk)
                bar.update(len(chunk))
        if length and received != int(length):
            raise requests.exceptions.ConnectionError(f"cut after {received:,} of {int(length):,} bytes")


def _start_of(answer: requests.Response) -> int:
    """The place in the file of the first byte that an answer brings."""
    if answer.status_code != 206:
        return 0
    found = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return int(found[1]) if found else -1


def _one_line(error: BaseException) -> str:
    """What went wrong with a connection, without the addresses of objects."""
    if isinstance(error, requests.exceptions.Timeout):
        return "no answer in time"
    if isinstance(error, requests.exceptions.TooManyRedirects):
        return "the server redirects in a circle"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection was cut"
    if isinstance(error, requests.exceptions.ConnectionError):
        text = re.sub(r"<[^>]*>:? ?", "", str(error))  # objects and their addresses
        return "no answer in time" if "Read timed out" in text else f"no connection ({text:.160})"
    return " ".join(str(error).split())


# --- checks of files without a known hash -----------------------------------------------------------


def check_zip(path: Path) -> None:
    """The file is a zip archive; its members' CRC-32 are checked when they are unpacked."""
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not a zip archive; fetch it again")


def check_picture(path: Path) -> None:
    """The file is a whole picture."""
    load_image(path)


# --- sets -------------------------------------------------------------------------------------------


def fetch_files(source: Source, root: Path, session: requests.Session) -> None:
    """All files of a set whose hashes are known."""
    for remote in source.files:
        path = fetch_file(remote, root, session)
        print(f"{path}: SHA-256 as in the registry")


def fetch_coco(registry: dict[str, Source], root: Path, session: requests.Session) -> None:
    """CIRCO's annotations, and the image list and all pictures of COCO's unlabeled images. The archive goes
    when all is unpacked.
    """
    fetch_files(registry["circo-annotations"], root, session)
    source = registry["coco-unlabeled"]
    listing, archive = source.files
    ids = _coco_ids(listing, root, session)
    folder = root / IMAGES
    if _missing_pictures(ids, folder):
        free, wanted = shutil.disk_usage(root).free, 2.1 * source.about
        if free < wanted:
            raise InputError(
                f"{root} has {free / 1e9:.0f} GB free; the archive and its pictures need {wanted / 1e9:.0f}"
            )
        path = fetch_file(archive, root, session, check_zip)
        unpack(path, folder)
        path.unlink()
    missing = _missing_pictures(ids, folder)
    if missing:
        raise FetchFailed(
            f"{len(missing):,} of {len(ids):,} pictures are not in the archive, such as {missing[0]}"
        )
    # last: a folder with the published list is taken for the full one
    with zipfile.ZipFile(root / listing.path) as zipped:
        _unpack_member(zipped, _json_member(zipped), root / IMAGE_LIST)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive's pictures into ``folder``: each is whole (by its CRC-32) before it gets its name;
    those that are there already are left alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(archive) as zipped:
            for info in tqdm(zipped.infolist(), unit="picture", desc="unpack"):
                name = PurePosixPath(info.filename).name
                if re.fullmatch(r"[0-9]{12}\.jpg", name):
                    path = folder / name
                    if not path.is_file() or path.stat().st_size != info.file_size:
                        _unpack_member(zipped, info, path)
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        archive.unlink()
        raise FetchFailed(
            f"{archive} is damaged ({error}) and is thrown away; run the command again"
        ) from None


def _unpack_member(zipped: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with zipped.open(info) as source, open(part, "wb") as stream:
        shutil.copyfileobj(source, stream)
    os.replace(part, path)


def _json_member(zipped: zipfile.ZipFile) -> zipfile.ZipInfo:
    for info in zipped.infolist():
        if PurePosixPath(info.filename).name == IMAGE_LIST.name:
            return info
    raise InputError(f"{zipped.filename} does not hold {IMAGE_LIST.name}; delete it and fetch it again")


def _coco_ids(listing: Remote, root: Path, session: requests.Session) -> list[int]:
    """The ids of COCO's unlabeled images, in rising order, from the image info archive."""
    path = fetch_file(listing, root, session, check_zip)
    try:
        with zipfile.ZipFile(path) as zipped:
            images = json.loads(zipped.read(_json_member(zipped)))["images"]
        ids = sorted({int(image["id"]) for image in images})
    except (zipfile.BadZipFile, EOFError, ValueError, KeyError, TypeError) as error:
        path.unlink()
        raise FetchFailed(f"{path} is damaged ({error}) and is thrown away; run the command again") from None
    wanted = PUBLISHED["circo"]["val"][""][1]
    if len(ids) != wanted:
        raise InputError(f"{path} lists {len(ids):,} images where {wanted:,} are published; fetch it again")
    return ids


def _missing_pictures(ids: Sequence[int], folder: Path) -> list[str]:
    there = {entry.name for entry in os.scandir(folder) if entry.stat().st_size} if folder.is_dir() else set()
    return [name for name in map(file_name, ids) if name not in there]


def fetch_laptop(
    registry: dict[str, Source], root: Path, session: requests.Session, distractors: int, seed: int
) -> None:
    """The laptop set (see the module). Deterministic: same seed and number, same pictures."""
    if (root / IMAGE_LIST).is_file():
        raise InputError(f"{root} holds COCO's full image list; give the laptop set a folder of its own")
    fetch_files(registry["circo-annotations"], root, session)
    listing, picture = registry["circo-laptop"].files
    ids = _coco_ids(listing, root, session)
    rows = read_json(root / "annotations" / "val.json", "annotation file")
    needed = sorted({i for row in rows for i in (row["reference_img_id"], *row["gt_img_ids"])})
    if not set(needed) <= set(ids):
        raise InputError(f"{root}: CIRCO's pictures are not all in COCO's image list; fetch both again")
    chosen = choose_distractors(ids, needed, distractors, seed)

    kept, size, gone = [], 0, []
    for number, image_id in enumerate(tqdm([*needed, *chosen], unit="picture")):
        if number >= len(needed) and size >= MOST_BYTES:
            break
        name = file_name(image_id)
        remote = Remote(picture.path.format(image=name), picture.url.format(image=name))
        try:
            path = fetch_file(remote, root, session, check_picture)
        except Gone as error:
            gone.append(image_id)
            if len(gone) > MOST_GONE:
                raise FetchFailed(f"{len(gone)} pictures are not to be had; the last: {error}") from None
            continue
        size += path.stat().st_size
        kept.append(image_id)
    lacking = [i for i in gone if i in set(needed)]
    record = {
        "what": "CIRCO val with a sample of COCO's unlabeled images",
        "seed": seed,
        "distractors": len(kept) - (len(needed) - len(lacking)),
        "distractors_asked_for": distractors,
        "bytes": size,
        "not_to_be_had": gone,
        "image_ids": sorted([*kept, *lacking]),  # a needed picture that is gone is missing, not left out
    }
    write_json_atomic(root / LAPTOP_LIST, record)
    write_manifest(root, [str(IMAGES / file_name(i)) for i in sorted(kept)])
    print(
        f"{len(kept):,} pictures, {size / 1e6:,.0f} MB: {len(needed):,} that the queries need, "
        f"{record['distractors']:,} distractors (seed {seed})"
    )
    others = {p.name for p in (root / IMAGES).glob("*.jpg")} - set(map(file_name, kept))
    if others:
        print(f"note: {len(others):,} other pictures lie in {root / IMAGES}; they are not of this set")


def choose_distractors(ids: Sequence[int], needed: Sequence[int], number: int, seed: int) -> list[int]:
    """``number`` ids of the sorted ``ids`` that no query needs, in an order that the seed fixes: of two
    numbers, the smaller choice is the beginning of the larger one.
    """
    rest = sorted(set(ids) - set(needed))
    order = np.random.default_rng(seed).permutation(len(rest))
    return [rest[i] for i in order[:number]]


def describe(source: Source) -> str:
    """A set for a person: where from, which licence, what is known about its files."""
    lines = [f"{source.name}", f"  source:  {source.source}", f"  licence: {source.licence}"]
    if source.ask:
        return "\n".join([*lines, "  not fetched: the script says what to get, from whom, and checks it"])
    unit, name = (1e9, "GB") if source.about > 1e9 else (1e6, "MB")
    lines.append(f"  size:    about {source.about / unit:.1f} {name}, {len(source.files)} entries")
    for file in source.files:
        if file.sha256 is None:
            lines.append(f"  no hash: {file.path}: {file.unknown}; checked: {file.verified}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch one set and check its folder; returns the exit code."""
    registry = load_registry()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", nargs="?", metavar="SET", help=", ".join(registry))
    parser.add_argument("--root", type=Path, help="the benchmark's folder (made where it is not there)")
    parser.add_argument("--distractors", type=int, default=DISTRACTORS, help="circo-laptop: how many")
    parser.add_argument("--seed", type=int, default=0, help="circo-laptop: which")
    given = parser.parse_args(arguments)
    logging.getLogger("pooch").setLevel(logging.WARNING)  # it would tell every file and its hash
    try:
        if given.set is None:
            print("\n".join(map(describe, registry.values())))
            return 0
        if given.set not in registry:
            raise InputError(f"unknown set {given.set!r}: choose {', '.join(registry)}")
        if given.root is None:
            raise InputError(f"set {given.set} needs a folder: give --root")
        if given.distractors < 0:
            raise InputError("--distractors must be 0 or more")
        return fetch(registry, given.set, given.root, given.distractors, given.seed)
    except InputError as error:
        print(f"fetch_data: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except (FetchFailed, OSError) as error:
        print(f"fetch_data: {_one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fetch_data: interrupted; run the same command again, it goes on", file=sys.stderr)
        return 1


def fetch(registry: dict[str, Source], name: str, root: Path, distractors: int, seed: int) -> int:
    """Fetch (or ask for) a set into ``root``, then look through it: the exit code of `check_data`, or 0 for
    annotations alone. Both splits of CIRCO have one gallery, which is looked through once.
    """
    source = registry[name]
    print(describe(source), f"  credit:  {source.credit}", "", sep="\n")
    splits = ["val"] if source.benchmark == "circo" else list(PUBLISHED[source.benchmark])
    with requests.Session() as session:
        if source.ask:
            print(source.ask.replace("ROOT", str(root)), "", sep="\n")
        elif name == "coco-unlabeled":
            fetch_coco(registry, root, session)
        elif name == "circo-laptop":
            fetch_laptop(registry, root, session, distractors, seed)
        else:
            fetch_files(source, root, session)
            return 0
    reports = [check(source.benchmark, split, root) for split in splits]
    print("\n\n".join(report.text() for report in reports))
    return max((report.code for report in reports), key=(0, 3, 2).index)


if __name__ == "__main__":
    sys.exit(exit_code(main))
