"""A tiny random CLIP for tests, written to a folder in the layout of the shipped mini-CLIP."""

from __future__ import annotations

import json
from pathlib import Path

import open_clip
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = (
    "a an the red blue green two three cat dog boat car on in at beach city make it is same but and".split()
)
SPECIAL = ("<pad>", "<start>", "<end>")


def write_tokenizer(folder: Path, end: bool = True) -> int:
    """A word-level tokenizer with byte fallback, saved to ``folder``; returns its number of entries."""
    names = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(f"Ġ{word}" for word in WORDS)]
    tokenizer = Tokenizer(
        models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[], ignore_merges=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>" if end else "<start> $A", special_tokens=[("<start>", 1), ("<end>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<start>",
        eos_token="<end>",
        pad_token="<pad>",
        model_max_length=77,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
    return len(names)


def tiny_config(vocabulary: int, **text: object) -> dict[str, object]:
    """The configuration of a 2-layer CLIP on 32-pixel pictures, with changes to its text part."""
    return {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "patch_size": 16, "layers": 2, "width": 32, "head_width": 16},
        "text_cfg": {
            "context_length": 77,
            "vocab_size": vocabulary,
            "width": 32,
            "heads": 2,
            "layers": 2,
            "hf_tokenizer_name": "tiny-clip",
            "pool_type": "eos",
            "eos_id": 2,
            "pad_id": 0,
            **text,
        },
    }


def write_tiny_clip(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float16, **text: object) -> Path:
    """Write configuration, tokenizer and seeded random weights to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    return _write_random(folder, tiny_config(write_tokenizer(folder), **text), seed, dtype)


def _write_random(folder: Path, config: dict[str, object], seed: int, dtype: torch.dtype) -> Path:
    """The configuration and seeded random weights for it, as ``local-dir:`` wants them."""
    table = {"model_cfg": config, "preprocess_cfg": {"interpolation": "bicubic", "resize_mode": "shortest"}}
    (folder / "open_clip_config.json").write_text(json.dumps(table, indent=2))
    torch.manual_seed(seed)
    model = open_clip.create_model(f"local-dir:{folder}", load_weights=False)
    state = {key: value.detach().to(dtype).contiguous() for key, value in model.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    return folder


#: The small form of an architecture: same parts, fewer and narrower layers.
SMALL = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "patch_size": 16, "layers": 2, "width": 32, "head_width": 16},
    "text_cfg": {"width": 32, "heads": 2, "layers": 2},
}


def write_open_clip(
    folder: Path,
    architecture: str = "ViT-B-32",
    changes: dict[str, object] = SMALL,  # noqa: B006 - read only
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
) -> Path:
    """Random weights of one of open_clip's own architectures, with ``changes`` to its configuration, in a
    folder that ``local-dir:`` loads; the texts go through open_clip's own tokenizer, as in the real model."""
    folder.mkdir(parents=True, exist_ok=True)
    config = open_clip.get_model_config(architecture)
    for name, change in changes.items():
        config[name] = {**config[name], **change} if isinstance(change, dict) else change
    return _write_random(folder, config, seed, dtype)
