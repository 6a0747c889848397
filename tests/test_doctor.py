"""``cir doctor``: what is in order, what is not, and what to do."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from small_world import write_world

from cir_utils import doctor, profiles
from cir_utils.cli import main
from cir_utils.doctor import Check, check, describe
from cir_utils.files import write_manifest
from cir_utils.profiles import PACKAGE, load_profile

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
needs = { memory_gb = 4, gpu_gb = 24, data_gb = 1, weights_gb = 9 }
[laptop.benchmarks.circo]
root = "{data}/circo"
fetch = ["circo-laptop"]
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
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
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
    assert found.mend.startswith("pip install 'torch>=99' no-such-package-at-all (")


def test_hub_models_and_data_that_are_not_there(package: Path, tmp_path: Path) -> None:
    found = by_name(check("laptop", device="cpu", cache_dir=tmp_path / "cache"))
    clip = found["CLIP ViT-B-32:laion2b_s34b_b79k"]
    assert not clip.ok and clip.mend.startswith(
        "fetch them: hf download laion/CLIP-ViT-B-32-laion2B-s34B-b79K "
    )
    assert found["MLLM owner/model"].mend == "fetch them: hf download owner/model"
    data = found["data of circo"]
    assert not data.ok and data.found == f"the folder {tmp_path}/data/circo does not exist"
    root = f"{tmp_path}/data/circo"
    assert data.mend == (
        f"python -m data_scripts.fetch_data circo-laptop --root {root}; "
        f"look again: python data_scripts/check_data.py circo --split val --root {root}"
    )
    assert found["fetching data"].ok and found["fetching data"].found == f"can be run, in {PACKAGE.parent}"
    assert found["room for data"].found.endswith(f"free in {tmp_path}/data, up to 1 GB needed")
    assert found["room for weights"].found.endswith(f"free in {tmp_path}/hub, up to 9 GB needed")
    assert found["prompts default"].found == "14 prompts, worded for scene"


def put_in_hub(hub: Path, repo: str, **files: str) -> None:
    """Files in the layout of the hub's local cache."""
    folder = hub / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text("abc123")
    (folder / "snapshots" / "abc123").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / "snapshots" / "abc123" / name.replace("__", ".")).write_text(text)


def test_weights_in_the_local_cache_are_found_whole_or_said_to_be_cut(package: Path, tmp_path: Path) -> None:
    hub, clip = tmp_path / "hub", "CLIP ViT-B-32:laion2b_s34b_b79k"
    shards = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}}
    put_in_hub(hub, "owner/model", config__json="{}", model__safetensors__index__json=json.dumps(shards))
    put_in_hub(hub, "owner/model", one__safetensors="x")
    laion = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
    put_in_hub(hub, laion, open_clip_pytorch_model__bin="x")  # a pickle: never loaded
    assert not by_name(check("laptop", device="cpu", cache_dir=tmp_path / "cache"))[clip].ok
    put_in_hub(hub, laion, open_clip_model__safetensors="x")
    found = by_name(check("laptop", device="cpu", cache_dir=tmp_path / "cache"))
    assert found[clip] == Check(clip, True, "in the local cache")
    assert found["MLLM owner/model"] == Check(
        "MLLM owner/model",
        False,
        "its weights are not in the local cache: two.safetensors of a download that was cut",
        "fetch them: hf download owner/model",
    )
    put_in_hub(hub, "owner/model", two__safetensors="x")
    found = by_name(check("laptop", device="cpu", cache_dir=tmp_path / "cache"))
    assert found["MLLM owner/model"].ok and "room for weights" not in found
    found = by_name(check("laptop", device="cpu", cache_dir=tmp_path / "cache", mllm="owner/model@v2"))
    assert found["MLLM owner/model@v2"].mend == "fetch them: hf download owner/model --revision v2"


