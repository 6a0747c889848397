"""The figures: what they hold, what they refuse, and that they read without colour."""

import base64
import html
import io
import re

import nbformat
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from cir_utils import plots
from cir_utils.errors import InputError
from cir_utils.notebooks import to_html
from cir_utils.plots import (
    figure_alt,
    figure_png,
    heatmap,
    ranked_strip,
    score_breakdown,
    show_query,
    slope_chart,
    triangle_grid,
    weight_triangle,
)
from cir_utils.report import thumbnail_address

PICTURES = [Image.new("RGB", (112, 112), (20 * i, 120, 255 - 20 * i)) for i in range(12)]


def texts(fig):
    """Every text that the figure shows."""
    return [
        text.get_text() for text in fig.findobj(lambda artist: hasattr(artist, "get_text")) if text.get_text()
    ]


def frame(axes):
    spine = axes.spines["left"]
    return spine.get_edgecolor()[:3], spine.get_linewidth(), spine.get_linestyle()


# --- pictures ---------------------------------------------------------------------------------------------


def test_query_shows_reference_text_and_targets(tmp_path):
    path = tmp_path / "reference.png"
    PICTURES[0].save(path)
    fig = show_query(path, "make it blue", PICTURES[1:3], title="Query 7")
    assert isinstance(fig, Figure) and len(fig.axes) == 4
    assert {"Query 7", "“make it blue” →", "reference image", "true target", "R", "✓"} <= set(texts(fig))
    assert len(show_query(PICTURES[0], "make it blue").axes) == 2
    assert "“make it blue”" in texts(show_query(PICTURES[0], "make it blue"))


def test_long_modification_texts_stay_inside():
    fig = show_query(PICTURES[0], "the same dog but " * 18)
    fig.canvas.draw()
    (said,) = [t for t in fig.axes[1].texts if t.get_text()]
    box, whole = said.get_window_extent(), fig.bbox
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1


def test_strip_marks_targets_and_reference_by_frame_and_sign():
    fig = ranked_strip(
        PICTURES[:4],
        [False, True, False, False],
        [0.9, 0.8, 0.7, 0.6],
        references=[False, False, True, False],
        title="SDR-CIR",
    )
    assert isinstance(fig, Figure) and len(fig.axes) == 4
    colour, width, style = frame(fig.axes[1])
    assert colour == pytest.approx(to_rgb(plots.TARGET)) and width == 4 and style == "-"
    assert [text.get_text() for text in fig.axes[1].texts] == ["✓"]
    colour, width, style = frame(fig.axes[2])
    assert colour == pytest.approx(to_rgb(plots.REFERENCE)) and style != "-"
    assert [text.get_text() for text in fig.axes[2].texts] == ["R"]
    assert frame(fig.axes[0])[1] < 1 and not fig.axes[0].texts
    assert [axes.get_xlabel() for axes in fig.axes] == ["1  0.900", "2  0.800", "3  0.700", "4  0.600"]


def test_a_target_that_is_the_reference_counts_as_target():
    fig = ranked_strip(PICTURES[:1], [True], references=[True])
    assert [text.get_text() for text in fig.axes[0].texts] == ["✓"]


def test_strip_goes_on_in_rows():
    fig = ranked_strip(PICTURES, [False] * 12, per_row=5, first_rank=11)
    assert len(fig.axes) == 15 and [axes.get_xlabel() for axes in fig.axes[:12]] == [
        str(i) for i in range(11, 23)
    ]
    assert not any(axes.axison for axes in fig.axes[12:])
    assert len(ranked_strip(PICTURES[:1], [True]).axes) == 1


def test_target_and_reference_differ_in_grey():
    def lightness(colour):
        return np.dot(to_rgb(colour), (0.299, 0.587, 0.114))

    assert abs(lightness(plots.TARGET) - lightness(plots.REFERENCE)) > 0.05
    assert abs(lightness(plots.TARGET) - lightness(plots.PLAIN)) > 0.2


# --- numbers ----------------------------------------------------------------------------------------------


def test_score_breakdown_stacks_to_the_sum():
    parts = {"(1+β)·S_q": [0.9, 0.5], "−β·S_d": [-0.2, -0.3], "+β·S_m": [0.1, -0.1]}
    fig = score_breakdown(["car", "dog"], parts, [False, True], title="Scores")
    (axes,) = fig.axes
    (sums,) = [line for line in axes.lines if line.get_label() == "sum"]
    assert sums.get_xdata().tolist() == pytest.approx([0.8, 0.1])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["car", "✓ dog"]
    first, second, third = axes.containers
    assert [bar.get_x() for bar in second] == [0, 0]  # negative values start at zero, to the left
    assert [bar.get_x() for bar in third] == pytest.approx([0.9, -0.3])
    assert len({bar.get_hatch() for bar in (first[0], second[0], third[0])}) == 3
    assert {"sum", *parts} <= set(texts(fig))


