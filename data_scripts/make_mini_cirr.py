"""Make `mini-cirr`: pictures, annotations and checksums in CIRR's on-disk layout (version rc2).

    python -m data_scripts.make_mini_cirr --out cir_utils/mini/cirr

Deterministic. A subset is six look-alikes: one set of unspoken traits, and spoken content in which any two of
them differ by one or two attributes (kind, colour, count, pattern, background, prop). There are three
forms: a *star* is one picture and five that each change one attribute of it, each another one; a *line* has
six values of the kind or the colour, while the background or the prop is drawn anew for every member; a
*grid* varies two attributes, three values by two. Around each subset lie its hard distractors:
look-alikes of a reference (its main objects before another background, with another prop), the spoken content
of a member in another style, shade, variant or viewpoint, and a picture that is one attribute off the subset.

A query asks for the step from one member to another. CIRR has one target a query, and so has this benchmark:
the target is the one picture of the whole gallery that satisfies `world.answers`. A step that a second
picture satisfies as well is not asked, so there are no false negatives by the written rule.

`val` subsets and wordings are like the training ones. Half of the `test` subsets hold a combination that no
training picture shows, and a third of the `test` queries use a wording that no training text uses. Pictures
of `val` lie in `dev/`, those of `test` in `test1/`, and each split's gallery is both, so that a small folder
gives a large gallery. Unlike the real test split, the mini test split carries its answers. CIRR's auxiliary
captions (`captions_ext`) have no twin here: no retrieval method reads them.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from cir_utils.files import write_atomic, write_manifest
from data_scripts import texts
from data_scripts.draw import draw_scene
from data_scripts.make_mini_circo import strict
from data_scripts.pool import JPEG
from data_scripts.world import (
    CHOICES,
    FREE,
    KEPT,
    PROPS,
    UNSPOKEN,
    Edit,
    Scene,
    answers,
    held_out,
    random_scene,
    train_scene,
)

SEED = 2027
SUBSETS = {"val": 79, "test": 83}
QUERIES_A_SUBSET = 4
MEMBERS = 6
FOLDERS = {"val": "dev", "test": "test1"}
#: How often a subset is a star, a line, a grid; and how often a grid varies each attribute of `SPOKEN`.
FORMS = (0.45, 0.25, 0.3)
GRID_FIELDS = (0.2, 0.1, 0.26, 0.24, 0.1, 0.1)
#: How often a text mentions free content that differs, where it need not.
ALL_MENTIONED = 0.35
#: The attributes that people and captions name.
SPOKEN = texts.EDITABLE


def differing(one: Scene, other: Scene) -> tuple[str, ...]:
    """The spoken attributes in which two pictures differ, in the order of `SPOKEN`."""
    return tuple(name for name in SPOKEN if getattr(one, name) != getattr(other, name))


def values(rng: np.random.Generator, name: str, first: Any, number: int) -> list:
    """`number` different values of a field, `first` among them and at the head."""
    others = [value for value in CHOICES[name] if value != first]
    return [first, *(others[i] for i in rng.choice(len(others), number - 1, replace=False))]


def make_subset(rng: np.random.Generator, *, unseen: bool) -> list[Scene]:
    """Six look-alikes, all of which training may show (`unseen=False`), or some of which it never does.

    The first is the one that the subset grew from; the rest follow by how much they differ from it.
    """
    while True:
        base = random_scene(rng)
        form = rng.choice(("star", "line", "grid"), p=FORMS)
        if form == "star":
            rays = rng.choice(len(SPOKEN), MEMBERS - 1, replace=False)
            members = [base] + [
                replace(base, **{name: values(rng, name, getattr(base, name), 2)[1]})
                for name in (SPOKEN[i] for i in rays)
            ]
        elif form == "line":
            line = texts.pick(rng, ("kind", "colour"))
            free = texts.pick(rng, ("background", "prop"))
            two = values(rng, free, getattr(base, free), 2)
            members = [base] + [
                replace(base, **{line: value, free: texts.pick(rng, two)})
                for value in values(rng, line, getattr(base, line), MEMBERS)[1:]
            ]
        else:
            names = [SPOKEN[i] for i in rng.choice(len(SPOKEN), 2, replace=False, p=GRID_FIELDS)]
            if not set(names) & set(KEPT):
                continue
            first, second = (
                values(rng, name, getattr(base, name), number)
                for name, number in zip(names, (3, 2), strict=True)
            )
            members = [replace(base, **{names[0]: a, names[1]: b}) for a in first for b in second]
        members = [replace(member, side=texts.pick(rng, CHOICES["side"])) for member in members]
        if any(held_out(member) for member in members) == unseen:
            return sorted(members, key=lambda member: len(differing(members[0], member)))


def hard_distractors(rng: np.random.Generator, members: list[Scene]) -> list[Scene]:
    """Two look-alikes of members, three members with another unspoken trait, one picture off the subset."""
    order = [members[i] for i in rng.permutation(MEMBERS)]
    found = []
    for member in order[:2]:
        place = values(rng, "background", member.background, 2)[1]
        prop = texts.pick(rng, [p for p in PROPS if p != member.prop])
        found.append(replace(member, background=place, prop=prop, side=texts.pick(rng, CHOICES["side"])))
    for member in order[2:5]:
        trait = UNSPOKEN[rng.choice(4, p=[0.55, 0.15, 0.15, 0.15])]
        found.append(replace(member, **{trait: values(rng, trait, getattr(member, trait), 2)[1]}))
    name = KEPT[rng.integers(len(KEPT))]
    found.append(replace(order[5], **{name: values(rng, name, getattr(order[5], name), 2)[1]}))
    return found


def make_queries(
    rng: np.random.Generator, members: list[Scene], alike: dict[tuple, list[Scene]]
) -> list[tuple[Scene, Edit, Scene]]:
    """Steps within a subset that one picture of the gallery satisfies: (reference, edit, target).

    No member is the target of two queries. Steps come first whose reference has look-alikes, so that its own
    likeness misleads, and steps to other main objects in other surroundings.
    """

    def interest(pair: tuple[Scene, Scene]) -> int:
        names = differing(*pair)
        return (len(alike[strict(pair[0])]) > 1) + (
            bool(set(names) & set(KEPT)) and bool(set(names) & set(FREE))
        )

    pairs = list(permutations(members, 2))
    pairs = sorted((pairs[i] for i in rng.permutation(len(pairs))), key=interest, reverse=True)
    found: list[tuple[Scene, Edit, Scene]] = []
    for reference, target in pairs:
        if len(found) == QUERIES_A_SUBSET:
            break
        edit = Edit(tuple((name, getattr(target, name)) for name in asked_fields(rng, reference, target)))
        once = all(target != t for _, _, t in found) and sum(reference == r for r, _, _ in found) < 2
        if once and right_answers(reference, edit, alike) == [target]:
            found.append((reference, edit, target))
    return found


def asked_fields(rng: np.random.Generator, reference: Scene, target: Scene) -> tuple[str, ...]:
    """The differences that the text mentions: all that are kept unless edited, and free content where nothing
    else differs, or else now and then (`ALL_MENTIONED`).
    """
    names = differing(reference, target)
    kept = tuple(name for name in names if name in KEPT)
    return kept if kept and rng.random() > ALL_MENTIONED else names


def right_answers(reference: Scene, edit: Edit, alike: dict[tuple, list[Scene]]) -> list[Scene]:
    """All pictures of the gallery that satisfy the written rule."""
    return [s for s in alike.get(strict(edit.apply(reference)), []) if answers(reference, edit, s)]


@dataclass(frozen=True)
class MiniCirr:
    """The whole benchmark before it is drawn.

    ``pictures``: name -> (scene, drawing seed). ``annotations``: split -> rows of the caption file.
    ``edits``: split -> what the text of each row asks for. ``image_splits``: split -> name -> path.
    """

    pictures: dict[str, tuple[Scene, int]]
    annotations: dict[str, list[dict]]
    edits: dict[str, list[Edit]]
    image_splits: dict[str, dict[str, str]]


def build(seed: int = SEED, subset_numbers: Mapping[str, int] = SUBSETS) -> MiniCirr:
    """Everything but the drawing."""
    rng = np.random.default_rng(seed)
    gallery: dict[Scene, str] = {}  # scene -> split whose folder holds it
    subsets: dict[str, list[list[Scene]]] = {split: [] for split in subset_numbers}
    for split, number in subset_numbers.items():
        while len(subsets[split]) < number:
            members = make_subset(rng, unseen=split == "test" and len(subsets[split]) % 2 == 0)
            if not gallery.keys() & set(members):
                gallery.update(dict.fromkeys(members, split))
                subsets[split].append(members)
    for split in SUBSETS:
        for members in subsets[split]:
            for scene in hard_distractors(rng, members):
                gallery.setdefault(scene, split)
        for _ in range(20):  # unrelated pictures
            gallery.setdefault(train_scene(rng), split)

    name_of = make_names(rng, gallery)
    scenes = sorted(gallery, key=lambda scene: name_order(name_of[scene]))
    pictures = {name_of[scene]: (scene, int(rng.integers(2**31))) for scene in scenes}
    alike: dict[tuple, list[Scene]] = {}  # scenes that agree in everything that no query leaves free
    for scene in scenes:
        alike.setdefault(strict(scene), []).append(scene)

    # texts have random numbers of their own: another wording moves no picture and no query
    words = np.random.default_rng([seed, 1])
    annotations: dict[str, list[dict]] = {}
    edits: dict[str, list[Edit]] = {}
    pair_ids = np.sort(rng.choice(np.arange(12_000, 40_000), size=2000, replace=False))
    subset_ids = iter(rng.permutation(len(subsets["val"]) + len(subsets["test"])).tolist())
    for split, split_subsets in subsets.items():
        rows, asked = [], []
        for members in split_subsets:
            subset_id, listed = next(subset_ids), [name_of[s] for s in members]
            rng.shuffle(listed)
            for reference, edit, target in make_queries(rng, members, alike):
                unusual = split == "test" and words.random() < 1 / 3
                asked.append(edit)
                rows.append(
                    {
                        "reference": name_of[reference],
                        "target_hard": name_of[target],
                        "target_soft": {name_of[target]: 1.0},
                        "caption": texts.modification_text(words, reference, edit, held_out=unusual),
                        "img_set": {
                            "id": subset_id,
                            "members": listed,
                            "reference_rank": members.index(reference),
                            "target_rank": members.index(target),
                        },
                    }
                )
        order = rng.permutation(len(rows)).tolist()
        ids, pair_ids = pair_ids[: len(rows)].tolist(), pair_ids[len(rows) :]
        annotations[split] = [{"pairid": pair} | rows[i] for pair, i in zip(ids, order, strict=True)]
        edits[split] = [asked[i] for i in order]
    paths = {name: f"./{name.split('-')[0]}/{name}.jpg" for name in pictures}
    # a split's own pictures first, as the order of the gallery breaks ties
    image_splits = {
        split: dict(sorted(paths.items(), key=lambda item: not item[0].startswith(FOLDERS[split])))
        for split in SUBSETS
    }
    return MiniCirr(pictures, annotations, edits, image_splits)


def make_names(rng: np.random.Generator, gallery: dict[Scene, str]) -> dict[Scene, str]:
    """Names as CIRR's, such as dev-12-0-img1; which numbers go to which picture tells nothing."""
    names: dict[Scene, str] = {}
    for split, folder in FOLDERS.items():
        scenes = [scene for scene, owner in gallery.items() if owner == split]
        for scene, number in zip(scenes, rng.permutation(len(scenes)).tolist(), strict=True):
            names[scene] = f"{folder}-{number // 8}-{number // 2 % 4}-img{number % 2}"
    return names


def name_order(name: str) -> tuple:
    """Sorts names by folder, then by their numbers."""
    folder, *numbers = name.replace("img", "").split("-")
    return folder, *map(int, numbers)


def write(out: Path, seed: int = SEED, subset_numbers: Mapping[str, int] = SUBSETS) -> None:
    made = build(seed, subset_numbers)
    if out.exists():
        shutil.rmtree(out)
    for folder in FOLDERS.values():
        (out / folder).mkdir(parents=True)
    paths = made.image_splits["val"]
    for name, (scene, drawing_seed) in tqdm(made.pictures.items(), unit="picture"):
        draw_scene(scene, seed=drawing_seed).save(out / paths[name], **JPEG)
    for split in SUBSETS:
        for file, content in (
            (f"captions/cap.rc2.{split}.json", made.annotations[split]),
            (f"image_splits/split.rc2.{split}.json", made.image_splits[split]),
        ):
            write_atomic(out / "cirr" / file, json.dumps(content) + "\n")
    write_manifest(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("cir_utils/mini/cirr"))
    arguments = parser.parse_args()
    write(arguments.out)
