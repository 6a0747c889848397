"""WeiMoCIR: weighted modality fusion and similarity (arXiv:2409.04918, its method section).

| step | here |
|---|---|
| query ``q = (1-alpha) F_r + alpha F_m`` | ``text_weight`` is the paper's alpha |
| captions of every gallery picture by an MLLM | ``xr.gallery_captions``, shared with X^R |
| ``S = (1-beta) cos(q, I_a) + beta mean over captions cos(q, C_a)`` | ``caption_weight`` is its beta |

No language model touches the query: the MLLM works for the gallery alone, once and for all queries. The
published alpha and beta for CLIP are 0.8 and 0.1.

Choices where the paper is silent, or differs:

* one caption a picture, the one that X^R reads, where the paper asks for three and takes the mean of their
  similarities;
* ``F_r`` and ``F_m`` are of unit length before they are mixed, and ``q`` after;
* the reference image stays in the ranking or leaves it as the benchmark's protocol says; ties go by gallery
  order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.nn.functional import normalize

from cir_utils.methods.xr import gallery_captions
from cir_utils.scoring import exact_scores
from cir_utils.workbench import MethodOutput, Workbench


def run(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by the weighted similarity of the weighted query."""
    alpha, beta = settings["text_weight"], settings["caption_weight"]
    captions = gallery_captions(bench)
    F_r, F_m = bench.reference_features.double(), bench.modification_features.double()
    query = normalize((1 - alpha) * F_r + alpha * F_m, dim=1)
    cut = bench.cut(bench.texts)
    traces = bench.plain_traces()
    for trace, is_cut in zip(traces, cut, strict=True):
        trace["cut"] = is_cut
    counts = {"cut_texts": sum(cut), "cut_captions": sum(bench.cut(captions))}
    C_a = bench.encode_texts(captions).features
    with bench.stage("scoring"):
        scores = exact_scores(query, bench.gallery_features).mul_(1 - beta)
        scores += beta * exact_scores(query, C_a)
        return bench.output(scores, traces, counts=counts)
