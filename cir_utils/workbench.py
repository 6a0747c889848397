"""The workbench of a run: one benchmark with its models, each made on first use and then shared.

Methods take a :class:`Workbench` and nothing else from the outside world, so that six methods on one
benchmark read the gallery once, load each model once, and a method without an MLLM never loads one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cir_utils.agents import Agents, Cost
from cir_utils.benchmarks import Benchmark, ImageId, Query, load_benchmark
from cir_utils.device import resolve_device
from cir_utils.encoder import LOCAL, ClipEncoder, load_encoder
from cir_utils.errors import InputError
from cir_utils.feature_store import image_features, text_features
from cir_utils.files import MANIFEST, sha256_file, verify_manifest
from cir_utils.methods import SETTINGS, SettingValue
from cir_utils.mllm import LocalMLLM
from cir_utils.profiles import PACKAGE, check_split, default_cache_dir, load_profile
from cir_utils.prompts import SLOTS, load_prompt
from cir_utils.response_cache import ResponseCache
from cir_utils.scoring import rank_by

ANSWERS = "answers.sqlite"
#: How many of a query's first results its trace shows with their scores.
TRACE_TOP = 10


@dataclass
class MethodOutput:
    """What a method returns. ``rankings`` holds, for every query id, all gallery ids, best first.

    ``traces`` has one dictionary a query: what every agent said, and what was done with it. ``counts`` are
    numbers about the run that belong in its record (cut texts, vague queries, ...); ``notes`` are sentences
    for its reader."""

    rankings: dict[str, list[ImageId]]
    traces: list[dict[str, Any]]
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Texts:
    """Encoded texts: ``features`` ``(n, D)`` float32 of unit length on the workbench's device; per text
    whether CLIP's context ``cut`` it, and the words that the tokenizer did not know."""

    features: Tensor
    cut: list[bool]
    unknown: list[list[str]]


class Workbench:
    """Benchmark, encoder, gallery features and agents of a run, made when first asked for.

    ``queries`` are the benchmark's, cut to ``limit``. All features are float32, of unit length, on
    ``device``. ``seconds`` holds the time spent in each stage since :meth:`start`, ``caches`` the sentences
    of the rooms that reuse stored results."""

    def __init__(
        self,
        benchmark: Benchmark,
        *,
        profile: str,
        encoder: str,
        mllm: str,
        prompts: str,
        settings: dict[str, float | int],
        settings_source: str,
        device: torch.device,
        cache_dir: Path,
        limit: int | None = None,
    ) -> None:
        if limit is not None and limit < 1:
            raise InputError(f"limit {limit} is not valid: give a number of queries, 1 or more")
        self.benchmark = benchmark
        self.profile = profile
        self.encoder_spec = encoder
        self.mllm_spec = mllm
        self.prompts = prompts
        self.settings = dict(settings)
        self.settings_source = settings_source
        self.device = device
        self.cache_dir = Path(cache_dir)
        self.queries: tuple[Query, ...] = benchmark.queries[:limit]
        self.seconds: dict[str, float] = {}
        self.caches: list[str] = []
        self._spent: dict[str, int] = {}
        self._texts: dict[str, tuple[Tensor, bool, list[str]]] = {}

    # --- models and features, made once
    # --------------------------------------------------------------------------

    @cached_property
    def encoder(self) -> ClipEncoder:
        with self.stage("loading models"):
            return load_encoder(self.encoder_spec, self.device)

    @cached_property
    def agents(self) -> Agents:
        with self.stage("loading models"):
            mllm = LocalMLLM(self.mllm_spec, self.device)
            return Agents(mllm, ResponseCache(self.cache_dir / ANSWERS), self.prompts)

    @cached_property
    def gallery_paths(self) -> list[Path]:
        return [self.benchmark.image_path(image) for image in self.benchmark.gallery]

    @cached_property
    def reference_paths(self) -> list[Path]:
        return [self.benchmark.image_path(query.reference) for query in self.queries]

    @cached_property
    def gallery_features(self) -> Tensor:
        """``I_a`` as CLIP sees it: ``(N, D)``, in gallery order."""
        return self._image_features(self.benchmark.gallery)

    @cached_property
    def reference_features(self) -> Tensor:
        """``F_r``: ``(Q, D)``."""
        places = {image: place for place, image in enumerate(self.benchmark.gallery)}
        references = [query.reference for query in self.queries]
        if all(reference in places for reference in references):
            return self.gallery_features[[places[reference] for reference in references]]
        return self._image_features(references)

    @cached_property
    def modification_features(self) -> Tensor:
        """``F_m``: ``(Q, D)``."""
        return self.encode_texts(self.texts).features

    @property
    def texts(self) -> list[str]:
        """The modification texts ``T_m``, in query order."""
        return [query.text for query in self.queries]

    def encode_texts(self, texts: Sequence[str]) -> Texts:
        """CLIP features of ``texts``, each text encoded once and kept on disk."""
        encoder = self.encoder
        new = [text for text in dict.fromkeys(texts) if text not in self._texts]
        if new:
            with self.stage("encoding texts"):
                found = text_features(encoder, new, self.cache_dir, say=self.caches.append)
            self._texts.update(
                zip(new, zip(found.features, found.cut, found.unknown, strict=True), strict=True)
            )
        rows = [self._texts[text] for text in texts]
        features = (
            torch.stack([row[0] for row in rows])
            if rows
            else torch.empty(0, encoder.width, device=self.device)
        )
        return Texts(features.to(self.device), [row[1] for row in rows], [row[2] for row in rows])

    def _image_features(self, images: Sequence[ImageId]) -> Tensor:
        encoder = self.encoder
        paths = [self.benchmark.image_path(image) for image in images]
        with self.stage("encoding pictures"):
            return image_features(encoder, images, paths, self.cache_dir, say=self.caches.append).to(
                self.device
            )

    # --- what methods return
    # -------------------------------------------------------------------------------------

    def plain_traces(self) -> list[dict[str, Any]]:
        """The beginning of every query's trace: query id, reference id, modification text."""
        return [
            {"query": query.id, "reference": query.reference, "text": query.text} for query in self.queries
        ]

    def output(
        self,
        scores: Tensor,
        traces: list[dict[str, Any]],
        order: Tensor | None = None,
        counts: dict[str, int] | None = None,
        notes: list[str] | None = None,
    ) -> MethodOutput:
        """Rankings by ``scores`` ``(Q, N)``, ties by gallery order; or by ``order`` ``(Q, N)`` where that is
        given.

        The first results with their scores are added to the traces under ``top``.
        """
        order = rank_by(scores) if order is None else order
        gallery = self.benchmark.gallery
        best = scores.gather(1, order[:, :TRACE_TOP]).tolist()
        rankings = {}
        for query, trace, row, values in zip(self.queries, traces, order, best, strict=True):
            rankings[query.id] = [gallery[place] for place in row.tolist()]
            trace["top"] = [[image, value] for image, value in zip(rankings[query.id], values, strict=False)]
        return MethodOutput(rankings, traces, counts or {}, notes or [])

    # --- the record
    # ----------------------------------------------------------------------------------------------

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the seconds spent inside to ``seconds[name]``."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def start(self) -> None:
        """Begin a new account of seconds, caches and MLLM calls, as every run does."""
        self.seconds.clear()
        self.caches.clear()
        self._spent = self._cost_so_far()

    def cost(self) -> dict[str, int]:
        """MLLM calls, cached calls, tokens and parse failures since :meth:`start`."""
        return {name: value - self._spent.get(name, 0) for name, value in self._cost_so_far().items()}

    def usual(self, name: str) -> SettingValue | None:
        """The value that setting ``name`` has here when nobody overrides it."""
        return self.settings.get(name, SETTINGS[name].default)

    def inputs(self) -> dict[str, Any]:
        """What went into a run: encoder, MLLM and prompts (as far as they were used), and the annotations,
        with their hashes. No paths of this machine."""
        found: dict[str, Any] = {}
        found["annotations"] = annotation_hashes(self.benchmark)
        if "encoder" in self.__dict__:
            found["encoder"] = self.encoder.describe()
        if "agents" in self.__dict__:
            found["mllm"] = self.agents.mllm.identifier
            found["prompts"] = {name: load_prompt(self.prompts, name).sha256 for name in SLOTS}
            found["prompt_set"] = self.prompts
        return found

    def _cost_so_far(self) -> dict[str, int]:
        if "agents" not in self.__dict__:
            return dataclasses.asdict(Cost())
        return dataclasses.asdict(self.agents.cost)


