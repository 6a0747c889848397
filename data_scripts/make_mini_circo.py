"""Make `mini-circo`: pictures, annotations and checksums in CIRCO's on-disk layout.

    python -m data_scripts.make_mini_circo --out cir_utils/mini/circo

Deterministic. The gallery is built of families. A family has one set of unspoken traits and a small lattice
of spoken content: two kept fields with two values each, two backgrounds, two props. Its pictures are the
lattice points with free content drawn anew (so every query has look-alikes of the reference and near-targets
with one wrong attribute), the same points in other styles, shades, variants or viewpoints, and points just
off the lattice. Queries ask for a step on the lattice; their ground truths are then all pictures of the whole
gallery that satisfy `world.answers`.

`val` families and wordings are like the training ones. Half of the `test` families hold a combination that no
training picture shows, and a third of the `test` queries use a wording that no training text uses. Unlike the
real test split, the mini test split carries its answers.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from cir_utils.files import write_atomic, write_manifest
from data_scripts import texts
from data_scripts.draw import draw_scene
from data_scripts.pool import JPEG
from data_scripts.world import (
    BACKGROUNDS,
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

SEED = 2026
FAMILIES = {"val": 34, "test": 70}
QUERIES_A_FAMILY = 5
PICTURES = "COCO2017_unlabeled/unlabeled2017"
IMAGE_INFO = "COCO2017_unlabeled/annotations/image_info_unlabeled2017.json"


@dataclass(frozen=True)
class Lattice:
    """A family: base scene, two varied kept fields with two values each, two backgrounds, two props."""

    base: Scene
    varied: tuple[tuple[str, tuple], tuple[str, tuple]]
    backgrounds: tuple[str, str]
    props: tuple[str, str]

    def points(self) -> Iterator[Scene]:
        (first, first_values), (second, second_values) = self.varied
        for a in first_values:
            for b in second_values:
                yield replace(self.base, **{first: a, second: b})

    def free(self, rng: np.random.Generator, scene: Scene) -> Scene:
        """The scene with its free content drawn anew from the family's."""
        return replace(
            scene,
            background=texts.pick(rng, self.backgrounds),
            prop=texts.pick(rng, self.props),
            side=texts.pick(rng, CHOICES["side"]),
        )


def make_lattice(rng: np.random.Generator, *, unseen: bool) -> Lattice:
    """A family whose points are all seen in training (`unseen=False`), or some of whose points never are."""
    while True:
        base = random_scene(rng)
        names = rng.choice(len(KEPT), size=2, replace=False, p=[0.2, 0.35, 0.25, 0.2])
        varied = []
        for name in (KEPT[i] for i in sorted(names)):
            old = getattr(base, name)
            varied.append((name, (old, texts.pick(rng, [v for v in CHOICES[name] if v != old]))))
        backgrounds = tuple(BACKGROUNDS[i] for i in rng.choice(len(BACKGROUNDS), 2, replace=False))
        props = (
            ("none", texts.pick(rng, PROPS[1:]))
            if rng.random() < 0.5
            else tuple(PROPS[i + 1] for i in rng.choice(8, 2, replace=False))
        )
        lattice = Lattice(base, tuple(varied), backgrounds, props)
        shares = [held_out(replace(p, background=b)) for p in lattice.points() for b in backgrounds]
        if any(shares) == unseen:
            return lattice


def family_pictures(rng: np.random.Generator, lattice: Lattice) -> list[Scene]:
    """About two dozen different scenes; the first 16 carry the family's unspoken traits and its lattice
    points.
    """
    scenes: dict[Scene, None] = {}

    def add(make, number: int) -> None:
        wanted = len(scenes) + number
        for _ in range(200):
            if len(scenes) >= wanted:
                return
            scenes.setdefault(make(), None)

    points = list(lattice.points())
    for point in points:
        add(lambda point=point: lattice.free(rng, point), 4)
    for point in points:  # the same content with one unspoken trait changed

        def other_trait(point: Scene = point) -> Scene:
            trait = UNSPOKEN[rng.choice(4, p=[0.55, 0.15, 0.15, 0.15])]
            value = texts.pick(rng, [v for v in CHOICES[trait] if v != getattr(point, trait)])
            return lattice.free(rng, replace(point, **{trait: value}))

        add(other_trait, 1)
    for _ in range(3):  # just off the lattice: one kept field has a third value

        def off() -> Scene:
            point, name = texts.pick(rng, points), KEPT[rng.integers(len(KEPT))]
            return lattice.free(rng, replace(point, **{name: texts.pick(rng, CHOICES[name])}))

        add(off, 1)
    return list(scenes)


def make_queries(rng: np.random.Generator, lattice: Lattice, scenes: list[Scene]) -> list[tuple[Scene, Edit]]:
    """Steps on the lattice: one or both varied fields, the background, the prop, or some of them together."""
    own = [s for s in scenes if all(getattr(s, n) == getattr(lattice.base, n) for n in UNSPOKEN)][:16]
    found: list[tuple[Scene, Edit]] = []
    for _ in range(500):
        if len(found) == QUERIES_A_FAMILY:
            break
        reference, target = (own[i] for i in rng.choice(len(own), 2, replace=False))
        differing = [n for n in texts.EDITABLE if getattr(reference, n) != getattr(target, n)]
        kept = [n for n in differing if n in KEPT]
        spoken = kept + [n for n in differing if n in FREE and rng.random() < (0.35 if kept else 0.8)]
        if not 1 <= len(spoken) <= 3:
            continue
        edit = Edit(tuple((n, getattr(target, n)) for n in texts.EDITABLE if n in spoken))
        if any(r == reference or (e == edit and r == reference) for r, e in found):
            continue
        found.append((reference, edit))
    return found


