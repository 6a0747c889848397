"""Networks that turn a picture's feature into pseudo-words: their layers, and where their weights come from.

A network belongs to one CLIP: its input is that model's image feature and its output lies among that model's
token embeddings. So weights are found by the encoder's identifier, and those of another encoder are refused.

Weights come from the first of these that fits the encoder:

1. ``mini/models/<method>/network.safetensors`` of the package (for the shipped mini-CLIP);
2. ``words/<method>/network.safetensors`` in the data folder (CIR_DATA), for any encoder, as
   ``data_scripts.train_pseudo_words`` writes it;
3. the authors' own file in ``words/`` of the data folder, where it is public (:data:`PUBLISHED`). Such files
   are pickles by format and read with ``torch.load(weights_only=True)``, which runs no code of theirs.

Our networks take features of unit length. The published ones take the image tower's outputs as they are.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from cir_utils.encoder import ClipEncoder, not_alone
from cir_utils.errors import InputError
from cir_utils.files import MANIFEST, read_json, sha256_file, verify_manifest, write_atomic
from cir_utils.profiles import PACKAGE, data_dir
from cir_utils.pseudo_words import token_table
from cir_utils.workbench import Workbench

SHIPPED = PACKAGE / "mini" / "models"
NETWORK = "network.safetensors"
PHRASES = "phrases.json"
FORMAT = "cir-pseudo-words"


@dataclass(frozen=True)
class Layout:
    """The authors' file format of a network: the dictionary's entry that holds its weights, and their names
    for our three linear layers."""

    entry: str
    layers: dict[str, str]


PHI = Layout("Phi", {"layers.0": "0", "layers.3": "3", "layers.6": "6"})
LAYOUTS = {
    "pic2word": Layout("state_dict_img2text", {"layers.0.0": "0", "layers.1.0": "3", "fc_out": "6"}),
    "searle": PHI,
    "lincir": PHI,
}


@dataclass(frozen=True)
class Published:
    """A file of the authors: its name in the data folder, and where to get it."""

    file: str
    address: str


_SEARLE = "https://github.com/miccunifi/SEARLE/releases/download/weights/"
PUBLISHED: dict[tuple[str, str], Published] = {
    ("searle", "ViT-B-32-quickgelu:openai"): Published("SEARLE_ViT-B32.pt", _SEARLE + "SEARLE_ViT-B32.pt"),
    ("searle", "ViT-L-14-quickgelu:openai"): Published("SEARLE_ViT-L14.pt", _SEARLE + "SEARLE_ViT-L14.pt"),
    ("lincir", "ViT-L-14-quickgelu:openai"): Published(
        "lincir_large.pt", "https://huggingface.co/navervision/zeroshot-cir-models (lincir_large.pt)"
    ),
    ("pic2word", "ViT-L-14-quickgelu:openai"): Published(
        "pic2word_model.pt", "the link in the readme of github.com/google-research/composed_image_retrieval"
    ),
}


@dataclass(frozen=True)
class Weights:
    """A network's tensors, float32 on the CPU, and what to know of them: whether it takes features of
    ``unit`` length, a sentence about their ``source``, and the ``folder`` that they lie in."""

    tensors: dict[str, Tensor]
    unit: bool
    source: str
    folder: Path

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names begin with ``name.``, without it."""
        start = f"{name}."
        return {key.removeprefix(start): t for key, t in self.tensors.items() if key.startswith(start)}


def mapping(
    widths: tuple[int, int, int], activation: Callable[[], nn.Module], dropout: float
) -> nn.Sequential:
    """The shape that all of these systems share: two hidden layers of one width with ``dropout``, and a
    linear one. ``widths`` are those of input, hidden layers and output."""
    inner, hidden, outer = widths
    return nn.Sequential(
        nn.Linear(inner, hidden), activation(), nn.Dropout(dropout),
        nn.Linear(hidden, hidden), activation(), nn.Dropout(dropout),
        nn.Linear(hidden, outer),
    )  # fmt: skip


def as_mapping(tensors: dict[str, Tensor], activation: Callable[[], nn.Module] = nn.GELU) -> nn.Sequential:
    """A :func:`mapping` with these weights, for use."""
    hidden, inner = tensors["0.weight"].shape
    network = mapping((inner, hidden, tensors["6.weight"].shape[0]), activation, 0.0)
    network.load_state_dict(tensors)
    return network.eval().requires_grad_(False)


def load_weights(method: str, encoder: ClipEncoder) -> Weights:
    """The weights of ``method`` for ``encoder`` (see the head of this module for where they are looked for).

    Raises :class:`InputError` for damaged or foreign files, and where there are none: it names the authors'
    file, where one is public for this encoder, and the training script."""
    folders = [SHIPPED / method, data_dir() / "words" / method]
    others = []
    for folder in folders:
        if (folder / NETWORK).is_file():
            owner = _read_header(folder / NETWORK, method)["encoder"]
            if owner == encoder.identifier:
                return _checked(_read_own(folder, method), method, encoder, folder / NETWORK)
            others.append(owner)
    published = PUBLISHED.get((method, encoder.identifier))
    if published is not None and (data_dir() / "words" / published.file).is_file():
        path = data_dir() / "words" / published.file
        return _checked(read_published(path, method), method, encoder, path)
    have = f" (there are weights for {', '.join(others)}, which do not fit it)" if others else ""
    get = (
        f"put the authors' {published.file} ({published.address}) into {data_dir() / 'words'}, or "
        if published
        else ""
    )
    raise InputError(
        f"method {method} has no weights for encoder {encoder.identifier}{have}: {get}train some with "
        f"`python -m data_scripts.train_pseudo_words {method} --encoder ... --export "
        f"{data_dir() / 'words' / method}`"
    )


