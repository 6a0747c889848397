"""Train the networks that turn a picture into pseudo-words, on `train` worlds only, with CLIP frozen.

    python -m data_scripts.pool --out work/words-pool --pictures 5000
    python -m data_scripts.train_pseudo_words pic2word --pool work/words-pool \\
        --export cir_utils/mini/models/pic2word

Systems: pic2word, searle, isearle, lincir, palavra, fti4cir; each is described in `cir_utils/methods/`, where
its network and losses are. LinCIR reads texts alone and needs no pool. Minutes each on one core with the
defaults, after the pictures' features have been computed once (`--out` keeps them for all systems).

A run that is stopped goes on from its last checkpoint in `--out`, and ends with the same weights as one that
was not: every step has its own random numbers. `--export` writes the network with its header, what else the
method reads, and the record of the training; `data_scripts.evaluate_pseudo_words` writes cards and checksums.

Held-out combinations stay out: pictures are the pool's, which holds `train` worlds alone, and texts are
written for things of `train` worlds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.functional import normalize

from cir_utils.encoder import ClipEncoder, load_encoder
from cir_utils.files import sha256_text, write_atomic, write_json_atomic
from cir_utils.methods import fti4cir, isearle, lincir, palavra, pic2word, searle
from cir_utils.pseudo_words import embeddings_of
from cir_utils.word_networks import NETWORK, PHRASES, SHIPPED, save_weights
from data_scripts import texts, texts_fashion
from data_scripts.domains import COLUMN, DOMAINS, FASHION, SCENES, UNKNOWN, Domain
from data_scripts.pool import jpeg, open_pool
from data_scripts.train_mini_clip import training_text

CHUNK = 256
SAVE_EVERY = 200
PHRASES_EACH = 24


@dataclass(frozen=True)
class Recipe:
    """Steps, pictures or texts a step, and the highest learning rate."""

    steps: int
    batch: int
    learning_rate: float


RECIPES = {
    "pic2word": Recipe(600, 128, 1e-3),
    "searle": Recipe(1000, 64, 1e-3),
    "isearle": Recipe(1000, 64, 1e-3),
    "lincir": Recipe(800, 64, 1e-3),
    "palavra": Recipe(500, 64, 1e-3),
    "fti4cir": Recipe(400, 48, 1e-3),
}
#: How many pictures OTI inverts for the networks that learn from it, and in how many steps.
INVERTED, INVERSION_STEPS = 768, 120


@dataclass
class Data:
    """What the systems learn from: pictures of the pool with known labels, their features computed once."""

    encoder: ClipEncoder
    pool: Path | None
    out: Path
    pictures: int
    seed: int
    prompts: str

    @cached_property
    def chosen(self) -> list[tuple[Domain, np.ndarray, np.ndarray, np.ndarray]]:
        """Per domain the first `pictures` of the pool whose colour has a name: (domain, pixels of all, which
        ones, their labels)."""
        if self.pool is None:
            raise SystemExit("this system learns from pictures: give --pool (see data_scripts.pool)")
        found = []
        for domain, (pixels, labels) in zip(DOMAINS, open_pool(self.pool), strict=True):
            named = np.flatnonzero(labels[:, COLUMN[f"{domain.name}/colour"]] != UNKNOWN)[: self.pictures]
            found.append((domain, pixels, named, labels[named]))
        return found

    @cached_property
    def things(self) -> list[tuple[Domain, Any]]:
        """What each picture shows."""
        return [(domain, domain.decode(row)) for domain, _, _, labels in self.chosen for row in labels]

    @cached_property
    def features(self) -> Tensor:
        """Unit features `(n, D)` float32."""
        model: Any = self.encoder.model

        def compute(pixels: Tensor) -> Tensor:
            return normalize(model.encode_image(pixels).float(), dim=1)

        return self._over_pictures("features", compute)

    @cached_property
    def patches(self) -> Tensor:
        """Patch outputs `(n, P, V)` float16."""
        return self._over_pictures(
            "patches", lambda pixels: fti4cir.patch_outputs(self.encoder, pixels).half()
        )

    def _over_pictures(self, name: str, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """`compute` of all pictures, kept in a file of `out` that is found by encoder and labels."""
        labels = b"".join(labels.tobytes() for *_, labels in self.chosen).hex()
        path = self.out / f"{name}-{sha256_text(self.encoder.identifier + labels)[:16]}.safetensors"
        if path.is_file():
            return load_file(path)[name]
        rows = []
        with torch.no_grad():
            for _, pixels, named, _ in self.chosen:
                for start in range(0, len(named), CHUNK):
                    shown = [jpeg(Image.fromarray(one)) for one in pixels[named[start : start + CHUNK]]]
                    rows.append(compute(torch.stack([self.encoder.pixels(one) for one in shown])))
        write_atomic(path, save({name: torch.cat(rows).contiguous()}))
        return torch.cat(rows)


def concept_phrases(seed: int) -> dict[str, list[str]]:
    """Every kind of object and garment with texts of `train` worlds that name it as a word."""
    rng = np.random.default_rng([seed, 17])
    found: dict[str, list[str]] = {}
    fields = [(SCENES, "kind", {"count": 1}, {}), (FASHION, "category", {}, texts_fashion.NOUNS)]
    for domain, field, fixed, nouns in fields:
        for value in domain.choices[field]:
            name, said = nouns.get(value, value), []
            while len(said) < PHRASES_EACH:
                text = domain.texts.short_text(rng, domain.train(rng, **{field: value}, **fixed))
                if text.split().count(name) == 1:
                    said.append(text)
            found[name] = said
    return found


# --- the systems: a network, and the loss of one step -------------------------------------------------------

Step = Callable[[np.random.Generator], Tensor]


def train_pic2word(data: Data, batch: int) -> tuple[nn.Module, Step]:
    model = pic2word.network(data.encoder)

    def step(rng: np.random.Generator) -> Tensor:
        features = data.features[rng.choice(len(data.features), batch, replace=False)]
        return pic2word.loss(data.encoder, model(features), features, data.prompts)

    return model, step


def train_lincir(data: Data, batch: int) -> tuple[nn.Module, Step]:
    model = lincir.network(data.encoder)

    def step(rng: np.random.Generator) -> Tensor:
        domains = [DOMAINS[int(i)] for i in rng.integers(len(DOMAINS), size=batch)]
        said = [training_text(rng, domain, domain.train(rng), False) for domain in domains]
        features = data.encoder.encode_texts(said).features
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        words = model(lincir.noised(features, generator))
        return lincir.loss(data.encoder, words, [lincir.masked(rng, text) for text in said], features)

    return model, step


def train_searle(data: Data, batch: int, improved: bool = False) -> tuple[nn.Module, Step]:
    model = searle.network(data.encoder)
    concepts = searle.read_concepts(data.encoder, concept_phrases(data.seed))
    chosen = torch.from_numpy(
        np.random.default_rng([data.seed, 3]).permutation(len(data.features))[:INVERTED]
    )
    features = data.features[chosen]
    wanted = inverted(data, features, concepts, "isearle" if improved else "searle")
    nearest = searle.nearest_concepts(features, concepts)

    def step(rng: np.random.Generator) -> Tensor:
        rows = isearle.alike(features, batch, rng) if improved else torch.from_numpy(
            rng.choice(len(features), batch, replace=False)
        )  # fmt: skip
        words = model(features[rows])
        kept = searle.regularisation(data.encoder, words, nearest[rows], concepts, rng).mean()
        return searle.distillation(words, wanted[rows]) + searle.LAMBDA_GPT_PHI * kept

    return model, step


def train_isearle(data: Data, batch: int) -> tuple[nn.Module, Step]:
    return train_searle(data, batch, improved=True)


def inverted(data: Data, features: Tensor, concepts: searle.Concepts, system: str) -> Tensor:
    """OTI's words `(n, W)` of pictures, kept after every batch of them."""
    name = sha256_text(
        f"{data.encoder.identifier} {data.seed} {INVERSION_STEPS} {data.prompts} {features.sum().item()}"
    )
    path = data.out / system / f"inverted-{name[:16]}.safetensors"
    words = load_file(path)["words"] if path.is_file() else torch.empty(0, 0)
    for start in range(len(words), len(features), searle.BATCH):
        part = features[start : start + searle.BATCH]
        noise = isearle.NOISE if system == "isearle" else 0.0
        seed = 1000 * data.seed + start
        found = searle.invert(
            data.encoder, part, concepts, INVERSION_STEPS, data.prompts, seed=seed, noise=noise
        )
        words = torch.cat([words, found]) if len(words) else found
        write_atomic(path, save({"words": words.contiguous()}))
        print(f"{system}: {len(words)} of {len(features)} pictures inverted", flush=True)
    return words


