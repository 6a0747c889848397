"""CIReVL, LDRE, SEIZE, ImageScope and WeiMoCIR: every step against values worked out by hand, and the answers
that they must survive."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from scripted import ScriptedMLLM
from small_world import (
    SCENE_OF,
    Oracle,
    cirr_name,
    open_bench,
    write_cirr_world,
    write_fashion_world,
    write_world,
)
from torch import Tensor

from cir_utils.agents import Agents
from cir_utils.benchmarks import Benchmark, Protocol, Query
from cir_utils.methods import METHODS, SETTINGS, imagescope, ldre, load_method, resolve_settings, xr
from cir_utils.methods.seize import increment_scores
from cir_utils.metrics import check_permutations
from cir_utils.mllm import Request
from cir_utils.profiles import published
from cir_utils.prompts import load_prompt
from cir_utils.rescoring import gather, said
from cir_utils.response_cache import ResponseCache
from cir_utils.runs import run_method
from cir_utils.workbench import MethodOutput, Texts, Workbench

NEW = ("cirevl", "ldre", "seize", "imagescope", "weimocir")
GALLERY = (10, 20, 30, 40)


def run(bench: Workbench, method: str, **overrides: object) -> MethodOutput:
    return load_method(method)(bench, resolve_settings(method, bench.settings, overrides))


def at(*degrees: float) -> Tensor:
    """Unit vectors in the plane, one a row."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def plane(
    folder: Path,
    mllm: ScriptedMLLM,
    angles: dict[str, float],
    pictures: tuple[float, float, float, float] = (10, 20, 30, 40),
    prompts: str = "default",
) -> Workbench:
    """A workbench whose features lie in the plane: one query, "make it blue" of picture 10, four pictures at
    the angles ``pictures``, and the texts of ``angles``."""
    found = {image: folder / f"{image:02d}.png" for image in GALLERY}
    for image, path in found.items():
        Image.new("RGB", (8, 8), (image, 0, 0)).save(path)
    queries = (Query("0", 10, "make it blue", (40,), 40),)
    protocol = Protocol("mini-circo", "val", "made up", 4, "kept", "relative caption", False, 1)
    bench = Workbench(
        Benchmark("mini-circo", "val", queries, GALLERY, folder, protocol, found=found),
        profile="mini", encoder="none", mllm="none", prompts=prompts, settings={}, settings_source="",
        device=torch.device("cpu"), cache_dir=folder / "no cache",
    )  # fmt: skip

    def encode(texts: list[str]) -> Texts:
        return Texts(at(*(angles[text] for text in texts)), [False] * len(texts), [[] for _ in texts])

    vars(bench).update(
        agents=Agents(mllm, ResponseCache(), prompts, "scene"),
        gallery_features=at(*pictures),
        encode_texts=encode,
        cut=lambda texts: [False] * len(texts),
    )
    return bench


def number(path: Path) -> int:
    return int(path.stem)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("free")
    write_world(folder / "circo")
    write_cirr_world(folder / "cirr")
    write_fashion_world(folder / "fashioniq")
    return folder


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def open_(place: Path, tiny_clip: Path, oracle: Oracle) -> Callable[[str], Workbench]:
    return lambda name: open_bench(
        place / name, tiny_clip, place / "cache", benchmark=f"mini-{name}", oracle=oracle
    )


# --- all of them -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", NEW)
@pytest.mark.parametrize("name", ["circo", "cirr", "fashioniq"])
def test_every_gallery_is_ranked_whole_and_the_traces_are_json(
    open_: Callable[[str], Workbench], name: str, method: str
) -> None:
    bench = open_(name)
    settings = {"captions": 2} if method in ("ldre", "seize") else {}
    done = run_method(bench, method, resolve_settings(method, bench.settings, settings))
    removed = bench.benchmark.removed
    for part in bench.parts.values():
        for query in part.queries:
            expected = set(part.benchmark.gallery) - {removed.get(query.id)}
            assert len(done.rankings[query.id]) == len(expected)
            assert set(done.rankings[query.id]) == expected
    assert bool(removed) is (name == "cirr")
    assert json.loads(json.dumps(done.traces, allow_nan=False)) == done.traces
    assert done.record["cost"]["fallbacks"] == done.record["cost"]["parse_failures"] == 0
    assert all(values >= 0 for values in done.record["counts"].values())
    if name == "fashioniq":  # both captions, by the rule of all methods
        assert bench.queries[0].text == "make it red and red on the beach"
        if method != "weimocir":
            asked = [
                agent["inputs"]["modification"] for agent in done.traces[0]["agents"]
                if "modification" in agent["inputs"]
            ]  # fmt: skip
            assert set(asked) == {"make it red and red on the beach"}


