"""The workbench of a run: one benchmark with its models, each made on first use and then shared.

Methods take a :class:`Workbench` and nothing else from the outside world, so that six methods on one
benchmark read the gallery once, load each model once, and a method without an MLLM never loads one."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from cir_utils.agents import Agents, Cost, token_limits
from cir_utils.benchmarks import Benchmark, ImageId, Query, load_benchmark
from cir_utils.device import resolve_device
from cir_utils.encoder import LOCAL, ClipEncoder, check_choices, load_encoder
from cir_utils.errors import InputError
from cir_utils.feature_store import image_features, text_features
from cir_utils.files import MANIFEST, sha256_file, verify_manifest
from cir_utils.methods import SETTINGS, SettingValue
from cir_utils.metrics import LazyRankings
from cir_utils.mllm import MLLM, LocalMLLM, Usage
from cir_utils.mllm_replay import PREFIX as REPLAY
from cir_utils.mllm_replay import ReplayMLLM, identifier_of
from cir_utils.mllm_server import PREFIX as SERVER
from cir_utils.mllm_server import ServerMLLM, check_spec, read_settings
from cir_utils.profiles import (
    PACKAGE,
    BenchmarkSpec,
    Profile,
    check_split,
    choose,
    default_cache_dir,
    load_profile,
)
from cir_utils.prompts import DOMAINS, load_prompt, prompts_of
from cir_utils.response_cache import ANSWERS, ResponseCache
from cir_utils.scoring import rank_by

#: How many of a query's first results its trace shows with their scores.
TRACE_TOP = 10


@dataclass
class MethodOutput:
    """What a method returns. ``rankings`` holds, for every query id, all gallery ids, best first, without the
    reference where the protocol removes it (as gallery positions, until a query's list is asked for);
    ``subsets`` CIRR's subset of every query, ranked by itself.

    ``traces`` has one dictionary a query: what every agent said, and what was done with it. ``counts`` are
    numbers about the run that belong in its record (cut texts, vague queries, ...); ``notes`` are sentences
    for its reader."""

    rankings: LazyRankings
    traces: list[dict[str, Any]]
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    subsets: dict[str, list[ImageId]] = field(default_factory=dict)


@dataclass(frozen=True)
class Texts:
    """Encoded texts: ``features`` ``(n, D)`` float32 of unit length on the workbench's device; per text
    whether CLIP's context ``cut`` it, and the words that the tokenizer did not know."""

    features: Tensor
    cut: list[bool]
    unknown: list[list[str]]


class Workbench:
    """Benchmark, encoder, gallery features and agents of a run, made when first asked for.

    ``queries`` are the benchmark's, cut to ``limit`` (FashionIQ: as many of each category, give or take one).
    All features are float32, of unit length, on ``device``. ``seconds`` holds the time spent in each stage
    since :meth:`start`, ``caches`` the sentences of the rooms that reuse stored results.

    Methods run on :attr:`parts`, one gallery each; ``whole`` is the workbench that a part belongs to, whose
    models, features and accounts it shares."""

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
        precision: str = "float32",
        preprocessing: str = "clip",
        limit: int | None = None,
        temperature: float = 0.0,
        seed: int = 42,
        max_tokens: Mapping[str, int] | None = None,
        repetition_penalty: Mapping[str, float] | None = None,
        sources: Mapping[str, str] | None = None,
        whole: Workbench | None = None,
    ) -> None:
        if limit is not None and limit < max(1, len(benchmark.categories)):
            raise InputError(
                f"limit {limit} is not valid: give a number of queries, {max(1, len(benchmark.categories))} "
                "or more"
            )
        self.benchmark = benchmark
        self.profile = profile
        self.encoder_spec = encoder
        self.precision = precision
        self.preprocessing = preprocessing
        self.mllm_spec = mllm
        self.prompts = prompts
        self.temperature, self.seed = temperature, seed
        self.max_tokens = dict(max_tokens or {})
        self.repetition_penalty = dict(repetition_penalty or {})
        self.sources = dict(sources or {})
        self.settings = dict(settings)
        self.settings_source = settings_source
        self.device = device
        self.cache_dir = Path(cache_dir)
        self.queries: tuple[Query, ...] = _first_queries(benchmark, limit)
        self.whole = whole
        self.seconds: dict[str, float] = {} if whole is None else whole.seconds
        self.caches: list[str] = [] if whole is None else whole.caches
        self._spent: dict[str, int] = {}
        self._spent_by_agent: dict[str, Cost] = {}
        self._computed: dict[str, int] = {}
        self._seen: Counter[str] = Counter()
        self._texts: dict[str, tuple[Tensor, bool, list[str]]] = {} if whole is None else whole._texts

    # --- models and features, made once
    # --------------------------------------------------------------------------

    @cached_property
    def parts(self) -> dict[str, Workbench]:
        """The workbench by gallery: one a category for FashionIQ, else this one, called ""."""
        if not self.benchmark.categories:
            return {"": self}
        kept = {query.id for query in self.queries}
        parts = {}
        for category, part in self.benchmark.parts.items():
            own = tuple(query for query in part.queries if query.id in kept)
            parts[category] = self.sharing(dataclasses.replace(part, queries=own))
        return parts

    def sharing(self, benchmark: Benchmark) -> Workbench:
        """A workbench of another ``benchmark``, whose gallery is this one's or a part of it, with the models,
        features and accounts of this one."""
        return Workbench(
            benchmark,
            profile=self.profile,
            encoder=self.encoder_spec,
            mllm=self.mllm_spec,
            prompts=self.prompts,
            settings=self.settings,
            settings_source=self.settings_source,
            device=self.device,
            cache_dir=self.cache_dir,
            precision=self.precision,
            preprocessing=self.preprocessing,
            temperature=self.temperature,
            seed=self.seed,
            max_tokens=self.max_tokens,
            repetition_penalty=self.repetition_penalty,
            sources=self.sources,
            whole=self if self.whole is None else self.whole,
        )

    @cached_property
    def encoder(self) -> ClipEncoder:
        if self.whole is not None:
            return self.whole.encoder
        with self.stage("loading models"):
            return load_encoder(
                self.encoder_spec,
                self.device,
                precision=self.precision,
                preprocessing=self.preprocessing,
            )

    @cached_property
    def agents(self) -> Agents:
        if self.whole is not None:
            return self.whole.agents
        with self.stage("loading models"):
            cache = ResponseCache(self.cache_dir / ANSWERS, self.caches.append)
            return self.agents_with(open_mllm(self.mllm_spec, self.device, cache), cache)

    def agents_with(self, mllm: MLLM, cache: ResponseCache) -> Agents:
        """Agents on ``mllm`` that ask as this workbench's do."""
        return Agents(
            mllm,
            cache,
            self.prompts,
            self.domain,
            temperature=self.temperature,
            seed=self.seed,
            max_tokens=self.max_tokens,
            repetition_penalty=self.repetition_penalty,
        )

    @cached_property
    def gallery_paths(self) -> list[Path]:
        return [self.benchmark.image_path(image) for image in self.benchmark.gallery]

    @cached_property
    def reference_paths(self) -> list[Path]:
        return [self.benchmark.image_path(query.reference) for query in self.queries]

    @cached_property
    def gallery_features(self) -> Tensor:
        """``I_a`` as CLIP sees it: ``(N, D)``, in gallery order."""
        if self.whole is not None:
            place = self.whole.place_of
            return self.whole.gallery_features[[place[image] for image in self.benchmark.gallery]]
        return self._image_features(self.benchmark.gallery)

    @cached_property
    def reference_features(self) -> Tensor:
        """``F_r``: ``(Q, D)``."""
        references = [query.reference for query in self.queries]
        if all(reference in self.place_of for reference in references):
            return self.gallery_features[[self.place_of[reference] for reference in references]]
        return self._image_features(references)

    @cached_property
    def modification_features(self) -> Tensor:
        """``F_m``: ``(Q, D)``; where FashionIQ's two caption orders are averaged, their mean, brought to unit
        length."""
        features = self.encode_texts(self.texts).features
        if not any(query.other_text for query in self.queries):
            return features
        other = self.encode_texts([query.other_text or query.text for query in self.queries]).features
        return normalize(features + other, dim=1)

    @cached_property
    def place_of(self) -> dict[ImageId, int]:
        """The position of every gallery image."""
        return {image: place for place, image in enumerate(self.benchmark.gallery)}

    @cached_property
    def places(self) -> Tensor:
        """The gallery positions that each query ranks, in gallery order: ``(Q, N)``, or ``(Q, N - 1)`` where
        the protocol removes the reference (before any rank is taken)."""
        count = len(self.benchmark.gallery)
        everything = torch.arange(count, device=self.device).expand(len(self.queries), count)
        removed = self.benchmark.removed
        if not removed:
            return everything
        own = torch.tensor([self.place_of[removed[query.id]] for query in self.queries], device=self.device)
        return everything[everything != own[:, None]].view(len(self.queries), count - 1)

    @cached_property
    def members(self) -> Tensor | None:
        """The gallery positions of CIRR's subsets, in gallery order: ``(Q, 5)``, or ``(Q, 6)`` where the
        reference is kept; None for benchmarks without subsets."""
        if not all(query.members for query in self.queries):
            return None
        rows = [
            sorted(self.place_of[image] for image in self.benchmark.subset(query)) for query in self.queries
        ]
        return torch.tensor(rows, device=self.device)

    @property
    def domain(self) -> str:
        """Whose wording of the prompts this benchmark gets: "fashion" or "scene"."""
        return DOMAINS[self.benchmark.family]

    @property
    def texts(self) -> list[str]:
        """The modification texts ``T_m``, in query order."""
        return [query.text for query in self.queries]

    def encode_texts(self, texts: Sequence[str]) -> Texts:
        """CLIP features of ``texts``, each text encoded once and kept on disk."""
        rows = self._encoded(texts)
        features = (
            torch.stack([row[0] for row in rows])
            if rows
            else torch.empty(0, self.encoder.width, device=self.device)
        )
        return Texts(features.to(self.device), [row[1] for row in rows], [row[2] for row in rows])

    def cut(self, texts: Sequence[str]) -> list[bool]:
        """Per text whether CLIP's context cuts its end off."""
        return [row[1] for row in self._encoded(texts)]

    def _encoded(self, texts: Sequence[str]) -> list[tuple[Tensor, bool, list[str]]]:
        """Per text its feature, whether it is cut, and its unknown words."""
        new = [text for text in dict.fromkeys(texts) if text not in self._texts]
        if new:
            encoder = self.encoder
            with self.stage("encoding texts"):
                found = text_features(encoder, new, self.cache_dir, say=self.caches.append)
            self._texts.update(
                zip(new, zip(found.features, found.cut, found.unknown, strict=True), strict=True)
            )
        return [self._texts[text] for text in texts]

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

    def order(self, scores: Tensor, places: Tensor | None = None) -> Tensor:
        """Gallery positions by falling ``scores`` ``(Q, N)``, ties by gallery order: of what each query ranks
        (:attr:`places`), or of ``places`` ``(Q, C)``, whose shape the result has."""
        places = self.places if places is None else places
        if places.shape == scores.shape:  # everything is ranked
            return rank_by(scores)
        return places.gather(1, rank_by(scores.gather(1, places)))

    def output(
        self,
        scores: Tensor,
        traces: list[dict[str, Any]],
        order: Tensor | None = None,
        counts: dict[str, int] | None = None,
        notes: list[str] | None = None,
        subset_order: Tensor | None = None,
    ) -> MethodOutput:
        """Rankings by ``scores`` ``(Q, N)``, ties by gallery order; or by ``order``, shaped as
        :attr:`places`, where that is given. CIRR's subsets likewise, by ``subset_order``, shaped as
        :attr:`members`.

        The first results with their scores are added to the traces under ``top``, the ranked subset under
        ``subset``.
        """
        if self.benchmark.categories:
            raise ValueError("every category has its own gallery: run the method on each of bench.parts")
        order = self.order(scores) if order is None else order
        gallery = self.benchmark.gallery
        best = scores.gather(1, order[:, :TRACE_TOP]).tolist()
        rows = order.to(torch.int32).cpu().numpy()
        rankings = LazyRankings(
            {query.id: partial(_images, gallery, row) for query, row in zip(self.queries, rows, strict=True)}
        )
        subsets = {}
        for trace, row, values in zip(traces, rows, best, strict=True):
            trace["top"] = [
                list(pair) for pair in zip(_images(gallery, row[:TRACE_TOP]), values, strict=True)
            ]
        if self.members is not None:
            subset_order = self.order(scores, self.members) if subset_order is None else subset_order
            for query, trace, places in zip(self.queries, traces, subset_order.tolist(), strict=True):
                trace["subset"] = subsets[query.id] = [gallery[place] for place in places]
        return MethodOutput(rankings, traces, counts or {}, notes or [], subsets)

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
        self._spent_by_agent = self._cost_by_agent_so_far()
        self._computed = self._computed_so_far()
        self._seen = self._classes_so_far()
        if self._server is not None:
            self._server.start()

    def answers(self) -> dict[str, int]:
        """The MLLM's answers since :meth:`start` by class, with those from the cache, and the verifications
        that were unclear; classes that did not occur are left out."""
        return dict(sorted((self._classes_so_far() - self._seen).items()))

    def cost(self) -> dict[str, int]:
        """MLLM calls, cached calls, tokens and parse failures since :meth:`start`."""
        return {name: value - self._spent.get(name, 0) for name, value in self._cost_so_far().items()}

    def cost_by_agent(self) -> dict[str, dict[str, int]]:
        """The same by agent (the name of its prompt), without those that were not asked. Fallbacks are not
        told apart."""
        none = Cost()
        found = {
            agent: cost.since(self._spent_by_agent.get(agent, none))
            for agent, cost in sorted(self._cost_by_agent_so_far().items())
        }
        return {
            agent: {name: value for name, value in dataclasses.asdict(cost).items() if name != "fallbacks"}
            for agent, cost in found.items()
            if cost != none
        }

    def computed(self) -> dict[str, int]:
        """What the local MLLM has computed since :meth:`start` for answers that no cache held: calls, tokens,
        forward passes, pictures encoded (:class:`cir_utils.mllm.Usage`). Empty where none is loaded."""
        return {name: value - self._computed.get(name, 0) for name, value in self._computed_so_far().items()}

    def usual(self, name: str) -> SettingValue | None:
        """The value that setting ``name`` has here when nobody overrides it."""
        return self.settings.get(name, SETTINGS[name].default)

    def choices(self) -> dict[str, dict[str, Any]]:
        """What the profile or the caller chose for this run, each with its ``value`` and its ``source``; of
        models that are folders the name alone."""
        found: dict[str, Any] = {
            "encoder": _public(self.encoder_spec),
            "precision": self.precision,
            "preprocessing": self.preprocessing,
            "mllm": _public(self.mllm_spec),
            "prompts": self.prompts,
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": token_limits(self.prompts, self.max_tokens),
        }
        if self.repetition_penalty:
            found["repetition_penalty"] = self.repetition_penalty
        return {
            name: {"value": value, "source": self.sources.get(name, "the caller")}
            for name, value in found.items()
        }

    def inputs(self) -> dict[str, Any]:
        """What went into a run: encoder, MLLM and prompts (as far as they were used), and the annotations,
        with their hashes. No paths of this machine."""
        found: dict[str, Any] = {}
        found["annotations"] = annotation_hashes(self.benchmark)
        if "encoder" in self._made:
            found["encoder"] = self.encoder.describe()
        if "agents" in self._made:
            found["mllm"] = self.agents.mllm.identifier
            describe = getattr(self.agents.mllm, "describe", None)  # a replay has nothing to tell
            if describe is not None:
                found["server" if self._server else "local_mllm"] = describe()
            prompts = [load_prompt(self.prompts, name, self.domain) for name in prompts_of(self.prompts)]
            found["prompts"] = {prompt.label.partition("/")[2]: prompt.sha256 for prompt in prompts}
            found["prompt_set"] = self.prompts
        return found

    @property
    def _made(self) -> Mapping[str, Any]:
        """What was made so far, by whoever makes the models."""
        return (self.whole or self).__dict__

    @property
    def _server(self) -> ServerMLLM | None:
        mllm = self.agents.mllm if "agents" in self._made else None
        return mllm if isinstance(mllm, ServerMLLM) else None

    def _classes_so_far(self) -> Counter[str]:
        return self.agents.classes.copy() if "agents" in self._made else Counter()

    def _cost_by_agent_so_far(self) -> dict[str, Cost]:
        if "agents" not in self._made:
            return {}
        return {agent: cost.copy() for agent, cost in self.agents.by_agent.items()}

    def _computed_so_far(self) -> dict[str, int]:
        usage = getattr(self.agents.mllm, "usage", None) if "agents" in self._made else None
        return dataclasses.asdict(usage) if isinstance(usage, Usage) else {}

    def _cost_so_far(self) -> dict[str, int]:
        if "agents" not in self._made:
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
    precision: str | None = None,
    preprocessing: str | None = None,
    prompts: str | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    max_tokens: int | Mapping[str, int] | None = None,
    **options: Any,
) -> Workbench:
    """The workbench of ``benchmark`` under ``profile``; None stands for the profile's choice everywhere (see
    :func:`cir_utils.profiles.choose`). ``options`` are those of
    :func:`cir_utils.benchmarks.load_benchmark`.

    The benchmark is read and checked here, models are loaded when a method asks for them. In a profile of
    shipped data and models, the checksums of what ships are verified first. Raises :class:`InputError` for
    unknown names, missing or damaged files, and a device that is not there."""
    chosen = load_profile(profile)
    used = choose(
        chosen, encoder=encoder, precision=precision, preprocessing=preprocessing, mllm=mllm, prompts=prompts,
        temperature=temperature, seed=seed, max_tokens=max_tokens,
    )  # fmt: skip
    spec = chosen.benchmark(benchmark)
    split = check_split(spec, split)
    where = check_used(chosen, used, device, [spec.root] if root is None else [])
    found = load_benchmark(benchmark, split, root or spec.root, **options)
    return workbench_of(found, used, spec, where, cache_dir, limit)