def test_heatmap_writes_every_number_and_outlines_the_best():
    fig = heatmap([[1.0, 2.0], [np.nan, 3.25]], ["a", "b"], ["c", "d"], title="mAP@10", outline_best=True)
    axes = fig.axes[0]
    assert len(fig.axes) == 2
    assert [text.get_text() for text in axes.texts] == ["1.00", "2.00", "3.25"]
    (best,) = axes.patches
    assert best.get_xy() == (0.5, 0.5)
    assert axes.images[0].get_cmap().name == "cividis"
    assert axes.texts[0].get_color() == "white" and axes.texts[2].get_color() == "black"


def test_slope_chart_names_every_series_without_overlap():
    series = {"description only": [20.0, 30.0], "+ anchor": [20.1, 30.1], "both": [20.2, 30.2]}
    fig = slope_chart(series, ["mAP@5", "mAP@10"], ylabel="percent")
    (axes,) = fig.axes
    ends = [text for text in axes.texts if "  " in text.get_text()]
    assert [text.get_text() for text in ends] == ["30.0  description only", "30.1  + anchor", "30.2  both"]
    fig.canvas.draw()
    boxes = sorted((text.get_window_extent() for text in ends), key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 + 1 for below, above in zip(boxes[:-1], boxes[1:], strict=True))
    assert len({line.get_marker() for line in axes.lines}) == 3


def test_ranks_point_down():
    fig = slope_chart({"a": [30, 2]}, ["coarse", "fine"], lower_is_better=True, fmt="d")
    low, high = fig.axes[0].get_ylim()
    assert low > high and {"30", "2  a"} <= set(texts(fig))
    ticks = fig.axes[0].get_yticks()
    assert ticks[0] == 1 and ticks[-1] <= low and len(ticks) >= 3, "ranks begin at 1: there is no place 0"
    fig = slope_chart({"a": [0.5, 2]}, ["seconds before", "after"], lower_is_better=True)
    assert fig.axes[0].get_yticks().min() < 1, "what is no rank keeps its own ticks"


def test_labels_move_as_little_as_they_must():
    # Two that are too near stand half a gap (10/14) to either side of their middle; the third stays.
    assert np.allclose(plots._spread([0.0, 5.0, 0.1], 0, 10, 3), [0.05 - 5 / 14, 5.0, 0.05 + 5 / 14])


def test_triangle_puts_the_corners_where_the_simple_methods_are():
    fig = weight_triangle([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1.2, 0.1, -0.3]], ["a", "b", "c", "d"])
    (axes,) = fig.axes
    inside, outside = axes.lines
    assert (
        np.allclose(inside.get_xydata(), [[0, 0], [1, 0], [0.5, np.sqrt(0.75)]])
        and len(outside.get_xydata()) == 1
    )
    assert outside.get_marker() != inside.get_marker()
    cloud = weight_triangle([[0.6, 0.2, 0.2], [0.7, 0.1, 0.2], [0.5, 0.3, 0.2]])
    median = cloud.axes[0].lines[-1]
    assert median.get_label() == "median" and np.allclose(median.get_xydata(), [[0.3, 0.2 * np.sqrt(0.75)]])


def test_triangle_grid_covers_the_triangle_at_even_distances():
    grid = triangle_grid(4)
    assert grid.shape == (15, 3) and np.allclose(grid.sum(axis=1), 1) and (grid >= 0).all()
    rows = {tuple(row) for row in grid.tolist()}
    assert {(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0.5, 0.5), (0.25, 0.25, 0.5)} <= rows and len(rows) == 15


def test_triangle_with_a_map_rings_its_best_and_places_the_methods():
    grid = triangle_grid(2)
    values = [10.0, 20.0, 30.0, 40.0, 70.0, 60.0]
    fig = weight_triangle(
        [[0.5, 0.25, 0.25]], heat=(grid, values), methods={"image+text": (0, 0.5, 0.5)}, heat_label="mAP@10"
    )
    axes, bar = fig.axes
    assert bar.get_ylabel() == "mAP@10"
    drawn = {line.get_label(): line.get_xydata()[0] for line in axes.lines}
    assert drawn["best of the map, 70.0"] == pytest.approx(
        grid[4] @ np.array([[0, 0], [1, 0], [0.5, np.sqrt(0.75)]])
    )
    assert drawn["image+text"] == pytest.approx((0.75, np.sqrt(0.75) / 2))
    assert drawn["query"] == pytest.approx((0.375, 0.25 * np.sqrt(0.75)))
    assert axes.collections[0].get_array().tolist() == values
    with pytest.raises(InputError, match="heat: expected weights"):
        weight_triangle([[1, 0, 0]], heat=(grid, values[:-1]))


