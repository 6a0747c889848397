"""The systems side by side: drawings, sentences, lines of code, records, live runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from PIL import Image
from small_world import open_bench, write_world

from cir_utils import systems, views
from cir_utils.charts import not_beaten, quality_cost, side_by_side
from cir_utils.diagrams import LOOKS, MEANING, legend, system_diagrams
from cir_utils.errors import InputError
from cir_utils.methods import METHODS
from cir_utils.systems import FAMILIES, KINDS, SYSTEMS, code_lines, lines_of_code
from cir_utils.workbench import Workbench


@pytest.fixture()
def bench(tmp_path: Path, tiny_clip: Path) -> Workbench:
    return open_bench(write_world(tmp_path / "world"), tiny_clip, tmp_path / "cache")


def test_every_method_is_told() -> None:
    assert set(SYSTEMS) == set(METHODS)
    assert {system.family for system in SYSTEMS.values()} == set(FAMILIES)
    assert [one.name for family in FAMILIES for one in systems.in_family(family)] == list(SYSTEMS)
    for system in SYSTEMS.values():
        assert len(system.sentences) == 3 and all(text.endswith(".") for text in system.sentences)
        assert not any(". " in text for text in system.sentences), f"{system.name}: one sentence each"
    with pytest.raises(InputError, match="choose features, descriptions"):
        systems.in_family("others")


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_drawing_leads_from_what_goes_in_to_one_ranking(name: str) -> None:
    boxes = SYSTEMS[name].boxes
    assert {box.kind for box in boxes.values()} <= set(KINDS)
    assert [key for key, box in boxes.items() if box.kind == "ranking"] == ["end"]
    used = {before for box in boxes.values() for before in box.after}
    assert used == set(boxes) - {"end"}, "every box is used by another"
    for box in boxes.values():
        assert bool(box.after) == (box.kind not in ("picture", "text", "training")), box.label
        assert all(boxes[before].column <= box.column for before in box.after), "from left to right"
    spots = [(box.column, box.row) for box in boxes.values()]
    apart = [abs(a - c) >= 1 or abs(b - d) >= 0.7 for i, (a, b) in enumerate(spots) for c, d in spots[:i]]
    assert all(apart), "boxes do not overlap"


def test_drawings_and_their_words() -> None:
    fig = system_diagrams([SYSTEMS["image-only"], SYSTEMS["xr"], SYSTEMS["random"]])
    assert [axes.get_title(loc="left") for axes in fig.axes] == ["Image only", "X^R", "Random", ""]
    first = fig.axes[0]
    assert [text.get_text() for text in first.texts if text.get_text()] == [
        "I_r", "CLIP image\nF_r", "rank by\ncosine",
    ]  # fmt: skip
    assert len(first.patches) == 3
    assert SYSTEMS["image-only"].spoken() == (
        "Image only: I_r → CLIP image F_r; CLIP image F_r → rank by cosine"
    )
    assert set(LOOKS) == set(MEANING) == set(KINDS) and len(legend().axes[0].patches) == len(KINDS)
    looks = [(shape, face, line) for shape, face, _, line, *_ in LOOKS.values()]
    assert len(set(map(str, looks))) == len(looks), "no two kinds differ in the frame's colour alone"
    with pytest.raises(InputError, match="at least one system"):
        system_diagrams([])


def test_lines_of_code_by_hand() -> None:
    source = '''"""A module.

