"""Tables as Markdown, LaTeX, HTML and CSV: what is bold, what is escaped, and that no digit is lost."""

from __future__ import annotations

import csv
import io
import math
import re

import numpy as np
import pandas as pd
import pytest

from cir_utils.errors import InputError
from cir_utils.tables import Comparison, check_format, write_table
from cir_utils.typeset import pad, to_csv, to_html, to_latex, to_markdown

NAN = math.nan
RESULTS = pd.DataFrame(
    {
        "method": ["xr, k_prime=10", "[a] 50% & more", "sdr-cir"],
        "M": [0.25, 1 / 3, 0.333333],
        "M low": [0.2, 0.3, NAN],
        "M high": [0.3, 0.4, NAN],
        "R@1": [0.5, 0.5, 0.5],
        "R@1 low": [0.4, 0.4, 0.4],
        "R@1 high": [0.6, 0.6, 0.6],
        "MLLM calls": [12345, 0, 7],
        "seconds": [12345.6, 1.25, 0.5],
    }
)
PAIRED = pd.DataFrame(
    {
        "method": ["sdr-cir"], "against": ["xr, k_prime=10"], "difference": [-0.05],
        "difference low": [-0.1], "difference high": [0.0], "wins": [1], "ties": [2], "losses": [3],
        "effect": [-0.75], "p": [0.0004], "p (Holm)": [0.25],
    }
)  # fmt: skip
BOTH = Comparison("mini_circo val, 100% of it", "M", RESULTS, PAIRED, pd.DataFrame({"query": ["q"]}))


def balanced(text: str) -> None:
    """What LaTeX needs at least: environments and braces closed in order, every row with the tabular's number
    of cells, and no special character bare."""
    open_environments = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            open_environments.append(name)
        else:
            assert open_environments.pop() == name
    assert not open_environments
    bare = re.sub(r"\\[\\{}$&#%_]", "", re.sub(r"^%.*", "", text, flags=re.MULTILINE))
    depth = 0
    for sign in bare:
        depth += {"{": 1, "}": -1}.get(sign, 0)
        assert depth >= 0
    assert depth == 0 and bare.count("$") % 2 == 0
    assert not re.search(r'[#%_~^<>|"–−]', bare), "a special character that is not escaped"
    for columns, body in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        lines = [line for line in body.strip().splitlines() if not line.endswith("rule")]
        for line in lines:
            assert line.endswith(r" \\") and not line.startswith(("[", "*"))
            assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1, line


def test_latex_is_a_booktabs_table_with_the_best_in_bold() -> None:
    text = to_latex(RESULTS)
    balanced(text)
    assert text.splitlines() == [
        r"\begin{tabular}{lrrrr}",
        r"\toprule",
        r"method & M & R@1 & MLLM calls & seconds \\",
        r"\midrule",
        r"xr, k\_prime=10 & 25.00 {\scriptsize [20.00, 30.00]} & 50.00 {\scriptsize [40.00, 60.00]} & 12345 "
        r"& 12346 \\",
        # Both are printed 33.33, so both are bold; where all are equal none is.
        r"{[}a] 50\% \& more & \textbf{33.33} {\scriptsize [30.00, 40.00]} & 50.00 {\scriptsize [40.00, "
        r"60.00]} & 0 & 1.25 \\",
        r"sdr-cir & \textbf{33.33} & 50.00 {\scriptsize [40.00, 60.00]} & 7 & 0.5 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_latex_of_paired_tests_has_signs_and_no_bold() -> None:
    text = to_latex(PAIRED, "50% of x_1")
    balanced(text)
    assert text.startswith("\\begin{table}\n\\centering\n\\caption{50\\% of x\\_1}\n\\begin{tabular}{ll")
    assert (
        r"sdr-cir & xr, k\_prime=10 & $-5.00$ {\scriptsize [$-10.00$, $+0.00$]} & 1 & 2 & 3 & $-0.75$ & "
        r"\textless{} 0.001 & 0.250 \\"
    ) in text
    assert "textbf" not in text


def test_latex_escapes_every_special_character() -> None:
    evil = 'a\\b {c} $d$ e&f #g %h _i ^j ~k <l> |m| "n" –o −p *q [r] \n \\input{x}'
    text = to_latex(pd.DataFrame({"method": [evil], "n": [None]}))
    balanced(text)
    assert (
        r"a\textbackslash{}b \{c\} \$d\$ e\&f \#g \%h \_i \textasciicircum{}j \textasciitilde{}k "
        r"\textless{}l\textgreater{} \textbar{}m\textbar{} ''n'' --o $-$p {*}q {[}r] "
        r"\textbackslash{}input\{x\} & -- \\"
    ) in text


def test_csv_loses_no_digit() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(RESULTS))))
    for name in RESULTS.columns[1:]:
        back = [float(row[name] or "nan") for row in rows]
        assert np.array_equal(back, RESULTS[name], equal_nan=True), name
    assert "0.3333333333333333" in to_csv(RESULTS)
    ragged = pd.DataFrame({"method": ['a, "b"', "c"], "wins": [3.0, NAN], "calls": [None, 4]}, dtype=object)
    assert list(csv.reader(io.StringIO(to_csv(ragged)))) == [
        ["method", "wins", "calls"], ['a, "b"', "3", ""], ["c", "", "4"],
    ]  # fmt: skip


