"""Architecture and tokenizer of mini-CLIP and mini-VLM: what the training scripts start from.

Both models read text through one byte-level BPE vocabulary: every word of the mini world is one token, any
other typed text falls back to pieces and bytes. The frames of the JSON answers are single tokens too, which
keeps answers short.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from cir_utils.prompts import SLOTS, load_prompt
from data_scripts import texts, world

IMAGE_SIZE = 112
PATCH, MERGE = 14, 2
IMAGE_TOKENS = (IMAGE_SIZE // PATCH // MERGE) ** 2
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
JSON_FRAMES = (
    '{"understanding": "',
    '", "explicit_targets": [',
    '], "implicit_targets": [',
    '], "preserved": [',
    '], "selected": [',
    '], "discarded": [',
    '], "description": "',
    '"}',
    '", "',
    '{"target_caption": "',
    '", "modifications": [',
    '", "present": [',
    '], "absent": [',
    "]}",
    '{"statements": [{"statement": "',
    '", "answer": true}',
    '", "answer": false}',
    ', {"statement": "',
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def prompt(name: str, **slots: str) -> str:
    """The text of a `mini` prompt with its slots filled, as the agents fill it."""
    return load_prompt("mini", name).fill(**slots)


def corpus(rng: np.random.Generator, scenes: int) -> list[str]:
    """Texts of every kind that the models read or write, for the tokenizer."""
    lines = [load_prompt("mini", name).text for name in sorted(SLOTS)]
    lines += [
        "system\nuser\nassistant\n",
        "true",
        "false",
        " true false none",
        "0 1 2 3 4 5 6 7 8 9",
        *texts.VAGUE,
    ]
    lines += list(texts.VAGUE_HELD_OUT) + 40 * texts.vocabulary_lines()
    for _ in range(scenes):
        scene = world.random_scene(rng)
        edit = texts.random_edit(rng, scene)
        lines += [texts.caption(scene), texts.dense_caption(rng, scene), texts.short_text(rng, scene)]
        lines += [texts.modification_text(rng, scene, edit, held_out=bool(rng.random() < 0.3))]
        for answer in (
            texts.selective_cot,
            texts.text_imagination,
            texts.vision_imagination,
            texts.questions,
        ):
            lines.append(json.dumps(answer(scene, edit)))
    return lines


def build_tokenizer(vocab_size: int = 1200) -> Tokenizer:
    """The shared byte-level BPE (deterministic): Qwen's special tokens first, then bytes, words and JSON
    frames.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(np.random.default_rng(0), 4000), trainer)
    tokenizer.add_tokens([AddedToken(frame, normalized=False) for frame in JSON_FRAMES])
    return tokenizer


def vlm_tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[s for s in SPECIAL if s not in ("<|im_end|>", "<|endoftext|>")],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def vlm_config(vocab_size: int) -> Qwen2_5_VLConfig:
    ids = {name: i for i, name in enumerate(SPECIAL)}
    return Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=vocab_size,
            hidden_size=256,
            intermediate_size=576,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=1024,
            rms_norm_eps=1e-6,
            use_sliding_window=False,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
            bos_token_id=None,
            eos_token_id=ids["<|im_end|>"],
            pad_token_id=ids["<|endoftext|>"],
            tie_word_embeddings=True,
        ),
        vision_config=dict(
            depth=4,
            hidden_size=192,
            intermediate_size=512,
            num_heads=6,
            patch_size=PATCH,
            spatial_merge_size=MERGE,
            temporal_patch_size=2,
            window_size=IMAGE_SIZE,
            out_hidden_size=256,
            fullatt_block_indexes=[1, 3],
            in_channels=3,
        ),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def build_vlm(
    seed: int = 0, tokenizer: PreTrainedTokenizerFast | None = None
) -> tuple[Qwen2_5_VLForConditionalGeneration, PreTrainedTokenizerFast]:
    """A new model, and its tokenizer (a new one unless given)."""
    torch.manual_seed(seed)
    tokenizer = tokenizer or vlm_tokenizer()
    vocab = -(-len(tokenizer) // 64) * 64
    return Qwen2_5_VLForConditionalGeneration(vlm_config(vocab)), tokenizer


def image_processor() -> Qwen2VLImageProcessorPil:
    size = {"shortest_edge": IMAGE_SIZE**2, "longest_edge": IMAGE_SIZE**2}
    return Qwen2VLImageProcessorPil(size=size, patch_size=PATCH, merge_size=MERGE, temporal_patch_size=2)
