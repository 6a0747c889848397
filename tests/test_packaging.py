"""Project file, lock, conda file, wheel contents and citation are in step with each other and with the
code.
"""

import ast
import os
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import cir_utils
from data_scripts import make_lock

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCK_LINES = [
    line
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def named(requirements):
    return {canonicalize_name(Requirement(line).name): Requirement(line) for line in requirements}


def test_every_lock_line_is_one_exact_version():
    for line in LOCK_LINES:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][A-Za-z0-9.]*( ; .+)?", line), line
    names = [line.split("==")[0] for line in LOCK_LINES]
    assert names == sorted(names) and len(names) == len(set(names))


def test_lock_holds_every_direct_dependency_within_its_bounds():
    locked = named(LOCK_LINES)
    for line in make_lock.roots():
        wanted = Requirement(line)
        (pin,) = locked[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(pin.version), f"{line} against {pin}"
        assert [spec.operator for spec in wanted.specifier] == [">="], f"{line}: lower bounds only"


def test_lock_holds_all_that_this_environment_needs():
    if sys.platform != "linux" or sys.version_info[:2] != (3, 11):
        pytest.skip("the lock was made for Python 3.11 on Linux; other platforms need other packages")
    locked = {line.split("==")[0] for line in LOCK_LINES}
    assert not set(make_lock.closure(make_lock.roots())) - locked


def test_cuda_libraries_stay_on_the_platforms_that_have_them():
    cuda = [Requirement(line) for line in LOCK_LINES if line.startswith(("nvidia", "cuda", "triton"))]
    assert len(cuda) > 10
    for requirement in cuda:
        marker = requirement.marker
        assert marker is not None, requirement.name
        assert marker.evaluate({"platform_system": "Linux", "platform_machine": "x86_64"})
        assert not marker.evaluate({"platform_system": "Darwin", "platform_machine": "arm64"})
        assert not marker.evaluate({"platform_system": "Windows", "platform_machine": "AMD64"})
    others = [Requirement(line) for line in LOCK_LINES if not line.startswith(("nvidia", "cuda", "triton"))]
    assert all(requirement.marker is None for requirement in others)
    assert Marker(make_lock.CUDA_MARKER) == cuda[0].marker


def test_every_locked_package_takes_the_first_python_that_the_project_takes():
    """Debian 12's Python is 3.11.2: a package that wants 3.11.5 ends `make tutorial` before it begins."""
    oldest = next(iter(SpecifierSet(PROJECT["project"]["requires-python"]))).version
    refusing, read = {}, 0
    for line in LOCK_LINES:
        try:
            wanted = distribution(line.split("==")[0]).metadata.get("Requires-Python")
        except PackageNotFoundError:
            continue  # of another platform
        read += 1
        if wanted and f"{oldest}.0" not in SpecifierSet(wanted):
            refusing[line] = wanted
    assert refusing == {} and read > 100


def test_lock_says_how_it_was_made():
    head = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert head.startswith(make_lock.HEADER) and "data_scripts/make_lock.py" in head


def test_lock_maker_follows_extras_and_stops_at_unmet_bounds(monkeypatch):
    assert {"numpy", "scipy"} <= set(make_lock.closure(["scipy"]))
    assert "pytest" not in make_lock.closure(["scipy"])
    for line, said in [("scipy>=999", "does not satisfy"), ("no-such-package-here", "is not installed")]:
        with pytest.raises(SystemExit, match=said):
            make_lock.closure([line])


def test_conda_file_installs_the_lock_and_the_package():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert conda["name"] == "cir" and conda["channels"] == ["conda-forge"]
    python, pip, by_pip = conda["dependencies"]
    assert (python, pip) == ("python=3.11", "pip")
    assert by_pip == {"pip": ["-r requirements.lock", "-e ."]}  # nothing that could differ from the lock
    assert Version("3.11") in Requirement(f"python{PROJECT['project']['requires-python']}").specifier


def imported(folder):
    """Top-level names of third-party modules that the Python files of `folder` import."""
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    own = {"cir_utils", "data_scripts", "benchmarks"} | {path.stem for path in (ROOT / "tests").glob("*.py")}
    return found - set(sys.stdlib_module_names) - own


@pytest.mark.parametrize(
    "folder, extras",
    [
        ("cir_utils", ["index", "notebooks", "server", "distributed"]),
        ("data_scripts", ["notebooks", "data", "dev"]),
        ("tests", ["notebooks", "data", "dev"]),
    ],
)
def test_every_import_is_a_declared_dependency(folder, extras):
    declared = set(
        named(PROJECT["project"]["dependencies"] + [line for extra in extras for line in EXTRAS[extra]])
    )
    owners = packages_distributions()
    for module in sorted(imported(folder)):
        assert {canonicalize_name(name) for name in owners.get(module, [module])} & declared, module


def shipped_by_setuptools(monkeypatch):
    """(packages, data files relative to the root) that a wheel would hold."""
    from setuptools import Distribution

    monkeypatch.chdir(ROOT)
    built = Distribution()
    built.parse_config_files(["pyproject.toml"])
    build_py = built.get_command_obj("build_py")
    build_py.ensure_finalized()
    files = {os.path.join(source, name) for _, source, _, names in build_py.data_files for name in names}
    return set(build_py.packages), {Path(name).as_posix() for name in files}


@pytest.mark.filterwarnings("ignore")
def test_wheel_holds_every_module_prompt_and_mini_file(monkeypatch):
    packages, data = shipped_by_setuptools(monkeypatch)
    present = [
        path.relative_to(ROOT)
        for path in (ROOT / "cir_utils").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    ]
    modules = {path for path in present if path.suffix == ".py"}
    assert {".".join(path.parent.parts) for path in modules} == packages
    assert {path.as_posix() for path in present} - {path.as_posix() for path in modules} == data
    assert any(name.startswith("cir_utils/prompts/default/") for name in data)


def test_version_licence_and_command():
    project = PROJECT["project"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", cir_utils.__version__) and project["dynamic"] == ["version"]
    assert project["scripts"] == {"cir": "cir_utils.cli:main"}
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert project["license"] == "Apache-2.0" and "Version 2.0, January 2004" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    assert (ROOT / project["readme"]).is_file()


def test_citation_names_both_papers_and_the_three_benchmarks():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0" and citation["license"] == "Apache-2.0"
    assert citation["version"] == cir_utils.__version__ and citation["authors"]
    titles = " / ".join(reference["title"] for reference in citation["references"])
    for part in ("SDR-CIR", "X^R", "Zero-Shot Composed Image Retrieval", "Real-life Images", "Fashion IQ"):
        assert part in titles
    dois = [reference["doi"] for reference in citation["references"] if "doi" in reference]
    assert dois == ["10.1145/3774904.3792339", "10.1145/3774904.3792276"]
    for reference in citation["references"]:
        assert (
            reference["type"] == "conference-paper" and reference["year"] and reference["conference"]["name"]
        )
        assert all(author["family-names"] and author["given-names"] for author in reference["authors"])


def test_make_knows_every_verb():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for verb in ("help", "setup", "tutorial", "test", "chaos", "lab", "notebooks", "lint", "clean"):
        assert re.search(rf"^{verb}:.*## \w", makefile, flags=re.MULTILINE), verb
    for verb in ("tutorial", "test", "chaos", "lab", "notebooks", "lint"):
        assert re.search(rf"^{verb}: setup ", makefile, flags=re.MULTILINE), (
            f"{verb} must work alone on a fresh clone"
        )
    assert "requirements.lock pyproject.toml" in makefile  # what makes set-up run again


def test_ci_script_is_executable_and_strict():
    script = ROOT / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK) and "set -euo pipefail" in text and "\nmake test\n" in text
