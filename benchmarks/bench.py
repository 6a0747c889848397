"""`make bench`: the fast path beside what it replaces, each in a process of its own, in one session.

Random features of unit length at CIRCO's size (800 queries, 123,403 x 768 float32) are written once to a
temporary folder. Then the contenders run in turn, several rounds of all of them: one process each, which
reads the features into memory, prepares what a contender builds once for a gallery (an index, a rounded
copy), runs once to warm up and then for the clock. A ratio is the median over the rounds of the ratio within
a round. From the folder of the checkout::

    python -m benchmarks.bench                  # or: make bench
    python -m benchmarks.bench --queries 80 --gallery 10000 --rounds 1   # a quick look

writes `bench.json` (machine, one row for every bar with `name`, `ratio`, `bar`, `holds`; all timings) and the
page `docs/benchmarks.md`. A row that cannot be measured here says so, and why. The exit code is 0 whatever
holds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import normalize

from cir_utils.device import peak_bytes
from cir_utils.errors import exit_code
from cir_utils.files import write_atomic, write_json_atomic
from cir_utils.scoring import KAPPA, composed_query
from cir_utils.search import debiased_topk, map_features, prepare_gallery, rrf_topk, scan_dtype, topk

ROOT = Path(__file__).resolve().parent.parent
ALPHA, BETA = 0.15, 0.35
K, K_COARSE = 50, 100
#: The loop over queries is timed on a part of them and scaled up: it is the same work for each.
LOOP_PART = 10
GROWTH = (100_000, 1_000_000)
GROWTH_WIDTH = 512

Run = Callable[[], Tensor]


# --- contenders -------------------------------------------------------------------------------------------
# Each takes the features and returns what is timed. What it does before it returns is not timed.


def three_products(data: dict[str, Tensor]) -> Run:
    """SDR-CIR's formula as a reader would write it: three products, all scores, a full sort."""
    X, F_r, F_d, F_m = (data[name] for name in ("pictures", "F_r", "F_d", "F_m"))

    def run() -> Tensor:
        F_q = normalize((1 - ALPHA) * F_d + ALPHA * F_r, dim=1)
        S_q, S_d, S_m = F_q @ X.T, F_d @ X.T, F_m @ X.T
        S_f = (1 + BETA) * S_q - BETA * (S_d - S_m)
        return S_f.argsort(dim=1, descending=True)[:, :K]

    return run


def three_products_topk(data: dict[str, Tensor]) -> Run:
    """The same with `topk` in place of the sort."""
    X, F_r, F_d, F_m = (data[name] for name in ("pictures", "F_r", "F_d", "F_m"))

    def run() -> Tensor:
        F_q = normalize((1 - ALPHA) * F_d + ALPHA * F_r, dim=1)
        S_f = (1 + BETA) * (F_q @ X.T) - BETA * (F_d @ X.T - F_m @ X.T)
        return S_f.topk(K, dim=1).indices

    return run


