"""The command line: what it prints, where, its exit codes, and what wrong input says."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_world import IDS, write_world
from tiny_models import write_tiny_vlm

from cir_utils import __version__
from cir_utils.cli import main
from cir_utils.profiles import PACKAGE, SETTING_NAMES
from cir_utils.runs import load_run

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a world, and a tiny random MLLM."""
    folder = tmp_path_factory.mktemp("place")
    write_world(folder / "world")
    write_tiny_vlm(folder / "vlm")
    return folder


@pytest.fixture
def cir(
    place: Path,
    tiny_clip: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run a command on the small world in an empty folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CIR_CACHE", str(place / "cache"))

    def call(*arguments: str | Path, world: bool = True) -> tuple[int, str, str]:
        given = [str(argument) for argument in arguments]
        usual: list[str] = []
        if world and given:
            usual += ["--benchmark", "mini-circo", "--root", str(place / "world")]
        if world and given[0] in ("run", "tune"):
            usual += ["--encoder", f"local-dir:{tiny_clip}", "--mllm", str(place / "vlm"), "--device", "cpu"]
        code = main([*given[:1], *usual, *given[1:]])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def refused(result: tuple[int, str, str]) -> str:
    """The one line of a refusal: exit 2, nothing on stdout, no traceback."""
    code, out, err = result
    assert (code, out) == (2, ""), err
    lines = [line for line in err.splitlines() if line.startswith("cir: ") and "warning" not in line]
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return lines[0]


def test_run_takes_other_prompts_and_generation_and_records_them(cir: Run, tmp_path: Path) -> None:
    options = ("--prompts", "default", "--temperature", "0.5", "--seed", "7", "--max-tokens", "8")
    fast = ("--limit", "1", "--set", "description=plain", "--out", tmp_path / "one")
    code, _, err = cir("run", "sdr-cir", *fast, *options)
    assert code == 0, err
    record = load_run(tmp_path / "one").record
    values = {name: one["value"] for name, one in record["choices"].items()}
    assert (values["prompts"], values["temperature"], values["seed"]) == ("default", 0.5, 7)
    assert set(values["max_tokens"].values()) == {8}
    profiles = {name for name, one in record["choices"].items() if one["source"] == "profiles.toml, mini"}
    assert profiles == {"precision", "preprocessing"}
    assert {record["choices"][name]["source"] for name in set(values) - profiles} == {"given for this run"}
    assert record["inputs"]["prompt_set"] == "default"
    assert record["setting_sources"]["alpha"].startswith(("mini/settings.json", "profiles.toml, mini"))
    assert "unknown prompt set 'long'" in refused(cir("run", "sdr-cir", "--prompts", "long"))
    assert "temperature 9 is not valid" in refused(cir("run", "sdr-cir", "--temperature", "9"))
    assert "max_tokens 0 is not valid" in refused(cir("run", "sdr-cir", "--max-tokens", "0"))


def test_run_prints_one_json_object_and_keeps_a_folder(cir: Run, tmp_path: Path) -> None:
    code, out, _ = cir(
        "run", "sdr-cir", "--split", "val", "--out", tmp_path / "one", "--set", "alpha=0.2", "--json"
    )
    assert code == 0
    found = json.loads(out)
    assert set(found) >= {
        "method",
        "benchmark",
        "split",
        "profile",
        "settings",
        "protocol",
        "metrics",
        "cost",
    }
    assert (found["method"], found["benchmark"], found["split"], found["profile"]) == (
        "sdr-cir",
        "mini-circo",
        "val",
        "mini",
    )
    assert found["settings"] == {"alpha": 0.2, "beta": found["settings"]["beta"], "description": "selective"}
    assert set(found["cost"]) >= {
        "mllm_calls",
        "prompt_tokens",
        "completion_tokens",
        "parse_failures",
        "seconds",
    }
    # A random MLLM writes no JSON and ends no caption: both fail, are asked for again, and fallbacks stand
    # in.
    assert found["cost"]["parse_failures"] == 16
    assert found["counts"]["fallbacks"] == 8
    run = load_run(tmp_path / "one", whole=True)
    assert run.metrics == found["metrics"]
    assert sorted(run.rankings["0"]) == IDS


def test_precision_and_preprocessing_are_chosen_recorded_and_kept_apart(cir: Run, tmp_path: Path) -> None:
    records = []
    for options in ([], ["--precision", "bfloat16"], ["--preprocessing", "targetpad-1.25"]):
        code, _, err = cir(
            "run", "image-only", "--out", tmp_path / "run", "--cache", tmp_path / "new", *options
        )
        assert code == 0, err
        records.append(load_run(tmp_path / "run").record)
    about = [record["inputs"]["encoder"] for record in records]
    assert [found["precision"] for found in about] == ["float32", "bfloat16", "float32"]
    assert [found["preprocessing"]["name"] for found in about] == ["clip", "clip", "targetpad-1.25"]
    for record in records:
        assert "24 computed" in record["caches"][0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precision", "int8"], "unknown --precision 'int8': choose float32, bfloat16, float16"),
        (["--precision", "float16"], "--precision float16 needs a GPU"),
        (["--preprocessing", "square"], "unknown --preprocessing 'square': choose clip, targetpad-1.25"),
    ],
)
def test_wrong_precision_and_preprocessing(cir: Run, options: list[str], message: str) -> None:
    assert message in refused(cir("run", "image-only", *options))


