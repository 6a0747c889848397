"""Measure mini-CLIP and mini-VLM on new pictures of held-out attribute combinations, in both domains.

    python -m data_scripts.evaluate_mini_models [--json] [--pictures 600] [--vlm FOLDER] [--clip FOLDER]

Pictures are drawn with seeds that no training pool uses. Everything goes through the product's own agents and
encoder; what is marked is what they return. `caption` and the tasks with pictures use held-out combinations
only; "held-out wordings" has modification texts in ways of asking that no training text uses.
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
from data_scripts.domains import DOMAINS, Domain
from data_scripts.pool import JPEG
from data_scripts.texts import STYLE_PHRASES, VAGUE_HELD_OUT, pick
from data_scripts.vlm_examples import partner
from data_scripts.world import Edit

MODELS = Path(__file__).parent.parent / "cir_utils" / "mini" / "models"
SEED = 777_000


def share(hits: Iterable[bool]) -> float:
    return float(np.mean([bool(hit) for hit in hits]))


def balanced(said: list[bool], truth: list[bool]) -> float:
    """Mean of the accuracies on true and on false statements."""
    said_, truth_ = np.array(said), np.array(truth)
    return float((said_[truth_].mean() + (~said_[~truth_]).mean()) / 2)


def save_pictures(folder: Path, domain: Domain, things: list, seed: int) -> list[Path]:
    paths = []
    for i, thing in enumerate(things):
        paths.append(folder / f"{domain.name}_{seed}_{i}.jpg")
        domain.draw(thing, seed=seed + i).save(paths[-1], **JPEG)
    return paths


def same_target(domain: Domain, text: str, thing, edit: Edit, selective: bool) -> bool:
    """Whether a target text names all that the target must keep or become, and of what is free (background,
    prop) what it should.
    """
    wanted, mentioned, found = edit.apply(thing), edit.as_dict(), domain.texts.read_caption(text)
    free = [f for f in domain.texts.EDITABLE if f in domain.world.FREE]
    fields = [*domain.world.KEPT, *(f for f in free if f in mentioned or not selective)]
    return all(found[f] == getattr(wanted, f) for f in fields)


def evaluate_statements(agents: Agents, domain: Domain, paths: list[Path], things: list, rng) -> dict:
    """Captions, and true/false statements about pictures and captions."""
    texts, spoken = domain.texts, (*domain.world.KEPT, *domain.world.FREE)
    result: dict[str, float] = {}
    captions = [texts.read_caption(answer.text) for answer in agents.caption(paths)]
    for name in spoken:
        right = [c[name] == getattr(t, name) for c, t in zip(captions, things, strict=True)]
        result[f"caption/{name}"] = share(right)
    result["caption/all"] = share(
        all(c[n] == getattr(t, n) for n in spoken) for c, t in zip(captions, things, strict=True)
    )
    asked = [
        (path, thing, texts.random_statement(rng, thing))
        for path, thing in zip(paths, things, strict=True)
        for _ in range(8)
    ]
    truth = [fact.truth for _, _, fact in asked]
    seen = [p > 0.5 for p in agents.verify_pictures([(path, fact.text) for path, _, fact in asked])]
    given = [(texts.caption(thing), fact.text) for _, thing, fact in asked]
    read = [p > 0.5 for p in agents.verify_captions(given)]
    result["verify_picture/balanced"] = balanced(seen, truth)
    result["verify_caption/balanced"] = balanced(read, truth)
    for name in sorted({fact.field for _, _, fact in asked}):
        chosen = [i for i, (_, _, fact) in enumerate(asked) if fact.field == name]
        result[f"verify_picture/{name}"] = balanced([seen[i] for i in chosen], [truth[i] for i in chosen])
    return result


def evaluate_pairs(
    agents: Agents, folder: Path, domain: Domain, paths: list[Path], things: list, rng
) -> float:
    """Balanced accuracy of comparing two pictures under a change."""
    others = [partner(rng, domain, thing) for thing in things]
    triples, right = [], []
    other_paths = save_pictures(folder, domain, others, SEED + 50_000)
    for thing, other, path, other_path in zip(things, others, paths, other_paths, strict=True):
        edit = domain.difference(thing, other) if rng.random() < 0.5 else domain.texts.random_edit(rng, thing)
        triples.append((path, other_path, domain.texts.modification_text(rng, thing, edit)))
        right.append(domain.shows(thing, edit, other))
    return balanced([p > 0.5 for p in agents.compare_pictures(triples)], right)


def evaluate_vlm(
    agents: Agents, folder: Path, domain: Domain, pictures: int, unseen_wordings: bool
) -> dict[str, float]:
    rng, texts = np.random.default_rng(SEED + unseen_wordings), domain.texts
    things = [domain.held_out_thing(rng) for _ in range(pictures)]
    paths = save_pictures(folder, domain, things, SEED)
    edits = [texts.random_edit(rng, thing) for thing in things]
    pairs = list(zip(things, edits, strict=True))
    changes = [texts.modification_text(rng, t, e, held_out=unseen_wordings) for t, e in pairs]
    result: dict[str, float] = {}
    if not unseen_wordings:
        result |= evaluate_statements(agents, domain, paths, things, rng)
        vague = agents.selective_cot(paths[:100], [pick(rng, VAGUE_HELD_OUT) for _ in paths[:100]])
        result["selective_cot/vague seen"] = share(d.vague for d in vague)
        result["compare_pictures/balanced"] = evaluate_pairs(agents, folder, domain, paths, things, rng)

    def right(said: Iterable[str], selective: bool) -> float:
        return share(same_target(domain, t, *pair, selective) for t, pair in zip(said, pairs, strict=True))

    described = agents.selective_cot(paths, changes)
    result["selective_cot/parsed"] = share(d.answer is not None and not d.retried for d in described)
    result["selective_cot/target right"] = right((d.description for d in described), True)
    result["selective_cot/explicit right"] = share(
        isinstance(d.answer, SelectiveCoT)
        and d.answer.explicit_targets == texts.selective_cot(t, e)["explicit_targets"]
        for d, (t, e) in zip(described, pairs, strict=True)
    )
    plain = agents.describe_target(paths, changes)
    result["describe_target/target right"] = right((d.text for d in plain), False)
    seen_target = agents.imagine_vision(paths, changes)
    result["imagine_vision/parsed"] = share(not i.fallback for i in seen_target)
    result["imagine_vision/target right"] = right((i.target_caption for i in seen_target), True)
    given = [texts.caption(thing) for thing in things]
    read_target = agents.imagine_text(given, changes)
    result["imagine_text/parsed"] = share(not i.fallback for i in read_target)
    result["imagine_text/target right"] = right((i.target_caption for i in read_target), False)
    edited = agents.edit_caption(given, changes)
    result["edit_caption/target right"] = right((t.text for t in edited), False)
    M_t = [texts.modifications(t, e) for t, e in pairs]
    M_v = [texts.vision_imagination(t, e) for t, e in pairs]
    asked = agents.questions(changes, M_t, [m["present"] for m in M_v], [m["absent"] for m in M_v])
    result["questions/parsed"] = share(not a.fallback for a in asked)
    result["questions/all right"] = share(
        {(q.statement, q.answer) for q in a.statements}
        == {(q["statement"], q["answer"]) for q in texts.questions(t, e)["statements"]}
        for a, (t, e) in zip(asked, pairs, strict=True)
    )
    return result


def evaluate_clip(encoder, folder: Path, domain: Domain, pictures: int = 1000) -> dict[str, float]:
    """Text to picture among new pictures (held-out combinations among them), with texts of three kinds."""
    rng, texts = np.random.default_rng(SEED + 9), domain.texts
    things = [domain.random(rng) for _ in range(pictures)]
    images = encoder.encode_images(save_pictures(folder, domain, things, SEED + 100_000))
    result = {}
    for name, write in {
        "caption": lambda t: texts.caption(t),
        "dense caption": lambda t: texts.dense_caption(rng, t),
        "caption with style": lambda t: f"{STYLE_PHRASES[t.style]} of {texts.caption(t)}",
    }.items():
        scores = encoder.encode_texts([write(thing) for thing in things]).features @ images.T
        rank = (scores > scores.diagonal()[:, None]).sum(dim=1)
        result[f"{name} R@1"], result[f"{name} R@10"] = share(rank < 1), share(rank < 10)
    return result


def evaluate(vlm: Path, clip: Path, pictures: int) -> dict[str, dict[str, float]]:
    """Figures by model, domain and kind of wordings."""
    report: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if (vlm / "model.safetensors").exists():
            agents = Agents(LocalMLLM(vlm), prompt_set="mini")
            for domain in DOMAINS:
                for unseen in (False, True):
                    title = f"mini-vlm, {domain.name}" + (", held-out wordings" if unseen else "")
                    started = time.time()
                    report[title] = evaluate_vlm(agents, folder, domain, pictures, unseen)
                    report[title]["seconds"] = round(time.time() - started, 1)
        if (clip / "open_clip_model.safetensors").exists():
            encoder = load_encoder(f"local-dir:{clip}", torch.device("cpu"))
            for domain in DOMAINS:
                report[f"mini-clip, {domain.name}"] = evaluate_clip(encoder, folder, domain)
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
