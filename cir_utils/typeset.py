"""A results or paired table of `cir_utils.compare` as Markdown, LaTeX, HTML or CSV.

One reading of a table serves notebooks, the command line and the report (`_read`), so a number looks the same
wherever it is shown: metrics in percent with two decimals and their interval, p with three digits. CSV alone
keeps the fractions at full precision."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

import pandas as pd

MISSING = "–"
#: What LaTeX reads as a command, or prints as another sign.
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%",
    "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", MISSING: "--", "−": "$-$",
    # After the end of a row, LaTeX takes these for a part of it.
    "[": "{[}", "*": "{*}",
}  # fmt: skip
COUNTS = ("wins", "ties", "losses")


@dataclass(frozen=True)
class _Cell:
    """What stands in a cell: its text, the ends of its interval where it has one, and whether no other value
    of its column is higher."""

    text: str
    bounds: tuple[str, str] | None = None
    best: bool = False
    number: bool = False


@dataclass(frozen=True)
class _Table:
    columns: list[str]
    words: list[bool]
    rows: list[list[_Cell]]


def p_text(p: float) -> str:
    """A p-value as tables show it: three decimals, and never 0.000."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def to_markdown(table: pd.DataFrame) -> str:
    """A results or paired table as Markdown: metrics in percent with two decimals, "value [low, high]"; p
    with three digits.

    Columns `M`, `M low`, `M high` become one cell. Whole numbers stay whole, missing cells become a dash.
    """
    read = _read(table)
    lines = [
        "| " + " | ".join(read.columns) + " |",
        "|" + "|".join(" --- " if words else " ---: " for words in read.words) + "|",
    ]
    for row in read.rows:
        cells = [_plain(cell).replace("|", "\\|") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def to_latex(table: pd.DataFrame, caption: str = "") -> str:
    """The table as a LaTeX `tabular` with the rules of the package booktabs, inside a `table` with `caption`
    where one is given. Every text is escaped.

    The highest value of every metric is bold, and what is printed equal to it (nothing where all are equal).
    Letters outside ASCII are left as they are: pdfLaTeX sets those of western languages, LuaLaTeX all.
    """
    read = _read(table)
    lines = [r"\begin{tabular}{" + "".join("l" if words else "r" for words in read.words) + "}", r"\toprule"]
    lines += [" & ".join(map(_latex, read.columns)) + r" \\", r"\midrule"]
    lines += [" & ".join(map(_latex_cell, row)) + r" \\" for row in read.rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if caption:
        head = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(caption)}}}"]
        lines = [*head, *lines, r"\end{table}"]
    return "\n".join(lines) + "\n"


def to_html(table: pd.DataFrame) -> str:
    """The table as HTML, every text escaped; the highest value of every metric is bold."""
    read = _read(table)
    kinds = ["" if words else "num" for words in read.words]
    head = "".join(
        f'<th class="{kind}">{html.escape(name)}</th>' for name, kind in zip(read.columns, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}">{_html_cell(cell)}</td>' for cell, kind in zip(row, kinds, strict=True)
        )
        + "</tr>"
        for row in read.rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def to_csv(table: pd.DataFrame) -> str:
    """The table as CSV with all its columns: fractions at full precision (a reader gets the very float64
    back), the ends of intervals as columns of their own, missing cells empty."""
    counts = {name: table[name].astype("Int64") for name in COUNTS if name in table}
    return str(table.assign(**counts).to_csv(index=False, lineterminator="\n"))


def pad(markdown: str) -> str:
    """A Markdown table with its columns made equally wide, for the terminal."""
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
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


def _read(table: pd.DataFrame) -> _Table:
    columns = [str(name) for name in table.columns if not str(name).endswith((" low", " high"))]
    words = [name in ("method", "against") or bool(table[name].map(type).eq(str).any()) for name in columns]
    by_column = [_marked([_cell(table, name, row) for row in range(len(table))], name) for name in columns]
    return _Table(columns, words, [list(row) for row in zip(*by_column, strict=True)])


def _cell(table: pd.DataFrame, name: str, row: int) -> _Cell:
    value = table[name].iloc[row]
    if isinstance(value, str):
        return _Cell(" ".join(value.split()))
    if value is None or pd.isna(value):
        return _Cell(MISSING)
    if f"{name} low" in table.columns:
        sign = "+" if name == "difference" else ""
        low, high = (100 * table[f"{name} {end}"].iloc[row] for end in ("low", "high"))
        bounds = None if pd.isna(low) else (f"{low:{sign}.2f}", f"{high:{sign}.2f}")
        return _Cell(f"{100 * value:{sign}.2f}", bounds, number=True)
    if name in ("p", "p (Holm)"):
        return _Cell(p_text(value), number=value >= 0.001)
    if name == "effect":
        return _Cell(f"{value:+.2f}", number=True)
    whole = float(value).is_integer() or abs(value) >= 1000
    return _Cell(f"{value:.0f}" if whole else f"{value:.4g}", number=True)


def _marked(cells: list[_Cell], name: str) -> list[_Cell]:
    """A column with its highest values marked, where it is one of metrics: numbers with intervals."""
    numbers = [float(cell.text) for cell in cells if cell.number]
    judged = name != "difference" and any(cell.bounds for cell in cells)
    if not judged or len(numbers) < 2 or max(numbers) == min(numbers):
        return cells
    return [
        _Cell(cell.text, cell.bounds, cell.number and float(cell.text) == max(numbers), cell.number)
        for cell in cells
    ]


def _plain(cell: _Cell) -> str:
    return cell.text + (f" [{cell.bounds[0]}, {cell.bounds[1]}]" if cell.bounds else "")


def _html_cell(cell: _Cell) -> str:
    text = html.escape(_plain(cell))
    return f"<b>{text}</b>" if cell.best else text


def _latex(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in text)


def _latex_cell(cell: _Cell) -> str:
    text = _signed(cell.text) if cell.number else _latex(cell.text)
    if cell.best:
        text = rf"\textbf{{{text}}}"
    if cell.bounds:
        text += rf" {{\scriptsize [{', '.join(map(_signed, cell.bounds))}]}}"
    return text


def _signed(number: str) -> str:
    """A number whose sign LaTeX sets as one, not as a hyphen."""
    return f"${number}$" if number[:1] in ("+", "-") else number
