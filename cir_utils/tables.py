"""Results as text: a protocol in one line, metrics in percent, and the comparison of several runs.

Values stay fractions everywhere else; percent and rounding happen here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd

from cir_utils import compare
from cir_utils.errors import InputError
from cir_utils.files import write_atomic
from cir_utils.runs import TABLE_METRICS, Run
from cir_utils.typeset import pad as pad
from cir_utils.typeset import to_csv, to_latex, to_markdown

#: How a comparison can be written; ``text`` is Markdown with even columns, for the terminal.
Format = Literal["text", "markdown", "latex", "csv"]
FORMATS: tuple[Format, ...] = get_args(Format)
PERCENT = "Percent, with 95 % bootstrap intervals over queries"


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side: ``results`` has one row a run with intervals, ``paired`` one row a pair, and
    ``queries`` one row a pair and query (see ``cir_utils.compare``). ``metric`` is what the pairs were tested
    on."""

    protocol: str
    metric: str
    results: pd.DataFrame
    paired: pd.DataFrame
    queries: pd.DataFrame

    def text(self, form: Format = "text") -> str:
        """Both tables, written as ``form``; Markdown also reads well on a terminal.

        LaTeX is two floats that need the package booktabs. CSV is one table: a row a run, beside it its
        paired test (a row each where it has several), fractions at full precision."""
        if form == "csv":
            return to_csv(self._joined())
        if form == "latex":
            parts = [to_latex(self.results, f"{self.protocol}. {PERCENT}; the best value is bold.")]
            if len(self.paired):
                parts.append(
                    to_latex(
                        self.paired,
                        f"Paired sign-flip tests on {self.metric}, differences in percentage points; effect: "
                        "mean difference over its standard deviation; p corrected after Holm.",
                    )
                )
            return "% needs \\usepackage{booktabs}\n" + "\n".join(parts)
        shape = pad if form == "text" else str.strip
        parts = [self.protocol, "", shape(to_markdown(self.results))]
        if len(self.paired):
            parts += ["", f"Paired tests on {self.metric} (difference in percentage points):", ""]
            parts.append(shape(to_markdown(self.paired)))
        return "\n".join(parts) + ("" if form == "text" else "\n")

    def query_text(self, form: Format = "text") -> str:
        """Who won which query (``queries``), written as ``form``."""
        if form == "csv":
            return to_csv(self.queries)
        if form == "latex":
            return "% needs \\usepackage{booktabs}\n" + to_latex(self.queries, f"{self.metric} by query.")
        return pad(to_markdown(self.queries)) if form == "text" else to_markdown(self.queries)

    def _joined(self) -> pd.DataFrame:
        table = self.results
        if len(self.paired):
            table = table.merge(self.paired, on="method", how="left").assign(tested=self.metric)
        return table.assign(protocol=self.protocol)

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
        queries=compare.query_table(rows, chosen, metric),
    )


def check_format(name: str) -> Format:
    """``name`` as a :data:`Format`; :class:`InputError` lists the choices."""
    for known in FORMATS:
        if name == known:
            return known
    raise InputError(f"unknown format {name!r}: choose {', '.join(FORMATS)}")


def write_table(path: Path, text: str) -> None:
    """Write a table to a file, whole or not at all; :class:`InputError` where it cannot be written."""
    if path.is_dir():
        raise InputError(f"--out {path} is a folder; name a file in it")
    try:
        write_atomic(path, text if text.endswith("\n") else text + "\n")
    except OSError as error:
        raise InputError(f"--out {path} cannot be written ({error.strerror}); name another file") from None


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
