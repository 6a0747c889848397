"""CIReVL, vision by language (arXiv:2310.09291, section 3): caption, edit, text-to-image retrieval.

| step | here |
|---|---|
| a vision-language model captions the reference | ``bench.agents.caption`` |
| a language model rewrites the caption by the modification text | ``bench.agents.edit_caption`` |
| the new caption, encoded by CLIP, is the query: rank by its cosine with the pictures | :func:`run` |

The method is modular: it says nothing about which models do the steps. Its published figures are BLIP-2's
captions edited by GPT-3.5-turbo; here one MLLM does both, the second time without seeing the picture.

Choices where the paper is silent, or where its parts are exchangeable:

* the prompts are ours (the paper prints its own, one for each benchmark; ours differ by domain, as those of
  all methods here);
* an answer that cannot be used is asked for once more; then the caption with the modification text behind it
  stands in (the authors' code takes the modification text alone), counted as a fallback;
* the edited caption goes to CLIP as it is; its end is cut at CLIP's context, which is counted;
* the reference image stays in the ranking or leaves it as the benchmark's protocol says; ties go by gallery
  order.

Two MLLM calls a query, the first shared by all queries with one reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cir_utils.methods.description_only import text_counts
from cir_utils.scoring import exact_scores
from cir_utils.workbench import MethodOutput, Workbench


def run(bench: Workbench, settings: Mapping[str, Any]) -> MethodOutput:
    """Rank by ``cos(F, x)``, ``F`` the CLIP feature of the edited caption."""
    with bench.stage("captioning the references"):
        captions = bench.agents.caption(bench.reference_paths)
    with bench.stage("editing captions"):
        edited = bench.agents.edit_caption([caption.text for caption in captions], bench.texts)
    encoded = bench.encode_texts([answer.text for answer in edited])
    traces = bench.plain_traces()
    for row, (trace, caption, answer) in enumerate(zip(traces, captions, edited, strict=True)):
        trace["said"] = [["caption of the reference", caption.text], ["edited caption", answer.text]]
        trace["cut"], trace["unknown_words"] = encoded.cut[row], list(encoded.unknown[row])
        trace["agents"] = [caption.trace, answer.trace]
    counts = {
        "fallbacks": sum(answer.fallback for answer in [*captions, *edited]),
        **text_counts([encoded]),
    }
    with bench.stage("scoring"):
        return bench.output(exact_scores(encoded.features, bench.gallery_features), traces, counts=counts)