def test_published_settings_are_those_that_the_methods_take_when_none_are_given() -> None:
    for method in NEW:
        row = published(method)
        assert row["source"]
        for values in row.get("settings", {}).values():
            assert set(values) <= set(METHODS[method].settings)
    for method in ("ldre", "seize"):
        usual = published(method)["settings"]["circo"]
        assert {name: SETTINGS[name].default for name in METHODS[method].settings} == usual
    for method in ("imagescope", "weimocir"):
        for values in published(method)["settings"].values():
            assert {name: SETTINGS[name].default for name in METHODS[method].settings} == values
    assert resolve_settings("imagescope", {"tau": 0.3}, {"verified": "5"}) == {
        "tau": 0.3, "verified": 5, "compared": 3,
    }  # fmt: skip


def test_the_explorer_shows_what_they_said(open_: Callable[[str], Workbench]) -> None:
    evidence = gather(open_("circo"), "imagescope")[""]
    lines = dict(said(evidence, 0))
    assert lines["core level"] == "red cat"
    assert lines["verified, with the expected answers"] == "it is red (true); it is blue (false)"


# --- CIReVL ------------------------------------------------------------------------------------------------


def test_cirevl_captions_edits_and_ranks_by_the_edited_caption(
    open_: Callable[[str], Workbench], oracle: Oracle
) -> None:
    bench = open_("circo")
    output = run(bench, "cirevl")
    assert oracle.asked == ["caption"] * 8 + ["edit_caption"] * 8
    trace = output.traces[0]
    assert trace["said"] == [
        ["caption of the reference", "a blue cat on the beach"],
        ["edited caption", "a red cat on the beach"],
    ]
    query = bench.encode_texts(["a red cat on the beach"]).features.double()
    scores = (query @ bench.gallery_features.double().T)[0]
    order = sorted(range(24), key=lambda row: (-float(scores[row]), row))
    assert output.rankings["0"] == [bench.benchmark.gallery[row] for row in order]
    assert bench.agents.cost.mllm_calls == 16 and output.counts["fallbacks"] == 0


def test_an_edit_that_cannot_be_used_is_replaced_and_counted(tmp_path: Path) -> None:
    def answer(request: Request) -> str:
        return "a red thing" if request.images else "I'm sorry, I can't do that."

    mllm = ScriptedMLLM(answer)
    bench = plane(tmp_path, mllm, {"a red thing, make it blue": 31})
    output = run(bench, "cirevl")
    assert output.counts["fallbacks"] == 1 and bench.agents.cost.fallbacks == 1
    assert bench.agents.cost.parse_failures == 1 and len(mllm.requests) == 3, "asked once more"
    assert output.traces[0]["said"][1] == ["edited caption", "a red thing, make it blue"]
    assert output.rankings["0"] == [30, 40, 20, 10]


@pytest.mark.parametrize(
    ("domain", "label"), [("scene", "default/edit_caption"), ("fashion", "default/edit_caption.fashion")]
)
def test_editing_has_the_wording_of_its_domain(tmp_path: Path, domain: str, label: str) -> None:
    bench = plane(tmp_path, ScriptedMLLM(lambda request: "a blue thing"), {"a blue thing": 0})
    bench.agents.domain = domain
    asked = [agent["prompt"] for agent in run(bench, "cirevl").traces[0]["agents"]]
    assert asked == ["default/caption" + label.removeprefix("default/edit_caption"), label]


# --- LDRE and SEIZE ----------------------------------------------------------------------------------------


def divergent(request: Request) -> str:
    """Caption "one" for the seed 42, "two" for 43; the first edit turns round, the second changes nothing."""
    if request.images:
        return {42: "one", 43: "two"}[request.seed]
    return "one, edited" if "Caption: one\n" in request.prompt else "two"


ANGLES = {"one": 0.0, "one, edited": 90.0, "two": 30.0}


