"""How much memory a whole run takes at CIRCO's size: the method's scores, its rankings of 123,403 pictures,
the metrics and the run folder.

Features are random and the agents answer at once (no model, no pictures). From the folder of the checkout::

    python -m benchmarks.run_memory sdr-cir --queries 800
    python -m benchmarks.run_memory xr --queries 800

prints one JSON object with the peak of the whole process in MB (Python, torch and the features included),
what of it was there before the run, and the seconds of the run and of writing it. The run's part grows with
the number of queries, so that fewer tell the rest; a smaller ``--width`` takes from the features alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.scoring_memory import CHUNK
from cir_utils.agents import Agents, Described, Imagined, Text
from cir_utils.benchmarks import Benchmark, Protocol, Query
from cir_utils.device import peak_bytes
from cir_utils.files import sha256_file
from cir_utils.methods import resolve_settings
from cir_utils.mllm import Answer, Request, Verdict, VerifyItem
from cir_utils.response_cache import ResponseCache
from cir_utils.runs import RANKINGS, run_method
from cir_utils.workbench import Texts, Workbench

SETTINGS = {"alpha": 0.15, "beta": 0.35, "lambda": 0.15, "k_prime": 100, "kappa": 60}


def _features(rows: int, width: int, seed: int) -> Tensor:
    """Random features of unit length, ``(rows, width)`` float32, as a workbench has them."""
    made = torch.empty(rows, width)
    generator = torch.Generator().manual_seed(seed)
    for chunk in made.split(CHUNK):
        chunk.copy_(normalize(torch.randn(chunk.shape, generator=generator), dim=1))
    return made


class SameAnswer(Agents):
    """Agents that say the same to everything, at once."""

    def caption(self, paths: Sequence[Path]) -> list[Text]:
        return [Text("a red car", False, {})] * len(paths)

    def selective_cot(self, paths: Sequence[Path], modifications: Sequence[str]) -> list[Described]:
        return [Described("a red car", None, False, (), False, False, False, "", {})] * len(paths)

    def imagine_text(self, captions: Sequence[str], modifications: Sequence[str]) -> list[Imagined]:
        return [Imagined("a red car", (), (), (), False, {})] * len(captions)

    def imagine_vision(self, paths: Sequence[Path], modifications: Sequence[str]) -> list[Imagined]:
        return self.imagine_text([""] * len(paths), modifications)


class Nobody:
    """An MLLM that is never asked."""

    identifier = "nobody"

    def generate(self, requests: Sequence[Request]) -> list[Answer]:
        raise AssertionError("not asked")

    def verdicts(self, items: Sequence[VerifyItem]) -> list[list[Verdict]]:
        raise AssertionError("not asked")


class Bench(Workbench):
    """A workbench whose features are random."""

    width = 64

    def encode_texts(self, texts: Sequence[str]) -> Texts:
        rows = len(texts)
        return Texts(_features(rows, self.width, rows), [False] * rows, [[] for _ in texts])

    def cut(self, texts: Sequence[str]) -> list[bool]:
        return [False] * len(texts)


def make_bench(queries: int, gallery: int, width: int) -> Bench:
    ids = tuple(range(1000, 1000 + gallery))
    asked = tuple(
        Query(str(number), ids[number], f"make it {number}", (ids[-1 - number],), ids[-1 - number])
        for number in range(queries)
    )
    protocol = Protocol("circo", "val", "made up", gallery, "kept", "made up", False, queries)
    bench = Bench(
        Benchmark("circo", "val", asked, ids, Path(), protocol),
        profile="mini", encoder="stub", mllm="stub", prompts="mini", settings=dict(SETTINGS),
        settings_source="the benchmark", device=torch.device("cpu"), cache_dir=Path(),
    )  # fmt: skip
    bench.width = width
    bench.gallery_features = _features(gallery, width, 0)
    bench.reference_features = _features(queries, width, 1)
    bench.agents = SameAnswer(Nobody(), ResponseCache(), "mini")
    return bench


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method", choices=("image-only", "sdr-cir", "xr"), help="xr: its coarse stage")
    parser.add_argument("--queries", type=int, default=800)
    parser.add_argument("--gallery", type=int, default=123_403)
    parser.add_argument("--width", type=int, default=768)
    chosen = parser.parse_args(argv)
    bench = make_bench(chosen.queries, chosen.gallery, chosen.width)
    given = {"stages": "coarse"} if chosen.method == "xr" else {}
    before, begin = peak_bytes(), time.perf_counter()
    run = run_method(bench, chosen.method, resolve_settings(chosen.method, SETTINGS, given))
    ranked, written = peak_bytes(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = run.save(Path(folder) / "run")
        digest = sha256_file(path / RANKINGS)
        saved, done = peak_bytes(), time.perf_counter()
        found = vars(chosen) | {
            "before_mb": before / 1e6,
            "ranked_mb": ranked / 1e6,
            "peak_mb": saved / 1e6,
            "run_seconds": round(written - begin, 1),
            "save_seconds": round(done - written, 1),
            "rankings_mb": (path / RANKINGS).stat().st_size / 1e6,
            "rankings_sha256": digest,
        }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