def test_memory_gpu_and_room_are_compared_with_what_the_profile_needs(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(**given: object) -> dict[str, Check]:
        return by_name(check("laptop", device="cpu", cache_dir=tmp_path / "cache", **given))  # type: ignore[arg-type]

    monkeypatch.setattr(doctor, "_physical_memory", lambda: 3 * 10**9)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 5 * 10**9}))
    found = look()
    assert not found["memory"].ok and found["memory"].found == "3 GB, 4 GB needed"
    assert not found["GPU memory"].ok and found["GPU memory"].found == "no GPU is here"
    assert found["GPU memory"].mend.endswith("name a smaller or a served MLLM with --mllm")
    assert found["room for data"].ok and not found["room for weights"].ok
    assert found["room for weights"].mend.endswith("export HF_HOME=/FOLDER")
    monkeypatch.setattr(doctor, "_physical_memory", lambda: int(3.7 * 10**9))  # a machine of 4 GB
    monkeypatch.setattr(doctor, "_gpu_memory", lambda device: 25_300_000_000)
    found = look()
    assert found["memory"] == Check("memory", True, "4 GB, 4 GB needed")
    assert found["GPU memory"] == Check("GPU memory", True, "25 GB, 24 GB needed for owner/model")
    assert "GPU memory" not in look(mllm="server:some-model")
    assert look(mllm="no such model")["MLLM no such model"].found == "neither a folder nor a hub id"


def test_models_in_folders_must_be_whole(package: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    options = {"device": "cpu", "cache_dir": tmp_path / "cache"}
    found = by_name(check("laptop", mllm=str(folder), encoder=f"local-dir:{folder}", **options))  # type: ignore[arg-type]
    mllm, clip = found[f"MLLM {folder}"], found[f"CLIP local-dir:{folder}"]
    assert mllm.found == f"{folder} has no *.safetensors"
    assert clip.found == f"{folder} has no open_clip_config.json and no open_clip_*.*"
    assert clip.mend == "name the folder of a whole model with --encoder"
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / "open_clip_config.json").write_text("{}")
    (folder / "open_clip_model.safetensors").write_bytes(b"x")
    found = by_name(check("laptop", mllm=str(folder), encoder=f"local-dir:{folder}", **options))  # type: ignore[arg-type]
    assert found[f"MLLM {folder}"].found == found[f"CLIP local-dir:{folder}"].found == f"in {folder}"


def test_data_are_judged_as_check_data_does(package: Path, tmp_path: Path) -> None:
    root = tmp_path / "data" / "circo"
    shutil.copytree(package / "mini" / "circo", root)

    def look() -> Check:
        return by_name(check("laptop", device="cpu", cache_dir=tmp_path / "cache"))["data of circo"]

    (root / "annotations").rename(tmp_path / "aside")
    assert look().found.startswith(
        f"val: annotation file {root}/annotations/val.json does not exist: the folder of CIRCO, with "
    )
    (tmp_path / "aside").rename(root / "annotations")
    whole = look()  # a part of CIRCO, all there: usable, and said to be a part
    assert whole.ok and whole.mend == ""
    assert whole.found.startswith(
        "val: 8 queries, gallery 24; 8 queries where the published val split has 220"
    )
    pictures = root / "COCO2017_unlabeled" / "unlabeled2017"
    next(iter(sorted(pictures.iterdir()))).write_bytes(b"")
    bad = look()
    assert not bad.ok and bad.found == "val: 1 of 24 pictures are missing or damaged"
    assert bad.mend.endswith("or leave them out: cir run ... --missing leave-out")


def test_every_set_that_a_profile_fetches_is_in_the_registry_of_its_benchmark() -> None:
    registry = tomllib.loads((PACKAGE.parent / "data_scripts" / "data_registry.toml").read_text("utf-8"))
    for name in ("laptop", "paper"):
        for bench, spec in load_profile(name).benchmarks.items():
            assert spec.fetch and all(registry[one]["benchmark"] == bench for one in spec.fetch)


def test_the_paper_profile_lists_all_that_is_missing_on_a_bare_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CIR_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    call = ["doctor", "--profile", "paper", "--device", "cpu", "--cache", str(tmp_path / "cache")]
    assert main([*call, "--json"]) == 1
    checks = {one["name"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    bad = {name for name, one in checks.items() if not one["ok"]} - {
        "memory",
        "room for data",
        "room for weights",
    }
    assert bad == {
        "GPU memory",
        "CLIP ViT-L-14:laion2b_s32b_b82k",
        "MLLM OpenGVLab/InternVL3-8B-hf",
        "data of circo",
        "data of cirr",
        "data of fashioniq",
    }
    assert all(one["mend"] for one in checks.values() if not one["ok"])
    root = tmp_path / "data" / "circo"
    assert checks["data of circo"]["mend"].startswith(
        f"python -m data_scripts.fetch_data circo-annotations --root {root} && "
        f"python -m data_scripts.fetch_data coco-unlabeled --root {root}; look again: "
    )
    assert checks["prompts default"]["found"] == "14 prompts, worded for scene and fashion"
    assert not (tmp_path / "hub").exists() and not (tmp_path / "data").exists(), "nothing is fetched or made"


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
