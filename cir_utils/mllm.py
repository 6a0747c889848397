"""One narrow interface to a multimodal language model (MLLM), and the local one through transformers.

A request is pictures and a text; the pictures come first in the user turn. Two kinds of call: ``generate``
answers with text; ``verify`` gives the probability of "true" for statements, read from the logits of the
tokens ``true`` and ``false`` right after the assistant's turn opens. Answers come back in the order of the
requests and do not depend on their neighbours in a batch (up to float rounding): prompts are padded on the
left, and sampling is seeded per request.

The same class loads the shipped mini-VLM from its folder and ``Qwen/Qwen2.5-VL-7B-Instruct`` from the hub.
Models of the Qwen2-VL family share the prefix of verification prompts (``cir_utils.shared_prefix``) and
encode each picture once; others take the plain path with the same results.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoProcessor,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import logging as hf_logging

from cir_utils import shared_prefix
from cir_utils.device import in_batches
from cir_utils.errors import InputError
from cir_utils.files import sha256_file
from cir_utils.images import load_image
from cir_utils.schemas import parse_truth

#: Below this size of weights a model counts as small: float32 everywhere.
SMALL_BYTES = 1_000_000_000
#: Tokens of one batch of whole prompts: its longest prompt and answer times its rows.
BATCH_TOKENS = 16_384
#: Answers that a model which is not small works out before they are kept: what a kill can cost.
LARGE_BLOCK = 64
#: The share of a device's free memory that weights may take; the rest is for activations.
WEIGHTS_SHARE = 0.8
#: Tokens that a generated True/False answer may take, and the probability that stands for an unclear one.
TRUTH_TOKENS = 16
UNCLEAR = 0.5
#: Vision features kept in memory, in bytes; the oldest go first.
FEATURE_BYTES = 512_000_000
#: Patches of one pass of the vision tower.
PASS_PATCHES = 16_384
_HASHED = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
#: Records that may lie beside a model and decide no answer.
_RECORDS = ("figures.json", "training.json")
_SENTINEL = "\u2063TEXT\u2063"


@dataclass(frozen=True)
class Request:
    """A prompt with its pictures. ``temperature`` 0 is greedy; above it, ``seed`` fixes the sample whatever
    the batch. ``schema`` is the JSON Schema of the answer as JSON text, for models that are
    ``structured``. ``repetition_penalty`` above 1 makes tokens less likely that stand in the prompt or in the
    answer so far, as transformers and vLLM count them; 1 is none."""

    prompt: str
    images: tuple[Path, ...] = ()
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 42
    schema: str = ""
    repetition_penalty: float = 1.0


@dataclass(frozen=True)
class Answer:
    """A generated text without special tokens. ``finish_reason`` is "length" when ``max_new_tokens`` ended
    it, "refusal" when a server's filter did. ``completion_tokens`` includes the end token."""

    text: str
    finish_reason: Literal["stop", "length", "refusal"]
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class VerifyItem:
    """Statements about one candidate: the user turn is the pictures, then ``prefix`` + statement."""

    images: tuple[Path, ...]
    prefix: str
    statements: tuple[str, ...]


class Verdict(NamedTuple):
    """The probability of "true" against "false", in [0, 1], and the tokens of the whole prompt."""

    p_true: float
    prompt_tokens: int


class Unanswered(InputError):
    """Some requests stay without an answer; ``answers`` holds those that came, by position (verdicts: by the
    position of the statement, items one after the other), so that none of them is lost."""

    def __init__(self, message: str, answers: Mapping[int, Any]) -> None:
        super().__init__(message)
        self.answers = answers


class MLLM(Protocol):
    """What agents need of a model. ``identifier`` names it and its weights: it is part of every cache key.

    A model may also say ``structured`` (it takes ``Request.schema``) and ``block`` (the most requests it
    wants at a time), and raise :class:`Unanswered`.
    """

    identifier: str

    def generate(self, requests: Sequence[Request]) -> list[Answer]: ...

    def verdicts(self, items: Sequence[VerifyItem]) -> list[list[Verdict]]: ...


