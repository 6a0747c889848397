"""Figures of the embedding space: what they hold and what they refuse."""

import numpy as np
import pytest
from PIL import Image

from cir_utils.errors import InputError
from cir_utils.plots import REFERENCE, TARGET, figure_png
from cir_utils.space_plots import (
    cosine_spread,
    feature_map,
    picture_grid,
    plane_of_query,
    query_plane,
    similarity_matrix,
)

PICTURES = [Image.new("RGB", (112, 112), (20 * i, 120, 255 - 20 * i)) for i in range(12)]


def texts(fig):
    return [
        text.get_text() for text in fig.findobj(lambda artist: hasattr(artist, "get_text")) if text.get_text()
    ]


def test_picture_grid_labels_and_frames_its_pictures():
    fig = picture_grid(
        PICTURES, [f"picture {i}" for i in range(12)], roles=["reference", "target"] + [""] * 10, per_row=8
    )
    assert len(fig.axes) == 16 and {"picture 0", "picture 11", "R", "✓"} <= set(texts(fig))
    edges = [axes.spines["left"].get_edgecolor()[:3] for axes in fig.axes[:2]]
    assert [tuple(round(255 * v) for v in edge) for edge in edges] == [
        tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in (REFERENCE, TARGET)
    ]
    assert figure_png(fig)[:4] == b"\x89PNG"
    assert len(picture_grid(PICTURES[:3]).axes) == 3


def test_picture_grid_refuses_lists_that_do_not_fit():
    with pytest.raises(InputError, match="labels: 1 values for 2 pictures"):
        picture_grid(PICTURES[:2], ["a"])
    with pytest.raises(InputError, match="at least one picture"):
        picture_grid([])


def test_similarity_matrix_writes_every_value_and_frames_the_best_of_a_row():
    fig = similarity_matrix([[0.1, 0.9, 0.2], [0.3, 0.25, -0.5]], ["red cat", "blue dog"], PICTURES[:3])
    assert len(fig.axes) == 12
    assert {"0.10", "0.90", "-0.50", "red cat", "blue dog"} <= set(texts(fig))
    bold = [t.get_text() for axes in fig.axes for t in axes.texts if t.get_fontweight() == "bold"]
    assert bold == ["0.90", "0.30"]
    assert figure_png(fig)


def test_similarity_matrix_of_pictures_with_pictures():
    fig = similarity_matrix(np.eye(2), ["", ""], PICTURES[:2], row_pictures=PICTURES[:2], best=False)
    assert not [t for axes in fig.axes for t in axes.texts if t.get_fontweight() == "bold"]
    with pytest.raises(InputError, match="expected 2 x 3 values, got shape"):
        similarity_matrix(np.eye(2), ["", ""], PICTURES[:3])
    with pytest.raises(InputError, match="row_pictures: 1 for 2 rows"):
        similarity_matrix(np.eye(2), ["", ""], PICTURES[:2], row_pictures=PICTURES[:1])


def test_cosine_spread_writes_medians():
    fig = cosine_spread({"picture-picture": [0.1, 0.2, 0.6], "picture-text": [0.0, 0.05]})
    assert {"0.20", "0.03", "picture-picture", "picture-text"} <= {
        t.replace("0.02", "0.03") for t in texts(fig)
    }
    with pytest.raises(InputError, match="picture-text: there is no value"):
        cosine_spread({"picture-text": []})
    with pytest.raises(InputError, match="at least one sample"):
        cosine_spread({})


def test_feature_map_shows_targets_and_named_points():
    fig = feature_map(
        np.arange(10).reshape(5, 2), [True] + [False] * 4, {"F_r (reference)": (1, 1), "F_d": (2, 0)}
    )
    axes = fig.axes[0]
    assert [line.get_xdata().tolist() for line in axes.lines] == [[2, 4, 6, 8], [0], [0], [1], [2]]
    assert {"F_r", "F_r (reference)", "F_d", "true target"} <= set(texts(fig))
    lines = {"upright": (2.0, 0.0, 1.0), "sloping": (1.0, 2.0, 4.0)}
    axes = feature_map(np.eye(2), [False, True], {}, lines=lines).axes[0]
    assert axes.get_ylim()[1] < 1.5, "lines do not stretch the picture"
    upright, sloping = axes.lines[-2:]
    assert list(upright.get_xdata()) == [0.5, 0.5]
    assert (sloping.get_xy1(), sloping.get_slope()) == ((0, 2.0), -0.5)
    with pytest.raises(InputError, match="coordinates \\(N, 2\\) and N marks"):
        feature_map(np.zeros((3, 3)), [True] * 3, {})


def test_plane_of_query_by_hand():
    """F_d and F_r at a right angle in 3-D, F_m half out of their plane."""
    at = plane_of_query([0, 1, 0], [1, 0, 0], [0.6, 0.0, 0.8], alpha=0.25)
    assert at["F_d"] == (1.0, 0.0) and at["F_r"] == pytest.approx((0, 1))
    assert at["F_m"] == pytest.approx((0.6, 0.0))  # its shadow: what lies out of the plane is not drawn
    assert at["mix"] == pytest.approx((0.75, 0.25))
    assert at["F_q"] == pytest.approx((0.75 / np.sqrt(0.625), 0.25 / np.sqrt(0.625)))
    slanted = plane_of_query([0.6, 0.8], [1, 0], [0, 1], alpha=1.0)
    assert slanted["F_q"] == pytest.approx((0.6, 0.8)) and slanted["F_r"] == pytest.approx((0.6, 0.8))
    with pytest.raises(InputError, match="on one line"):
        plane_of_query([-1, 0], [1, 0], [0, 1], 0.1)


def test_query_plane_draws_the_vectors_where_they_are():
    fig = query_plane([0, 1, 0], [1, 0, 0], [0.6, 0.0, 0.8], 0.25, title="one query")
    (axes,) = fig.axes
    points = {
        line.get_label(): tuple(np.ravel(line.get_xydata()))
        for line in axes.lines
        if len(line.get_xdata()) == 1
    }
    assert points["F_r reference image"] == pytest.approx((0, 1))
    assert points["F_m text (its shadow)"] == pytest.approx((0.6, 0))
    assert points["F_q anchored, α = 0.25"] == pytest.approx((0.75 / np.sqrt(0.625), 0.25 / np.sqrt(0.625)))
    assert {"F_d", "F_r", "F_q", "F_m", "one query"} <= set(texts(fig))
    assert figure_png(fig)[:4] == b"\x89PNG"
