"""Profiles: which benchmark, encoder, MLLM, prompt set and settings a run uses.

The values are data, not code: ``profiles.toml`` beside this file holds them with their sources. The tuned
values of the mini benchmarks come from ``mini/settings.json``, which ``cir tune --write`` writes from val
alone.

This module imports nothing heavy, so that a wrong name is reported before any model library is loaded.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from cir_utils.errors import InputError
from cir_utils.files import read_json
from cir_utils.methods import SETTINGS
from cir_utils.prompts import ALL_SLOTS, load_prompt

PACKAGE = Path(__file__).resolve().parent
PROFILES_FILE = PACKAGE / "profiles.toml"
MINI_SETTINGS = PACKAGE / "mini" / "settings.json"
SETTING_NAMES = ("alpha", "beta", "lambda", "k_prime", "kappa", "weight_text", "weight_vision")
#: The numbers that other methods take. A profile may give them; where it does not, their own defaults hold.
OTHER_NAMES = tuple(
    name for name, setting in SETTINGS.items() if not setting.choices and name not in SETTING_NAMES
)
#: The keys of `profiles.toml` by table: those that must be there, and those that may be.
KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "profile": (
        ("about", "encoder", "mllm", "prompts", "shipped", "benchmarks"),
        (
            "precision",
            "preprocessing",
            "temperature",
            "seed",
            "max_tokens",
            "repetition_penalty",
            "needs",
        ),
    ),
    "benchmark": (("root", "splits", "settings"), ("fetch",)),
    "settings": ((), (*SETTING_NAMES, *OTHER_NAMES)),
    "max_tokens": ((), ("other", *ALL_SLOTS)),
    "repetition_penalty": ((), tuple(ALL_SLOTS)),
    "needs": ((), ("memory_gb", "gpu_gb", "data_gb", "weights_gb")),
}
#: What a run may choose otherwise than its profile, beside the settings of its method.
CHOICES = (
    "encoder", "precision", "preprocessing", "mllm", "prompts", "temperature", "seed", "max_tokens",
)  # fmt: skip
GIVEN = "given for this run"


@dataclass(frozen=True)
class BenchmarkSpec:
    """One benchmark as a profile sees it. The first of ``splits`` is the one reported by default."""

    name: str
    root: Path
    splits: tuple[str, ...]
    settings: dict[str, float | int]
    settings_source: str
    fetch: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile:
    """A named choice of data and models. ``encoder`` and ``mllm`` are what the loaders of those rooms take;
    ``precision`` and ``preprocessing`` belong to the encoder (see :func:`cir_utils.encoder.load_encoder`).

    ``temperature`` (0 is greedy) and ``seed`` hold for every agent but the dense captioner, which samples;
    ``max_tokens`` limits the answers by agent ("other": all that are not named), in tokens; who is in neither
    keeps the limit of ``cir_utils.agents``. ``repetition_penalty`` is by agent too, 1 (none) for those that
    it does not name. ``needs`` are rough sizes in GB that ``cir doctor`` looks for.
    ``sources`` says of each of :data:`CHOICES`, and of the penalty, where its value comes from."""

    name: str
    about: str
    encoder: str
    mllm: str
    prompts: str
    shipped: bool
    precision: str = "float32"
    preprocessing: str = "clip"
    benchmarks: dict[str, BenchmarkSpec] = field(default_factory=dict)
    temperature: float = 0.0
    seed: int = 42
    max_tokens: dict[str, int] = field(default_factory=dict)
    repetition_penalty: dict[str, float] = field(default_factory=dict)
    needs: dict[str, float] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

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
    return tuple(name for name in _table() if name != "published")


def published(method: str) -> dict[str, Any]:
    """What the paper of ``method`` states (table ``published`` of `profiles.toml`): models, generation,
    settings by benchmark, and the source. Empty for methods without a paper here."""
    return dict(_table().get("published", {}).get(method, {}))


def published_for(method: str, benchmark: str) -> dict[str, Any]:
    """The part of :func:`published` that speaks of ``benchmark``, for a run record: ``settings`` for it, and
    all that holds for every benchmark. Empty where nothing was published."""
    row = published(method)
    settings = row.pop("settings", {})
    return {**row, "settings": settings[benchmark]} if benchmark in settings else {}


def load_profile(name: str) -> Profile:
    """The profile called ``name`` with its paths filled in; :class:`InputError` lists the choices."""
    if name not in profile_names():
        raise InputError(f"unknown profile {name!r}: choose {choices(profile_names())}")
    table = _table()[name]
    _check_keys("profile", table, name)
    for part in ("max_tokens", "repetition_penalty", "needs"):
        _check_keys(part, table.get(part, {}), f"{name}.{part}")
    tuned = read_mini_settings() if name == "mini" else {}
    benchmarks = {}
    for bench_name, entry in table["benchmarks"].items():
        _check_keys("benchmark", entry, f"{name}.benchmarks.{bench_name}")
        _check_keys("settings", entry["settings"], f"{name}.benchmarks.{bench_name}.settings")
        settings, source = dict(entry["settings"]), f"profiles.toml, {name}"
        if bench_name in tuned:
            chosen = tuned[bench_name]
            settings.update({key: chosen[key] for key in (*SETTING_NAMES, *OTHER_NAMES) if key in chosen})
            source = f"mini/settings.json, tuned on {tuned[bench_name]['tuned_on']}"
        benchmarks[bench_name] = BenchmarkSpec(
            name=bench_name,
            root=Path(_fill(entry["root"])),
            splits=tuple(entry["splits"]),
            settings=settings,
            settings_source=source,
            fetch=tuple(entry.get("fetch", ())),
        )
    origin = f"profiles.toml, {name}"
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
        temperature=float(table.get("temperature", 0.0)),
        seed=table.get("seed", 42),
        max_tokens=dict(table.get("max_tokens", {})),
        repetition_penalty=dict(table.get("repetition_penalty", {})),
        needs=dict(table.get("needs", {})),
        sources={
            key: origin if key in table else "default of cir_utils"
            for key in (*CHOICES, "repetition_penalty")
        },
    )


def choose(
    profile: Profile,
    *,
    encoder: str | None = None,
    precision: str | None = None,
    preprocessing: str | None = None,
    mllm: str | None = None,
    prompts: str | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    max_tokens: int | Mapping[str, int] | None = None,
) -> Profile:
    """``profile`` with what is given for one run put in the place of its own choices (None keeps them), and
    ``sources`` saying so. One number as ``max_tokens`` holds for all agents.

    Raises :class:`InputError` for an unknown prompt set or agent and a number out of its range.
    """
    if isinstance(max_tokens, int):
        max_tokens = {"other": max_tokens}
    elif max_tokens is not None:
        max_tokens = {**profile.max_tokens, **max_tokens}
    offered = (encoder, precision, preprocessing, mllm, prompts, temperature, seed, max_tokens)
    given: dict[str, Any] = {
        key: value for key, value in zip(CHOICES, offered, strict=True) if value is not None
    }
    if prompts is not None:
        load_prompt(prompts, "caption")
    if temperature is not None and not 0 <= temperature <= 2:
        raise InputError(f"temperature {temperature:g} is not valid: give a number from 0 (greedy) to 2")
    if seed is not None and not 0 <= seed < 2**63:
        raise InputError(f"seed {seed} is not valid: give a whole number from 0 to 2^63 - 1")
    for agent, limit in given.get("max_tokens", {}).items():
        if agent != "other" and agent not in ALL_SLOTS:
            raise InputError(
                f"max_tokens names an unknown agent {agent!r}: choose other, {choices(ALL_SLOTS)}"
            )
        if limit < 1:
            raise InputError(f"max_tokens {limit} is not valid: give a whole number of tokens, 1 or more")
    return replace(profile, **given, sources={**profile.sources, **dict.fromkeys(given, GIVEN)})


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


def _check_keys(kind: str, table: Mapping[str, Any], where: str) -> None:
    """:class:`InputError` for a key that a table of `profiles.toml` does not have or lacks."""
    needed, allowed = KEYS[kind]
    unknown = [key for key in table if key not in (*needed, *allowed)]
    missing = [key for key in needed if key not in table]
    if unknown or missing:
        fault = f"unknown key {unknown[0]!r}" if unknown else f"missing key {missing[0]!r}"
        raise InputError(
            f"{PROFILES_FILE.name}, [{where}]: {fault}; its keys are {choices(needed + allowed)}"
        )


@cache
def _table() -> dict[str, dict[str, Any]]:
    with open(PROFILES_FILE, "rb") as stream:
        return tomllib.load(stream)


def _fill(text: str) -> str:
    return text.replace("{package}", str(PACKAGE)).replace("{data}", str(data_dir()))