Two paragraphs."""

import math  # counted, with its comment

# not counted


def f(x):
    """Not counted."""
    text = """counted
    twice"""
    return (
        x,
        text,
    )


class A:
    """Not counted
    either."""

    "a text that is no docstring is a line of code"
'''
    assert code_lines(source) == 1 + 1 + 2 + 4 + 1 + 1
    assert code_lines("") == 0


def test_borrowed_lines_are_those_of_other_methods_files() -> None:
    def own(name: str) -> int:
        return code_lines((systems.FOLDER / f"{name}.py").read_text("utf-8"))

    assert lines_of_code("sdr-cir") == (own("sdr_cir"), own("sdr_cir") + own("description_only"))
    chain = own("seize") + own("ldre") + own("description_only")
    assert lines_of_code("seize") == (own("seize"), chain), "through ldre"
    assert lines_of_code("image-only") == lines_of_code("random") == (own("baselines"), own("baselines"))


def test_what_is_missing_is_named_with_its_command() -> None:
    kept = {"mini-circo": dict.fromkeys(SYSTEMS, cast(Any, None)), "mini-cirr": {}}
    del kept["mini-circo"]["ldre"]
    missing = systems.missing_runs(kept)
    assert len(missing) == 1 + len(SYSTEMS)
    assert ("ldre", "mini-circo", "cir run ldre --benchmark mini-circo --split test") in missing
    assert systems.missing_runs({}) == []


def test_records_give_scores_differences_and_calls() -> None:
    kept = systems.kept_runs()
    assert set(kept) == {"mini-circo", "mini-cirr", "mini-fashioniq"}
    runs = kept["mini-circo"]
    sdr, plain = runs["sdr-cir"], runs["description-only"]
    made = systems.compared_pairs(runs, [("sdr-cir", "description-only"), ("sdr-cir", "nobody")])
    assert made is not None and len(made.paired) == 1
    expected = 100 * (sdr.metrics["mAP@5"] - plain.metrics["mAP@5"])
    assert systems.difference(made, "sdr-cir", "description-only").startswith(f"{expected:+.1f} (p = 0.")
    assert systems.difference(made, "xr", "sdr-cir") == systems.difference(None, "a", "b") == "not run yet"
    assert systems.compared_pairs(runs, [("nobody", "xr")]) is None
    assert systems.calls_per_query(sdr) == 1.0
    assert systems.kept_runs("no such folder") == {name: {} for name in kept}


def test_places_and_reversals_by_hand() -> None:
    assert systems.places({"a": 0.2, "b": 0.5, "c": 0.2, "d": 0.1}) == {"a": 2, "b": 1, "c": 2, "d": 4}
    assert systems.reversals(["a", "b", "c"], [1.0, 2.0, 2.0], [3.0, 2.0, 1.0]) == [("a", "b"), ("a", "c")]
    assert systems.reversals(["a", "b"], [1.0, 1.0], [2.0, 1.0]) == []


def test_live_runs_say_what_they_composed(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("image-only", "sdr-cir", "weimocir", "pic2word")
    live, lacking = systems.run_live(bench, names, {"sdr-cir": {"alpha": 0.3}})
    assert list(live) == ["image-only", "sdr-cir", "weimocir"]
    assert "method pic2word has no weights" in lacking["pic2word"]
    assert systems.composed(live["image-only"], 0) == [("query", "F_r")]
    assert systems.composed(live["weimocir"], 0) == [
        ("query", "0.2 F_r + 0.8 F_m"),
        ("candidates", "0.9 picture + 0.1 caption"),
    ]
    said = systems.composed(live["sdr-cir"], 1)
    assert said[0] == ("target description", live["sdr-cir"].traces[1]["said"][0][1])
    assert said[-1] == ("weights", f"α = 0.3, β = {bench.settings['beta']:g}")
    with pytest.raises(InputError, match="unknown setting"):
        systems.run_live(bench, ["image-only"], {"image-only": {"alpha": 0.3}})

    shown, tables = [], []
    monkeypatch.setattr(views, "figure_alt", lambda fig, text: shown.append((fig, text)))
    monkeypatch.setattr(views, "table", lambda rows, columns: tables.append(list(rows)))
    views.view_answers(bench, live, 1, lacking, first=2)
    (fig, text), query = shown[0], bench.queries[1]
    assert len(fig.axes) == 2 * len(live) and fig.axes[0].get_title(loc="left") == "image-only"
    hits = sum(image in query.targets for image in live["sdr-cir"].rankings[query.id][:2])
    assert f"sdr-cir {hits}" in text and query.text in text
    assert [row[0] for row in tables[0]] == ["`image-only`", "`sdr-cir`", "`weimocir`", "`pic2word`"]
    assert tables[0][-1][1].startswith("did not run here: method pic2word")
    views.view_systems("verification", per_row=1)
    assert "X^R: " in shown[1][1] and [row[0] for row in tables[1]][1] == "**X^R** `xr`"


def test_quality_over_cost_joins_what_nothing_beats() -> None:
    names, costs, quality = ["a", "b", "c", "d"], [0.0, 1.0, 1000.0, 1.0], [10.0, 5.0, 30.0, 20.0]
    assert not_beaten(names, costs, quality) == ["a", "d", "c"]
    assert not_beaten(["x", "y"], [1.0, 1.0], [3.0, 3.0]) == ["x"]
    fig = quality_cost(names, costs, quality, ["k", "l", "l", "k"], xlabel="calls", ylabel="q")
    axes = fig.axes[0]
    points = {line.get_label(): line.get_xydata().tolist() for line in axes.lines[:2]}
    assert points == {"k": [[0, 10], [1, 20]], "l": [[1, 5], [1000, 30]]}
    assert axes.lines[0].get_marker() != axes.lines[1].get_marker()
    assert axes.lines[2].get_xydata().tolist() == [[0, 10], [1, 20], [1000, 30]]
    assert sorted(text.get_text() for text in axes.texts) == names
    with pytest.raises(InputError, match="a kind for each"):
        quality_cost(names, costs, quality, ["k"], xlabel="", ylabel="")
    with pytest.raises(InputError, match="costs are 0 or more"):
        quality_cost(["a"], [-1.0], [0.0], ["k"], xlabel="", ylabel="")


def test_rankings_side_by_side_are_framed() -> None:
    pictures = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    heads = {"one": pictures, "two": pictures[::-1]}
    marks = {"one": [True, False], "two": [False, False]}
    fig = side_by_side(heads, marks, {"one": [False, False], "two": [False, True]})
    signs = [[text.get_text() for text in axes.texts] for axes in fig.axes]
    assert signs == [["✓"], [], [], ["R"]]
    assert [axes.get_title(loc="left") for axes in fig.axes] == ["one", "", "two", ""]
    with pytest.raises(InputError, match="as many pictures and marks"):
        side_by_side(heads, marks, {"one": [False], "two": [False, True]})


def test_calls_are_those_of_the_record() -> None:
    run = cast(Any, SimpleNamespace(record={"cost": {"mllm_calls": 30}}, queries=("0", "1", "2", "3")))
    assert systems.calls_per_query(run) == 7.5