def test_relevance_adds_the_largest_drops() -> None:
    before, after = at(0, 0), torch.tensor([[0.0, 1.0], [0.6, 0.8]], dtype=torch.float64)
    gallery = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]], dtype=torch.float64)
    # before - after is (1, -1) and (0.4, -0.8): over the gallery 1, -1, 0.2 and 0.4, -0.8, -0.16.
    for top, expected in ((1, [1.0, 0.4]), (2, [1.2, 0.4]), (99, [1.2, 0.4])):
        assert ldre.relevance(before, after, gallery, top).tolist() == pytest.approx(expected)


def test_relevance_is_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = torch.nn.functional.normalize(
        torch.randn(40, 6, generator=torch.Generator().manual_seed(3)), dim=1
    )
    before, after, gallery = drawn[:4], drawn[4:8], drawn[8:]
    whole = ldre.relevance(before, after, gallery, 5)
    drops = (before.double() @ gallery.double().T - after.double() @ gallery.double().T).clamp(min=0)
    assert whole.tolist() == pytest.approx(
        drops.sort(dim=1, descending=True).values[:, :5].sum(dim=1).tolist()
    )
    monkeypatch.setattr(ldre, "BLOCK_ROWS", 3)
    assert ldre.relevance(before, after, gallery, 5).tolist() == pytest.approx(whole.tolist())


def test_weights_are_a_softmax_of_the_share_of_the_largest() -> None:
    found = ldre.weights(torch.tensor([[2.0, 1.0], [0.0, 0.0]], dtype=torch.float64), 0.5)
    # 1 / 0.5 and 0.5 / 0.5: the first weighs e times the second, 0.7311 to 0.2689.
    assert found[0].tolist() == pytest.approx([0.731058579, 0.268941421])
    assert found[1].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("temperature", "heavy", "ranking"),
    [
        # softmax(2, 0): the query is 0.8808 (0, 1) + 0.1192 (0.866, 0.5), at 83.7 degrees
        (0.5, 0.8808, [40, 30, 20, 10]),
        # softmax(1, 0): at 74.94 degrees, 14.94 from picture 30 and 15.06 from picture 40
        (1.0, 0.7311, [30, 40, 20, 10]),
    ],
)
def test_ldre_weighs_an_edit_by_how_far_it_carries(
    tmp_path: Path, temperature: float, heavy: float, ranking: list[int]
) -> None:
    mllm = ScriptedMLLM(divergent)
    bench = plane(tmp_path, mllm, ANGLES, pictures=(0, 30, 60, 90))
    output = run(bench, "ldre", captions=2, relevance_top=1, relevance_temperature=temperature)
    # Only "one" falls anywhere: by 1 for the picture at 0 degrees.
    assert output.traces[0]["captions"] == [
        {"caption": "one", "edited": "one, edited", "weight": heavy, "relevance": 1.0},
        {"caption": "two", "edited": "two", "weight": round(1 - heavy, 4), "relevance": 0.0},
    ]
    assert output.traces[0]["said"][0] == [f"caption with weight {heavy:.2f}", "one → one, edited"]
    assert output.rankings["0"] == ranking
    assert [(r.seed, r.temperature) for r in mllm.requests if r.images] == [(42, 0.7), (43, 0.7)]
    assert [r.temperature for r in mllm.requests if not r.images] == [0.0, 0.0]


def test_ldre_counts_what_could_not_be_used_and_ranks_all_the_same(tmp_path: Path) -> None:
    def answer(request: Request) -> str:
        return divergent(request) if request.images or "Caption: one\n" in request.prompt else ""

    bench = plane(tmp_path, ScriptedMLLM(answer), {**ANGLES, "two, make it blue": 30.0}, (0, 30, 60, 90))
    output = run(bench, "ldre", captions=2, relevance_top=1, relevance_temperature=0.5)
    assert output.counts == {"fallbacks": 1, "cut_texts": 0, "unknown_words": 0}
    assert output.traces[0]["captions"][1]["edited"] == "two, make it blue"
    assert output.rankings["0"] == [40, 30, 20, 10]


def test_ldre_ranks_a_query_the_same_whoever_is_asked_with_it(
    open_: Callable[[str], Workbench], place: Path, tiny_clip: Path
) -> None:
    every = run(open_("circo"), "ldre", captions=3)
    few = run(open_bench(place / "circo", tiny_clip, place / "cache", limit=2), "ldre", captions=3)
    for own, trace in zip(few.traces, every.traces, strict=False):
        weights = [[pair["weight"] for pair in one["captions"]] for one in (own, trace)]
        assert weights[0] == weights[1] and len(weights[0]) == 3
        assert few.rankings[own["query"]] == every.rankings[own["query"]]