def test_a_second_run_takes_everything_from_the_cache(cir: Run) -> None:
    first = json.loads(cir("run", "xr", "--set", "k_prime=3", "--limit", "2", "--json")[1])
    again = json.loads(cir("run", "xr", "--set", "k_prime=3", "--limit", "2", "--json")[1])
    assert again["metrics"] == first["metrics"]
    assert again["cost"]["cached_calls"] == again["cost"]["mllm_calls"] == first["cost"]["mllm_calls"]
    assert again["protocol"]["queries"] == 2


def test_run_prints_a_table_for_people(cir: Run, tmp_path: Path) -> None:
    code, out, _ = cir("run", "image-only")
    assert code == 0
    assert "mini-circo test, 8 queries, gallery 24, reference kept" in out
    assert "mAP@5" in out and "from the cache" in out
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"run folder: runs/{folder.name}" in out
    assert re.fullmatch(r"image-only--mini-circo-test--tiny-clip--[0-9]{8}-[0-9]{6}", folder.name)


def test_evaluate_scores_a_rankings_file(cir: Run, tmp_path: Path) -> None:
    _, out, _ = cir("run", "text-only", "--split", "val", "--out", tmp_path / "one", "--json")
    path = tmp_path / "rankings.json"
    path.write_text(json.dumps(dict(load_run(tmp_path / "one", whole=True).rankings)))
    code, evaluated, _ = cir("evaluate", path, "--split", "val", "--json")
    assert code == 0
    found = json.loads(evaluated)
    assert found["metrics"] == json.loads(out)["metrics"]
    assert set(found) >= {"benchmark", "split", "protocol", "metrics"}
    code, text, _ = cir("evaluate", path, "--split", "val")
    assert code == 0 and "mAP@5" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["3"].__setitem__(1, r["3"][0]), "query 3: image 100 is listed twice"),
        (lambda r: r["3"].__setitem__(1, 5), "query 3: image 5 is not in the gallery"),
        (lambda r: r.pop("3"), "1 of 8 queries are missing (3)"),
        (lambda r: r["3"].__setitem__(1, str(r["3"][1])), "query 3: image id '107' has the wrong type"),
        (lambda r: r.__setitem__("8", r["3"]), "1 queries do not belong to this split (8)"),
    ],
)
def test_evaluate_refuses_wrong_rankings(
    cir: Run, tmp_path: Path, change: Callable[..., object], message: str
) -> None:
    rankings = {str(number): list(IDS) for number in range(8)}
    change(rankings)
    path = tmp_path / "rankings.json"
    path.write_text(json.dumps(rankings))
    assert message in refused(cir("evaluate", path, "--split", "val", "--json"))


