"""The report: one HTML file with the results table, a chart, and queries with their ranked pictures.

Everything is inside the file (pictures as data addresses, styles, a few lines of script for the filter), so
that it can be sent by mail and opened without a network. Light or dark follows the reader's system. Every
text is escaped: captions and modification texts come from models and from users."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from cir_utils.benchmarks import Benchmark, ImageId, Query
from cir_utils.files import write_atomic
from cir_utils.images import load_image
from cir_utils.runs import Run
from cir_utils.tables import Comparison
from cir_utils.typeset import to_html

#: Side of a thumbnail in pixels, and how many of a ranking's first pictures are shown.
THUMBNAIL, SHOWN = 112, 8
QUERIES = 24
#: Whose rankings are shown under a query, as far as they were run.
STRIPS = ("image+text", "description-only", "sdr-cir", "xr")


@dataclass(frozen=True)
class Link:
    """A line of the list of notebooks: its title, address relative to the report, and the seconds it took."""

    title: str
    address: str
    seconds: float | None = None


def write_report(
    path: Path | str,
    title: str,
    comparison: Comparison | None = None,
    runs: Sequence[Run] = (),
    benchmark: Benchmark | None = None,
    links: Sequence[Link] = (),
    notes: Sequence[str] = (),
    queries: int = QUERIES,
) -> Path:
    """Write the report to ``path`` and return it.

    ``runs`` need their rankings and traces for the strips, ``benchmark`` its pictures; without them the
    report has tables alone. ``queries`` are picked evenly over the split."""
    parts = [f"<h1>{_text(title)}</h1>"]
    parts += [f"<p>{_text(note)}</p>" for note in notes]
    if comparison is not None:
        parts += [_results(comparison), _costs(runs)]
    if links:
        items = "".join(
            f'<li><a href="{_text(link.address)}">{_text(link.title)}</a>'
            + (f" <small>{link.seconds:.0f} s</small>" if link.seconds is not None else "")
            + "</li>"
            for link in links
        )
        parts.append(f"<h2>Notebooks</h2><ol start='0'>{items}</ol>")
    if benchmark is not None and any(run.rankings for run in runs):
        parts.append(_queries(benchmark, runs, queries))
    page = files("cir_utils").joinpath("report_page.html").read_text(encoding="utf-8")
    filled = {"{title}": _text(title), "{body}": "\n".join(parts)}
    write_atomic(Path(path), re.sub("{title}|{body}", lambda slot: filled[slot.group()], page))
    return Path(path)


def chart_svg(table: pd.DataFrame, metric: str) -> str:
    """Every row's ``metric`` as a dot with its interval, in percent: an SVG drawing that follows the page's
    colours."""
    row_height, left, width, right = 26, 250, 420, 60
    top = max(float(table[[metric, f"{metric} high"]].max().max()), 1e-9)  # missing ends are passed over
    height = row_height * len(table) + 30

    def at(value: float) -> float:
        return left + width * value / top

    parts = [
        f'<svg viewBox="0 0 {left + width + right} {height}" role="img" '
        f'aria-label="{_text(metric)} of every method with its 95 % interval, as in the table above">'
    ]
    for step in range(5):
        value = top * step / 4
        parts.append(
            f'<line class="grid" x1="{at(value):.1f}" x2="{at(value):.1f}" y1="0" y2="{height - 24}"/>'
            f'<text class="tick" x="{at(value):.1f}" y="{height - 8}">{100 * value:.0f} %</text>'
        )
    for number, row in enumerate(table.to_dict("records")):
        y = row_height * number + row_height / 2
        low, high, mean = (float(row[key]) for key in (f"{metric} low", f"{metric} high", metric))
        parts.append(f'<text class="label" x="{left - 10}" y="{y + 4}">{_text(str(row["method"]))}</text>')
        if low == low and high == high:
            parts.append(f'<line class="range" x1="{at(low):.1f}" x2="{at(high):.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle cx="{at(mean):.1f}" cy="{y}" r="5"/>')
        parts.append(f'<text class="value" x="{left + width + 8}" y="{y + 4}">{100 * mean:.1f}</text>')
    return "".join(parts) + "</svg>"


def _results(comparison: Comparison) -> str:
    parts = [
        "<h2>Results</h2>",
        f"<p>{_text(comparison.protocol)}. Metrics in percent, with 95 % intervals over queries; the best "
        "value is bold.</p>",
        to_html(comparison.results),
        f"<h3>{_text(comparison.metric)}</h3>",
        chart_svg(comparison.results, comparison.metric),
    ]
    if len(comparison.paired):
        parts += [
            f"<h3>Is one better than the other? Paired tests on {_text(comparison.metric)}</h3>",
            "<p>Difference in percentage points; wins, ties and losses count queries; effect: the mean "
            "difference over its standard deviation; p by sign flips, with Holm's correction over all "
            "rows.</p>",
            to_html(comparison.paired),
        ]
    return "\n".join(parts)


def _costs(runs: Sequence[Run]) -> str:
    if not runs:
        return ""
    rows = []
    for run in runs:
        cost, counts = run.record["cost"], run.record["counts"]
        said = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items() if count)
        settings = ", ".join(f"{name} {value}" for name, value in run.record["settings"].items())
        rows.append(
            {
                "method": run.name,
                "settings": settings or "none",
                "MLLM calls": cost["mllm_calls"],
                "from the cache": cost["cached_calls"],
                "parse failures": cost["parse_failures"],
                "seconds": round(cost["seconds"], 1),
                "seen on the way": said,
            }
        )
    return f"<h3>Cost</h3>{to_html(pd.DataFrame(rows))}"


def _queries(benchmark: Benchmark, runs: Sequence[Run], count: int) -> str:
    """The strips: for some queries, the reference, the text, and each method's first pictures."""
    by_name = {run.name: run for run in runs if run.rankings}
    shown = [by_name[name] for name in STRIPS if name in by_name] or list(by_name.values())[:3]
    common = [query for query in benchmark.queries if all(query.id in run.rankings for run in shown)]
    step = max(1, len(common) // max(1, count))
    thumbnails: dict[ImageId, str] = {}
    traces = {run.name: {trace["query"]: trace for trace in run.traces} for run in shown}
    articles = [_article(benchmark, query, shown, traces, thumbnails) for query in common[::step][:count]]
    buttons = "".join(
        f'<button type="button" data-filter="{_text(run.name)}">missed by {_text(run.name)}</button>'
        for run in shown
    )
    return (
        f"<h2>Queries</h2><p>One in {step} of the queries. A true target has a thick frame and a tick (✓), "
        "the reference image a dashed frame and an R. A method has missed a query when none of its first "
        f"{SHOWN} pictures is a true target.</p>"
        '<p class="filter"><button type="button" data-filter="" aria-pressed="true">all</button>'
        f"{buttons}</p>" + "\n".join(articles)
    )


def _article(
    benchmark: Benchmark,
    query: Query,
    shown: Sequence[Run],
    traces: Mapping[str, Mapping[str, Mapping[str, Any]]],
    thumbnails: dict[ImageId, str],
) -> str:
    missed, rows = [], []
    for run in shown:
        head = run.rankings[query.id][:SHOWN]
        if not set(head) & set(query.targets):
            missed.append(run.name)
        pictures = "".join(
            _picture(benchmark, image, thumbnails, rank, image in query.targets, image == query.reference)
            for rank, image in enumerate(head, start=1)
        )
        said = "".join(
            f"<p class='said'><b>{_text(name)}</b> {_text(text)}</p>"
            for name, text in traces[run.name].get(query.id, {}).get("said", [])
        )
        rows.append(f"<h4>{_text(run.name)}</h4>{said}<div class='strip'>{pictures}</div>")
    return (
        f'<article data-missed="{_text("|".join(missed))}"><div class="ask">'
        f"{_picture(benchmark, query.reference, thumbnails, 0, False, True)}"
        f"<h3>“{_text(query.text)}” <small>query {_text(query.id)}</small></h3></div>"
        f"{''.join(rows)}</article>"
    )


def _picture(
    benchmark: Benchmark,
    image: ImageId,
    thumbnails: dict[ImageId, str],
    rank: int,
    target: bool,
    reference: bool,
) -> str:
    if image not in thumbnails:
        thumbnails[image] = thumbnail_address(benchmark.image_path(image))
    words = [f"rank {rank}" if rank else "", f"image {image}", "true target" if target else ""]
    words.append("reference image" if reference else "")
    sign = "✓" if target else "R" if reference else ""
    kind = "target" if target else "reference" if reference else ""
    caption = " ".join(part for part in (str(rank) if rank else "", sign) if part)
    alt = _text(", ".join(word for word in words if word))
    return (
        f'<figure class="{kind}"><img src="{thumbnails[image]}" alt="{alt}" '
        f'width="{THUMBNAIL}" height="{THUMBNAIL}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def thumbnail_address(path: Path, side: int = THUMBNAIL) -> str:
    """A picture file as a small JPEG in a ``data:`` address."""
    picture = load_image(path)
    picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)
