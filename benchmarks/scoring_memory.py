"""How much memory scoring takes at CIRCO's size: 800 queries against 123,403 x 768 float16 features.

Queries are scored in blocks; of every block the best 50 are kept, so the scores of one block are the largest
thing beside the features. Features are random (no model, no pictures). From the folder of the checkout::

    python -m benchmarks.scoring_memory debias   # SDR-CIR: one product with the composed query
    python -m benchmarks.scoring_memory coarse   # X^R: S^t and S^v on captions and pictures, then RRF

prints one JSON object with the peak of the whole process in MB (Python and torch included) and the seconds
of the whole. Scoring is exact (float64, row by row); fewer ``--queries`` make it shorter and
leave the peak as it is.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cir_utils.device import peak_bytes
from cir_utils.scoring import certified_rrf_topk, composed_query, exact_scores, rank_by, summed_scores

#: Rows that are made at a time, so that making the features is not what takes the memory.
CHUNK = 4096
KEPT = 50


def features(rows: int, width: int, seed: int) -> Tensor:
    """Random features of unit length, ``(rows, width)`` float16."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.empty(rows, width, dtype=torch.float16)
    for chunk in made.split(CHUNK):
        chunk.copy_(normalize(torch.randn(chunk.shape, generator=generator), dim=1))
    return made


def debias(queries: int, gallery: int, width: int, block: int) -> Tensor:
    """SDR-CIR's best gallery rows of every query, ``(queries, KEPT)``."""
    pictures = features(gallery, width, 0)
    F_r, F_d, F_m = (features(queries, width, seed).float() for seed in (1, 2, 3))
    best = []
    for rows in torch.arange(queries).split(block):
        w = composed_query(*(normalize(side[rows], dim=1) for side in (F_r, F_d, F_m)), alpha=0.15, beta=0.35)
        best.append(rank_by(exact_scores(w, pictures))[:, :KEPT].clone())
    return torch.cat(best)


def coarse(queries: int, gallery: int, width: int, block: int) -> Tensor:
    """The best gallery rows of every query after X^R's coarse stage, ``(queries, KEPT)``."""
    pictures, captions = features(gallery, width, 0), features(gallery, width, 1)
    C_t, C_v = features(queries, width, 2), features(queries, width, 3)
    best = []
    for rows in torch.arange(queries).split(block):
        S_t = summed_scores(C_t[rows], captions, pictures)
        S_v = summed_scores(C_v[rows], captions, pictures)
        best.append(certified_rrf_topk(S_t, S_v, KEPT)[0])
    return torch.cat(best)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("debias", "coarse"))
    parser.add_argument("--queries", type=int, default=800)
    parser.add_argument("--gallery", type=int, default=123_403)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--block", type=int, default=16, help="queries a block")
    chosen = parser.parse_args(argv)
    begin = time.perf_counter()
    score = debias if chosen.what == "debias" else coarse
    best = score(chosen.queries, chosen.gallery, chosen.width, chosen.block)
    found = vars(chosen) | {
        "peak_mb": peak_bytes() / 1e6,
        "seconds": round(time.perf_counter() - begin, 1),
        "threads": torch.get_num_threads(),
        "kept": list(best.shape),
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
