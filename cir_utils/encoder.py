"""open_clip models as encoders of pictures and texts into one space of unit vectors.

One loader serves the shipped mini-CLIP (a folder) and the published models (architecture and weights tag).
Missing weights are an error, never a randomly initialised model, and weights trained with QuickGELU never run
with plain GELU.

Two choices decide the features beside the model, and both are part of :meth:`ClipEncoder.describe`, hence of
every cache key and run record: the precision and the preprocessing. For texts over the context there is no
choice but one policy: the end is cut off, the end token stays, and the text is reported as cut; who writes
texts puts the important changes first.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import open_clip
import torch
from huggingface_hub import constants as hub_constants
from huggingface_hub import try_to_load_from_cache
from open_clip.tokenizer import HFTokenizer, SigLipTokenizer, SimpleTokenizer
from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional

from cir_utils.device import resolve_device
from cir_utils.errors import InputError
from cir_utils.files import read_json, sha256_file, sha256_text
from cir_utils.images import TARGET_RATIO, load_image, pad_to_ratio

LOCAL = "local-dir:"
#: The backbones of both papers and of the systems in their tables, by the name printed there: LAION's
#: weights, which X^R's code names, then OpenAI's. SDR-CIR says "OpenCLIP" and prints no tags.
BACKBONES = {
    "ViT-B/32": ("ViT-B-32:laion2b_s34b_b79k", "ViT-B-32-quickgelu:openai"),
    "ViT-L/14": ("ViT-L-14:laion2b_s32b_b82k", "ViT-L-14-quickgelu:openai"),
    "ViT-G/14": ("ViT-bigG-14:laion2b_s39b_b160k",),
}
#: Precisions, with open_clip's name for each (normalisation layers stay in float32 in all of them).
PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
#: ``clip``: the model's own resize and centre crop; the other pads first (:func:`images.pad_to_ratio`).
TARGET_PADDING = f"targetpad-{TARGET_RATIO}"
PREPROCESSINGS = ("clip", TARGET_PADDING)
#: File names of weights in a folder, in open_clip's own order of preference.
WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors")
#: A tokenizer with fewer entries knows its words one by one: a word that it breaks into pieces is unknown.
CLOSED_VOCABULARY = 10_000
#: Texts are run at the shortest multiple of this many positions that holds them.
TEXT_STEP = 16


@dataclass(frozen=True)
class TextFeatures:
    """Encoded texts, in the order given.

    ``features``: (n, D) float32, rows of unit length, on the encoder's device. ``tokens``: how many tokens
    each text has, start and end included, before any cut. ``cut``: True where that is more than the context,
    so that the end of the text was left out (the end token is kept). ``unknown``: per text, the words that a
    closed vocabulary had to break into pieces, in order, without repeats; always empty for the large
    vocabularies of published models.
    """

    features: Tensor
    cut: list[bool]
    tokens: list[int]
    unknown: list[list[str]]


class ClipEncoder:
    """A loaded model with its preprocessing and tokenizer. Made by :func:`load_encoder`.

    ``identifier`` names architecture and weights together, and nothing else does:
    ``ViT-B-32:laion2b_s34b_b79k``, or for a folder its name and the start of the weights' SHA-256,
    ``mini-clip@3f2a90c1d5e7``. ``width`` is D. ``context_length`` is the number of text positions, start and
    end included. ``activation`` is ``GELU`` or ``QuickGELU``. ``precision`` is one of :data:`PRECISIONS`, the
    type that the towers compute in, ``preprocessing`` one of :data:`PREPROCESSINGS`.
    """

    def __init__(
        self,
        *,
        identifier: str,
        model: torch.nn.Module,
        preprocess: Callable[..., Tensor],
        tokenizer: Any,
        config: dict[str, Any],
        weights_sha256: str,
        tokenizer_sha256: str,
        device: torch.device,
        precision: str = "float32",
        preprocessing: str = "clip",
    ) -> None:
        self.identifier = identifier
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.weights_sha256 = weights_sha256
        self.tokenizer_sha256 = tokenizer_sha256
        self.device = device
        self.precision = precision
        self.preprocessing = preprocessing
        self.width = int(config["embed_dim"])
        self.context_length = int(tokenizer.context_length)
        self.activation = "QuickGELU" if config.get("quick_gelu") else "GELU"
        self._config = config
        self._preprocess = preprocess
        self._dtype: torch.dtype = getattr(torch, precision)
        self._special = _special_tokens(tokenizer)

    def describe(self) -> dict[str, Any]:
        """Everything that decides the features, for run records and cache keys: JSON values only."""
        visual = getattr(self.model, "visual", None)
        return {
            "encoder": self.identifier,
            "weights_sha256": self.weights_sha256,
            "tokenizer_sha256": self.tokenizer_sha256,
            "config_sha256": sha256_text(json.dumps(self._config, sort_keys=True)),
            "activation": self.activation,
            "width": self.width,
            "context_length": self.context_length,
            "preprocessing": {
                "name": self.preprocessing,
                "backend": "pillow",  # torchvision's transforms on PIL pictures: Pillow resizes
                **json.loads(json.dumps(getattr(visual, "preprocess_cfg", {}))),
            },
            "precision": self.precision,
            "device": self.device.type,
            "versions": {
                name: version(name) for name in ("open_clip_torch", "torch", "torchvision", "pillow")
            },
        }

    def encode_images(self, paths: Sequence[Path], batch_size: int = 64) -> Tensor:
        """Encode picture files: (n, D) float32, rows of unit length, on the encoder's device, in the order
        given.

        Pictures pass through :func:`cir_utils.images.load_image` and the preprocessing named in
        ``preprocessing``. Raises :class:`InputError` naming the file that cannot be read.
        """
        model: Any = self.model

        def compute(pixels: Tensor) -> Tensor:
            return self._unit(not_alone(model.encode_image, pixels))

        rows = self.over_images(paths, compute, batch_size)
        return torch.cat([torch.empty(0, self.width, device=self.device), *rows])

    @torch.no_grad()
    def over_images(
        self, paths: Sequence[Path], compute: Callable[[Tensor], Tensor], batch_size: int = 64
    ) -> list[Tensor]:
        """``compute(pixels)`` of picture files in batches of ``(n, 3, height, width)``, preprocessed, in the
        encoder's precision and on its device; in the order given.

        While one batch is computed the next is read, by as many threads as torch is set to (eight at most):
        at most two batches of pixels are in memory."""
        batches = [paths[start : start + batch_size] for start in range(0, len(paths), batch_size)]
        rows = []
        with ThreadPoolExecutor(min(8, torch.get_num_threads())) as pool:
            ahead = [pool.submit(self._pixels, path) for path in batches[0]] if batches else []
            for following in [*batches[1:], []]:
                pixels = torch.stack([reading.result() for reading in ahead]) if ahead else None
                ahead = [pool.submit(self._pixels, path) for path in following]
                if pixels is not None:
                    rows.append(compute(pixels.to(self.device, self._dtype)))
        return rows

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str], batch_size: int = 256) -> TextFeatures:
        """Encode texts. A text longer than the context is cut, keeping the end token, and reported in
        ``cut``.

        The names of special tokens written in a text are left out, so that no text can end itself early.
        Equal texts get equal features; a text's features do not depend on its neighbours beyond float32
        rounding.
        """
        clean = [self._clean(text) for text in texts]
        counts, unknown = self._count(clean)
        features = torch.empty(len(clean), self.width, device=self.device)
        for length, members in _by_length(counts, self.context_length):
            for start in range(0, len(members), batch_size):
                chosen = members[start : start + batch_size]
                tokens = self.tokenizer([clean[i] for i in chosen]).to(self.device)
                outputs = not_alone(partial(self.text_outputs, length=length), tokens)
                features[torch.tensor(chosen, device=self.device)] = self._unit(outputs)
        return TextFeatures(features, [n > self.context_length for n in counts], counts, unknown)

    def tokenise(self, texts: Sequence[str]) -> tuple[Tensor, list[int]]:
        """Token numbers ``(n, context_length)`` as the text tower gets them, on the encoder's device, cleaned
        and cut as by :meth:`encode_texts`; and how many tokens each text has before any cut."""
        clean = [self._clean(text) for text in texts]
        return self.tokenizer(clean).to(self.device), self._count(clean)[0]

    def _pixels(self, path: Path) -> Tensor:
        return self.pixels(load_image(path))

    def pixels(self, image: Image.Image) -> Tensor:
        """A picture as the image tower gets it: ``(3, height, width)`` float32 on the CPU."""
        return self._preprocess(pad_to_ratio(image) if self.preprocessing == TARGET_PADDING else image)

    def _unit(self, features: Tensor) -> Tensor:
        """Rows scaled to unit length in float32; damaged weights show here as rows that are not finite or
        zero."""
        unit = functional.normalize(features.float(), dim=-1)
        if not torch.isfinite(unit).all() or not (unit.norm(dim=-1) > 0.5).all():
            raise InputError(
                f"encoder {self.identifier} gives features that are not finite: fetch its weights again"
            )
        return unit

    def _clean(self, text: str) -> str:
        if self._special is not None:
            text = self._special.sub(" ", text)
        return text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates become question marks

    def _count(self, texts: Sequence[str]) -> tuple[list[int], list[list[str]]]:
        """Tokens of each text, start and end included, uncut; and the words outside a closed vocabulary."""
        tokenizer = self.tokenizer
        if isinstance(tokenizer, SimpleTokenizer):
            return [len(tokenizer.encode(text)) + 2 for text in texts], [[] for _ in texts]
        inner = tokenizer.tokenizer
        if isinstance(tokenizer, HFTokenizer):
            texts = [tokenizer.clean_fn(text) for text in texts]
        closed = inner.is_fast and len(inner) < CLOSED_VOCABULARY
        if not texts:
            return [], []
        coded = inner(
            list(texts), truncation=False, padding=False, return_offsets_mapping=closed, verbose=False
        )
        counts = [len(ids) for ids in coded["input_ids"]]
        if not closed:
            return counts, [[] for _ in texts]
        return counts, [
            _broken_words(text, ids, spans, inner.unk_token_id)
            for text, ids, spans in zip(texts, coded["input_ids"], coded["offset_mapping"], strict=True)
        ]

    def text_outputs(self, tokens: Tensor, length: int) -> Tensor:
        """What the text tower gives for ``tokens`` ``(n, context_length)``: ``(n, D)``, not of unit length,
        with gradients where they are on. It runs on the first ``length`` positions, where that is the same as
        on all of them.

        It is the same for open_clip's ``CLIP`` with a causal mask and pooling at the end token: what comes
        after the end token cannot reach it. Other models get all positions.
        """
        model: Any = self.model
        mask = getattr(model, "attn_mask", None)
        if type(model) is not open_clip.CLIP or mask is None or model.text_pool_type not in ("eos", "argmax"):
            return model.encode_text(tokens)
        tokens = tokens[:, :length]
        hidden = model.token_embedding(tokens).to(self._dtype)
        hidden = hidden + model.positional_embedding[:length].to(self._dtype)
        hidden = model.ln_final(model.transformer(hidden, attn_mask=mask[:length, :length]))
        ends = (tokens == model.text_eos_id).int() if model.text_pool_type == "eos" else tokens
        pooled = hidden[torch.arange(len(tokens), device=tokens.device), ends.argmax(dim=-1)]
        if model.text_projection is None:
            return pooled
        if isinstance(model.text_projection, torch.nn.Linear):
            return model.text_projection(pooled)
        return pooled @ model.text_projection


def not_alone(compute: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
    """``compute(batch)``; a batch of one row is computed beside a copy of itself. BLAS libraries take another
    path for a single row, and its last bits differ: features would depend on which row a batch size leaves
    over. From two rows on they do not, whatever the number of threads (docs/determinism.md)."""
    return compute(torch.cat([batch, batch]))[:1] if len(batch) == 1 else compute(batch)


def load_encoder(
    spec: str,
    device: torch.device | str = "cpu",
    *,
    precision: str = "float32",
    preprocessing: str = "clip",
) -> ClipEncoder:
    """Load an open_clip model.

    ``spec`` is ``local-dir:FOLDER`` (``open_clip_config.json``, ``open_clip_model.safetensors`` and, for a
    tokenizer of its own, ``tokenizer.json``) or ``ARCHITECTURE:TAG`` as ``open_clip.list_pretrained()`` has
    them, for example ``ViT-B-32:laion2b_s34b_b79k``; the weights of a tag come from the local cache or are
    fetched. ``precision`` is ``float32``, ``bfloat16`` or, on a GPU alone, ``float16``, whatever type the
    weights are stored in; features are brought to unit length in float32 in every one. ``preprocessing`` is
    ``clip`` (the model's own) or ``targetpad-1.25``.

    A tag whose weights want QuickGELU gets the ``-quickgelu`` configuration, whichever was named, and the
    identifier says so: ``ViT-B-32:openai`` becomes ``ViT-B-32-quickgelu:openai``. The other way round is
    refused.

    A folder's configuration names the activation; weights of a tag, where the tag's are on this machine, are
    refused under another one.

    Raises :class:`InputError` for an unknown architecture or tag (the choices are listed), missing or damaged
    files, weights that are not safetensors, a configuration that does not fit weights or tokenizer, and what
    :func:`check_choices` refuses.
    """
    device = resolve_device(device) if isinstance(device, str) else device
    check_choices(precision, preprocessing, device)
    choices = {"device": device, "precision": precision, "preprocessing": preprocessing}
    if spec.startswith(LOCAL):
        return _load_folder(Path(spec.removeprefix(LOCAL)), choices)
    return _load_registered(registered(spec), choices)


def check_choices(precision: str, preprocessing: str, device: torch.device) -> None:
    """:class:`InputError` for a name that is not in :data:`PRECISIONS` or :data:`PREPROCESSINGS`, and for
    float16 on a CPU, whose kernels are made for float32 and bfloat16."""
    for what, value, known in (
        ("--precision", precision, PRECISIONS),
        ("--preprocessing", preprocessing, PREPROCESSINGS),
    ):
        if value not in known:
            raise InputError(f"unknown {what} {value!r}: choose {', '.join(known)}")
    if precision == "float16" and device.type == "cpu":
        raise InputError("--precision float16 needs a GPU: choose float32 or bfloat16 on the CPU")


@dataclass(frozen=True)
class Registered:
    """A model as open_clip's registry has it. ``identifier`` is ``architecture:tag``; ``config`` the model
    configuration, whose activation is the one that the weights want; ``row`` the registry's entry."""

    architecture: str
    tag: str
    config: dict[str, Any]
    row: dict[str, Any]

    @property
    def identifier(self) -> str:
        return f"{self.architecture}:{self.tag}"


def registered(spec: str) -> Registered:
    """The model that ``ARCHITECTURE:TAG`` names, looked up without loading anything. Raises and chooses the
    activation as :func:`load_encoder`."""
    if spec in BACKBONES:
        raise InputError(
            f"encoder {spec!r} names an architecture but no weights: choose {' or '.join(BACKBONES[spec])}"
        )
    architecture, colon, tag = spec.partition(":")
    if not colon or not architecture or not tag:
        raise InputError(
            f"encoder {spec!r}: write local-dir:FOLDER or ARCHITECTURE:TAG, for example "
            "ViT-B-32:laion2b_s34b_b79k"
        )
    return _look_up(architecture, tag)


def _load_folder(folder: Path, choices: dict[str, Any]) -> ClipEncoder:
    name, mend = folder.name, "reinstall the model's folder, or save the model again"
    if not folder.is_dir():
        raise InputError(f"encoder folder {folder} does not exist: {mend}")
    table = read_json(folder / "open_clip_config.json", "encoder configuration")
    config = table.get("model_cfg") if isinstance(table, dict) else None
    if not isinstance(config, dict) or not {"embed_dim", "vision_cfg", "text_cfg"} <= set(config):
        raise InputError(
            f"{folder / 'open_clip_config.json'} needs 'model_cfg' with embed_dim, vision_cfg and text_cfg: "
            f"{mend}"
        )
    weights = next((folder / file for file in WEIGHTS if (folder / file).is_file()), None)
    if weights is None:
        raise InputError(f"encoder folder {folder} has no weights: put {WEIGHTS[0]} there ({mend})")
    own_tokenizer = bool(config["text_cfg"].get("hf_tokenizer_name"))
    tokenizer_files = [folder / "tokenizer.json", folder / "tokenizer_config.json"] if own_tokenizer else []
    for path in tokenizer_files:
        if "auto_map" in read_json(path, "tokenizer file"):
            raise InputError(
                f"{path} asks to run code of its own ('auto_map'): such tokenizers are not loaded"
            )
    if config["text_cfg"].get("tokenizer_kwargs", {}).get("trust_remote_code"):
        raise InputError(
            f"{folder / 'open_clip_config.json'} sets trust_remote_code: such models are not loaded"
        )
    try:
        _check_positions(weights, config)
        model, preprocess = open_clip.create_model_from_pretrained(
            f"{LOCAL}{folder}", precision=PRECISIONS[choices["precision"]], device=choices["device"]
        )
        tokenizer = open_clip.get_tokenizer(f"{LOCAL}{folder}")
    except InputError:
        raise
    except (RuntimeError, ValueError, OSError, TypeError, KeyError, AttributeError, SafetensorError) as error:
        raise InputError(f"encoder folder {folder} cannot be loaded ({_first_line(error)}): {mend}") from None
    _check_end_token(model, tokenizer, f"encoder folder {folder}")
    digest = sha256_file(weights)
    _check_activation(digest, config, folder)
    return ClipEncoder(
        identifier=f"{name}@{digest[:12]}",
        model=model,
        preprocess=preprocess,
        tokenizer=tokenizer,
        config=config,
        weights_sha256=digest,
        tokenizer_sha256=sha256_text("".join(sha256_file(path) for path in tokenizer_files)),
        **choices,
    )


def _look_up(architecture: str, tag: str) -> Registered:
    architectures = open_clip.list_models()
    if architecture not in architectures:
        near = difflib.get_close_matches(architecture, architectures, 5, 0.5) or [
            "ViT-B-32",
            "ViT-L-14",
            "ViT-bigG-14",
        ]
        raise InputError(
            f"unknown architecture {architecture!r}: choose one of open_clip's, for example {', '.join(near)}"
        )
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    row = open_clip.get_pretrained_cfg(architecture, tag)
    if not row:
        hint = " (a file is given as local-dir:FOLDER)" if os.path.exists(tag) else ""
        choice = ", ".join(tags) or "another model"
        raise InputError(f"unknown weights {tag!r} of {architecture}{hint}: choose {choice}")
    tag = tag.lower().replace("-", "_")
    wants = bool(row.get("quick_gelu"))
    if wants and f"{architecture}-quickgelu" in architectures:
        architecture = f"{architecture}-quickgelu"
    config = open_clip.get_model_config(architecture)
    if wants != bool(config.get("quick_gelu")):
        asked = "QuickGELU" if wants else "plain GELU"
        raise InputError(
            f"the weights {tag} want {asked} and the configuration {architecture} has the other: name another"
        )
    return Registered(architecture, tag, config, row)


def _load_registered(model: Registered, choices: dict[str, Any]) -> ClipEncoder:
    architecture, tag, identifier, config = model.architecture, model.tag, model.identifier, model.config
    try:
        weights = Path(open_clip.download_pretrained(model.row))
    except Exception as error:  # whatever the hub's client raises without a network or a cache
        repo, _, file = str(model.row.get("hf_hub", "")).rpartition("/")
        mend = "choose weights that are on the Hugging Face hub"
        if repo:
            mend = (
                f"looked for {repo} below {hub_constants.HF_HUB_CACHE}; where there is a network, run "
                f"`hf download {repo} {file or WEIGHTS[0]}`, or point HF_HOME at a cache that has them"
            )
        raise InputError(
            f"the weights of {identifier} are not in the local cache and could not be fetched "
            f"({_first_line(error)}): {mend}"
        ) from None
    if weights.suffix != ".safetensors":
        raise InputError(
            f"the weights of {identifier} are pickled ({weights.name}), which is not safe: choose others"
        )
    try:
        loaded, preprocess = open_clip.create_model_from_pretrained(
            architecture, pretrained=tag, precision=PRECISIONS[choices["precision"]], device=choices["device"]
        )
        tokenizer = open_clip.get_tokenizer(architecture)
    except (RuntimeError, ValueError, OSError, SafetensorError) as error:
        raise InputError(
            f"encoder {identifier} cannot be loaded ({_first_line(error)}): delete {weights}, fetch it again"
        ) from None
    _check_end_token(loaded, tokenizer, f"encoder {identifier}")
    return ClipEncoder(
        identifier=identifier,
        model=loaded,
        preprocess=preprocess,
        tokenizer=tokenizer,
        config=config,
        weights_sha256=sha256_file(weights),
        tokenizer_sha256=sha256_text(str(config["text_cfg"].get("hf_tokenizer_name") or "open_clip")),
        **choices,
    )


def _check_positions(weights: Path, config: dict[str, Any]) -> None:
    """Refuse position embeddings of another size than configured: open_clip would resize them silently."""
    text, vision = config["text_cfg"], config["vision_cfg"]
    rows = {"positional_embedding": text.get("context_length", 77)}
    rows["text.positional_embedding"] = rows["positional_embedding"] + bool(text.get("embed_cls"))
    if isinstance(vision.get("image_size"), int) and isinstance(vision.get("patch_size"), int):
        rows["visual.positional_embedding"] = (vision["image_size"] // vision["patch_size"]) ** 2 + 1
    with safe_open(weights, "pt") as stored:
        for key in rows.keys() & set(stored.keys()):
            found = stored.get_slice(key).get_shape()[0]
            if found != rows[key]:
                raise InputError(
                    f"{weights}: {key} has {found} rows, the configuration wants {rows[key]}; use the "
                    "open_clip_config.json that the weights were saved with"
                )


def _check_activation(digest: str, config: dict[str, Any], folder: Path) -> None:
    """Refuse a folder whose weights are those of a tag that wants the other activation.

    Weights do not say which activation they were trained with, so this finds them by their hash among the
    tags whose weights are on this machine; of all others the folder's configuration is believed."""
    wanted: dict[bool, str] = {}
    for architecture, tag in open_clip.list_pretrained():
        row = open_clip.get_pretrained_cfg(architecture, tag)
        if digest in _cached_hashes(row):
            wanted.setdefault(bool(row.get("quick_gelu")), f"{architecture}:{tag}")
    if wanted and bool(config.get("quick_gelu")) not in wanted:
        quick, spec = wanted.popitem()
        raise InputError(
            f"encoder folder {folder} has the weights of {spec}, which want "
            f"{'QuickGELU' if quick else 'plain GELU'}, and its configuration has the other: set "
            f'"quick_gelu": {str(quick).lower()} in model_cfg of open_clip_config.json, or give {spec}'
        )


def _cached_hashes(row: dict[str, Any]) -> list[str]:
    """The SHA-256 of a tag's weights as far as they are on this machine. The hub's cache names its large
    files by their hash."""
    if row.get("file"):
        return [sha256_file(Path(row["file"]))] if Path(row["file"]).is_file() else []
    repo, _, file = str(row.get("hf_hub", "")).rpartition("/")
    names = [file] if file else list(WEIGHTS)
    paths = [try_to_load_from_cache(repo, name) for name in names] if repo else []
    return [Path(path).resolve().name for path in paths if isinstance(path, str)]


def _check_end_token(model: Any, tokenizer: Any, what: str) -> None:
    """Make sure that the position at which the text tower pools is the end token's."""
    if type(model) is not open_clip.CLIP or model.text_pool_type not in ("eos", "argmax"):
        return
    tokens = tokenizer(["a", "a " * (2 * tokenizer.context_length)])
    end = model.text_eos_id
    if isinstance(tokenizer, SimpleTokenizer):
        end = tokenizer.eot_token_id
    elif isinstance(tokenizer, HFTokenizer):
        end = tokenizer.tokenizer.eos_token_id
        if len(tokenizer.tokenizer) > model.vocab_size:
            raise InputError(
                f"{what}: the tokenizer has {len(tokenizer.tokenizer)} entries, the model {model.vocab_size}"
            )
    if model.text_pool_type == "eos" and end != model.text_eos_id:
        raise InputError(
            f"{what}: text_cfg.eos_id is {model.text_eos_id}, the tokenizer's end token is {end}: correct it"
        )
    found = (
        tokens.argmax(dim=-1) if model.text_pool_type == "argmax" else (tokens == end).int().argmax(dim=-1)
    )
    if not (tokens.gather(1, found[:, None]) == end).all():
        raise InputError(
            f"{what}: the tokenizer does not end texts with the token that the model pools at; set pool_type "
            "to 'eos' and let the tokenizer add its end token"
        )


def _by_length(counts: Sequence[int], context: int) -> Iterator[tuple[int, list[int]]]:
    """Groups of text numbers by the positions they are run at: the next multiple of ``TEXT_STEP``, at most
    ``context``."""
    groups: dict[int, list[int]] = {}
    for number, count in enumerate(counts):
        groups.setdefault(min(-(-count // TEXT_STEP) * TEXT_STEP, context), []).append(number)
    yield from sorted(groups.items())


def _broken_words(
    text: str, ids: Sequence[int], spans: Sequence[tuple[int, int]], unk: int | None
) -> list[str]:
    """Words and symbols of ``text`` that took more than one token, or the unknown token; in order, without
    repeats."""
    pieces = [(start, end, token) for token, (start, end) in zip(ids, spans, strict=True) if end > start]
    found: dict[str, None] = {}
    first = 0
    for word in re.finditer(r"\w+|[^\w\s]", text):
        while first < len(pieces) and pieces[first][1] <= word.start():
            first += 1
        last = first
        while last < len(pieces) and pieces[last][0] < word.end():
            last += 1
        if last - first > 1 or any(token == unk for _, _, token in pieces[first:last]):
            found[word.group()] = None
    return list(found)


def _special_tokens(tokenizer: Any) -> re.Pattern[str] | None:
    """A pattern for the written names of the tokenizer's special tokens, or None where it has none."""
    if isinstance(tokenizer, SimpleTokenizer):
        names = [tokenizer.decoder[number] for number in tokenizer.all_special_ids]
    elif isinstance(tokenizer, HFTokenizer | SigLipTokenizer):
        names = list(tokenizer.tokenizer.all_special_tokens)
    else:
        names = []
    return re.compile("|".join(re.escape(name) for name in names), re.IGNORECASE) if names else None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
