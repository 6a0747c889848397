from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_clip import write_tiny_clip

from cir_utils.encoder import ClipEncoder, load_encoder
from cir_utils.errors import InputError
from cir_utils.feature_store import image_features, text_features


@pytest.fixture(scope="module")
def encoder(tiny_clip):
    return load_encoder(f"local-dir:{tiny_clip}")


def paint(path, seed):
    rng = np.random.default_rng(seed)
    Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def pictures(tmp_path):
    paths = [tmp_path / "pictures" / f"{i}.png" for i in range(10)]
    paths[0].parent.mkdir()
    for number, path in enumerate(paths):
        paint(path, number)
    return paths


@pytest.fixture
def counted(encoder, monkeypatch):
    """How many pictures or texts were really encoded."""
    calls: list[int] = []
    images, texts = ClipEncoder.encode_images, ClipEncoder.encode_texts

    def encode_images(self, paths, batch_size=64):
        calls.append(len(paths))
        return images(self, paths, batch_size)

    def encode_texts(self, chosen, batch_size=256):
        calls.append(len(chosen))
        return texts(self, chosen, batch_size)

    monkeypatch.setattr(ClipEncoder, "encode_images", encode_images)
    monkeypatch.setattr(ClipEncoder, "encode_texts", encode_texts)
    return calls


def get(encoder, pictures, cache, said=None, **options):
    said = [] if said is None else said
    return image_features(
        encoder, list(range(len(pictures))), pictures, cache, shard_size=4, say=said.append, **options
    )


def shards(cache):
    return sorted(cache.glob("features/*/image-*.safetensors"))


def test_computed_once_then_reused_and_said(encoder, pictures, tmp_path, counted):
    said: list[str] = []
    first = get(encoder, pictures, tmp_path / "cache", said)
    assert counted == [4, 4, 2]
    assert said == [f"features of {encoder.identifier}: 0 images reused from the cache, 10 computed"]
    assert first.shape == (10, 16) and first.dtype == torch.float32
    assert torch.allclose(first, encoder.encode_images(pictures), atol=1e-6)
    counted.clear()
    second = get(encoder, pictures, tmp_path / "cache", said)
    assert counted == []
    assert said[-1] == f"features of {encoder.identifier}: 10 images reused from the cache, 0 computed"
    assert torch.equal(first, second)
    second += 0  # a reader may change its own copy


def test_the_record_names_encoder_ids_and_hashes(encoder, pictures, tmp_path):
    image_features(encoder, [f"img{i}" for i in range(10)], pictures, tmp_path, shard_size=4)
    folder = shards(tmp_path)[0].parent
    assert json.loads((folder / "encoder.json").read_text()) == encoder.describe()
    records = [json.loads(path.read_text()) for path in folder.glob("image-*.json")]
    assert sorted(name for record in records for name in record["ids"]) == sorted(
        f"img{i}" for i in range(10)
    )
    assert all(record["encoder"] == encoder.describe() for record in records)
    assert {record["dtype"] for record in records} == {"float32"}
    about = records[0]["encoder"]
    assert about["preprocessing"]["backend"] == "pillow" and len(about["weights_sha256"]) == 64
    assert all(len(digest) == 64 for record in records for digest in record["content"])


