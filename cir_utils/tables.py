"""Results as text: a protocol in one line, metrics in percent, and the comparison of several runs.

Values stay fractions everywhere else; percent and rounding happen here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cir_utils import compare
from cir_utils.errors import InputError
from cir_utils.runs import TABLE_METRICS, Run


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side: ``results`` has one row a run with intervals, ``paired`` one row a pair (see
    ``cir_utils.compare``). ``metric`` is what the pairs were tested on."""

    protocol: str
    metric: str
    results: pd.DataFrame
    paired: pd.DataFrame

    def text(self) -> str:
        """Both tables as Markdown, which also reads well on a terminal."""
        parts = [self.protocol, "", pad(compare.to_markdown(self.results))]
        if len(self.paired):
            parts += ["", f"Paired tests on {self.metric} (difference in percentage points):", ""]
            parts.append(pad(compare.to_markdown(self.paired)))
        return "\n".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: full precision, missing cells as null."""
        return {
            "protocol": self.protocol,
            "metric": self.metric,
            "results": _rows(self.results),
            "paired": _rows(self.paired),
        }


def comparison(
    runs: Sequence[Run],
    metric: str | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
    names: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
) -> Comparison:
    """Intervals for every run and paired tests on ``metric`` (default: the benchmark's headline).

    ``names`` label the runs (default: method and changed settings, with the encoder and its weights where
    the runs used several); ``pairs`` are (name, against) and default
    to every other run against the first. ``metrics`` are the columns (default: mAP@k or the recalls of the
    benchmark). Raises :class:`InputError` for no run, runs of different protocols or queries, and unknown
    metrics."""
    if not runs:
        raise InputError("there is no run to compare; give run folders")
    labels = list(names) if names is not None else _distinct(_labels(runs))
    rows = [run.compared(label) for run, label in zip(runs, labels, strict=True)]
    metric = metric or runs[0].headline
    shown = list(metrics) if metrics is not None else _columns(runs[0], rows[0].metrics, metric)
    chosen = [(label, labels[0]) for label in labels[1:]] if pairs is None else list(pairs)
    return Comparison(
        protocol=protocol_line(runs[0].record["protocol"]),
        metric=metric,
        results=compare.results_table(rows, shown),
        paired=compare.paired_table(rows, chosen, metric) if chosen else pd.DataFrame(),
    )


def protocol_line(protocol: Mapping[str, Any]) -> str:
    """A protocol in one line: ``mini-circo test, 300 queries, gallery 2,000, reference kept, ...``; a gallery
    that is not the published image list is named: ``gallery 5,121 (laptop set ...)``."""
    size = protocol["gallery_size"]
    if isinstance(size, Mapping):
        listed = " / ".join(f"{name} {count:,}" for name, count in size.items())
        gallery = f"{protocol['gallery']}: {listed}"
    else:
        gallery = protocol["gallery"] if size is None else f"{size:,}"
        if size is not None and not protocol["gallery"].startswith("image list"):
            gallery += f" ({protocol['gallery']})"
    parts = [
        f"{protocol['benchmark']} {protocol['split']}",
        f"{protocol['queries']:,} queries",
        f"gallery {gallery}",
        f"reference {protocol['reference']}",
        f"text: {protocol['caption_rule']}",
    ]
    if protocol.get("missing_images"):
        parts.append(f"{protocol['missing_images']:,} images missing")
    return ", ".join(parts)


def metrics_lines(metrics: Mapping[str, float]) -> str:
    """Metrics in percent, one line a family: ``mAP@5 12.34   mAP@10 13.00``; semantic aspects one line
    each."""
    families: dict[str, list[str]] = {}
    for name, value in metrics.items():
        families.setdefault(name.partition("@")[0], []).append(f"{name} {100 * value:6.2f}")
    return "\n".join("   ".join(cells) for cells in families.values())


def pad(markdown: str) -> str:
    """A Markdown table with its columns made equally wide, for the terminal."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in markdown.strip().splitlines()
    ]
    widths = [max(3, *(len(cell) for cell in column[:1] + column[2:])) for column in zip(*rows, strict=True)]
    right = [cell.endswith(":") for cell in rows[1]]
    lines = []
    for number, row in enumerate(rows):
        cells = [
            ("-" * (width - 1) + (":" if to_right else "-"))
            if number == 1
            else (cell.rjust(width) if to_right else cell.ljust(width))
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _columns(run: Run, metrics: Sequence[str], metric: str) -> list[str]:
    """The columns of the benchmark's table, and ``metric`` where it is not among them; ``metrics`` are all
    that the run has."""
    if metric not in metrics:
        raise InputError(f"run {run.name} has no metric {metric!r}; choose one of {', '.join(metrics)}")
    usual = [name for name in TABLE_METRICS[run.record["benchmark"]] if name in metrics]
    return [*usual, *([] if metric in usual else [metric])]


def _labels(runs: Sequence[Run]) -> list[str]:
    """The runs' names; with the encoder where they differ in it: "ViT-B-32" alone may be two models. A random
    ranking has no encoder."""
    encoders = [run.record["inputs"].get("encoder", {}).get("encoder") for run in runs]
    if len({encoder for encoder in encoders if encoder is not None}) < 2:
        return [run.name for run in runs]
    return [
        run.name if encoder is None else f"{run.name} [{encoder}]"
        for run, encoder in zip(runs, encoders, strict=True)
    ]


def _distinct(names: list[str]) -> list[str]:
    """Equal names get a number, so that a comparison of two runs of one method is possible."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {
            str(key): (None if not isinstance(value, str) and pd.isna(value) else _plain(value))
            for key, value in row.items()
        }
        for row in table.to_dict("records")
    ]


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
