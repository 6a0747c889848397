"""Train the mini-VLM on `train` worlds only.

    python -m data_scripts.train_mini_vlm --pool work/pool --out work/vlm --stage vision --minutes 20
    python -m data_scripts.train_mini_vlm --pool work/pool --out work/vlm --stage full --minutes 80

`vision` trains the vision tower alone under attention-pooled attribute heads; `full` trains the whole model
on every agent task, with the heads kept as a help. Both checkpoint every few minutes and resume from `--out`;
`--from FOLDER` starts from shipped weights with a fresh optimiser and a short warm-up. `--export FOLDER`
writes the model as it is shipped (bfloat16 safetensors), with `--average FOLDER` the mean of its weights and
those of an earlier stretch (weight averaging, Izmailov et al. 2018). `torchrun --nproc-per-node 2 -m
data_scripts.train_mini_vlm ...` spreads a stretch over processes (one thread each is the fastest use of few
cores); gradients are averaged.

Held-out combinations are never shown. A loss that counts their absence as evidence would teach that they do
not exist (a cat is never pink, so what is pink is no cat). So the values that would complete a held-out
combination take no part in the softmax where a head predicts a field of `HELD_OUT`, and where an answer about
one picture names a kind, a category or a pattern.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import AutoModelForImageTextToText, AutoTokenizer

from data_scripts import texts, texts_fashion, world, world_fashion
from data_scripts import vlm_examples as ex
from data_scripts.domains import COLUMN, DOMAINS, FASHION, FIELDS, SCENES, UNKNOWN, Domain, domain_of
from data_scripts.mini_models import IMAGE_SIZE, MERGE, PATCH, build_vlm, image_processor
from data_scripts.pool import add_history, jpeg, open_pool

MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711])
HEAD_WEIGHTS = {"style": 0.3, "shade": 0.3, "variant": 0.2, "facing": 0.2}
WEIGHTS = [HEAD_WEIGHTS.get(name.split("/")[1], 1.0) for name in FIELDS]
#: (a, b, table of a's by b's values): True for the pairs that no training picture shows.
HELD_OUT = (
    ("scenes/kind", "scenes/colour", world.HELD_OUT_COLOURS),
    ("scenes/kind", "scenes/background", world.HELD_OUT_BACKGROUNDS),
    ("fashion/category", "fashion/colour", world_fashion.HELD_OUT_COLOURS),
    ("fashion/pattern", "fashion/colour", world_fashion.HELD_OUT_PATTERNS),
    ("fashion/category", "fashion/background", world_fashion.HELD_OUT_BACKGROUNDS),
)
#: How answers name the values of a field whose unseen values are left out of the softmax.
SAID = {
    "scenes/kind": {kind: (kind, texts.plural(kind)) for kind in world.KINDS},
    "fashion/category": {name: (noun,) for name, noun in texts_fashion.NOUNS.items()},
    "fashion/pattern": {"plain": ("plain",)}
    | {name: (name, noun) for name, noun in texts_fashion.PATTERN_NOUNS.items()},
}


def patches(pixels: np.ndarray) -> Tensor:
    """uint8 (n, 112, 112, 3) -> (n * 64, 3 * 2 * 14 * 14), in the order of Qwen's image processor."""
    n, grid = len(pixels), IMAGE_SIZE // PATCH
    x = torch.from_numpy(np.ascontiguousarray(pixels))
    x = x.permute(0, 3, 1, 2).reshape(n, 3, grid // MERGE, MERGE, PATCH, grid // MERGE, MERGE, PATCH)
    x = x.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(n * grid * grid, 3, 1, PATCH, PATCH)
    x = (x.float() / 255 - MEAN.view(3, 1, 1, 1)) / STD.view(3, 1, 1, 1)
    return x.expand(-1, -1, 2, -1, -1).reshape(n * grid * grid, -1)


def augment(rng: np.random.Generator, pixels: np.ndarray) -> np.ndarray:
    """A shift of up to four pixels, a slight change of brightness, JPEG for half: the pool is seen several
    times.
    """
    padded = np.pad(pixels, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="edge")
    out = np.empty_like(pixels)
    for i, (dy, dx) in enumerate(rng.integers(0, 9, size=(len(pixels), 2))):
        out[i] = padded[i, dy : dy + IMAGE_SIZE, dx : dx + IMAGE_SIZE]
    gain = rng.uniform(0.94, 1.06, size=(len(pixels), 1, 1, 1))
    out = np.clip(out * gain, 0, 255).astype(np.uint8)
    for i in np.flatnonzero(rng.random(len(out)) < 0.5):  # shipped pictures are JPEG
        out[i] = np.asarray(jpeg(Image.fromarray(out[i])))
    return out


def mirror(rng: np.random.Generator, pixels: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Half of the pictures turned left to right, and their labels with them."""
    pixels, labels = pixels.copy(), labels.copy()
    turned = np.flatnonzero(rng.random(len(pixels)) < 0.5)
    pixels[turned] = pixels[turned, :, ::-1]
    for name in ("scenes/facing", "fashion/facing"):
        known = turned[labels[turned, COLUMN[name]] != UNKNOWN]
        labels[known, COLUMN[name]] ^= 1
    prop = labels[turned, COLUMN["scenes/prop"]]
    with_prop = turned[(prop > 0) & (prop != UNKNOWN)]  # without a prop its side says "left"
    labels[with_prop, COLUMN["scenes/side"]] ^= 1
    return pixels, labels


def mirrored(labels: np.ndarray) -> np.ndarray:
    """For each row of labels (n, fields) whether its pattern would be held out on a ground of the pattern's
    own colour. White checks on red are then left out as red checks on white are: shown alone, they would
    teach that white among checks is never the ground.
    """
    pattern, second = (labels[:, COLUMN[f"fashion/{name}"]] for name in ("pattern", "colour2"))
    known = (pattern != UNKNOWN) & (second != UNKNOWN) & (second > 0)  # 0 is "none"
    return known & world_fashion.HELD_OUT_PATTERNS[pattern * known, (second - 1) * known]


def unseen_values(labels: Tensor) -> dict[str, Tensor]:
    """For each picture, True at the values of a field that would make it a held-out combination.

    labels (n, fields) -> field name -> (n, values) bool, for the fields of `HELD_OUT`.
    """
    found: dict[str, Tensor] = {}
    for first, second, table in HELD_OUT:
        pairs = torch.from_numpy(table)
        for name, other, rows in ((first, second, pairs.T), (second, first, pairs)):
            index = labels[:, COLUMN[other]]
            known = index != UNKNOWN
            unseen = rows[index * known] & known[:, None]
            found[name] = found[name] | unseen if name in found else unseen
    return found


def attribute_loss(logits: list[Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
    """(weighted loss, hits (fields,), NaN where no label is known) of the fields' logits (n, values)."""
    known = labels != UNKNOWN
    right = torch.stack([z.argmax(-1) == labels[:, i] for i, z in enumerate(logits)])
    hits = right.sum(1) / known.sum(0)
    logits = [z.float() for z in logits]
    for name, unseen in unseen_values(labels).items():
        logits[COLUMN[name]] = logits[COLUMN[name]].masked_fill(unseen, float("-inf"))
    losses = [
        F.cross_entropy(z, labels[:, i], ignore_index=UNKNOWN, reduction="sum") for i, z in enumerate(logits)
    ]
    shares = torch.stack(losses) / known.sum(0).clamp(min=1)
    present = torch.tensor(WEIGHTS) * known.any(0)
    return (shares * present).sum() / present.sum(), hits


def attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, *_, **__) -> Tensor:
    """Scaled dot-product attention as plain products: on a CPU the fused kernel's backward is far slower."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores if attn_mask is None else scores + attn_mask.to(scores.dtype)
    return torch.softmax(scores, -1, dtype=v.dtype) @ v


class FastVision(nn.Module):
    """The same tower, computed for pictures of one size as a batch instead of a list (checked equal at the
    start).
    """

    def __init__(self, visual: nn.Module) -> None:
        super().__init__()
        self.visual = visual
        grid = IMAGE_SIZE // PATCH
        rows, columns = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
        order = torch.stack([rows, columns]).reshape(2, grid // MERGE, MERGE, grid // MERGE, MERGE)
        self.positions = order.permute(0, 1, 3, 2, 4).reshape(2, -1).T.contiguous()

    def forward(self, pixel_patches: Tensor) -> Tensor:
        """(n * 64, 1176) -> (n, 16, out_hidden_size)."""
        v = self.visual
        weight = v.patch_embed.proj.weight.flatten(1)
        x = F.linear(pixel_patches, weight).float().view(-1, len(self.positions), weight.shape[0])
        n, length, width = x.shape
        cos, sin = v.rotary_pos_emb(x, self.positions)
        cos, sin = cos[None, None], sin[None, None]
        for block in v.blocks:
            attn = block.attn
            q, k, value = (
                attn.qkv(F.rms_norm(x, (width,), block.norm1.weight, block.norm1.variance_epsilon))
                .view(n, length, 3, attn.num_heads, -1)
                .permute(2, 0, 3, 1, 4)
            )
            q, k = _turn(q, cos.to(q.dtype), sin.to(q.dtype)), _turn(k, cos.to(k.dtype), sin.to(k.dtype))
            mixed = attention(q, k, value).transpose(1, 2).reshape(n, length, width)
            x = x + attn.proj(mixed)
            x = x + block.mlp(F.rms_norm(x, (width,), block.norm2.weight, block.norm2.variance_epsilon))
        return v.merger(x.reshape(-1, width)).view(n, length // MERGE**2, -1)


class FastLanguage(nn.Module):
    """The same decoder with fewer and fused operations, for packed rows of one length (checked equal at the
    start).
    """

    def __init__(self, language: nn.Module) -> None:
        super().__init__()
        self.language = language

    def forward(self, x: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        """x (B, L, D), mask (B, 1, L, L) bool, positions (3, B, L) -> (B, L, D)."""
        lm, (batch, length, width) = self.language, x.shape
        heads, kv, size = (
            lm.config.num_attention_heads,
            lm.config.num_key_value_heads,
            width // lm.config.num_attention_heads,
        )
        cos, sin = lm.rotary_emb(x, positions)
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        cos, sin = cos[:, None].to(dtype), sin[:, None].to(dtype)
        bias = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, float("-inf"))
        bias = bias.expand(batch, heads, length, length).reshape(batch * heads, length, length)
        for layer in lm.layers:
            a, m = layer.self_attn, layer.mlp
            h = F.rms_norm(x, (width,), layer.input_layernorm.weight, layer.input_layernorm.variance_epsilon)
            weight = torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight])
            qkv = F.linear(h, weight, torch.cat([a.q_proj.bias, a.k_proj.bias, a.v_proj.bias]))
            q, k, v = qkv.view(batch, length, -1, size).transpose(1, 2).split([heads, kv, kv], 1)
            q, k = _turn(q, cos, sin), _turn(k, cos, sin)
            k, v = (t.repeat_interleave(heads // kv, 1).reshape(batch * heads, length, size) for t in (k, v))
            scores = torch.baddbmm(
                bias, q.reshape(batch * heads, length, size), k.transpose(1, 2), alpha=size**-0.5
            )
            mixed = (torch.softmax(scores, -1, dtype=dtype) @ v).view(batch, heads, length, size)
            x = x + a.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))
            h = F.rms_norm(
                x,
                (width,),
                layer.post_attention_layernorm.weight,
                layer.post_attention_layernorm.variance_epsilon,
            )
            gate, up = F.linear(h, torch.cat([m.gate_proj.weight, m.up_proj.weight])).chunk(2, -1)
            x = x + m.down_proj(F.silu(gate) * up)
        return lm.norm(x)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


class AttributeHeads(nn.Module):
    """One learned query a field, attending over the 16 picture tokens, and a linear classifier each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(len(FIELDS), width) * width**-0.5)
        self.norm = nn.LayerNorm(width)
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.classifiers = nn.ModuleList(nn.Linear(width, len(values)) for values in FIELDS.values())

    def forward(self, tokens: Tensor) -> list[Tensor]:
        tokens = self.norm(tokens)
        attention = (self.queries @ self.key(tokens).transpose(1, 2) * tokens.shape[-1] ** -0.5).softmax(-1)
        pooled = attention @ self.value(tokens)
        return [classify(pooled[:, i]) for i, classify in enumerate(self.classifiers)]

    def loss(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(weighted loss, hits (fields,))."""
        return attribute_loss(self(tokens), labels)


def named_thing(rng: np.random.Generator, row: np.ndarray) -> tuple[Domain, Any, bool]:
    """The domain and thing of a row of labels, and whether its colour has a name (if not, the thing's means
    nothing).
    """
    domain = domain_of(row)
    colour, shade = (COLUMN[f"{domain.name}/{name}"] for name in ("colour", "shade"))
    if row[colour] != UNKNOWN:
        return domain, domain.decode(row), True
    row = row.copy()
    row[shade] = 0
    while True:
        row[colour] = rng.integers(len(domain.choices["colour"]))
        with contextlib.suppress(ValueError):  # a colour that clashes with the pattern's
            if not domain.world.held_out(thing := domain.decode(row)):
                return domain, thing, False


class Batches(IterableDataset):
    """Endless batches; every worker process draws its own."""

    def __init__(self, pool: Path, tokenizer, stage: str, seed: int, mix: dict[str, Any]) -> None:
        self.pool, self.tokenizer, self.stage, self.seed, self.mix = pool, tokenizer, stage, seed, mix

    def __iter__(self):
        torch.set_num_threads(1)
        info = torch.utils.data.get_worker_info()
        rng = np.random.default_rng([self.seed, rank(), info.id if info else 0, int(time.time())])
        pool = open_pool(self.pool)
        while True:
            yield self.vision(rng, pool) if self.stage == "vision" else self.full(rng, pool)

    def domains(self, number: int) -> list[Domain]:
        """The domains of `number` rows: scenes, then the share of fashion."""
        fashion = round(number * self.mix["fashion"])
        return [SCENES] * (number - fashion) + [FASHION] * fashion

    def pictures(self, rng, pool, number: int, named: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """`number` pictures and their labels; `named`: no colour without a name."""
        images, rows = [], []
        wanted = self.domains(number)
        for domain, (pixels, labels) in zip(DOMAINS, pool, strict=True):
            chosen = rng.choice(len(labels), 10 * number, replace=False)
            chosen = chosen[~mirrored(labels[chosen])]
            if named:
                chosen = chosen[labels[chosen, COLUMN[f"{domain.name}/colour"]] != UNKNOWN]
            chosen = chosen[: wanted.count(domain)]
            images.append(pixels[chosen])
            rows.append(labels[chosen])
        return mirror(rng, np.concatenate(images), np.concatenate(rows))

    def vision(self, rng, pool) -> dict[str, Tensor]:
        images, labels = self.pictures(rng, pool, self.mix["pictures"])
        return {"pixels": patches(augment(rng, images)), "labels": torch.from_numpy(labels.astype(np.int64))}

    def full(self, rng, pool) -> dict[str, Tensor]:
        n_pictures, n_pairs, n_captions, n_questions = (
            self.mix[k] for k in ("pictures", "pairs", "captions", "questions")
        )
        parts = [self.pictures(rng, pool, n_pictures), self.pictures(rng, pool, n_pairs, named=True)]
        images, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
        rows, extra = [], []
        for row in labels[:n_pictures]:
            branches = ex.picture_branches(rng, *named_thing(rng, row), self.mix["verify_picture"])
            rows.append(ex.build_row(self.tokenizer, 1, branches))
        for row in labels[n_pictures:]:
            domain = domain_of(row)
            first = domain.decode(row)
            second = ex.partner(rng, domain, first)
            extra.append(np.asarray(domain.draw(second, seed=int(rng.integers(2**31)))))
            rows.append(ex.build_row(self.tokenizer, 2, ex.pair_branches(rng, domain, first, second, 6)))
        for domain in self.domains(n_captions):
            thing = domain.train(rng)
            shared = f"caption: {domain.texts.caption(thing)}\n"
            branches = ex.caption_branches(rng, domain, thing, self.mix["verify_caption"])
            rows.append(ex.build_row(self.tokenizer, 0, branches, shared))
        for domain in self.domains(n_questions):
            branches = [ex.describing(rng, domain, domain.train(rng), "questions") for _ in range(2)]
            rows.append(ex.build_row(self.tokenizer, 0, branches))
        pictures = augment(rng, np.concatenate([images, np.stack(extra)]))
        known = torch.from_numpy(labels.astype(np.int64))
        unseen = unseen_values(known[:n_pictures])
        said = torch.cat([unseen[name] for name in SAID], dim=1)
        said = torch.cat([said, torch.zeros(len(rows) - n_pictures, said.shape[1], dtype=torch.bool)])
        shown = [[i] for i in range(n_pictures)]  # which pictures a row shows
        shown += [[n_pictures + i, n_pictures + n_pairs + i] for i in range(n_pairs)]
        shown += [[] for _ in range(n_captions + n_questions)]
        buckets = []
        for chosen in np.array_split(np.argsort([len(row.ids) for row in rows]), self.mix["buckets"]):
            bucket = collate([rows[i] for i in chosen])
            bucket["shown"] = torch.tensor([p for i in chosen for p in shown[i]], dtype=torch.long)
            buckets.append(bucket | {"unseen": said[chosen]})
        return {"pixels": patches(pictures), "labels": known, "buckets": buckets}


def collate(rows: list[ex.Row]) -> dict[str, Tensor]:
    """Right-padded rows: ids, segments, weights (B, L) and positions (3, B, L); padding has segment -1."""
    length = -(-max(len(row.ids) for row in rows) // 32) * 32
    ids, segments = np.zeros((len(rows), length), np.int64), np.full((len(rows), length), -1, np.int64)
    weights, positions = np.zeros((len(rows), length), np.float32), np.zeros((3, len(rows), length), np.int64)
    for i, row in enumerate(rows):
        n = len(row.ids)
        ids[i, :n], segments[i, :n], weights[i, :n] = row.ids, row.segments, row.weights
        positions[:, i, :n] = np.array(row.positions).T
    found = {"ids": ids, "segments": segments, "weights": weights, "positions": positions}
    return {name: torch.from_numpy(array) for name, array in found.items()}


def branch_mask(segments: Tensor) -> Tensor:
    """(B, L) segments -> (B, 1, L, L) True where a token may look: back, at the prefix or its own branch,
    never at padding.
    """
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    same = (segments[:, None, :] == 0) | (segments[:, None, :] == segments[:, :, None])
    return (causal & same)[:, None]


def hidden_states(model, vision_tokens: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """(B, L, D) of packed rows; vision_tokens (pictures that the rows show, 16, D), in the rows' order."""
    embeds = model.model.language_model.embed_tokens(batch["ids"])
    where = (batch["ids"] == model.config.image_token_id)[..., None]
    embeds = embeds.masked_scatter(where, vision_tokens.to(embeds.dtype))
    return FastLanguage(model.model.language_model)(
        embeds, branch_mask(batch["segments"]), batch["positions"]
    )


def said_tokens(tokenizer, vocabulary: int) -> list[tuple[Tensor, Tensor]]:
    """For each field of `SAID`: its columns in a row's unseen values, and which value a token names
    (vocabulary,), -1 where it names none. ("flowers" names a kind and a pattern: a row is of one domain.)
    """
    found, start = [], 0
    for field, values in SAID.items():
        named = torch.full((vocabulary,), -1)
        for value, forms in values.items():
            for form in forms:
                ids = tokenizer(f" {form}").input_ids
                if len(ids) == 1:
                    named[ids[0]] = FIELDS[field].index(value)
        found.append((torch.arange(start, start + len(values)), named))
        start += len(values)
    return found


def answer_loss(
    model, vision_tokens: Tensor, buckets: list[dict[str, Tensor]], said: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, dict[str, float]]:
    """Weighted cross-entropy of the answer tokens, and accuracies for the log. Rows of like length share a
    bucket, so that little is computed for padding.
    """
    parts = []
    for batch in buckets:
        hidden = hidden_states(model, vision_tokens[batch["shown"]], batch)
        where = batch["weights"][:, 1:] > 0
        rows = where.nonzero()[:, 0]
        parts.append(
            (
                hidden[:, :-1][where],
                batch["ids"][:, 1:][where],
                batch["weights"][:, 1:][where],
                batch["unseen"][rows],
            )
        )
    hidden, target, weight, unseen_rows = (torch.cat(part) for part in zip(*parts, strict=True))
    logits = model.lm_head(hidden).float()
    for columns, named in said:
        value, unseen = named[target], unseen_rows[:, columns]
        unseen = unseen & (value >= 0)[:, None]
        unseen.scatter_(1, value.clamp(min=0)[:, None], False)  # an edit may ask for a combination never seen
        names, touched = named >= 0, unseen.any(1)
        some = logits[touched]
        some[:, names] = some[:, names].masked_fill(unseen[touched][:, named[names]], float("-inf"))
        logits = logits.index_put((touched.nonzero()[:, 0],), some)
    losses = F.cross_entropy(logits, target, reduction="none")
    hit = (logits.argmax(-1) == target).float()
    verdict = weight == ex.VERIFY_WEIGHT
    first = verdict & (target != model.config.text_config.eos_token_id)
    written = ~verdict & (weight != ex.SAY_WEIGHT)
    stats = {"token": hit[written].mean().item(), "verdict": hit[first].mean().item()}
    return (losses * weight).sum() / weight.sum(), stats


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def average(parameters: list[nn.Parameter], *values: float) -> list[float]:
    """Average the gradients, and ``values``, over the processes of `torchrun` (without it: as they are)."""
    if not dist.is_initialized():
        return list(values)
    grads = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([*(g.flatten() for g in grads), torch.tensor(values)])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = flat.split([*(g.numel() for g in grads), len(values)])
    for grad, part in zip(grads, parts, strict=False):
        grad.copy_(part.view_as(grad))
    return parts[-1].tolist()


def unseen_pictures(number: int = 200) -> tuple[Tensor, Tensor]:
    """Patches and labels of new pictures of held-out combinations, `number` of each domain, for the log
    alone.
    """
    rng = np.random.default_rng(99)
    pixels, labels = [], []
    for domain in DOMAINS:
        for i in range(number):
            thing = domain.held_out_thing(rng)
            pixels.append(np.asarray(jpeg(domain.draw(thing, seed=990_000 + i))))
            labels.append(domain.encode(thing))
    return patches(np.stack(pixels)), torch.tensor(labels)


def said_of(hits: np.ndarray) -> str:
    """The hits of the fields as a line of the log."""
    return " ".join(f"{name} {100 * value:.0f}" for name, value in zip(FIELDS, hits, strict=True))


def check_equal(model, fast: FastVision, tokenizer) -> None:
    """The training shortcuts against the model's own forward: one picture, one branch."""
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, size=(IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    processed = image_processor()(images=[picture], return_tensors="pt")
    torch.testing.assert_close(patches(picture[None]), processed["pixel_values"], atol=1e-5, rtol=1e-5)
    branches = [ex.Branch("describe the picture", "two cats"), ex.Branch("true or false: it is red", "false")]
    batch = collate([ex.build_row(tokenizer, 1, branches)])
    with torch.no_grad():
        packed = hidden_states(model, fast(processed["pixel_values"]), batch)
        for number, branch in enumerate(branches, start=1):
            text = ex.USER + ex.PICTURE + branch.prompt + ex.TURN + branch.answer + "<|im_end|>"
            ids = torch.tensor([tokenizer(text).input_ids])
            types = (ids == model.config.image_token_id).int()
            alone = model.model(
                input_ids=ids,
                pixel_values=processed["pixel_values"],
                image_grid_thw=processed["image_grid_thw"],
                mm_token_type_ids=types,
            ).last_hidden_state
            mine = packed[0, batch["segments"][0] == number]
            torch.testing.assert_close(mine, alone[0, -len(mine) :], atol=2e-4, rtol=2e-4)
    model.model.rope_deltas = None


@torch.no_grad()
def mean_weights(model: nn.Module, checkpoint: Path) -> None:
    """The weights of `model` become the mean of its own and those of a checkpoint of `save_checkpoint`."""
    other = load_file(checkpoint)
    for name, value in model.state_dict().items():
        if name != "lm_head.weight":  # tied to the embeddings
            value.lerp_(other[f"model.{name}"].to(value), 0.5)


def export(model, tokenizer, folder: Path) -> None:
    """The folder that `AutoModelForImageTextToText` and `AutoProcessor` load, in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict() | {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "dtype": "bfloat16",
    }
    for part in (config, config["text_config"], config["vision_config"]):
        part.pop("_name_or_path", None)
        if "dtype" in part:
            part["dtype"] = "bfloat16"
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save_pretrained(folder)
    processor = image_processor().to_dict() | {"image_processor_type": "Qwen2VLImageProcessor"}
    processor["processor_class"] = "Qwen2_5_VLProcessor"
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2, default=str) + "\n")
    generation = {
        "eos_token_id": model.config.text_config.eos_token_id,
        "pad_token_id": 0,
        "do_sample": False,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    os.chmod(folder / "model.safetensors", 0o644)


def save_checkpoint(out: Path, model, heads, optimizer, progress: dict) -> None:
    """Weights and optimiser as safetensors, written beside and renamed, so that a kill leaves the last one
    whole.
    """
    out.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{k}": v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    tensors |= {f"heads.{k}": v.contiguous() for k, v in heads.state_dict().items()}
    for i, state in enumerate(optimizer.state_dict()["state"].values()):
        tensors |= {f"optimizer.{i}.{k}": v for k, v in state.items()}
    save_file(tensors, out / "checkpoint.tmp", metadata={"progress": json.dumps(progress)})
    os.replace(out / "checkpoint.tmp", out / "checkpoint.safetensors")


def load_checkpoint(path: Path, model, heads, optimizer=None) -> bool:
    """Load weights, and the optimiser's state where it is of the same stage: whether it was."""
    tensors = load_file(path)
    model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")}, strict=False)
    heads.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("heads.")})
    if optimizer is not None:
        state = optimizer.state_dict()
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimizer."):
                _, index, name = key.split(".", 2)
                slots.setdefault(int(index), {})[name] = value
        if len(slots) == sum(len(g["params"]) for g in state["param_groups"]):
            optimizer.load_state_dict({"state": slots, "param_groups": state["param_groups"]})
            return True
    return False


