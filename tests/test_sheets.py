"""Glossary, notation sheet and the recipes of the README say what is so."""

from __future__ import annotations

import re
import shutil
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from small_world import open_bench, write_world

from cir_utils import benchmarks, methods, profiles, prompts
from cir_utils.benchmarks import load_benchmark
from cir_utils.runs import run_method

ROOT = Path(__file__).parent.parent
NOTATION = (ROOT / "docs" / "notation.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBERS = {path.name[:2] for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
ROWS = [line.strip("| ").split(" | ") for line in NOTATION.splitlines() if line.startswith("|")]


def named(name: str) -> object:
    """What ``scoring.rrf`` or ``workbench.Workbench.gallery_features`` names below ``cir_utils``."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(["cir_utils", *parts[:end]]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def test_every_sign_has_its_seven_cells_and_a_place_in_code_and_course() -> None:
    assert ROWS[0] == ["sign", "what", "shape", "range", "computed in", "NB", "paper"]
    assert len(ROWS) > 25
    for row in ROWS[2:]:
        assert len(row) == 7, row
        places = re.findall("`([^`]+)`", row[4])
        assert places, row
        for place in places:
            assert named(place) is not None, place
        assert row[5] in NUMBERS, row


@pytest.mark.parametrize(
    "sign", "F_r F_d F_m F_q S_i S_f w C_t C_v C_a C_r I_a M_t M_v k'".split(), ids=lambda sign: sign
)
def test_the_sheet_has_the_sign(sign: str) -> None:
    assert any(f"`{sign}`" in row[0] for row in ROWS[2:]), sign


def test_every_name_in_code_is_one_that_the_sheet_knows() -> None:
    spelt = {name for name, setting in methods.SETTINGS.items() if setting.kind in (int, float)}
    said = set(re.findall("[a-z_]+", NOTATION.split("spelt out:")[1]))
    assert spelt <= said


def test_the_glossary_sends_to_notebooks_that_are_there() -> None:
    numbers = re.findall(r"\((\d\d)\)", GLOSSARY)
    assert len(numbers) > 40 and set(numbers) <= NUMBERS
    words = re.findall(r"\*\*([^*]+)\*\*", GLOSSARY)
    assert len(words) == len(set(words)), "one entry a word"
    wanted = {
        "Reference image",
        "Modification text",
        "Gallery",
        "True target",
        "Protocol",
        "Anchor",
        "Debias",
    }
    assert wanted <= set(words)


@pytest.mark.parametrize("text", [NOTATION, GLOSSARY], ids=["notation", "glossary"])
def test_each_sheet_is_a_page(text: str) -> None:
    assert len(text.split()) < 1100


def snippets(heading: str) -> list[str]:
    """The fenced blocks of a section of the README."""
    section = re.split(r"^#+ ", README.split(f"# {heading}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"```\w*\n(.*?)```", section, flags=re.DOTALL)


def test_the_method_in_ten_lines_runs(
    tmp_path: Path, tiny_clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, entry = snippets("Add a method in ten lines")[:2]
    assert len(source.splitlines()) + len(entry.splitlines()) <= 12
    place = tmp_path / "methods"
    place.mkdir()
    (place / "halfway.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(place)])
    added = eval(f"{{{entry}}}", {"Method": methods.Method})
    monkeypatch.setattr(methods, "METHODS", methods.METHODS | added)
    bench = open_bench(write_world(tmp_path / "world"), tiny_clip, tmp_path / "cache")
    run = run_method(bench, next(iter(added)), methods.resolve_settings(next(iter(added)), bench.settings))
    known = run_method(bench, "sdr-cir", {"alpha": 0.5, "beta": 0.0, "description": "selective"})
    assert run.rankings["0"] == known.rankings["0"], "halfway is the Anchor step at one half"
    assert run.record["cost"]["mllm_calls"] >= 8 and "mAP@5" in run.metrics


def test_the_benchmark_in_ten_lines_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, table = snippets("Add a benchmark in ten lines")[:2]
    assert len(entry.splitlines()) + len(table.splitlines()) <= 10
    added = eval(f"{{{entry}}}", {"Entry": benchmarks.Entry})
    (name,) = added
    monkeypatch.setitem(benchmarks.BENCHMARKS, name, added[name])
    monkeypatch.setenv("CIR_DATA", str(tmp_path))
    (tmp_path / "profiles.toml").write_text(f"{profiles.PROFILES_FILE.read_text(encoding='utf-8')}\n{table}")
    monkeypatch.setattr(profiles, "_table", lambda: tomllib.loads((tmp_path / "profiles.toml").read_text()))
    spec = profiles.load_profile("mini").benchmark(name)
    write_world(spec.root)
    found = load_benchmark(name, spec.splits[0], spec.root)
    assert (found.name, found.family, len(found.queries), len(found.gallery)) == (name, "circo", 8, 24)
    assert methods.resolve_settings("xr", spec.settings)["k_prime"] == 50


def test_the_prompt_in_ten_lines_is_what_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, commands = snippets("Add a prompt in ten lines")[:2]
    assert len(text.splitlines()) + len(commands.splitlines()) <= 10
    copy, edited, run = commands.splitlines()
    source, target = (Path(part).relative_to("cir_utils") for part in copy.split()[2:])
    shutil.copytree(profiles.PACKAGE / source, tmp_path / target)
    (tmp_path / Path(edited.split()[1]).relative_to("cir_utils")).write_text(text, encoding="utf-8")
    monkeypatch.setattr(prompts, "files", lambda package: tmp_path)
    used = run.split("--prompts ")[1].split()[0]
    asked = prompts.load_prompt(used, "describe_target", "scene").fill(modification="make it blue")
    assert asked == text.strip().replace("{modification}", "make it blue")
    for name in prompts.SLOTS:
        assert prompts.load_prompt(used, name).set == used
