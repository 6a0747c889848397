"""Make `mini-fashioniq`: pictures, captions, image splits and checksums in FashionIQ's on-disk layout.

    python -m data_scripts.make_mini_fashioniq --out cir_utils/mini/fashioniq

Deterministic. Each category's gallery is built of families. A family has one set of unspoken traits and a
lattice of spoken content: four kept fields with two values each, sixteen points. Four are *reference points*,
shown twice before different backgrounds (so every query has a look-alike of its reference). Four are *target
points*, shown once: the one picture of the whole gallery that satisfies `world_fashion.answers`. The other
eight complete the lattice: every target has neighbours with one wrong attribute. Each target has eleven
*twins*: words say the same of them, and their drawing style, shade, variant or viewpoint is another, so that
no description alone surely puts the target among the first ten.

`val` and `test` share their galleries (`split.*.val.json` and `split.*.test.json` list the same names), which
halves their size; their queries come from different families. `val` families and wordings are like the
training ones. Half of the `test` families hold a combination that no training picture shows, and a third of
the `test` queries use wordings that no training text uses. Unlike the real test split, the mini test split
carries its targets.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from tqdm import tqdm

from cir_utils.files import write_json_atomic, write_manifest
from data_scripts.draw_fashion import draw_garment
from data_scripts.pool import JPEG
from data_scripts.texts import pick
from data_scripts.texts_fashion import relative_captions
from data_scripts.world import UNSPOKEN, Edit
from data_scripts.world_fashion import (
    BACKGROUNDS,
    CATEGORIES,
    CHOICES_OF,
    KEPT,
    Garment,
    answers,
    held_out,
    random_garment,
    train_garment,
)

SEED = 2027
FAMILIES = {"val": 10, "test": 10}  # in each category
UNRELATED = 20
#: Fields that vary in a lattice; a pattern goes with its colour.
VARIED = ("colour", "marks", "sleeves", "neckline", "length", "fit", "detail")
Values = dict[str, str]


@dataclass(frozen=True)
class Family:
    """Pictures of the four reference points (two each, one after the other), of the four target points, and
    all that the family adds to the gallery.
    """

    references: tuple[Garment, ...]
    targets: tuple[Garment, ...]
    garments: tuple[Garment, ...]


def _axis(rng: np.random.Generator, base: Garment, name: str) -> tuple[Values, Values]:
    """The base's value and another one of a varied field, as changes.

    Raises:
        ValueError: the base has no other value of it.
    """
    if name != "marks":
        old = getattr(base, name)
        return {name: old}, {name: pick(rng, [v for v in CHOICES_OF[base.category][name] if v != old])}
    other = random_garment(rng, category=base.category, colour=base.colour)
    return tuple({"pattern": g.pattern, "colour2": g.colour2} for g in (base, other))  # type: ignore[return-value]


def _lattice(rng: np.random.Generator, base: Garment, names: tuple[str, ...]) -> list[Garment]:
    """The sixteen points; fewer when values coincide. Raises ValueError where a point cannot be."""
    axes = [_axis(rng, base, name) for name in names]
    points = []
    for values in product(*axes):
        changes: Values = {}
        for value in values:
            changes |= value
        points.append(replace(base, **changes))
    return list(dict.fromkeys(points))


def _changes(first: Garment, second: Garment) -> tuple[int, Edit]:
    """How many steps lead from one to the other, pattern and pattern's colour as one, and the edit."""
    changed = [n for n in KEPT if getattr(first, n) != getattr(second, n)]
    if second.pattern == "plain":
        changed = [n for n in changed if n != "colour2"]
    number = len({"pattern" if n == "colour2" else n for n in changed})
    return number, Edit(tuple((n, getattr(second, n)) for n in changed))


def make_family(
    rng: np.random.Generator, category: str, taken: set[tuple[str | int, ...]], *, unseen: bool
) -> Family:
    """A family whose points are all seen in training (`unseen=False`), or some of whose targets never are.
    None of its pictures agrees with one of `taken` in all that decides an answer; its own are added to it.
    """
    possible = [n for n in VARIED if n == "marks" or len(CHOICES_OF[category][n]) > 1]
    while True:
        base = random_garment(rng, category=category)
        names = tuple(rng.permutation(possible)[:4].tolist())
        try:
            points = _lattice(rng, base, names)
        except ValueError:  # two colours too close to each other
            continue
        points = [points[i] for i in rng.permutation(len(points))]
        if len(points) < 16 or any(strict(p) in taken for p in points):
            continue
        first, rest = points[:4], points[4:]
        near = [point for point in rest if all(_changes(r, point)[0] <= 3 for r in first)]
        targets = near[:4]
        shown = [replace(p, background=pick(rng, BACKGROUNDS)) for p in (*first, *targets)]
        others = [replace(p, background=pick(rng, BACKGROUNDS)) for p in rest if p not in targets]
        if len(targets) == 4 and any(map(held_out, shown[4:])) == unseen:
            if unseen or not any(map(held_out, (*shown, *others))):
                break
    references: list[Garment] = []
    for point in shown[:4]:
        elsewhere = [replace(point, background=b) for b in rng.permutation(BACKGROUNDS).tolist()]
        fitting = [o for o in elsewhere if o != point and (unseen or not held_out(o))]
        references += [point, fitting[0]]
    family = [*references, *shown[4:], *others]
    for target in shown[4:]:
        family += _twins(rng, target)
    taken.update(map(strict, family))
    return Family(tuple(references), tuple(shown[4:]), tuple(family))


