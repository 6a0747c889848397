"""The explorer: every slider position ranks as the method itself does; its HTML is safe and complete."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from small_world import (
    SETTINGS,
    VAGUE,
    Oracle,
    open_bench,
    write_cirr_world,
    write_fashion_world,
    write_world,
)

from cir_utils import explorer, rescoring
from cir_utils.errors import InputError
from cir_utils.explorer import Explorer, query_html, strip_html, why_html
from cir_utils.methods import METHODS, resolve_settings
from cir_utils.rescoring import State, gather, gather_part, one_query, rank
from cir_utils.runs import run_method
from cir_utils.workbench import Workbench

WORLDS: dict[str, Callable[[Path], Path]] = {
    "mini-circo": write_world,
    "mini-cirr": write_cirr_world,
    "mini-fashioniq": write_fashion_world,
}
MOVES = {
    "sdr-cir": [{}, {"alpha": 0.0, "beta": 0.0}, {"alpha": 1.0, "beta": 0.0}, {"alpha": 0.3, "beta": 1.5}],
    "xr": [
        {},
        {"lambda": 0.0, "k_prime": 1, "kappa": 10},
        {"lambda": 1.0, "k_prime": 4, "kappa": 100},
        {"lambda": 0.5, "k_prime": 5},
    ],
    "description-only": [{}],
    "random": [{}],
}


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def bench(tmp_path: Path, tiny_clip: Path, oracle: Oracle) -> Workbench:
    return open_bench(write_world(tmp_path / "world"), tiny_clip, tmp_path / "cache", oracle=oracle)


def state_of(bench: Workbench, method: str, row: int = 0, **moved: float) -> State:
    return State(
        bench, method, gather(bench, method), resolve_settings(method, bench.settings, moved), row=row
    )


class Pictures(HTMLParser):
    """The attributes of every img and the classes of every figure; whether all tags are closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.figures: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)
        self.close()
        assert not self.open, f"{self.open} are not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "img":
            self.images.append(dict(attrs))
            return
        if tag == "figure":
            self.figures.append(dict(attrs)["class"] or "")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


# --- ranking ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("method", MOVES)
def test_every_slider_position_ranks_as_the_method_itself(
    name: str, method: str, tmp_path: Path, tiny_clip: Path
) -> None:
    oracle = Oracle()
    bench = open_bench(
        WORLDS[name](tmp_path / "world"), tiny_clip, tmp_path / "cache", oracle=oracle, benchmark=name
    )
    evidence = gather(bench, method)
    asked = len(oracle.asked)
    for moved in MOVES[method]:
        settings = resolve_settings(method, bench.settings, moved)
        states = [
            State(bench, method, evidence, settings, category, row)
            for category, part in bench.parts.items()
            for row in range(len(part.queries))
        ]
        found = [rank(state) for state in states]
        assert len(oracle.asked) == asked, "moving a slider asks the MLLM nothing"
        run = run_method(bench, method, settings)
        for each in found:
            gallery = each.bench.benchmark.gallery
            assert [gallery[place] for place in each.order] == run.rankings[each.query.id]
            number = run.queries.index(each.query.id)
            assert each.metrics == {key: run.metrics[key] for key in each.metrics}
            assert each.own_metrics == {key: run.per_query[key][number] for key in each.own_metrics}
        assert found[0].metrics.keys() >= {"mini-circo": {"mAP@5"}, "mini-cirr": {"R@1"}}.get(
            name, {"mean/R@10", "dress/R@10"}
        )
        asked = len(oracle.asked)


def test_terms_add_up_to_what_is_ranked_by(bench: Workbench) -> None:
    found = rank(state_of(bench, "sdr-cir", 2, alpha=0.2, beta=0.5))
    S_q, S_d, S_m, S_f = found.terms.values()
    assert list(found.terms) == ["S_q", "S_d", "S_m", "S_f"]
    assert (1.5 * S_q - 0.5 * (S_d - S_m) - S_f).abs().max() < 1e-12
    assert S_f[found.order].diff().max() <= 0, "the order is by falling S_f"
    found = rank(state_of(bench, "xr", 2))
    assert list(found.terms) == ["s_t^t", "s_t^v", "s_v^t", "s_v^v", "RRF", "score"]
    score = found.terms["score"]
    assert int(score.isfinite().sum()) == SETTINGS["k_prime"]
    assert score[found.order[:6]].diff().max() <= 0


def test_a_setting_that_was_not_prepared_is_refused(bench: Workbench) -> None:
    with pytest.raises(InputError, match=r"kappa = 7 was not prepared; choose one of 10, 30, 60, 100"):
        rank(state_of(bench, "xr", kappa=7))
    with pytest.raises(InputError, match="the first 6 candidates were verified; choose from 1 to 6"):
        rank(state_of(bench, "xr", k_prime=7))


