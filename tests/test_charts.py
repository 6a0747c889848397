"""Charts: what is drawn where, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from cir_utils.charts import (
    answers_and_truths,
    calibration,
    calibration_chart,
    curves,
    interval_chart,
    point_map,
    verification_table,
)
from cir_utils.errors import InputError
from cir_utils.plots import figure_png


def test_curves_draw_their_values_and_name_their_ends() -> None:
    fig = curves(
        [1, 5, 10], {"a": [0, 1, 2], "b": [0, 2, 4]}, xlabel="k'", ylabel="recall", marks={"here": 5}
    )
    axes = fig.axes[0]
    assert [line.get_ydata().tolist() for line in axes.lines[:2]] == [[0, 1, 2], [0, 2, 4]]
    assert axes.lines[2].get_xdata() == [5, 5]
    assert [text.get_text() for text in axes.texts] == ["here", "a", "b"]
    assert len({line.get_linestyle() for line in axes.lines[:2]}) == 2
    with pytest.raises(InputError, match="a: 2 values for 3 points"):
        curves([1, 5, 10], {"a": [0, 1]}, xlabel="", ylabel="")


def test_interval_chart_hollows_the_unsure_differences() -> None:
    fig = interval_chart(["sure", "unsure"], [0.2, 0.1], [0.1, -0.1], [0.3, 0.3], xlabel="d", zero=True)
    axes = fig.axes[0]
    points = [line for line in axes.lines if line.get_marker() == "o"]
    assert [float(np.ravel(point.get_xdata())[0]) for point in points] == [0.2, 0.1]
    assert to_hex(points[0].get_markerfacecolor()) != "#ffffff"
    assert points[1].get_markerfacecolor() == "white"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["sure", "unsure"]
    interval_chart(["one query"], [0.2], [np.nan], [np.nan], xlabel="")
    with pytest.raises(InputError, match="one mean, low and high"):
        interval_chart(["a"], [0.1], [0.1], [], xlabel="")


def test_calibration_by_hand() -> None:
    predicted, actual, counts = calibration([0.1, 0.3, 0.9, 1.0], [False, True, True, True], bins=2)
    assert counts.tolist() == [2, 2]
    assert predicted == pytest.approx([0.2, 0.95])
    assert actual.tolist() == [0.5, 1.0]
    empty = calibration([1.0], [True], bins=2)
    assert np.isnan(empty[0][0]) and empty[2].tolist() == [0, 1]
    with pytest.raises(InputError, match="from 0 to 1"):
        calibration([1.5], [True])
    fig = calibration_chart({"caption": ([0.1, 0.9], [False, True]), "picture": ([0.4, 0.6], [True, True])})
    assert len(fig.axes) == 2
    assert fig.axes[0].lines[1].get_ydata().tolist() == [0, 1]
    fig = calibration_chart({"caption": ([0.1] * 10 + [0.9] * 9, [False] * 10 + [True] * 9)})
    hollow = [line for line in fig.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert [line.get_xdata().tolist() for line in hollow] == [[pytest.approx(0.9)]], (
        "nine are too few, ten not"
    )


def test_answers_are_laid_flat_with_what_was_expected() -> None:
    answers = [
        [{"text": [0.9, 0.2], "vision": [0.8, 0.1]}, {"text": [0.7, 0.6], "vision": [0.5, 0.4]}],
        [{"text": [0.3], "vision": [0.0]}],
    ]
    flat = answers_and_truths(answers, [[True, False], [True]])
    assert flat["text"] == [(0.9, True), (0.2, False), (0.7, True), (0.6, False), (0.3, True)]
    assert flat["vision"] == [(0.8, True), (0.1, False), (0.5, True), (0.4, False), (0.0, True)]
    with pytest.raises(ValueError, match="shorter"):
        answers_and_truths(answers, [[True, False]])


def test_verification_table_marks_each_answer() -> None:
    pictures = [Image.new("RGB", (112, 112), colour) for colour in ("red", "blue")]
    fig = verification_table(
        pictures,
        ["it is red", "it is blue"],
        [True, False],
        {"caption": [[True, False], [False, True]], "picture": [[True, True], [False, True]]},
        [True, False],
        ["1", "2"],
        "title",
    )
    texts = [text.get_text() for text in fig.axes[-1].texts]
    assert texts[:2] == ["it is red\nexpected: T", "it is blue\nexpected: F"]
    assert texts[2:] == [
        "caption: T ✓", "caption: F ✓", "caption: F ✗", "caption: T ✗",
        "picture: T ✓", "picture: T ✗", "picture: F ✗", "picture: T ✗",
    ]  # fmt: skip
    assert len(fig.axes) == 3
    assert figure_png(fig)[:4] == b"\x89PNG"
    with pytest.raises(InputError, match="caption: expected answers for 2 pictures"):
        verification_table(pictures, ["a"], [True], {"caption": [[True]]}, [True, False])


def test_a_point_map_has_every_point_and_rings() -> None:
    figure = point_map(
        [0.0, 1, 2], [3.0, 4, 5], [10.0, 30, 20], xlabel="a", ylabel="b", marked=[False, True, True], best=1
    )
    axes = figure.axes[0]
    assert axes.collections[0].get_offsets().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert axes.collections[0].get_array().tolist() == [10, 30, 20]
    assert axes.lines[0].get_xydata().tolist() == [[1, 4]]
    ink = [edge[3] for edge in axes.collections[0].get_edgecolors()]  # "none" is wholly transparent
    assert ink == [0, 1, 1]
    for x, marked in (([], ()), ([1.0, 2], ()), ([1.0], [True, False])):
        with pytest.raises(InputError, match="point map: expected"):
            point_map(x, [1.0], [1.0], xlabel="a", ylabel="b", marked=marked)
