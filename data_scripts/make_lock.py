"""Writes `requirements.lock`: the exact versions, in this environment, of everything that the project needs.

    .venv/bin/python data_scripts/make_lock.py           # write
    .venv/bin/python data_scripts/make_lock.py --check   # exit 1 when the file would change

To move to newer versions: make a fresh Python 3.11 environment, `pip install -U -e
".[notebooks,data,server,distributed,dev]"`, run the tests, run this. Only what the core, `notebooks`, `data`,
`server`, `distributed` and `dev` dependencies need is locked; other packages of the environment are left out.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
EXTRAS = ("notebooks", "data", "server", "distributed", "dev")
#: Packages that exist for CUDA on Linux alone; elsewhere torch does without them.
CUDA_PREFIXES = ("nvidia-", "cuda-", "triton")
CUDA_MARKER = 'platform_system == "Linux" and platform_machine == "x86_64"'
HEADER = """\
# Exact versions for Python 3.11: `python -m pip install -r requirements.lock`.
# Made by `python data_scripts/make_lock.py` from a tested environment; do not edit by hand.
# The CUDA libraries are installed on Linux x86-64 only, as torch asks for them there.
"""


def roots() -> list[str]:
    """The requirements of `pyproject.toml`: core and the extras that `make setup` installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["dependencies"] + [
        line for extra in EXTRAS for line in project["optional-dependencies"][extra]
    ]


def closure(requirements: list[str]) -> dict[str, str]:
    """Name -> version, in this environment, of the requirements and all that they need here."""
    versions: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = list(requirements)
    while waiting:
        wanted = Requirement(waiting.pop())
        name = canonicalize_name(wanted.name)
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        try:
            found = distribution(name)
        except PackageNotFoundError:
            sys.exit(f'{name} is not installed; run: python -m pip install -e ".[{",".join(EXTRAS)}]"')
        if not wanted.specifier.contains(found.version, prereleases=True):
            sys.exit(
                f"{name} {found.version} does not satisfy {wanted}; mend the environment or pyproject.toml"
            )
        versions[name] = found.version
        for line in found.requires or []:
            marker = Requirement(line).marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in wanted.extras or {""}):
                waiting.append(line)
    return versions


def lock_text() -> str:
    """The whole file: one pinned package a line, sorted by name."""
    lines = []
    for name, version in sorted(closure(roots()).items()):
        cuda = name.startswith(CUDA_PREFIXES)
        lines.append(f"{name}=={version.split('+')[0]}" + (f" ; {CUDA_MARKER}" if cuda else ""))
    return HEADER + "\n".join(lines) + "\n"


def main() -> None:
    """Write the lock, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when the lock would change"
    )
    arguments = parser.parse_args()
    text = lock_text()
    if arguments.check:
        current = LOCK.read_text(encoding="utf-8") if LOCK.is_file() else ""
        sys.exit(
            0 if text == current else f"{LOCK.name} is not what this environment holds; run without --check"
        )
    LOCK.write_text(text, encoding="utf-8")
    print(f"{LOCK.name}: {sum('==' in line for line in text.splitlines())} packages")


if __name__ == "__main__":
    main()
