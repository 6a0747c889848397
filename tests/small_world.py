"""Small benchmarks in the layouts of CIRCO, CIRR and FashionIQ, and an MLLM that knows their pictures: for
tests of methods and commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from scripted import ScriptedMLLM

from cir_utils.agents import Agents
from cir_utils.benchmarks import load_benchmark
from cir_utils.mllm import Request
from cir_utils.mllm_server import picture_url
from cir_utils.prompts import SLOTS, load_prompt
from cir_utils.response_cache import ResponseCache
from cir_utils.workbench import Workbench

COLOURS = ("red", "blue", "green")
THINGS = ("cat", "dog", "boat", "car")
PLACES = ("beach", "city")
#: Every combination is one picture; ids are spaced, so that ids and positions differ.
SCENES = [(colour, thing, place) for colour in COLOURS for thing in THINGS for place in PLACES]
IDS = [100 + 7 * number for number in range(len(SCENES))]
SCENE_OF = dict(zip(IDS, SCENES, strict=True))
ID_OF = dict(zip(SCENES, IDS, strict=True))
SETTINGS = {"alpha": 0.15, "beta": 0.35, "lambda": 0.15, "k_prime": 6, "kappa": 60}
VAGUE = "make it better"
#: FashionIQ's categories here: two things each, one of them shared with the next.
WORN = {"dress": ("cat", "dog"), "shirt": ("dog", "boat"), "toptee": ("boat", "car")}


def caption_of(scene: tuple[str, str, str]) -> str:
    return f"a {scene[0]} {scene[1]} on the {scene[2]}"


def write_world(root: Path, splits: tuple[str, ...] = ("val", "test"), hidden: tuple[str, ...] = ()) -> Path:
    """Pictures, image list and annotations below ``root``: eight queries a split, "make it COLOUR", the place
    free.

    The splits in ``hidden`` come without answers. The last query's text is vague.
    """
    draw_pictures(root / "COCO2017_unlabeled" / "unlabeled2017", {i: f"{i:012d}.jpg" for i in IDS})
    listing = root / "COCO2017_unlabeled" / "annotations" / "image_info_unlabeled2017.json"
    listing.parent.mkdir(parents=True)
    listing.write_text(json.dumps({"images": [{"id": image} for image in IDS]}))
    (root / "annotations").mkdir()
    for split in splits:
        rows = []
        for number in range(8):
            colour = COLOURS[number % 2 + (split == "test")]
            old = COLOURS[(COLOURS.index(colour) + 1) % 3]
            thing, place = THINGS[number % 4], PLACES[number // 4]
            targets = [ID_OF[colour, thing, other] for other in PLACES]
            row = {
                "id": number,
                "reference_img_id": ID_OF[old, thing, place],
                "relative_caption": VAGUE if number == 7 else f"make it {colour}",
                "shared_concept": f"a {thing}",
            }
            if split not in hidden:
                row |= {
                    "gt_img_ids": targets,
                    "target_img_id": targets[0],
                    "semantic_aspects": ["compare_change"],
                }
            rows.append(row)
        (root / "annotations" / f"{split}.json").write_text(json.dumps(rows))
    return root


def draw_pictures(folder: Path, names: dict[int, str]) -> None:
    """The pictures with these ids under these file names."""
    folder.mkdir(parents=True)
    for image, name in names.items():
        scene = SCENE_OF[image]
        picture = Image.new("RGB", (112, 112), {"beach": "khaki", "city": "grey"}[scene[2]])
        draw = ImageDraw.Draw(picture)
        inset = 20 + 6 * THINGS.index(scene[1])
        draw.ellipse((inset, 30, 112 - inset, 100), fill=scene[0])
        draw.point((IDS.index(image), 0), "black")
        picture.save(folder / name, quality=95)


def cirr_name(image: int) -> str:
    return f"dev-{image}-0-img0"


def write_cirr_world(
    root: Path,
    splits: tuple[str, ...] = ("val", "test"),
    hidden: tuple[str, ...] = (),
    level: str = "",
    pictures: str = "dev",
) -> Path:
    """The same pictures in CIRR's layout: eight queries a split, "make it COLOUR", the place kept; a subset
    is all pictures of one thing. ``level`` puts the annotations into a folder below the root, ``pictures`` is
    where the pictures lie."""
    draw_pictures(root / pictures, {image: f"{cirr_name(image)}.png" for image in IDS})
    inner = root / level
    (inner / "captions").mkdir(parents=True)
    (inner / "image_splits").mkdir()
    for split in splits:
        places = {cirr_name(image): f"./dev/{cirr_name(image)}.png" for image in reversed(IDS)}
        (inner / "image_splits" / f"split.rc2.{split}.json").write_text(json.dumps(places))
        rows = []
        for number in range(8):
            colour = COLOURS[number % 2 + (split != "val")]
            old = COLOURS[(COLOURS.index(colour) + 1) % 3]
            thing, place = THINGS[number % 4], PLACES[number // 4]
            members = [cirr_name(image) for image, scene in SCENE_OF.items() if scene[1] == thing]
            row = {
                "pairid": 11 * number + 5,
                "reference": cirr_name(ID_OF[old, thing, place]),
                "caption": VAGUE if number == 7 else f"make it {colour}",
                "img_set": {"id": number % 4, "members": members},
            }
            if split not in hidden:
                row["target_hard"] = cirr_name(ID_OF[colour, thing, place])
                row["target_soft"] = {row["target_hard"]: 1.0}
            rows.append(row)
        (inner / "captions" / f"cap.rc2.{split}.json").write_text(json.dumps(rows))
    return root


def fashion_name(image: int) -> str:
    return f"B{image:09d}"


def write_fashion_world(
    root: Path, splits: tuple[str, ...] = ("val", "test"), extension: str = "jpg"
) -> Path:
    """The same pictures in FashionIQ's layout: three categories of twelve pictures, the middle one sharing
    six with each of the others, and four queries each."""
    draw_pictures(root / "images", {image: f"{fashion_name(image)}.{extension}" for image in IDS})
    (root / "captions").mkdir()
    (root / "image_splits").mkdir()
    for split in splits:
        for category, things in WORN.items():
            names = [fashion_name(image) for image, scene in SCENE_OF.items() if scene[1] in things]
            listing = root / "image_splits" / f"split.{category}.{split}.json"
            listing.write_text(json.dumps(names[::-1]))
            rows = []
            for number in range(4):
                colour = COLOURS[number % 2 + (split != "val")]
                old = COLOURS[(COLOURS.index(colour) + 1) % 3]
                thing, place = things[number % 2], PLACES[number // 2]
                rows.append(
                    {
                        "candidate": fashion_name(ID_OF[old, thing, place]),
                        "target": fashion_name(ID_OF[colour, thing, place]),
                        "captions": [f" make it {colour}.", f"{colour} on the {place}"],
                    }
                )
            (root / "captions" / f"cap.{category}.{split}.json").write_text(json.dumps(rows))
    return root


def scene_at(path: Path) -> tuple[str, str, str]:
    """The scene of a picture of any of the worlds."""
    found = re.search("[0-9]+", path.stem)
    assert found is not None
    return SCENE_OF[int(found[0])]


@dataclass
class Oracle:
    """The script: right answers about the small world, and a list of the agents that were asked."""

    prompts: str = "mini"
    asked: list[str] = field(default_factory=list)
    long_descriptions: bool = False

    def mllm(self) -> ScriptedMLLM:
        return ScriptedMLLM(self.answer, self.truth)

    def answer(self, request: Request) -> str:
        agent, slots = self.read(request.prompt)
        self.asked.append(agent)
        scene = scene_at(request.images[0]) if request.images else None
        if agent in ("caption", "caption_dense"):
            assert scene is not None
            return caption_of(scene)
        change = slots["modification"]
        colour = change.removeprefix("make it ").split()[0]
        vague = change == VAGUE
        if scene is None and "caption" in slots:
            words = slots["caption"].split()
            scene = (words[1], words[2], words[-1])
        target = (
            caption_of((colour, *scene[1:])) if scene and not vague else caption_of(scene) if scene else ""
        )
        if agent == "describe_target":
            return target
        if agent == "selective_cot":
            assert scene is not None
            description = f"{colour} {scene[1]}"
            if self.long_descriptions:
                description = scene[1] + " on the beach" * 40 + f", {colour}"
            return json.dumps(
                {
                    "understanding": caption_of(scene),
                    "explicit_targets": [] if vague else [f"colour: {colour}"],
                    "implicit_targets": [],
                    "preserved": [f"thing: {scene[1]}"],
                    "selected": [scene[1]],
                    "discarded": [scene[0]],
                    "description": description,
                }
            )
        if agent == "imagine_text":
            return json.dumps(
                {"target_caption": target, "modifications": [] if vague else [f"colour {colour}"]}
            )
        if agent == "imagine_vision":
            assert scene is not None
            return json.dumps(
                {"target_caption": f"{colour} {scene[1]}", "present": [colour], "absent": [scene[0]]}
            )
        if agent == "edit_caption":
            return target
        assert agent == "questions", agent
        statements = [{"statement": f"it is {colour}", "answer": True}]
        if slots["absent"] != "none":
            statements.append({"statement": f"it is {slots['absent']}", "answer": False})
        return json.dumps({"statements": statements})

    def truth(self, images: tuple[Path, ...], prefix: str, statement: str) -> float:
        if len(images) == 2:
            self.asked.append("compare_pictures")
            slots = self.read(prefix)[1]
            old, new = (scene_at(image) for image in images)
            return 0.9 if new[:2] == (slots["modification"].split()[-1], old[1]) else 0.2
        self.asked.append("verify_picture" if images else "verify_caption")
        text = caption_of(scene_at(images[0])) if images else prefix
        return 0.9 if statement.split()[-1] in text.split() else 0.2

    def read(self, prompt: str) -> tuple[str, dict[str, str]]:
        """Which agent's prompt this is, and what its slots were filled with."""
        best: tuple[str, dict[str, str]] | None = None
        for agent, slots in SLOTS.items():
            pattern = re.escape(load_prompt(self.prompts, agent).text)
            for slot in slots:
                pattern = pattern.replace(re.escape("{" + slot + "}"), f"(?P<{slot}>.*)")
            found = re.fullmatch(pattern, prompt)
            if found and agent not in ("verify_caption", "verify_picture"):
                best = (agent, found.groupdict())
        assert best is not None, prompt
        return best