def test_a_query_of_the_readers_own(bench: Workbench) -> None:
    reference = bench.benchmark.gallery[3]
    own = one_query(bench, reference, "  make it\n green ")
    assert [(q.reference, q.text, q.targets) for q in own.queries] == [(reference, "make it green", ())]
    assert own.gallery_features is not None and own.encoder is bench.encoder
    for method in ("sdr-cir", "xr"):
        state = state_of(bench, method)
        found = rank(State(bench, method, state.evidence, state.settings, own=gather_part(own, method)))
        gallery = bench.benchmark.gallery
        expected = run_method(own, method, state.settings).rankings[rescoring.OWN]
        assert [gallery[place] for place in found.order] == expected
        assert found.query.id == "yours" and found.own_metrics == {}
        assert found.metrics == rank(state).metrics, "the split's metric stays that of the split"
    with pytest.raises(InputError, match="reference 'nowhere' is not in the gallery of mini-circo val"):
        one_query(bench, "nowhere", "make it green")


# --- HTML -------------------------------------------------------------------------------------------------


def test_a_strip_shows_ranks_frames_and_terms(bench: Workbench) -> None:
    found = rank(state_of(bench, "sdr-cir", 1))
    page = Pictures(strip_html(found, picked=found.order[2], count=5))
    images = [bench.benchmark.gallery[place] for place in found.order[:5]]
    query = found.query
    for number, (image, given, kind) in enumerate(zip(images, page.images, page.figures, strict=True), 1):
        role = "true target" if image in query.targets else ""
        role = "reference image" if image == query.reference else role
        assert given["alt"] == ", ".join(filter(None, [f"rank {number}", f"image {image}", role]))
        assert (given["src"] or "").startswith("data:image/jpeg;base64,")
        assert f"[{number - 1}]?.click()" in (given["onclick"] or "")
        assert ("target" in kind, "reference" in kind) == (role == "true target", role == "reference image")
        assert ("picked" in kind) == (number == 3)
    first = strip_html(found, count=1)
    value = float(found.terms["S_f"][found.order[0]])
    assert f"S<sub>f</sub></td><td class='num'>{value:.3f}</td>" in first


def test_a_strip_of_xr_shows_question_ticks(bench: Workbench) -> None:
    found = rank(state_of(bench, "xr", 0))
    gallery, query = bench.benchmark.gallery, found.query
    target = next(place for place in found.order[:6] if gallery[place] in query.targets)
    wrong = bench.place_of[query.reference]
    evidence, row = found.state.shown
    assert rescoring.ticks(evidence, row, target) == {"text": "✓✓", "vision": "✓✓"}
    assert rescoring.ticks(evidence, row, wrong) in ({"text": "✗✗", "vision": "✗✗"}, {})
    assert "caption</td><td class='num'>✓✓</td>" in strip_html(found)
    assert "s<sub>t</sub><sup>v</sup>" in strip_html(found)


def test_why_says_the_score_with_numbers(bench: Workbench) -> None:
    found = rank(state_of(bench, "sdr-cir", 0, alpha=0.2, beta=0.5))
    place = found.order[3]
    S_q, S_d, S_m, S_f = (float(values[place]) for values in found.terms.values())
    page = why_html([found], place)
    Pictures(page)
    assert "sdr-cir: rank 4 of 24" in page
    assert f"= 1.50·{S_q:.3f} − 0.50·({S_d:.3f} − {S_m:.3f}) = <b>{S_f:.3f}</b>" in page
    alone = rank(state_of(bench, "sdr-cir", 0, alpha=0, beta=0)).rank_of(place)
    anchor = rank(state_of(bench, "sdr-cir", 0, alpha=0.2, beta=0)).rank_of(place)
    debias = rank(state_of(bench, "sdr-cir", 0, alpha=0, beta=0.5)).rank_of(place)
    said = f"without Anchor (α = 0): {debias}; without Debias (β = 0): {anchor}; by the description"
    assert f"{said} alone: {alone}." in page
    assert bench.queries[7].text == VAGUE
    vague = rank(state_of(bench, "sdr-cir", 7))
    assert "the ranking is by the reference image alone" in why_html([vague], vague.order[0])


def test_why_of_xr_tells_verified_from_unverified(bench: Workbench) -> None:
    found = rank(state_of(bench, "xr", 0, k_prime=3))
    first, last = found.order[0], found.order[-1]
    page = why_html([found, rank(state_of(bench, "sdr-cir"))], first)
    Pictures(page)
    assert f"<b>{float(found.terms['score'][first]):.3f}</b>" in page and "expected" in page
    assert "xr: rank 1 of 24" in page and "sdr-cir: rank" in page
    page = why_html([found], last)
    assert "Only the first k' = 3 are verified" in page and "xr: rank 24 of 24" in page
    simple = rank(state_of(bench, "image-only"))
    assert METHODS["image-only"].about in why_html([simple], simple.order[0]).replace("&#x27;", "'")


def test_a_removed_reference_is_called_so(tmp_path: Path, tiny_clip: Path) -> None:
    bench = open_bench(
        write_cirr_world(tmp_path / "world"), tiny_clip, tmp_path / "cache", benchmark="mini-cirr"
    )
    found = rank(state_of(bench, "sdr-cir"))
    page = why_html([found], bench.place_of[found.query.reference])
    assert "not ranked: the protocol removes it" in page and "the reference image" in page