def test_the_increment_gains_and_loses() -> None:
    S_c, S_e = torch.tensor([[0.5, 0.2, 0.3]]), torch.tensor([[0.4, 0.6, 0.3]])
    # Increments -0.1, 0.4, 0: 0.4 + 2 * -0.1, 0.6 + 0.5 * 0.4, 0.3.
    assert increment_scores(S_c, S_e, 0.5, 2.0)[0].tolist() == pytest.approx([0.2, 0.8, 0.3])


def test_seize_ranks_by_means_and_increment(tmp_path: Path) -> None:
    bench = plane(tmp_path, ScriptedMLLM(divergent), ANGLES, pictures=(0, 30, 50, 75))
    # The captions' mean lies at 15 degrees, that of the edits (90 and 30) at 60: 50 is nearest, then 75.
    assert run(bench, "seize", captions=2, gain=0, loss=0).rankings["0"] == [30, 40, 20, 10]
    # cos 10 and cos 15 against cos 35 and cos 60 before: increments 0.1657 and 0.4659.
    # With gain 0.13 the scores are 1.0063 and 1.0265.
    gained = run(bench, "seize", captions=2, gain=0.13, loss=0)
    assert gained.rankings["0"] == [40, 30, 20, 10]
    assert [score for _, score in gained.traces[0]["top"][:2]] == pytest.approx([1.0265, 1.0063], abs=5e-5)
    # cos 60 - cos 15 = -0.4659 for the reference's own picture: 0.5 - 2.1 * 0.4659.
    lost = run(bench, "seize", captions=2)
    assert dict(map(tuple, lost.traces[0]["top"]))[10] == pytest.approx(-0.4784, abs=5e-5)


# --- ImageScope --------------------------------------------------------------------------------------------

LEVELS = {
    "instructions": ["modification: blue"],
    "core": "core",
    "enhanced": "enhanced",
    "comprehensive": "full",
}
PROPOSITIONS = {
    "statements": [{"statement": "it is blue", "answer": True}, {"statement": "it is red", "answer": False}]
}
#: p("true") of both statements by picture: none, one, one (the other unclear), and both propositions hold.
P_TRUE = {10: (0.1, 0.9), 20: (0.9, 0.9), 30: (0.5, 0.1), 40: (0.9, 0.1)}
SCOPE = {"core": 0.0, "enhanced": 0.0, "full": 0.0} | {f"c{image}": float(image) for image in GALLERY}


def scope(levels: Any = LEVELS, propositions: Any = PROPOSITIONS, **fits: float) -> ScriptedMLLM:
    """An MLLM that answers ImageScope's questions with the set "default"; ``fits`` has p("fits") by picture,
    named ``p20`` and so on, 0.1 for the others."""

    def answer(request: Request) -> str:
        if request.images:
            return f"c{number(request.images[0])}"
        given = propositions if "question agent" in request.prompt else levels
        return given if isinstance(given, str) else json.dumps(given)

    def truth(images: tuple[Path, ...], prefix: str, statement: str) -> float:
        if len(images) == 2:
            assert number(images[0]) == 10 and prefix.endswith("Modification: make it blue")
            return fits.get(f"p{number(images[1])}", 0.1)
        return P_TRUE[number(images[0])][statement != "it is blue"]

    return ScriptedMLLM(answer, truth)


def test_similarities_are_the_mean_over_the_levels_of_picture_and_caption() -> None:
    levels = [at(0), at(60), at(90)]
    S = imagescope.similarities(levels, at(0, 90), at(90, 30), 0.25)
    # Cosines with the pictures at 0 and 90: 1, 1/2, 0 and 0, sqrt(3)/2, 1; with the captions at 90 and 30:
    # 0, sqrt(3)/2, 1 and sqrt(3)/2, sqrt(3)/2, 1/2.
    root = 3**0.5 / 2
    assert S[0].tolist() == pytest.approx(
        [0.75 * 0.5 + 0.25 * (root + 1) / 3, 0.75 * (root + 1) / 3 + 0.25 * (2 * root + 0.5) / 3]
    )


