"""Train mini-CLIP, an open_clip model of its own size, on `train` worlds only.

    python -m data_scripts.train_mini_clip --pool work/pool --out work/clip --minutes 25 \\
        --export cir_utils/mini/models/mini-clip

Contrastive loss over pictures and texts of every length: full captions in many forms, short noun phrases, and
bare modification phrases, a third of the descriptive ones naming the drawing style, as alt-texts do.
Attribute heads on the picture tokens and the image embedding help; `--stage vision` trains with them alone.
Checkpoints its weights every few minutes and goes on from those in `--out`, with a fresh optimiser; `--from
FOLDER` goes on from shipped weights, with their tokenizer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers, processors
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from data_scripts.domains import COLUMN, DOMAINS, FIELDS, UNKNOWN, Domain
from data_scripts.mini_models import IMAGE_SIZE, SPECIAL, build_tokenizer
from data_scripts.pool import add_history, open_pool
from data_scripts.train_mini_vlm import MEAN, STD, AttributeHeads, attention, attribute_loss, augment

PAD, START, END = (SPECIAL.index(name) for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
CONTEXT = 77


def clip_tokenizer() -> PreTrainedTokenizerFast:
    """The shared vocabulary; a text starts with a space, so that its first word is the same token as anywhere
    else.
    """
    tokenizer = build_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    ends = [(SPECIAL[START], START), (SPECIAL[END], END)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[START]} $A {SPECIAL[END]}", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL[START],
        eos_token=SPECIAL[END],
        pad_token=SPECIAL[PAD],
        model_max_length=CONTEXT,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def clip_config(vocab_size: int) -> dict:
    return {
        "model_cfg": {
            "embed_dim": 128,
            "vision_cfg": {
                "image_size": IMAGE_SIZE,
                "patch_size": 16,
                "layers": 6,
                "width": 192,
                "head_width": 64,
            },
            "text_cfg": {
                "context_length": CONTEXT,
                "vocab_size": vocab_size,
                "width": 192,
                "heads": 3,
                "layers": 4,
                "hf_tokenizer_name": "mini-clip",
                "pool_type": "eos",
                "eos_id": END,
                "pad_id": PAD,
            },
        },
        "preprocess_cfg": {
            "mean": MEAN.tolist(),
            "std": STD.tolist(),
            "interpolation": "bicubic",
            "resize_mode": "shortest",
        },
    }


def copy_frame(source: Path, folder: Path) -> None:
    """Config and tokenizer of another folder: weights and token ids belong together."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("open_clip_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)


