"""Features on disk: computed once for an encoder and a content, checked whenever they are read.

Below the cache folder lies ``features/<encoder>/`` with

* ``encoder.json``: what decides the features (``ClipEncoder.describe``): model, hash of the weights,
  precision, preprocessing and its backend, kind of device, versions;
* ``image-<content>.safetensors``: one shard, ``features`` (n, D) float32;
* ``image-<content>.json``: its record, the manifest of the shard: encoder, dtype, ids, the SHA-256 of every
  image and of the shard;
* ``text-<content>.*``: the same for texts;
* ``lock``: an empty file, see below.

``<encoder>`` is a hash of the description and ``<content>`` one of the images' bytes (or the texts), so
features of other weights, another precision or preprocessing, another kind of device or a changed picture are
never found under the name; where a file lies, what it is called and when it was changed play no part.

A shard is one batch of the encoder. It is written whole and its record after it, so a run that is killed
loses the batch in flight and nothing else, and the batch is redone whole: the features are the same bytes as
without the interruption. What a killed writer left half written (a hidden ``.part`` file) is never read, and
goes when its shard is computed again. Several processes may share a cache folder: while one computes a shard,
the others that need it wait, and then read it. A folder that cannot be written serves what it holds.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from tqdm import tqdm

from cir_utils.benchmarks import ImageId
from cir_utils.encoder import ClipEncoder, TextFeatures
from cir_utils.errors import InputError
from cir_utils.files import own_sha256, sha256_file, sha256_text, write_atomic, write_json_atomic

log = logging.getLogger(__name__)

#: One batch of the encoder each: see above.
IMAGES_PER_SHARD = 64
TEXTS_PER_SHARD = 256

Say = Callable[[str], None]
Extra = dict[str, list[Any]]


def image_features(
    encoder: ClipEncoder,
    ids: Sequence[ImageId],
    paths: Sequence[Path],
    cache_dir: Path | str,
    *,
    shard_size: int = IMAGES_PER_SHARD,
    say: Say = log.info,
) -> Tensor:
    """The features of pictures, from the cache where they are there and right: (N, D) float32, rows of unit
    length, on the encoder's device, in the order of ``ids``.

    ``ids`` and ``paths`` belong together; the ids are kept in the records for the reader, the files' bytes
    decide. One shard of pictures is in memory at a time, beside the result. ``say`` gets a sentence about
    what was reused and computed, and one for every stored shard that is damaged; it is then computed again.
    Raises :class:`InputError` for a picture that cannot be read and a cache folder that cannot be written or
    is full (shards that were written stay), and ``ValueError`` where the two lists differ in length.
    """
    features = torch.empty(len(ids), encoder.width)
    store = _Store(encoder, Path(cache_dir), say)
    for part, found in _image_shards(store, encoder, ids, paths, shard_size):
        features[part] = found
    store.report("images")
    return features.to(encoder.device)


def store_images(
    encoder: ClipEncoder,
    ids: Sequence[ImageId],
    paths: Sequence[Path],
    cache_dir: Path | str,
    *,
    shard_size: int = IMAGES_PER_SHARD,
    say: Say = log.info,
) -> tuple[int, int]:
    """As :func:`image_features` for a gallery of any size, whose features are not kept in memory: how many
    pictures were reused and how many computed. ``say`` hears of damaged shards alone."""
    store = _Store(encoder, Path(cache_dir), say)
    for _ in _image_shards(store, encoder, ids, paths, shard_size):
        pass
    return store.reused, store.computed


def _image_shards(
    store: _Store, encoder: ClipEncoder, ids: Sequence[ImageId], paths: Sequence[Path], size: int
) -> Iterator[tuple[slice, Tensor]]:
    """The shards of pictures one by one: which pictures, and their features ``(n, D)`` on the CPU."""
    if len(ids) != len(paths):
        raise ValueError(f"{len(ids)} ids and {len(paths)} paths: one path an id")
    with ThreadPoolExecutor(8) as pool:
        hashes = list(pool.map(_image_hash, paths))
    for part in _parts(len(ids), size, "pictures"):

        def compute(chosen: Sequence[Path] = paths[part]) -> tuple[Tensor, Extra]:
            return encoder.encode_images(chosen, batch_size=size), {}

        yield part, store.shard("image", hashes[part], {"ids": list(ids[part])}, compute)[0]


def text_features(
    encoder: ClipEncoder,
    texts: Sequence[str],
    cache_dir: Path | str,
    *,
    shard_size: int = TEXTS_PER_SHARD,
    say: Say = log.info,
) -> TextFeatures:
    """As :func:`image_features` for texts; equal to ``encoder.encode_texts(texts)`` but for float32
    rounding."""
    store = _Store(encoder, Path(cache_dir), say)
    features = torch.empty(len(texts), encoder.width)
    cut: list[bool] = []
    tokens: list[int] = []
    unknown: list[list[str]] = []

    for part in _parts(len(texts), shard_size, "texts"):

        def compute(chosen: Sequence[str] = texts[part]) -> tuple[Tensor, Extra]:
            found = encoder.encode_texts(chosen, batch_size=shard_size)
            return found.features, {"cut": found.cut, "tokens": found.tokens, "unknown": found.unknown}

        content = [sha256_text(text) for text in texts[part]]
        numbers = {"ids": list(range(part.start, part.stop))}
        features[part], extra = store.shard("text", content, numbers, compute, ("cut", "tokens", "unknown"))
        cut += extra["cut"]
        tokens += extra["tokens"]
        unknown += extra["unknown"]
    store.report("texts")
    return TextFeatures(features.to(encoder.device), cut, tokens, unknown)


class _Store:
    """The shards of one encoder."""

    def __init__(self, encoder: ClipEncoder, cache_dir: Path, say: Say) -> None:
        self.about = encoder.describe()
        self.width = encoder.width
        self.name = encoder.identifier
        self.say = say
        self.reused = self.computed = 0
        self.folder = cache_dir / "features" / sha256_text(json.dumps(self.about, sort_keys=True))[:16]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / "encoder.json").is_file():
                with self._alone("encoder.json"):
                    write_json_atomic(self.folder / "encoder.json", self.about)
        except OSError as error:
            raise _unwritten(self.folder, error) from None

    def shard(
        self,
        kind: str,
        content: Sequence[str],
        labels: Extra,
        compute: Callable[[], tuple[Tensor, Extra]],
        extra_names: tuple[str, ...] = (),
    ) -> tuple[Tensor, Extra]:
        """The features of one shard on the CPU, and its further lists: read and checked, or computed and
        written."""
        data = self.folder / f"{kind}-{sha256_text(' '.join(content))[:32]}.safetensors"
        found = self._find(data, content, extra_names, say=lambda text: None)
        if found is not None:
            return found
        with self._alone(data.name):
            # Another process may have written the shard while this one waited.
            found = self._find(data, content, extra_names, self.say)
            if found is not None:
                return found
            features, extra = compute()
            features = features.to("cpu", torch.float32).contiguous()
            payload = save({"features": features})
            record = {"encoder": self.about, "dtype": "float32", **labels, "content": list(content)}
            record |= {"sha256": hashlib.sha256(payload).hexdigest(), **extra}
            record["own_sha256"] = own_sha256(record)
            try:
                write_atomic(data, payload)
                write_atomic(data.with_suffix(".json"), json.dumps(record, ensure_ascii=False) + "\n")
            except OSError as error:
                raise _unwritten(self.folder, error) from None
        self.computed += len(content)
        return features, extra

    def _find(
        self, data: Path, content: Sequence[str], extra_names: tuple[str, ...], say: Say
    ) -> tuple[Tensor, Extra] | None:
        """The stored shard, or None where there is none or a damaged one, which is said."""
        if not data.with_suffix(".json").exists():
            return None
        try:
            found = self._read(data, content, extra_names)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            say(f"the stored features {data} are damaged ({error}): computing them again")
            return None
        self.reused += len(content)
        return found

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """No other process is in here for the file ``name``. The lock ends with the process that holds it,
        killed or not. It covers one byte, a place of its own for every name, of a file that stays empty. What
        a killed holder left half written is removed."""
        place = int(hashlib.sha256(name.encode()).hexdigest()[:12], 16)
        try:
            stream = open(self.folder / "lock", "ab")
        except OSError as error:
            raise _unwritten(self.folder, error) from None
        with stream:
            try:
                fcntl.lockf(stream, fcntl.LOCK_EX, 1, place)
            except OSError as error:  # some network file systems have no locks: two may then do the same work
                log.warning("no lock on %s (%s)", stream.name, error.strerror)
            else:
                for left in self.folder.glob(f".{Path(name).stem}.*.part"):
                    left.unlink(missing_ok=True)
            yield

    def _read(self, data: Path, content: Sequence[str], extra_names: tuple[str, ...]) -> tuple[Tensor, Extra]:
        record = json.loads(data.with_suffix(".json").read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise ValueError("its record is no JSON object")
        for key, expected in (("encoder", self.about), ("content", list(content))):
            if record[key] != expected:
                raise ValueError(f"its record has another {key}")
        if record.get("own_sha256") != own_sha256(record):
            raise ValueError("its record was changed")
        if sha256_file(data) != record["sha256"]:
            raise ValueError("its SHA-256 differs from its record")
        features = load(data.read_bytes())["features"]
        if features.shape != (len(content), self.width) or features.dtype != torch.float32:
            raise ValueError(f"it holds {tuple(features.shape)} {features.dtype}")
        extra = {name: record[name] for name in extra_names}
        if any(len(values) != len(content) for values in (record["ids"], *extra.values())):
            raise ValueError("its record is incomplete")
        return features, extra

    def report(self, what: str) -> None:
        self.say(
            f"features of {self.name}: {self.reused} {what} reused from the cache, {self.computed} computed"
        )


def _unwritten(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"the feature cache {folder} cannot be written ({error.strerror or error}) and lacks features that "
        "are needed: make room, or name another folder with --cache or CIR_CACHE; what it holds stays"
    )


def _parts(count: int, size: int, what: str) -> Iterable[slice]:
    """Slices of ``size`` items over ``count``, with a progress bar on a terminal."""
    parts = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    return tqdm(parts, desc=f"features of {count} {what}", disable=not sys.stderr.isatty())


def _image_hash(path: Path) -> str:
    try:
        return sha256_file(path)
    except FileNotFoundError:
        raise InputError(f"image {path} does not exist; check the benchmark's folder") from None
    except OSError as error:
        raise InputError(
            f"image {path} cannot be read ({error.strerror}); check the benchmark's folder"
        ) from None
