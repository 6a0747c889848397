"""FTI4CIR: fine-grained textual inversion, a word for the subject and words for its attributes (SIGIR 2024,
doi 10.1145/3626772.3657831, arXiv:2503.19296).

One word cannot hold all of a picture. So the reference becomes a subject-oriented pseudo-word, from CLIP's
global feature, and several attribute-oriented ones, from its patches:
"a photo of S* with A1* A2* ... but {T_m}".

| paper | here |
|---|---|
| subject: ``phi_s`` of the global feature | ``FineNetwork.subject`` |
| attributes: learnable templates look at the patches in a transformer; a linear layer and a \
sigmoid take them to the width of the global feature | ``FineNetwork.attribute_features`` |
| relevance: softmax over their products with the global feature; those over a threshold are kept, at \
most ``top_k`` and at least one, in their own order | ``FineNetwork.chosen`` |
| attribute words: ``phi_a`` of what is kept | ``FineNetwork.attribute`` |
| contrastive loss of "a photo of S* with A1* ..." against the picture, temperature 0.2 | \
:func:`loss` |
| orthogonality: attribute features of one picture should differ | :func:`loss` |
| three-fold semantic regularisation with a caption split into subject and attributes: subject word, \
attribute words and both in the caption's place must give the caption's feature; weight 1.4 | :func:`loss` |
| search: "a photo of S* with A1* ... but {T_m}" | :func:`prompt` |

Training: ``python -m data_scripts.train_pseudo_words fti4cir``, on `train` pictures of the mini world and
their captions (the paper: ImageNet and captions of BLIP). No MLLM is called. The authors publish weights as
a pickled module, which cannot be read without running code of theirs; such a file is not read here.

Choices where the paper is silent, or the mini world is smaller:

* :data:`TEMPLATES` templates and at most :data:`TOP_K` words (24 and 12 in the public code), one layer with
  a narrow inner part (3), threshold :data:`EPSILON` (0.05 of 24): a drawn picture has few attributes, and
  the weights have to be small;
* the patches are the outputs of the image tower's last block without the class token;
* our networks take unit features, and have a dropout of 0.1 (0.5 in the public code);
* attribute features are brought to unit length before ``phi_a``, as in the public code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from cir_utils.encoder import ClipEncoder
from cir_utils.errors import InputError
from cir_utils.methods.searle import distillation
from cir_utils.pseudo_words import (
    encode_prompts,
    fill,
    rank_by_prompts,
    read_prompts,
    template_for,
    token_table,
)
from cir_utils.word_networks import Weights, load_weights, mapping
from cir_utils.workbench import MethodOutput, Workbench

#: How a sentence begins, by prompt set.
BEGINNINGS = {"default": "a photo of ", "mini": ""}
TEMPLATES, TOP_K, EPSILON = 8, 4, 0.125
TEMPERATURE = 0.2
REGULARISATION = 1.4


class FineNetwork(nn.Module):
    """The inversion network: global features ``(B, D)`` and patches ``(B, P, V)`` to words of width ``W``."""

    def __init__(self, width: int, patch_width: int, word_width: int, dropout: float) -> None:
        super().__init__()
        self.templates = nn.Parameter(torch.randn(1, TEMPLATES, patch_width))
        self.look = nn.TransformerEncoderLayer(
            patch_width,
            1,
            patch_width // 2,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.narrow = nn.Linear(patch_width, width)
        self.subject = mapping((width, width, word_width), nn.GELU, dropout)
        self.attribute = mapping((width, width, word_width), nn.GELU, dropout)

    def attribute_features(self, patches: Tensor) -> Tensor:
        """``(B, TEMPLATES, D)``, entries in (0, 1)."""
        both = torch.cat([self.templates.expand(len(patches), -1, -1), patches], dim=1)
        return torch.sigmoid(self.narrow(self.look(both)[:, :TEMPLATES]))

    def chosen(self, features: Tensor, attributes: Tensor) -> list[list[int]]:
        """Per picture the attribute features that are kept, in their own order."""
        relevance = torch.softmax((attributes @ features[:, :, None]).squeeze(2), dim=1)
        best = relevance.argsort(dim=1, descending=True)[:, :TOP_K].tolist()
        return [
            sorted([place for place in row if weights[place] > EPSILON] or row[:1])
            for row, weights in zip(best, relevance.tolist(), strict=True)
        ]

    def words(self, features: Tensor, patches: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Subject words ``(B, W)``; per picture its attribute words ``(a, W)``, and the unit attribute
        features ``(a, D)`` they were made of."""
        attributes = self.attribute_features(patches)
        kept = [
            normalize(row[places], dim=1)
            for row, places in zip(attributes, self.chosen(features, attributes), strict=True)
        ]
        words = self.attribute(torch.cat(kept)).split([len(one) for one in kept])
        return self.subject(features), list(words), kept