def write_frame(folder: Path) -> None:
    """New config and tokenizer, as open_clip's `local-dir:` wants them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = clip_tokenizer()
    tokenizer.save_pretrained(folder)
    (folder / "open_clip_config.json").write_text(json.dumps(clip_config(len(tokenizer)), indent=2) + "\n")


def training_text(rng: np.random.Generator, domain: Domain, thing, long: bool) -> str:
    """One text for a picture: caption, dense caption, short phrase, modification phrase whose result the
    picture shows, or (``long``, for half of them) several captions in a row.
    """
    texts = domain.texts
    roll = rng.random() + 0.5 * long
    if roll < 0.15:
        return texts.caption(thing)
    if roll < 0.32:
        return texts.dense_caption(rng, thing)
    if roll < 0.70:
        return texts.short_text(rng, thing)
    if roll < 1.0:
        return result_of_edit(rng, domain, thing)
    parts = [texts.dense_caption(rng, thing) for _ in range(rng.integers(2, 5))]
    return ". ".join(parts)


def result_of_edit(rng: np.random.Generator, domain: Domain, thing) -> str:
    """A modification phrase that the picture answers: what the reference was is invented."""
    reference = domain.texts.random_edit(rng, thing).apply(thing)
    back = domain.difference(reference, thing)
    return domain.texts.modification_text(rng, reference, back)


class Batches(IterableDataset):
    def __init__(self, pool: Path, frame: Path, size: int, seed: int) -> None:
        self.pool, self.frame, self.size, self.seed = pool, frame, size, seed

    def __iter__(self):
        torch.set_num_threads(1)
        rng = np.random.default_rng([self.seed, int(time.time())])
        tokenizer = AutoTokenizer.from_pretrained(self.frame, local_files_only=True)
        pool = open_pool(self.pool)
        named = [
            np.flatnonzero(labels[:, COLUMN[f"{d.name}/colour"]] != UNKNOWN)
            for d, (_, labels) in zip(DOMAINS, pool, strict=True)
        ]
        while True:
            number = int(rng.integers(len(DOMAINS)))  # a batch is of one domain: hard negatives
            domain, (pixels, labels) = DOMAINS[number], pool[number]
            chosen = np.sort(rng.choice(named[number], self.size, replace=False))
            long = bool(rng.random() < 0.1)  # whole batches, so that the others need no padding
            said = [training_text(rng, domain, domain.decode(row), long) for row in labels[chosen]]
            tokens = tokenizer(
                said, padding="longest", truncation=True, max_length=CONTEXT, return_tensors="pt"
            ).input_ids
            pictures = torch.from_numpy(augment(rng, pixels[chosen])).float() / 255
            yield {
                "pixels": ((pictures - MEAN) / STD).permute(0, 3, 1, 2).contiguous(),
                "tokens": tokens,
                "labels": torch.from_numpy(labels[chosen].astype(np.int64)),
            }


def encode_text(model: nn.Module, tokens: Tensor) -> Tensor:
    """`model.encode_text` on the positions in use alone (pads come last and the attention is causal: the same
    numbers).
    """
    length = tokens.shape[1]
    x = model.token_embedding(tokens) + model.positional_embedding[:length]
    x = model.ln_final(model.transformer(x, attn_mask=model.attn_mask[:length, :length]))
    ends = (tokens == END).int().argmax(dim=1)
    return x[torch.arange(len(tokens)), ends] @ model.text_projection


class Heads(nn.Module):
    """Attribute classifiers on the image embedding, and attention-pooled ones on the picture tokens, which
    learn small things much sooner, and the tower with them.
    """

    def __init__(self, embed_dim: int, width: int) -> None:
        super().__init__()
        self.classifiers = nn.ModuleList(nn.Linear(embed_dim, len(values)) for values in FIELDS.values())
        self.tokens = AttributeHeads(width)

    def loss(self, features: Tensor, tokens: Tensor, labels: Tensor) -> tuple[Tensor, np.ndarray, np.ndarray]:
        """(loss, hits of the embedding's classifiers, hits of the tokens' classifiers)."""
        loss, hits = attribute_loss([classify(features) for classify in self.classifiers], labels)
        token_loss, token_hits = self.tokens.loss(tokens, labels)
        return 0.5 * loss + token_loss, hits.numpy(), token_hits.numpy()


def export(model: nn.Module, folder: Path) -> None:
    state = {k: v.detach().to(torch.float16).contiguous() for k, v in model.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors", metadata={"format": "pt"})
    os.chmod(folder / "open_clip_model.safetensors", 0o644)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--stage", choices=("vision", "full"), default="full", help="vision: attributes alone"
    )
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--batch", type=int, default=160)
    parser.add_argument("--from", dest="start", type=Path, help="folder of shipped weights to go on from")
    parser.add_argument("--export", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    if args.start:
        copy_frame(args.start, args.out)
    elif not (args.out / "tokenizer.json").exists():
        write_frame(args.out)
    model = open_clip.create_model(f"local-dir:{args.out}", load_weights=False, precision="fp32")
    heads = Heads(model.visual.output_dim, model.visual.conv1.out_channels)
    model.visual.output_tokens = True
    trained = [*model.parameters(), *heads.parameters()]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), fused=True)
    checkpoint = args.out / "checkpoint.safetensors"
    if args.start:
        model.load_state_dict(load_file(args.start / "open_clip_model.safetensors"))
    elif checkpoint.exists():
        tensors = load_file(checkpoint)
        model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
        heads.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("heads.")}, strict=False)
    if args.minutes > 0:
        train(args, model, heads, trained, optimizer, checkpoint)
    if args.export:
        copy_frame(args.out, args.export)
        export(model, args.export)
        shutil.copy(args.out / "history.json", args.export / "training.json")


def train(args, model, heads, trained, optimizer, checkpoint: Path) -> None:
    batches = iter(
        DataLoader(
            Batches(args.pool, args.out, args.batch, args.seed),
            batch_size=None,
            num_workers=1,
            prefetch_factor=4,
        )
    )
    F.scaled_dot_product_attention = attention
    started = saved = time.time()
    step, window = 0, []
    model.train()
    while (spent := (time.time() - started) / 60 / args.minutes) < 1:
        rate = args.lr * min(1.0, (step + 1) / 150) * min(1.0, 0.02 + 1.25 * (1 - spent))
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = next(batches)
        with torch.autocast("cpu", torch.bfloat16):
            pooled, tokens = model.visual(batch["pixels"])
            image = F.normalize(pooled.float(), dim=-1)
            loss, hits, token_hits = heads.loss(image * 10, tokens, batch["labels"])
            contrast, right = torch.zeros(()), 0.0
            if args.stage == "full":
                text = F.normalize(encode_text(model, batch["tokens"]).float(), dim=-1)
        if args.stage == "full":
            logits = model.logit_scale.exp() * image @ text.T
            target = torch.arange(len(logits))
            contrast = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
            right = (logits.argmax(1) == target).float().mean().item()
            loss = contrast + 0.5 * loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, 4.6052)
        step += 1
        window.append((contrast.item(), right, hits, token_hits))
        if step % 50 == 0:
            contrasts, right, *fields = (np.nanmean([w[i] for w in window], axis=0) for i in range(4))
            named = " ".join(
                f"{n} {100 * a:.0f}/{100 * b:.0f}" for n, a, b in zip(FIELDS, *fields, strict=True)
            )
            minutes = (time.time() - started) / 60
            print(
                f"{minutes:5.1f} min step {step} contrast {contrasts:.3f} in-batch {right:.3f} | {named}",
                flush=True,
            )
            window.clear()
        if time.time() - saved > 180 or (time.time() - started) / 60 >= args.minutes:
            tensors = {f"model.{k}": v.contiguous() for k, v in model.state_dict().items()}
            tensors |= {f"heads.{k}": v.contiguous() for k, v in heads.state_dict().items()}
            save_file(tensors, checkpoint.with_suffix(".tmp"))
            os.replace(checkpoint.with_suffix(".tmp"), checkpoint)
            saved = time.time()
    seconds = round(time.time() - started)
    add_history(
        args.out,
        stage=args.stage,
        seconds=seconds,
        steps=step,
        pictures=step * args.batch,
        learning_rate=args.lr,
        batch=args.batch,
    )


if __name__ == "__main__":
    main()
