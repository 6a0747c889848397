"""A gallery's features and captions worked out by many processes, on this machine or on a Ray cluster.

``cir extract --workers N`` (``pip install 'cir-utils[distributed]'``) runs two Ray Data pipelines. Both have
the same form: a list of batches, a pool of actors that each hold one model (on a GPU where there are some), a
shard a batch. An actor calls the code of a run in one process, on the batches of a run in one process, so
that what it writes is the same to the byte.

| | a batch | its shard | where runs find it |
|---|---|---|---|
| features | 64 pictures (``IMAGES_PER_SHARD``) | the feature store's own | the feature store |
| captions | requests, as many as the model takes | Parquet, below ``spread/`` | merged: the response cache |

**Each shard once.** Beside every shard lies its record, the shard's line of the manifest, with its SHA-256;
it is written after the shard, and both are written whole. A shard is done when shard and record are there and
belong together, whoever wrote them: an actor looks first and computes what is not. So an actor that dies
loses the batch in hand, which another does again; a run that is killed goes on where it was; a damaged shard
is found by its hash and done again; and nothing is there twice, for a shard's name is a hash of what went in.

Pictures, cache folder and models must be found under the same paths by all nodes. What goes from process to
process are ids, paths and counts: no picture, no key of a server.

A local cluster lives as long as the command: in a temporary folder, without dashboard and usage statistics,
with a token of its own in place of open ports.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tqdm import tqdm

from cir_utils.agents import BLOCK_REQUESTS
from cir_utils.benchmarks import ImageId
from cir_utils.encoder import LOCAL, ClipEncoder, load_encoder
from cir_utils.errors import InputError
from cir_utils.feature_store import IMAGES_PER_SHARD, store_images
from cir_utils.files import sha256_text, write_atomic, write_json_atomic
from cir_utils.mllm import MLLM, Answer, Request, Unanswered
from cir_utils.mllm_replay import PREFIX as REPLAY
from cir_utils.mllm_server import PREFIX as SERVER
from cir_utils.response_cache import ANSWERS, ImageHashes, ResponseCache
from cir_utils.workbench import Workbench, open_mllm

log = logging.getLogger(__name__)

#: The folder of captions that are not merged yet, within the cache folder.
SPREAD = "spread"
#: Pictures whose captions are in memory at a time; they are merged after each such part.
CAPTIONED = 1 << 16
#: Tasks a worker that Ray is told of: enough for an even end, few enough to cost nothing.
TASKS = 64
#: CPU cores of a worker on a cluster, at most: more would not fit onto every node, and no more read pictures.
#: Where there are no GPUs, more workers take the rest.
THREADS = 8
#: How often a batch is given out again whose worker died. One that kills every worker ends the command.
RETRIES = 3
#: Attempts to start a local cluster; on a busy machine Ray's own limits of seconds are short.
STARTS = 3
#: Bytes of Ray's object store: what passes through it are ids, paths and counts.
STORE_BYTES = 200_000_000

#: Of the local clusters of this process: Ray reads it once.
_TOKEN = uuid.uuid4().hex

Say = Callable[[str], None]


@dataclass(frozen=True)
class Workers:
    """How work is spread: over ``count`` processes of ``threads`` torch threads each (None: as many as there
    are for each, on a cluster ``THREADS`` at most), on the Ray cluster at ``address`` (``auto`` or
    ``HOST:PORT``; None: one on this machine, for the time)."""

    count: int
    threads: int | None = None
    address: str | None = None


@dataclass(frozen=True)
class Pool:
    """A running cluster's part in it: ``count`` workers, each with ``threads`` CPU cores and ``gpus`` of a
    GPU, computing on ``device``."""

    count: int
    threads: int
    gpus: float
    device: str


@dataclass(frozen=True)
class Extracted:
    """What :func:`extract` did: pictures whose features were ``reused`` or ``computed``; captions that were
    ``asked`` of the model or were ``known`` (second questions after an unusable answer included)."""

    pictures: int
    reused: int
    computed: int
    captions: int = 0
    known: int = 0
    asked: int = 0
    seconds: float = 0.0


# --- the work -----------------------------------------------------------------------------------------------


def extract(
    bench: Workbench,
    *,
    captions: bool = False,
    workers: Workers | None = None,
    device: str = "auto",
    say: Say = log.info,
) -> Extracted:
    """Compute and keep the features of all pictures that runs on ``bench`` read, and with ``captions`` their
    captions; with ``workers`` by these, else in this process.

    ``device`` is the name that ``bench`` was opened with: ``auto`` takes the GPUs of the cluster, which this
    machine may lack. Raises :class:`InputError` for pictures that cannot be read, models that cannot be
    loaded, a cluster that cannot be had, and where Ray is not installed; what was done until then is kept."""
    begin = time.perf_counter()
    lists = _picture_lists(bench)
    paths = [path for _, own in lists for path in own]
    if captions and bench.mllm_spec.startswith(REPLAY):
        raise InputError("a replay has its captions already; leave out --captions, or name another --mllm")
    if workers is None:
        reused = computed = 0
        for ids, own in lists:
            found = store_images(bench.encoder, ids, own, bench.cache_dir, say=say)
            reused, computed = reused + found[0], computed + found[1]
        if captions:
            _caption(bench.agents, paths)
            cost = bench.agents.cost
    else:
        with ray_pool(workers, device) as pool:
            reused, computed = spread_features(bench, lists, pool, say)
            if captions:
                with _spread_mllm(bench, pool) as mllm:
                    agents = bench.agents_with(mllm, ResponseCache(bench.cache_dir / ANSWERS))
                    _caption(agents, paths)
                cost = agents.cost
    done = Extracted(len(paths), reused, computed, seconds=time.perf_counter() - begin)
    if not captions:
        return done
    known, calls = cost.cached_calls, cost.mllm_calls
    return replace(done, captions=len(paths), known=known, asked=calls - known)


def _picture_lists(bench: Workbench) -> list[tuple[list[ImageId], list[Path]]]:
    """Ids and paths of the pictures that runs encode, in the lists that they encode them in: the gallery, and
    the references of each part whose gallery lacks some of them."""
    lists = [list(bench.benchmark.gallery)]
    for part in bench.parts.values():
        references = [query.reference for query in part.queries]
        if not all(reference in part.place_of for reference in references):
            lists.append(references)
    return [(ids, [bench.benchmark.image_path(image) for image in ids]) for ids in lists]


def _caption(agents: Any, paths: Sequence[Path]) -> None:
    unique = list(dict.fromkeys(paths))
    for start in range(0, len(unique), CAPTIONED):
        agents.caption(unique[start : start + CAPTIONED])


# --- features -----------------------------------------------------------------------------------------------


def spread_features(
    bench: Workbench, lists: Sequence[tuple[list[ImageId], list[Path]]], pool: Pool, say: Say = log.info
) -> tuple[int, int]:
    """The features of the pictures of every list, in the feature store: how many were reused and computed.

    A batch whose worker died after its shard was written counts as reused."""
    reused = computed = 0
    for row in feature_rows(bench, lists, pool):
        reused, computed = reused + row["reused"], computed + row["computed"]
        for said in row["said"]:
            say(said)
    return reused, computed


def feature_rows(
    bench: Workbench, lists: Sequence[tuple[list[ImageId], list[Path]]], pool: Pool
) -> Iterator[dict[str, Any]]:
    """The same, shard by shard as they are done."""
    tasks = [
        {"ids": ids[start : start + IMAGES_PER_SHARD],
         "paths": [os.path.abspath(path) for path in paths[start : start + IMAGES_PER_SHARD]]}
        for ids, paths in lists
        for start in range(0, len(ids), IMAGES_PER_SHARD)
    ]  # fmt: skip
    choices = {"precision": bench.precision, "preprocessing": bench.preprocessing}
    arguments = {
        "spec": _absolute(bench.encoder_spec, LOCAL),
        "choices": choices,
        "cache_dir": os.path.abspath(bench.cache_dir),
        "pool": asdict(pool),
    }
    return _spread(pool, FeatureWorker, arguments, tasks, "features")


def _row(do: Callable[[dict[str, Any]], dict[str, Any]], row: Mapping[str, Any]) -> dict[str, Any]:
    """The row that an actor gives for ``row``: what it does (``do``) with its task. Wrong input comes back as
    a row, for an exception would make Ray print where it came from. Each row says which process ended it,
    and when."""
    try:
        answer = do(json.loads(row["task"]))
    except InputError as error:
        answer = {"error": str(error)}
    except OSError as error:
        reason = f"{error.filename or 'the cache folder'} ({error.strerror})"
        answer = {
            "error": f"a Ray worker cannot go on at {reason}; see that there is room, and that all nodes "
            "have it under this path and may write there"
        }
    answer |= {"worker": os.getpid(), "ended": time.time()}
    return {"answer": json.dumps(answer, ensure_ascii=False)}


class FeatureWorker:
    """Encodes shards of pictures with an encoder that it loads for the first."""

    def __init__(
        self, spec: str, choices: Mapping[str, str], cache_dir: str, pool: Mapping[str, Any]
    ) -> None:
        self.pool = Pool(**pool)
        torch.set_num_threads(self.pool.threads)
        self.spec, self.choices, self.cache_dir = spec, choices, cache_dir
        self.encoder: ClipEncoder | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return _row(self.do, row)

    def do(self, task: dict[str, Any]) -> dict[str, Any]:
        if self.encoder is None:
            self.encoder = load_encoder(self.spec, self.pool.device, **self.choices)
        said: list[str] = []
        paths = [Path(path) for path in task["paths"]]
        reused, computed = store_images(self.encoder, task["ids"], paths, self.cache_dir, say=said.append)
        return {"reused": reused, "computed": computed, "said": said}


# --- captions -----------------------------------------------------------------------------------------------


class SpreadMLLM:
    """The client of an MLLM that many workers hold. It answers; verifying is left to runs.

    It looks like the model itself: the same ``identifier``, hence the same keys in the response cache, and
    the same batches. Answers lie in ``folder`` as shards until :meth:`forget`."""

    def __init__(self, spec: str, pool: Pool, folder: Path, about: Mapping[str, Any]) -> None:
        self.spec, self.pool, self.folder = spec, pool, folder
        self.identifier: str = about["identifier"]
        self.structured: bool = about["structured"]
        #: All that there is to ask at a time; the workers cut it into the model's own batches.
        self.block = sys.maxsize
        self.batch: int = about["block"]
        self._hash = ImageHashes()

    def generate(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers in the order of ``requests``. Raises :class:`Unanswered` with those that came."""
        tasks = []
        for start in range(0, len(requests), self.batch):
            batch = [_as_json(request) for request in requests[start : start + self.batch]]
            content = [self._hash(path) for request in batch for path in request["images"]]
            name = sha256_text(json.dumps([self.identifier, batch, content], sort_keys=True))[:32]
            tasks.append({"name": name, "start": start, "requests": batch})
        arguments = {
            "spec": self.spec,
            "identifier": self.identifier,
            "folder": os.path.abspath(self.folder),
            "pool": asdict(self.pool),
        }
        answers: dict[int, Answer] = {}
        for row in _spread(self.pool, AnswerWorker, arguments, tasks, "captions", answers_of(answers)):
            found = read_shard(self.folder, row["name"])
            if found is None:
                raise Unanswered(
                    f"the shard {row['name']} below {self.folder} was damaged while it was used; run again",
                    answers,
                )
            answers.update(enumerate(found, start=row["start"]))
        return [answers[place] for place in range(len(requests))]

    def verdicts(self, items: Sequence[Any]) -> list[list[Any]]:
        """Raises: who verifies asks the model itself, or a server of many GPUs (docs/scale.md)."""
        raise InputError(
            "Ray workers write captions and do not verify; give cir run one address that serves many GPUs, "
            "see docs/scale.md"
        )

    def forget(self) -> None:
        """Remove the shards, once their answers are in the response cache."""
        shutil.rmtree(self.folder, ignore_errors=True)


