"""The MLLM's description of the target as the query: SDR-CIR before its Anchor and Debias steps.

Rank by ``S_d = cos(F_d, x)``. With ``description=selective`` the MLLM is asked in the four stages of
Selective CoT (what SDR-CIR's ablation calls description only), with ``description=plain`` it is asked for the
description directly (the ablation without CoT). :func:`describe` is shared with ``sdr_cir``, so that the two
differ in the scoring alone.

What the method's error table demands happens here:

* a description that merely repeats the reference was asked for again by the agent (counted: ``asked_again``);
* a text over CLIP's context is cut, its end token kept, and counted (``cut_texts``); before a description is
  cut its explicit targets are put in front of it, so that they survive;
* a vague text (no explicit and no implicit target) has nothing to search for: that query falls back to
  retrieval by the reference image, its trace says so and lists attributes that one could specify (``vague``).
  A plain description has no stages, so it is never found vague;
* words that the tokenizer does not know are listed in the trace (``unknown_words`` counts the queries that
  have any).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cir_utils.agents import Described, Text
from cir_utils.scoring import exact_scores
from cir_utils.workbench import MethodOutput, Texts, Workbench


@dataclass(frozen=True)
class Descriptions:
    """Target descriptions of all queries: the texts, ``F_d`` ``(Q, D)`` in ``features``, and per query
    whether the modification text was ``vague``; ``traces`` and ``counts`` are what the run keeps of them."""

    texts: list[str]
    features: Tensor
    vague: list[bool]
    traces: list[dict[str, Any]]
    counts: dict[str, int]


def run(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by ``cos(F_d, x)``; vague queries by ``cos(F_r, x)``."""
    described = describe(bench, settings["description"])
    with bench.stage("scoring"):
        scores = with_fallback(bench, described, exact_scores(described.features, bench.gallery_features))
        return bench.output(scores, described.traces, counts=described.counts)


def describe(bench: Workbench, how: str) -> Descriptions:
    """Ask for the target descriptions (``how``: "selective" or "plain") and encode them: one MLLM call a
    query."""
    answers: list[Described | Text]
    with bench.stage("describing"):
        if how == "selective":
            answers = [*bench.agents.selective_cot(bench.reference_paths, bench.texts)]
        else:
            answers = [*bench.agents.describe_target(bench.reference_paths, bench.texts)]
    texts = [answer.text if isinstance(answer, Text) else answer.description for answer in answers]
    encoded, modifications = bench.encode_texts(texts), bench.encode_texts(bench.texts)
    if any(encoded.cut):
        sent = [
            changes_first(answer, text) if is_cut else text
            for answer, text, is_cut in zip(answers, texts, encoded.cut, strict=True)
        ]
        encoded = bench.encode_texts(sent)
    else:
        sent = texts
    traces = bench.plain_traces()
    vague, asked_again, repeating, fallbacks = [], 0, 0, 0
    for number, (answer, trace) in enumerate(zip(answers, traces, strict=True)):
        trace["said"] = [["target description", texts[number]]]
        if isinstance(answer, Described):
            vague.append(answer.vague)
            asked_again += answer.retried
            repeating += answer.repeats_reference
            if answer.answer is not None:
                trace["stages"] = answer.answer.model_dump()
            if answer.note:
                trace["said"].append(["note", answer.note])
        else:
            vague.append(False)
        fallbacks += answer.fallback
        if sent[number] != texts[number]:
            trace["said"].append(["cut: encoded with its changes in front", sent[number]])
        trace["vague"] = vague[-1]
        trace["cut"] = encoded.cut[number] or modifications.cut[number]
        trace["unknown_words"] = list(dict.fromkeys(encoded.unknown[number] + modifications.unknown[number]))
        trace["agents"] = [answer.trace]
    counts = {
        "vague": sum(vague),
        "asked_again": asked_again,
        "still_repeating": repeating,
        "fallbacks": fallbacks,
        **text_counts([encoded, modifications]),
    }
    return Descriptions(texts, encoded.features, vague, traces, counts)


def changes_first(answer: Described | Text, text: str) -> str:
    """A description that is too long for CLIP, with the explicit targets put in front of it ("colour: blue"
    gives blue), so that the cut cannot take them. A plain description names no targets and stays as it is."""
    if not isinstance(answer, Described) or answer.answer is None:
        return text
    changes = [target.partition(":")[2].strip() or target for target in answer.answer.explicit_targets]
    return f"{', '.join(changes)}. {text}" if changes else text


def with_fallback(bench: Workbench, described: Descriptions, scores: Tensor) -> Tensor:
    """``scores`` ``(Q, N)`` with the rows of vague queries replaced by ``cos(F_r, x)``."""
    rows = [row for row, is_vague in enumerate(described.vague) if is_vague]
    if rows:
        scores = scores.clone()
        places = torch.tensor(rows, device=scores.device)
        scores[places] = exact_scores(bench.reference_features[places], bench.gallery_features)
    return scores


def text_counts(groups: list[Texts]) -> dict[str, int]:
    """Over groups of encoded texts, one text a query in each: how many texts were cut, and how many queries
    have a text with unknown words."""
    unknown = [any(words) for words in zip(*(group.unknown for group in groups), strict=True)]
    return {"cut_texts": sum(sum(group.cut) for group in groups), "unknown_words": sum(unknown)}