def train_palavra(data: Data, batch: int) -> tuple[nn.Module, Step]:
    model = palavra.network(data.encoder)
    members: dict[str, list[int]] = {}
    for number, (domain, thing) in enumerate(data.things):
        noun = texts_fashion.noun(thing) if domain is FASHION else thing.kind
        members.setdefault(f"{thing.colour} {noun}", []).append(number)
    names = sorted(members)
    nouns = dict(zip(names, embeddings_of(data.encoder, [name.split()[-1] for name in names]), strict=True))

    def step(rng: np.random.Generator) -> Tensor:
        size = int(rng.integers(1, 6))
        chosen = [names[int(i)] for i in rng.permutation(len(names))[:batch]]
        sets = torch.from_numpy(np.stack([rng.choice(members[name], size) for name in chosen]))
        words = model(data.features[sets])
        wanted = torch.stack([nouns[name] for name in chosen])
        return palavra.cycle_loss(data.encoder, words, chosen, wanted, data.prompts)

    return model, step


def train_fti4cir(data: Data, batch: int) -> tuple[nn.Module, Step]:
    model = fti4cir.network(data.encoder)
    parts = [subject_and_attributes(domain, thing) for domain, thing in data.things]

    def step(rng: np.random.Generator) -> Tensor:
        rows = rng.choice(len(data.features), batch, replace=False)
        subjects, attributes = zip(*(parts[int(row)] for row in rows), strict=True)
        patches = data.patches[torch.from_numpy(rows)].float()
        features = data.features[rows]
        return fti4cir.loss(data.encoder, model, features, patches, subjects, attributes, data.prompts)

    return model, step