class AnswerWorker:
    """Answers batches of requests with an MLLM that it loads for the first one that is not answered yet."""

    def __init__(self, spec: str, identifier: str, folder: str, pool: Mapping[str, Any]) -> None:
        self.pool = Pool(**pool)
        torch.set_num_threads(self.pool.threads)
        self.spec, self.identifier, self.folder = spec, identifier, Path(folder)
        self.mllm: MLLM | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return _row(self.do, row)

    def do(self, task: dict[str, Any]) -> dict[str, Any]:
        answer = {"name": task["name"], "start": task["start"]}
        if read_shard(self.folder, task["name"]) is not None:
            return answer
        if self.mllm is None:
            self.mllm = open_mllm(self.spec, self.pool.device, ResponseCache())
            if self.mllm.identifier != self.identifier:
                raise InputError(
                    f"MLLM {self.spec} is {self.mllm.identifier} on one worker and {self.identifier} on "
                    "another; give all nodes the same model"
                )
        try:
            answers = self.mllm.generate([_from_json(request) for request in task["requests"]])
        except Unanswered as error:
            came = {place: asdict(found) for place, found in error.answers.items()}
            return answer | {"error": str(error), "came": came}
        write_shard(self.folder, task["name"], answers)
        return answer


def answers_of(answers: dict[int, Answer]) -> Callable[[str, Mapping[str, Any]], InputError]:
    """The error for a row that brings one, with the ``answers`` so far and those of the row."""

    def failed(message: str, row: Mapping[str, Any]) -> InputError:
        for place, answer in row.get("came", {}).items():
            answers[row["start"] + int(place)] = Answer(**answer)
        return Unanswered(message, answers)

    return failed


