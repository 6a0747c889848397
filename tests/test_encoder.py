from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import weakref

import numpy as np
import open_clip
import pytest
import torch
from open_clip import pretrained
from PIL import Image
from safetensors.torch import load_file, save_file
from small_world import write_world
from tiny_clip import tiny_config, write_tiny_clip, write_tokenizer

from cir_utils import encoder as encoder_module
from cir_utils.benchmarks import load_benchmark
from cir_utils.encoder import BACKBONES, TEXT_STEP, ClipEncoder, load_encoder, registered
from cir_utils.errors import InputError
from cir_utils.feature_store import image_features
from cir_utils.files import sha256_file
from cir_utils.profiles import PACKAGE, load_profile
from cir_utils.runs import run_method
from cir_utils.tables import comparison
from cir_utils.workbench import Workbench


@pytest.fixture(scope="module")
def encoder(tiny_clip):
    return load_encoder(f"local-dir:{tiny_clip}")


@pytest.fixture
def pictures(tmp_path):
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for path in paths:
        Image.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(path)
    return paths


@pytest.fixture
def copy(tiny_clip, tmp_path):
    return shutil.copytree(tiny_clip, tmp_path / "copy")


def edit_config(folder, change):
    path = folder / "open_clip_config.json"
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


def test_what_a_loaded_encoder_says_of_itself(encoder, tiny_clip):
    digest = sha256_file(tiny_clip / "open_clip_model.safetensors")
    assert encoder.identifier == f"tiny-clip@{digest[:12]}"
    assert (encoder.width, encoder.context_length) == (16, 77)
    about = encoder.describe()
    assert about["weights_sha256"] == digest
    assert about["activation"] == "GELU"
    assert about["precision"] == "float32"
    assert about["preprocessing"]["size"] == [32, 32]
    assert json.loads(json.dumps(about)) == about
    assert str(tiny_clip) not in json.dumps(about)


def test_weights_stored_in_half_precision_load_as_float32(encoder, tiny_clip):
    stored = load_file(tiny_clip / "open_clip_model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float16}
    assert {value.dtype for value in encoder.model.parameters()} == {torch.float32}
    assert torch.equal(encoder.model.text_projection, stored["text_projection"].float())


def test_images_equal_open_clips_own_path(encoder, tiny_clip, pictures):
    model, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{tiny_clip}")
    model.eval()
    with torch.no_grad():
        pixels = torch.stack([preprocess(Image.open(path)) for path in pictures])
        expected = model.encode_image(pixels, normalize=True)
    found = encoder.encode_images(pictures, batch_size=2)
    assert found.shape == (5, 16) and found.dtype == torch.float32
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(found.norm(dim=1), torch.ones(5), atol=1e-6)
    assert (found @ found.T - torch.eye(5)).abs().max() < 0.9999  # different pictures, different features


def test_images_keep_their_order_for_every_batch_size(encoder, pictures):
    whole = encoder.encode_images(pictures)
    for size in (1, 3, 5, 64):
        assert torch.allclose(encoder.encode_images(pictures, batch_size=size), whole, atol=1e-6)
    assert torch.allclose(encoder.encode_images(pictures[::-1]), whole.flip(0), atol=1e-6)
    assert encoder.encode_images([]).shape == (0, 16)


def test_an_unreadable_image_is_named(encoder, pictures):
    pictures[3].write_bytes(b"")
    with pytest.raises(InputError, match=r"3\.png is empty"):
        encoder.encode_images(pictures, batch_size=2)


def test_all_modes_and_orientations_pass_through_the_one_loader(encoder, tmp_path):
    image = Image.new("RGB", (64, 48), "white")
    image.paste("red", (0, 0, 8, 48))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "tagged.png", exif=exif)
    image.transpose(Image.Transpose.ROTATE_270).save(tmp_path / "turned.png")
    first, second = encoder.encode_images([tmp_path / "tagged.png", tmp_path / "turned.png"])
    assert torch.allclose(first, second, atol=1e-6)


TEXTS = [
    "a red cat",
    "Two CATS on the beach",
    "",
    "red " * 14 + "a",  # 15 words and two marks: the first length over one step
    "red " * 14,  # exactly one step
    "red " * 75,  # exactly the context
    "red " * 200,
    "an emoji 🐙 and ¾",
]