def aspects(edit: Edit, reference: Scene, text: str) -> list[str]:
    """CIRCO's semantic aspects, from the edit and its wording."""
    words, changed = set(text.replace(",", " ").split()), edit.as_dict()
    rules = {
        "cardinality": "count" in changed,
        "addition": bool({"add", "put", "another", "more"} & words)
        or (reference.prop == "none" and "prop" in changed),
        "negation": bool({"no", "not", "without", "remove", "rid", "gone"} & words),
        "direct_addressing": bool(
            {"make", "change", "add", "remove", "move", "replace", "swap", "turn", "show"} & words
        ),
        "compare_change": bool({"instead", "replace", "swap", "change"} & words),
        "comparative_statement": bool({"more", "fewer", "another", "twice"} & words),
        "statement_with_conjunction": len(changed) > 1,
        "spatial_relations_background": "background" in changed,
    }
    return [name for name, holds in rules.items() if holds] or ["direct_addressing"]


def strict(scene: Scene) -> tuple:
    return tuple(getattr(scene, name) for name in (*KEPT, *UNSPOKEN))


def build(
    seed: int = SEED, families: Mapping[str, int] = FAMILIES
) -> tuple[dict[int, tuple[Scene, int]], dict[str, list[dict]]]:
    """(image id -> (scene, drawing seed), split -> annotations). No drawing yet."""
    rng = np.random.default_rng(seed)
    gallery: dict[Scene, None] = {}
    asked: dict[str, list[tuple[Scene, Edit, str]]] = {"val": [], "test": []}
    for split, number in families.items():
        for family in range(number):
            lattice = make_lattice(rng, unseen=split == "test" and family % 2 == 0)
            scenes = family_pictures(rng, lattice)
            gallery.update(dict.fromkeys(scenes))
            for reference, edit in make_queries(rng, lattice, scenes):
                unusual = split == "test" and rng.random() < 1 / 3
                asked[split].append(
                    (reference, edit, texts.modification_text(rng, reference, edit, held_out=unusual))
                )
    gallery.update(dict.fromkeys(train_scene(rng) for _ in range(60)))  # unrelated pictures
    scenes = list(gallery)
    ids = np.sort(rng.choice(np.arange(1000, 580_000), size=len(scenes), replace=False))
    rng.shuffle(scenes)
    id_of = {scene: int(i) for scene, i in zip(scenes, ids, strict=True)}
    drawn = {int(i): (scene, int(rng.integers(2**31))) for scene, i in zip(scenes, ids, strict=True)}
    alike: dict[tuple, list[Scene]] = {}  # scenes that agree in everything that no query leaves free
    for scene in scenes:
        alike.setdefault(strict(scene), []).append(scene)
    annotations: dict[str, list[dict]] = {}
    for split, queries in asked.items():
        order = rng.permutation(len(queries))
        annotations[split] = []
        for number, index in enumerate(order):
            reference, edit, text = queries[index]
            truths = [
                id_of[s] for s in alike.get(strict(edit.apply(reference)), []) if answers(reference, edit, s)
            ]
            assert truths, (reference, edit)
            kind = texts.noun(reference.kind, reference.count)
            concept = (
                "a drawing"
                if "kind" in edit.as_dict()
                else f"{texts.article(kind)} {kind}"
                if reference.count == 1
                else kind
            )
            rng.shuffle(truths)
            annotations[split].append(
                {
                    "reference_img_id": id_of[reference],
                    "target_img_id": truths[0],
                    "relative_caption": text,
                    "shared_concept": concept,
                    "gt_img_ids": truths,
                    "id": number,
                    "semantic_aspects": aspects(edit, reference, text),
                }
            )
    return drawn, annotations


def picture_path(root: Path, image_id: int) -> Path:
    return root / PICTURES / f"{image_id:012d}.jpg"


def write(out: Path, seed: int = SEED, families: Mapping[str, int] = FAMILIES) -> None:
    drawn, annotations = build(seed, families)
    if out.exists():
        shutil.rmtree(out)
    (out / PICTURES).mkdir(parents=True)
    images = []
    for image_id, (scene, drawing_seed) in tqdm(drawn.items(), unit="picture"):
        path = picture_path(out, image_id)
        picture = draw_scene(scene, seed=drawing_seed)
        picture.save(path, **JPEG)
        images.append(
            {"id": image_id, "file_name": path.name, "width": picture.width, "height": picture.height}
        )
    # as bytes: the same line ends on every system
    write_atomic(out / IMAGE_INFO, json.dumps({"images": images}) + "\n")
    for split, rows in annotations.items():
        write_atomic(out / "annotations" / f"{split}.json", json.dumps(rows, indent=1) + "\n")
    write_manifest(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("cir_utils/mini/circo"))
    arguments = parser.parse_args()
    write(arguments.out)