def test_a_changed_picture_is_never_reused(encoder, pictures, tmp_path, counted):
    first = get(encoder, pictures, tmp_path / "cache")
    stat = os.stat(pictures[5])
    paint(pictures[5], 99)
    os.utime(pictures[5], ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the same time of change
    counted.clear()
    second = get(encoder, pictures, tmp_path / "cache")
    assert counted == [4]  # its shard alone
    assert not torch.allclose(first[5], second[5], atol=1e-3)
    kept = [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert torch.allclose(first[kept], second[kept], atol=1e-6)


def test_order_and_selection_follow_the_request(encoder, pictures, tmp_path):
    first = get(encoder, pictures, tmp_path / "cache")
    assert torch.allclose(get(encoder, pictures[::-1], tmp_path / "cache"), first.flip(0), atol=1e-6)
    assert torch.allclose(get(encoder, pictures[2:5], tmp_path / "cache"), first[2:5], atol=1e-6)
    assert get(encoder, [], tmp_path / "cache").shape == (0, 16)


def test_other_weights_or_preprocessing_are_never_reused(pictures, tmp_path, counted):
    folder = write_tiny_clip(tmp_path / "clip")
    spec = f"local-dir:{folder}"
    first = get(load_encoder(spec), pictures, tmp_path / "cache")

    weights = folder / "open_clip_model.safetensors"
    state = load_file(weights)
    state["visual.proj"].neg_()
    save_file(state, weights)
    counted.clear()
    second = get(load_encoder(spec), pictures, tmp_path / "cache")
    assert sum(counted) == 10 and not torch.allclose(first, second, atol=1e-3)

    path = folder / "open_clip_config.json"
    table = json.loads(path.read_text())
    table["preprocess_cfg"]["mean"] = [0.1, 0.1, 0.1]
    path.write_text(json.dumps(table))
    counted.clear()
    third = get(load_encoder(spec), pictures, tmp_path / "cache")
    assert sum(counted) == 10 and not torch.allclose(second, third, atol=1e-4)
    assert len(list((tmp_path / "cache" / "features").iterdir())) == 3


def test_a_renamed_model_folder_is_another_identifier(pictures, tmp_path, counted):
    folder = write_tiny_clip(tmp_path / "clip")
    get(load_encoder(f"local-dir:{folder}"), pictures, tmp_path / "cache")
    moved = shutil.copytree(folder, tmp_path / "elsewhere" / "clip")
    counted.clear()
    get(load_encoder(f"local-dir:{moved}"), pictures, tmp_path / "cache")
    assert counted == []  # the same name and bytes in another place


def truncate(path):
    path.write_bytes(path.read_bytes()[:-40])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        flip,
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
        lambda path: truncate(path.with_suffix(".json")),
        lambda path: path.with_suffix(".json").write_text("[]"),
        lambda path: path.with_suffix(".json").write_text("{}"),
        lambda path: path.with_suffix(".json").write_bytes(b"\xff"),
    ],
)
def test_a_damaged_shard_is_said_and_computed_again(encoder, pictures, tmp_path, counted, damage):
    first = get(encoder, pictures, tmp_path / "cache")
    damage(shards(tmp_path / "cache")[0])
    counted.clear()
    said: list[str] = []
    assert torch.allclose(get(encoder, pictures, tmp_path / "cache", said), first, atol=1e-6)
    assert len(counted) == 1
    assert "are damaged (" in said[0] and said[0].endswith("computing them again")
    counted.clear()
    assert torch.allclose(get(encoder, pictures, tmp_path / "cache", said), first, atol=1e-6)
    assert counted == []


def test_a_changed_record_and_one_without_a_hash_are_computed_again(encoder, tmp_path, counted):
    """What a record says of its texts is not in the shard."""
    texts = ["a red car", "a cat " * 60]
    first = text_features(encoder, texts, tmp_path)
    (path,) = tmp_path.glob("features/*/text-*.json")
    record = json.loads(path.read_text())
    assert record["cut"] == [False, True]
    path.write_text(json.dumps(record | {"cut": [False, False]}))
    counted.clear()
    said: list[str] = []
    again = text_features(encoder, texts, tmp_path, say=said.append)
    assert counted == [2] and "are damaged (its record was changed)" in said[0]
    assert again.cut == first.cut and torch.equal(again.features, first.features)
    del record["own_sha256"]
    path.write_text(json.dumps(record | {"cut": [False, False]}))
    counted.clear()
    assert text_features(encoder, texts, tmp_path).cut == first.cut and counted == [2]


def test_a_shard_without_its_record_is_computed_again(encoder, pictures, tmp_path, counted):
    get(encoder, pictures, tmp_path / "cache")
    shards(tmp_path / "cache")[0].with_suffix(".json").unlink()
    counted.clear()
    get(encoder, pictures, tmp_path / "cache")
    assert len(counted) == 1


class Killed(BaseException):
    """Stands for the end of the process."""


def test_a_killed_run_keeps_its_finished_shards(encoder, pictures, tmp_path, counted, monkeypatch):
    with monkeypatch.context() as patch:
        encode = ClipEncoder.encode_images

        def die(self, paths, batch_size=64):
            if len(counted) == 1:
                raise Killed
            return encode(self, paths, batch_size)

        patch.setattr(ClipEncoder, "encode_images", die)
        with pytest.raises(Killed):
            get(encoder, pictures, tmp_path / "cache")
    (finished,) = shards(tmp_path / "cache")
    other = get(encoder, pictures, tmp_path / "other")
    for name in {path.name for path in shards(tmp_path / "other")} - {finished.name}:
        # What a kill can leave behind.
        (finished.parent / f".{name}.x.part").write_bytes(b"half a shard")
        (finished.parent / f".{name.replace('.safetensors', '.json')}.x.part").write_bytes(b"half a record")
    assert len(list(finished.parent.glob(".*.part"))) == 4
    counted.clear()
    assert torch.equal(get(encoder, pictures, tmp_path / "cache"), other)
    assert counted == [4, 2] and not list(finished.parent.glob(".*.part"))