def subject_and_attributes(domain: Domain, thing: Any) -> tuple[str, str]:
    """A caption in two parts: what it is, and all that can be said of it."""
    if domain is FASHION:
        said = texts_fashion.subject(thing).removesuffix(f" {texts_fashion.noun(thing)}")
        parts = [said, *texts_fashion.features(thing), texts_fashion.PLACES[thing.background]]
        return texts_fashion.noun(thing), ", ".join(parts)
    pattern = [] if thing.pattern == "plain" else [thing.pattern]
    prop = [] if thing.prop == "none" else [texts.beside(thing)]
    noun = texts.noun(thing.kind, thing.count)
    if thing.count > 1:
        noun = f"{texts.NUMBERS[thing.count]} {noun}"
    return noun, ", ".join([thing.colour, *pattern, *prop, texts.PLACES[thing.background]])


SYSTEMS: dict[str, Callable[[Data, int], tuple[nn.Module, Step]]] = {
    "pic2word": train_pic2word,
    "searle": train_searle,
    "isearle": train_isearle,
    "lincir": train_lincir,
    "palavra": train_palavra,
    "fti4cir": train_fti4cir,
}


# --- the loop that all share --------------------------------------------------------------------------------


def train(model: nn.Module, step: Step, recipe: Recipe, checkpoint: Path, seed: int, about: str) -> dict:
    """Train `model` in place, from the checkpoint where there is one; returns the record of the training.

    `about` names what the checkpoint belongs to: one of something else is refused. Seconds are those of the
    processor, so that a busy machine does not count."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=0.01)
    header = {"about": about, "step": "0", "seconds": "0", "loss": "0"}
    if checkpoint.is_file():
        header = read_checkpoint(checkpoint, model, optimizer, about)
    begun, before, average = time.process_time(), float(header["seconds"]), float(header["loss"])
    model.train()
    for number in range(int(header["step"]), recipe.steps):
        torch.manual_seed(1_000_003 * seed + number)  # dropout
        share = number / recipe.steps
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, (number + 1) / 50) * (1 - 0.95 * share)
        loss = step(np.random.default_rng([seed, number]))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        average = loss.item() if not number else 0.98 * average + 0.02 * loss.item()
        if (number + 1) % SAVE_EVERY == 0 or number + 1 == recipe.steps:
            seconds = before + time.process_time() - begun
            print(f"step {number + 1} of {recipe.steps}: loss {average:.4f}, {seconds:.0f} s", flush=True)
            header |= {"step": str(number + 1), "seconds": str(seconds), "loss": repr(average)}
            write_checkpoint(checkpoint, model, optimizer, header)
    return {
        "steps": recipe.steps,
        "batch": recipe.batch,
        "learning_rate": recipe.learning_rate,
        "seed": seed,
        "seconds": round(float(header["seconds"])),
        "loss": round(float(header["loss"]), 4),
    }


def write_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, header: Mapping[str, str]
) -> None:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in state.items()}
    write_atomic(path, save({name: value.contiguous() for name, value in tensors.items()}, dict(header)))


def read_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, about: str
) -> dict[str, str]:
    with safe_open(path, "pt") as stored:
        header = stored.metadata() or {}
    if header.get("about") != about:
        raise SystemExit(
            f"{path} belongs to {header.get('about')}, not to {about}: give another --out, or delete it"
        )
    tensors = load_file(path)
    model.load_state_dict({name[6:]: value for name, value in tensors.items() if name.startswith("model.")})
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".")
            state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    return header


def export(folder: Path, system: str, data: Data, model: nn.Module, record: dict) -> None:
    """The network and what else the method reads, in `folder`."""
    save_weights(folder / NETWORK, system, data.encoder.identifier, model.state_dict())
    if system in ("searle", "isearle", "palavra"):
        write_json_atomic(folder / PHRASES, concept_phrases(data.seed))
    write_json_atomic(
        folder / "training.json", {"system": system, "encoder": data.encoder.identifier, **record}
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--pool", type=Path, help="folder of data_scripts.pool")
    parser.add_argument("--out", type=Path, default=Path("work/words"), help="checkpoints and features")
    parser.add_argument("--export", type=Path, help="folder to write the network to")
    parser.add_argument("--encoder", default=f"local-dir:{SHIPPED / 'mini-clip'}")
    parser.add_argument("--prompts", default="mini", help="the prompt set whose sentences it learns in")
    parser.add_argument("--pictures", type=int, default=3000, help="of each domain")
    parser.add_argument("--steps", type=int, help="instead of the recipe's")
    parser.add_argument("--batch", type=int, help="instead of the recipe's")
    parser.add_argument("--lr", type=float, help="instead of the recipe's")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    usual = RECIPES[args.system]
    recipe = Recipe(args.steps or usual.steps, args.batch or usual.batch, args.lr or usual.learning_rate)
    encoder = load_encoder(args.encoder)
    encoder.model.requires_grad_(False)
    data = Data(encoder, args.pool, args.out, args.pictures, args.seed, args.prompts)
    torch.manual_seed(args.seed)
    model, step = SYSTEMS[args.system](data, recipe.batch)
    about = json.dumps(
        [args.system, encoder.identifier, vars(recipe), args.pictures, args.seed, args.prompts]
    )
    checkpoint = args.out / args.system / "checkpoint.safetensors"
    record = train(model, step, recipe, checkpoint, args.seed, about)
    if args.export:
        pictures = {} if args.system == "lincir" else {"pictures": len(data.features)}
        export(args.export, args.system, data, model.eval(), record | pictures)


if __name__ == "__main__":
    main()