def check_used(chosen: Profile, used: Profile, device: str, data: Sequence[Path] = ()) -> torch.device:
    """The device of the models that are ``used`` of the ``chosen`` profile, after all checks that need no
    model: their choices, servers' settings, and the checksums of what ships (``data`` folders too)."""
    where = resolve_device(device)
    check_choices(used.precision, used.preprocessing, where)
    if used.mllm.startswith(SERVER):  # wrong settings show before anything long starts
        check_spec(used.mllm)
        read_settings()
    if used.mllm.startswith(REPLAY):
        identifier_of(used.mllm)
    if chosen.shipped:
        folders = [*data]
        if used.encoder == chosen.encoder:
            folders.append(Path(chosen.encoder.removeprefix(LOCAL)))
        if used.mllm == chosen.mllm:
            folders.append(Path(chosen.mllm))
        verify_shipped(folders)
    return where


def workbench_of(
    benchmark: Benchmark,
    used: Profile,
    spec: BenchmarkSpec,
    device: torch.device,
    cache_dir: Path | str | None = None,
    limit: int | None = None,
) -> Workbench:
    """The workbench of a loaded ``benchmark`` with the models and choices ``used`` and the settings of
    ``spec``."""
    return Workbench(
        benchmark,
        profile=used.name,
        encoder=used.encoder,
        mllm=used.mllm,
        prompts=used.prompts,
        temperature=used.temperature,
        seed=used.seed,
        max_tokens=used.max_tokens,
        repetition_penalty=used.repetition_penalty,
        sources=used.sources,
        settings=spec.settings,
        settings_source=spec.settings_source,
        device=device,
        cache_dir=Path(cache_dir) if cache_dir is not None else default_cache_dir(),
        precision=used.precision,
        preprocessing=used.preprocessing,
        limit=limit,
    )


