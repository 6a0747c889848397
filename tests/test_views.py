"""Views: what is drawn and said of a query and a ranking."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from small_world import open_bench, write_world

from cir_utils import views
from cir_utils.tables import Comparison
from cir_utils.workbench import Workbench


@pytest.fixture()
def bench(tmp_path: Path, tiny_clip: Path) -> Workbench:
    return open_bench(write_world(tmp_path / "world"), tiny_clip, tmp_path / "cache")


def test_views_show_and_describe(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(views, "figure_alt", lambda fig, text: shown.append((fig, text)))
    query = bench.queries[2]
    views.view_query(bench, 2, 1)
    fig, text = shown[0]
    assert [axes.get_xlabel() for axes in fig.axes] == ["reference image", "", "true target"]
    assert query.text in text and "1 of its 2 true targets" in text
    views.view_query(bench, 2, query.targets)
    assert len(shown[1][0].axes) == 4
    images = [query.reference, query.targets[1], query.targets[0]]
    assert views.view_ranking(bench, 2, images, [3.0, 2.0, 1.0], "by hand") == 2
    fig, text = shown[2]
    assert [axes.get_xlabel() for axes in fig.axes] == ["1  3.000", "2  2.000", "3  1.000"]
    assert text.startswith("by hand; ") and text.endswith("by place: 2, 3.")


def test_comparisons_are_charts_whose_text_holds_every_number(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(views, "figure_alt", lambda fig, text: shown.append((fig, text)))
    results = {"method": ["a", "b"], "mAP@5": [0.5, 0.25], "mAP@5 low": [0.4, 0.2], "mAP@5 high": [0.6, 0.3]}
    paired = {"method": ["a"], "against": ["b"], "difference": [0.25]}
    paired |= {"difference low": [-0.05], "difference high": [0.3]}
    tables = (pd.DataFrame(results), pd.DataFrame(paired), pd.DataFrame())
    compared = Comparison("mini-circo val, gallery 9", "mAP@5", *tables)
    views.view_results(compared)
    views.view_differences(compared)
    (first, said), (second, difference) = shown
    assert said == "a 50.0 [40.0, 60.0]; b 25.0 [20.0, 30.0]" and difference == "a  −  b +25.0 [-5.0, 30.0]"
    assert first.axes[0].get_title() == "mini-circo val"
    points = [line for line in second.axes[0].lines if line.get_marker() == "o"]
    assert points[0].get_markerfacecolor() == "white", "0 lies in the interval"