@pytest.mark.parametrize(
    ("settings", "fits", "ranking", "looked"),
    [
        ({"verified": 0, "compared": 0}, {}, [10, 20, 30, 40], []),
        # Of the three verified 0, 1 and 1 hold: equal ones keep their order, the rest stays behind.
        ({"verified": 3, "compared": 0}, {}, [20, 30, 10, 40], []),
        ({"verified": 99, "compared": 0}, {}, [40, 20, 30, 10], []),
        # The first that fits moves to the top, and none after it is looked at; 0.5 is no yes.
        ({"verified": 3, "compared": 3}, {"p20": 0.5, "p30": 0.7, "p10": 0.9}, [30, 20, 10, 40], [20, 30]),
        ({"verified": 3, "compared": 3}, {"p20": 0.9, "p30": 0.9}, [20, 30, 10, 40], [20]),
        ({"verified": 3, "compared": 2}, {"p10": 0.9}, [20, 30, 10, 40], [20, 30]),
        ({"verified": 0, "compared": 99}, {"p40": 0.9}, [40, 10, 20, 30], [10, 20, 30, 40]),
    ],
)
def test_imagescope_verifies_and_confirms(
    tmp_path: Path, settings: dict[str, int], fits: dict[str, float], ranking: list[int], looked: list[int]
) -> None:
    mllm = scope(**fits)
    bench = plane(tmp_path, mllm, SCOPE)
    output = run(bench, "imagescope", **settings)
    assert output.rankings["0"] == ranking
    pairs = [item.images for item in mllm.items if len(item.images) == 2]
    assert [number(second) for _, second in pairs] == looked
    trace = output.traces[0]
    assert trace["levels"] == {"core": "core", "enhanced": "enhanced", "comprehensive": "full"}
    if settings["verified"]:
        assert output.counts["questions"] == 2
        assert output.counts["verified_candidates"] == min(settings["verified"], 4)
        satisfied = {10: 0, 20: 1, 30: 1, 40: 2}
        assert all(row["satisfied"] == satisfied[row["image"]] for row in trace["verified"])
        assert {row["image"]: row["first_rank"] for row in trace["verified"]}[20] == 2
    if settings["compared"]:
        assert [row["image"] for row in trace["compared"]] == looked
        assert output.counts["confirmed"] == (ranking[0] == looked[-1])
    assert output.counts["fallbacks"] == bench.agents.cost.parse_failures == 0


def test_imagescope_with_levels_that_cannot_be_read(tmp_path: Path) -> None:
    bench = plane(tmp_path, scope(levels="Sorry, I cannot."), {**SCOPE, "c10, make it blue": 29.0})
    output = run(bench, "imagescope", verified=0, compared=0)
    assert output.counts["fallbacks"] == 1 and bench.agents.cost.parse_failures == 1
    assert set(output.traces[0]["levels"].values()) == {"c10, make it blue"}
    assert output.traces[0]["instructions"] == ["make it blue"]
    assert output.rankings["0"] == [30, 20, 40, 10]


def test_imagescope_with_propositions_that_cannot_be_read_verifies_the_text_itself(tmp_path: Path) -> None:
    mllm = scope(propositions="it is blue, I think")
    bench = plane(tmp_path, mllm, SCOPE)
    output = run(bench, "imagescope", compared=0)
    assert output.traces[0]["questions"] == [{"statement": "make it blue", "answer": True}]
    assert output.counts["fallbacks"] == 1 and output.counts["questions"] == 1
    # P_TRUE's second column answers it: 0.9, 0.9, 0.1, 0.1.
    assert output.rankings["0"] == [10, 20, 30, 40]
    assert [row["satisfied"] for row in output.traces[0]["verified"]] == [1, 1, 0, 0]


def test_the_levels_are_one_question_where_the_set_has_it_and_three_tasks_where_not(
    open_: Callable[[str], Workbench], oracle: Oracle, tmp_path: Path
) -> None:
    mllm = scope()
    run(plane(tmp_path, mllm, SCOPE), "imagescope", verified=0, compared=0)
    asked = [request.prompt for request in mllm.requests if not request.images]
    assert asked == [load_prompt("default", "target_levels").fill(caption="c10", modification="make it blue")]
    bench = open_("circo")
    [first, *_] = bench.agents.target_levels(
        bench.reference_paths, ["a blue cat on the beach"] * 8, bench.texts
    )
    assert first.texts == ("red cat", "red cat", "a red cat on the beach")
    assert first.instructions == ("colour red",) and (first.present, first.absent) == (("red",), ("blue",))
    assert set(oracle.asked) == {"imagine_text", "imagine_vision", "selective_cot"}
    assert bench.agents.cost.mllm_calls == 24, "one question a query and task"


