"""Measure mini-CLIP and mini-VLM on new pictures of held-out attribute combinations.

    python -m data_scripts.evaluate_mini_models [--json] [--pictures 600] [--vlm FOLDER] [--clip FOLDER]

Pictures are drawn with seeds that no training pool uses. Everything goes through the product's own agents and
encoder; what is marked is what they return. `caption` and the tasks with pictures use held-out combinations
only; `wordings` says which modification texts were used.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from cir_utils.agents import Agents
from cir_utils.encoder import load_encoder
from cir_utils.mllm import LocalMLLM
from cir_utils.schemas import SelectiveCoT
from data_scripts import texts
from data_scripts.draw import draw_scene
from data_scripts.pool import JPEG
from data_scripts.vlm_examples import partner
from data_scripts.world import Edit, Scene, held_out_scene, random_scene

MODELS = Path(__file__).parent.parent / "cir_utils" / "mini" / "models"
SPOKEN = ("kind", "colour", "count", "pattern", "background", "prop", "side")
SEED = 777_000


def share(hits: Iterable[bool]) -> float:
    return float(np.mean([bool(hit) for hit in hits]))


def balanced(said: list[bool], truth: list[bool]) -> float:
    """Mean of the accuracies on true and on false statements."""
    said_, truth_ = np.array(said), np.array(truth)
    return float((said_[truth_].mean() + (~said_[~truth_]).mean()) / 2)


def save_pictures(folder: Path, scenes: list[Scene], seed: int) -> list[Path]:
    paths = []
    for i, scene in enumerate(scenes):
        paths.append(folder / f"{seed}_{i}.jpg")
        draw_scene(scene, seed=seed + i).save(paths[-1], **JPEG)
    return paths


def same_target(text: str, scene: Scene, edit: Edit, selective: bool) -> bool:
    """Whether a target text names the target's kind, colour, count and pattern, and the background and prop
    that it should.
    """
    wanted, mentioned, found = edit.apply(scene), edit.as_dict(), texts.read_caption(text)
    fields = ["kind", "colour", "count", "pattern"]
    fields += [f for f in ("background", "prop") if f in mentioned or not selective]
    return all(found[f] == getattr(wanted, f) for f in fields)


def evaluate_vlm(agents: Agents, folder: Path, pictures: int, unseen_wordings: bool) -> dict[str, float]:
    rng = np.random.default_rng(SEED + unseen_wordings)
    scenes = [held_out_scene(rng) for _ in range(pictures)]
    paths = save_pictures(folder, scenes, SEED)
    edits = [texts.random_edit(rng, scene) for scene in scenes]
    changes = [
        texts.modification_text(rng, s, e, held_out=unseen_wordings)
        for s, e in zip(scenes, edits, strict=True)
    ]
    result: dict[str, float] = {}
    pairs = list(zip(scenes, edits, strict=True))

    if not unseen_wordings:
        captions = [texts.read_caption(answer.text) for answer in agents.caption(paths)]
        for name in SPOKEN:
            result[f"caption/{name}"] = share(
                c[name] == getattr(s, name) for c, s in zip(captions, scenes, strict=True)
            )
        result["caption/all"] = share(
            all(c[n] == getattr(s, n) for n in SPOKEN) for c, s in zip(captions, scenes, strict=True)
        )
        facts = [[texts.random_statement(rng, scene) for _ in range(8)] for scene in scenes]
        flat = [
            (path, scene, fact) for path, scene, row in zip(paths, scenes, facts, strict=True) for fact in row
        ]
        truth = [fact.truth for _, _, fact in flat]
        seen = [p > 0.5 for p in agents.verify_pictures([(path, fact.text) for path, _, fact in flat])]
        read = [
            p > 0.5
            for p in agents.verify_captions([(texts.caption(scene), fact.text) for _, scene, fact in flat])
        ]
        result["verify_picture/balanced"], result["verify_caption/balanced"] = (
            balanced(seen, truth),
            balanced(read, truth),
        )
        for name in sorted({fact.field for _, _, fact in flat}):
            chosen = [i for i, (_, _, fact) in enumerate(flat) if fact.field == name]
            result[f"verify_picture/{name}"] = balanced([seen[i] for i in chosen], [truth[i] for i in chosen])
        described = agents.selective_cot(
            paths[:100], [texts.pick(rng, texts.VAGUE_HELD_OUT) for _ in paths[:100]]
        )
        result["selective_cot/vague seen"] = share(d.vague for d in described)
        others = [partner(rng, scene) for scene in scenes]
        other_paths = save_pictures(folder, others, SEED + 50_000)
        triples, right = [], []
        for scene, other, path, other_path in zip(scenes, others, paths, other_paths, strict=True):
            fields = [f for f in texts.EDITABLE if getattr(scene, f) != getattr(other, f)]
            edit = (
                Edit(tuple((f, getattr(other, f)) for f in fields))
                if rng.random() < 0.5
                else texts.random_edit(rng, scene)
            )
            wanted, mentioned = edit.apply(scene), edit.as_dict()
            compared = [
                "kind",
                "colour",
                "count",
                "pattern",
                *(f for f in ("background", "prop") if f in mentioned),
            ]
            triples.append((path, other_path, texts.modification_text(rng, scene, edit)))
            right.append(all(getattr(wanted, f) == getattr(other, f) for f in compared))
        result["compare_pictures/balanced"] = balanced(
            [p > 0.5 for p in agents.compare_pictures(triples)], right
        )

    described = agents.selective_cot(paths, changes)
    result["selective_cot/parsed"] = share(d.answer is not None and not d.retried for d in described)
    result["selective_cot/target right"] = share(
        same_target(d.description, s, e, True) for d, (s, e) in zip(described, pairs, strict=True)
    )
    result["selective_cot/explicit right"] = share(
        isinstance(d.answer, SelectiveCoT)
        and d.answer.explicit_targets == texts.selective_cot(s, e)["explicit_targets"]
        for d, (s, e) in zip(described, pairs, strict=True)
    )
    plain = agents.describe_target(paths, changes)
    result["describe_target/target right"] = share(
        same_target(d.text, s, e, False) for d, (s, e) in zip(plain, pairs, strict=True)
    )
    seen_target = agents.imagine_vision(paths, changes)
    result["imagine_vision/parsed"] = share(not i.fallback for i in seen_target)
    result["imagine_vision/target right"] = share(
        same_target(i.target_caption, s, e, True) for i, (s, e) in zip(seen_target, pairs, strict=True)
    )
    given = [texts.caption(scene) for scene in scenes]
    read_target = agents.imagine_text(given, changes)
    result["imagine_text/parsed"] = share(not i.fallback for i in read_target)
    result["imagine_text/target right"] = share(
        same_target(i.target_caption, s, e, False) for i, (s, e) in zip(read_target, pairs, strict=True)
    )
    edited = agents.edit_caption(given, changes)
    result["edit_caption/target right"] = share(
        same_target(t.text, s, e, False) for t, (s, e) in zip(edited, pairs, strict=True)
    )
    M_t = [texts.modifications(s, e) for s, e in pairs]
    M_v = [texts.vision_imagination(s, e) for s, e in pairs]
    asked = agents.questions(changes, M_t, [m["present"] for m in M_v], [m["absent"] for m in M_v])
    result["questions/parsed"] = share(not a.fallback for a in asked)
    result["questions/all right"] = share(
        {(q.statement, q.answer) for q in a.statements}
        == {(q["statement"], q["answer"]) for q in texts.questions(s, e)["statements"]}
        for a, (s, e) in zip(asked, pairs, strict=True)
    )
    return result


def evaluate_clip(encoder, folder: Path, pictures: int = 1000) -> dict[str, float]:
    """Text to picture among new pictures (a tenth of them held-out combinations), with texts of four
    kinds.
    """
    rng = np.random.default_rng(SEED + 9)
    scenes = [random_scene(rng) for _ in range(pictures)]
    images = encoder.encode_images(save_pictures(folder, scenes, SEED + 100_000))
    result = {}
    for name, write in {
        "caption": lambda s: texts.caption(s),
        "dense caption": lambda s: texts.dense_caption(rng, s),
    }.items():
        found = encoder.encode_texts([write(scene) for scene in scenes])
        scores = found.features @ images.T
        rank = (scores > scores.diagonal()[:, None]).sum(dim=1)
        result[f"{name} R@1"], result[f"{name} R@10"] = share(rank < 1), share(rank < 10)
    style = [f"{texts.STYLE_PHRASES[scene.style]} of {texts.caption(scene)}" for scene in scenes]
    scores = encoder.encode_texts(style).features @ images.T
    result["caption with style R@1"] = share((scores > scores.diagonal()[:, None]).sum(dim=1) < 1)
    return result


def evaluate(vlm: Path, clip: Path, pictures: int) -> dict[str, dict[str, float]]:
    report: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if (vlm / "model.safetensors").exists():
            agents = Agents(LocalMLLM(vlm), prompt_set="mini")
            for name, unseen in (("mini-vlm", False), ("mini-vlm, held-out wordings", True)):
                started = time.time()
                report[name] = evaluate_vlm(agents, folder, pictures, unseen)
                report[name]["seconds"] = round(time.time() - started, 1)
        if (clip / "open_clip_model.safetensors").exists():
            report["mini-clip"] = evaluate_clip(
                load_encoder(f"local-dir:{clip}", torch.device("cpu")), folder
            )
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pictures", type=int, default=600)
    parser.add_argument("--vlm", type=Path, default=MODELS / "mini-vlm")
    parser.add_argument("--clip", type=Path, default=MODELS / "mini-clip")
    arguments = parser.parse_args()
    figures = evaluate(arguments.vlm, arguments.clip, arguments.pictures)
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        for model, values in figures.items():
            print(model, *(f"  {name:32s} {value:.4f}" for name, value in values.items()), sep="\n")