def test_texts_are_escaped_and_nothing_is_fetched(bench: Workbench) -> None:
    text = "make it <img/src=//evil.example/x>\"'&"
    own = one_query(bench, bench.benchmark.gallery[0], text)
    pages = []
    for method in ("sdr-cir", "xr"):
        state = state_of(bench, method)
        found = rank(State(bench, method, state.evidence, state.settings, own=gather_part(own, method)))
        pages += [strip_html(found), query_html([found]), why_html([found], found.order[0])]
    for page in pages:
        parsed = Pictures(page)
        assert all((image["src"] or "").startswith("data:image/jpeg;base64,") for image in parsed.images)
        assert not parsed.tags & {"script", "link", "iframe", "style"} and "url(" not in page
    assert "&lt;img/src=//evil.example/x&gt;&quot;&#x27;&amp;" in pages[1]
    assert sum("evil.example" in page for page in pages) >= 3, "the model repeats it, in both methods' texts"
    assert not re.search(r"(?:https?:|//)[a-z]", explorer.STYLE)


# --- widgets ----------------------------------------------------------------------------------------------


def test_a_slider_moves_ranking_and_metric(bench: Workbench, oracle: Oracle) -> None:
    shown = Explorer([bench])
    side, beside = shown.sides
    assert shown.sliders["alpha"].value == SETTINGS["alpha"] and beside.box.layout.display == "none"
    assert shown.sliders["k_prime"].layout.display == "none", "a setting of another method is hidden"
    before, asked = (side.strip.value, side.head.value), len(oracle.asked)
    shown.sliders["alpha"].value = 1.0
    shown.sliders["beta"].value = 0.0
    run = run_method(bench, "image-only", {})
    gallery = bench.benchmark.gallery
    assert [gallery[place] for place in side.ranked.order] == run.rankings[bench.queries[0].id]
    assert side.strip.value != before[0] and side.head.value != before[1]
    assert f"<b>{100 * run.metrics['mAP@5']:.1f} %</b>" in side.head.value
    assert len(oracle.asked) == asked


def test_two_methods_side_by_side_and_a_picture_picked_in_both(bench: Workbench) -> None:
    shown = Explorer([bench])
    side, beside = shown.sides
    beside.method.value = "xr"
    assert beside.box.layout.display == "" and shown.sliders["k_prime"].layout.display == ""
    assert "imagined from text" in shown.asked.value and "target description" in shown.asked.value
    side.pick.value = 2
    place = side.ranked.order[1]
    number = beside.ranked.rank_of(place)
    assert beside.pick.value == (number if number <= explorer.SHOWN else None)
    assert "sdr-cir: rank 2 of 24" in shown.why.value and f"xr: rank {number} of 24" in shown.why.value
    kept = side.strip.value
    shown.sliders["k_prime"].value = 1
    assert side.strip.value == kept, "k' is no setting of sdr-cir"
    assert f"xr: rank {beside.ranked.rank_of(place)} of 24" in shown.why.value
    shown.sliders["alpha"].value = 0.9
    assert f"sdr-cir: rank {side.ranked.rank_of(place)} of 24" in shown.why.value, "the picture stays picked"
    beside.method.value = ""
    assert "xr:" not in shown.why.value


def test_another_query_text_reference_and_benchmark(
    bench: Workbench, tmp_path: Path, tiny_clip: Path
) -> None:
    other = open_bench(
        write_fashion_world(tmp_path / "fashion"), tiny_clip, tmp_path / "cache", benchmark="mini-fashioniq"
    )
    shown = Explorer([bench, other])
    side = shown.sides[0]
    shown.query.value = 3
    assert side.ranked.query is bench.queries[3] and shown.text.value == bench.queries[3].text
    shown.text.value = "make it green"
    shown.search.click()
    assert side.ranked.query.id == "yours" and side.ranked.query.reference == bench.queries[3].reference
    side.pick.value = 5
    picked = bench.benchmark.gallery[shown.picked]
    shown.use.click()
    assert side.ranked.query.reference == picked and side.ranked.query.text == "make it green"
    assert shown.reference.value == str(picked) and shown.why.value == "" and shown.use.disabled
    shown.reference.value = "<nowhere>"
    shown.search.click()
    assert "reference &#x27;&lt;nowhere&gt;&#x27; is not in the gallery" in shown.status.value
    shown.benchmark.value = "mini-fashioniq"
    assert shown.status.value == "" and side.ranked.query is other.queries[0]
    assert "mean/R@10 over 12 queries" in side.head.value
    shown.query.value = 5
    assert side.ranked.query is other.queries[5] and side.ranked.state.category == other.queries[5].category


def test_a_split_without_answers_has_rankings_and_no_metric(tmp_path: Path, tiny_clip: Path) -> None:
    world = write_world(tmp_path / "world", hidden=("test",))
    bench = open_bench(world, tiny_clip, tmp_path / "cache", "test", benchmark="circo")
    side = Explorer([bench]).sides[0]
    assert "no public answers" in side.head.value and len(Pictures(side.strip.value).images) == 12