def test_missing_and_unreadable_pictures_are_named(encoder, pictures, tmp_path):
    with pytest.raises(InputError, match=r"none\.jpg does not exist"):
        image_features(encoder, [1], [tmp_path / "none.jpg"], tmp_path / "cache")
    pictures[3].write_bytes(b"<html></html>")
    with pytest.raises(InputError, match=r"3\.png holds an HTML"):
        get(encoder, pictures, tmp_path / "cache")
    with pytest.raises(ValueError, match="2 ids and 1 paths"):
        image_features(encoder, [1, 2], pictures[:1], tmp_path / "cache")


def test_a_cache_folder_that_cannot_be_written(encoder, pictures, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(InputError, match="cannot be written .*CIR_CACHE"):
        get(encoder, pictures, tmp_path / "cache")


def test_texts_are_kept_with_what_was_said_about_them(encoder, tmp_path, counted):
    texts = ["a red cat", "a zebra", "", "red " * 100, "a red cat"]
    said: list[str] = []
    first = text_features(encoder, texts, tmp_path, shard_size=2, say=said.append)
    assert counted == [2, 2, 1]
    counted.clear()
    second = text_features(encoder, texts, tmp_path, shard_size=2, say=said.append)
    assert counted == []
    assert said[-1].endswith("5 texts reused from the cache, 0 computed")
    direct = encoder.encode_texts(texts)
    assert torch.equal(first.features, second.features)
    assert torch.allclose(first.features, direct.features, atol=1e-6)
    for found in (first, second):
        assert (found.cut, found.tokens, found.unknown) == (direct.cut, direct.tokens, direct.unknown)
    assert second.unknown == [[], ["zebra"], [], [], []]
    assert text_features(encoder, [], tmp_path).features.shape == (0, 16)


# --- the key ---


def entries(cache):
    """What is stored, by folder (the encoder) and file (the content)."""
    return {(path.parent.name, path.name) for path in shards(cache)}


def other_weights(folder):
    path = folder / "open_clip_model.safetensors"
    state = load_file(path)
    state["visual.proj"].neg_()
    save_file(state, path)


def other_configuration(folder):
    path = folder / "open_clip_config.json"
    table = json.loads(path.read_text())
    table["preprocess_cfg"]["interpolation"] = "bilinear"
    path.write_text(json.dumps(table))


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (other_weights, {}),
        (other_configuration, {}),
        (None, {"precision": "bfloat16"}),
        (None, {"preprocessing": "targetpad-1.25"}),
    ],
    ids=["weights", "model preprocessing", "precision", "preprocessing"],
)
def test_every_input_of_the_encoder_changes_the_key_of_every_shard(
    tiny_clip, pictures, tmp_path, change, options
):
    folder = shutil.copytree(tiny_clip, tmp_path / "tiny-clip")
    cache = tmp_path / "cache"
    get(load_encoder(f"local-dir:{folder}"), pictures, cache)
    before = entries(cache)
    if change is not None:
        change(folder)
    get(load_encoder(f"local-dir:{folder}", **options), pictures, cache)
    new = entries(cache) - before
    assert len(before) == len(new) == 3
    assert {name for _, name in new} == {name for _, name in before}  # the pictures are the same
    assert len({encoder for encoder, _ in before | new}) == 2


def test_one_byte_of_one_picture_changes_the_key_of_its_shard_alone(encoder, pictures, tmp_path):
    get(encoder, pictures, tmp_path / "cache")
    before = entries(tmp_path / "cache")
    with open(pictures[9], "ab") as stream:
        stream.write(b"\0")  # behind the end of the picture: the same pixels
    get(encoder, pictures, tmp_path / "cache")
    new = entries(tmp_path / "cache") - before
    assert len(before) == 3 and len(new) == 1
    assert {folder for folder, _ in new} == {folder for folder, _ in before}


def test_nothing_else_changes_the_key(tiny_clip, pictures, tmp_path, counted):
    """Other places, names, ids and times, another instance of the model, and its defaults spelt out."""
    first = get(load_encoder(f"local-dir:{tiny_clip}"), pictures, tmp_path / "cache")
    counted.clear()
    model = shutil.copytree(tiny_clip, tmp_path / "moved" / "tiny-clip")
    os.utime(model / "open_clip_model.safetensors", (1, 1))
    again = load_encoder(f"local-dir:{model}", torch.device("cpu"), precision="float32", preprocessing="clip")
    renamed = [tmp_path / f"renamed-{number}.bin" for number in range(10)]
    for old, new in zip(pictures, renamed, strict=True):
        shutil.copy(old, new)
    shutil.move(tmp_path / "cache", tmp_path / "elsewhere")
    ids = [f"picture {number}" for number in range(10)]
    second = image_features(again, ids, renamed, tmp_path / "elsewhere", shard_size=4)
    assert counted == [] and torch.equal(first, second)


