"""Words in notebooks: sentences and tables with computed numbers, and texts with their words marked.

A number typed into Markdown grows old when a model is trained again; a number put into :func:`say` does not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from IPython.display import Markdown, display

from cir_utils.agents import Described

#: Words that name nothing that can be seen, or (sides, "plain") what captions often leave unsaid.
FUNCTION_WORDS = frozenset("in on at with under of and to there is are left right plain".split())


def say(text: str) -> None:
    """Show ``text`` as Markdown below the cell; the indentation and line breaks of the source are dropped,
    blank lines separate paragraphs."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    display(Markdown("\n\n".join(" ".join(part.split()) for part in paragraphs)))


def table(rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> None:
    """Show ``rows`` as a Markdown table under the headings ``columns``.

    Texts that start with a number are not touched; floats are written with one decimal (give percent where
    fractions would read badly). Raises ``ValueError`` for a row of another length.
    """
    lines = [_line(columns), _line("---" for _ in columns)]
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"{len(row)} cells for {len(columns)} columns")
        lines.append(_line(f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row))
    display(Markdown("\n".join(lines)))


def percent(value: float, signed: bool = False) -> str:
    """A fraction as percent with one decimal: 0.1234 is ``12.3 %``, a signed one ``+12.3``."""
    return f"{100 * value:+.1f}" if signed else f"{100 * value:.1f} %"


def escaped(text: str) -> str:
    """``text`` with the characters that mean something in Markdown made harmless (models may write any)."""
    return _harmless(" ".join(text.split()))


def words(text: str) -> list[str]:
    """The words of ``text`` in lower case, without articles, regular plurals brought to the singular."""
    found = [word for word in re.findall(r"\w+", text.casefold()) if word not in ("a", "an", "the")]
    return [re.sub(r"(?<=ch)es$|(?<=\w\w[^s])s$", "", word) for word in found]


def content(text: str) -> list[str]:
    """The `words` of ``text`` that say what is to be seen, each once, in their order."""
    return [word for word in dict.fromkeys(words(text)) if word not in FUNCTION_WORDS]


def unsupported(text: str, others: Iterable[str]) -> list[str]:
    """The `content` words of ``text`` that none of the texts ``others`` has."""
    known = {word for other in others for word in words(other)}
    return [word for word in content(text) if word not in known]


def marked(text: str, kept: Collection[str], dropped: Collection[str]) -> str:
    """``text`` as Markdown with the words of ``kept`` in bold and those of ``dropped`` struck through; a word
    of both stays plain.

    ``kept`` and ``dropped`` are words or phrases; a plural counts as its singular.
    """
    bold, struck = set(words(" ".join(kept))), set(words(" ".join(dropped)))
    both = bold & struck
    parts = []
    for part in re.split(r"(\w+)", " ".join(text.split())):
        meant = set(words(part)) - both
        if meant and meant <= bold:
            parts.append(f"**{_harmless(part)}**")
        elif meant and meant <= struck:
            parts.append(f"~~{_harmless(part)}~~")
        else:
            parts.append(_harmless(part))
    return "".join(parts)


def stages(described: Described) -> None:
    """Show the four stages of a Selective CoT answer as a table, the reference's words marked: bold what was
    selected, struck through what was discarded. After a fallback, the description alone."""
    answer = described.answer
    if answer is None:
        table([["fallback", escaped(described.description)]], ["stage", "answer"])
        return
    rows = [
        ["1 understand the reference", marked(answer.understanding, answer.selected, answer.discarded)],
        ["2 explicit targets", _listed(answer.explicit_targets)],
        ["2 implicit targets", _listed(answer.implicit_targets)],
        ["2 preserved", _listed(answer.preserved)],
        ["3 selected", _listed(answer.selected, "**")],
        ["3 discarded", _listed(answer.discarded, "~~")],
        ["4 target description", escaped(described.description)],
    ]
    table(rows, ["stage", "answer"])


def verdict(paired: Any, method: str, against: str, metric: str) -> str:
    """One row of a table of paired tests (`compare.paired_table`) in words: the difference in points, the
    tally of queries, Holm's p, and whether chance could explain it (p of 0.05 or more).

    Raises ``KeyError`` when the table has no such row."""
    rows = paired[(paired["method"] == method) & (paired["against"] == against)]
    if rows.empty:
        raise KeyError(f"the table of tests has no row {method!r} against {against!r}")
    row = rows.iloc[0]
    p = float(row["p (Holm)"])
    said = (
        "**not established**: these queries cannot tell it from chance"
        if not p < 0.05
        else f"**a {'gain' if row['difference'] > 0 else 'loss'}**, and chance is an unlikely explanation"
    )
    return (
        f"{percent(row['difference'], signed=True)} points of {metric} ({row['wins']} queries won, "
        f"{row['losses']} lost, {row['ties']} tied; {'p < 0.001' if p < 0.001 else f'p = {p:.3f}'}): {said}"
    )


def metrics_table(runs: Mapping[str, Mapping[str, float]], metrics: Sequence[str]) -> None:
    """Show the chosen ``metrics`` of several ``runs`` (name -> metric -> fraction) in percent, one row a
    run."""
    table(
        [[name, *(f"{100 * values[metric]:.1f}" for metric in metrics)] for name, values in runs.items()],
        ["method", *metrics],
    )


def _harmless(text: str) -> str:
    return re.sub(r"([\\`*_~|<>\[\]#$])", r"\\\1", text)


def _listed(items: Sequence[str], mark: str = "") -> str:
    return "; ".join(f"{mark}{escaped(item)}{mark}" for item in items) or "none"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()) for cell in cells) + " |"