def run(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by the cosine with "a photo of S* with A1* ... but T_m"."""
    weights = load_weights("fti4cir", bench.encoder)
    model = trained(weights).to(bench.device)
    with bench.stage("encoding pictures"), torch.no_grad():
        patches = patches_of(bench.encoder, bench.reference_paths)
        subjects, attributes, _ = model.words(bench.reference_features, patches)
    templates = [prompt(len(words), bench.prompts) for words in attributes]
    words = torch.cat([part for pair in zip(subjects[:, None], attributes, strict=True) for part in pair])
    return rank_by_prompts(bench, templates, words, weights.source)


def prompt(attributes: int, prompts: str) -> str:
    """The template of a reference with that many attribute words, in the prompt set ``prompts``."""
    return f"{template_for(BEGINNINGS, prompts)}$ with {'$ ' * attributes}but {{T_m}}"


def network(encoder: ClipEncoder, dropout: float = 0.1) -> FineNetwork:
    """An untrained network for ``encoder``."""
    model: Any = encoder.model
    patch_width = len(model.visual.ln_post.weight)
    return FineNetwork(encoder.width, patch_width, token_table(encoder).embedding_dim, dropout)


def trained(weights: Weights) -> FineNetwork:
    """The network with its weights, for use."""
    tensors = weights.tensors
    width, patch_width = tensors["narrow.weight"].shape
    model = FineNetwork(width, patch_width, len(tensors["subject.6.weight"]), 0.0)
    model.load_state_dict(tensors)
    return model.eval().requires_grad_(False)


def patches_of(encoder: ClipEncoder, paths: Sequence[Path]) -> Tensor:
    """What the image tower's last block gives for the patches of picture files: ``(n, P, V)`` float32."""
    return torch.cat(encoder.over_images(paths, lambda pixels: patch_outputs(encoder, pixels)))


def patch_outputs(encoder: ClipEncoder, pixels: Tensor) -> Tensor:
    """As :func:`patches_of` for preprocessed ``pixels``; :class:`InputError` for an image tower that is no
    vision transformer of open_clip's."""
    visual: Any = getattr(encoder.model, "visual", None)
    if not hasattr(visual, "forward_intermediates") or not hasattr(visual, "ln_post"):
        raise InputError(
            f"method fti4cir looks at patches of an open_clip vision transformer; {encoder.identifier} is "
            "none: choose ViT-B-32, ViT-L-14 or mini-CLIP"
        )
    found = visual.forward_intermediates(pixels, indices=1, intermediates_only=True, output_fmt="NLC")
    return found["image_intermediates"][-1].float()


def loss(
    encoder: ClipEncoder,
    model: FineNetwork,
    features: Tensor,
    patches: Tensor,
    subjects: Sequence[str],
    attributes: Sequence[str],
    prompts: str,
) -> Tensor:
    """The whole loss of a batch: pictures with unit ``features`` ``(B, D)`` and ``patches`` ``(B, P, V)``,
    and their captions "a photo of SUBJECT with ATTRIBUTES" in two parts (without "a photo of" where the
    prompt set has it not)."""
    begin = template_for(BEGINNINGS, prompts)
    subject_words, attribute_words, kept = model.words(features, patches)
    slots = ["$ " * len(words) for words in attribute_words]

    def encode(texts: list[str], words: Tensor) -> Tensor:
        return encode_prompts(encoder, read_prompts(encoder, [fill(text.strip()) for text in texts]), words)

    pairs = zip(subject_words[:, None], attribute_words, strict=True)
    both = encode([f"{begin}$ with {s}" for s in slots], torch.cat([t for pair in pairs for t in pair]))
    only_subject = encode([f"{begin}$ with {text}" for text in attributes], subject_words)
    only_attributes = encode(
        [f"{begin}{text} with {s}" for text, s in zip(subjects, slots, strict=True)],
        torch.cat(attribute_words),
    )
    captions = encoder.encode_texts(
        [f"{begin}{s} with {a}" for s, a in zip(subjects, attributes, strict=True)]
    ).features
    regularisation = sum(
        (1 - cosine_similarity(found, captions)).mean() for found in (both, only_subject, only_attributes)
    )
    apart = torch.stack(
        [(one @ one.T - torch.eye(len(one), device=one.device)).square().mean() for one in kept]
    )
    return distillation(both, features, TEMPERATURE) + apart.mean() + REGULARISATION * regularisation
