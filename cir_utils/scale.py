"""What a gallery of millions or billions of pictures takes: bytes, GPU hours, money, and what each of the
five exact devices saves of them. The tables of docs/scale.md come from here.

A small simulator in three layers:

* **bytes** are counted: features, indexes, captions, files (:func:`index_bytes` and so on);
* **work** is counted: operations of the encoder (:func:`vision_flops`), calls and tokens of the MLLM
  (:mod:`cir_utils.costs`), operations and bytes of a scan (:class:`Scan`);
* **time** is work over the rates of a machine (:class:`Machine`): of two bounds the later one.

No rate is built into the functions. Those of the page's tables stand in :data:`GPU` and :data:`LOAD`, named
and marked as assumed; put your own in their place (``run.json`` and ``cir extract`` have them). What can be
measured on any machine is: :func:`checks` sets predictions beside the measurements of docs/benchmarks.md, and
tests count the operations of a real model and the bytes of real files."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import open_clip
from open_clip.tokenizer import SimpleTokenizer

from cir_utils import costs
from cir_utils.errors import InputError
from cir_utils.feature_store import IMAGES_PER_SHARD
from cir_utils.files import read_json
from cir_utils.index import CODES, TRAINING_ROWS, Kind
from cir_utils.prompts import load_prompt
from cir_utils.runs import VERIFIERS

#: What a prediction may be off by, as a factor, before the page's plan is not to be trusted.
TOLERANCE = 1.5
#: Bytes of a row of the response cache beside its text: key, lengths, class, agent, and the page's slack.
ROW_BYTES = 110
#: What plain SDR-CIR does with its three score matrices after the products, in passes over one: two products
#: with numbers, two differences, each reading and writing.
COMBINING_PASSES = 11


@dataclass(frozen=True)
class Machine:
    """A GPU with its share of the host. ``flops``: dense 16-bit operations a second by the data sheet, of
    which the encoder and a product reach ``share``; ``bandwidth``: bytes a second of its memory, likewise;
    ``memory``: bytes; ``reading``: bytes a second of picture files, read and decoded; ``speed``: of the MLLM;
    ``price``: of an hour."""

    name: str
    flops: float
    bandwidth: float
    memory: float
    share: float
    reading: float
    speed: costs.Speed
    price: float


@dataclass(frozen=True)
class Load:
    """What is to be done. ``queries`` are those of one batch; ``tokens`` of one call by agent;
    ``picture_bytes`` and ``caption_bytes`` the means of a file and of a caption's text."""

    encoder: str
    queries: int
    k_prime: int
    statements: float
    picture_bytes: float
    caption_bytes: float
    tokens: Mapping[str, costs.Tokens]


@dataclass(frozen=True)
class Scan:
    """The rates of a scan: ``flops`` and ``bytes`` a second, and ``sorting``, seconds a score and full
    sort."""

    flops: float
    bytes: float
    sorting: float = 0.0

    def seconds(self, queries: int, rows: int, width: int, *, products: int = 1, item: int = 4) -> float:
        """Seconds of ``products`` products of ``(queries, width)`` with ``(rows, width)`` of ``item`` bytes a
        value: by operations or by reading, whichever takes longer."""
        work = 2.0 * queries * rows * width
        return products * max(work / self.flops, rows * width * item / self.bytes)

    def sorts(self, queries: int, rows: int) -> float:
        """Seconds of one full sort of every query's ``rows`` scores."""
        return self.sorting * queries * rows


#: The accelerator of the page's tables: an H100 (SXM), flops, bandwidth and memory by NVIDIA's data sheet.
#: The rest is assumed: what of them is reached, how fast pictures come, and the MLLM's speed and the price as
#: in notebook 10.
GPU = Machine(
    "H100", flops=989e12, bandwidth=3.35e12, memory=80e9, share=0.4, reading=400e6,
    speed=costs.Speed(10_000.0, 1_500.0), price=2.0,
)  # fmt: skip
#: Tokens of an answer, of a modification text and of a statement, assumed as in notebook 10.
ANSWERS = {"caption": 60, "selective_cot": 250, "imagine": 150, "questions": 120}
MODIFICATION, STATEMENT = 12, 30
#: Pictures of 640 x 480, of which Qwen2.5-VL makes a token of every 28 x 28 pixels.
PICTURE_TOKENS = round(640 / 28) * round(480 / 28)


