"""``cir doctor``: can this profile run here? Each line says OK, or the command that mends it.

Nothing is downloaded and no model is loaded: shipped files are checked by their checksums, hub models by
looking into the local cache, real data by what `data_scripts/check_data.py` says of their folders (the files'
heads are read: minutes at most for COCO's 123,403 pictures). What is large and not there yet must also have
room on the disk."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from cir_utils import __version__, profiles
from cir_utils.errors import InputError
from cir_utils.profiles import (
    PACKAGE,
    BenchmarkSpec,
    Profile,
    choose,
    data_dir,
    default_cache_dir,
    load_profile,
)

NOTEBOOK_MODULES = ("papermill", "nbformat", "nbconvert", "ipykernel")
#: Free room below which a cache folder is called too small, in bytes.
ROOM = 500_000_000
GB = 10**9
#: What `data_scripts/fetch_data.py` needs beside the package's own requirements (the extra "data").
DATA_MODULES = ("pooch", "requests")
#: An MLLM of this form is served elsewhere: no weights and no GPU are needed here.
SERVED = "server:"
#: One of this form is not there at all: its answers are in the response cache.
REPLAYED = "replay:"
#: The part of the named memory that counts as enough: machines of 8 GB report less.
ENOUGH = 0.9


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, whether it is as needed, what was found, and what to do where it is
    not."""

    name: str
    ok: bool
    found: str
    mend: str = ""