def test_imagescope_ranks_a_subset_as_a_gallery_of_five_without_the_reference(
    open_: Callable[[str], Workbench],
) -> None:
    bench = open_("cirr")
    first = run(bench, "imagescope", verified=0, compared=0)
    output = run(bench, "imagescope", verified=3, compared=2)
    assert bench.members is not None
    for query, before, trace in zip(bench.queries, first.traces, output.traces, strict=True):
        order = before["subset"]
        assert sorted(order) == sorted(bench.benchmark.subset(query)) and query.reference not in order
        colour = query.text.split()[-1]
        satisfied = {image: _satisfied(image, trace["questions"]) for image in order}
        head = sorted(order[:3], key=lambda image: -satisfied[image]) + order[3:]
        fitting = [image for image in head[:2] if _scene(image)[0] == colour]
        if fitting:
            head.remove(fitting[0])
            head.insert(0, fitting[0])
        assert output.subsets[query.id] == head == trace["subset"]
        assert query.reference not in [row["image"] for row in trace["compared"] + trace["verified"]]
        assert len(output.rankings[query.id]) == 23
    assert output.counts["verified_candidates"] <= 8 * (3 + 3)
    assert any(output.subsets[query.id] != first.subsets[query.id] for query in bench.queries)


def _scene(name: str) -> tuple[str, str, str]:
    return next(scene for image, scene in SCENE_OF.items() if cirr_name(image) == name)


def _satisfied(name: str, questions: list[dict[str, Any]]) -> int:
    """How many statements about colours hold of a picture of the small world."""
    return sum((q["statement"].split()[-1] in _scene(name)) == q["answer"] for q in questions)


# --- WeiMoCIR ----------------------------------------------------------------------------------------------


def test_weimocir_mixes_image_and_text_and_pictures_and_captions(tmp_path: Path) -> None:
    captions = {"c10": 90.0, "c20": 0.0, "c30": 0.0, "c40": 0.0}
    bench = plane(tmp_path, ScriptedMLLM(lambda request: f"c{number(request.images[0])}"), captions)
    vars(bench).update(
        reference_features=at(0), modification_features=at(90), gallery_features=at(0, 40, 70, 90)
    )
    output = run(bench, "weimocir", text_weight=0.8, caption_weight=0.0)
    # The query (0.2, 0.8) lies at 75.96 degrees.
    assert output.rankings["0"] == [30, 40, 20, 10]
    scores = dict(map(tuple, run(bench, "weimocir", caption_weight=0.25).traces[0]["top"]))
    length = (0.2**2 + 0.8**2) ** 0.5
    assert scores[10] == pytest.approx((0.75 * 0.2 + 0.25 * 0.8) / length)
    assert scores[40] == pytest.approx((0.75 * 0.8 + 0.25 * 0.2) / length)
    assert run(bench, "weimocir", text_weight=0.0, caption_weight=1.0).rankings["0"] == [20, 30, 40, 10]
    assert run(bench, "weimocir", text_weight=1.0, caption_weight=1.0).rankings["0"] == [10, 20, 30, 40]


def test_weimocir_asks_for_captions_of_the_gallery_alone(
    open_: Callable[[str], Workbench], oracle: Oracle
) -> None:
    bench = open_("circo")
    output = run(bench, "weimocir", text_weight=0.5, caption_weight=0.0)
    assert oracle.asked == ["caption"] * 24
    assert output.rankings == run(bench, "image+text").rankings
    check_permutations(output.rankings, bench.benchmark.gallery, {q.id: q.targets for q in bench.queries})


def test_stage_one_ranks_by_all_levels_on_real_features(open_: Callable[[str], Workbench]) -> None:
    bench = open_("circo")
    captions = xr.gallery_captions(bench)
    levels = imagescope.synthesise(bench)[1]
    features = [bench.encode_texts([own.texts[n] for own in levels]).features for n in range(3)]
    C_a = bench.encode_texts(captions).features
    S = sum(0.85 * f.double() @ bench.gallery_features.double().T + 0.15 * f.double() @ C_a.double().T
            for f in features) / 3  # fmt: skip
    found = run(bench, "imagescope", verified=0, compared=0)
    for query, row in zip(bench.queries, torch.as_tensor(S).tolist(), strict=True):
        values = [row[bench.place_of[image]] for image in found.rankings[query.id]]
        assert all(high >= low - 1e-12 for high, low in zip(values, values[1:], strict=False))
