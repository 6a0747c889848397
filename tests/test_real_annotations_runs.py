"""The `laptop` and `paper` profiles offline, end to end, on the published annotation files.

Everything is as in a real run but the sizes: the annotation files are the published ones (the environment
variable CIR_REAL_ANNOTATIONS names them), the encoder is open_clip's ViT-B-32 and the MLLM Qwen2.5-VL, both
with few narrow layers and random weights, and the pictures of the first queries are small generated ones. The
others are missing and left out."""

from __future__ import annotations

import colorsys
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from tiny_clip import write_open_clip
from tiny_models import write_tiny_vlm

from cir_utils.cli import main
from cir_utils.encoder import load_encoder
from cir_utils.mllm import Answer, LocalMLLM, Request
from cir_utils.runs import Run, load_run

METHODS = ("image-only", "sdr-cir", "xr")
Runs = Callable[..., dict[str, Run]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_open_clip(folder / "ViT-B-32")
    write_tiny_vlm(folder / "Qwen2.5-VL")
    return folder


@pytest.fixture
def run_all(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Runs:
    """Every method through the command line on a benchmark's folder."""
    # A random MLLM writes until it is stopped: a few tokens show the whole path as well as a thousand.
    generate = LocalMLLM.generate

    def briefly(self: LocalMLLM, requests: Sequence[Request]) -> list[Answer]:
        return generate(self, [replace(request, max_new_tokens=4) for request in requests])

    monkeypatch.setattr(LocalMLLM, "generate", briefly)

    def call(profile: str, benchmark: str, split: str, root: Path, limit: int) -> dict[str, Run]:
        runs = {}
        for method in METHODS:
            arguments = ["run", method, "--profile", profile, "--benchmark", benchmark, "--split", split]
            arguments += ["--root", str(root), "--missing", "leave-out", "--limit", str(limit)]
            arguments += ["--encoder", f"local-dir:{models / 'ViT-B-32'}", "--device", "cpu"]
            arguments += ["--mllm", str(models / "Qwen2.5-VL"), "--cache", str(tmp_path / "cache")]
            arguments += ["--out", str(tmp_path / method), "--json"]
            if method == "xr":
                arguments += ["--set", "k_prime=2", "--set", "prune=off"]
            code = main(arguments)
            out, err = capsys.readouterr()
            assert code == 0, err
            runs[method] = load_run(tmp_path / method, whole=True)
            assert json.loads(out)["metrics"] == runs[method].metrics
        return runs

    return call


def draw(folder: Path, names: Iterable[str]) -> None:
    """A picture a name, each of another colour and shape; some are longer than 5 to 4."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(sorted(set(names))):
        size = (60 + 8 * (number % 5), 48)
        colour = tuple(int(255 * part) for part in colorsys.hsv_to_rgb(number * 0.137 % 1, 1, 1))
        picture = Image.new("RGB", size, "white")
        ImageDraw.Draw(picture).ellipse((4 + number % 7, 4, 44, 20 + 3 * (number % 8)), fill=colour)
        picture.save(folder / name)


def nearest(models: Path, reference: Path, paths: Sequence[Path]) -> list[int]:
    """The places of ``paths`` by falling cosine with ``reference``, straight from the encoder."""
    encoder = load_encoder(f"local-dir:{models / 'ViT-B-32'}", preprocessing="targetpad-1.25")
    features = encoder.encode_images([reference, *paths]).double()
    return torch.sort(features[1:] @ features[0], descending=True, stable=True).indices.tolist()


def check_records(runs: dict[str, Run], profile: str, queries: int, gallery: Any, missing: int) -> None:
    """What every record of such a run says of its inputs."""
    for method, run in runs.items():
        record = run.record
        assert (record["profile"], record["method"]) == (profile, method)
        protocol = record["protocol"]
        assert (protocol["queries"], protocol["gallery_size"]) == (queries, gallery)
        assert protocol["missing_images"] == missing
        assert any("so these are not the benchmark's figures" in note for note in record["notes"])
        about = record["inputs"]["encoder"]
        assert about["encoder"].startswith("ViT-B-32@") and about["context_length"] == 77
        assert (about["precision"], about["preprocessing"]["name"]) == ("float32", "targetpad-1.25")
        assert record["settings_source"] == f"profiles.toml, {profile}"
    assert runs["image-only"].record["cost"]["mllm_calls"] == 0
    for method in ("sdr-cir", "xr"):
        record = runs[method].record
        assert record["inputs"]["mllm"].startswith("Qwen2.5-VL@")
        assert record["inputs"]["prompt_set"] == "default"
        assert record["cost"]["mllm_calls"] >= queries
        # Four random tokens are no answer: every description is a documented fallback, and counted.
        assert record["counts"]["fallbacks"] >= queries
    assert runs["xr"].record["counts"]["verified_candidates"] >= 2 * queries


def test_circo_val_with_the_laptop_profile(
    real_annotations: Path, models: Path, tmp_path: Path, run_all: Runs
) -> None:
    root = tmp_path / "circo"
    shutil.copytree(real_annotations / "circo" / "annotations", root / "annotations")
    rows = json.loads((root / "annotations" / "val.json").read_text(encoding="utf-8"))
    everything = {image for row in rows for image in (row["reference_img_id"], *row["gt_img_ids"])}
    listing = root / "COCO2017_unlabeled" / "annotations" / "image_info_unlabeled2017.json"
    listing.parent.mkdir(parents=True)
    listing.write_text(json.dumps({"images": [{"id": image} for image in sorted(everything)]}))
    here = {image for row in rows[:2] for image in (row["reference_img_id"], *row["gt_img_ids"])}
    here |= {row["reference_img_id"] for row in rows[100:103]}  # distractors
    folder = root / "COCO2017_unlabeled" / "unlabeled2017"
    draw(folder, (f"{image:012d}.jpg" for image in here))

    runs = run_all("laptop", "circo", "val", root, 2)
    gallery = sorted(here)
    check_records(runs, "laptop", 2, len(gallery), len(everything) - len(gallery))
    for run in runs.values():
        assert run.queries == ("0", "1")
        assert all(sorted(ranking) == gallery for ranking in run.rankings.values())
        assert set(run.metrics) >= {"mAP@5", "mAP@50"}
    paths = [folder / f"{image:012d}.jpg" for image in gallery]
    for row in rows[:2]:
        order = nearest(models, folder / f"{row['reference_img_id']:012d}.jpg", paths)
        assert runs["image-only"].rankings[str(row["id"])] == [gallery[place] for place in order]
        assert gallery[order[0]] == row["reference_img_id"]  # it stays in the ranking
    assert runs["sdr-cir"].record["settings"] == {"alpha": 0.15, "beta": 0.35, "description": "selective"}


def test_cirr_val_with_the_paper_profile(
    real_annotations: Path, models: Path, tmp_path: Path, run_all: Runs
) -> None:
    root = tmp_path / "cirr"
    for part in ("captions", "image_splits"):
        shutil.copytree(real_annotations / "cirr" / part, root / part)
    rows = json.loads((root / "captions" / "cap.rc2.val.json").read_text(encoding="utf-8"))
    places = json.loads((root / "image_splits" / "split.rc2.val.json").read_text(encoding="utf-8"))
    here = {name for row in rows[:2] for name in (row["reference"], row["target_hard"])}
    here |= {name for row in rows[:2] for name in row["img_set"]["members"]} | {*list(places)[-2:]}
    draw(root / "dev", (f"{name}.png" for name in here))

    runs = run_all("paper", "cirr", "val", root, 2)
    gallery = [name for name in places if name in here]
    check_records(runs, "paper", 2, len(gallery), len(places) - len(gallery))
    for run in runs.values():
        assert len(run.queries) == 2 and set(run.metrics) >= {"R@1", "R@50", "R_subset@1"}
        for query in run.queries:
            row = next(row for row in rows if str(row["pairid"]) == query)
            left = [name for name in gallery if name != row["reference"]]
            assert sorted(run.rankings[query]) == sorted(left)
            subset = [name for name in row["img_set"]["members"] if name != row["reference"]]
            assert sorted(run.subsets[query]) == sorted(subset) and len(subset) == 5
    query = runs["image-only"].queries[0]
    row = next(row for row in rows if str(row["pairid"]) == query)
    left = [name for name in gallery if name != row["reference"]]
    order = nearest(
        models, root / "dev" / f"{row['reference']}.png", [root / "dev" / f"{n}.png" for n in left]
    )
    assert runs["image-only"].rankings[query] == [left[place] for place in order]
    assert runs["sdr-cir"].record["settings"]["alpha"] == 0.05


def test_fashioniq_val_with_the_paper_profile(
    real_annotations: Path, models: Path, tmp_path: Path, run_all: Runs
) -> None:
    root = tmp_path / "fashioniq"
    for part in ("captions", "image_splits"):
        shutil.copytree(real_annotations / "fashioniq" / part, root / part)
    galleries, first = {}, {}
    for category in ("dress", "shirt", "toptee"):
        rows = json.loads((root / "captions" / f"cap.{category}.val.json").read_text(encoding="utf-8"))
        names = json.loads((root / "image_splits" / f"split.{category}.val.json").read_text(encoding="utf-8"))
        first[category], galleries[category] = rows[0], names
    here = {row[key] for row in first.values() for key in ("candidate", "target")}
    here |= {name for names in galleries.values() for name in names[-2:]}
    draw(root / "images", (f"{name}.jpg" for name in here))

    runs = run_all("paper", "fashioniq", "val", root, 3)
    left = {category: [n for n in names if n in here] for category, names in galleries.items()}
    everything = {name for names in galleries.values() for name in names}
    sizes = {category: len(names) for category, names in left.items()}
    check_records(runs, "paper", 3, sizes, len(everything) - len(here))
    for run in runs.values():
        assert sorted(run.queries) == ["dress/0", "shirt/0", "toptee/0"]
        assert set(run.metrics) >= {"dress/R@10", "shirt/R@50", "mean/R@10"}
        for category, names in left.items():
            assert sorted(run.rankings[f"{category}/0"]) == sorted(names)
    reference = root / "images" / f"{first['dress']['candidate']}.jpg"
    order = nearest(models, reference, [root / "images" / f"{name}.jpg" for name in left["dress"]])
    assert runs["image-only"].rankings["dress/0"] == [left["dress"][place] for place in order]
    assert runs["sdr-cir"].record["settings"]["alpha"] == 0.2
