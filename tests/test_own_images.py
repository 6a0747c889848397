"""A folder of one's own pictures: gallery, queries made on the spot, and marks that make metrics of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_world import ID_OF, IDS, Oracle, draw_pictures, scene_at

from cir_utils.agents import Agents
from cir_utils.benchmarks import Benchmark
from cir_utils.errors import InputError
from cir_utils.own_images import find_folder, folder_benchmark, open_folder, with_queries
from cir_utils.profiles import PACKAGE, SETTING_NAMES, load_profile
from cir_utils.response_cache import ResponseCache
from cir_utils.runs import run_method
from cir_utils.scoring import composed_query, exact_scores, rank_by
from cir_utils.workbench import Workbench

SDR = {"alpha": 0.15, "beta": 0.35, "description": "selective"}


def name_of(colour: str, thing: str, place: str) -> str:
    return f"holiday/{ID_OF[colour, thing, place]}.png"


@pytest.fixture()
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    draw_pictures(root / "holiday", {image: f"{image}.png" for image in IDS})
    return root


@pytest.fixture()
def bench(folder: Path, tiny_clip: Path, tmp_path: Path) -> Workbench:
    made = open_folder(
        folder, device="cpu", cache_dir=tmp_path / "cache", encoder=f"local-dir:{tiny_clip}", mllm="scripted"
    )
    made.agents = Agents(Oracle().mllm(), ResponseCache(), "mini")
    return made


def test_gallery_is_what_lies_in_the_folder(folder: Path) -> None:
    (folder / "notes.txt").write_text("no picture")
    (folder / "b.HEIC").write_bytes(b"x")
    (folder / ".hidden.png").write_bytes(b"x")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x.png").write_bytes(b"x")
    (folder / "a.JPG").write_bytes((folder / "holiday" / "100.png").read_bytes())
    found = folder_benchmark(folder)
    assert found.gallery == ("a.JPG", *(f"holiday/{image}.png" for image in IDS))
    assert found.image_path("holiday/107.png") == folder / "holiday" / "107.png"
    assert found.notes == ("files that are no pictures of a known kind are left out: 1 .heic, 1 .txt",)
    assert (found.name, found.split, found.family) == ("own-images", "pictures", "circo")
    assert found.protocol.gallery_size == 25 and found.protocol.reference == "kept"
    assert str(folder) not in str(found.protocol)


def test_limit_takes_pictures_at_even_distances(folder: Path) -> None:
    found = folder_benchmark(folder, 4)
    assert found.gallery == tuple(f"holiday/{IDS[number]}.png" for number in (0, 6, 12, 18))
    assert found.notes == ("4 of the folder's 24 pictures are used, at even distances",)
    assert folder_benchmark(folder, 99).notes == ()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda root: folder_benchmark(root / "nowhere"), "nowhere does not exist; name a folder"),
        (lambda root: folder_benchmark(root, 0), "limit 0 is not valid: give a number of pictures"),
        (lambda root: folder_benchmark(root / "empty"), "empty holds no pictures"),
    ],
)
def test_what_cannot_be_a_gallery_is_said(folder: Path, make, said: str) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match=said):
        make(folder)


def test_a_shipped_folder_is_found_below_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_folder("mini/cirr/dev") == PACKAGE / "mini" / "cirr" / "dev"
    (tmp_path / "mini" / "cirr" / "dev").mkdir(parents=True)
    assert find_folder("mini/cirr/dev") == Path("mini/cirr/dev")  # the reader's own comes first


def test_a_query_is_answered_as_by_the_formula(bench: Workbench) -> None:
    asked = with_queries(bench, [(name_of("red", "cat", "city"), " make it\n blue ")])
    assert asked.texts == ["make it blue"] and asked.queries[0].targets == ()
    run = run_method(asked, "sdr-cir", SDR)
    F_d = asked.encode_texts(["blue cat"]).features
    w = composed_query(asked.reference_features, F_d, asked.modification_features, 0.15, 0.35)
    order = rank_by(exact_scores(w, bench.gallery_features))[0].tolist()
    assert run.rankings["0"] == [bench.benchmark.gallery[place] for place in order]
    assert run.metrics == {}
    assert "no targets are marked: rankings, but no metrics" in run.record["notes"]
    assert run.record["cost"]["mllm_calls"] == 1 and run.record["inputs"]["mllm"] == "scripted@1"
    assert run.record["inputs"]["encoder"]["encoder"].startswith("tiny-clip@")


def test_models_and_features_are_shared_and_every_run_pays_its_own_calls(bench: Workbench) -> None:
    first = with_queries(bench, [(name_of("red", "cat", "city"), "make it blue")])
    second = with_queries(first, [(name_of("green", "dog", "beach"), "make it red")] * 2)
    assert first.encoder is second.encoder is bench.encoder and second.agents is bench.agents
    assert run_method(first, "description-only", {"description": "plain"}).record["cost"]["mllm_calls"] == 1
    assert run_method(second, "description-only", {"description": "plain"}).record["cost"]["mllm_calls"] == 2
    assert second.choices() == bench.choices()
    assert torch.equal(second.gallery_features, bench.gallery_features)


def test_a_picture_elsewhere_may_be_the_reference(bench: Workbench, tmp_path: Path) -> None:
    draw_pictures(tmp_path / "phone", {100: "100.png", 107: "107.png"})
    path = tmp_path / "phone" / "107.png"
    asked = with_queries(bench, [(path, "make it blue"), (name_of("red", "cat", "beach"), "make it blue")])
    assert asked.reference_paths[0] == path and scene_at(path) == ("red", "cat", "city")
    run = run_method(asked, "image-only", {})
    assert run.rankings["0"][0] == name_of("red", "cat", "city")  # the same pixels
    assert len(run.rankings["0"]) == 24 and str(tmp_path) not in str(run.traces)


def test_marks_make_metrics(bench: Workbench) -> None:
    pair = (name_of("red", "cat", "city"), "make it blue")
    right = [name_of("blue", "cat", "beach"), name_of("blue", "cat", "city")]
    ranking = run_method(with_queries(bench, [pair]), "image-only", {}).rankings["0"]
    places = sorted(ranking.index(image) + 1 for image in right)
    run = run_method(with_queries(bench, [pair], [right]), "image-only", {})
    expected = sum(number / place for number, place in enumerate(places, 1) if place <= 50) / 2
    assert run.metrics["mAP@50"] == pytest.approx(expected, abs=1e-12)
    assert run_method(with_queries(bench, [pair, pair], [right, []]), "image-only", {}).metrics == {}


@pytest.mark.parametrize(
    ("asked", "targets", "said"),
    [
        ([], (), "no queries: give pairs"),
        ([("x.png", "blue")], (), "query 0: the reference 'x.png' is not in the gallery"),
        ([(Path("x.png"), "blue")], (), "query 0: the reference x.png does not exist"),
        ([("holiday/100.png", "blue")], [["x.png"]], "query 0: the target 'x.png' is not in the gallery"),
    ],
)
def test_queries_that_cannot_be_asked(bench: Workbench, asked: list, targets: list, said: str) -> None:
    with pytest.raises(InputError, match=said):
        with_queries(bench, asked, targets)


def test_settings_are_those_of_the_profiles_circo(folder: Path, tmp_path: Path) -> None:
    mini, laptop = (
        open_folder(folder, profile, device="cpu", cache_dir=tmp_path) for profile in ("mini", "laptop")
    )
    assert mini.settings == load_profile("mini").benchmark("mini-circo").settings
    assert laptop.settings == load_profile("laptop").benchmark("circo").settings
    assert set(mini.settings) == set(SETTING_NAMES) and mini.domain == "scene"
    assert isinstance(mini.benchmark, Benchmark) and mini.queries == ()
    with pytest.raises(InputError, match="unknown prompt set"):
        open_folder(folder, prompts="none")


def test_a_folder_and_its_queries_take_every_choice_of_the_profile(tmp_path: Path) -> None:
    draw_pictures(tmp_path / "phone", {100: "100.png", 107: "107.png"})
    bench = open_folder(tmp_path / "phone", "laptop", cache_dir=tmp_path / "cache")
    whole, penalty = bench.choices(), load_profile("laptop").repetition_penalty
    assert penalty and whole["repetition_penalty"]["value"] == penalty
    assert with_queries(bench, [("100.png", "make it blue")]).choices() == whole