def write_shard(folder: Path, name: str, answers: Sequence[Answer]) -> None:
    """The shard ``name`` of ``answers``, and then its record."""
    table = pa.Table.from_pylist([asdict(answer) for answer in answers], schema=_SHARD)
    stream = pa.BufferOutputStream()
    pq.write_table(table, stream, compression="zstd")
    data = stream.getvalue().to_pybytes()
    write_atomic(folder / f"{name}.parquet", data)
    record = {"rows": len(answers), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_json_atomic(folder / f"{name}.json", record)


def read_shard(folder: Path, name: str) -> list[Answer] | None:
    """The answers of a shard, or None where it is not done: absent, without its record, or not the bytes that
    the record says."""
    try:
        record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        data = (folder / f"{name}.parquet").read_bytes()
        if hashlib.sha256(data).hexdigest() != record["sha256"]:
            return None
        rows = pq.read_table(pa.BufferReader(data), schema=_SHARD).to_pylist()
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None
    return [Answer(**row) for row in rows] if len(rows) == record["rows"] else None


_SHARD = pa.schema(
    [
        pa.field("text", pa.string(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("prompt_tokens", pa.int64(), nullable=False),
        pa.field("completion_tokens", pa.int64(), nullable=False),
    ]
)


def _as_json(request: Request) -> dict[str, Any]:
    return asdict(request) | {"images": [os.path.abspath(path) for path in request.images]}


def _from_json(row: Mapping[str, Any]) -> Request:
    return Request(**(dict(row) | {"images": tuple(Path(path) for path in row["images"])}))


@contextmanager
def _spread_mllm(bench: Workbench, pool: Pool) -> Iterator[SpreadMLLM]:
    """The workbench's MLLM on the workers, its shards removed when all went well. A second command on the
    same model and cache waits here: it then finds the answers of the first."""
    spec = bench.mllm_spec if bench.mllm_spec.startswith(SERVER) else _absolute(bench.mllm_spec)
    about = _about_mllm(spec, pool)
    name = sha256_text(about["identifier"])[:16]
    place = Path(bench.cache_dir) / SPREAD
    place.mkdir(parents=True, exist_ok=True)
    with open(place / f"{name}.lock", "ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        mllm = SpreadMLLM(spec, pool, place / name, about)
        yield mllm
        mllm.forget()


def _about_mllm(spec: str, pool: Pool) -> dict[str, Any]:
    """What the model says of itself. A local one is asked where it will work, for its precision depends on
    that."""
    if spec.startswith(SERVER):
        return _describe(spec, pool.device)
    ray = _ray()
    asked = ray.remote(num_cpus=pool.threads, num_gpus=pool.gpus, max_retries=RETRIES)(_describe)
    with _clear_errors(ray):
        about = ray.get(asked.remote(spec, pool.device))
    if "error" in about:
        raise InputError(about["error"])
    return about


def _describe(spec: str, device: str) -> dict[str, Any]:
    try:
        mllm = open_mllm(spec, device, ResponseCache())
    except InputError as error:
        return {"error": str(error)}
    return {
        "identifier": mllm.identifier,
        "structured": bool(getattr(mllm, "structured", False)),
        "block": int(getattr(mllm, "block", BLOCK_REQUESTS)),
    }


# --- Ray ----------------------------------------------------------------------------------------------------


@contextmanager
def ray_pool(workers: Workers, device: str = "auto") -> Iterator[Pool]:
    """A Ray cluster for the block: the one at ``workers.address``, or one on this machine that ends with the
    block, whatever ends it. A cluster that this process is connected to already is taken and left as it
    is."""
    if workers.count < 1:
        raise InputError(f"--workers {workers.count}: give a number of processes from 1 on")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = _ray()
    if ray.is_initialized():
        yield _pool(ray, workers, device)
    elif workers.address is not None:
        with _connected(ray, workers.address):
            yield _pool(ray, workers, device)
    else:
        threads = workers.threads or max(1, min(torch.get_num_threads(), _cores() // workers.count))
        with _local(ray, workers.count * threads):
            yield _pool(ray, replace(workers, threads=threads), device)


def _pool(ray: ModuleType, workers: Workers, device: str) -> Pool:
    """What each worker gets of the cluster."""
    have = ray.cluster_resources()
    gpus = int(have.get("GPU", 0))
    on_gpu = device.startswith("cuda") or (device == "auto" and gpus > 0)
    if on_gpu and not gpus:
        raise InputError(f"device {device!r}: the Ray cluster has no GPU; give --device cpu or another --ray")
    cores = int(have.get("CPU", 0))
    threads = workers.threads or max(1, min(THREADS, cores // workers.count))
    if workers.count * threads > cores:
        raise InputError(
            f"--workers {workers.count}: the Ray cluster has {cores} CPU cores, and each worker takes "
            f"{threads}; give fewer workers or more nodes"
        )
    share = min(1.0, gpus / workers.count) if on_gpu else 0.0
    return Pool(workers.count, threads, share, "cuda" if on_gpu else "cpu")


@contextmanager
def _local(ray: ModuleType, cores: int) -> Iterator[None]:
    """A cluster on this machine."""
    # A local cluster takes commands with the token alone, and Ray sets the mode. What its core would write to
    # standard error (of actors that it starts again, say) is in its logs anyway.
    own = {"RAY_AUTH_TOKEN": _TOKEN, "RAY_BACKEND_LOG_LEVEL": "fatal"}
    before = {name: os.environ.get(name) for name in (*own, "RAY_AUTH_MODE")}
    os.environ.update(own)
    # Ray puts sockets here, whose paths may have 107 characters: a TMPDIR can be too long.
    folder = tempfile.mkdtemp(prefix="cir-ray-", dir="/tmp")
    try:
        for attempt in range(1, STARTS + 1):
            try:
                with _no_stderr():
                    ray.init(
                        address="local",
                        num_cpus=cores,
                        include_dashboard=False,
                        log_to_driver=False,
                        logging_level=logging.ERROR,
                        object_store_memory=STORE_BYTES,
                        _temp_dir=folder,
                        _system_config={"worker_niceness": 0},  # 15 would leave the cores to whoever is there
                    )
                break
            except Exception as error:  # a bare Exception where its processes were too slow
                ray.shutdown()
                if attempt == STARTS:
                    raise InputError(
                        f"Ray does not start on this machine ({str(error).splitlines()[0]}); try again when "
                        "it is less busy, or leave out --workers"
                    ) from None
        _quiet(ray)
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Nothing reaches standard error, whoever writes: Ray's core says there that it will say nothing. What
    goes wrong comes as an exception."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _connected(ray: ModuleType, address: str) -> Iterator[None]:
    """A connection to a running cluster."""
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # ConnectionError, RuntimeError, ValueError, ... by what is wrong
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"no Ray cluster at {address} ({reason}); start one with `ray start --head`, or leave out --ray"
        ) from None
    try:
        _quiet(ray)
        yield
    finally:
        ray.shutdown()


def _quiet(ray: ModuleType) -> None:
    """No bars and reports of Ray Data's: rows are counted here, and errors become one line."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


def _spread(
    pool: Pool,
    worker: type[FeatureWorker] | type[AnswerWorker],
    arguments: Mapping[str, Any],
    tasks: Sequence[Mapping[str, Any]],
    what: str,
    failed: Callable[[str, Mapping[str, Any]], InputError] = lambda message, row: InputError(message),
) -> Iterator[dict[str, Any]]:
    """What the ``worker`` answers to each task, in any order, as answers come.

    A worker that dies is replaced and its tasks are given out again, ``RETRIES`` times. Raises what
    ``failed`` makes of the first error."""
    if not tasks:
        return
    ray = _ray()
    count = min(pool.count, len(tasks))
    rows = ray.data.from_items(
        [{"task": json.dumps(task, ensure_ascii=False)} for task in tasks],
        override_num_blocks=min(len(tasks), TASKS * count),
    ).map(
        worker,
        fn_constructor_kwargs=dict(arguments),
        compute=ray.data.ActorPoolStrategy(size=count, max_tasks_in_flight_per_actor=2),
        num_cpus=pool.threads,
        num_gpus=pool.gpus or None,
        # Deprecated from Ray 2.60 on, which has no other way yet to limit retries (its default is: for ever).
        ray_remote_args_fn=lambda: {"max_task_retries": RETRIES},
    )
    with (
        _clear_errors(ray),
        tqdm(total=len(tasks), desc=what, unit="batch", disable=not sys.stderr.isatty()) as bar,
    ):
        for row in rows.iter_rows():
            answer = json.loads(row["answer"])
            if "error" in answer:
                raise failed(answer["error"], answer)
            yield answer
            bar.update()


@contextmanager
def _clear_errors(ray: ModuleType) -> Iterator[None]:
    try:
        yield
    except (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError) as error:
        raise InputError(
            f"a Ray worker died {RETRIES + 1} times on the same batch ({type(error).__name__}): most often "
            "memory does not suffice; give fewer --workers, and run again: what was done is kept"
        ) from None


def _ray() -> ModuleType:
    """Ray with its Data library, loaded when it is needed."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError(
            "Ray workers need the ray package; install it with pip install 'cir-utils[distributed]'"
        ) from None
    return ray


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _absolute(spec: str, prefix: str = "") -> str:
    """A model's folder under the path that workers find it by; other names as they are."""
    if not spec.startswith(prefix):
        return spec
    path = spec.removeprefix(prefix)
    return prefix + os.path.abspath(path) if prefix or os.path.isdir(path) else spec