def loop(data: dict[str, Tensor]) -> Run:
    """One query after the other, as research code often has it."""
    X, F_r, F_d, F_m = (data[name] for name in ("pictures", "F_r", "F_d", "F_m"))
    part = max(1, len(F_r) // LOOP_PART)

    def run() -> Tensor:
        best = []
        for i in range(part):
            F_q = (1 - ALPHA) * F_d[i] + ALPHA * F_r[i]
            F_q = F_q / F_q.norm()
            S_f = (1 + BETA) * (X @ F_q) - BETA * (X @ F_d[i] - X @ F_m[i])
            best.append(torch.argsort(S_f, descending=True)[:K])
        return torch.stack(best)

    return run


def numpy_product(data: dict[str, Tensor]) -> Run:
    """The composed query in numpy: one product, `argpartition`, a sort of the best."""
    import numpy as np

    X = data["pictures"].numpy()

    def run() -> Tensor:
        S = _composed(data).float().numpy() @ X.T
        best = np.argpartition(S, -K, axis=1)[:, -K:]
        order = np.argsort(-np.take_along_axis(S, best, axis=1), axis=1)
        return torch.from_numpy(np.take_along_axis(best, order, axis=1))

    return run


def faiss_flat(data: dict[str, Tensor]) -> Run:
    """FAISS `IndexFlatIP` given the composed query."""
    import faiss

    index = faiss.IndexFlatIP(data["pictures"].shape[1])
    index.add(data["pictures"].numpy())
    data["pictures"] = data["pictures"][:0]  # the index holds a copy
    return lambda: torch.from_numpy(index.search(_composed(data).float().numpy(), K)[1])


def faiss_single(data: dict[str, Tensor]) -> Run:
    """FAISS `IndexFlatIP`, one composed query."""
    return faiss_flat(_first(data))


def matrix_product(data: dict[str, Tensor]) -> Run:
    """`torch.mm` of the same size: the floor of float32."""
    X, w = data["pictures"], _composed(data).float()

    def run() -> Tensor:
        torch.mm(w, X.T)
        return torch.empty(0)

    return run


def float32(data: dict[str, Tensor]) -> Run:
    """`cir_utils.search.debiased_topk`, scanned in float32."""
    return _debiased(data, torch.float32)


def certified(data: dict[str, Tensor]) -> Run:
    """`cir_utils.search.debiased_topk`, scanned in the processor's 16-bit precision."""
    return _debiased(data, scan_dtype("cpu"))


def float32_single(data: dict[str, Tensor]) -> Run:
    """The same with one query, in float32."""
    return _debiased(_first(data), torch.float32)


def certified_single(data: dict[str, Tensor]) -> Run:
    """The same with one query, in 16 bits."""
    return _debiased(_first(data), scan_dtype("cpu"))


def read_once(data: dict[str, Tensor]) -> Run:
    """Reads the stored float32 features once from memory (and adds them up)."""
    X = data["pictures"]

    def run() -> Tensor:
        X.sum()
        return torch.empty(0)

    return run


def four_products(data: dict[str, Tensor]) -> Run:
    """X^R's coarse stage as written: four products, ranks by two sorts a list, fusion."""
    C_a, I_a, C_t, C_v = (data[name] for name in ("captions", "pictures", "C_t", "C_v"))

    def run() -> Tensor:
        S_t, S_v = C_t @ C_a.T + C_t @ I_a.T, C_v @ C_a.T + C_v @ I_a.T
        fused = 0
        for S in (S_t, S_v):
            ranks = S.argsort(dim=1, descending=True).argsort(dim=1) + 1
            fused = fused + 1 / (KAPPA + ranks)
        return fused.topk(K_COARSE, dim=1).indices

    return run


def coarse(data: dict[str, Tensor]) -> Run:
    """`cir_utils.search.rrf_topk` on the summed gallery."""
    gallery = prepare_gallery(data["captions"], data["pictures"], dtype=torch.float32)
    return lambda: rrf_topk(data["C_t"], data["C_v"], gallery, K_COARSE).items


def growth(path: Path, queries: Tensor) -> Run:
    """`cir_utils.search.topk` from a mapped float16 file."""
    gallery = prepare_gallery(map_features(path))
    return lambda: topk(queries, gallery, K).items


CONTENDERS: dict[str, Callable[[dict[str, Tensor]], Run]] = {
    "three products, full sort": three_products,
    "three products, topk": three_products_topk,
    "loop over queries": loop,
    "numpy, composed query": numpy_product,
    "faiss IndexFlatIP": faiss_flat,
    "torch.mm alone": matrix_product,
    "ours, float32": float32,
    "ours, certified 16 bit": certified,
    "faiss IndexFlatIP, one query": faiss_single,
    "ours, float32, one query": float32_single,
    "ours, certified 16 bit, one query": certified_single,
    "features read once": read_once,
    "X^R four products, double argsort": four_products,
    "ours, X^R coarse stage": coarse,
}
FAISS = ("faiss IndexFlatIP", "faiss IndexFlatIP, one query")


def _composed(data: dict[str, Tensor]) -> Tensor:
    return composed_query(data["F_r"], data["F_d"], data["F_m"], ALPHA, BETA)


def _debiased(data: dict[str, Tensor], dtype: torch.dtype) -> Run:
    gallery = prepare_gallery(data["pictures"], dtype=dtype)
    return lambda: debiased_topk(data["F_r"], data["F_d"], data["F_m"], gallery, K, ALPHA, BETA).items


def _first(data: dict[str, Tensor]) -> dict[str, Tensor]:
    return data | {name: data[name][:1] for name in ("F_r", "F_d", "F_m")}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- one process ------------------------------------------------------------------------------------------


def measure(name: str, folder: Path, repeats: int) -> dict[str, Any]:
    """One contender in this process: seconds of every repeat, peak memory in MB, the first query's best."""
    torch.set_num_threads(_cores())
    if name.startswith("growth "):
        queries = load_file(folder / "growth-queries.safetensors")["w"]
        run = growth(folder / f"growth-{name.split()[1]}.safetensors", queries)
    else:
        data = load_file(folder / "queries.safetensors")
        coarse_too = name in ("X^R four products, double argsort", "ours, X^R coarse stage")
        for kind in ("pictures", "captions") if coarse_too else ("pictures",):
            data[kind] = _read(folder / f"{kind}.safetensors")
        run = CONTENDERS[name](data)
    begin = peak_bytes()
    seconds = []
    with _own_peak() as own:
        best = run()[:1]
    for _ in range(repeats):
        start = time.perf_counter()
        best = run()[:1]
        seconds.append(time.perf_counter() - start)
    peak = own[0] if name.startswith("growth ") and own else peak_bytes()
    return {"seconds": seconds, "peak_mb": peak / 1e6, "begin_mb": begin / 1e6, "best": best.tolist()}


@contextmanager
def _own_peak() -> Iterator[list[int]]:
    """The most memory of its own, in bytes, that this process held meanwhile: without the pages of mapped
    files, which are the system's and which `peak_bytes` counts. Nothing where the system does not tell."""
    peak: list[int] = []
    status, done = Path("/proc/self/status"), threading.Event()

    def look() -> None:
        while not done.wait(0.002):
            told = re.search(r"^RssAnon:\s+(\d+) kB", status.read_text(), re.M)
            if told:
                peak[:] = [max([*peak, 1024 * int(told[1])])]

    watcher = threading.Thread(target=look, daemon=True)
    if status.exists():
        watcher.start()
    try:
        yield peak
    finally:
        done.set()
        if watcher.is_alive():
            watcher.join()


def _read(path: Path) -> Tensor:
    """Features of a file in memory, read in parts, so that the file's pages do not count as well."""
    mapped = map_features(path)
    features = torch.empty(mapped.shape, dtype=mapped.dtype)
    for start in range(0, len(features), 4096):
        stop = min(start + 4096, len(features))
        features[start:stop] = mapped.block(start, stop)
    return features


def write_features(path: Path, name: str, rows: int, width: int, seed: int, dtype: torch.dtype) -> None:
    """Random features of unit length, from a seed."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.empty(rows, width, dtype=dtype)
    for chunk in made.split(4096):
        chunk.copy_(normalize(torch.randn(chunk.shape, generator=generator), dim=1))
    save_file({name: made}, path)


# --- the table --------------------------------------------------------------------------------------------

AT_LEAST, AT_MOST = "at least", "at most"
NOT_HERE = "not measured"
MINUTES, MINUTES_BAR = "mini profile, six methods on three benchmarks, cold cache: minutes", 8
#: What other scripts measure, by the file that they write beside `bench.json`: names and bars of their rows.
BESIDE: dict[str, list[tuple[str, str, float]]] = {
    "pruning": [
        ("MLLM calls for verification, pruned over not, k=10, k'=50", AT_MOST, 0.6),
        ("MLLM calls for verification, pruned over not, k=50, k'=100", AT_MOST, 1),
        ("vision features of a candidate, times encoded", AT_MOST, 1),
    ],
    "mini_profile": [(MINUTES, AT_MOST, MINUTES_BAR)],
    "bench_index": [
        ("HNSW, clustered features: recall@k", AT_LEAST, 0.98),
        ("HNSW, clustered features, one query, against exact: speed", AT_LEAST, 10),
    ],
}


def beside(folder: Path) -> list[dict[str, Any]]:
    """The rows that other scripts have measured, from the files in ``folder``; those that they have not are
    "not measured", with the command."""
    found: list[dict[str, Any]] = []
    for script, rows in BESIDE.items():
        path = folder / f"{script}.json"
        if path.is_file():
            found += json.loads(path.read_text(encoding="utf-8"))["bars"]
            continue
        reason = f"by python -m benchmarks.{script}"
        found += [
            {"name": name, "ratio": None, "bar": bar, "sense": sense, "holds": NOT_HERE, "reason": reason}
            for name, sense, bar in rows
        ]
    return found


def table(
    times: dict[str, dict[str, Any]], missing: dict[str, str], others: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """The rows of the page: `name`, `ratio`, `bar`, `holds`, and how to read them; ``others`` are those of
    other scripts."""

    def ratio(a: str, b: str, what: str = "seconds") -> float | None:
        if a not in times or b not in times:
            return None
        pairs = zip(times[a][what], times[b][what], strict=False)  # a round in which one failed has no pair
        return statistics.median(x / y for x, y in pairs)

    def row(name: str, value: float | None, sense: str, bar: float, reason: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {"name": name, "ratio": value, "bar": bar, "sense": sense}
        if value is None:
            return found | {"holds": NOT_HERE, "reason": reason or "a contender failed: see the messages"}
        return found | {"holds": value >= bar if sense == AT_LEAST else value <= bar}

    plain, low = "three products, full sort", "ours, certified 16 bit"
    no_units = "" if scan_dtype("cpu") != torch.float32 else "this processor has no bfloat16 units"
    measured = [name for name in (low, "ours, float32") if name in times]
    best = min(measured, key=lambda name: statistics.median(times[name]["seconds"]), default=low)
    one = "ours, certified 16 bit, one query"
    no_faiss = missing.get(FAISS[0], "")
    no_gpu = "no H200 here" if not torch.cuda.is_available() else "run on an H200 by hand"
    small, large = (f"growth {rows}" for rows in GROWTH)
    grown = ratio(large, small)
    return [
        row("debiased top-50, float32, against three products with a full sort: speed",
            ratio(plain, "ours, float32"), AT_LEAST, 8),
        row("debiased top-50, float32, against the same: peak memory",
            ratio("ours, float32", plain, "peak_mb"), AT_MOST, 0.25),
        row("debiased top-50, certified 16 bit, against the same: speed",
            None if no_units else ratio(plain, low), AT_LEAST, 12, no_units),
        row("debiased top-50, best path, against FAISS IndexFlatIP: speed",
            ratio(FAISS[0], best), AT_LEAST, 1, no_faiss),
        row("one query, best path, against FAISS IndexFlatIP: speed",
            ratio(FAISS[1], one), AT_LEAST, 1.6, no_faiss),
        row("debiased top-50, float32, against torch.mm of the same size: time",
            ratio("ours, float32", "torch.mm alone"), AT_MOST, 1.2),
        row("X^R coarse top-100, against four products with double argsorts: speed",
            ratio("X^R four products, double argsort", "ours, X^R coarse stage"), AT_LEAST, 6),
        row("100 k to 1 M rows from a mapped float16 file: time, over ten times that of the small one",
            None if grown is None else grown * GROWTH[0] / GROWTH[1], AT_MOST, 1.15, missing.get(large, "")),
        row("100 k to 1 M rows from a mapped float16 file: peak memory, over that of the small one",
            ratio(large, small, "peak_mb"), AT_MOST, 1.1, missing.get(large, "")),
        row("one query, over the time to read the features once",
            ratio(one, "features read once"), AT_MOST, 1.5),
        *others,
        row("H200, scoring with top-100, N = 10 M: share of the matrix rate", None, AT_LEAST, 0.6, no_gpu),
        row("H200, one query: share of the copy bandwidth", None, AT_LEAST, 0.8, no_gpu),
    ]  # fmt: skip


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        cpu = next((line.split(":", 1)[1].strip() for line in info.read_text().splitlines()
                    if line.startswith("model name")), cpu)  # fmt: skip
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    units = [name for name in ("avx2", "avx512_f", "avx512_bf16", "amx_bf16") if able.get(name)]
    try:
        faiss = version("faiss-cpu")
    except ImportError:
        faiss = None
    return {
        "cpu": cpu,
        "cores": _cores(),
        "units": units,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "faiss": faiss,
    }


def page(found: dict[str, Any]) -> str:
    """`docs/benchmarks.md`."""
    about, size = found["machine"], found["size"]
    lines = [
        "# Speed of scoring",
        "",
        "Generated by `make bench` (`benchmarks/bench.py`); `bench.json` has the same figures. Do not edit.",
        "",
        f"Machine: {about['cpu']}, {about['cores']} cores ({', '.join(about['units'])}), "
        f"{about['memory_gb']} GB, {about['gpu'] or 'no GPU'}; torch {about['torch']}, "
        f"numpy {about['numpy']}, faiss {about['faiss'] or 'not installed'}; "
        f"load before the start {about['load_before']}.",
        "",
        f"{size['queries']:,} queries, {size['gallery']:,} x {size['width']} random float32 features, exact "
        f"top-{K} (X^R: top-{K_COARSE}). Every contender runs in a process of its own; "
        f"rounds of all of them: {size['rounds']}, the median is shown. "
        "Speed: how many times as fast, more is better.",
        "",
        "| what | reached | bar | holds |",
        "|---|--:|--:|---|",
    ]
    for row in found["rows"]:
        reached = f"{row['ratio']:.2f}" if row["ratio"] is not None else NOT_HERE
        holds = {True: "yes", False: "**no**"}.get(row["holds"], row.get("reason", ""))
        lines.append(f"| {row['name']} | {reached} | {row['sense']} {row['bar']:g} | {holds} |")
    lines += ["", "| contender | seconds | peak MB |", "|---|--:|--:|"]
    for name, took in found["times"].items():
        note = f" (a tenth of the queries, times {took['scaled']:g})" if took["scaled"] != 1 else ""
        seconds, peak = statistics.median(took["seconds"]), statistics.median(took["peak_mb"])
        lines.append(f"| {name}{note} | {seconds:.3f} | {peak:,.0f} |")
    lines += [
        "",
        "Peak MB is the whole process: Python, torch and the features (not a mapped file's pages) included.",
        "Ours are exact: the order of the float64 scores of the stored features, ties by gallery order. The "
        "others rank by float32 scores as their product gave them.",
    ]
    return "\n".join(lines) + "\n"


def _child(name: str, folder: Path, repeats: int) -> dict[str, Any] | str:
    """`measure` in a process of its own, or why it failed."""
    command = [sys.executable, "-m", "benchmarks.bench", "--one", name, "--folder", str(folder)]
    done = subprocess.run(
        [*command, "--repeats", str(repeats)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    return json.loads(done.stdout.splitlines()[-1])


def session(folder: Path, chosen: argparse.Namespace) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """All contenders, round by round: times of each, and why one is missing."""
    for seed, kind in enumerate(("pictures", "captions")):
        path = folder / f"{kind}.safetensors"
        write_features(path, "features", chosen.gallery, chosen.width, seed, torch.float32)
    generator = torch.Generator().manual_seed(9)
    sides = {
        name: normalize(torch.randn(chosen.queries, chosen.width, generator=generator), dim=1)
        for name in ("F_r", "F_d", "F_m", "C_t", "C_v")
    }
    save_file(sides, folder / "queries.safetensors")
    names = list(CONTENDERS)
    if not chosen.no_growth:
        for rows in GROWTH:
            path = folder / f"growth-{rows}.safetensors"
            write_features(path, "features", rows, GROWTH_WIDTH, rows, torch.float16)
        w = torch.randn(chosen.queries, GROWTH_WIDTH, generator=generator)
        save_file({"w": w}, folder / "growth-queries.safetensors")
        names += [f"growth {rows}" for rows in GROWTH]
    times: dict[str, dict[str, Any]] = {}
    missing = {f"growth {GROWTH[1]}": "left out (--no-growth)"} if chosen.no_growth else {}
    best: dict[str, Any] = {}
    for turn in range(chosen.rounds):
        for name in names:
            if name in missing:
                continue
            short = "one query" in name or "read" in name
            found = _child(name, folder, chosen.repeats * (5 if short else 1))
            if isinstance(found, str):
                print(f"{name}: {found}", file=sys.stderr)
                missing[name] = found
                continue
            scaled = LOOP_PART if name.startswith("loop") else 1
            took = times.setdefault(name, {"seconds": [], "peak_mb": [], "scaled": scaled})
            took["seconds"].append(statistics.median(found["seconds"]) * scaled)
            took["peak_mb"].append(found["peak_mb"])
            best[name] = found["best"]
            print(
                f"round {turn + 1}: {name}: {took['seconds'][-1]:.3f} s, {found['peak_mb']:.0f} MB",
                file=sys.stderr,
            )
    for name in ("three products, full sort", "ours, float32", "faiss IndexFlatIP"):
        if name in best and best[name] != best["ours, certified 16 bit"]:
            print(f"note: {name} ranks the first query otherwise", file=sys.stderr)
    return times, missing


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=800)
    parser.add_argument("--gallery", type=int, default=123_403)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1, help="timed runs of one process")
    parser.add_argument("--no-growth", action="store_true", help="leave out the files of 100 k and 1 M rows")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder of bench.json and docs/benchmarks.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(argv)
    if chosen.one:
        print(json.dumps(measure(chosen.one, chosen.folder, chosen.repeats)))
        return 0
    about = machine()
    with tempfile.TemporaryDirectory(prefix="cir-bench-") as folder:
        times, missing = session(Path(folder), chosen)
    size = {name: getattr(chosen, name) for name in ("queries", "gallery", "width", "rounds")}
    found = {
        "machine": about,
        "size": size,
        "rows": table(times, missing, beside(chosen.out)),
        "times": times,
    }
    write_json_atomic(chosen.out / "bench.json", found)
    write_atomic(chosen.out / "docs" / "benchmarks.md", page(found))
    print(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
