"""The baselines without an MLLM: a random order, and one CLIP feature as the query.

The three features are what every table of both papers starts from, and corners of the triangle that SDR-CIR's
composed query lies in. The random order says what guessing is worth: R@k is k / N on average."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from cir_utils.scoring import exact_scores
from cir_utils.workbench import MethodOutput, Workbench


def random_order(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by scores drawn uniformly from [0, 1), with no look at picture or text.

    The draw hangs on the query's id alone, so a ranking is the same on every device and whichever other
    queries are ranked with it."""
    with bench.stage("scoring"):
        drawn = [_draws(query.id, len(bench.benchmark.gallery)) for query in bench.queries]
        scores = torch.from_numpy(np.stack(drawn)).to(bench.device)
        return bench.output(scores, bench.plain_traces())


def _draws(query_id: str, count: int) -> np.ndarray:
    """``count`` float64 numbers from [0, 1), always the same for a query. (The hash built into Python differs
    from process to process, hence SHA-256.)"""
    seed = int.from_bytes(hashlib.sha256(query_id.encode("utf-8")).digest())
    return np.random.Generator(np.random.PCG64(seed)).random(count)


def image_only(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by ``cos(F_r, x)``. The reference itself, where it stays in the gallery, comes first."""
    return _rank(bench, bench.reference_features)


def text_only(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by ``cos(F_m, x)``."""
    return _rank(bench, bench.modification_features, with_text=True)


def image_and_text(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by ``cos((F_r + F_m) / 2, x)``: the plain mean of the two unit features, brought to unit length
    again (which changes no order)."""
    mean = normalize(bench.reference_features + bench.modification_features, dim=1)
    return _rank(bench, mean, with_text=True)


def _rank(bench: Workbench, queries: Tensor, with_text: bool = False) -> MethodOutput:
    """The gallery by ``queries`` ``(Q, D)``; ``with_text`` counts the modification texts that were cut, and
    marks them in the traces."""
    traces = bench.plain_traces()
    counts: dict[str, int] = {}
    if with_text:
        cut = bench.cut(bench.texts)
        counts["cut_texts"] = sum(cut)
        for trace, is_cut in zip(traces, cut, strict=True):
            trace["cut"] = is_cut
    with bench.stage("scoring"):
        return bench.output(exact_scores(queries, bench.gallery_features), traces, counts=counts)
