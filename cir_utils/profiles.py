"""Profiles: which benchmark, encoder, MLLM, prompt set and settings a run uses.

The values are data, not code: ``profiles.toml`` beside this file holds them with their sources. The tuned
values of the mini benchmarks come from ``mini/settings.json``, which ``cir tune --write`` writes from val
alone.

This module imports nothing heavy, so that a wrong name is reported before any model library is loaded.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cir_utils.errors import InputError
from cir_utils.files import read_json

PACKAGE = Path(__file__).resolve().parent
PROFILES_FILE = PACKAGE / "profiles.toml"
MINI_SETTINGS = PACKAGE / "mini" / "settings.json"
SETTING_NAMES = ("alpha", "beta", "lambda", "k_prime", "kappa")


@dataclass(frozen=True)
class BenchmarkSpec:
    """One benchmark as a profile sees it. The first of ``splits`` is the one reported by default."""

    name: str
    root: Path
    splits: tuple[str, ...]
    settings: dict[str, float | int]
    settings_source: str


@dataclass(frozen=True)
class Profile:
    """A named choice of data and models. ``encoder`` and ``mllm`` are what the loaders of those rooms take;
    ``precision`` and ``preprocessing`` belong to the encoder (see :func:`cir_utils.encoder.load_encoder`)."""

    name: str
    about: str
    encoder: str
    mllm: str
    prompts: str
    shipped: bool
    precision: str = "float32"
    preprocessing: str = "clip"
    benchmarks: dict[str, BenchmarkSpec] = field(default_factory=dict)

    def benchmark(self, name: str) -> BenchmarkSpec:
        """The benchmark called ``name``; :class:`InputError` lists this profile's benchmarks and who else has
        it."""
        if name in self.benchmarks:
            return self.benchmarks[name]
        others = [other for other in profile_names() if name in load_profile(other).benchmarks]
        hint = f"; {name!r} belongs to --profile {' or '.join(others)}" if others else ""
        raise InputError(
            f"unknown benchmark {name!r} in profile {self.name}: choose {choices(self.benchmarks)}{hint}"
        )


def choices(names: Iterable[str]) -> str:
    """Names as a readable list for messages."""
    return ", ".join(names)


def data_dir() -> Path:
    """Where real benchmarks are kept: the environment variable CIR_DATA, else ``data`` in the current
    folder."""
    return Path(os.environ.get("CIR_DATA") or "data")


def default_cache_dir() -> Path:
    """Where features and answers are kept: CIR_CACHE, else ``cir_utils`` in the user's cache folder (XDG)."""
    if os.environ.get("CIR_CACHE"):
        return Path(os.environ["CIR_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cir_utils"


def profile_names() -> tuple[str, ...]:
    return tuple(_table())


def load_profile(name: str) -> Profile:
    """The profile called ``name`` with its paths filled in; :class:`InputError` lists the choices."""
    if name not in _table():
        raise InputError(f"unknown profile {name!r}: choose {choices(profile_names())}")
    table = _table()[name]
    tuned = read_mini_settings() if name == "mini" else {}
    benchmarks = {}
    for bench_name, entry in table["benchmarks"].items():
        settings, source = dict(entry["settings"]), f"profiles.toml, {name}"
        if bench_name in tuned:
            settings.update({key: tuned[bench_name][key] for key in SETTING_NAMES})
            source = f"mini/settings.json, tuned on {tuned[bench_name]['tuned_on']}"
        benchmarks[bench_name] = BenchmarkSpec(
            name=bench_name,
            root=Path(_fill(entry["root"])),
            splits=tuple(entry["splits"]),
            settings=settings,
            settings_source=source,
        )
    return Profile(
        name=name,
        about=table["about"],
        encoder=_fill(table["encoder"]),
        mllm=_fill(table["mllm"]),
        prompts=table["prompts"],
        shipped=table["shipped"],
        precision=table.get("precision", "float32"),
        preprocessing=table.get("preprocessing", "clip"),
        benchmarks=benchmarks,
    )


def check_split(spec: BenchmarkSpec, split: str | None) -> str:
    """``split``, or the default when it is None; :class:`InputError` lists the splits of this benchmark."""
    if split is None:
        return spec.splits[0]
    if split not in spec.splits:
        raise InputError(f"unknown split {split!r} of {spec.name}: choose {choices(spec.splits)}")
    return split


def read_mini_settings(path: Path | None = None) -> dict[str, dict[str, Any]]:
    """The tuned settings by mini benchmark, empty where none were written yet.

    Raises :class:`InputError` for a file that is not what ``cir tune --write`` writes.
    """
    path = MINI_SETTINGS if path is None else path
    if not path.exists():
        return {}
    found = read_json(path, "settings file")
    if not isinstance(found, dict):
        found = {"": None}
    for name, entry in found.items():
        values = entry if isinstance(entry, dict) else {}
        numbers = all(type(values.get(key)) in (int, float) for key in SETTING_NAMES)
        if not numbers or not isinstance(values.get("tuned_on"), str):
            raise InputError(
                f"settings file {path}: {name or 'the top level'} needs numbers {choices(SETTING_NAMES)} "
                "and the text tuned_on; write it again with `cir tune --write`"
            )
    return found


@cache
def _table() -> dict[str, dict[str, Any]]:
    with open(PROFILES_FILE, "rb") as stream:
        return tomllib.load(stream)


def _fill(text: str) -> str:
    return text.replace("{package}", str(PACKAGE)).replace("{data}", str(data_dir()))
