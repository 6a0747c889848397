"""``cir doctor``: can this profile run here? Each line says OK, or what to do.

Nothing is downloaded and nothing long is started: shipped files are checked by their checksums, hub models by
looking into the local cache, real data by reading the annotations."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cir_utils import __version__
from cir_utils.errors import InputError
from cir_utils.profiles import PACKAGE, Profile, default_cache_dir, load_profile

NOTEBOOK_MODULES = ("papermill", "nbformat", "nbconvert", "ipykernel")
#: Free room below which a cache folder is called too small, in bytes.
ROOM = 500_000_000


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, whether it is as needed, what was found, and what to do where it is
    not."""

    name: str
    ok: bool
    found: str
    mend: str = ""


def check(
    profile: str, device: str = "auto", cache_dir: Path | None = None, mllm: str | None = None
) -> list[Check]:
    """All checks for ``profile`` (with ``mllm`` in the place of its own); it can run when every one is
    ``ok``. Raises :class:`InputError` for an unknown profile alone: everything else that is wrong becomes a
    line."""
    chosen = load_profile(profile)
    served = (mllm or chosen.mllm).startswith("server:")
    checks = [_python(), *_packages(), _try("device", lambda: _device(device), "name another --device")]
    checks += [_encoder(chosen), _server(mllm or chosen.mllm) if served else _mllm(chosen, mllm)]
    checks.append(_prompts(chosen))
    checks += [
        _try(f"data of {name}", lambda name=name: _data(chosen, name), "see the message")  # type: ignore[misc]
        for name in chosen.benchmarks
    ]
    return [*checks, _cache(cache_dir or default_cache_dir()), _notebooks()]


def describe(profile: str, checks: list[Check]) -> str:
    """The checks for the terminal."""
    width = max(len(check.name) for check in checks)
    lines = [f"cir_utils {__version__}, profile {profile}"]
    for check in checks:
        lines.append(f"{'OK  ' if check.ok else 'FAIL'}  {check.name.ljust(width)}  {check.found}")
        if check.mend:
            lines.append(f"{'':6}{'':{width}}  -> {check.mend}")
    bad = sum(not check.ok for check in checks)
    lines.append(
        f"profile {profile} can run" if not bad else f"profile {profile} cannot run yet: {bad} to mend"
    )
    return "\n".join(lines)


def as_dict(profile: str, checks: list[Check]) -> dict[str, Any]:
    """The checks for JSON."""
    return {
        "profile": profile,
        "ok": all(check.ok for check in checks),
        "checks": [asdict(check) for check in checks],
    }


def _try(name: str, look: Callable[[], str], mend: str) -> Check:
    """A check that is a function: what it returns was found, an :class:`InputError` is what is wrong."""
    try:
        return Check(name, True, look())
    except InputError as error:
        found, _, advice = str(error).partition("; ")
        return Check(name, False, found, advice or mend)


def _python() -> Check:
    ok = sys.version_info >= (3, 11)
    return Check("Python", ok, platform.python_version(), "" if ok else "install Python 3.11 or newer")