def open_workbench(
    benchmark: str = "mini-circo",
    profile: str = "mini",
    split: str | None = None,
    *,
    root: Path | str | None = None,
    device: str = "auto",
    cache_dir: Path | str | None = None,
    limit: int | None = None,
    encoder: str | None = None,
    mllm: str | None = None,
    shared_concept: bool = False,
) -> Workbench:
    """The workbench of ``benchmark`` under ``profile``; None stands for the profile's choice everywhere.

    The benchmark is read and checked here, models are loaded when a method asks for them. In a profile of
    shipped data and models, the checksums of what ships are verified first. Raises :class:`InputError` for
    unknown names, missing or damaged files, and a device that is not there."""
    chosen = load_profile(profile)
    spec = chosen.benchmark(benchmark)
    split = check_split(spec, split)
    where = resolve_device(device)
    if chosen.shipped:
        folders = [
            spec.root if root is None else None,
            Path(chosen.encoder.removeprefix(LOCAL)) if encoder is None else None,
            Path(chosen.mllm) if mllm is None else None,
        ]
        verify_shipped([folder for folder in folders if folder is not None])
    return Workbench(
        load_benchmark(benchmark, split, root or spec.root, shared_concept=shared_concept),
        profile=profile,
        encoder=encoder or chosen.encoder,
        mllm=mllm or chosen.mllm,
        prompts=chosen.prompts,
        settings=spec.settings,
        settings_source=spec.settings_source,
        device=where,
        cache_dir=Path(cache_dir) if cache_dir is not None else default_cache_dir(),
        limit=limit,
    )


def annotation_hashes(benchmark: Benchmark) -> dict[str, str]:
    """The SHA-256 of the annotation files of a benchmark's split, by file name."""
    folder = benchmark.root / "annotations"
    files = sorted(folder.glob(f"*{benchmark.split}.json")) if folder.is_dir() else []
    return {path.name: sha256_file(path) for path in files if not path.name.startswith(".")}


def verify_shipped(folders: Sequence[Path]) -> None:
    """Check the shipped files below ``folders`` against their checksums (the nearest list at or above each
    folder).

    Raises :class:`InputError` that names a missing or damaged file and the mend.
    """
    lists = []
    for folder in folders:
        places = [folder, *folder.parents[: len(folder.parts) - len(PACKAGE.parts) - 1]]
        lists.append(next((place for place in places if (place / MANIFEST).is_file()), folder))
    for place in dict.fromkeys(lists):
        verify_manifest(place)
