"""PALAVRA: a word for a personal concept, guessed by a set network and then optimised (arXiv:2204.01694).

Made for concepts shown in a few pictures ("my unicorn, Fluffy"), and used as the first baseline of zero-shot
composed retrieval, where the concept is the reference picture, alone in its set.

| paper | here |
|---|---|
| inversion model ``f_theta``: a set network (elements, mean, output) from CLIP features of \
pictures of one concept to a word | :class:`SetNetwork` |
| cycle loss: "a photo of a <word>" must agree with the text of the concept's name, contrastive \
over a batch of concepts, temperature 0.25 | :func:`cycle_loss` |
| ground-truth loss: the word against the embedding of the concept's name | :func:`cycle_loss` |
| personalisation: from ``f_theta``'s word, gradient descent on a contrastive loss, the sentence against \
the picture, with the sentence of the concept's class as the negative | :func:`personalise` |

Training: ``python -m data_scripts.train_pseudo_words palavra``, on `train` pictures of the mini world, whose
concepts are a colour and a kind ("red cat"). No MLLM is called. The authors' ``f_theta`` takes ViT-B/32
features and is stored with a NumPy pickle of its options; it is not read here.

Choices where the paper is silent, or another task was meant:

* the paper trains on captions, moved to the side of pictures by a learnt linear map, for want of pictures of
  each concept; here there are pictures, and sets of one to five of them go in;
* elements are two layers and the output two more, ELU between them; the paper's elements are three layers
  that see the set's mean, which for one picture is the picture itself; our dropout is 0.1 (0.5 in the paper);
* nobody names the reference's class, so it is found by zero-shot classification among the concepts of
  ``phrases.json`` beside the network;
* :data:`STEPS` steps of AdamW, learning rate :data:`LEARNING_RATE`, chosen on val. Ten times the rate is
  worse than no personalisation on mini-circo: the negative drives the word away from its own class, which a
  name beside it makes up for in the paper's task and nothing does here;
* "a photo of $ that {T_m}" at search time, as in the comparisons that include it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from cir_utils.encoder import ClipEncoder
from cir_utils.methods.searle import Concepts, distillation, nearest_concepts, read_concepts
from cir_utils.pseudo_words import (
    encode_prompts,
    fill,
    rank_by_prompts,
    read_prompts,
    template_for,
    token_table,
)
from cir_utils.word_networks import Weights, load_weights, picture_inputs, read_phrases
from cir_utils.workbench import MethodOutput, Workbench

PROMPTS = {"default": "a photo of $ that {T_m}", "mini": "$ {T_m}"}
SENTENCES = {"default": "a photo of a $", "mini": "a $"}
TEMPERATURE = 0.25
STEPS = 30
LEARNING_RATE = 0.001
BATCH = 128


class SetNetwork(nn.Module):
    """``f_theta``: features of a set of pictures ``(B, n, D)`` to one word each, ``(B, W)``."""

    def __init__(self, inner: int, hidden: int, outer: int, dropout: float) -> None:
        super().__init__()
        self.element = nn.Sequential(
            nn.Linear(inner, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU()
        )  # fmt: skip
        self.output = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ELU(), nn.Dropout(dropout),
            nn.Linear(hidden, outer),
        )  # fmt: skip

    def forward(self, features: Tensor) -> Tensor:
        return self.output(self.element(features).mean(dim=1))


def run(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by the cosine with "a photo of $ that T_m", ``$`` being the personalised word of the reference."""
    weights = load_weights("palavra", bench.encoder)
    features = picture_inputs(bench, weights)
    concepts = read_concepts(bench.encoder, read_phrases(weights.folder))
    with bench.stage("personalising words"), torch.no_grad():
        words = trained(weights).to(bench.device)(features[:, None])
        words = personalise(bench.encoder, words, features, concepts, bench.prompts)
    source = f"{weights.source}, then {STEPS} steps of personalisation"
    return rank_by_prompts(bench, PROMPTS, words, source)


def network(encoder: ClipEncoder, dropout: float = 0.1) -> SetNetwork:
    """An untrained ``f_theta`` for ``encoder``."""
    width = encoder.width
    return SetNetwork(width, 2 * width, token_table(encoder).embedding_dim, dropout)


def trained(weights: Weights) -> SetNetwork:
    """``f_theta`` with its weights, for use."""
    hidden, inner = weights.tensors["element.0.weight"].shape
    model = SetNetwork(inner, hidden, len(weights.tensors["output.4.weight"]), 0.0)
    model.load_state_dict(weights.tensors)
    return model.eval().requires_grad_(False)


def cycle_loss(
    encoder: ClipEncoder, words: Tensor, names: list[str], embeddings: Tensor, prompts: str
) -> Tensor:
    """Cycle and ground-truth loss of a batch of concepts with ``words`` ``(B, W)``, all of different
    ``names``; ``embeddings`` ``(B, W)`` are those of the names' last words."""
    sentence = template_for(SENTENCES, prompts)
    found = encode_prompts(encoder, read_prompts(encoder, [fill(sentence)] * len(words)), words)
    wanted = encoder.encode_texts([sentence.replace("$", name) for name in names]).features
    cycle = distillation(found, wanted, TEMPERATURE)
    truth = (normalize(words, dim=1) - normalize(embeddings, dim=1)).square().mean()
    return cycle + truth


def personalise(
    encoder: ClipEncoder, words: Tensor, features: Tensor, concepts: Concepts, prompts: str
) -> Tensor:
    """Words ``(n, W)`` after :data:`STEPS` steps towards the pictures with unit ``features`` ``(n, D)`` and
    away from the sentence of their class."""
    sentence = template_for(SENTENCES, prompts)
    batches = zip(words.split(BATCH), features.split(BATCH), strict=True)
    return torch.cat([words[:0], *(_personalise(encoder, w, f, concepts, sentence) for w, f in batches)])


def _personalise(
    encoder: ClipEncoder, words: Tensor, features: Tensor, concepts: Concepts, sentence: str
) -> Tensor:
    classes = [concepts.names[row[0]] for row in nearest_concepts(features, concepts).tolist()]
    negatives = encoder.encode_texts([sentence.replace("$", name) for name in classes]).features
    prompts = read_prompts(encoder, [fill(sentence)] * len(words))
    words = words.detach().clone().requires_grad_()
    optimizer = torch.optim.AdamW([words], lr=LEARNING_RATE, weight_decay=0.0)
    right = torch.zeros(len(words), dtype=torch.long, device=words.device)
    for _ in range(STEPS):
        with torch.enable_grad():
            found = normalize(encode_prompts(encoder, prompts, words), dim=1)
            logits = torch.stack([(found * features).sum(1), (found * negatives).sum(1)], dim=1)
            (words.grad,) = torch.autograd.grad(cross_entropy(logits / TEMPERATURE, right), words)
        optimizer.step()
    return words.detach()