def test_texts_equal_open_clips_own_path(encoder, tiny_clip):
    model = open_clip.create_model_from_pretrained(f"local-dir:{tiny_clip}", return_transform=False).eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{tiny_clip}")
    with torch.no_grad():
        expected = model.encode_text(tokenizer(TEXTS), normalize=True)
    found = encoder.encode_texts(TEXTS, batch_size=3)
    assert found.features.shape == (len(TEXTS), 16) and found.features.dtype == torch.float32
    assert torch.allclose(found.features, expected, atol=1e-6)


def test_argmax_pooling_needs_an_end_token_with_the_highest_number(tmp_path):
    folder = write_tiny_clip(tmp_path / "argmax", pool_type="argmax")
    with pytest.raises(InputError, match="does not end texts with the token that the model pools at"):
        load_encoder(f"local-dir:{folder}")


def test_tokens_are_counted_and_cut_texts_reported(encoder):
    found = encoder.encode_texts(TEXTS)
    assert found.tokens[:7] == [5, 11, 2, 17, 16, 77, 202]  # CATS is five: a space and its letters
    assert found.cut == [False, False, False, False, False, False, True, False]
    assert 16 % TEXT_STEP == 0


def test_a_cut_text_keeps_the_end_token_and_the_front(encoder):
    found = encoder.encode_texts(["red " * 75, "red " * 200, "blue " + "red " * 200])
    assert torch.allclose(found.features[0], found.features[1], atol=1e-6)
    assert not torch.allclose(found.features[0], found.features[2], atol=1e-3)


def test_features_do_not_depend_on_the_neighbours(encoder):
    whole = encoder.encode_texts(TEXTS)
    for number, text in enumerate(TEXTS):
        alone = encoder.encode_texts([text])
        assert torch.allclose(alone.features[0], whole.features[number], atol=1e-6)
        assert (alone.tokens, alone.cut, alone.unknown) == (
            whole.tokens[number : number + 1],
            whole.cut[number : number + 1],
            whole.unknown[number : number + 1],
        )
    assert encoder.encode_texts([]).features.shape == (0, 16)


def test_unknown_words_are_those_broken_into_pieces(encoder):
    found = encoder.encode_texts(
        ["a red cat, two dogs; the ZEBRA and a zebra", "a red cat.", "🐙 is red", "red-blue", "two   cats\n"]
    )
    assert found.unknown == [["dogs", "ZEBRA", "zebra"], [], ["🐙"], ["blue"], ["cats"]]


def test_special_tokens_written_in_a_text_do_not_end_it(encoder):
    found = encoder.encode_texts(["a red <end> cat", "a red cat", "a red <PAD>cat<start>", "a red"])
    assert torch.allclose(found.features[0], found.features[1], atol=1e-6)
    assert torch.allclose(found.features[2], found.features[1], atol=1e-6)
    assert not torch.allclose(found.features[1], found.features[3], atol=1e-3)


def test_lone_surrogates_do_not_break_the_tokenizer(encoder):
    assert torch.isfinite(encoder.encode_texts(["a red \ud83d cat"]).features).all()


def test_features_are_ordinary_tensors(encoder, pictures):
    features = encoder.encode_images(pictures[:1])
    features += 0  # an inference-mode tensor would refuse this
    assert not features.requires_grad


# --- folders that must be refused ---