def check(
    profile: str,
    device: str = "auto",
    cache_dir: Path | None = None,
    encoder: str | None = None,
    mllm: str | None = None,
) -> list[Check]:
    """All checks for ``profile``, with ``encoder`` and ``mllm`` in the place of its own where given; it can
    run when every one is ``ok``. Raises :class:`InputError` for an unknown profile alone: everything else
    that is wrong becomes a line."""
    chosen = choose(load_profile(profile), encoder=encoder, mllm=mllm)
    checks = [_python(), *_packages(), _try("device", lambda: _device(device), "name another --device")]
    checks += _memory(chosen, device)
    models = [_encoder(chosen), _mllm(chosen, cache_dir or default_cache_dir())]
    data = [_data_check(chosen, spec) for spec in chosen.benchmarks.values()]
    checks += [*models, _prompts(chosen), *data]
    if not chosen.shipped:
        if not all(one.ok for one in models):
            checks.append(
                _room("room for weights", _hub_cache(), chosen.needs.get("weights_gb", 0), "HF_HOME")
            )
        if not all(one.ok for one in data):
            checks += [
                _fetching(),
                _room("room for data", data_dir(), chosen.needs.get("data_gb", 0), "CIR_DATA"),
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
    bad, mend = [], []
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            have = version(requirement.name)
        except PackageNotFoundError:
            bad.append(f"{requirement.name} is missing")
            mend.append(requirement)
            continue
        if not requirement.specifier.contains(have, prereleases=True):
            bad.append(f"{requirement.name} {have} is not {requirement.specifier}")
            mend.append(requirement)
    names = " ".join(shlex.quote(f"{one.name}{one.specifier}") for one in mend)
    advice = f"pip install {names} (or all as tested: pip install -r requirements.lock)" if mend else ""
    return [Check("packages", not bad, "; ".join(bad) or f"{len(wanted)} as required", advice)]


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


def _memory(profile: Profile, device: str) -> list[Check]:
    """The machine's and the GPU's memory against what the profile needs, where it says so."""
    checks = []
    if need := profile.needs.get("memory_gb"):
        have = _physical_memory()
        ok = have is None or have >= ENOUGH * need * GB
        found = "cannot be told" if have is None else f"{have / GB:.0f} GB, {need:g} GB needed"
        mend = f"run on a machine with {need:g} GB, or name smaller models with --encoder and --mllm"
        checks.append(Check("memory", ok, found, "" if ok else mend))
    if (need := profile.needs.get("gpu_gb")) and not profile.mllm.startswith((SERVED, REPLAYED)):
        have = _gpu_memory(device)
        ok = have >= ENOUGH * need * GB
        found = f"{have / GB:.0f} GB, {need:g} GB needed for {profile.mllm}" if have else "no GPU is here"
        mend = f"run on a machine with a GPU of {need:g} GB, or name a smaller or a served MLLM with --mllm"
        checks.append(Check("GPU memory", ok, found, "" if ok else mend))
    return checks


def _physical_memory() -> int | None:
    """The machine's memory in bytes; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _gpu_memory(device: str) -> int:
    """The memory of the GPU that ``device`` names, in bytes; 0 for the CPU and a device that is not there."""
    import torch

    from cir_utils.device import resolve_device

    try:
        where = resolve_device(device)
    except InputError:  # said in the line of the device
        return 0
    return int(torch.cuda.get_device_properties(where).total_memory) if where.type == "cuda" else 0


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _room(name: str, folder: Path, need: float, variable: str) -> Check:
    """Free bytes where ``folder`` is or will be."""
    place = next(part for part in (folder.resolve(), *folder.resolve().parents) if part.exists())
    free = shutil.disk_usage(place).free
    found = f"{free / GB:.0f} GB free in {folder}, up to {need:g} GB needed"
    if free >= need * GB:
        return Check(name, True, found)
    return Check(
        name, False, found, f"make room, or name a folder on another disk: export {variable}=/FOLDER"
    )


def _encoder(profile: Profile) -> Check:
    kind, _, folder = profile.encoder.partition(":")
    shipped = Path(folder).is_relative_to(profiles.PACKAGE)
    name = f"CLIP {Path(folder).name if shipped else profile.encoder}"
    if kind == "local-dir":
        return _folder(name, Path(folder), "open_clip_config.json", "open_clip_*.*", "--encoder")
    import open_clip
    from huggingface_hub import try_to_load_from_cache

    from cir_utils.encoder import WEIGHTS

    architecture, _, tag = profile.encoder.partition(":")
    row = open_clip.get_pretrained_cfg(architecture, tag)
    if not row:
        return Check(name, False, "open_clip does not know it",
                     'python -c "import open_clip; print(open_clip.list_pretrained())"')  # fmt: skip
    repo = str(row.get("hf_hub", "")).strip("/")
    if not repo:  # open_clip fetches these by address, as pickles, which the encoder refuses
        return Check(
            name, False, "its weights are not on the Hugging Face hub", "choose others with --encoder"
        )
    if any(isinstance(try_to_load_from_cache(repo, file), str) for file in WEIGHTS):
        return Check(name, True, "in the local cache")
    fetch = f"hf download {repo} {WEIGHTS[0]}"
    return Check(name, False, "its weights are not in the local cache", f"fetch them: {fetch}")


def _mllm(profile: Profile, cache_dir: Path) -> Check:
    folder = Path(profile.mllm)
    shipped = folder.is_relative_to(profiles.PACKAGE)
    name = f"MLLM {folder.name if shipped else profile.mllm}"
    if shipped or folder.is_dir():
        return _folder(name, folder, "config.json", "*.safetensors", "--mllm")
    if profile.mllm.startswith(SERVED):
        return _server(profile.mllm)
    if profile.mllm.startswith(REPLAYED):
        return _replay(profile.mllm, cache_dir)
    repo, _, revision = profile.mllm.partition("@")
    if not re.fullmatch(r"[\w][\w.-]*/[\w][\w.-]*", repo):
        return Check(name, False, "neither a folder nor a hub id", "name a folder or owner/name with --mllm")
    missing = _missing_weights(repo, revision or None)
    if not missing:
        return Check(name, True, "in the local cache")
    found = "its weights are not in the local cache"
    if missing != ["config.json"]:
        found += f": {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''} of a download that was cut"
    version = f" --revision {revision}" if revision else ""
    return Check(name, False, found, f"fetch them: hf download {repo}{version}")


def _missing_weights(repo: str, revision: str | None) -> list[str]:
    """The files of a hub model without which it cannot be loaded and that the local cache does not hold;
    ``config.json`` alone where it holds nothing."""
    from huggingface_hub import try_to_load_from_cache

    def cached(file: str) -> str | None:
        found = try_to_load_from_cache(repo, file, revision=revision)
        return found if isinstance(found, str) else None

    if cached("config.json") is None:
        return ["config.json"]
    index = cached("model.safetensors.index.json")
    try:
        shards = json.loads(Path(index).read_text("utf-8"))["weight_map"].values() if index else ()
    except (OSError, ValueError, KeyError, AttributeError):
        return ["model.safetensors.index.json"]
    return [file for file in dict.fromkeys(shards or ("model.safetensors",)) if cached(file) is None]


def _folder(name: str, folder: Path, config: str, weights: str, option: str) -> Check:
    """A model in a folder: shipped ones by their checksums, others by the files that they must have."""
    if folder.is_relative_to(profiles.PACKAGE):
        return _try(name, lambda: _shipped(folder), "reinstall cir_utils")
    missing = [what for what, there in (
        (config, (folder / config).is_file()),
        (weights, any(path.name != config for path in folder.glob(weights))),
    ) if not there]  # fmt: skip
    if missing:
        return Check(name, False, f"{folder} has no {' and no '.join(missing)}",
                     f"name the folder of a whole model with {option}")  # fmt: skip
    return Check(name, True, f"in {folder}")


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


def _replay(spec: str, cache_dir: Path) -> Check:
    """Whether the response cache has answers of the model; not whether it has all that a run asks for."""
    from cir_utils.cache import survey

    model = spec.removeprefix(REPLAYED)
    responses = survey(cache_dir)["responses"] if cache_dir.is_dir() else None
    models = responses["models"] if responses else {}
    if model in models:
        counts = ", ".join(f"{count:,} {table}" for table, count in models[model].items())
        return Check(f"MLLM {spec}", True, f"{counts} in {cache_dir}")
    held = ", ".join(name or "models that were not noted" for name in models) or "none"
    found = f"{cache_dir} has no answers of it; it has those of: {held}"
    return Check(f"MLLM {spec}", False, found, "cir cache import FILE, or name one of those")


def _shipped(folder: Path) -> str:
    from cir_utils.workbench import verify_shipped

    verify_shipped([folder])
    return "checksums right"


def _prompts(profile: Profile) -> Check:
    from cir_utils.benchmarks import BENCHMARKS
    from cir_utils.prompts import DOMAINS, load_prompt, prompts_of

    def look() -> str:
        families = [BENCHMARKS[name].family for name in profile.benchmarks]
        domains = list(dict.fromkeys(DOMAINS[family] for family in families))
        for domain in domains:
            for name in prompts_of(profile.prompts):
                load_prompt(profile.prompts, name, domain)
        return f"{len(prompts_of(profile.prompts))} prompts, worded for {' and '.join(domains)}"

    return _try(f"prompts {profile.prompts}", look, "reinstall cir_utils")


def _data_check(profile: Profile, spec: BenchmarkSpec) -> Check:
    """Whether ``cir run`` finds the queries and all pictures of a benchmark."""
    name = f"data of {spec.name}"
    root = shlex.quote(str(spec.root))
    fetch = " && ".join(f"python -m data_scripts.fetch_data {one} --root {root}" for one in spec.fetch)
    looker = None if profile.shipped else _check_data()
    if looker is None or spec.name not in looker.PUBLISHED:
        read = _try(name, lambda: _data(profile, spec), fetch or "see the message")
        return Check(name, False, read.found, fetch) if fetch and not read.ok else read
    if not spec.root.is_dir():
        found, ok, lacking = [f"the folder {spec.root} does not exist"], False, False
    else:
        found, ok, lacking = _looked(looker, spec)
    again = f"python data_scripts/check_data.py {spec.name} --split {spec.splits[0]} --root {root}"
    mend = f"{fetch or 'put the files there'}; look again: {again}"
    if lacking:
        mend += "; or leave them out: cir run ... --missing leave-out"
    return Check(name, ok, " | ".join(found), "" if ok else mend)


def _looked(looker: Any, spec: BenchmarkSpec) -> tuple[list[str], bool, bool]:
    """What `check_data` says of every split, whether all can be used as they are, and whether pictures are
    missing or damaged. A part of what was published counts as usable, and is said to be a part."""
    found, ok, lacking = [], True, False
    for split in spec.splits:
        report = looker.check(spec.name, split, spec.root)
        said = [text.partition("; fetch it")[0] for text in report.unusable]
        if report.faults:
            said.append(f"{len(report.faults):,} of {report.gallery:,} pictures are missing or damaged")
        ok, lacking = ok and not said, lacking or bool(report.faults)
        usable = [f"{report.queries:,} queries, gallery {report.gallery:,}", *report.incomplete]
        found.append(f"{split}: {'; '.join(said or usable)}")
    return found, ok, lacking


def _check_data() -> Any:
    """The module `data_scripts/check_data.py` of the checkout; None for a package installed without it."""
    path = PACKAGE.parent / "data_scripts" / "check_data.py"
    spec = spec_from_file_location("cir_check_data", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    vars(module)["look"] = cache(module.look)  # both splits of CIRCO have one gallery: opened once
    return module


def _data(profile: Profile, spec: BenchmarkSpec) -> str:
    from cir_utils.benchmarks import BENCHMARKS, load_benchmark
    from cir_utils.workbench import verify_shipped

    if spec.name not in BENCHMARKS:
        raise InputError(f"{spec.name} cannot be read by this version; choose {', '.join(BENCHMARKS)}")
    if profile.shipped:
        verify_shipped([spec.root])
    found = []
    for split in spec.splits:
        benchmark = load_benchmark(spec.name, split, spec.root)
        found.append(f"{split} {len(benchmark.queries):,} queries")
        size = len(benchmark.gallery)
    return f"{', '.join(found)}, gallery {size:,}"


def _fetching() -> Check:
    """What the scripts that fetch data need: looked at where data is missing."""
    missing = [module for module in DATA_MODULES if find_spec(module) is None]
    if missing:
        return Check("fetching data", False, f"{', '.join(missing)} not installed",
                     "pip install 'cir-utils[data]'")  # fmt: skip
    if _check_data() is None:
        return Check("fetching data", False, "data_scripts is not here",
                     "run in a checkout of the repository")  # fmt: skip
    return Check("fetching data", True, f"can be run, in {PACKAGE.parent}")


def _cache(folder: Path) -> Check:
    from cir_utils.response_cache import ANSWERS, ResponseCache

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