def test_compare_puts_runs_into_one_table(cir: Run, tmp_path: Path) -> None:
    for method in ("image-only", "text-only"):
        cir("run", method, "--out", tmp_path / method)
    code, out, _ = cir("compare", tmp_path / "image-only", tmp_path / "text-only", world=False)
    assert code == 0
    assert "| image-only |" in out and "Paired tests on mAP@5" in out
    found = json.loads(
        cir("compare", tmp_path / "image-only", tmp_path / "text-only", "--json", world=False)[1]
    )
    assert [row["method"] for row in found["results"]] == ["image-only", "text-only"]
    both = (tmp_path / "image-only", tmp_path / "text-only")
    table = tmp_path / "tables" / "t.csv"
    code, out, _ = cir("compare", *both, "--format", "csv", "--out", table, world=False)
    assert (code, out) == (0, f"written to {table}\n")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [float(row["mAP@5"]) for row in rows] == [row["mAP@5"] for row in found["results"]]
    assert rows[1]["against"] == "image-only" and float(rows[1]["effect"]) == found["paired"][0]["effect"]
    assert "\\toprule" in cir("compare", *both, "--format", "latex", world=False)[1]
    code, out, _ = cir("compare", *both, "--per-query", "--format", "csv", world=False)
    outcomes = [row["outcome"] for row in csv.DictReader(out.splitlines())]
    assert outcomes.count("win") == found["paired"][0]["wins"] and len(outcomes) == 8
    assert "unknown format 'pdf': choose text" in refused(
        cir("compare", *both, "--format", "pdf", world=False)
    )
    message = refused(cir("compare", *both, "--json", "--format", "csv", world=False))
    assert "leave out --format, --out, --per-query" in message
    assert "needs two run folders" in refused(cir("compare", tmp_path / "image-only", world=False))
    message = refused(cir("compare", tmp_path / "image-only", tmp_path / "nothing", world=False))
    assert "nothing is not a run folder" in message