# --- several processes, and killed ones ---


class SlowEncoder:
    """An encoder without a model: the feature of a picture is made of its file name. Every picture that it
    encodes becomes a line of ``log``; it never gets beyond the batch that holds the picture ``hang``."""

    identifier, width, device = "slow", 8, torch.device("cpu")

    def __init__(self, log: Path, hang: str = "") -> None:
        self.log, self.hang = log, hang

    def describe(self):
        return {"encoder": "slow"}

    def encode_images(self, paths, batch_size=64):
        assert len(paths) <= batch_size
        with open(self.log, "a") as stream:
            for path in paths:
                stream.write(f"{path.name}\n")
        while any(path.name == self.hang for path in paths):
            time.sleep(0.01)
        time.sleep(0.02)
        numbers = torch.tensor([float(path.stem) for path in paths])
        return torch.nn.functional.normalize(numbers[:, None] + torch.arange(8.0), dim=1)

    def done(self):
        return Counter(self.log.read_text().split()) if self.log.exists() else Counter()


def work(encoder, pictures, cache, out):
    features = image_features(encoder, list(range(len(pictures))), pictures, cache, shard_size=2)
    save_file({"features": features}, out)


def start(*arguments):
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    return process


def test_three_processes_share_the_work_and_do_nothing_twice(pictures, tmp_path):
    encoder = SlowEncoder(tmp_path / "log")
    outs = [tmp_path / f"{number}.safetensors" for number in range(3)]
    workers = [start(encoder, pictures, tmp_path / "cache", out) for out in outs]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert encoder.done() == Counter({path.name: 1 for path in pictures})
    expected = SlowEncoder(tmp_path / "other").encode_images(pictures)
    assert all(torch.equal(load_file(out)["features"], expected) for out in outs)


def test_a_killed_process_leaves_no_lock_and_loses_the_batch_in_flight_alone(pictures, tmp_path):
    log = tmp_path / "log"
    worker = start(SlowEncoder(log, hang="5.png"), pictures, tmp_path / "cache", tmp_path / "never")
    end = time.monotonic() + 60
    while "5.png" not in SlowEncoder(log).done() and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(60)
    assert worker.exitcode == -signal.SIGKILL
    assert len(shards(tmp_path / "cache")) == 2  # 0 and 1, 2 and 3; 4 and 5 were in flight
    features = image_features(SlowEncoder(log), list(range(10)), pictures, tmp_path / "cache", shard_size=2)
    assert SlowEncoder(log).done() == Counter({f"{n}.png": 2 if n in (4, 5) else 1 for n in range(10)})
    whole = image_features(
        SlowEncoder(tmp_path / "other"), list(range(10)), pictures, tmp_path / "fresh", shard_size=2
    )
    assert torch.equal(features, whole)
    assert {path.name: path.read_bytes() for path in shards(tmp_path / "cache")} == {
        path.name: path.read_bytes() for path in shards(tmp_path / "fresh")
    }


def test_a_shard_is_one_batch_of_the_encoder(encoder, pictures, tmp_path, monkeypatch):
    """So that a killed run loses one batch, and one batch of pixels is what extraction holds."""
    sizes = []
    encode = ClipEncoder.encode_images

    def spy(self, paths, batch_size=64):
        sizes.append((len(paths), batch_size))
        return encode(self, paths, batch_size)

    monkeypatch.setattr(ClipEncoder, "encode_images", spy)
    get(encoder, pictures, tmp_path / "cache")
    image_features(encoder, list(range(10)), pictures, tmp_path / "other")
    assert sizes == [(4, 4), (4, 4), (2, 4), (10, 64)]

    sizes.clear()
    encode_texts = ClipEncoder.encode_texts

    def spy_texts(self, texts, batch_size=256):
        sizes.append((len(texts), batch_size))
        return encode_texts(self, texts, batch_size)

    monkeypatch.setattr(ClipEncoder, "encode_texts", spy_texts)
    text_features(encoder, ["a red cat"] * 300, tmp_path / "other")
    assert sizes == [(256, 256), (44, 256)]
