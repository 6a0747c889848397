"""Tiny random models of the real classes that the local client is written for, each with its processor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from tiny_models import CORPUS, write_tiny_vlm
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
    "tie_word_embeddings": True,
    "bos_token_id": None,
}
VISION = {"hidden_size": 32, "intermediate_size": 48, "initializer_range": 0.3}


def template(picture: str, opened: str, closed: str, answer: str) -> str:
    """A chat template in one family's style: ``opened`` has the role in it as ``{role}``."""
    before, after = opened.split("{role}") if "{role}" in opened else (opened, "")
    role = "{{ message['role'] }}" if "{role}" in opened else ""
    return (
        "{% for message in messages %}"
        f"{before}{role}{after}"
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
        f"{picture}"
        "{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
        f"{closed}"
        "{% endfor %}{% if add_generation_prompt %}"
        f"{answer}"
        "{% endif %}"
    )


CHATML = ("<|im_start|>{role}\n", "<|im_end|>\n", "<|im_start|>assistant\n")


def tokenizer(
    specials: list[str], end: str, chat: str, names: dict[str, str] | None = None
) -> PreTrainedTokenizerFast:
    """A byte-level BPE with a family's special tokens; ``names`` are those that its processor asks for by
    name, such as ``image_token``."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=["<pad>", *specials],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([line for line in CORPUS for _ in range(5)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=end,
        pad_token="<pad>",
        extra_special_tokens=names or {},
        chat_template=chat,
        padding_side="right",  # as many are published; the client must turn it
        clean_up_tokenization_spaces=False,
    )


def save(folder: Path, processor, model) -> Path:
    processor.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def write_qwen3_vl(folder: Path) -> Path:
    words = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
    words.append("<|video_pad|>")
    chat = template("<|vision_start|><|image_pad|><|vision_end|>", *CHATML)
    tok = tokenizer(words, "<|im_end|>", chat)
    tok.image_token, tok.video_token = "<|image_pad|>", "<|video_pad|>"
    ids = {word: tok.convert_tokens_to_ids(word) for word in words}
    config = Qwen3VLConfig(
        text_config=TEXT
        | {
            "vocab_size": len(tok),
            "head_dim": 8,
            "eos_token_id": ids["<|im_end|>"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
        },
        vision_config=VISION
        | {
            "depth": 2,
            "num_heads": 2,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 32,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    size = {"shortest_edge": 96 * 96, "longest_edge": 96 * 96}
    images = Qwen2VLImageProcessorPil(size=size, patch_size=16, merge_size=2)
    torch.manual_seed(0)
    return save(
        folder,
        Qwen3VLProcessor(images, tok, Qwen3VLVideoProcessor(), chat_template=chat),
        Qwen3VLForConditionalGeneration(config),
    )


def write_internvl(folder: Path) -> Path:
    """Pictures are cut into tiles of 32 x 32, 4 tokens each, as the published ones at 448 x 448."""
    named = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    chat = template("<IMG_CONTEXT>\n", *CHATML)
    tok = tokenizer(["<|im_start|>", "<|im_end|>", *named.values()], "<|im_end|>", chat, named)
    config = InternVLConfig(
        text_config=TEXT
        | {
            "model_type": "qwen2",
            "vocab_size": len(tok),
            "eos_token_id": tok.eos_token_id,
        },
        vision_config=VISION
        | {
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": [32, 32],
            "patch_size": [8, 8],
            "attention_dropout": 0.0,
        },
        image_token_id=tok.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        downsample_ratio=0.5,
        tie_word_embeddings=True,
    )
    images = GotOcr2ImageProcessorPil(
        size={"height": 32, "width": 32}, crop_to_patches=True, min_patches=1, max_patches=4
    )
    processor = InternVLProcessor(
        images, tok, InternVLVideoProcessor(), image_seq_length=4, chat_template=chat
    )
    torch.manual_seed(0)
    return save(folder, processor, InternVLForConditionalGeneration(config))


def write_smolvlm(folder: Path) -> Path:
    """Pictures are cut into tiles of 32 x 32 and shown once more as a whole."""
    words = ["<|im_start|>", "<end_of_utterance>", "<image>", "<fake_token_around_image>", "<global-img>"]
    words += [f"<row_{row}_col_{col}>" for row in range(1, 5) for col in range(1, 5)]
    chat = template("<image>", "<|im_start|>{role}: ", "<end_of_utterance>\n", "assistant: ")
    tok = tokenizer(words, "<end_of_utterance>", chat)
    config = SmolVLMConfig(
        text_config=TEXT
        | {
            "model_type": "llama",
            "vocab_size": len(tok),
            "eos_token_id": tok.eos_token_id,
            "pad_token_id": 0,
        },
        vision_config=VISION
        | {"num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8},
        image_token_id=tok.convert_tokens_to_ids("<image>"),
        pad_token_id=0,
        scale_factor=2,
        tie_word_embeddings=True,
    )
    images = SmolVLMImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    processor = SmolVLMProcessor(images, tok, SmolVLMVideoProcessor(), image_seq_len=4, chat_template=chat)
    torch.manual_seed(0)
    return save(folder, processor, SmolVLMForConditionalGeneration(config))


def write_llava(folder: Path) -> Path:
    chat = template("<image>\n", "USER: ", " ", "ASSISTANT:")
    tok = tokenizer(["</s>", "<image>"], "</s>", chat)
    config = LlavaConfig(
        text_config=TEXT
        | {
            "model_type": "llama",
            "vocab_size": len(tok),
            "eos_token_id": tok.eos_token_id,
            "pad_token_id": 0,
        },
        vision_config=VISION
        | {
            "model_type": "clip_vision_model",
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
            "projection_dim": 16,
        },
        image_token_id=tok.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )
    side = {"height": 32, "width": 32}
    processor = LlavaProcessor(
        LlavaImageProcessorPil(size={"shortest_edge": 32}, crop_size=side),
        tok,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=chat,
        num_additional_image_tokens=1,
    )
    torch.manual_seed(0)
    return save(folder, processor, LlavaForConditionalGeneration(config))


#: Family -> what writes a tiny model of it into a folder.
FAMILIES: dict[str, Callable[[Path], Path]] = {
    "qwen2_5_vl": write_tiny_vlm,
    "qwen3_vl": write_qwen3_vl,
    "internvl": write_internvl,
    "smolvlm": write_smolvlm,
    "llava": write_llava,
}