#: Rows of a step of the full stage, statements a row, and the number of buckets that rows are sorted into: as
#: in the last stretch (training.json beside the weights has every stretch's own).
MIX = {
    "pictures": 34,
    "pairs": 2,
    "captions": 5,
    "questions": 3,
    "verify_picture": 3,
    "verify_caption": 2,
    "buckets": 4,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stage", choices=("vision", "full"), default="full")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="length of this stretch; the schedule ends with it"
    )
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--batch", type=int, default=96, help="pictures a step of the vision stage")
    parser.add_argument("--from", dest="start", type=Path, help="folder of shipped weights to go on from")
    parser.add_argument(
        "--fresh", action="store_true", help="keep weights of the checkpoint, forget its optimiser"
    )
    parser.add_argument(
        "--export", type=Path, help="write the model as it is shipped, and stop if --minutes is 0"
    )
    parser.add_argument(
        "--average", type=Path, help="with --export: --out folder of an earlier stretch to average with"
    )
    parser.add_argument("--fashion", type=float, default=0.5, help="share of fashion among the rows")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    if args.start:
        torch.manual_seed(args.seed)
        model = AutoModelForImageTextToText.from_pretrained(
            args.start, dtype=torch.float32, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(args.start, local_files_only=True)
    else:
        known = (args.out / "tokenizer.json").exists()  # a checkpoint belongs to the ids it was made with
        tokenizer = AutoTokenizer.from_pretrained(args.out, local_files_only=True) if known else None
        model, tokenizer = build_vlm(args.seed, tokenizer)
    if rank() == 0:
        tokenizer.save_pretrained(args.out)
    heads = AttributeHeads(model.config.vision_config.out_hidden_size)
    seeing = [*model.model.visual.parameters(), *heads.parameters()]
    parts = [(1.0, seeing)]
    if args.stage == "full":  # the tower has learnt to see and only follows
        parts = [(0.25, seeing), (1.0, list(model.model.language_model.parameters()))]
    trained = [p for _, parameters in parts for p in parameters]
    groups = [
        {"params": [p for p in parameters if (p.ndim > 1) == matrix], "weight_decay": decay, "scale": scale}
        for scale, parameters in parts
        for matrix, decay in ((True, 0.05), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), fused=True)
    checkpoint = args.out / "checkpoint.safetensors"
    warm = checkpoint.exists() and load_checkpoint(
        checkpoint, model, heads, None if args.fresh else optimizer
    )
    fast = FastVision(model.model.visual)
    check_equal(model, fast, tokenizer)
    if args.minutes > 0:
        train(args, model, heads, fast, tokenizer, optimizer, trained, warm)
    if args.export and rank() == 0:
        history = json.loads((args.out / "history.json").read_text(encoding="utf-8"))
        if args.average:
            mean_weights(model, args.average / "checkpoint.safetensors")
            history.append({"stage": "average", "of": ["the last stretch", "the one before it"]})
        export(model, tokenizer, args.export)
        (args.export / "training.json").write_text(json.dumps(history, indent=1) + "\n", encoding="utf-8")


def train(args, model, heads, fast, tokenizer, optimizer, trained, warm: bool) -> None:
    mix = {"pictures": args.batch} if args.stage == "vision" else MIX
    mix = mix | {"fashion": args.fashion}
    batches = iter(
        DataLoader(
            Batches(args.pool, tokenizer, args.stage, args.seed, mix),
            batch_size=None,
            num_workers=1,
            prefetch_factor=4,
        )
    )
    model.train()
    started, saved, step, seen = time.time(), time.time(), 0, 0
    window: list[tuple] = []
    said = said_tokens(tokenizer, model.lm_head.out_features)
    new_pixels, new_labels = unseen_pictures()
    spent = 0.0
    while spent < 1:
        rate = args.lr * min(1.0, (step + 1) / (20 if warm else 150)) * min(1.0, 0.02 + 1.25 * (1 - spent))
        for group in optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        batch = next(batches)
        with torch.autocast("cpu", torch.bfloat16):
            tokens = fast(batch["pixels"])
            loss, hits = heads.loss(tokens[: len(batch["labels"])], batch["labels"])
            stats = {"token": 0.0, "verdict": 0.0}
            if args.stage == "full":
                head_loss = loss
                language, stats = answer_loss(model, tokens, batch["buckets"], said)
                loss = language + 0.3 * head_loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        (spent,) = average(trained, (time.time() - started) / 60 / args.minutes)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        step += 1
        seen += len(batch["labels"]) * (dist.get_world_size() if dist.is_initialized() else 1)
        window.append((loss.item(), stats["token"], stats["verdict"], hits.numpy()))
        if step % 50 == 0 and rank() == 0:
            losses, token, verdict, fields = (np.mean([w[i] for w in window], axis=0) for i in range(4))
            minutes = (time.time() - started) / 60
            print(
                f"{minutes:5.1f} min step {step} pictures {seen} loss {losses:.4f} token {token:.4f} "
                f"verdict {verdict:.3f} | {said_of(fields)}",
                flush=True,
            )
            window.clear()
        if step % 200 == 0 and rank() == 0:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                _, fields = heads.loss(fast(new_pixels), new_labels)
            print(f"      held-out combinations | {said_of(fields.numpy())}", flush=True)
        if time.time() - saved > 180 and rank() == 0:
            save_checkpoint(args.out, model, heads, optimizer, {"stage": args.stage, "step": step})
            saved = time.time()
    if rank() > 0:
        return
    save_checkpoint(args.out, model, heads, optimizer, {"stage": args.stage, "step": step})
    seconds = round(time.time() - started)
    add_history(
        args.out, stage=args.stage, seconds=seconds, steps=step, pictures=seen, learning_rate=args.lr, mix=mix
    )


if __name__ == "__main__":
    main()
