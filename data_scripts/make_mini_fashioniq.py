"""Make `mini-fashioniq`: pictures, captions, image splits and checksums in FashionIQ's on-disk layout.

    python -m data_scripts.make_mini_fashioniq --out cir_utils/mini/fashioniq

Deterministic. Each category's gallery is built of families. A family has one set of unspoken traits and a
lattice of spoken content: four kept fields with two values each. Four of its sixteen points are *reference
points*, shown three times before different backgrounds (so every query has look-alikes of its reference); the
other twelve are *target points*, shown once: the one picture of the whole gallery that satisfies
`world_fashion.answers`. All neighbours on the lattice are near-targets with one wrong attribute. Further
pictures show target points with another style, shade, variant or viewpoint, and points just off the lattice.

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
QUERIES_A_FAMILY = 16
UNRELATED = 60
#: Fields that vary in a lattice; a pattern goes with its colour.
VARIED = ("colour", "marks", "sleeves", "neckline", "length", "fit", "detail")
Values = dict[str, str]


@dataclass(frozen=True)
class Family:
    """Pictures of the four reference points (three each, one after the other), of the twelve target points,
    and all that the family adds to the gallery.
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
        shown = [replace(p, background=pick(rng, BACKGROUNDS)) for p in points]
        if any(map(held_out, shown[4:])) == unseen and (unseen or not any(map(held_out, shown))):
            break
    references: list[Garment] = []
    for point in shown[:4]:
        others = [replace(point, background=b) for b in rng.permutation(BACKGROUNDS).tolist()]
        fitting = [o for o in others if o != point and (unseen or not held_out(o))]
        references += [point, *fitting[:2]]
    family = [*references, *shown[4:]]
    taken.update(map(strict, family))

    def add(make, number: int) -> None:
        wanted = len(family) + number
        while len(family) < wanted:
            garment = make()
            if garment is not None and strict(garment) not in taken:
                family.append(garment)
                taken.add(strict(garment))

    def other_trait() -> Garment:
        trait = UNSPOKEN[rng.choice(4, p=[0.55, 0.15, 0.15, 0.15])]
        point = pick(rng, shown[4:])
        value = pick(rng, [v for v in CHOICES_OF[category][trait] if v != getattr(point, trait)])
        return replace(point, **{trait: value, "background": pick(rng, BACKGROUNDS)})

    def off_lattice() -> Garment | None:
        name = pick(rng, [n for n in possible if n != "marks"])
        change = {name: pick(rng, CHOICES_OF[category][name]), "background": pick(rng, BACKGROUNDS)}
        try:
            return replace(pick(rng, shown), **change)
        except ValueError:
            return None

    add(other_trait, 8)
    add(off_lattice, 7)
    return Family(tuple(references), tuple(shown[4:]), tuple(family))


def strict(garment: Garment) -> tuple[str | int, ...]:
    """All that no query leaves free: a gallery holds one picture of each, but for reference points."""
    return tuple(getattr(garment, name) for name in (*KEPT, *UNSPOKEN))


def make_queries(rng: np.random.Generator, family: Family) -> list[tuple[Garment, Edit, Garment]]:
    """Steps from reference points to target points with one to three changes: (reference, edit, target)."""
    steps: list[list[tuple[Garment, Edit, Garment]]] = [[], [], []]
    for point in range(4):
        for target in family.targets:
            reference = family.references[3 * point + int(rng.integers(3))]
            changed = [n for n in KEPT if getattr(reference, n) != getattr(target, n)]
            if target.pattern == "plain":
                changed = [n for n in changed if n != "colour2"]
            number = len({"pattern" if n == "colour2" else n for n in changed})
            if number <= 3:
                edit = Edit(tuple((n, getattr(target, n)) for n in changed))
                steps[number - 1].append((reference, edit, target))
    chosen = []
    for step, number in zip(steps, (5, 7, 4), strict=True):
        chosen += [step[i] for i in rng.permutation(len(step))[:number]]
    return chosen[:QUERIES_A_FAMILY]


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