def open_mllm(spec: str, device: torch.device | str, cache: ResponseCache) -> MLLM:
    """The MLLM that ``spec`` names: ``server:MODEL``, ``replay:MODEL`` of the answers in ``cache``, or a
    local one on ``device``."""
    if spec.startswith(SERVER):
        return ServerMLLM(spec)
    if spec.startswith(REPLAY):
        return ReplayMLLM(spec, cache.models())
    return LocalMLLM(spec, device)


def annotation_hashes(benchmark: Benchmark) -> dict[str, str]:
    """The SHA-256 of the annotation files of a benchmark's split, by file name."""
    return {path.name: sha256_file(path) for path in benchmark.annotations}


def _public(spec: str) -> str:
    """A model's name without the machine's folders."""
    kind, path = (LOCAL, spec.removeprefix(LOCAL)) if spec.startswith(LOCAL) else ("", spec)
    return kind + Path(path).name if kind or Path(path).is_dir() or path.startswith(("/", ".")) else spec


def _images(gallery: Sequence[ImageId], row: np.ndarray) -> list[ImageId]:
    """The gallery's ids at the positions ``row`` ``(C,)``."""
    return [gallery[place] for place in row.tolist()]


def _first_queries(benchmark: Benchmark, limit: int | None) -> tuple[Query, ...]:
    """The first ``limit`` queries, taken in turn from every category where there are several."""
    if limit is None or not benchmark.categories:
        return benchmark.queries[:limit]
    groups = [part.queries for part in benchmark.parts.values()]
    turns = [query for row in zip_longest(*groups) for query in row if query is not None]
    kept = {query.id for query in turns[:limit]}
    return tuple(query for query in benchmark.queries if query.id in kept)


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
