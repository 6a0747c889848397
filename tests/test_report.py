"""The HTML report: whole in one file, escaped, with every picture described."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from small_world import VAGUE, open_bench, write_world

from cir_utils.experiments import METHODS, compare_experiments, run_experiments
from cir_utils.report import Link, chart_svg, thumbnail_address, write_report
from cir_utils.runs import Run
from cir_utils.workbench import Workbench

VOID = {"meta", "link", "img", "line", "circle", "br"}


class Reader(HTMLParser):
    """Collects elements and checks that they nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, tiny_clip: Path) -> Workbench:
    return open_bench(
        write_world(tmp_path_factory.mktemp("world")), tiny_clip, tmp_path_factory.mktemp("cache")
    )


@pytest.fixture(scope="module")
def runs(bench: Workbench) -> list[Run]:
    return run_experiments(bench, chosen=METHODS)


def read(path: Path) -> tuple[str, Reader]:
    text, reader = path.read_text(encoding="utf-8"), Reader()
    reader.feed(text)
    assert reader.open == []
    return text, reader


def test_a_whole_report(bench: Workbench, runs: list[Run], tmp_path: Path) -> None:
    path = write_report(
        tmp_path / "index.html", "A <title>", compare_experiments(runs), runs, bench.benchmark,
        [Link("Start & go", "notebooks/00.html", 12.0)], ["cache: nothing new"],
    )  # fmt: skip
    text, reader = read(path)
    assert "<h1>A &lt;title&gt;</h1>" in text and "Start &amp; go" in text and "cache: nothing new" in text
    for run in runs:
        assert f'<td class="">{run.name}</td>' in text
        assert f"{100 * run.metrics['mAP@5']:.2f}" in text
    assert f"“{VAGUE}”" in text and "names no change that can be seen" in text
    articles = [attributes for tag, attributes in reader.elements if tag == "article"]
    assert len(articles) == 8
    buttons = {attributes["data-filter"] for tag, attributes in reader.elements if tag == "button"}
    assert buttons == {"", "image+text", "description-only", "sdr-cir", "xr"}
    first = {
        run.name for run in runs
        if run.name in buttons and not set(run.rankings["0"][:8]) & set(bench.queries[0].targets)
    }  # fmt: skip
    assert set(filter(None, (articles[0]["data-missed"] or "").split("|"))) == first


def test_nothing_is_asked_of_the_network(bench: Workbench, runs: list[Run], tmp_path: Path) -> None:
    text, reader = read(write_report(tmp_path / "r.html", "R", None, runs, bench.benchmark))
    for _, attributes in reader.elements:
        for name in ("src", "href"):
            address = attributes.get(name) or "data:"
            assert address.startswith("data:") or "//" not in address
    assert not re.search(r"@import|url\(|https?://", text)


def test_every_picture_is_described_and_marked_by_a_sign(
    bench: Workbench, runs: list[Run], tmp_path: Path
) -> None:
    text, reader = read(write_report(tmp_path / "r.html", "R", None, runs, bench.benchmark, queries=2))
    pictures = [attributes for tag, attributes in reader.elements if tag == "img"]
    assert len(pictures) == 2 * (1 + 4 * 8)
    assert all(attributes["alt"] for attributes in pictures)
    targets = [attributes for attributes in pictures if "true target" in (attributes["alt"] or "")]
    assert text.count("✓</figcaption>") == len(targets) > 0


def test_texts_of_users_and_models_are_escaped(bench: Workbench, runs: list[Run], tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'"
    traces = [dict(trace, said=[[evil, evil]]) for trace in runs[-1].traces]
    run = Run(
        runs[-1].record | {"label": evil},
        runs[-1].queries,
        runs[-1].metrics,
        runs[-1].per_query,
        runs[-1].rankings,
        traces,
    )
    text, reader = read(
        write_report(
            tmp_path / "r.html", evil, compare_experiments([run]), [run], bench.benchmark, notes=[evil]
        )
    )
    assert "<script>alert" not in text
    assert sum(tag == "script" for tag, _ in reader.elements) == 1


def test_without_runs_or_pictures_it_still_writes(tmp_path: Path) -> None:
    text, _ = read(write_report(tmp_path / "r.html", "Nothing yet"))
    assert "Nothing yet" in text and "<table" not in text


def test_the_chart_has_a_dot_a_row_and_survives_one_query() -> None:
    nan = float("nan")
    table = pd.DataFrame({"method": ["a", "b"], "M": [0.5, 0.25], "M low": [0.4, nan], "M high": [0.6, nan]})
    svg = chart_svg(table, "M")
    assert svg.count("<circle") == 2 and svg.count('class="range"') == 1
    assert ">50.0</text>" in svg and ">25.0</text>" in svg
    assert "nan" not in chart_svg(table.assign(**{"M high": nan}), "M")


def test_a_thumbnail_is_small(bench: Workbench) -> None:
    address = thumbnail_address(bench.gallery_paths[0])
    assert address.startswith("data:image/jpeg;base64,") and len(address) < 8000