def looker(world: Path, oracle: Oracle) -> Callable[[dict[str, Any]], str]:
    """What a chat server must know to answer for ``oracle`` about the pictures of a world: the text for the
    body of a request. Verifications are answered by "True" and "False"."""
    pictures = {picture_url(path): path for path in world.rglob("*.jpg")}

    def look(body: dict[str, Any]) -> str:
        content = body["messages"][0]["content"]
        parts = content if isinstance(content, list) else [{"text": content}]
        images = tuple(pictures[part["image_url"]["url"]] for part in parts[:-1])
        before, verified, statement = parts[-1]["text"].rpartition("true or false: ")
        if verified:
            return str(oracle.truth(images, before, statement) > 0.5)
        return oracle.answer(Request(parts[-1]["text"], images))

    return look


def open_bench(
    root: Path,
    clip: Path,
    cache: Path,
    split: str = "val",
    oracle: Oracle | None = None,
    benchmark: str = "mini-circo",
    options: dict[str, object] | None = None,
    **more: object,
) -> Workbench:
    """A workbench on a small world with the tiny CLIP and the scripted MLLM."""
    oracle = oracle or Oracle()
    bench = Workbench(
        load_benchmark(benchmark, split, root, **(options or {})),
        profile="mini",
        encoder=f"local-dir:{clip}",
        mllm="scripted",
        prompts="mini",
        settings=dict(SETTINGS),
        settings_source="the test",
        device=torch.device("cpu"),
        cache_dir=cache,
        **more,  # type: ignore[arg-type]
    )
    bench.agents = Agents(oracle.mllm(), ResponseCache(), "mini")
    return bench