# --- output -----------------------------------------------------------------------------------------------


def test_png_has_a_fixed_size_few_colours_and_fixed_bytes():
    fig = ranked_strip(PICTURES[:3], [True, False, False])
    first = figure_png(fig)
    assert (
        first == figure_png(ranked_strip(PICTURES[:3], [True, False, False]))
        and first[:8] == b"\x89PNG\r\n\x1a\n"
    )
    with Image.open(io.BytesIO(first)) as image:
        assert image.mode == "P" and image.size == tuple(
            round(plots.DPI * inch) for inch in fig.get_size_inches()
        )
    assert len(first) < 20_000


def test_alternative_text_is_in_the_output(monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **more: shown.append((data, more)))
    fig = ranked_strip(PICTURES[:1], [True])
    assert figure_alt(fig, "One picture,\n  a true target.") is None
    ((data, more),) = shown
    fresh = figure_png(ranked_strip(PICTURES[:1], [True]))
    assert data == {"image/png": fresh, "text/plain": "One picture, a true target."}
    assert more == {"metadata": {"image/png": {"alt": "One picture, a true target."}}, "raw": True}
    with pytest.raises(InputError, match="alternative text"):
        figure_alt(fig, "  ")


def test_alternative_text_reaches_the_html_page(tmp_path):
    alt = 'Rank 1 & 2: "true" targets.'
    node = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("figure_alt(...)")])
    picture = base64.b64encode(figure_png(ranked_strip(PICTURES[:1], [True]))).decode("ascii")
    data, metadata = {"image/png": picture, "text/plain": alt}, {"image/png": {"alt": alt}}
    node.cells[0].outputs = [nbformat.v4.new_output("display_data", data=data, metadata=metadata)]
    nbformat.write(node, tmp_path / "a.ipynb")
    to_html(tmp_path / "a.ipynb", tmp_path / "a.html")
    page = html.unescape((tmp_path / "a.html").read_text(encoding="utf-8"))
    assert re.search(f"<img alt=(['\"]){re.escape(alt)}\\1", page) and "No description" not in page


@pytest.mark.parametrize(
    "draw, said",
    [
        (lambda: ranked_strip([], []), "at least one picture"),
        (lambda: ranked_strip(PICTURES[:2], [True]), "targets: 1 values for 2"),
        (lambda: ranked_strip(PICTURES[:1], [True], [0.1, 0.2]), "scores: 2 values for 1"),
        (lambda: ranked_strip(["/no/such.png"], [True]), "does not exist"),
        (lambda: score_breakdown(["a"], {"x": [1, 2]}), "x: 2 values for 1"),
        (lambda: score_breakdown([], {}), "at least one candidate"),
        (lambda: heatmap([[1.0]], ["a"], ["b", "c"]), "1 x 2 values"),
        (lambda: heatmap([[np.nan]], ["a"], ["b"]), "finite one"),
        (lambda: slope_chart({"a": [1]}, ["s"]), "two steps"),
        (lambda: slope_chart({"a": [1, 2, 3]}, ["s", "t"]), "a: 3 values for 2"),
        (lambda: weight_triangle([[1.0, 0.0]]), r"\(Q, 3\)"),
    ],
)
def test_impossible_figures_raise(draw, said):
    with pytest.raises(InputError, match=said):
        draw()


def test_galleries_show_turned_and_transparent_pictures_as_models_see_them(tmp_path):
    """Figures and the report's thumbnails go through the one loader: upright, transparency on white."""
    raw = Image.new("RGB", (64, 48), "white")
    raw.paste("red", (0, 0, 8, 48))
    exif = Image.Exif()
    exif[0x0112] = 6
    raw.save(tmp_path / "tagged.png", exif=exif)
    raw.transpose(Image.Transpose.ROTATE_270).save(tmp_path / "turned.png")
    clear = Image.new("RGBA", (64, 48), (0, 0, 0, 0))
    clear.paste((255, 0, 0, 255), (0, 0, 8, 48))
    clear.save(tmp_path / "clear.png")
    raw.save(tmp_path / "raw.png")
    for seen, same in (("tagged", "turned"), ("clear", "raw")):
        first, second = (tmp_path / f"{name}.png" for name in (seen, same))
        assert np.array_equal(plots._thumbnail(first), plots._thumbnail(second))
        assert thumbnail_address(first) == thumbnail_address(second)
    assert plots._thumbnail(tmp_path / "tagged.png").shape == (64, 48, 3)
    assert thumbnail_address(tmp_path / "tagged.png") != thumbnail_address(tmp_path / "raw.png")
