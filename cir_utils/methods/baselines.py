"""The three baselines without an MLLM: one CLIP feature as the query.

They are what every table of both papers starts from, and corners of the triangle that SDR-CIR's composed
query lies in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn.functional import normalize

from cir_utils.scoring import exact_scores
from cir_utils.workbench import MethodOutput, Workbench


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