def test_html_escapes_and_marks_the_best() -> None:
    table = pd.DataFrame({"method": ["a | b", "<c>"], "n": [1, 2]})
    assert to_html(table).count("<td") == 4
    assert "a | b" in to_html(table) and "&lt;c&gt;" in to_html(table)
    text = to_html(RESULTS)
    assert "<b>33.33 [30.00, 40.00]</b>" in text and text.count("<b>") == 2
    assert '<td class="">xr, k_prime=10</td><td class="num">25.00 [20.00, 30.00]</td>' in text


def test_markdown_and_its_even_columns_keep_bars() -> None:
    table = pd.DataFrame({"method": ["a|b"], "n": [10.5]})
    assert to_markdown(table) == "| method | n |\n| --- | ---: |\n| a\\|b | 10.5 |\n"
    assert pad(to_markdown(table)) == "| method |    n |\n| ------ | ---: |\n| a\\|b   | 10.5 |"


def test_a_comparison_in_every_format() -> None:
    assert BOTH.text("text").splitlines()[:3:2] == [
        "mini_circo val, 100% of it",
        "| method         |                    M |                  R@1 | MLLM calls | seconds |",
    ]
    assert to_markdown(PAIRED).strip() in BOTH.text("markdown")
    latex = BOTH.text("latex")
    balanced(latex)
    assert latex.startswith("% needs \\usepackage{booktabs}\n\\begin{table}\n")
    assert latex.count(r"\begin{tabular}") == 2 and r"mini\_circo val, 100\% of it. Percent" in latex
    rows = list(csv.DictReader(io.StringIO(BOTH.text("csv"))))
    assert [row["method"] for row in rows] == list(RESULTS["method"])
    assert [float(row["M"]) for row in rows] == list(RESULTS["M"])
    assert (rows[2]["against"], rows[2]["difference"], rows[2]["wins"]) == ("xr, k_prime=10", "-0.05", "1")
    assert (rows[0]["against"], rows[0]["wins"], rows[0]["tested"]) == ("", "", "M")
    assert {row["protocol"] for row in rows} == {"mini_circo val, 100% of it"}
    assert BOTH.query_text("csv") == "query\nq\n"


def test_an_unknown_format_is_refused() -> None:
    assert check_format("latex") == "latex"
    with pytest.raises(InputError, match="unknown format 'html': choose text, markdown, latex, csv"):
        check_format("html")


def test_a_table_is_written_whole_or_not_at_all(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "new" / "t.csv", "a,b")
    assert (tmp_path / "new" / "t.csv").read_text() == "a,b\n"
    with pytest.raises(InputError, match="is a folder; name a file in it"):
        write_table(tmp_path / "new", "x")
    with pytest.raises(InputError, match="cannot be written"):
        write_table(tmp_path / "new" / "t.csv" / "u.csv", "x")

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(InputError, match="No space left on device"):
        write_table(tmp_path / "new" / "t.csv", "other")
    assert (tmp_path / "new" / "t.csv").read_text() == "a,b\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["t.csv"]