def _twins(rng: np.random.Generator, target: Garment) -> list[Garment]:
    """The target with one other unspoken trait (eight), and three with two others, before any background."""
    changes: list[dict[str, str | int]] = [
        {trait: value}
        for trait in UNSPOKEN
        for value in CHOICES_OF[target.category][trait]
        if value != getattr(target, trait)
    ]
    pairs = [a | b for a in changes for b in changes if list(a) < list(b)]
    changes += [pairs[i] for i in rng.permutation(len(pairs))[:3]]
    return [replace(target, background=pick(rng, BACKGROUNDS), **change) for change in changes]


def strict(garment: Garment) -> tuple[str | int, ...]:
    """All that no query leaves free: a gallery holds one picture of each, but for reference points."""
    return tuple(getattr(garment, name) for name in (*KEPT, *UNSPOKEN))


def make_queries(rng: np.random.Generator, family: Family) -> list[tuple[Garment, Edit, Garment]]:
    """Every step, of one to three changes, from a reference to a target point: (reference, edit, target)."""
    queries = []
    for point in range(4):
        for target in family.targets:
            reference = family.references[2 * point + int(rng.integers(2))]
            queries.append((reference, _changes(reference, target)[1], target))
    return queries


@dataclass(frozen=True)
class Built:
    """Image name -> (garment, drawing seed); category -> image names of its gallery; (category, split) ->
    caption rows, and the edit behind each row.
    """

    pictures: dict[str, tuple[Garment, int]]
    galleries: dict[str, list[str]]
    captions: dict[tuple[str, str], list[dict]]
    edits: dict[tuple[str, str], list[Edit]]


def build(seed: int = SEED, families: Mapping[str, int] = FAMILIES) -> Built:
    """The whole benchmark, without drawing."""
    rng = np.random.default_rng(seed)
    galleries: dict[str, list[Garment]] = {}
    asked: dict[tuple[str, str], list[tuple[Garment, Edit, Garment, tuple[str, str]]]] = {}
    for category in CATEGORIES:
        taken: set[tuple[str | int, ...]] = set()
        gallery: list[Garment] = []
        for split, number in families.items():
            queries = asked.setdefault((category, split), [])
            for i in range(number):
                family = make_family(rng, category, taken, unseen=split == "test" and i % 2 == 0)
                gallery += family.garments
                for reference, edit, target in make_queries(rng, family):
                    unusual = split == "test" and rng.random() < 1 / 3
                    captions = relative_captions(rng, reference, edit, held_out=unusual)
                    queries.append((reference, edit, target, captions))
        wanted = len(gallery) + UNRELATED
        while len(gallery) < wanted:
            garment = train_garment(rng, category=category)
            if strict(garment) not in taken:
                taken.add(strict(garment))
                gallery.append(garment)
        galleries[category] = gallery
    names = _names(rng, sum(map(len, galleries.values())))
    drawn: dict[str, tuple[Garment, int]] = {}
    name_of: dict[Garment, str] = {}
    listed: dict[str, list[str]] = {}
    for category, gallery in galleries.items():
        order = [gallery[i] for i in rng.permutation(len(gallery))]
        listed[category] = [names.pop() for _ in order]
        for name, garment in zip(listed[category], order, strict=True):
            name_of[garment] = name
            drawn[name] = (garment, int(rng.integers(2**31)))
    captions_of: dict[tuple[str, str], list[dict]] = {}
    edits: dict[tuple[str, str], list[Edit]] = {}
    alike: dict[tuple[str | int, ...], list[Garment]] = {}
    for garment in name_of:
        alike.setdefault(strict(garment), []).append(garment)
    for (category, split), queries in asked.items():
        rows = [queries[i] for i in rng.permutation(len(queries))]
        for reference, edit, target, _ in rows:
            assert alike[strict(edit.apply(reference))] == [target] and answers(reference, edit, target)
        captions_of[category, split] = [
            {"target": name_of[t], "candidate": name_of[r], "captions": list(c)} for r, _, t, c in rows
        ]
        edits[category, split] = [edit for _, edit, _, _ in rows]
    return Built(drawn, listed, captions_of, edits)


def _names(rng: np.random.Generator, number: int) -> list[str]:
    """Different names like Amazon's product codes: B00 and seven digits or capitals."""
    letters = np.array(list("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    names: dict[str, None] = {}
    while len(names) < number:
        names["B00" + "".join(letters[rng.integers(len(letters), size=7)])] = None
    return list(names)


def write(out: Path, seed: int = SEED, families: Mapping[str, int] = FAMILIES) -> None:
    built = build(seed, families)
    if out.exists():
        shutil.rmtree(out)
    (out / "images").mkdir(parents=True)
    for name, (garment, drawing_seed) in tqdm(built.pictures.items(), unit="picture"):
        draw_garment(garment, seed=drawing_seed).save(out / "images" / f"{name}.jpg", **JPEG)
    for (category, split), rows in built.captions.items():
        write_json_atomic(out / "captions" / f"cap.{category}.{split}.json", rows)
        write_json_atomic(out / "image_splits" / f"split.{category}.{split}.json", built.galleries[category])
    write_manifest(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("cir_utils/mini/fashioniq"))
    arguments = parser.parse_args()
    write(arguments.out)
