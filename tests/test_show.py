"""Sentences, tables and marked words of the notebooks."""

import pandas as pd
import pytest

from cir_utils import show
from cir_utils.agents import Described
from cir_utils.schemas import SelectiveCoT


@pytest.fixture
def shown(monkeypatch):
    """What was displayed, as Markdown source."""
    found: list[str] = []
    monkeypatch.setattr(show, "display", lambda markdown: found.append(markdown.data))
    return found


def test_say_joins_lines_and_keeps_paragraphs(shown):
    show.say("""one
        two

        three""")
    assert shown == ["one two\n\nthree"]


def test_table_writes_floats_with_one_decimal_and_refuses_odd_rows(shown):
    show.table([["a", 1.25, 3]], ["name", "x", "n"])
    assert shown == ["| name | x | n |\n| --- | --- | --- |\n| a | 1.2 | 3 |"]
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        show.table([["a"]], ["x", "y"])


def test_percent():
    assert show.percent(0.1234) == "12.3 %" and show.percent(-0.01, signed=True) == "-1.0"


def test_words_are_lower_case_singular_and_without_articles():
    said = "The two Cats, a bus on the benches in the grass"
    assert show.words(said) == ["two", "cat", "bus", "on", "bench", "in", "grass"]


def test_marked_words_are_bold_or_struck_and_models_cannot_write_markdown():
    text = "two red cats *in* a city"
    assert show.marked(text, ["two", "cat"], ["red", "city"]) == r"**two** ~~red~~ **cats** \*in\* a ~~city~~"
    assert show.marked("red cat", ["red"], ["red"]) == "red cat"


def answer(**changes):
    values = {
        "understanding": "a red cat in a room",
        "explicit_targets": ["colour: blue"],
        "implicit_targets": [],
        "preserved": ["object"],
        "selected": ["cat"],
        "discarded": ["red"],
        "description": "a blue cat",
    }
    return SelectiveCoT(**(values | changes))


def described(value):
    text = value.description if value else "a red cat, make it blue"
    return Described(text, value, False, (), False, False, value is None, "", {})


def test_stages_show_what_was_selected_and_discarded(shown):
    show.stages(described(answer()))
    (text,) = shown
    assert "| 1 understand the reference | a ~~red~~ **cat** in a room |" in text
    assert "| 2 implicit targets | none |" in text and "| 4 target description | a blue cat |" in text


def test_stages_of_a_fallback_are_the_description_alone(shown):
    show.stages(described(None))
    assert shown == ["| stage | answer |\n| --- | --- |\n| fallback | a red cat, make it blue |"]


def test_metrics_in_percent(shown):
    show.metrics_table({"image-only": {"mAP@5": 0.123, "mAP@10": 0.2}}, ["mAP@5", "mAP@10"])
    assert shown[0].splitlines()[-1] == "| image-only | 12.3 | 20.0 |"


def test_content_words_leave_out_what_cannot_be_seen():
    assert show.content("two plain cats with a ball on the left in the city") == [
        "two",
        "cat",
        "ball",
        "city",
    ]
    assert show.unsupported("two red cats at the beach", ["two cats in a room", "a blue beach"]) == ["red"]


def test_a_paired_test_in_words():
    rows = {"method": ["a", "a"], "against": ["b", "c"], "difference": [0.0512, -0.01], "wins": [9, 2]}
    rows |= {"losses": [1, 3], "ties": [0, 5], "p (Holm)": [0.0004, 0.05]}
    paired = pd.DataFrame(rows)
    assert show.verdict(paired, "a", "b", "mAP@5") == (
        "+5.1 points of mAP@5 (9 queries won, 1 lost, 0 tied; p < 0.001): **a gain**, and chance is an "
        "unlikely explanation"
    )
    assert "-1.0 points" in show.verdict(paired, "a", "c", "mAP@5")
    assert "p = 0.050): **not established**" in show.verdict(paired, "a", "c", "mAP@5")
    paired.loc[1, "p (Holm)"] = 0.04
    assert "**a loss**" in show.verdict(paired, "a", "c", "mAP@5")
    with pytest.raises(KeyError, match="no row 'b' against 'a'"):
        show.verdict(paired, "b", "a", "mAP@5")
