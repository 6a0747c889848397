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
    return _rank(bench, bench.modification_features)


def image_and_text(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by ``cos((F_r + F_m) / 2, x)``: the plain mean of the two unit features, brought to unit length
    again (which changes no order)."""
    return _rank(bench, normalize(bench.reference_features + bench.modification_features, dim=1))


def _rank(bench: Workbench, queries: Tensor) -> MethodOutput:
    with bench.stage("scoring"):
        return bench.output(exact_scores(queries, bench.gallery_features), bench.plain_traces())