def default_tokens() -> dict[str, costs.Tokens]:
    """Tokens of a call of each agent: the texts of the prompt set ``default``, counted with CLIP's tokenizer,
    a picture where the agent sees one, and the assumed lengths of what is filled in and answered."""
    count = SimpleTokenizer()
    slots = dict.fromkeys(("modifications", "present", "absent"), ANSWERS["imagine"] // 3)
    slots |= {"modification": MODIFICATION, "caption": ANSWERS["caption"], "statement": STATEMENT}
    agents = {
        "selective_cot": ("selective_cot", 1, ANSWERS["selective_cot"]),
        "gallery_captions": ("caption", 1, ANSWERS["caption"]),
        "reference_captions": ("caption", 1, ANSWERS["caption"]),
        "imagine_text": ("imagine_text", 0, ANSWERS["imagine"]),
        "imagine_vision": ("imagine_vision", 1, ANSWERS["imagine"]),
        "questions": ("questions", 0, ANSWERS["questions"]),
        "verify_caption": ("verify_caption", 0, 1),
        "verify_picture": ("verify_picture", 1, 1),
    }
    found = {}
    for agent, (name, pictures, answer) in agents.items():
        prompt = load_prompt("default", name)
        whole = len(count.encode(prompt.text)) + sum(slots[slot] for slot in prompt.slots)
        whole += pictures * PICTURE_TOKENS
        found[agent] = costs.Tokens(whole, answer, whole - STATEMENT if agent in VERIFIERS else 0)
    return found


LOAD = Load(
    encoder="ViT-L-14", queries=1_000, k_prime=100, statements=4.0, picture_bytes=100e3, caption_bytes=250.0,
    tokens=default_tokens(),
)  # fmt: skip
SIZES = (10_000_000, 1_000_000_000)


# --- bytes ------------------------------------------------------------------------------------------------


def index_bytes(kind: Kind, rows: int, width: int, **settings: int) -> float:
    """Bytes of an index of ``cir_utils.index`` on disk, without its ids: ``flat`` the float32 rows, ``hnsw``
    these and the graph's links (2 M of four bytes a row on its lowest level, somewhat over 16 bytes a row for
    the others and the tables), ``ivfpq`` a code of ``m`` bytes and a number of eight a row, the centroids and
    the codes' own values."""
    if kind == "flat":
        return rows * width * 4.0
    if kind == "hnsw":
        M = settings.get("M", 32)
        return rows * (width * 4.0 + 8 * M + 12 + 4 * M / (M - 1))
    m = settings.get("m", width // 4)
    lists = settings.get("nlist", max(1, min(4 * math.isqrt(rows), rows // 40, TRAINING_ROWS)))
    return rows * (m + 8.0) + lists * width * 4.0 + CODES * width * 4.0


def caption_bytes(rows: int, mean: float) -> float:
    """Bytes of ``rows`` captions of ``mean`` bytes in the response cache."""
    return rows * (mean + ROW_BYTES)


def store_files(rows: int) -> int:
    """Files of the feature store for ``rows`` pictures: a shard and its record for each batch."""
    return 2 * -(-rows // IMAGES_PER_SHARD)


# --- work and time ----------------------------------------------------------------------------------------


def vision_flops(config: Mapping[str, Any]) -> float:
    """Operations (a multiplication and an addition are two) of a vision transformer for one picture, from its
    open_clip configuration: patches, then for each layer the four projections, the attention, and the two
    layers of the MLP."""
    vision = config["vision_cfg"]
    layers, d, patch = vision["layers"], vision["width"], vision["patch_size"]
    hidden = int(d * vision.get("mlp_ratio", 4.0))
    patches = (vision["image_size"] // patch) ** 2
    tokens = patches + 1
    layer = tokens * (4 * d * d + 2 * d * hidden) + 2 * tokens * tokens * d
    return 2.0 * (patches * 3 * patch * patch * d + layers * layer + d * config["embed_dim"])


def encoding_hours(machine: Machine, encoder: str, rows: int, picture_bytes: float) -> tuple[float, float]:
    """GPU hours of encoding ``rows`` pictures: by operations, and by reading the files. The later one counts;
    where it is reading, more hosts a GPU help."""
    config = _config(encoder)
    work = rows * vision_flops(config) / (machine.flops * machine.share)
    return work / 3600, rows * picture_bytes / machine.reading / 3600


def scan_of(machine: Machine) -> Scan:
    """The rates of a scan on a machine; sorting is left out, for it is measured on CPUs alone."""
    return Scan(machine.flops * machine.share, machine.bandwidth * machine.share)


@dataclass(frozen=True)
class Hours:
    """GPU hours of a gallery, once: ``features``, ``captions`` (X^R alone); and of one batch of queries:
    ``sdr_cir`` and ``xr`` (captions not included), the latter without and with what pruning leaves out; and
    the ``scan`` of the batch."""

    features: float
    captions: float
    sdr_cir: float
    xr_unpruned: float
    xr: float
    scan: float


def hours(machine: Machine, load: Load, rows: int, left_out: float) -> Hours:
    """The hours of ``load`` on ``rows`` pictures, ``left_out`` of whose verifications pruning spares (0 to
    1)."""

    def of(calls: Mapping[str, float]) -> float:
        return costs.plan(calls, load.tokens, load.statements).hours(machine.speed)

    xr = costs.xr_calls(load.queries, rows, load.k_prime, load.statements)
    captions = {"gallery_captions": xr.pop("gallery_captions")}
    pruned = {agent: count * (1 - left_out * (agent in VERIFIERS)) for agent, count in xr.items()}
    width = int(_config(load.encoder)["embed_dim"])
    return Hours(
        features=max(encoding_hours(machine, load.encoder, rows, load.picture_bytes)),
        captions=of(captions),
        sdr_cir=of(costs.sdr_cir_calls(load.queries)),
        xr_unpruned=of(xr),
        xr=of(pruned),
        scan=scan_of(machine).seconds(load.queries, rows, width, item=2) / 3600,
    )


def pruned_share(results: Path) -> float:
    """The share of X^R's verifications that pruning left out, over the kept records of its test runs.

    Raises :class:`InputError` where there is none."""
    found = [read_json(path, "run record") for path in sorted(results.glob("*/*/run.json"))]
    shares = [record["cost"]["pruning"] for record in found if record["label"] == "xr"]
    shares = [share for share in shares if share]
    if not shares:
        raise InputError(f"{results} has no record of xr with pruning; run it and keep its record")
    asked = sum(share["asked"] for share in shares)
    spared = sum(share["captions_not_asked"] + share["pictures_not_asked"] for share in shares)
    return spared / (asked + spared)


def _config(encoder: str) -> dict[str, Any]:
    config = open_clip.get_model_config(encoder)
    if config is None:
        raise InputError(f"unknown architecture {encoder!r}: choose one of open_clip's")
    return config


# --- checks against measurements --------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """A prediction beside its measurement, in seconds."""

    what: str
    predicted: float
    measured: float

    @property
    def factor(self) -> float:
        """How far off, 1 or more."""
        return max(self.predicted / self.measured, self.measured / self.predicted)


@dataclass(frozen=True)
class Measured:
    """What docs/benchmarks.md says of the machine it was measured on: its sizes, the ``seconds`` of each
    contender, the ``rates`` behind three of them (a product alone, one query, a full sort), and ``cutting``,
    seconds a score of the certified cut of both lists."""

    queries: int
    rows: int
    width: int
    seconds: dict[str, float]
    rates: Scan
    cutting: float

    @property
    def plain(self) -> float:
        """Predicted seconds of SDR-CIR's three products and their combination."""
        combining = COMBINING_PASSES * self.queries * self.rows * 4.0 / self.rates.bytes
        return self.rates.seconds(self.queries, self.rows, self.width, products=3) + combining


def measured(page: str) -> Measured:
    """Reads the text of docs/benchmarks.md. Raises :class:`InputError` where rows are missing."""
    size = re.search(r"([\d,]+) queries, ([\d,]+) x (\d+) random float32 features", page)
    rows = re.findall(r"^\| ([^|]+?) \| ([\d.]+) \| [\d,]+ \|$", page, re.MULTILINE)
    took = {name: float(value) for name, value in rows}
    try:
        if size is None:
            raise KeyError("sizes")
        Q, N, D = (int(number.replace(",", "")) for number in size.groups())
        product = took["torch.mm alone"]
        rates = Scan(2.0 * Q * N * D / product, N * D * 4 / took["ours, float32, one query"])
        cutting = (took["ours, X^R coarse stage"] - 2 * product) / (Q * N)
        found = Measured(Q, N, D, took, rates, cutting)
        sorting = (took["three products, full sort"] - found.plain) / (Q * N)
    except KeyError as error:
        raise InputError(f"docs/benchmarks.md lacks {error}; write it with `make bench`") from None
    return replace(found, rates=replace(rates, sorting=sorting))


def checks(page: str) -> list[Check]:
    """Predictions for the contenders of docs/benchmarks.md from which no rate was taken."""
    found = measured(page)
    rates, (Q, N, D) = found.rates, (found.queries, found.rows, found.width)
    predicted = {
        "ours, float32": rates.seconds(Q, N, D),
        "ours, certified 16 bit, one query": rates.seconds(1, N, D, item=2),
        "three products, topk": found.plain + Q * N * 4.0 / rates.bytes,
        "X^R four products, double argsort": rates.seconds(Q, N, D, products=4) + 4 * rates.sorts(Q, N),
    }
    return [Check(name, value, found.seconds[name]) for name, value in predicted.items()]


# --- the page -----------------------------------------------------------------------------------------------


def part(name: str, results: Path, benchmarks: Path) -> str:
    """A generated part of docs/scale.md, as Markdown."""
    page = benchmarks.read_text(encoding="utf-8")
    parts: dict[str, Callable[[], str]] = {
        "assumptions": _assumptions,
        "bytes": _bytes,
        "hours": lambda: _hours(pruned_share(results)),
        "identities": lambda: _identities(pruned_share(results), page),
        "checks": lambda: _checks(page),
    }
    if name not in parts:
        raise InputError(f"unknown part {name!r} of docs/scale.md: choose {', '.join(parts)}")
    return parts[name]()


def _assumptions() -> str:
    tokens = LOAD.tokens["gallery_captions"]
    rows = [
        ["GPU", f"{GPU.name}: {GPU.flops / 1e12:,.0f} TFLOP/s in 16 bit, {GPU.bandwidth / 1e12:.2f} TB/s, "
                f"{GPU.memory / 1e9:.0f} GB", "data sheet"],
        ["reached of operations and bandwidth", f"{GPU.share:.0%}", "assumed"],
        ["picture files", f"{LOAD.picture_bytes / 1e3:.0f} kB each, {GPU.reading / 1e6:,.0f} MB/s read and "
                          "decoded for each GPU", "assumed"],
        ["CLIP", f"{LOAD.encoder}, D = {_config(LOAD.encoder)['embed_dim']}, "
                 f"{vision_flops(_config(LOAD.encoder)) / 1e9:.0f} GFLOP a picture", "counted"],
        ["MLLM", f"{GPU.speed.prompt:,.0f} prompt and {GPU.speed.completion:,.0f} answer tokens a second",
         "assumed, as in notebook 10"],
        ["a caption", f"{tokens.prompt:.0f} + {tokens.completion:.0f} tokens, {LOAD.caption_bytes:.0f} bytes",
         "assumed, as in notebook 10"],
        ["X^R", f"k' = {LOAD.k_prime}, {LOAD.statements:g} statements a query",
         "k' published, statements assumed"],
        ["price", f"{GPU.price:.2f} a GPU hour", "an example, not a quote"],
    ]  # fmt: skip
    return _table(["what", "value", "source"], rows)


def _bytes() -> str:
    D = int(_config(LOAD.encoder)["embed_dim"])

    def row(name: str, size: Callable[[int], float], form: Callable[[float], str] | None = None) -> list[str]:
        return [name, *((form or _size)(size(rows)) for rows in SIZES)]

    rows = [
        row("picture files", lambda n: n * LOAD.picture_bytes),
        row("features, float32 (the store, or an index `flat`)", lambda n: costs.feature_bytes(n, D)),
        row("features, 16 bit (what a scan reads)", lambda n: costs.feature_bytes(n, D, "float16")),
        row("index `hnsw`, M = 32", lambda n: index_bytes("hnsw", n, D)),
        row(f"index `ivfpq`, {D // 4} bytes a picture", lambda n: index_bytes("ivfpq", n, D)),
        row(f"index `ivfpq`, {D // 16} bytes a picture", lambda n: index_bytes("ivfpq", n, D, m=D // 16)),
        row("captions in the response cache (X^R)", lambda n: caption_bytes(n, LOAD.caption_bytes)),
        row("files of the feature store", store_files, lambda n: f"{n:,.0f}"),
        row(f"{GPU.name}s whose memory holds the 16-bit features",
            lambda n: math.ceil(costs.feature_bytes(n, D, "float16") / GPU.memory), lambda n: f"{n:,.0f}"),
    ]  # fmt: skip
    return _table(["", *_headings()], rows)


def _hours(left_out: float) -> str:
    found = [hours(GPU, LOAD, rows, left_out) for rows in SIZES]

    def row(name: str, value: Callable[[Hours], float]) -> list[str]:
        return [name, *(f"{_number(value(one))} ({_money(value(one))})" for one in found)]

    reading = encoding_hours(GPU, LOAD.encoder, 1, LOAD.picture_bytes)
    bound = "reading" if reading[1] > reading[0] else "computing"
    lines = [
        row(f"once: features of the pictures ({bound} decides)", lambda one: one.features),
        row("once, X^R alone: captions", lambda one: one.captions),
        row(f"{LOAD.queries:,} queries, SDR-CIR: descriptions", lambda one: one.sdr_cir),
        row(f"{LOAD.queries:,} queries: exact scan in 16 bit", lambda one: one.scan),
        row(f"{LOAD.queries:,} queries, X^R: agents, nothing pruned", lambda one: one.xr_unpruned),
        row(f"{LOAD.queries:,} queries, X^R: agents, pruned ({left_out:.0%} of the verifications less)",
            lambda one: one.xr),
    ]  # fmt: skip
    return _table(["GPU hours (price)", *_headings()], lines)


def _identities(left_out: float, page: str) -> str:
    D = int(_config(LOAD.encoder)["embed_dim"])
    scan, Q = scan_of(GPU), LOAD.queries
    cpu = measured(page)

    def row(name: str, of: Callable[[int], tuple[str, str]]) -> list[str]:
        return [name, *(f"{plain} → {fast}" for plain, fast in map(of, SIZES))]

    def seconds(rows: int, products: int, item: int = 2) -> str:
        return f"{_number(scan.seconds(Q, rows, D, products=products, item=item))} s"

    def one_query(rows: int, item: int) -> str:
        return f"{_number(1e3 * scan.seconds(1, rows, D, item=item))} ms"

    def xr(rows: int) -> tuple[str, str]:
        one = hours(GPU, LOAD, rows, left_out)
        return f"{_number(one.xr_unpruned)} h", f"{_number(one.xr)} h"

    lines = [
        row(f"1. composed query: three products, one ({Q:,} queries)",
            lambda n: (seconds(n, 3), seconds(n, 1))),
        row(f"2. summed gallery: four products, two ({Q:,} queries)",
            lambda n: (seconds(n, 4), seconds(n, 2))),
        row("2. its bytes: pictures and captions, or their sum",
            lambda n: (_size(2 * costs.feature_bytes(n, D, "float16")),
                       _size(costs.feature_bytes(n, D, "float16")))),
        row("3. certified cut: four full sorts, the cut (one query, the CPU of docs/benchmarks.md)",
            lambda n: (f"{_number(4 * cpu.rates.sorts(1, n))} s", f"{_number(cpu.cutting * n)} s")),
        row(f"4. pruned verification ({Q:,} queries, GPU hours)", xr),
        row("5. 16 bit, certified: one query reads", lambda n: (one_query(n, 4), one_query(n, 2))),
    ]  # fmt: skip
    return _table(["device: plain → fast", *_headings()], lines)


def _checks(page: str) -> str:
    rows = [
        [one.what, f"{one.predicted:.3f}", f"{one.measured:.3f}", f"{one.factor:.2f}"] for one in checks(page)
    ]
    head = ["contender of docs/benchmarks.md", "predicted, s", "measured, s", "off by a factor of"]
    return _table(head, rows) + f"\nAllowed by the test: a factor of {TOLERANCE}.\n"


def _headings() -> list[str]:
    names = {10_000_000: "10 M pictures", 1_000_000_000: "1 B pictures"}
    return [names[rows] for rows in SIZES]


def _size(count: float) -> str:
    for unit, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB")):
        if count >= unit:
            return f"{_number(count / unit)} {name}"
    return f"{_number(count / 1e6)} MB"


def _money(hours: float) -> str:
    price = hours * GPU.price
    return f"{price:,.0f}" if price >= 10 else f"{price:.2f}" if price >= 0.005 else "under 0.01"


def _number(value: float) -> str:
    """Three significant digits, with thousands marked."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{round(value, digits):,.{min(digits, 6)}f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *(["---:"] * (len(head) - 1))], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
