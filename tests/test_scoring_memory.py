"""Scoring at CIRCO's size: the memory of a whole process, measured from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cir_utils.profiles import PACKAGE

SCRIPT = PACKAGE.parent / "benchmarks" / "scoring_memory.py"
GALLERY_MB = 123_403 * 768 * 2 / 1e6


@pytest.mark.slow
@pytest.mark.skipif(not SCRIPT.is_file(), reason="benchmarks/ is not here: the package is installed")
@pytest.mark.parametrize(("what", "galleries", "queries"), [("debias", 1, 8), ("coarse", 2, 4)])
def test_a_gallery_of_circos_size_is_scored_within_the_memory(
    what: str, galleries: int, queries: int
) -> None:
    """123,403 x 768 float16 features stay under 1.5 GB. More queries only mean more blocks: two here, of what
    would be hundreds."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scoring_memory", what]
        + ["--queries", str(queries), "--block", str(queries // 2)],
        cwd=PACKAGE.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert (found["gallery"], found["width"], found["kept"]) == (123_403, 768, [queries, 50])
    assert galleries * GALLERY_MB < found["peak_mb"] < 1500