@dataclass
class Usage:
    """What a client has been asked since it was made: calls and logical tokens (whole prompts, shared or
    not); and what it has computed for them: ``computed_tokens``, the prompt tokens that really ran through
    the language model (a shared prefix once), ``forward_passes`` of that model (over a batch each; a
    generated token takes one), ``pictures_encoded`` and the ``vision_passes`` that this took."""

    generate_calls: int = 0
    verify_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    computed_tokens: int = 0
    forward_passes: int = 0
    vision_passes: int = 0
    pictures_encoded: int = 0


class LocalMLLM:
    """An image-text-to-text model of transformers in this process.

    ``spec`` is a folder or a hub id ``owner/name`` with an optional ``@revision``. ``dtype`` None means
    float32 on the CPU and for small models, else the checkpoint's. Weights that one CUDA device cannot hold
    are spread over all of them (which needs the package accelerate). A batch of whole prompts holds at most
    ``batch_tokens`` tokens, its longest prompt and answer times its rows; where memory does not suffice, the
    number is halved. Pictures are preprocessed by the Pillow backend, which gives the same pixels on every
    machine (the torchvision backend resizes slightly differently).

    ``identifier`` is ``name@hash/dtype``: for a folder the hash covers weights, configuration, tokenizer and
    chat template; for a hub id it is the commit.

    Raises :class:`InputError` when the folder or model is missing, incomplete, or of a kind that cannot be
    loaded.
    """

    def __init__(
        self,
        spec: str | Path,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        folder, name, version = locate(spec)
        weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        if dtype is None and (weights < SMALL_BYTES or torch.device(device).type == "cpu"):
            dtype = torch.float32
        spread = needs_spreading(weights, torch.device(device), free_cuda_bytes())
        self.processor, self.model = _load(folder, dtype, spread)
        self.model = (self.model if spread else self.model.to(device)).eval()
        self.device: torch.device = self.model.device
        self.tokenizer = self.processor.tokenizer
        self.tokenizer.padding_side = "left"
        self.batch_tokens = batch_tokens
        if weights >= SMALL_BYTES:
            self.block = LARGE_BLOCK
        self.identifier = f"{name}@{version}/{str(self.model.dtype).removeprefix('torch.')}"
        self.shares_prefix = shared_prefix.supported(self.model)
        self.usage = Usage()
        self._count_passes()
        self.stop_ids = self._find_stop_ids()
        pad = self.tokenizer.pad_token_id
        self.pad_id: int = self.stop_ids[0] if pad is None else pad
        self._features: OrderedDict[tuple[str, int, int], tuple[Tensor, tuple[int, int, int]]] = OrderedDict()
        self._feature_bytes = 0
        self._frames: dict[int, tuple[str, str]] = {}
        self._picture_tokens: dict[tuple[int, int], int] = {}
        self._specials = [token for token in self.tokenizer.all_special_tokens if token]
        self._true, self._false = self._truth_tokens()

    def describe(self) -> dict[str, Any]:
        """How it computes, for run records: precision, devices that hold weights, most tokens of a batch (as
        given, or what memory has left of it)."""
        devices = {str(parameter.device) for parameter in self.model.parameters()}
        return {
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "devices": sorted(devices),
            "batch_tokens": self.batch_tokens,
        }

    def _count_passes(self) -> None:
        """Count the calls of language model and vision tower where they happen, whoever makes them."""

        def forward(*_: Any) -> None:
            self.usage.forward_passes += 1

        def vision(*_: Any) -> None:
            self.usage.vision_passes += 1

        self.model.get_decoder().register_forward_pre_hook(forward)
        self.model.get_encoder(modality="image").register_forward_pre_hook(vision)

    # --- generation -------------------------------------------------------------------------------------

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers in the order of ``requests``. Each batch holds requests of like length and kind."""
        answers: dict[int, Answer] = {}

        def run(batch: list[int]) -> None:
            answers.update(zip(batch, self._generate([requests[i] for i in batch]), strict=True))

        prompts = self._prompt_tokens([(request.images, request.prompt) for request in requests])
        sizes = [tokens + r.max_new_tokens for tokens, r in zip(prompts, requests, strict=True)]
        order = sorted(range(len(requests)), key=lambda i: (_kind(requests[i]), sizes[i]))
        for _, group in groupby(order, key=lambda i: _kind(requests[i])):
            chosen = list(group)
            self.batch_tokens = in_batches(chosen, [sizes[i] for i in chosen], self.batch_tokens, run)
        return [answers[i] for i in range(len(requests))]

    def _generate(self, requests: list[Request]) -> list[Answer]:
        inputs = self._inputs([(request.images, request.prompt) for request in requests])
        config = GenerationConfig(
            max_new_tokens=requests[0].max_new_tokens,
            do_sample=False,
            eos_token_id=self.stop_ids,
            pad_token_id=self.pad_id,
        )
        processors = LogitsProcessorList()
        if requests[0].repetition_penalty != 1:
            processors.append(PaddedRepetitionPenalty(requests[0].repetition_penalty, self.pad_id))
        if requests[0].temperature > 0:
            processors.append(SeededSampling(requests))
        output = self.model.generate(**inputs, generation_config=config, logits_processor=processors)
        lengths = inputs["attention_mask"].sum(dim=1).tolist()
        answers = []
        for row, prompt_tokens in zip(
            output[:, inputs["input_ids"].shape[1] :].tolist(), lengths, strict=True
        ):
            end = next((place for place, token in enumerate(row) if token in self.stop_ids), None)
            tokens = row if end is None else row[:end]
            text = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            count = len(tokens) + (end is not None)
            answers.append(Answer(text, "length" if end is None else "stop", prompt_tokens, count))
        self.usage.generate_calls += len(answers)
        self.usage.prompt_tokens += sum(answer.prompt_tokens for answer in answers)
        self.usage.completion_tokens += sum(answer.completion_tokens for answer in answers)
        self.usage.computed_tokens += sum(answer.prompt_tokens for answer in answers)
        return answers

    # --- verification -----------------------------------------------------------------------------------

    def verify(self, items: Sequence[VerifyItem]) -> list[list[float]]:
        """The probability of "true" for every statement of every item, in order."""
        return [[verdict.p_true for verdict in row] for row in self.verdicts(items)]

    @torch.inference_mode()
    def verdicts(self, items: Sequence[VerifyItem]) -> list[list[Verdict]]:
        """As :meth:`verify`, with token counts. Items of equal pictures and prefix are computed together, and
        equal statements among them once. The whole list at once is fastest: batches are formed by length."""
        if not self.shares_prefix:
            return self.verdicts_plain(items)
        groups: dict[tuple[tuple[Path, ...], str], dict[str, int]] = {}
        for item in items:
            numbers = groups.setdefault((item.images, item.prefix), {})
            for statement in item.statements:
                numbers.setdefault(statement, len(numbers))
        results = self._grouped_verdicts(
            [(*key, list(numbers)) for key, numbers in groups.items() if numbers]
        )
        by_group = dict(zip((key for key, numbers in groups.items() if numbers), results, strict=True))
        answers = []
        for item in items:
            numbers = groups[item.images, item.prefix]
            answers.append([by_group[item.images, item.prefix][numbers[s]] for s in item.statements])
        self.usage.verify_calls += sum(map(len, answers))
        self.usage.prompt_tokens += sum(verdict.prompt_tokens for row in answers for verdict in row)
        self.usage.completion_tokens += sum(map(len, answers))
        return answers

    def _grouped_verdicts(self, groups: list[tuple[tuple[Path, ...], str, list[str]]]) -> list[list[Verdict]]:
        prompts = [
            self._prompt(len(images), prefix + statement)
            for images, prefix, statements in groups
            for statement in statements
        ]
        ids = self._token_ids(prompts)
        trees, totals, start = [], [], 0
        encoded = self._encode_pictures([image for images, _, _ in groups for image in images])
        for images, _, statements in groups:
            prefix, branches = shared_prefix.split_shared(ids[start : start + len(statements)])
            start += len(statements)
            pictures = [encoded[image] for image in images]
            prefix = self._widen(prefix, [len(features) for features, _ in pictures])
            tree = shared_prefix.Tree(
                prefix, branches, tuple(part for part, _ in pictures), tuple(grid for _, grid in pictures)
            )
            trees.append(tree)
            totals.append([len(prefix) + len(branch) for branch in branches])
            self.usage.computed_tokens += len(prefix) + sum(map(len, branches))
        gaps = shared_prefix.logit_gaps(self.model, trees, self._true, self._false)
        return [
            [Verdict(_sigmoid(gap), total) for gap, total in zip(row, tokens, strict=True)]
            for row, tokens in zip(gaps, totals, strict=True)
        ]

    def verify_plain(self, items: Sequence[VerifyItem]) -> list[list[float]]:
        """The readable form of :meth:`verify`: every whole prompt through the whole model, nothing shared."""
        return [[verdict.p_true for verdict in row] for row in self.verdicts_plain(items)]

    @torch.inference_mode()
    def verdicts_plain(self, items: Sequence[VerifyItem]) -> list[list[Verdict]]:
        """As :meth:`verdicts`, nothing shared: for any model of transformers."""
        pairs = [(item.images, item.prefix + statement) for item in items for statement in item.statements]
        sizes = self._prompt_tokens(pairs)
        verdicts: dict[int, Verdict] = {}

        def run(batch: list[int]) -> None:
            inputs = self._inputs([pairs[i] for i in batch])
            logits = self.model(**inputs, logits_to_keep=1).logits[:, -1].float()
            gaps = (logits[:, self._true] - logits[:, self._false]).tolist()
            lengths = inputs["attention_mask"].sum(dim=1).tolist()
            for i, gap, tokens in zip(batch, gaps, lengths, strict=True):
                verdicts[i] = Verdict(_sigmoid(gap), tokens)

        order = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][0]), sizes[i]))
        for _, group in groupby(order, key=lambda i: len(pairs[i][0])):
            chosen = list(group)
            self.batch_tokens = in_batches(chosen, [sizes[i] for i in chosen], self.batch_tokens, run)
        self.usage.verify_calls += len(pairs)
        self.usage.prompt_tokens += sum(verdict.prompt_tokens for verdict in verdicts.values())
        self.usage.computed_tokens += sum(verdict.prompt_tokens for verdict in verdicts.values())
        self.usage.completion_tokens += len(pairs)
        ordered = iter(range(len(pairs)))
        return [[verdicts[next(ordered)] for _ in item.statements] for item in items]

    # --- prompts ----------------------------------------------------------------------------------------

    def _frame(self, pictures: int) -> tuple[str, str]:
        """What the chat template writes before and after the text of a user turn with that many pictures."""
        if pictures not in self._frames:
            content = [{"type": "image"}] * pictures + [{"type": "text", "text": _SENTINEL}]
            text = self.processor.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
            before, found, after = text.partition(_SENTINEL)
            if not found or _SENTINEL in after:
                raise InputError(
                    f"the chat template of {self.identifier} does not write the user's text once, unchanged; "
                    "use a model whose template does"
                )
            self._frames[pictures] = before, after
        return self._frames[pictures]

    def _prompt(self, pictures: int, text: str) -> str:
        """A whole prompt. Role marks and picture marks typed by a user are broken up, so that they stay
        text."""
        for token in self._specials:
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        before, after = self._frame(pictures)
        return before + text + after

    def _token_ids(self, prompts: Sequence[str]) -> list[list[int]]:
        if not prompts:
            return []
        encoded = self.tokenizer(list(prompts), add_special_tokens=False, return_attention_mask=False)
        return encoded["input_ids"]

    def _prompt_tokens(self, pairs: Sequence[tuple[tuple[Path, ...], str]]) -> list[int]:
        """The tokens of whole prompts of (pictures, text), for planning batches."""
        rows = self._token_ids([self._prompt(len(images), text) for images, text in pairs])
        return [
            len(row) + sum(map(self._count_picture_tokens, images))
            for row, (images, _) in zip(rows, pairs, strict=True)
        ]

    def _count_picture_tokens(self, path: Path) -> int:
        """What a picture adds to the mark that stands for it in a prompt, measured once a size."""
        if (known := self._features.get(_file_key(path))) is not None:
            return len(known[0]) - 1
        picture = load_image(path)
        if picture.size not in self._picture_tokens:
            if self.shares_prefix:
                inputs = self.processor.image_processor(images=[picture], return_tensors="pt")
                merge = self.model.config.vision_config.spatial_merge_size**2
                count = int(inputs["image_grid_thw"][0].prod()) // merge - 1
            else:
                prompt = self._prompt(1, "")
                inputs = self.processor(text=[prompt], images=[[picture]], add_special_tokens=False)
                count = len(inputs["input_ids"][0]) - len(self._token_ids([prompt])[0])
            self._picture_tokens[picture.size] = count
        return self._picture_tokens[picture.size]

    def _inputs(self, pairs: Sequence[tuple[tuple[Path, ...], str]]) -> dict[str, Any]:
        """Model inputs of (pictures, text) pairs with equal numbers of pictures, padded on the left."""
        prompts = [self._prompt(len(images), text) for images, text in pairs]
        if self.shares_prefix:
            return self._family_inputs([images for images, _ in pairs], prompts)
        pictures = [[load_image(image) for image in images] for images, _ in pairs]
        inputs = self.processor(
            text=prompts,
            images=pictures if pictures[0] else None,
            padding=True,
            padding_side="left",
            add_special_tokens=False,
            return_tensors="pt",
        ).to(self.device)
        self.usage.pictures_encoded += sum(map(len, pictures))  # these models do so as they read them
        return {
            name: value.to(self.model.dtype) if torch.is_floating_point(value) else value
            for name, value in inputs.items()
        }

    def _family_inputs(self, images: Sequence[tuple[Path, ...]], prompts: Sequence[str]) -> dict[str, Any]:
        """As the processor's, with each picture encoded once and its features passed instead of its
        pixels."""
        encoded = self._encode_pictures([image for own in images for image in own])
        ids = [
            self._widen(row, [len(encoded[image][0]) for image in own])
            for row, own in zip(self._token_ids(prompts), images, strict=True)
        ]
        width = max(map(len, ids))
        padded = torch.tensor([[self.pad_id] * (width - len(row)) + row for row in ids])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
        inputs: dict[str, Any] = {"input_ids": padded.to(self.device), "attention_mask": mask.to(self.device)}
        if any(images):
            features = tuple(encoded[image][0].to(self.device) for own in images for image in own)
            grids = [encoded[image][1] for own in images for image in own]
            inputs["mm_token_type_ids"] = ((padded == self._image_token) & mask.bool()).int().to(self.device)
            inputs["image_grid_thw"] = torch.tensor(grids, device=self.device)
            outputs: Any = BaseModelOutputWithPooling
            inputs["mm_encoder_outputs"] = {"image": outputs(pooler_output=features)}
        return inputs

    @property
    def _image_token(self) -> int:
        return self.model.config.image_token_id

    def _widen(self, ids: list[int], sizes: Sequence[int]) -> list[int]:
        """Token ids with each picture mark repeated to that picture's number of tokens."""
        if not sizes:
            return ids
        parts, sizes_left = [], iter(sizes)
        for token in ids:
            parts.extend([token] * next(sizes_left) if token == self._image_token else [token])
        return parts

    def _encode_pictures(self, images: Sequence[Path]) -> dict[Path, tuple[Tensor, tuple[int, int, int]]]:
        """Vision features ``(tokens, D)`` and patch grid ``(t, h, w)`` of each picture, kept between
        calls."""
        keys = {image: _file_key(image) for image in dict.fromkeys(images)}
        found = {image: self._features[key] for image, key in keys.items() if key in self._features}
        pending: list[tuple[Path, Tensor, tuple[int, int, int]]] = []
        patches = 0
        for image in keys:
            if image in found:
                continue
            inputs = self.processor.image_processor(images=[load_image(image)], return_tensors="pt")
            t, h, w = inputs["image_grid_thw"][0].tolist()
            if pending and patches + t * h * w > PASS_PATCHES:
                found.update(self._vision_passes(pending))
                pending, patches = [], 0
            pending.append((image, inputs["pixel_values"], (t, h, w)))
            patches += t * h * w
        if pending:
            found.update(self._vision_passes(pending))
        for image, key in keys.items():
            if key not in self._features:
                self._features[key] = found[image]
                self._feature_bytes += found[image][0].nbytes
            self._features.move_to_end(key)
        while self._feature_bytes > FEATURE_BYTES and len(self._features) > 1:
            self._feature_bytes -= self._features.popitem(last=False)[1][0].nbytes
        return found

    def _vision_passes(
        self, pending: Sequence[tuple[Path, Tensor, tuple[int, int, int]]]
    ) -> dict[Path, tuple[Tensor, tuple[int, int, int]]]:
        """:meth:`_vision_pass` in one piece, or in as many as memory needs."""
        found: dict[Path, tuple[Tensor, tuple[int, int, int]]] = {}

        def run(batch: list[int]) -> None:
            found.update(self._vision_pass([pending[i] for i in batch]))

        sizes = [math.prod(grid) for _, _, grid in pending]
        in_batches(range(len(pending)), sizes, len(pending) * max(sizes), run)
        return found

    def _vision_pass(
        self, pending: Sequence[tuple[Path, Tensor, tuple[int, int, int]]]
    ) -> dict[Path, tuple[Tensor, tuple[int, int, int]]]:
        pixels = torch.cat([part for _, part, _ in pending]).to(self.device, self.model.dtype)
        grids = torch.tensor([grid for _, _, grid in pending], device=self.device)
        features = self.model.model.get_image_features(pixels, grids, return_dict=True).pooler_output
        self.usage.pictures_encoded += len(pending)
        return {image: (part.clone(), grid) for (image, _, grid), part in zip(pending, features, strict=True)}

    def _find_stop_ids(self) -> list[int]:
        stop = self.model.generation_config.eos_token_id
        found = [*(stop if isinstance(stop, list) else [stop]), self.tokenizer.eos_token_id]
        found.append(self.tokenizer.get_vocab().get("<|im_end|>"))
        ids = list(dict.fromkeys(token for token in found if token is not None))
        if not ids:
            raise InputError(f"MLLM {self.identifier} names no end token; add eos_token to its tokenizer")
        # The checkpoint's own sampling habits (repetition penalty, top-k) would make greedy answers something
        # else.
        self.model.generation_config = GenerationConfig(eos_token_id=ids)
        return ids

    def _truth_tokens(self) -> tuple[int, int]:
        """The tokens with which an answer "true" and an answer "false" begin."""
        opened = self._frame(0)[1]
        base, *both = self._token_ids([opened, opened + "true", opened + "false"])
        found = [ids[len(base)] for ids in both if ids[: len(base)] == base and len(ids) > len(base)]
        if len(found) != 2:
            found = [ids[0] for ids in self._token_ids(["true", "false"])]
        if found[0] == found[1]:
            raise InputError(
                f"the tokenizer of {self.identifier} begins true and false with one token; use another model"
            )
        return found[0], found[1]


class PaddedRepetitionPenalty(RepetitionPenaltyLogitsProcessor):
    """transformers' penalty without the padding on the left: counted as a token of the prompt, it would make
    an answer depend on the longest neighbour in its batch."""

    def __init__(self, penalty: float, pad_id: int) -> None:
        super().__init__(float(penalty))
        self.pad_id = pad_id

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        padding = (input_ids == self.pad_id).long().cumprod(dim=1)
        first = input_ids.gather(1, padding.sum(dim=1, keepdim=True))
        return super().__call__(torch.where(padding.bool(), first, input_ids), scores)


class SeededSampling(LogitsProcessor):
    """Sampling that depends on each request's seed alone: Gumbel noise from its own generator is added to
    ``logits / temperature``, and the largest sum is a sample of the softmax. The noise is drawn on the CPU,
    so that the device does not change it."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.temperatures = torch.tensor([request.temperature for request in requests])
        self.generators = [torch.Generator().manual_seed(request.seed) for request in requests]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        size = scores.shape[1]
        uniform = torch.stack([torch.rand(size, generator=generator) for generator in self.generators])
        noise = -torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-7)))
        return scores / self.temperatures.to(scores.device)[:, None] + noise.to(scores)


def generated_verdicts(mllm: MLLM, items: Sequence[VerifyItem]) -> list[list[Verdict]]:
    """The other way to verify: the model generates its answer, which is read by its words (1 true, 0 false,
    ``UNCLEAR`` where it is neither). :meth:`LocalMLLM.verdicts` takes the same decisions from one forward
    pass."""
    requests = [
        Request(item.prefix + statement, item.images, TRUTH_TOKENS)
        for item in items
        for statement in item.statements
    ]
    answers = iter(mllm.generate(requests))
    read = [[next(answers) for _ in item.statements] for item in items]
    truths = {True: 1.0, False: 0.0, None: UNCLEAR}
    return [
        [Verdict(truths[parse_truth(answer.text)], answer.prompt_tokens) for answer in row] for row in read
    ]


def locate(spec: str | Path) -> tuple[Path, str, str]:
    """``(folder, name, version)`` of a model. A hub id is fetched (or found in the hub's cache when offline).

    Raises :class:`InputError` for a missing folder, one without weights, and a hub id that cannot be had.
    """
    folder = Path(spec)
    if folder.is_dir():
        if not any(folder.glob("*.safetensors")) or not (folder / "config.json").is_file():
            raise InputError(
                f"MLLM folder {folder} lacks config.json or *.safetensors; "
                "give a folder written by save_pretrained"
            )
        return folder, folder.resolve().name, _folder_hash(folder)
    repo, _, revision = str(spec).partition("@")
    if not re.fullmatch(r"[\w][\w.-]*/[\w][\w.-]*", repo):
        raise InputError(f"MLLM folder {spec} does not exist; give a folder, or a hub id such as owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        path = Path(snapshot_download(repo, revision=revision or None, allow_patterns=list(_HASHED)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"MLLM {spec} is neither a folder nor a model that can be had from the hub ({reason}); "
            "check the name, the network and HF_HOME"
        ) from None
    return path, repo, path.name[:12]


def free_cuda_bytes() -> list[int]:
    """The free memory of each CUDA device, in bytes."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.cuda.mem_get_info(index)[0] for index in range(count)]


def needs_spreading(weights: int, device: torch.device, free: Sequence[int]) -> bool:
    """Whether ``weights`` bytes are more than the CUDA ``device`` can hold (``WEIGHTS_SHARE`` of ``free``
    bytes of each), and there are others to take the rest."""
    if device.type != "cuda" or len(free) < 2:
        return False
    return weights > WEIGHTS_SHARE * free[device.index or 0]


def _load(folder: Path, dtype: torch.dtype | None, spread: bool = False) -> tuple[Any, Any]:
    if not sys.stderr.isatty():
        hf_logging.disable_progress_bar()
    try:
        processor = AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with contextlib.suppress(ImportError, ValueError, OSError):
            processor.image_processor = AutoImageProcessor.from_pretrained(
                folder, backend="pil", local_files_only=True, trust_remote_code=False
            )
        loader: Any = AutoModelForImageTextToText
        model, report = loader.from_pretrained(
            folder,
            dtype=dtype or "auto",
            local_files_only=True,
            trust_remote_code=False,  # left open, transformers would ask on the terminal
            use_safetensors=True,
            output_loading_info=True,
            **({"device_map": "auto"} if spread else {}),
        )
    except (
        Exception
    ) as error:  # transformers raises OSError, ValueError, KeyError, SafetensorError, ... by cause
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"MLLM folder {folder} cannot be loaded ({reason}); restore its files, or give another model"
        ) from None
    missing = [*report["missing_keys"], *report["mismatched_keys"]]
    if missing:
        raise InputError(
            f"MLLM folder {folder} lacks weights ({len(missing)}, first {sorted(map(str, missing))[0]}); "
            "restore model.safetensors"
        )
    return processor, model


def _folder_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    hashed = {path for pattern in _HASHED for path in folder.glob(pattern) if path.name not in _RECORDS}
    for path in sorted(hashed):
        digest.update(f"{path.name} {sha256_file(path)}\n".encode())
    return digest.hexdigest()[:16]


def _file_key(path: Path) -> tuple[str, int, int]:
    try:
        stat = os.stat(path)
    except OSError:
        return str(path), -1, -1  # load_image says what is wrong
    return str(path), stat.st_size, stat.st_mtime_ns


def _kind(request: Request) -> tuple[bool, int, int, float]:
    """What requests of one batch must have in common."""
    pictures = len(request.images)
    return request.temperature > 0, request.max_new_tokens, pictures, request.repetition_penalty


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
