"""The numbers of README.md come from run records."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_world import open_bench, write_world

from cir_utils.errors import InputError
from cir_utils.experiments import ABLATIONS, METHODS, run_experiments
from data_scripts.make_readme_tables import MARKS, README, filled

TEXT = "# Title\n\n<!-- table: small-val -->\nold\n<!-- end of table -->\n\nAfter.\n"


def test_readme_is_in_step_with_the_records() -> None:
    text = README.read_text(encoding="utf-8")
    if not MARKS.search(text):
        pytest.skip("README.md has no generated table yet")
    assert filled(text) == text, "run `python -m data_scripts.make_readme_tables`"


def test_a_table_is_made_of_records_alone(tmp_path: Path, tiny_clip: Path) -> None:
    bench = open_bench(write_world(tmp_path / "world"), tiny_clip, tmp_path / "cache")
    chosen = [*METHODS[:6], ABLATIONS[1]]
    runs = run_experiments(bench, tmp_path / "results" / "small-val", chosen, whole=False)
    text = filled(TEXT, tmp_path / "results")
    assert text.startswith("# Title\n\n<!-- table: small-val -->\n\nmini-circo val, 8 queries")
    assert text.endswith("<!-- end of table -->\n\nAfter.\n") and "old" not in text
    for run in runs:
        assert f"| {run.name} | {100 * run.metrics['mAP@5']:.2f} [" in text
    assert "| sdr-cir | description-only |" in text and "| sdr-cir | sdr-cir, Anchor only |" in text
    assert "Models tiny-clip@" in text and "scripted@1; settings" in text and "alpha 0.15" in text
    assert filled(text, tmp_path / "results") == text


def test_a_mark_without_records_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run folder in .*small-val"):
        filled(TEXT, tmp_path)
