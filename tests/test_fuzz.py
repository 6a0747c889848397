"""Bad input by the thousand: answers of models, replies of servers, and files of every kind. Each is accepted
with a right value or refused in words; none crashes, hangs, or is lost.

``CIR_FUZZ_ANSWERS`` and ``CIR_FUZZ_FILES`` say how many; ``make fuzz`` tries 100,000 answers and 10,000
files, and ``-s`` shows the counts."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzz import (
    PLACE_DAMAGES,
    as_nobody,
    broken_answer,
    damaged_bytes,
    damaged_json,
    explains,
    kept_whole,
    report,
    restore,
    whole_object,
    within,
    words,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from small_world import open_bench, write_cirr_world, write_fashion_world, write_world

from cir_utils import cache, schemas
from cir_utils.agents import Agents
from cir_utils.benchmarks import EMPTY_TEXT, load_benchmark
from cir_utils.encoder import TextFeatures
from cir_utils.errors import InputError
from cir_utils.evaluation import evaluate_file
from cir_utils.feature_store import text_features
from cir_utils.files import MANIFEST, whole_unicode
from cir_utils.images import load_image
from cir_utils.layouts.fashioniq import join_captions
from cir_utils.methods import resolve_settings
from cir_utils.mllm import Answer, Request
from cir_utils.prompts import load_prompt
from cir_utils.response_cache import FINISH_REASONS, ResponseCache, StoredAnswer, row_fault
from cir_utils.runs import load_run, run_method
from cir_utils.schemas import KINDS, USABLE, parse_json, parse_text, parse_truth
from cir_utils.submissions import refusal, validate_file

ANSWERS = int(os.environ.get("CIR_FUZZ_ANSWERS", "1500"))
FILES = int(os.environ.get("CIR_FUZZ_FILES", "400"))
#: The same cases every time in the short form, others each time in the long one.
FIXED = "CIR_FUZZ_ANSWERS" not in os.environ and "CIR_FUZZ_FILES" not in os.environ
#: Answers of one example.
BATCH = 20
seeds = st.integers(0, 2**64 - 1)


def many(count: int) -> Any:
    return settings(
        max_examples=max(1, count),
        deadline=None,  # `within` is the limit
        derandomize=FIXED,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# --- answers of a model -------------------------------------------------------------------------------------


def check_answer(
    text: str, finish: str, prompt: str, schema: Any, expected: Any, counts: Counter[str]
) -> None:
    """One answer as the agents read it: its class and its value."""
    with within():
        parsed = parse_json(text, schema, finish, prompt) if schema else parse_text(text, finish, prompt)
        parse_truth(text)
        kept = schemas.cut_text(text)
    assert whole_unicode(kept) == kept
    assert parsed.kind in KINDS
    counts[parsed.kind] += 1
    assert (parsed.value is None) == (parsed.kind not in USABLE)
    assert "\n" not in parsed.problem and (parsed.value is not None or parsed.problem)
    if finish == "refusal":
        assert parsed.kind == "refusal"
    if parsed.value is None:
        assert expected is None or finish != "stop" or parsed.kind == "echo", (text, parsed)
        return
    if not schema:
        assert parsed.value == whole_unicode(parsed.value) and parsed.value.strip()
        return
    dumped = parsed.value.model_dump()
    assert schema.model_validate(dumped) == parsed.value  # strictly right
    json.dumps(dumped, ensure_ascii=False, allow_nan=False).encode("utf-8")
    if expected is not None and finish == "stop":
        assert dumped == expected, text


CAPTION = load_prompt("default", "caption").text


class Feeder:
    """An MLLM that says what it is told to, each answer checked on its own first."""

    structured = False

    def __init__(self, seed: int, schema: Any, counts: Counter[str]) -> None:
        self.identifier = f"fuzz@{seed}"
        self.rng, self.schema, self.counts = random.Random(seed), schema, counts
        self.given = 0

    def generate(self, requests: Sequence[Request]) -> list[Answer]:
        return [self._answer(request) for request in requests]

    def verdicts(self, items: Sequence[Any]) -> list[Any]:
        raise AssertionError("nothing is verified here")

    def _answer(self, request: Request) -> Answer:
        rng = self.rng
        finish: Any = rng.choice(("stop", "stop", "stop", "stop", "length", "refusal"))
        # Captions, of which stand-ins are made, are plain text.
        schema = None if request.prompt.startswith(CAPTION) else self.schema
        value = whole_object(schema.__name__ if schema else "TextImagination", rng)
        expected = None
        if schema is None:
            text = broken_answer(words(rng), rng) if rng.random() < 0.7 else words(rng)
        else:
            text = json.dumps(value)
            if rng.random() < 0.2:
                text, expected = kept_whole(text, rng), value
            else:
                text = broken_answer(text, rng)
        if rng.random() < 0.03:
            text, expected = rng.choice((request.prompt, request.prompt.upper() + "!")), None
        self.given += 1
        check_answer(text, finish, request.prompt, schema, expected, self.counts)
        return Answer(text, finish, 10, 5)


class Silent:
    """The same model when everything it said is stored already."""

    structured = False

    def __init__(self, identifier: str) -> None:
        self.identifier = identifier

    def generate(self, requests: Sequence[Request]) -> list[Answer]:
        raise AssertionError(f"asked again: {requests[0].prompt}")

    verdicts = generate  # type: ignore[assignment]


def ask(agents: Agents, agent: str, pictures: Sequence[Path]) -> list[Any]:
    texts = [f"make it number {number}" for number in range(len(pictures))]
    captions = [f"a picture of number {number}" for number in range(len(pictures))]
    listed = [[text] for text in texts]
    if agent == "caption":
        return agents.caption(pictures)
    if agent == "describe_target":
        return agents.describe_target(pictures, texts)
    if agent == "edit_caption":
        return agents.edit_caption(captions, texts)
    if agent == "selective_cot":
        return agents.selective_cot(pictures, texts)
    if agent == "imagine_text":
        return agents.imagine_text(captions, texts)
    if agent == "imagine_vision":
        return agents.imagine_vision(pictures, texts)
    if agent == "target_levels":
        return agents.target_levels(pictures, captions, texts)
    return agents.questions(texts, listed, listed, listed)


SCHEMA_OF: dict[str, Any] = {
    "caption": None,
    "describe_target": None,
    "edit_caption": None,
    "selective_cot": schemas.SelectiveCoT,
    "imagine_text": schemas.TextImagination,
    "imagine_vision": schemas.VisionImagination,
    "target_levels": schemas.TargetLevels,
    "questions": schemas.Questions,
}


def said(result: Any) -> list[str]:
    """The texts of a result that go to CLIP or back to the model."""
    if hasattr(result, "statements"):
        return [statement.statement for statement in result.statements]
    if hasattr(result, "texts"):
        return list(result.texts)
    return [
        getattr(result, name) for name in ("text", "description", "target_caption") if hasattr(result, name)
    ]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files that differ: agents look at their hashes alone."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(BATCH):
        (folder / f"{number}.jpg").write_bytes(b"picture %d" % number)
    return sorted(folder.iterdir())


def try_batch(seed: int, pictures: Sequence[Path], counts: Counter[str]) -> None:
    """Answers to one agent, read by themselves and by the agent, and again from the store."""
    rng = random.Random(seed)
    agent = rng.choice(list(SCHEMA_OF))
    model, store = Feeder(seed, SCHEMA_OF[agent], counts), ResponseCache()
    agents = Agents(model, store, "default")
    results = ask(agents, agent, pictures)
    assert len(results) == len(pictures), "an answer was lost"
    assert sum(agents.classes.values()) == model.given, "an answer was not counted, or twice"
    for result in results:
        assert all(text.strip() and whole_unicode(text) == text for text in said(result)) and said(result)
        traces = result.traces if hasattr(result, "traces") else [result.trace]
        for trace in traces:
            json.dumps(trace, ensure_ascii=False, allow_nan=False).encode("utf-8")
            assert trace["class"] in KINDS and ("fallback" in trace) == result.fallback
    assert sum(result.fallback for result in results) <= agents.cost.fallbacks
    assert agents.cost.mllm_calls == model.given and agents.cost.cached_calls == 0
    again = ask(Agents(Silent(model.identifier), store, "default"), agent, pictures)
    assert again == results, "stored answers read otherwise"


def test_malformed_answers_are_classed_counted_and_never_lost(pictures: list[Path]) -> None:
    counts: Counter[str] = Counter()
    # About one answer in two is asked for again.
    examples = math.ceil(ANSWERS / (1.3 * BATCH))

    @many(examples)
    @given(seeds)
    def try_some(seed: int) -> None:
        try_batch(seed, pictures, counts)

    try_some()
    report("answers of an MLLM", counts)
    assert sum(counts.values()) >= ANSWERS and set(counts) == set(KINDS), counts


# --- replies of a server ------------------------------------------------------------------------------------


def test_replies_of_a_lying_server_are_read_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai", reason="the server extra is not installed")
    from cir_utils.mllm_server import ServerMLLM, _probability, _Unreadable

    monkeypatch.setenv("CIR_SERVER_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("CIR_SERVER_KEY", "sk-secret-of-the-test")
    server = ServerMLLM("server:m")
    token = {"token": "true", "logprob": -0.1, "top_logprobs": [{"token": "false", "logprob": -2.3}]}
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "true", "refusal": None},
        "logprobs": {"content": [token, token]},
    }
    usage = {"prompt_tokens": 10, "completion_tokens": 3}
    whole = json.dumps({"id": "1", "model": "m", "choices": [choice], "usage": usage}).encode()
    counts: Counter[str] = Counter()

    @many(ANSWERS // BATCH)
    @given(seeds)
    def try_some(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(BATCH):
            damage, data = (damaged_json if rng.random() < 0.7 else damaged_bytes)(whole, rng)
            with within():
                try:
                    reply = server._read(data)
                except _Unreadable as error:
                    assert str(error)
                    counts["asked for again"] += 1
                    continue
            stored = StoredAnswer(
                reply.text,
                reply.finish_reason,
                reply.prompt_tokens,
                reply.completion_tokens,
                "good",
                "caption",
            )
            assert reply.finish_reason in FINISH_REASONS and not row_fault(stored), damage
            with ResponseCache() as store:
                store.put_answers({bytes(32): stored})
                assert store.get_answers([bytes(32)]) == {bytes(32): stored}
            assert 0 <= _probability(reply) <= 1
            counts["read"] += 1

    try_some()
    json.dumps(server.describe(), ensure_ascii=False, allow_nan=False).encode("utf-8")
    report("replies of a server", counts)
    assert min(counts["read"], counts["asked for again"]) > 0


# --- files --------------------------------------------------------------------------------------------------


@dataclass
class Kind:
    """A kind of files: those that are damaged, how they are read, and what is checked of what was read.

    ``read`` gives the value, or raises; ``right`` asserts that an accepted value is what the files say now.
    ``names``: a refusal names one of these beside the damaged file."""

    name: str
    files: list[Path]
    read: Callable[[], Any]
    right: Callable[[Any, bool], None]
    names: tuple[str, ...] = ()
    places: bool = True
    whole: dict[Path, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.whole = {path: path.read_bytes() for path in self.files}

    @property
    def changed(self) -> bool:
        return any(not path.is_file() or path.read_bytes() != data for path, data in self.whole.items())


def on_disk(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8-sig"))


def right_circo(path: Path) -> Callable[[Any, bool], None]:
    def right(bench: Any, changed: bool) -> None:
        rows = on_disk(path)
        assert [query.id for query in bench.queries] == [str(row["id"]) for row in rows]
        for query, row in zip(bench.queries, rows, strict=True):
            assert query.reference == row["reference_img_id"] and list(query.targets) == row["gt_img_ids"]
            assert query.text == (row["relative_caption"].strip() or EMPTY_TEXT)
            assert {query.reference, *query.targets} <= set(bench.gallery)
        listing = bench.root / "COCO2017_unlabeled" / "annotations" / "image_info_unlabeled2017.json"
        if listing.is_file():
            assert sorted(row["id"] for row in on_disk(listing)["images"]) == list(bench.gallery)
        else:  # then the pictures themselves are the gallery, which is said
            assert "not the published list" in bench.notes[0] and len(bench.gallery) == 24

    return right


def right_cirr(bench: Any, changed: bool) -> None:
    captions, places = map(on_disk, bench.annotations)
    assert list(bench.gallery) == list(places)
    for query, row in zip(bench.queries, captions, strict=True):
        assert (query.id, query.reference, query.target) == (
            str(row["pairid"]), row["reference"], row["target_hard"],
        )  # fmt: skip
        assert list(query.members) == row["img_set"]["members"] and query.reference in query.members
        assert query.text == (row["caption"].strip() or EMPTY_TEXT)


def right_fashioniq(bench: Any, changed: bool) -> None:
    for number, (category, gallery) in enumerate(bench.categories.items()):
        rows, names = map(on_disk, bench.annotations[2 * number : 2 * number + 2])
        assert list(gallery) == names
        own = [query for query in bench.queries if query.category == category]
        for query, row in zip(own, rows, strict=True):
            assert (query.reference, query.target) == (row["candidate"], row["target"])
            assert query.text == (join_captions(tuple(row["captions"])) or EMPTY_TEXT)


def right_rankings(path: Path, bench: Any, metric: str) -> Callable[[Any, bool], None]:
    """The metric at rank 1, counted here from the file."""

    def right(result: dict[str, Any], changed: bool) -> None:
        assert all(0 <= value <= 1 for value in result["metrics"].values())
        table = on_disk(path)
        by_category: dict[str, list[float]] = {}
        for query in bench.queries:
            row = [image for image in table[query.id] if image != bench.removed.get(query.id)]
            by_category.setdefault(query.category, []).append(float(row[0] == query.target))
        means = [sum(hits) / len(hits) for hits in by_category.values()]
        assert result["metrics"][metric] == pytest.approx(sum(means) / len(means), abs=1e-12)

    return right


class TextEncoder:
    """A stand-in for CLIP: features from the texts' hashes."""

    width, identifier, device = 8, "fuzz", torch.device("cpu")

    def describe(self) -> dict[str, Any]:
        return {"encoder": self.identifier, "width": self.width}

    def encode_texts(self, texts: Sequence[str], batch_size: int = 0) -> TextFeatures:
        rows = [np.random.default_rng(abs(hash(text)) % 2**32).standard_normal(8) for text in texts]
        features = torch.nn.functional.normalize(torch.tensor(np.array(rows), dtype=torch.float32), dim=1)
        return TextFeatures(
            features, [False] * len(texts), [len(text) for text in texts], [[] for _ in texts]
        )


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that everybody may look into, as `as_nobody` must."""
    folder = Path(tempfile.mkdtemp(prefix="cir-fuzz-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def annotation_kinds(place: Path) -> list[Kind]:
    circo = write_world(place / "circo")
    path = circo / "annotations" / "val.json"
    listing = circo / "COCO2017_unlabeled" / "annotations" / "image_info_unlabeled2017.json"
    cirr, fashion = write_cirr_world(place / "cirr"), write_fashion_world(place / "fashioniq")
    of_cirr = [cirr / "captions" / "cap.rc2.val.json", cirr / "image_splits" / "split.rc2.val.json"]
    of_fashion = sorted(fashion.glob("*/*.dress.val.json"))
    return [
        Kind("annotations of CIRCO", [path, listing], lambda: load_benchmark("mini-circo", "val", circo),
             right_circo(path)),
        Kind("annotations of CIRR", of_cirr, lambda: load_benchmark("mini-cirr", "val", cirr), right_cirr),
        Kind("annotations of FashionIQ", of_fashion, lambda: load_benchmark("mini-fashioniq", "val", fashion),
             right_fashioniq, ("image_splits",)),
    ]  # fmt: skip


def ranking_kinds(place: Path) -> list[Kind]:
    kinds = []
    for name, metric in (("circo", "R@1"), ("cirr", "R@1"), ("fashioniq", "mean/R@1")):
        bench = load_benchmark(f"mini-{name}", "val", place / name)
        rng = random.Random(name)
        galleries = {query.id: list(bench.parts[query.category].gallery) for query in bench.queries}
        table = {query: rng.sample(gallery, len(gallery)) for query, gallery in galleries.items()}
        path = place / f"rankings-{name}.json"
        path.write_text(json.dumps(table))

        def read(path: Path = path, bench: Any = bench) -> Any:
            return evaluate_file(path, bench.name, "val", bench.root)

        kinds.append(Kind(f"rankings of {bench.name}", [path], read, right_rankings(path, bench, metric)))
    return kinds


def server_kinds(place: Path) -> list[Kind]:
    """Files for the servers: a broken rule is a refusal, too."""
    kinds = []
    for name in ("circo", "cirr"):
        bench = load_benchmark(f"mini-{name}", "val", place / name)
        table: dict[str, Any] = {query.id: [*bench.gallery] for query in bench.queries}
        if name == "cirr":
            for query in bench.queries:
                table[query.id].remove(query.reference)
            table |= {"version": "rc2", "metric": "recall"}
        path = place / f"server-{name}.json"
        path.write_text(json.dumps(table))

        def read(path: Path = path, name: str = name, bench: Any = bench) -> Any:
            verdict = validate_file(path, name, bench.root, split="val", benchmark=bench.name)
            json.dumps(verdict.as_dict(), allow_nan=False)
            if not verdict.valid:
                assert all(error.strip() for error in verdict.errors)
                raise InputError(refusal(path, name, verdict))
            return path, bench, name == "cirr"

        def right(value: Any, changed: bool) -> None:
            path, bench, cirr = value
            table = on_disk(path)
            assert table.keys() - {"version", "metric"} == {query.id for query in bench.queries}
            for query in bench.queries:
                row = table[query.id]
                assert sorted(row) == sorted(set(bench.gallery) - ({query.reference} if cirr else set()))

        kinds.append(Kind(f"server files of {name}", [path], read, right))
    return kinds


def run_kinds(place: Path, tiny_clip: Path) -> list[Kind]:
    bench = open_bench(place / "circo", tiny_clip, place / "run-cache")
    run = run_method(bench, "sdr-cir", resolve_settings("sdr-cir", bench.settings, {}))
    kinds = []
    for name, hashed in (("run folders", True), ("run folders without hashes", False)):
        folder = run.save(place / name.replace(" ", "-"))
        if not hashed:
            (folder / MANIFEST).unlink()

        def read(folder: Path = folder) -> Any:
            found = load_run(folder, whole=True)
            # What the commands do with it.
            found.compared()
            json.dumps(found.summary())
            return found, dict(found.rankings), found.traces

        def right(value: Any, changed: bool, hashed: bool = hashed) -> None:
            found, rankings, traces = value
            assert list(rankings) == list(found.queries)
            assert all(len(values) == len(found.queries) for values in found.per_query.values())
            assert all(0 <= value <= 1 for value in found.metrics.values())
            if hashed:
                assert rankings == dict(run.rankings) and traces == run.traces
                assert found.record == run.record and found.metrics == run.metrics

        files = sorted(path for path in folder.iterdir())
        kinds.append(Kind(name, files, read, right, names=(folder.name,)))
    return kinds


def index_kinds(place: Path) -> list[Kind]:
    pytest.importorskip("faiss", reason="faiss is not installed (the extra `index`)")
    from cir_utils.index import build_index, load_index, save_index, search_index

    rows = torch.nn.functional.normalize(
        torch.randn(300, 8, generator=torch.Generator().manual_seed(0)), dim=1
    )
    ids = [f"picture {row}" if row % 2 else row for row in range(300)]
    kinds = []
    for kind in ("flat", "hnsw", "ivfpq"):
        folder = place / f"index-{kind}"
        index = build_index(rows, ids, kind)
        save_index(index, folder)
        first = search_index(index, rows[:3], 5).ids

        def read(folder: Path = folder) -> Any:
            return search_index(load_index(folder, rows), rows[:3], 5).ids

        def right(found: Any, changed: bool, first: Any = first) -> None:
            assert found == first

        kinds.append(Kind(f"indexes ({kind})", sorted(folder.iterdir()), read, right, names=(folder.name,)))
    return kinds


def shard_kind(place: Path) -> Kind:
    folder = place / "shards"
    texts = [f"a text of number {number}" for number in range(5)]
    encoder: Any = TextEncoder()
    first = text_features(encoder, texts, folder, say=lambda text: None)

    def read() -> Any:
        told: list[str] = []
        return text_features(encoder, texts, folder, say=told.append), told

    def right(value: Any, changed: bool) -> None:
        found, told = value
        assert torch.equal(found.features, first.features)
        lists, before = ((each.cut, each.tokens, each.unknown) for each in (found, first))
        assert lists == before
        again = any("computing them again" in text for text in told)
        assert again or told[-1].endswith(("5 texts reused from the cache, 0 computed", "5 computed"))
        assert cache.verify(folder).problems == [], "what was computed again is whole"

    files = sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".safetensors"))
    shards = [path for path in files if path.name != "encoder.json"]
    return Kind("feature shards", shards, read, right, places=False)


def export_kind(place: Path) -> Kind:
    rows = {bytes([n]) * 32: StoredAnswer(f"answer {n}", "stop", 5, 3, "good", "caption") for n in range(6)}
    with ResponseCache(place / "export-cache" / "answers.sqlite") as store:
        store.put_answers(rows, "m@1")
    path = place / "answers.jsonl"
    cache.export_answers(place / "export-cache", path)
    into = place / "imported"

    def read() -> Any:
        shutil.rmtree(into, ignore_errors=True)
        try:
            _, merged = cache.import_answers(into, path)
        except InputError:
            if into.exists():
                with ResponseCache(into / "answers.sqlite") as store:
                    assert store.counts() == {"answers": 0, "verdicts": 0}, "half an export was taken over"
            raise
        with ResponseCache(into / "answers.sqlite") as store:
            return merged, store.counts()

    def right(value: Any, changed: bool) -> None:
        merged, counts = value
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert merged.new == counts["answers"] + counts["verdicts"] == len(lines) - 1

    return Kind("exported answers", [path], read, right, places=False)


def image_kinds(place: Path) -> list[Kind]:
    folder = place / "images"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6
    more = [Image.fromarray(np.roll(pixels, n, 0)) for n in range(3)]
    saves: dict[str, Callable[[Path], None]] = {
        "a b.jpg": lambda path: picture.save(path, quality=90),
        "turned.jpg": lambda path: picture.save(path, exif=exif),
        "cmyk.jpg": lambda path: picture.convert("CMYK").save(path),
        "progressive.jpg": lambda path: picture.save(path, progressive=True),
        "é..png": lambda path: picture.save(path),
        "la.png": lambda path: picture.convert("LA").save(path),
        "one.png": lambda path: picture.convert("1").save(path),
        "palette.png": lambda path: picture.quantize(16).save(path, transparency=3),
        "deep.png": lambda path: Image.fromarray(pixels[..., 0].astype(np.uint16) * 256).save(path),
        "text.png": lambda path: picture.save(path, exif=exif, icc_profile=b"x" * 200),
        "animated.png": lambda path: picture.save(path, save_all=True, append_images=more),
        "animated.gif": lambda path: picture.save(path, save_all=True, append_images=more),
        "animated.webp": lambda path: picture.save(path, save_all=True, append_images=more),
        "lossless.webp": lambda path: picture.convert("RGBA").save(path, lossless=True),
        "a.bmp": lambda path: picture.save(path),
        "a.tif": lambda path: picture.save(path, compression="tiff_deflate"),
        "lzw.tif": lambda path: picture.save(path, compression="tiff_lzw"),
        "float.tif": lambda path: Image.fromarray(pixels[..., 0].astype(np.float32)).save(path),
        "lab.tif": lambda path: picture.convert("LAB").save(path),
        "pages.tif": lambda path: picture.save(path, save_all=True, append_images=more),
        "a.ppm": lambda path: picture.save(path),
        "a.avif": lambda path: picture.save(path),
        "wrong suffix.jpg": lambda path: picture.save(path, format="PNG"),
    }
    kinds = []
    for name, save in saves.items():
        path = folder / name
        save(path)
        first = np.asarray(load_image(path))

        def read(path: Path = path) -> Any:
            return load_image(path)

        def right(found: Any, changed: bool, first: Any = first) -> None:
            assert found.mode == "RGB" and min(found.size) >= 1
            assert found.size[0] * found.size[1] <= 50_000_000
            if not changed:
                assert np.array_equal(np.asarray(found), first)

        kinds.append(Kind("images", [path], read, right))
    return kinds


@pytest.fixture(scope="module")
def kinds(place: Path, tiny_clip: Path) -> dict[str, list[Kind]]:
    """All kinds of files by name; every file is accepted as it is."""
    annotations = annotation_kinds(place)
    everything = [
        *annotations, *ranking_kinds(place), *server_kinds(place), *run_kinds(place, tiny_clip),
        *index_kinds(place), shard_kind(place), export_kind(place), *image_kinds(place),
    ]  # fmt: skip
    by_name: dict[str, list[Kind]] = {}
    for kind in everything:
        kind.right(kind.read(), False)
        by_name.setdefault(kind.name, []).append(kind)
    return by_name


def try_file(kind: Kind, rng: random.Random) -> str:
    """Damage one file of ``kind``, read, check, and put it back; what came of it."""
    path = rng.choice(kind.files)
    data = kind.whole[path]
    try:
        if kind.places and rng.random() < 0.06:
            damage = rng.choice(list(PLACE_DAMAGES))
            PLACE_DAMAGES[damage](path)
            nobody = damage == "unreadable"
        else:
            as_json = path.suffix == ".json" and rng.random() < 0.7
            damage, changed = (damaged_json if as_json else damaged_bytes)(data, rng)
            path.write_bytes(changed)
            nobody = False
        try:
            with within():
                if nobody:
                    with as_nobody():
                        value = kind.read()
                else:
                    value = kind.read()
        except InputError as error:
            explains(error, *(one.name for one in kind.files), *kind.names)
            return "refused"
        assert not nobody, f"{path.name} was read without the right to"
        kind.right(value, kind.changed)
        return "accepted"
    except BaseException as error:
        error.add_note(f"{kind.name}: {path.name}, {locals().get('damage', 'undamaged')}")
        raise
    finally:
        restore(path, data)
        for other in kind.files:
            if other != path and (not other.is_file() or other.read_bytes() != kind.whole[other]):
                restore(other, kind.whole[other])


@pytest.mark.filterwarnings("ignore")  # Pillow's, about metadata
def test_damaged_files_are_read_right_or_refused_in_words(kinds: dict[str, list[Kind]]) -> None:
    counts: Counter[str] = Counter()

    @many(FILES)
    @given(seeds)
    def try_one(seed: int) -> None:
        rng = random.Random(seed)
        name = rng.choice(list(kinds))
        counts[f"{name} {try_file(rng.choice(kinds[name]), rng)}"] += 1

    try_one()
    report("damaged files", counts)
    assert sum(counts.values()) >= FILES