def _packages() -> list[Check]:
    """The packages that this one requires (without extras) are installed in versions that it accepts."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = [Requirement(text) for text in _required() if "extra ==" not in text]
    except (PackageNotFoundError, InvalidRequirement):
        return [
            Check("packages", False, "cir_utils is not installed", "run `make setup`, or `pip install -e .`")
        ]
    bad = []
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            have = version(requirement.name)
        except PackageNotFoundError:
            bad.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(have, prereleases=True):
            bad.append(f"{requirement.name} {have} is not {requirement.specifier}")
    mend = "run `make setup`, or `pip install -r requirements.lock`"
    return [Check("packages", not bad, "; ".join(bad) or f"{len(wanted)} as required", mend if bad else "")]


def _required() -> list[str]:
    """What the installed package requires; in a checkout that is not installed, what its project file
    says."""
    try:
        return requires("cir-utils") or []
    except PackageNotFoundError:
        project = PACKAGE.parent / "pyproject.toml"
        if not project.is_file():
            raise
        return tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]


def _device(device: str) -> str:
    import torch

    from cir_utils.device import resolve_device

    where = resolve_device(device)
    if where.type == "cuda":
        return f"{where}, {torch.cuda.get_device_name(where)}, torch {torch.__version__}"
    return f"{where}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _encoder(profile: Profile) -> Check:
    name = f"CLIP {profile.encoder if not profile.shipped else 'mini-clip'}"
    if profile.shipped:
        return _try(name, lambda: _shipped(Path(profile.encoder.partition(":")[2])), "reinstall cir_utils")
    import open_clip
    from huggingface_hub import try_to_load_from_cache

    architecture, _, tag = profile.encoder.partition(":")
    row = open_clip.get_pretrained_cfg(architecture, tag)
    if not row:
        return Check(name, False, "open_clip does not know it", "see open_clip.list_pretrained()")
    repo = str(row.get("hf_hub", "")).strip("/")
    there = repo and isinstance(try_to_load_from_cache(repo, "open_clip_model.safetensors"), str)
    if there:
        return Check(name, True, "in the local cache")
    return Check(
        name,
        False,
        "its weights are not in the local cache",
        f"fetch them: hf download {repo} open_clip_model.safetensors",
    )


def _mllm(profile: Profile, other: str | None) -> Check:
    if other is not None and Path(other).is_dir():
        return _try(f"MLLM {other}", lambda: _folder(other), "see the message")
    name = f"MLLM {other or ('mini-vlm' if profile.shipped else profile.mllm)}"
    if other is None and (profile.shipped or Path(profile.mllm).is_dir()):
        return _try(name, lambda: _shipped(Path(profile.mllm)), "reinstall cir_utils")
    from huggingface_hub import try_to_load_from_cache

    repo, _, revision = (other or profile.mllm).partition("@")
    if isinstance(try_to_load_from_cache(repo, "config.json", revision=revision or None), str):
        return Check(name, True, "in the local cache")
    return Check(name, False, "its weights are not in the local cache", f"fetch them: hf download {repo}")


def _folder(spec: str) -> str:
    from cir_utils.mllm import locate

    locate(spec)
    return "has configuration and weights"


def _server(spec: str) -> Check:
    """Whether the server's settings are right and it answers, within a few seconds; no question is asked."""
    from cir_utils.mllm_server import ServerMLLM

    mend = ""

    def look() -> str:
        nonlocal mend
        mllm = ServerMLLM(spec)
        key = f"key from {mllm.settings.key_variable}"
        if not mllm.settings.key.get_secret_value():
            key = f"no key ({mllm.settings.key_variable} is not set; servers of one's own need none)"
        listed = mllm.models()
        if mllm.model not in listed:
            mend = f"it does not list {mllm.model}; it lists {', '.join(listed[:5]) or 'nothing'}"
        return f"{mllm.settings.url} answers, {key}"

    found = _try(f"MLLM {spec}", look, "see docs/servers.md")
    return Check(found.name, True, found.found, mend) if found.ok else found


def _shipped(folder: Path) -> str:
    from cir_utils.workbench import verify_shipped

    verify_shipped([folder])
    return "checksums right"


def _prompts(profile: Profile) -> Check:
    from cir_utils.prompts import SLOTS, load_prompt

    def look() -> str:
        for name in SLOTS:
            load_prompt(profile.prompts, name)
        return f"{len(SLOTS)} prompts"

    return _try(f"prompts {profile.prompts}", look, "reinstall cir_utils")


def _data(profile: Profile, name: str) -> str:
    from cir_utils.benchmarks import BENCHMARKS, load_benchmark
    from cir_utils.workbench import verify_shipped

    spec = profile.benchmark(name)
    if name not in BENCHMARKS:
        raise InputError(f"{name} cannot be read by this version; choose {', '.join(BENCHMARKS)}")
    if profile.shipped:
        verify_shipped([spec.root])
    found = []
    for split in spec.splits:
        benchmark = load_benchmark(name, split, spec.root)
        found.append(f"{split} {len(benchmark.queries):,} queries")
        size = len(benchmark.gallery)
    return f"{', '.join(found)}, gallery {size:,}"


def _cache(folder: Path) -> Check:
    from cir_utils.response_cache import ResponseCache
    from cir_utils.workbench import ANSWERS

    name = "cache"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(
            name, False, f"{folder} cannot be written ({error.strerror})", "name another with CIR_CACHE"
        )
    if free < ROOM:
        return Check(
            name, False, f"{folder} has {free // 10**6} MB left", "make room, or name another with CIR_CACHE"
        )

    def look() -> str:
        counts = {"answers": 0, "verdicts": 0}
        if (folder / ANSWERS).exists():
            with ResponseCache(folder / ANSWERS) as cache:
                counts = cache.counts()
        stored = f"{counts['answers']:,} answers, {counts['verdicts']:,} verdicts"
        return f"{folder}: {stored}, {free // 10**9} GB free"

    return _try(name, look, "move the file away")


def _notebooks() -> Check:
    """Needed for ``cir tutorial`` alone, so their absence does not stop a profile."""
    missing = [module for module in NOTEBOOK_MODULES if find_spec(module) is None]
    if missing:
        return Check("notebooks", True, f"{', '.join(missing)} not installed: no `cir tutorial`",
                     "pip install 'cir-utils[notebooks]'")  # fmt: skip
    return Check("notebooks", True, "can be run")
