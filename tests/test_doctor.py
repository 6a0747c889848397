"""``cir doctor``: what is in order, what is not, and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_world import write_world

from cir_utils import doctor, profiles
from cir_utils.cli import main
from cir_utils.doctor import Check, check, describe
from cir_utils.files import write_manifest

TOML = """
[mini]
about = "a stand-in"
encoder = "local-dir:{package}/mini/models/mini-clip"
mllm = "{package}/mini/models/mini-vlm"
prompts = "mini"
shipped = true
[mini.benchmarks.mini-circo]
root = "{package}/mini/circo"
splits = ["test", "val"]
settings = { alpha = 0.15, beta = 0.35, lambda = 0.15, k_prime = 50, kappa = 60 }
[laptop]
about = "a hub model"
encoder = "ViT-B-32:laion2b_s34b_b79k"
mllm = "owner/model"
prompts = "default"
shipped = false
[laptop.benchmarks.circo]
root = "{data}/circo"
splits = ["val"]
settings = { alpha = 0.15, beta = 0.35, lambda = 0.15, k_prime = 50, kappa = 60 }
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package folder with a small world and files in the place of models, all with checksums."""
    package = tmp_path / "package"
    write_world(package / "mini" / "circo")
    for name in ("mini-clip", "mini-vlm"):
        (package / "mini" / "models" / name).mkdir(parents=True)
        (package / "mini" / "models" / name / "model.safetensors").write_bytes(b"weights")
        write_manifest(package / "mini" / "models" / name)
    write_manifest(package / "mini" / "circo")
    (tmp_path / "profiles.toml").write_text(TOML)
    monkeypatch.setattr(profiles, "PROFILES_FILE", tmp_path / "profiles.toml")
    monkeypatch.setattr(profiles, "PACKAGE", package)
    monkeypatch.setattr("cir_utils.workbench.PACKAGE", package)
    monkeypatch.setenv("CIR_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    profiles._table.cache_clear()
    yield package
    profiles._table.cache_clear()


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "requires", lambda name: ["torch>=2", "papermill>=2; extra == 'notebooks'"])


def test_all_in_order(package: Path, tmp_path: Path) -> None:
    checks = check("mini", device="cpu", cache_dir=tmp_path / "cache")
    assert all(one.ok for one in checks), describe("mini", checks)
    found = by_name(checks)
    assert found["data of mini-circo"].found == "test 8 queries, val 8 queries, gallery 24"
    assert found["CLIP mini-clip"].found == found["MLLM mini-vlm"].found == "checksums right"
    assert found["packages"].found == "1 as required"
    assert "0 answers, 0 verdicts" in found["cache"].found
    assert describe("mini", checks).endswith("profile mini can run")


def test_a_damaged_model_and_a_missing_picture_are_named(package: Path, tmp_path: Path) -> None:
    (package / "mini" / "models" / "mini-vlm" / "model.safetensors").write_bytes(b"other")
    (package / "mini" / "circo" / "COCO2017_unlabeled" / "unlabeled2017" / "000000000100.jpg").unlink()
    found = by_name(check("mini", device="cpu", cache_dir=tmp_path / "cache"))
    assert not found["MLLM mini-vlm"].ok and "is damaged" in found["MLLM mini-vlm"].found
    assert "git checkout" in found["MLLM mini-vlm"].mend
    assert (
        not found["data of mini-circo"].ok
        and "000000000100.jpg is missing" in found["data of mini-circo"].found
    )
    assert found["CLIP mini-clip"].ok


def test_missing_packages_are_named(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "requires", lambda name: ["torch>=99", "no-such-package-at-all"])
    found = by_name(check("mini", device="cpu", cache_dir=tmp_path / "cache"))["packages"]
    assert not found.ok
    assert "no-such-package-at-all is missing" in found.found and "is not >=99" in found.found


def test_hub_models_and_data_that_are_not_there(package: Path, tmp_path: Path) -> None:
    found = by_name(check("laptop", device="cpu", cache_dir=tmp_path / "cache"))
    clip = found["CLIP ViT-B-32:laion2b_s34b_b79k"]
    assert not clip.ok and clip.mend.startswith(
        "fetch them: hf download laion/CLIP-ViT-B-32-laion2B-s34B-b79K "
    )
    assert found["MLLM owner/model"].mend == "fetch them: hf download owner/model"
    assert not found["data of circo"].ok and "does not exist" in found["data of circo"].found


def test_a_device_and_a_cache_that_cannot_be_used(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = by_name(check("mini", device="cuda:77", cache_dir=tmp_path / "file"))
    assert not found["device"].ok and "cuda:77" in found["device"].found
    assert not found["cache"].ok and found["cache"].mend == "name another with CIR_CACHE"


def test_exit_codes_and_json(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = ["--cache", str(tmp_path / "cache"), "--device", "cpu"]
    assert main(["doctor", *cache]) == 0
    assert "profile mini can run" in capsys.readouterr().out
    assert main(["doctor", "--json", *cache]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    (package / "mini" / "circo" / "annotations" / "val.json").unlink()
    assert main(["doctor", *cache]) == 1
    out = capsys.readouterr().out
    assert "FAIL  data of mini-circo" in out and "val.json is missing" in out
    assert main(["doctor", "--profile", "big"]) == 2
