"""LDRE: divergent captions, divergent edits, and their weighted ensemble (SIGIR 2024, doi
10.1145/3626772.3657740).

| step | here |
|---|---|
| dense caption generator: ``n`` captions of the reference, sampled | :func:`divergent_captions` |
| divergent compositional reasoning: each caption edited by ``T_m`` | :func:`divergent_captions` |
| semantic relevance scorer: one score a pair of caption and edited caption | :func:`relevance` |
| divergent caption ensemble: features of the edited captions, weighted by these scores | :func:`weights` |
| text-to-image retrieval with the ensemble's feature | :func:`run` |

The relevance of a pair is how far its edit carries: ``before`` and ``after`` are the CLIP features of caption
and edited caption, and the largest drops ``max(0, cos(before, x) - cos(after, x))`` over the gallery are
added up. A caption that has nothing to do with the modification is hardly edited, so nothing drops, and it
gets little weight; one whose edit turns away from pictures like the reference gets much.

The paper's equations were not at hand: this is its published abstract and overview with the figures of its
public code (15 captions; the five largest drops; scores divided by the largest of them, then by a temperature
of 0.04, under a softmax). Choices, and where they differ from that code:

* the weights are those of one query. The code adds the drops of all queries and weighs "the first caption",
  "the second", ... of all queries alike; captions are exchangeable samples, and a ranking here never hangs on
  which other queries are asked;
* where no similarity drops anywhere (every edit gives its caption back), all weights are equal;
* sampling is by temperature (0.7, the dense captioner's usual one; seeds ``seed``, ``seed + 1``, ...). The
  code samples from the nucleus, with a captioner of its own;
* equal captions are edited once and weigh as often as they were sampled;
* the drops are looked for in the whole gallery, the reference included, for a query is composed before
  anything is ranked. CIRR's subset is ranked by the same query;
* a text that cannot be used has the stand-in of its agent, counted as a fallback, and takes part;
* prompts are ours.

``2 * captions`` MLLM calls a query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cir_utils.agents import Text
from cir_utils.methods.description_only import text_counts
from cir_utils.scoring import exact_scores
from cir_utils.workbench import MethodOutput, Texts, Workbench

#: How many gallery rows are widened to float64 at a time.
BLOCK_ROWS = 8192
#: How many pairs of a query, the heaviest first, are shown to readers; the trace keeps all.
SHOWN = 3


@dataclass(frozen=True)
class Divergent:
    """Sampled captions of every query's reference, and each one edited: ``captions`` and ``edited`` are
    ``Q`` lists of ``n``; ``before`` and ``after`` their CLIP features ``(Q, n, D)`` of unit length."""

    captions: list[list[Text]]
    edited: list[list[Text]]
    before: Tensor
    after: Tensor
    encoded: Texts

    def counts(self) -> dict[str, int]:
        """The fallbacks, the edited captions that CLIP cut, and the queries with unknown words in any."""
        answers = [answer for group in (self.captions, self.edited) for row in group for answer in row]
        samples = len(self.captions[0]) if self.captions else 0
        groups = [
            Texts(
                self.after[:, number],
                self.encoded.cut[number::samples],
                self.encoded.unknown[number::samples],
            )
            for number in range(samples)
        ]
        return {"fallbacks": sum(answer.fallback for answer in answers), **text_counts(groups)}

    def traces(self, bench: Workbench) -> list[dict[str, Any]]:
        """The beginning of every query's trace: all pairs, and what every agent said."""
        traces = bench.plain_traces()
        samples = len(self.captions[0]) if self.captions else 0
        for row, trace in enumerate(traces):
            own = slice(row * samples, (row + 1) * samples)
            pairs = list(zip(self.captions[row], self.edited[row], strict=True))
            trace["said"] = []
            trace["captions"] = [
                {"caption": caption.text, "edited": edited.text} for caption, edited in pairs
            ]
            trace["cut"] = any(self.encoded.cut[own])
            words = [word for unknown in self.encoded.unknown[own] for word in unknown]
            trace["unknown_words"] = list(dict.fromkeys(words))
            trace["agents"] = [answer.trace for pair in pairs for answer in pair]
        return traces


def run(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by the cosine of each picture with the ensemble of the edited captions."""
    found = divergent_captions(bench, settings["captions"])
    with bench.stage("weighing captions"):
        scores = torch.stack(
            [
                relevance(before, after, bench.gallery_features, settings["relevance_top"])
                for before, after in zip(found.before, found.after, strict=True)
            ]
        )
        weighed = weights(scores, settings["relevance_temperature"])
        queries = normalize((weighed[:, :, None] * found.after.double()).sum(dim=1), dim=1)
    traces = found.traces(bench)
    for trace, own, score in zip(traces, weighed.tolist(), scores.tolist(), strict=True):
        for pair, weight, value in zip(trace["captions"], own, score, strict=True):
            pair["weight"], pair["relevance"] = round(weight, 4), round(value, 4)
        heaviest = sorted(trace["captions"], key=lambda pair: -pair["weight"])[:SHOWN]
        trace["said"] = [
            [f"caption with weight {pair['weight']:.2f}", f"{pair['caption']} → {pair['edited']}"]
            for pair in heaviest
        ]
    with bench.stage("scoring"):
        scored = exact_scores(queries, bench.gallery_features)
        return bench.output(scored, traces, counts=found.counts())


def divergent_captions(bench: Workbench, samples: int) -> Divergent:
    """``samples`` captions of every reference, sampled from the dense captioner, and each of them edited by
    the query's modification text."""
    with bench.stage("captioning the references"):
        captions = bench.agents.caption_dense(bench.reference_paths, samples, seed=bench.seed)
    flat = [caption.text for row in captions for caption in row]
    with bench.stage("editing captions"):
        answers = bench.agents.edit_caption(flat, [text for text in bench.texts for _ in range(samples)])
    edited = [answers[start : start + samples] for start in range(0, len(answers), samples)]
    before, after = bench.encode_texts(flat), bench.encode_texts([answer.text for answer in answers])
    shape = (len(captions), samples, -1)
    return Divergent(captions, edited, before.features.view(shape), after.features.view(shape), after)


def relevance(before: Tensor, after: Tensor, gallery: Tensor, top: int) -> Tensor:
    """Semantic relevance ``(n,)`` float64 of the ``n`` pairs of one query: the sum of the ``top`` largest
    drops ``max(0, cos(before, x) - cos(after, x))`` over the gallery (all of them, where it is smaller).

    ``before``, ``after`` ``(n, D)`` and ``gallery`` ``(N, D)`` are of unit length. A query's products have
    one shape whatever else is asked, so its scores do not hang on other queries."""
    change = before.double() - after.double()
    largest = torch.cat(
        [
            (change @ rows.double().T).clamp(min=0).topk(min(top, rows.shape[0]), dim=1).values
            for rows in gallery.split(BLOCK_ROWS)
        ],
        dim=1,
    )
    return largest.topk(min(top, largest.shape[1]), dim=1).values.sum(dim=1)


def weights(scores: Tensor, temperature: float) -> Tensor:
    """Weights ``(Q, n)`` float64 that add up to 1: the softmax of the relevance scores ``(Q, n)``, divided by
    the largest one of the query and by ``temperature``. All equal where every score is 0."""
    most = scores.amax(dim=1, keepdim=True)
    return (scores / torch.where(most > 0, most, 1.0) / temperature).softmax(dim=1)