def save_weights(
    path: Path, method: str, encoder: str, tensors: dict[str, Tensor], dtype: torch.dtype = torch.float16
) -> None:
    """Write a network of ours, atomically: tensors in ``dtype``, and in the header the method and the
    identifier of the encoder it belongs to. The same network is the same bytes (one entry in the header: the
    order of several is not fixed)."""
    stored = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in tensors.items()}
    header = json.dumps({"method": method, "encoder": encoder})
    write_atomic(path, save(stored, {FORMAT: header}))


def read_published(path: Path, method: str) -> Weights:
    """The authors' file of ``pic2word``, ``searle`` or ``lincir``: a ``.pt`` dictionary with the network
    under its entry, or the network's tensors alone, as ``.pt`` or ``.safetensors``. Names may begin with
    ``module.``, as trained on several devices.

    Raises :class:`InputError` for a file of another form, and for one that wants to run code."""
    layout = LAYOUTS[method]
    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, SafetensorError, RuntimeError, OSError, EOFError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
        raise InputError(
            f"{path} cannot be read as weights alone ({first}): fetch the authors' file of {method} again"
        ) from None
    if isinstance(found, dict) and layout.entry in found:
        found = found[layout.entry]
    wanted = {
        f"{theirs}.{kind}": f"{ours}.{kind}"
        for theirs, ours in layout.layers.items()
        for kind in ("weight", "bias")
    }
    named = {str(key).removeprefix("module."): value for key, value in _items(found)}
    if named.keys() != wanted.keys() or not all(isinstance(value, Tensor) for value in named.values()):
        raise InputError(
            f"{path} is not a published network of {method}: expected {layout.entry!r} with "
            f"{', '.join(layout.layers)} (weight and bias each), found {_shown(named)}"
        )
    return Weights(
        {wanted[key]: value.float() for key, value in named.items()},
        unit=False,
        source=f"the authors' {path.name}, SHA-256 {sha256_file(path)[:12]}",
        folder=path.parent,
    )


def picture_inputs(bench: Workbench, weights: Weights) -> Tensor:
    """The reference pictures as the network takes them, ``(Q, D)`` float32: unit features, or for published
    networks the image tower's outputs, which are computed anew (they are not stored)."""
    if weights.unit:
        return bench.reference_features
    model: Any = bench.encoder.model
    with bench.stage("encoding pictures"):
        rows = bench.encoder.over_images(
            bench.reference_paths, lambda pixels: not_alone(model.encode_image, pixels).float()
        )
    return torch.cat(rows)


def read_phrases(folder: Path) -> dict[str, list[str]]:
    """``phrases.json`` beside a network: concepts, each with texts that contain its name as a word.
    :class:`InputError` for a file of another form."""
    table = read_json(folder / PHRASES, "concept phrases")
    right = isinstance(table, dict) and bool(table)
    right = right and all(
        isinstance(texts, list) and texts and all(isinstance(t, str) and name in t.split() for t in texts)
        for name, texts in table.items()
    )
    if not right:
        raise InputError(
            f"{folder / PHRASES} must hold {{concept: [texts that contain it as a word]}}: train the network "
            "again"
        )
    return table


def _read_own(folder: Path, method: str) -> Weights:
    path = folder / NETWORK
    if (folder / MANIFEST).is_file() or folder.parent == SHIPPED:
        verify_manifest(folder)
    tensors = {name: tensor.float() for name, tensor in load_file(path).items()}
    digest = sha256_file(path)[:12]
    return Weights(tensors, True, f"{method} network of {folder.parent.name}, SHA-256 {digest}", folder)


def _read_header(path: Path, method: str) -> dict[str, str]:
    try:
        with safe_open(path, "pt") as stored:
            said = (stored.metadata() or {}).get(FORMAT, "{}")
        header = json.loads(said)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): train the network again") from None
    if not isinstance(header, dict) or header.get("method") != method or not header.get("encoder"):
        raise InputError(
            f"{path} is not a network of {method} (its header: {said[:120]}): train the network again"
        )
    return header


def _checked(weights: Weights, method: str, encoder: ClipEncoder, path: Path) -> Weights:
    """The weights, if the widths of a mapping in them fit the encoder."""
    if "0.weight" in weights.tensors and "6.weight" in weights.tensors:
        inner, outer = weights.tensors["0.weight"].shape[-1], len(weights.tensors["6.weight"])
        width = token_table(encoder).embedding_dim
        if (inner, outer) != (encoder.width, width):
            raise InputError(
                f"{path}: this network of {method} maps {inner} dimensions to words of {outer}, encoder "
                f"{encoder.identifier} has {encoder.width} and {width}: it was made for another CLIP"
            )
    return weights


def _items(found: Any) -> Iterable[tuple[Any, Any]]:
    return found.items() if isinstance(found, dict) else []


def _shown(named: dict[str, Any]) -> str:
    names = list(named)
    return (
        f"{', '.join(names[:4])}{' ...' if len(names) > 4 else ''}" if names else "no dictionary of tensors"
    )
