"""Profiles and the settings of methods: names, values, and what a wrong one says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cir_utils import profiles
from cir_utils.errors import InputError
from cir_utils.methods import METHODS, SETTINGS, load_method, parse_assignments, resolve_settings
from cir_utils.profiles import (
    GIVEN,
    check_split,
    choose,
    load_profile,
    published,
    published_for,
    read_mini_settings,
)


def test_paper_profile_has_the_published_settings() -> None:
    paper = load_profile("paper")
    pairs = {name: (spec.settings["alpha"], spec.settings["beta"]) for name, spec in paper.benchmarks.items()}
    assert pairs == {"circo": (0.15, 0.35), "cirr": (0.05, 0.5), "fashioniq": (0.2, 0.4)}
    for spec in paper.benchmarks.values():
        assert (spec.settings["lambda"], spec.settings["k_prime"], spec.settings["kappa"]) == (0.15, 100, 60)


def test_the_published_settings_of_both_papers_can_be_read() -> None:
    sdr, xr = published("sdr-cir"), published("xr")
    assert sdr["settings"] == {
        "circo": {"alpha": 0.15, "beta": 0.35},
        "cirr": {"alpha": 0.05, "beta": 0.5},
        "fashioniq": {"alpha": 0.2, "beta": 0.4},
    }
    assert (sdr["mllm"], sdr["mllm_calls_per_query"]) == ("GPT-4.1", 1)
    assert sdr["other_mllms"] == ["Qwen2.5-VL-72B", "GPT-4o-mini"] and "temperature" in sdr["not_stated"]
    assert xr["settings"] == dict.fromkeys(
        ("circo", "cirr", "fashioniq"), {"lambda": 0.15, "k_prime": 100, "kappa": 60}
    )
    assert (xr["mllm"], xr["temperature"], xr["top_p"], xr["seed"]) == ("InternVL3-8B", 0.0, 1.0, 42)
    assert xr["max_tokens"] == {"caption": 256, "other": 2048}
    assert xr["encoders"] == ["ViT-B-32:laion2b_s34b_b79k", "ViT-L-14:laion2b_s32b_b82k"]
    assert published("image-only") == {}


def test_the_real_profiles_take_their_values_from_what_was_published() -> None:
    for name in ("laptop", "paper"):
        profile = load_profile(name)
        for bench, spec in profile.benchmarks.items():
            for method in ("sdr-cir", "xr"):
                for setting, value in published(method)["settings"][bench].items():
                    assert spec.settings[setting] == value, (name, bench, setting)
        assert (profile.prompts, profile.temperature, profile.seed) == ("default", 0.0, 42)
    paper, xr = load_profile("paper"), published("xr")
    assert paper.max_tokens == xr["max_tokens"] and paper.encoder in xr["encoders"]
    assert paper.mllm == f"OpenGVLab/{xr['mllm']}-hf"
    assert paper.repetition_penalty == xr["repetition_penalty"] == {"caption": 1.05}
    assert paper.sources["repetition_penalty"] == "profiles.toml, paper"
    assert load_profile("mini").repetition_penalty == {}
    assert load_profile("mini").max_tokens == {} and load_profile("mini").needs == {}


def test_what_was_published_for_a_benchmark_goes_with_its_source() -> None:
    row = published_for("sdr-cir", "fashioniq")
    assert row["settings"] == {"alpha": 0.2, "beta": 0.4} and row["source"].startswith("arXiv:2602.04451")
    assert published_for("xr", "cirr")["settings"] == {"lambda": 0.15, "k_prime": 100, "kappa": 60}
    assert published_for("xr", "mini-cirr") == published_for("text-only", "cirr") == {}
    assert published("xr")["settings"]  # reading takes nothing away


def test_a_run_may_choose_otherwise_and_the_sources_say_so() -> None:
    paper = load_profile("paper")
    assert set(paper.sources.values()) == {"profiles.toml, paper"}
    chosen = choose(paper, mllm="a/b", temperature=0.5, max_tokens=99)
    assert (chosen.mllm, chosen.temperature, chosen.max_tokens) == ("a/b", 0.5, {"other": 99})
    assert (chosen.encoder, chosen.prompts, chosen.seed) == (paper.encoder, "default", 42)
    given = {name for name, source in chosen.sources.items() if source == GIVEN}
    assert given == {"mllm", "temperature", "max_tokens"}
    assert choose(paper, max_tokens={"caption": 64}).max_tokens == {"caption": 64, "other": 2048}
    assert choose(paper, prompts="mini", seed=7).sources["prompts"] == GIVEN
    assert choose(paper) == paper
    assert load_profile("mini").sources["max_tokens"] == "default of cir_utils"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompts": "long"}, "unknown prompt set 'long': choose default, mini"),
        ({"temperature": 3.0}, "temperature 3 is not valid: give a number from 0"),
        ({"temperature": float("nan")}, "temperature nan is not valid"),
        ({"seed": -1}, "seed -1 is not valid"),
        ({"max_tokens": 0}, "max_tokens 0 is not valid"),
        ({"max_tokens": {"painter": 9}}, "unknown agent 'painter': choose other, caption"),
    ],
)
def test_wrong_choices_say_what_was_expected(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(load_profile("paper"), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "shipped = true",
            "shipped = true\ntemperatur = 1",
            r"\[tiny\]: unknown key 'temperatur'; its keys are",
        ),
        ('prompts = "mini"\n', "", r"\[tiny\]: missing key 'prompts'"),
        ('root = "r"', 'root = "r"\nsplit = "val"', r"\[tiny.benchmarks.mini-circo\]: unknown key 'split'"),
        ("alpha = 0.1", "alfa = 0.1", r"settings\]: unknown key 'alfa'; its keys are alpha, beta, lambda"),
        ("shipped = true", "shipped = true\nmax_tokens = { captions = 9 }", "unknown key 'captions'"),
        ("shipped = true", "shipped = true\nneeds = { gpu = 9 }", r"\[tiny.needs\]: unknown key 'gpu'"),
    ],
)
def test_a_wrong_key_in_profiles_toml_is_named(
    before: str, after: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = (
        '[tiny]\nabout = "a"\nencoder = "e"\nmllm = "m"\nprompts = "mini"\nshipped = true\n'
        '[tiny.benchmarks.mini-circo]\nroot = "r"\nsplits = ["val"]\nsettings = { alpha = 0.1 }\n'
    )
    path = tmp_path / "profiles.toml"
    monkeypatch.setattr(profiles, "PROFILES_FILE", path)
    try:
        for content in (text, text.replace(before, after, 1)):
            path.write_text(content)
            profiles._table.cache_clear()
            if content == text:
                assert load_profile("tiny").benchmark("mini-circo").settings == {"alpha": 0.1}
        with pytest.raises(InputError, match=message):
            load_profile("tiny")
    finally:
        profiles._table.cache_clear()


def test_mini_profile_points_into_the_package() -> None:
    mini = load_profile("mini")
    assert mini.shipped and mini.prompts == "mini"
    assert mini.encoder == f"local-dir:{profiles.PACKAGE}/mini/models/mini-clip"
    assert mini.benchmark("mini-circo").root == profiles.PACKAGE / "mini" / "circo"


def test_data_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CIR_DATA", str(tmp_path))
    assert load_profile("paper").benchmark("circo").root == tmp_path / "circo"


def test_unknown_names_are_listed_with_the_choices() -> None:
    with pytest.raises(InputError, match=r"unknown profile 'big': choose mini, laptop, paper"):
        load_profile("big")
    with pytest.raises(
        InputError, match=r"unknown benchmark 'coco' in profile paper: choose circo, cirr, fashioniq$"
    ):
        load_profile("paper").benchmark("coco")
    with pytest.raises(InputError, match=r"'circo' belongs to --profile laptop or paper"):
        load_profile("mini").benchmark("circo")
    with pytest.raises(InputError, match=r"unknown split 'train' of mini-circo: choose test, val"):
        check_split(load_profile("mini").benchmark("mini-circo"), "train")
    assert check_split(load_profile("mini").benchmark("mini-circo"), None) == "test"


def test_tuned_settings_replace_the_starting_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tuned = {
        "alpha": 0.2,
        "beta": 0.3,
        "lambda": 0.4,
        "k_prime": 30,
        "kappa": 10,
        "weight_text": 0.0,
        "weight_vision": 0.2,
        "tuned_on": "mini-circo val, 150 queries",
    }
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"mini-circo": tuned}))
    monkeypatch.setattr(profiles, "MINI_SETTINGS", path)
    spec = load_profile("mini").benchmark("mini-circo")
    assert spec.settings == {name: value for name, value in tuned.items() if name != "tuned_on"}
    assert spec.settings_source == "mini/settings.json, tuned on mini-circo val, 150 queries"
    assert load_profile("paper").benchmark("circo").settings["alpha"] == 0.15


@pytest.mark.parametrize("entry", [{"alpha": 0.1}, {"alpha": True}, [], "x"])
def test_a_damaged_settings_file_is_named(tmp_path: Path, entry: object) -> None:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"mini-circo": entry}))
    with pytest.raises(InputError, match="cir tune --write"):
        read_mini_settings(path)


def test_settings_take_the_override_then_the_profile_then_the_default() -> None:
    assert resolve_settings("sdr-cir", {"alpha": 0.15, "beta": 0.35, "kappa": 60}, {"alpha": "0.2"}) == {
        "alpha": 0.2,
        "beta": 0.35,
        "description": "selective",
    }
    assert resolve_settings("image-only", {"alpha": 0.15}) == {}
    xr = resolve_settings(
        "xr", {"lambda": 0.15, "k_prime": 100, "kappa": 60}, {"k_prime": "50", "vision": "off"}
    )
    assert xr == {
        "lambda": 0.15,
        "k_prime": 50,
        "kappa": 60.0,
        "stages": "full",
        "vision": "off",
        "text": "on",
        "prune": "on",
    }
    assert type(xr["k_prime"]) is int


@pytest.mark.parametrize(
    ("method", "override", "message"),
    [
        (
            "sdr-cir",
            {"gamma": "1"},
            "unknown setting 'gamma' of method sdr-cir: its settings are alpha, beta, description",
        ),
        ("image-only", {"alpha": "1"}, "unknown setting 'alpha' of method image-only: it has none"),
        ("sdr-cir", {"alpha": "1.5"}, "setting alpha=1.5 is not valid: alpha must be a number from 0 to 1"),
        ("sdr-cir", {"alpha": "nan"}, "alpha must be a number from 0 to 1"),
        ("sdr-cir", {"alpha": "a lot"}, "alpha must be a number"),
        ("sdr-cir", {"alpha": True}, "alpha must be a number"),
        ("sdr-cir", {"description": "long"}, "description must be one of selective, plain"),
        ("xr", {"k_prime": "2.5"}, "k_prime must be a whole number"),
        ("xr", {"k_prime": "0"}, "k_prime must be a whole number from 1"),
        ("xr", {"vision": "off", "text": "off"}, "leave method xr without agents"),
        (
            "xrr",
            {},
            "unknown method 'xrr': choose random, image-only, text-only, image\\+text, description-only, "
            "sdr-cir, xr",
        ),
    ],
)
def test_wrong_settings_say_what_was_expected(method: str, override: dict[str, object], message: str) -> None:
    defaults = {"alpha": 0.1, "beta": 0.4, "lambda": 0.15, "k_prime": 50, "kappa": 60}
    with pytest.raises(InputError, match=message):
        resolve_settings(method, defaults, override)


@pytest.mark.parametrize("given", [["alpha"], ["=1"], ["a=1", "a=2"]])
def test_assignments_must_be_name_equals_value(given: list[str]) -> None:
    with pytest.raises(InputError):
        parse_assignments(given)
    assert parse_assignments(["a=b=c", " d = 1 "]) == {"a": "b=c", "d": "1"}


def test_every_method_exists_and_its_settings_are_known() -> None:
    for name, method in METHODS.items():
        assert callable(load_method(name))
        assert set(method.settings) <= set(SETTINGS)


def test_names_are_checked_without_model_libraries() -> None:
    code = (
        "import sys, cir_utils.cli, cir_utils.methods, cir_utils.profiles\n"
        "heavy = {'torch', 'transformers', 'open_clip', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