def test_missing_weights_are_an_error_not_a_random_model(copy):
    (copy / "open_clip_model.safetensors").unlink()
    with pytest.raises(InputError, match="has no weights: put open_clip_model.safetensors there"):
        load_encoder(f"local-dir:{copy}")
    (copy / "open_clip_pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(InputError, match="has no weights"):
        load_encoder(f"local-dir:{copy}")


def test_damaged_weights(copy):
    path = copy / "open_clip_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="cannot be loaded") as caught:
        load_encoder(f"local-dir:{copy}")
    assert "\n" not in str(caught.value)


def test_weights_without_a_tensor(copy):
    state = load_file(copy / "open_clip_model.safetensors")
    del state["text_projection"]
    save_file(state, copy / "open_clip_model.safetensors")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_encoder(f"local-dir:{copy}")


def test_weights_that_are_not_finite(copy, pictures):
    state = load_file(copy / "open_clip_model.safetensors")
    state["visual.proj"][:] = float("nan")
    save_file(state, copy / "open_clip_model.safetensors")
    with pytest.raises(InputError, match="features that are not finite"):
        load_encoder(f"local-dir:{copy}").encode_images(pictures)


@pytest.mark.parametrize("key", ["context_length", "image_size"])
def test_positions_of_another_size_are_refused_not_resized(copy, key):
    part = "text_cfg" if key == "context_length" else "vision_cfg"
    edit_config(copy, lambda table: table["model_cfg"][part].update({key: 64}))
    with pytest.raises(InputError, match=r"positional_embedding has \d+ rows, the configuration wants"):
        load_encoder(f"local-dir:{copy}")


def test_an_end_token_that_does_not_match(copy):
    edit_config(copy, lambda table: table["model_cfg"]["text_cfg"].update(eos_id=3))
    with pytest.raises(InputError, match="eos_id is 3, the tokenizer's end token is 2"):
        load_encoder(f"local-dir:{copy}")


def test_a_tokenizer_that_adds_no_end_token(copy):
    write_tokenizer(copy, end=False)
    with pytest.raises(InputError, match="does not end texts"):
        load_encoder(f"local-dir:{copy}")


def test_a_tokenizer_larger_than_the_model(copy):
    state = load_file(copy / "open_clip_model.safetensors")
    state["token_embedding.weight"] = state["token_embedding.weight"][:-1].contiguous()
    save_file(state, copy / "open_clip_model.safetensors")
    size = len(state["token_embedding.weight"])
    edit_config(copy, lambda table: table["model_cfg"]["text_cfg"].update(vocab_size=size))
    with pytest.raises(InputError, match=f"the tokenizer has {size + 1} entries, the model {size}"):
        load_encoder(f"local-dir:{copy}")


@pytest.mark.parametrize("name", ["open_clip_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_missing_and_broken_parts_are_named(copy, name):
    (copy / name).write_text("{")
    with pytest.raises(InputError, match=f"{name} is not valid JSON"):
        load_encoder(f"local-dir:{copy}")
    (copy / name).unlink()
    with pytest.raises(InputError, match=f"{name} does not exist"):
        load_encoder(f"local-dir:{copy}")


def test_foreign_code_is_refused(copy):
    edit_config(
        copy,
        lambda table: table["model_cfg"]["text_cfg"].update(tokenizer_kwargs={"trust_remote_code": True}),
    )
    with pytest.raises(InputError, match="trust_remote_code"):
        load_encoder(f"local-dir:{copy}")
    path = copy / "tokenizer_config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "auto_map": {"AutoTokenizer": "evil.Tokenizer"}})
    )
    with pytest.raises(InputError, match="auto_map"):
        load_encoder(f"local-dir:{copy}")


def test_specs_that_name_nothing(tmp_path):
    for spec in ("ViT-B-32", "ViT-B-32:", ":openai", ""):
        with pytest.raises(InputError, match="write local-dir:FOLDER or ARCHITECTURE:TAG"):
            load_encoder(spec)
    with pytest.raises(InputError, match="unknown architecture 'ViT-B-31'.*ViT-B-32"):
        load_encoder("ViT-B-31:openai")
    with pytest.raises(
        InputError, match="unknown weights 'laion9b' of ViT-B-32: choose openai, .*laion2b_s34b_b79k"
    ):
        load_encoder("ViT-B-32:laion9b")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(InputError, match="a file is given as local-dir:FOLDER"):
        load_encoder(f"ViT-B-32:{tmp_path / 'model.safetensors'}")
    with pytest.raises(InputError, match="does not exist"):
        load_encoder(f"local-dir:{tmp_path / 'none'}")
    with pytest.raises(InputError, match="device"):
        load_encoder("ViT-B-32:openai", "gpu")


# --- architecture and tag ---


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """Two tiny architectures registered with open_clip, with and without QuickGELU, and weights for both."""
    config = tiny_config(49408)
    config["text_cfg"] = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    models = {
        "tiny": config,
        "tiny-quickgelu": {**config, "quick_gelu": True},
        "quick-only": {**config, "quick_gelu": True},
    }
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", {**open_clip.factory._MODEL_CONFIGS, **models})
    torch.manual_seed(0)
    model = open_clip.create_model("tiny")
    weights = tmp_path / "tiny.safetensors"
    save_file({key: value.detach().contiguous() for key, value in model.state_dict().items()}, weights)
    (tmp_path / "tiny.bin").touch()
    rows = {
        "plain": {"file": str(weights)},
        "openai": {"file": str(weights), "quick_gelu": True},
        "pickled": {"file": str(tmp_path / "tiny.bin")},
        "absent": {"hf_hub": "nobody/none/"},
    }
    monkeypatch.setitem(pretrained._PRETRAINED, "tiny", rows)
    monkeypatch.setitem(pretrained._PRETRAINED, "tiny-quickgelu", {"openai": rows["openai"]})
    monkeypatch.setitem(pretrained._PRETRAINED, "quick-only", rows)
    return weights


def test_architecture_and_tag_are_one_identifier(registry):
    plain = load_encoder("tiny:plain")
    assert plain.identifier == "tiny:plain"
    assert plain.activation == "GELU"
    assert plain.weights_sha256 == sha256_file(registry)
    found = plain.encode_texts(["A red cat", "a red cat", "red " * 100, "a red <end_of_text> cat"])
    assert found.tokens == [5, 5, 102, 5]
    assert found.cut == [False, False, True, False]
    assert found.unknown == [[], [], [], []]
    assert torch.allclose(found.features[3], found.features[1], atol=1e-6)
    model = open_clip.create_model_from_pretrained("tiny", pretrained="plain", return_transform=False).eval()
    with torch.no_grad():
        expected = model.encode_text(
            open_clip.get_tokenizer("tiny")(["a red cat", "red " * 100]), normalize=True
        )
    assert torch.allclose(found.features[1:3], expected, atol=1e-6)


def test_long_texts_of_real_users_are_cut_and_reported(registry, real_annotations):
    path = real_annotations / "cirr" / "captions" / "cap.rc2.test1.json"
    rows = {row["pairid"]: row["caption"] for row in json.loads(path.read_text(encoding="utf-8"))}
    numbers = " ".join(str(12345 + i) for i in range(44))
    texts = [rows[12619], rows[27098], numbers, "🐙" * 40]
    found = load_encoder("tiny:plain").encode_texts(texts)
    assert len(rows[12619]) == 302
    assert found.tokens == (open_clip.tokenize(texts, context_length=300) != 0).sum(1).tolist()
    assert found.tokens[:3] == [62, 2, 44 * 5 + 2]
    assert found.cut == [False, False, True, True]
    assert torch.isfinite(found.features).all()


def test_weights_that_want_quickgelu_get_it_and_say_so(registry, recwarn):
    quick = load_encoder("tiny:openai")
    assert quick.identifier == "tiny-quickgelu:openai"
    assert quick.activation == quick.describe()["activation"] == "QuickGELU"
    assert load_encoder("tiny-quickgelu:openai").identifier == quick.identifier
    plain = load_encoder("tiny:plain")
    texts = ["a red cat"]
    assert not torch.allclose(
        quick.encode_texts(texts).features, plain.encode_texts(texts).features, atol=1e-5
    )
    assert not [warning for warning in recwarn if "QuickGELU" in str(warning.message)]


def test_plain_weights_on_a_quickgelu_configuration_are_refused(registry):
    with pytest.raises(
        InputError, match="the weights plain want plain GELU and the configuration quick-only has"
    ):
        load_encoder("quick-only:plain")


def test_the_same_weights_by_tag_and_by_folder(registry, tmp_path, pictures):
    """A folder's configuration names the activation, as the tag does."""
    config = {**open_clip.get_model_config("tiny-quickgelu")}
    (tmp_path / "folder").mkdir()
    shutil.copy(registry, tmp_path / "folder" / "open_clip_model.safetensors")
    (tmp_path / "folder" / "open_clip_config.json").write_text(
        json.dumps({"model_cfg": config, "preprocess_cfg": {"interpolation": "bicubic"}})
    )
    by_tag, by_folder = load_encoder("tiny:openai"), load_encoder(f"local-dir:{tmp_path / 'folder'}")
    assert by_folder.activation == "QuickGELU"
    assert torch.allclose(by_tag.encode_images(pictures), by_folder.encode_images(pictures), atol=1e-5)
    texts = ["a red cat", "two dogs"]
    assert torch.allclose(
        by_tag.encode_texts(texts).features, by_folder.encode_texts(texts).features, atol=1e-5
    )


@pytest.mark.parametrize("where", ["file", "hub cache"])
def test_weights_of_a_tag_in_a_folder_of_the_other_activation_are_refused(
    registry, tmp_path, monkeypatch, where
):
    """Report 14: OpenAI's weights given as a path. The folder says plain GELU, the tag of the same weights
    wants QuickGELU: a refusal, not slightly wrong features."""
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(registry, folder / "open_clip_model.safetensors")
    config = {"model_cfg": dict(open_clip.get_model_config("tiny")), "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    row = {"file": str(registry), "quick_gelu": True}
    if where == "hub cache":
        hub = tmp_path / "hub" / "models--some--clip"
        (hub / "blobs").mkdir(parents=True)
        (hub / "refs").mkdir()
        (hub / "refs" / "main").write_text("abc")
        (hub / "snapshots" / "abc").mkdir(parents=True)
        shutil.copy(registry, hub / "blobs" / sha256_file(registry))
        link = hub / "snapshots" / "abc" / "open_clip_model.safetensors"
        link.symlink_to(f"../../blobs/{sha256_file(registry)}")
        row = {"hf_hub": "some/clip/", "quick_gelu": True}
        find = encoder_module.try_to_load_from_cache
        monkeypatch.setattr(
            encoder_module, "try_to_load_from_cache", lambda *given: find(*given, cache_dir=tmp_path / "hub")
        )
    for name in ("tiny", "tiny-quickgelu", "quick-only"):
        monkeypatch.setitem(pretrained._PRETRAINED, name, {"openai": row})
    with pytest.raises(
        InputError, match='weights of tiny:openai, which want QuickGELU.*"quick_gelu": true in model_cfg'
    ):
        load_encoder(f"local-dir:{folder}")
    config["model_cfg"]["quick_gelu"] = True
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    assert load_encoder(f"local-dir:{folder}").describe()["activation"] == "QuickGELU"


def test_features_do_not_depend_on_the_length_of_what_the_model_gives(encoder, copy, pictures):
    """Report 23: unit length is made in one place, whatever a model's projection gives."""
    path = copy / "open_clip_model.safetensors"
    state = load_file(path)
    state["visual.proj"] = 128 * state["visual.proj"]  # exact in the half precision of the file
    save_file(state, path)
    long = load_encoder(f"local-dir:{copy}").encode_images(pictures)
    assert torch.allclose(long, encoder.encode_images(pictures), atol=1e-6)
    assert float((long @ long.T).max()) <= 1 + 1e-6


@pytest.fixture
def two_b_32(tmp_path, monkeypatch):
    """The published names of ViT-B/32, with small stand-ins of one architecture for both sets of weights."""
    config = tiny_config(49408)
    config["text_cfg"] = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    shrunk = {"ViT-B-32": config, "ViT-B-32-quickgelu": {**config, "quick_gelu": True}}
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", {**open_clip.factory._MODEL_CONFIGS, **shrunk})
    rows = {}
    for seed, tag in enumerate(("openai", "laion2b_s34b_b79k")):
        torch.manual_seed(seed)
        state = open_clip.create_model("ViT-B-32").state_dict()
        path = tmp_path / f"{tag}.safetensors"
        save_file({key: value.detach().contiguous() for key, value in state.items()}, path)
        rows[tag] = {"file": str(path), "quick_gelu": tag == "openai"}
    for name in shrunk:
        monkeypatch.setitem(pretrained._PRETRAINED, name, rows)
    return [f"ViT-B-32:{tag}" for tag in ("openai", "laion2b_s34b_b79k")]


def test_both_models_called_vit_b_32_have_own_features_labels_and_folders(two_b_32, tmp_path, monkeypatch):
    """Report 13: "ViT-B/32" is two models, OpenAI's and LAION's."""
    world = write_world(tmp_path / "world")
    monkeypatch.chdir(tmp_path)
    done, folders = [], []
    for spec in two_b_32:
        bench = Workbench(
            load_benchmark("mini-circo", "val", world),
            profile="mini", encoder=spec, mllm="none", prompts="mini", settings={}, settings_source="",
            device=torch.device("cpu"), cache_dir=tmp_path / "cache",
        )  # fmt: skip
        done.append(run_method(bench, "image-only", {}))
        folders.append(done[-1].save().name)
    names = ["ViT-B-32-quickgelu:openai", "ViT-B-32:laion2b_s34b_b79k"]
    assert [run.record["inputs"]["encoder"]["encoder"] for run in done] == names
    assert [run.record["inputs"]["encoder"]["activation"] for run in done] == ["QuickGELU", "GELU"]
    assert all("0 images reused from the cache, 24 computed" in run.record["caches"][0] for run in done)
    assert done[0].rankings != done[1].rankings
    assert list(comparison(done).results["method"]) == [f"image-only [{name}]" for name in names]
    for name, folder in zip(names, folders, strict=True):
        assert name.replace(":", "-") in folder


def test_features_of_two_tags_of_one_architecture_are_never_shared(registry, tmp_path, pictures):
    """The two tags have the same weights file here: the identifier alone must keep them apart."""
    ids = list(range(len(pictures)))
    plain, other = load_encoder("tiny:plain"), load_encoder("tiny:openai")
    assert plain.weights_sha256 == other.weights_sha256
    said: list[str] = []
    for encoder in (plain, other, plain):
        image_features(encoder, ids, pictures, tmp_path / "cache", say=said.append)
    assert said == [
        "features of tiny:plain: 0 images reused from the cache, 5 computed",
        "features of tiny-quickgelu:openai: 0 images reused from the cache, 5 computed",
        "features of tiny:plain: 5 images reused from the cache, 0 computed",
    ]


def test_pickled_and_unreachable_weights(registry):
    with pytest.raises(InputError, match="pickled"):
        load_encoder("tiny:pickled")
    with pytest.raises(InputError, match="not in the local cache and could not be fetched.*HF_HOME"):
        load_encoder("tiny:absent")
    with pytest.raises(InputError, match=r"hf download nobody/none open_clip_model\.safetensors"):
        load_encoder("tiny:absent")


# --- the backbones of the papers ---

SIZES = {"ViT-B/32": (512, 224, 12, 32), "ViT-L/14": (768, 224, 24, 14), "ViT-G/14": (1280, 224, 48, 14)}
REPOSITORIES = {
    "ViT-B-32:laion2b_s34b_b79k": "laion/CLIP-ViT-B-32-laion2B-s34B-b79K/",
    "ViT-B-32-quickgelu:openai": "timm/vit_base_patch32_clip_224.openai/",
    "ViT-L-14:laion2b_s32b_b82k": "laion/CLIP-ViT-L-14-laion2B-s32B-b82K/",
    "ViT-L-14-quickgelu:openai": "timm/vit_large_patch14_clip_224.openai/",
    "ViT-bigG-14:laion2b_s39b_b160k": "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k/",
}


@pytest.mark.parametrize(("name", "spec"), [(name, spec) for name, row in BACKBONES.items() for spec in row])
def test_every_backbone_of_the_papers_is_in_open_clips_registry(name, spec):
    found = registered(spec)
    assert found.identifier == spec
    assert (found.architecture, found.tag) in open_clip.list_pretrained()
    vision = found.config["vision_cfg"]
    size = (found.config["embed_dim"], vision["image_size"], vision["layers"], vision["patch_size"])
    assert size == SIZES[name]
    assert found.config["text_cfg"]["context_length"] == 77
    assert bool(found.config.get("quick_gelu")) == spec.endswith("quickgelu:openai")
    assert found.row["hf_hub"] == REPOSITORIES[spec]


@pytest.mark.parametrize("profile", ["laptop", "paper"])
def test_the_profiles_name_backbones_of_the_papers(profile):
    chosen = load_profile(profile)
    assert registered(chosen.encoder).identifier == chosen.encoder
    assert chosen.encoder in {spec for row in BACKBONES.values() for spec in row}
    assert (chosen.precision, chosen.preprocessing) == ("float32", "targetpad-1.25")


@pytest.mark.parametrize(
    ("spec", "identifier"),
    [
        ("ViT-B-32:openai", "ViT-B-32-quickgelu:openai"),
        ("ViT-L-14:openai", "ViT-L-14-quickgelu:openai"),
        ("ViT-B-32:laion400m_e32", "ViT-B-32-quickgelu:laion400m_e32"),
        ("ViT-L-14:laion400m_e32", "ViT-L-14:laion400m_e32"),
        ("ViT-B-32:laion2b-s34b-b79k", "ViT-B-32:laion2b_s34b_b79k"),
    ],
)
def test_the_activation_follows_the_weights(spec, identifier):
    found = registered(spec)
    assert found.identifier == identifier
    assert bool(found.config.get("quick_gelu")) == ("quickgelu" in identifier)


def test_a_printed_name_is_no_identifier():
    with pytest.raises(InputError, match="ViT-B-32:laion2b_s34b_b79k or ViT-B-32-quickgelu:openai"):
        registered("ViT-B/32")
    with pytest.raises(InputError, match="unknown weights 'laion2b_s34b_b79k' of ViT-B-32-quickgelu"):
        registered("ViT-B-32-quickgelu:laion2b_s34b_b79k")


def test_missing_weights_offline_say_what_to_fetch_and_where_it_was_looked_for(tmp_path):
    """In a process of its own, whose hub client is offline and whose cache is empty: an error, no model."""
    code = (
        "from cir_utils.encoder import load_encoder\n"
        "from cir_utils.errors import InputError\n"
        "try: load_encoder('ViT-B-32:laion2b_s34b_b79k')\n"
        "except InputError as error: print(error)\n"
    )
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hub"),
        "PYTHONPATH": str(PACKAGE.parent),
    }
    environment.pop("HF_HUB_CACHE", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    said = done.stdout.strip()
    assert done.returncode == 0 and "\n" not in said
    assert said.startswith("the weights of ViT-B-32:laion2b_s34b_b79k are not in the local cache")
    assert f"below {tmp_path / 'hub' / 'hub'}" in said
    assert "`hf download laion/CLIP-ViT-B-32-laion2B-s34B-b79K open_clip_model.safetensors`" in said


# --- precision ---

#: How far a bfloat16 feature (8 significant bits) may be from the float32 one, as 1 - cosine. Measured on
#: every 60th picture that ships: 2.6e-5 at most.
BFLOAT16_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def mini_pair():
    spec = load_profile("mini").encoder
    return load_encoder(spec), load_encoder(spec, precision="bfloat16")


def test_bfloat16_agrees_with_float32_on_the_shipped_encoder(mini_pair, pictures):
    wide, half = mini_pair
    assert half.describe() == {**wide.describe(), "precision": "bfloat16"}
    assert {value.dtype for value in half.model.visual.transformer.parameters()} == {
        torch.bfloat16,
        torch.float32,  # the normalisation layers
    }
    texts = ["a red cat on the beach", "two blue dogs", "a striped dress with long sleeves", "x " * 100]
    for first, second in (
        (wide.encode_images(pictures), half.encode_images(pictures)),
        (wide.encode_texts(texts).features, half.encode_texts(texts).features),
    ):
        assert second.dtype == torch.float32
        assert not torch.equal(first, second)
        off = 1 - (first * second).sum(dim=1)
        assert float(off.max()) < BFLOAT16_TOLERANCE
        # Brought to unit length in float32, not in bfloat16, where lengths are off by up to 0.4 %.
        assert float((second.double().norm(dim=1) - 1).abs().max()) < 1e-6


def test_bfloat16_texts_equal_open_clips_own_path(tiny_clip):
    spec = f"local-dir:{tiny_clip}"
    model = open_clip.create_model_from_pretrained(spec, precision="bf16", return_transform=False).eval()
    with torch.no_grad():
        expected = model.encode_text(open_clip.get_tokenizer(spec)(TEXTS)).float()
    found = load_encoder(spec, precision="bfloat16").encode_texts(TEXTS).features
    assert (
        float((1 - (found * torch.nn.functional.normalize(expected, dim=1)).sum(dim=1)).max())
        < BFLOAT16_TOLERANCE
    )


def test_precisions_and_preprocessings_that_do_not_exist(tiny_clip):
    spec = f"local-dir:{tiny_clip}"
    with pytest.raises(InputError, match="unknown --precision 'half': choose float32, bfloat16, float16"):
        load_encoder(spec, precision="half")
    with pytest.raises(InputError, match=r"unknown --preprocessing 'pad': choose clip, targetpad-1\.25"):
        load_encoder(spec, preprocessing="pad")
    with pytest.raises(InputError, match="--precision float16 needs a GPU"):
        load_encoder(spec, precision="float16")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_every_precision_on_a_gpu(precision, mini_pair, pictures):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    found = load_encoder(load_profile("mini").encoder, "cuda", precision=precision).encode_images(pictures)
    off = 1 - (found.cpu() * mini_pair[0].encode_images(pictures)).sum(dim=1)
    assert float(off.max()) < BFLOAT16_TOLERANCE


# --- preprocessing ---


def test_target_padding_shows_the_ends_that_the_crop_takes_off(tiny_clip, tmp_path):
    """A white picture of 96 x 32 with red ends of 16 columns. The plain crop keeps its middle third, all
    white. Padded it is 96 x 76 (bands of 22); resized to 40 x 32, cropped to 32: red at both sides."""
    image = Image.new("RGB", (96, 32), "white")
    for left in (0, 80):
        image.paste("red", (left, 0, left + 16, 32))
    image.save(tmp_path / "wide.png")
    spec = f"local-dir:{tiny_clip}"
    plain, padded = (load_encoder(spec, preprocessing=name) for name in ("clip", "targetpad-1.25"))
    first, second = (encoder._pixels(tmp_path / "wide.png") for encoder in (plain, padded))
    assert first.shape == second.shape == (3, 32, 32)
    mean, std = (torch.tensor(plain.model.visual.preprocess_cfg[key]) for key in ("mean", "std"))
    colour = second.permute(1, 2, 0) * std + mean
    assert torch.allclose(first.permute(1, 2, 0) * std + mean, torch.ones(32, 32, 3), atol=1e-5)
    assert torch.allclose(colour[:8], torch.zeros(8, 32, 3), atol=0.02)  # the band above: 22 of 76 rows
    assert torch.allclose(colour[24:], torch.zeros(8, 32, 3), atol=0.02)
    assert torch.allclose(colour[16, 16], torch.ones(3), atol=0.02)
    assert torch.allclose(colour[16, 0], torch.tensor([1.0, 0.0, 0.0]), atol=0.02)
    assert torch.allclose(colour[16, 31], torch.tensor([1.0, 0.0, 0.0]), atol=0.02)


def test_the_preprocessing_is_named_with_its_backend(tiny_clip, encoder, pictures):
    assert encoder.describe()["preprocessing"]["name"] == "clip"
    padded = load_encoder(f"local-dir:{tiny_clip}", preprocessing="targetpad-1.25")
    about = padded.describe()["preprocessing"]
    assert (about["name"], about["backend"], about["interpolation"]) == (
        "targetpad-1.25",
        "pillow",
        "bicubic",
    )
    # The pictures are 50 x 40: a ratio of 1.25 exactly gets bands of nothing.
    assert torch.equal(padded.encode_images(pictures), encoder.encode_images(pictures))


def test_two_batches_of_pixels_at_most_are_in_memory(encoder, pictures, monkeypatch):
    alive, most = [0], [0]
    read = ClipEncoder._pixels

    def release():
        alive[0] -= 1

    def counting(self, path):
        pixels = read(self, path)
        alive[0] += 1
        most[0] = max(most[0], alive[0])
        weakref.finalize(pixels, release)
        return pixels

    monkeypatch.setattr(ClipEncoder, "_pixels", counting)
    assert encoder.encode_images(pictures * 8, batch_size=4).shape == (40, 16)
    assert 4 <= most[0] <= 8
    assert alive[0] == 0
