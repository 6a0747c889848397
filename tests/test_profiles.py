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
from cir_utils.profiles import check_split, load_profile, read_mini_settings


def test_paper_profile_has_the_published_settings() -> None:
    paper = load_profile("paper")
    pairs = {name: (spec.settings["alpha"], spec.settings["beta"]) for name, spec in paper.benchmarks.items()}
    assert pairs == {"circo": (0.15, 0.35), "cirr": (0.05, 0.5), "fashioniq": (0.2, 0.4)}
    for spec in paper.benchmarks.values():
        assert (spec.settings["lambda"], spec.settings["k_prime"], spec.settings["kappa"]) == (0.15, 100, 60)


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
        "tuned_on": "mini-circo val, 150 queries",
    }
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"mini-circo": tuned}))
    monkeypatch.setattr(profiles, "MINI_SETTINGS", path)
    spec = load_profile("mini").benchmark("mini-circo")
    assert spec.settings == {"alpha": 0.2, "beta": 0.3, "lambda": 0.4, "k_prime": 30, "kappa": 10}
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