def test_tune_chooses_on_val(cir: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = cir("tune", "--limit", "3", "--json")
    assert code == 0
    found = json.loads(out)
    assert set(found["values"]) == {*SETTING_NAMES}
    assert found["split"] == "val" and found["queries"] == 3
    assert "cir tune refuses split 'test': settings are chosen on val alone" in refused(
        cir("tune", "--split", "test")
    )
    assert (
        set(found["methods"]) == {"sdr-cir", "xr", "xr-sdr"}
        and found["methods"]["xr"]["points"] == 7 * 21 * 4
    )
    assert len(list((tmp_path / "runs").glob("tune-*"))) == 3
    # One method alone, at random: its settings only, and a folder with the record.
    drawn = ("--search", "random", "--points", "9", "--random-seed", "3", "--out", tmp_path / "sdr")
    code, out, _ = cir("tune", "sdr-cir", "--limit", "3", *drawn, "--json")
    assert code == 0
    found = json.loads(out)
    assert list(found["values"]) == ["alpha", "beta"] and found["methods"]["sdr-cir"]["random_seed"] == 3
    kept = json.loads((tmp_path / "sdr" / "tuning.json").read_text())
    assert kept["chosen"] == found["values"] and kept["points"] == 9
    for given, said in (
        (["text-only"], "method text-only has no setting that is tuned on stored scores; choose sdr-cir, xr"),
        (["xr", "--split", "test"], "cir tune refuses split 'test': settings are chosen on val alone"),
        (["nothing"], "unknown method 'nothing': choose random"),
        (["xr", "--points", "5"], "--points and --random-seed belong to --search random"),
        (["xr", "--search", "best"], "unknown search 'best': choose grid, random"),
        (["--out", "here"], "--out is the folder of one method's tuning; give METHOD"),
        (["xr", "--write", "--search", "random"], "--write keeps what the grid chose"),
    ):
        assert said in refused(cir("tune", *given))
    assert "leave out --limit" in refused(cir("tune", "--write", "--limit", "3"))
    # Under other choices than the mini profile's nothing is kept, and the result says under which.
    assert "leave out --encoder, --mllm, --seed, --shared-concept, --keep-reference" in refused(
        cir("tune", "--write", "--seed", "7", "--shared-concept", "--remove-reference")
    )
    assert "unknown prompt set" in refused(cir("tune", "--prompts", "best"))
    options = ("--limit", "2", "--seed", "7", "--max-tokens", "9", "--shared-concept", "--remove-reference")
    code, out, _ = cir("tune", *options, "--preprocessing", "targetpad-1.25", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["protocol"]["shared_concept"] is True and found["protocol"]["reference"] == "removed"
    assert found["protocol"]["queries"] == 2
    assert found["choices"]["seed"] == {"value": 7, "source": "given for this run"}
    assert found["choices"]["preprocessing"]["value"] == "targetpad-1.25"
    assert set(found["choices"]["max_tokens"]["value"].values()) == {9}
    assert found["choices"]["precision"] == {"value": "float32", "source": "profiles.toml, mini"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "sdrcir"],
            "unknown method 'sdrcir': choose random, image-only, text-only, image+text, description-only",
        ),
        (["run", "xr", "--split", "train"], "unknown split 'train' of mini-circo: choose test, val"),
        (["run", "xr", "--profile", "big"], "unknown profile 'big': choose mini, laptop, paper"),
        (["run", "xr", "--set", "gamma=1"], "unknown setting 'gamma' of method xr: its settings are lambda"),
        (["run", "xr", "--set", "lambda=2"], "lambda must be a number from 0 to 1"),
        (["run", "xr", "--set", "lambda"], "--set 'lambda' is not of the form name=value"),
        (["run", "xr", "--limit", "0"], "limit 0 is not valid"),
        (["run", "xr", "--limit", "some"], "--limit"),
        (["run", "xr", "--nonsense"], "--nonsense"),
        (["run"], "METHOD"),
        (["rum"], "No such command 'rum'"),
        (["evaluate", "nowhere.json", "--split", "val"], "nowhere.json does not exist"),
        (["tune", "--metric", "F1"], "metric 'F1' cannot be tuned on"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    cir: Run, arguments: list[str], message: str, tmp_path: Path
) -> None:
    assert message in refused(cir(*arguments))
    assert not (tmp_path / "runs").exists()


def test_a_full_disk_is_one_line_whatever_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "table.csv")

    monkeypatch.setattr("cir_utils.cache.survey", full)
    assert main(["cache", "ls", "--cache", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("cir: table.csv cannot be written (No space left on device); make room")
    assert len(said.splitlines()) == 1


def test_unknown_benchmarks_are_listed(cir: Run) -> None:
    for command in (["run", "xr"], ["tune"], ["evaluate", "x.json", "--split", "val"]):
        line = refused(cir(*command, "--benchmark", "coco", world=False))
        assert "unknown benchmark 'coco'" in line and "mini-circo" in line
    line = refused(cir("run", "xr", "--benchmark", "circo", world=False))
    assert "'circo' belongs to --profile laptop or paper" in line


def test_a_device_that_is_not_there_is_named(cir: Run) -> None:
    assert "device 'cuda:77'" in refused(cir("run", "image-only", "--device", "cuda:77"))
    assert "device 'tpu' is unknown" in refused(cir("run", "image-only", "--device", "tpu"))


def test_a_missing_model_is_named(cir: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(cir("run", "sdr-cir", "--mllm", tmp_path / "empty"))
    assert "nowhere" in refused(cir("run", "image-only", "--encoder", f"local-dir:{tmp_path / 'nowhere'}"))


def test_a_run_folder_that_holds_something_else_is_left_alone(cir: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep me")
    assert "holds no run" in refused(cir("run", "image-only", "--out", tmp_path / "mine"))


def test_a_fault_of_ours_is_exit_1_with_its_traceback(cir: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("cir_utils.methods.baselines.image_only", broken)
    code, out, err = cir("run", "image-only", "--json")
    assert (code, out) == (1, "") and "RuntimeError: a bug" in err


def test_a_warning_is_one_line(cir: Run) -> None:
    _, _, err = cir("run", "sdr-cir", "--set", "alpha=0.6", "--limit", "1", "--json")
    assert "Traceback" not in err


def test_help_and_version(cir: Run) -> None:
    assert cir("--version", world=False)[:2] == (0, f"{__version__}\n")
    code, out, _ = cir("--help", world=False)
    assert code == 0 and all(
        name in out for name in ("run", "evaluate", "tune", "compare", "tutorial", "doctor")
    )
    code, out, err = cir(world=False)
    assert code == 2 and out == "" and "Usage" in err


def test_the_module_runs_as_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cir_utils", "run", "nothing", "--benchmark", "mini-circo"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cir: unknown method 'nothing': choose ") and done.stderr.count("\n") == 1


def test_the_options_of_a_protocol_reach_the_result(cir: Run, tmp_path: Path) -> None:
    from small_world import write_cirr_world, write_fashion_world

    write_fashion_world(tmp_path / "fashioniq")
    write_cirr_world(tmp_path / "cirr")
    code, out, err = cir(
        "run", "text-only", "--benchmark", "mini-fashioniq", "--root", tmp_path / "fashioniq",
        "--gallery", "union", "--both-orders", "--remove-reference", "--out", tmp_path / "one", "--json",
    )  # fmt: skip
    assert code == 0, err
    protocol = json.loads(out)["protocol"]
    assert (protocol["gallery"], protocol["reference"], protocol["missing_images"]) == ("union", "removed", 0)
    assert "both orders" in protocol["caption_rule"] and set(protocol["gallery_size"]) == {
        "dress", "shirt", "toptee",
    }  # fmt: skip
    path = tmp_path / "rankings.json"
    path.write_text(json.dumps(dict(load_run(tmp_path / "one", whole=True).rankings)))
    assert load_run(tmp_path / "one").record["protocol"]["caption_rule"] == protocol["caption_rule"]
    same = ["--gallery", "union", "--remove-reference"]
    place = ["--benchmark", "mini-fashioniq", "--root", tmp_path / "fashioniq", "--split", "test"]
    code, evaluated, err = cir("evaluate", path, *place, *same, "--json")
    assert code == 0, err
    assert json.loads(evaluated)["metrics"] == json.loads(out)["metrics"]
    code, text, _ = cir("evaluate", path, *place, *same)
    assert "gallery union: dress" in text and "mean/R@1" in text
    assert "images/" not in refused(cir("evaluate", path, *place, "--gallery", "all"))
    for option in ("--both-orders", "--shared-concept"):
        message = refused(cir("evaluate", path, *place, option))
        assert f"{option} says how a method reads the texts" in message
        assert "give it to `cir run`, whose run folder carries it" in message
    assert "--shared-concept is an option of CIRCO alone" in refused(
        cir("run", "text-only", *place, "--shared-concept")
    )

    place = ["--benchmark", "mini-cirr", "--root", tmp_path / "cirr"]
    code, out, err = cir("run", "image-only", *place, "--keep-reference", "--out", tmp_path / "two", "--json")
    assert code == 0, err
    assert json.loads(out)["protocol"]["reference"] == "kept"
    assert "R_subset@1" in json.loads(out)["metrics"]
    (tmp_path / "cirr" / "dev" / "dev-100-0-img0.png").unlink()
    assert "--missing leave-out" in refused(cir("run", "image-only", *place))
    code, out, err = cir("run", "image-only", *place, "--missing", "leave-out", "--json")
    assert code == 0, err
    assert json.loads(out)["protocol"]["missing_images"] == 1
    assert any("queries are left out" in note for note in json.loads(out)["notes"])


def test_two_encoders_have_two_labels_in_a_table(cir: Run, tmp_path: Path, tiny_clip: Path) -> None:
    import shutil

    shutil.copytree(tiny_clip, tmp_path / "other-clip")
    cir("run", "text-only", "--out", tmp_path / "a")
    cir("run", "text-only", "--encoder", f"local-dir:{tmp_path / 'other-clip'}", "--out", tmp_path / "b")
    code, out, err = cir("compare", tmp_path / "a", tmp_path / "b", world=False)
    assert code == 0, err
    assert "text-only [tiny-clip@" in out and "text-only [other-clip@" in out
