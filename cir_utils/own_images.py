"""A folder of one's own pictures as a gallery, and queries made on the spot.

Such a folder has no annotations: the gallery is what lies in it, by name, and nobody knows the answers. It
follows CIRCO's protocol (one gallery, the reference stays in the ranking), so that a person who marks right
answers can measure with mAP.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cir_utils.benchmarks import BENCHMARKS, EMPTY_TEXT, OWN, Benchmark, ImageId, Protocol, Query
from cir_utils.errors import InputError
from cir_utils.files import is_writable
from cir_utils.layouts.common import EXTENSIONS
from cir_utils.profiles import PACKAGE, choose, load_profile
from cir_utils.workbench import Workbench, check_used, workbench_of


def open_folder(
    folder: Path | str,
    profile: str = "mini",
    *,
    limit: int | None = None,
    device: str = "auto",
    cache_dir: Path | str | None = None,
    **choices: Any,
) -> Workbench:
    """The workbench of a folder of pictures under ``profile``, as yet without queries (:func:`with_queries`).

    ``folder`` and ``limit`` are those of :func:`folder_benchmark`, ``choices`` those of
    :func:`cir_utils.profiles.choose` (``encoder``, ``mllm``, ``prompts`` ...). Settings are the profile's for
    its benchmark of CIRCO's kind, the nearest thing to a folder of anything. Pictures are read when features
    are asked for. Raises :class:`InputError` as those two."""
    chosen = load_profile(profile)
    used = choose(chosen, **choices)
    near = next(spec for name, spec in chosen.benchmarks.items() if BENCHMARKS[name].family == "circo")
    where = check_used(chosen, used, device)
    return workbench_of(folder_benchmark(folder, limit), used, near, where, cache_dir)


def folder_benchmark(folder: Path | str, limit: int | None = None) -> Benchmark:
    """The pictures in ``folder`` and its sub-folders as a gallery without queries.

    ``folder`` is looked for as given, then below the package (``mini/cirr/dev`` ships). A picture's id is its
    path below the folder, with ``/`` and the extension; the gallery is in order of id. ``limit`` keeps that
    many pictures, at even distances. Hidden files and folders are passed over, other files that are no
    pictures left out with a note. Raises :class:`InputError` for a folder that does not exist or holds no
    picture, and for a limit under 1."""
    root = find_folder(folder)
    if limit is not None and limit < 1:
        raise InputError(f"limit {limit} is not valid: give a number of pictures, 1 or more")
    found, others, linked, odd = [], Counter[str](), 0, 0

    def unreadable(error: OSError) -> None:
        raise InputError(f"folder {error.filename} cannot be read ({error.strerror}); check its permissions")

    for place, folders, names in os.walk(root, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        linked += sum(os.path.islink(os.path.join(place, name)) for name in folders)
        for name in names:
            ending = Path(name).suffix.lower()
            if name.startswith("."):
                continue
            if not is_writable(os.path.join(place, name)):
                odd += 1
            elif ending in EXTENSIONS:
                found.append((Path(place) / name).relative_to(root).as_posix())
            else:
                others[ending or "no extension"] += 1
    if not found:
        raise InputError(
            f"folder {root} holds no pictures ({', '.join(EXTENSIONS)}); name another folder, or convert them"
        )
    gallery = sorted(found)
    if limit is not None and limit < len(gallery):
        gallery = [gallery[number * len(gallery) // limit] for number in range(limit)]
    notes = []
    if others:
        told = ", ".join(f"{count} {ending}" for ending, count in sorted(others.items()))
        notes.append(f"files that are no pictures of a known kind are left out: {told}")
    if linked:
        notes.append(f"links to folders are not followed: {linked}")
    if odd:
        notes.append(f"files whose names are not UTF-8 are left out: {odd}")
    if len(gallery) < len(found):
        notes.append(f"{len(gallery):,} of the folder's {len(found):,} pictures are used, at even distances")
    return Benchmark(
        name=OWN,
        split=root.name,
        queries=(),
        gallery=tuple(gallery),
        root=root,
        protocol=Protocol(
            benchmark=OWN,
            split=root.name,
            gallery="pictures of the folder",
            gallery_size=len(gallery),
            reference="kept",
            caption_rule="as typed",
            shared_concept=False,
            queries=0,
        ),
        notes=tuple(notes),
        folders=(root,),
    )


def find_folder(folder: Path | str) -> Path:
    """``folder`` as given (``~`` is the home folder), or below the package; :class:`InputError` for one that
    is neither."""
    given = Path(folder).expanduser()
    for place in (given, PACKAGE / given):
        if place.is_dir():
            return place
    raise InputError(f"folder {folder} does not exist; name a folder of pictures")


def with_queries(
    bench: Workbench,
    asked: Sequence[tuple[ImageId | Path, str]],
    targets: Sequence[Sequence[ImageId]] = (),
) -> Workbench:
    """``bench`` with queries: pairs of a reference and a modification text. Models and features are shared,
    so asking again costs the new texts alone.

    A reference is the id of a gallery picture, or the ``Path`` of any picture elsewhere. ``targets`` are the
    right answers that somebody marked, one list of gallery ids a query; with an empty one anywhere, runs have
    rankings but no metrics. Query ids are the numbers "0", "1" ... Raises :class:`InputError` for no query, a
    reference or target that is not there, and ``ValueError`` for another number of target lists."""
    known = set(bench.benchmark.gallery)
    marks = targets or [()] * len(asked)
    if not asked:
        raise InputError("no queries: give pairs of a reference picture and a modification text")
    queries, found, empty = [], {}, 0
    for number, ((reference, text), right) in enumerate(zip(asked, marks, strict=True)):
        if isinstance(reference, Path):
            if not reference.is_file():
                raise InputError(f"query {number}: the reference {reference} does not exist; check the path")
            # By name alone, so that no path of this machine gets into traces; the prefix is no gallery id.
            name: ImageId = f"elsewhere/{number}/{reference.name}"
            found[name] = reference
        elif reference in known:
            name = reference
        else:
            raise InputError(
                f"query {number}: the reference {reference!r} is not in the gallery; give the name of one of "
                "its pictures, or the Path of a picture elsewhere"
            )
        unknown = [image for image in right if image not in known]
        if unknown:
            raise InputError(f"query {number}: the target {unknown[0]!r} is not in the gallery; name another")
        said = " ".join(text.split())
        empty += not said
        target = right[0] if right else None
        queries.append(Query(str(number), name, said or EMPTY_TEXT, tuple(dict.fromkeys(right)), target))
    protocol = replace(bench.benchmark.protocol, queries=len(queries), empty_texts=empty)
    benchmark = replace(bench.benchmark, queries=tuple(queries), found=found, protocol=protocol)
    return bench.sharing(benchmark)
