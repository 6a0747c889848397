"""The systems with trained networks: their formulas, their files, their training."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_world import IDS, open_bench, write_fashion_world, write_world
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from cir_utils import word_networks
from cir_utils.benchmarks import load_benchmark
from cir_utils.encoder import ClipEncoder, load_encoder
from cir_utils.errors import InputError
from cir_utils.files import write_json_atomic
from cir_utils.methods import (
    METHODS,
    fti4cir,
    isearle,
    lincir,
    load_method,
    palavra,
    pic2word,
    resolve_settings,
    searle,
)
from cir_utils.metrics import check_permutations
from cir_utils.pseudo_words import WORD, compose, embeddings_of, fill
from cir_utils.word_networks import NETWORK, PHRASES, SHIPPED, load_weights, mapping, save_weights
from cir_utils.workbench import MethodOutput, Workbench
from data_scripts import train_pseudo_words as training
from data_scripts.domains import DOMAINS, FIELDS

TRAINED = [name for name, method in METHODS.items() if method.trained]
#: The prompt of SEARLE and LinCIR in the prompt set "mini".
MINI = "$ {T_m}"
MODULES = {"pic2word": pic2word, "searle": searle, "isearle": isearle, "lincir": lincir, "palavra": palavra,
           "fti4cir": fti4cir}  # fmt: skip
#: Of 40 pictures of val, how many have a word that names them among all, at least.
AT_LEAST = {"pic2word": 0.9, "searle": 0.2, "isearle": 0.2, "lincir": 0.2, "palavra": 0.1, "fti4cir": 0.5}
CONCEPTS = {
    "cat": ["a red cat on the beach", "two blue cat in the city"],
    "dog": ["the same dog", "a green dog and a boat"],
    "boat": ["a boat"],
}


@pytest.fixture(scope="module")
def encoder(tiny_clip: Path) -> ClipEncoder:
    return load_encoder(f"local-dir:{tiny_clip}")


@pytest.fixture(scope="module")
def mini() -> ClipEncoder:
    return load_encoder(f"local-dir:{SHIPPED / 'mini-clip'}")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def data(tmp_path: Path, encoder: ClipEncoder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a random network of every system for the tiny CLIP."""
    monkeypatch.setenv("CIR_DATA", str(tmp_path))
    for seed, (method, module) in enumerate(MODULES.items()):
        torch.manual_seed(seed)
        folder = tmp_path / "words" / method
        save_weights(folder / NETWORK, method, encoder.identifier, module.network(encoder).state_dict())
        write_json_atomic(folder / PHRASES, CONCEPTS)
    return tmp_path


@pytest.fixture
def bench(world: Path, tiny_clip: Path, cache: Path) -> Workbench:
    return open_bench(world, tiny_clip, cache)


def run(bench: Workbench, method: str, **overrides: object) -> MethodOutput:
    return load_method(method)(bench, resolve_settings(method, bench.settings, overrides))


def places(scores: Tensor) -> list[int]:
    return [IDS[place] for place in scores.argsort(descending=True).tolist()]


# --- what the methods return --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", TRAINED)
def test_every_ranking_is_a_permutation_and_the_same_again(bench: Workbench, data: Path, method: str) -> None:
    found = run(bench, method, **({"oti_steps": 2} if "oti_steps" in METHODS[method].settings else {}))
    check_permutations(found.rankings, IDS, {query.id: query.targets for query in bench.queries})
    assert run(bench, method).rankings == found.rankings
    assert found.counts == {"cut_texts": 0} and found.notes[0].startswith("pseudo-words: ")
    assert "agents" in bench.__dict__ and bench.cost()["mllm_calls"] == 0


@pytest.mark.parametrize(
    ("method", "prompt", "activation"),
    [
        ("pic2word", "a photo of $, {T_m}", torch.relu),
        ("searle", "a photo of $ that {T_m}", nn.functional.gelu),
        ("isearle", "a photo of $ that {T_m}", nn.functional.gelu),
        ("lincir", "a photo of $ that {T_m}", nn.functional.gelu),
    ],
)
@pytest.mark.parametrize("prompts", ["default", "mini"])
def test_a_mapped_feature_becomes_the_word(
    bench: Workbench, data: Path, method: str, prompt: str, activation, prompts: str
) -> None:
    bench.prompts = prompts
    if prompts == "mini":
        prompt = prompt.removeprefix("a photo of ").replace(" that", "")
    w = {key: t.float() for key, t in load_file(data / "words" / method / NETWORK).items()}
    hidden = activation(bench.reference_features @ w["0.weight"].T + w["0.bias"])
    words = activation(hidden @ w["3.weight"].T + w["3.bias"]) @ w["6.weight"].T + w["6.bias"]
    features, _ = compose(bench.encoder, [fill(prompt, text) for text in bench.texts], words)
    scores = features.double() @ bench.gallery_features.double().T
    output = run(bench, method)
    for query, row, trace in zip(bench.queries, scores, output.traces, strict=True):
        assert output.rankings[query.id] == places(row)
        assert trace["said"] == [["prompt", prompt.replace("{T_m}", query.text)]]


def test_both_caption_orders_are_averaged(tmp_path: Path, tiny_clip: Path, cache: Path, data: Path) -> None:
    root = write_fashion_world(tmp_path / "fashion")
    bench = open_bench(
        root, tiny_clip, cache, benchmark="mini-fashioniq", options={"both_orders": True}
    ).parts["dress"]
    assert bench.queries[0].other_text not in (None, bench.queries[0].text)
    network = word_networks.as_mapping(load_weights("searle", bench.encoder).tensors)
    words = network(bench.reference_features)
    both = [
        compose(bench.encoder, [fill(MINI, text) for text in texts], words)[0]
        for texts in (bench.texts, [query.other_text or "" for query in bench.queries])
    ]
    scores = (both[0] + both[1]).double() @ bench.gallery_features.double().T
    gallery = bench.benchmark.gallery
    assert run(bench, "searle").rankings[bench.queries[1].id] == [
        gallery[place] for place in scores[1].argsort(descending=True).tolist()
    ]


def test_fine_words_stand_in_their_places(bench: Workbench, data: Path) -> None:
    model = fti4cir.trained(load_weights("fti4cir", bench.encoder))
    patches = fti4cir.patches_of(bench.encoder, bench.reference_paths)
    assert patches.shape == (8, 4, 32)
    subjects, attributes, kept = model.words(bench.reference_features, patches)
    output = run(bench, "fti4cir")
    for number, query in enumerate(bench.queries):
        count = len(attributes[number])
        prompt = "$ with " + "$ " * count + "but " + query.text
        assert output.traces[number]["said"] == [["prompt", prompt]] and 1 <= count <= fti4cir.TOP_K
        words = torch.cat([subjects[[number]], model.attribute(kept[number])])
        feature, _ = compose(bench.encoder, [prompt.replace("$", WORD)], words)
        assert output.rankings[query.id] == places((feature.double() @ bench.gallery_features.double().T)[0])


# --- formulas -----------------------------------------------------------------------------------------------


def test_pic2words_loss_by_hand(encoder: ClipEncoder) -> None:
    generator = torch.Generator().manual_seed(0)
    features = normalize(torch.randn(3, 16, generator=generator), dim=1)
    words = embeddings_of(encoder, ["cat", "dog", "boat"])
    texts = encoder.encode_texts(["a photo of cat", "a photo of dog", "a photo of boat"]).features
    scale = encoder.model.logit_scale.exp().item()
    total = 0.0
    for i in range(3):
        right = math.exp(scale * float(texts[i] @ features[i]))
        total -= math.log(right / sum(math.exp(scale * float(texts[i] @ features[j])) for j in range(3)))
        total -= math.log(right / sum(math.exp(scale * float(texts[j] @ features[i])) for j in range(3)))
    assert pic2word.loss(encoder, words, features, "default").item() == pytest.approx(total / 6, rel=1e-4)


def test_distillation_by_hand() -> None:
    generator = torch.Generator().manual_seed(1)
    found, wanted = torch.randn(3, 5, generator=generator), torch.randn(3, 5, generator=generator)
    both = [*normalize(found, dim=1), *normalize(wanted, dim=1)]
    total = 0.0
    for i in range(6):
        others = sum(math.exp(float(both[i] @ both[j]) / 0.25) for j in range(6) if j != i)
        total -= math.log(math.exp(float(both[i] @ both[(i + 3) % 6]) / 0.25) / others)
    assert searle.distillation(found, wanted).item() == pytest.approx(total / 6, rel=1e-5)
    assert searle.distillation(wanted * 9, wanted).item() < searle.distillation(found, wanted).item()


def test_regularisation_puts_the_word_for_the_concept(encoder: ClipEncoder) -> None:
    concepts = searle.read_concepts(encoder, {"cat": ["a red cat on the beach"], "dog": ["the same dog"]})
    nearest = torch.tensor([[0], [1]])
    rng = np.random.default_rng(0)
    own = searle.regularisation(encoder, embeddings_of(encoder, ["cat", "dog"]), nearest, concepts, rng)
    torch.testing.assert_close(own, torch.zeros(2), atol=1e-5, rtol=0)
    other = searle.regularisation(encoder, embeddings_of(encoder, ["car", "car"]), nearest, concepts, rng)
    a, b = encoder.encode_texts(["a red cat on the beach", "a red car on the beach"]).features
    assert other[0].item() == pytest.approx(1 - float(a @ b), abs=1e-5)


def test_nearest_concepts_are_the_nearest_texts(encoder: ClipEncoder) -> None:
    concepts = searle.read_concepts(encoder, CONCEPTS)
    query = encoder.encode_texts(["a photo of a dog"]).features
    order = sorted(range(3), key=lambda number: -float(query[0] @ concepts.features[number]))
    assert searle.nearest_concepts(query, concepts).tolist() == [order] and order[0] == 1


def test_inversion_finds_a_word_that_says_the_picture(mini: ClipEncoder) -> None:
    """What a real word says is found again: the sentence ends near it; and the same every time."""
    concepts = searle.read_concepts(mini, {"cat": ["a red cat on the beach"], "boat": ["a boat"]})
    sentence = [fill("$")] * 3
    wanted, _ = compose(mini, sentence, embeddings_of(mini, ["dress", "cat", "umbrella"]))
    options = {"seed": 5, "lambda_gpt": 0.0, "decay": 0.8}
    begin, end = (searle.invert(mini, wanted, concepts, steps, "mini", **options) for steps in (1, 40))
    before, after = (cosine_similarity(compose(mini, sentence, w)[0], wanted) for w in (begin, end))
    assert (after > 0.99).all() and (before < 0.95).all(), (before, after)
    assert torch.equal(end, searle.invert(mini, wanted, concepts, 40, "mini", **options))
    assert not torch.equal(end, searle.invert(mini, wanted, concepts, 40, "mini", **options, noise=0.5))
    assert all(parameter.grad is None for parameter in mini.model.parameters())


def test_optimised_inversion_is_another_ranking_and_no_network(bench: Workbench, data: Path) -> None:
    output = run(bench, "searle", inversion="optimised", oti_steps=3)
    concepts = searle.read_concepts(bench.encoder, CONCEPTS)
    words = searle.invert(bench.encoder, bench.reference_features, concepts, 3, "mini", seed=42)
    features, _ = compose(bench.encoder, [fill(MINI, text) for text in bench.texts], words)
    scores = features.double() @ bench.gallery_features.double().T
    assert output.rankings["3"] == places(scores[3])
    assert output.notes == [
        "pseudo-words: optimised for each reference picture in 3 steps, none of a network"
    ]
    options = {"seed": 42, "noise": isearle.NOISE}
    noisy = searle.invert(bench.encoder, bench.reference_features, concepts, 3, "mini", **options)
    features, _ = compose(bench.encoder, [fill(MINI, text) for text in bench.texts], noisy)
    scores = features.double() @ bench.gallery_features.double().T
    assert run(bench, "isearle", inversion="optimised", oti_steps=3).rankings["3"] == places(scores[3])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a red cat on the beach", "$ on $"),
        ("on the beach, two striped cats with a ball", "on $, $ with $"),
        ("make it blue", "make it $"),
        ("a picture of a red dress, long sleeves and a belt", "$ of $, $ and $"),
    ],
)
def test_keywords_are_masked(text: str, expected: str) -> None:
    assert lincir.masked(np.random.default_rng(0), text).replace(WORD, "$") == expected


def test_a_text_without_keywords_gets_one_word_masked() -> None:
    found = {lincir.masked(np.random.default_rng(seed), "with it on") for seed in range(20)}
    assert found == {f"{WORD} it on", f"with {WORD} on", f"with it {WORD}"}


def test_lincirs_noise_and_loss(encoder: ClipEncoder) -> None:
    features = normalize(torch.randn(4000, 64, generator=torch.Generator().manual_seed(0)), dim=1)
    noisy = lincir.noised(features, torch.Generator().manual_seed(1))
    torch.testing.assert_close(noisy.norm(dim=1), torch.ones(4000))
    # A factor u in [0, 1) and noise of length about one: the cosine is about 1 / sqrt(1 + u^2), whose mean is
    # asinh(1) = 0.881.
    assert (noisy * features).sum(1).mean().item() == pytest.approx(math.asinh(1), abs=0.01)
    texts = ["a red cat on the beach", "a dog"]
    wanted = encoder.encode_texts(["a red cat on the beach", "dog"]).features
    words = embeddings_of(encoder, ["cat", "dog"])
    masked = [f"a red {WORD} on the beach", WORD]
    assert lincir.loss(encoder, words, masked, wanted).item() == pytest.approx(0, abs=1e-5)
    other = encoder.encode_texts(texts).features
    expected = (other - wanted).square().sum(1).mean().item()
    assert lincir.loss(encoder, words, masked, other).item() == pytest.approx(expected, rel=1e-3)


def test_batches_that_look_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = normalize(torch.randn(20, 8, generator=generator), dim=1).repeat_interleave(8, 0)
    features = normalize(centres + 0.01 * torch.randn(160, 8, generator=generator), dim=1)
    rows = isearle.alike(features, 40, np.random.default_rng(0))
    assert len(set(rows.tolist())) == 40
    groups = (rows // 8).view(5, 8)
    assert (groups == groups[:, :1]).all() and len(set(groups[:, 0].tolist())) == 5


def test_personalisation_goes_to_the_picture_and_away_from_its_class(
    encoder: ClipEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(palavra, "LEARNING_RATE", 0.01)
    concepts = searle.read_concepts(encoder, CONCEPTS)
    pictures = normalize(torch.randn(4, 16, generator=torch.Generator().manual_seed(2)), dim=1)
    begin = embeddings_of(encoder, ["cat", "dog", "boat", "car"])
    end = palavra.personalise(encoder, begin, pictures, concepts, "mini")
    classes = [concepts.names[row[0]] for row in searle.nearest_concepts(pictures, concepts).tolist()]
    negatives = encoder.encode_texts([f"a {name}" for name in classes]).features

    def margin(words: Tensor) -> Tensor:
        found, _ = compose(encoder, [fill("a $")] * 4, words)
        return (found * pictures).sum(1) - (found * negatives).sum(1)

    assert (margin(end) > margin(begin) + 0.05).all()
    assert torch.equal(begin, embeddings_of(encoder, ["cat", "dog", "boat", "car"]))


def test_palavras_losses(encoder: ClipEncoder) -> None:
    names = ["red cat", "blue dog", "green boat"]
    embeddings = embeddings_of(encoder, ["cat", "dog", "boat"])
    found = encoder.encode_texts(["a photo of a cat", "a photo of a dog", "a photo of a boat"]).features
    wanted = encoder.encode_texts([f"a photo of a {name}" for name in names]).features
    assert palavra.cycle_loss(encoder, 3 * embeddings, names, embeddings, "default").item() > 0
    expected = searle.distillation(found, wanted, 0.25).item()
    assert palavra.cycle_loss(encoder, embeddings, names, embeddings, "default").item() == pytest.approx(
        expected, rel=1e-4
    )
    turned = embeddings[[1, 0, 2]]
    truth = (normalize(embeddings, dim=1) - normalize(turned, dim=1)).square().mean().item()
    loss = palavra.cycle_loss(encoder, embeddings, names, turned, "default").item()
    assert loss == pytest.approx(expected + truth, rel=1e-4) and truth > 1e-3


def test_a_set_is_the_mean_of_its_elements(encoder: ClipEncoder) -> None:
    model = palavra.network(encoder).eval()
    features = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(features), model(features[:, [2, 0, 1]]))
    torch.testing.assert_close(model(features[:, :1].expand(2, 3, 16)), model(features[:, :1]))


def test_which_attributes_are_kept() -> None:
    model = fti4cir.FineNetwork(2, 4, 3, 0.0)
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    attributes = torch.zeros(2, fti4cir.TEMPLATES, 2)
    assert model.chosen(features, attributes) == [[0], [0]]  # all weigh 1/8, which is not over it: the first
    attributes[0, [6, 1, 3], 0] = torch.tensor([3.0, 2.0, 2.5])
    attributes[1, :6, 0] = torch.tensor([5.0, 5.1, 5.2, 5.3, 5.4, 5.5])
    first = torch.softmax(attributes[0, :, 0], 0)
    assert (first > fti4cir.EPSILON).tolist() == [False, True, False, True, False, False, True, False]
    assert model.chosen(features, attributes) == [[1, 3, 6], [2, 3, 4, 5]]
    assert fti4cir.prompt(2, "default") == "a photo of $ with $ $ but {T_m}"
    assert fti4cir.prompt(1, "mini") == "$ with $ but {T_m}"


def test_fti4cirs_loss_is_the_sum_of_its_parts(encoder: ClipEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = fti4cir.network(encoder, dropout=0.0)
    features = normalize(torch.randn(2, 16), dim=1)
    patches = torch.randn(2, 4, 32)
    parts = (["cat", "dog"], ["red on the beach", "blue"])
    subjects, attributes, kept = model.words(features, patches)

    def encode(prompts: list[str], words: list[Tensor]) -> Tensor:
        return compose(encoder, [prompt.strip() for prompt in prompts], torch.cat(words))[0]

    slots = [f"{WORD} " * len(one) for one in attributes]
    both = encode(
        [f"a photo of {WORD} with {slot}" for slot in slots],
        [subjects[[0]], attributes[0], subjects[[1]], attributes[1]],
    )
    subject = encode([f"a photo of {WORD} with red on the beach", f"a photo of {WORD} with blue"], [subjects])
    attribute = encode([f"a photo of cat with {slots[0]}", f"a photo of dog with {slots[1]}"], attributes)
    captions = encoder.encode_texts(
        ["a photo of cat with red on the beach", "a photo of dog with blue"]
    ).features
    expected = searle.distillation(both, features, 0.2).item()
    expected += np.mean([(one @ one.T - torch.eye(len(one))).square().mean().item() for one in kept])
    for found in (both, subject, attribute):
        expected += 1.4 * (1 - (found * captions).sum(1)).mean().item()
    loss = fti4cir.loss(encoder, model, features, patches, *parts, "default")
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.narrow.parameters())


# --- files --------------------------------------------------------------------------------------------------


def published(method: str, encoder: ClipEncoder, prefix: str = "") -> tuple[dict, nn.Sequential]:
    """A file as the authors write it, and the network that it holds."""
    torch.manual_seed(9)
    activation = nn.ReLU if method == "pic2word" else nn.GELU
    network = mapping((16, 24, 32), activation, 0.5).eval()
    names = {"0": "layers.0", "3": "layers.3", "6": "layers.6"}
    if method == "pic2word":
        names = {"0": "layers.0.0", "3": "layers.1.0", "6": "fc_out"}
    state = {}
    for name, tensor in network.state_dict().items():
        layer, kind = name.split(".")
        state[f"{prefix}{names[layer]}.{kind}"] = tensor
    if method != "pic2word":
        return {"epoch": 3, "Phi": state}, network
    optimizer = torch.optim.AdamW(network.parameters()).state_dict()
    clip = {"module.logit_scale": torch.tensor(4.6)}
    whole = {
        "epoch": 30,
        "name": "x",
        "state_dict": clip,
        "state_dict_img2text": state,
        "optimizer": optimizer,
    }
    return whole, network


@pytest.fixture
def publish(tmp_path: Path, encoder: ClipEncoder, monkeypatch: pytest.MonkeyPatch):
    """Makes an authors' file known for the tiny CLIP: the path where it is looked for."""
    monkeypatch.setenv("CIR_DATA", str(tmp_path))

    def known(method: str, file: str) -> Path:
        entry = word_networks.Published(file, "https://example.org")
        monkeypatch.setitem(word_networks.PUBLISHED, (method, encoder.identifier), entry)
        (tmp_path / "words").mkdir(exist_ok=True)
        return tmp_path / "words" / file

    return known


@pytest.mark.parametrize("method", ["pic2word", "searle", "lincir"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_published_files(publish, encoder: ClipEncoder, bench: Workbench, method: str, prefix: str) -> None:
    table, network = published(method, encoder, prefix)
    torch.save(table, publish(method, "authors.pt"))
    weights = load_weights(method, bench.encoder)
    assert not weights.unit and weights.source.startswith("the authors' authors.pt, SHA-256 ")
    raw = word_networks.picture_inputs(bench, weights)
    assert (raw.norm(dim=1) - 1).abs().min() > 1e-3
    torch.testing.assert_close(normalize(raw, dim=1), bench.reference_features, atol=1e-5, rtol=0)
    words = network(raw)
    prompt = MODULES[method].PROMPTS["mini"]
    features, _ = compose(bench.encoder, [fill(prompt, text) for text in bench.texts], words)
    scores = features.double() @ bench.gallery_features.double().T
    assert run(bench, method).rankings["2"] == places(scores[2])


def test_published_tensors_alone(publish, encoder: ClipEncoder) -> None:
    table, network = published("lincir", encoder)
    save_file(table["Phi"], publish("lincir", "phi.safetensors"))
    found = load_weights("lincir", encoder).tensors
    assert found.keys() == network.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in network.state_dict().items())


class Other:
    """Something that only a pickle can hold."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table | {"Phi": Other()}, "cannot be read as weights alone"),
        (lambda table: table | {"Phi": {"layers.0.weight": torch.ones(2)}}, "expected 'Phi' with layers.0"),
        (lambda table: {"epoch": 1}, "found epoch"),
        (lambda table: [1, 2], "found no dictionary of tensors"),
        (lambda table: b"not a checkpoint", "cannot be read as weights alone"),
    ],
)
def test_foreign_files_are_refused(publish, encoder: ClipEncoder, change, message: str) -> None:
    path = publish("searle", "x.pt")
    made = change(published("searle", encoder)[0])
    if isinstance(made, bytes):
        path.write_bytes(made)
    else:
        torch.save(made, path)
    with pytest.raises(InputError, match=message) as refused:
        load_weights("searle", encoder)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_network_of_another_clip_is_refused(
    data: Path, publish, encoder: ClipEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = mapping((24, 32, 32), nn.GELU, 0.0)
    monkeypatch.setattr(word_networks, "SHIPPED", tmp_path / "shipped")
    save_weights(tmp_path / "shipped" / "lincir" / NETWORK, "lincir", "mini-clip@0123", network.state_dict())
    save_weights(data / "words" / "lincir" / NETWORK, "lincir", "other@123", network.state_dict())
    with pytest.raises(InputError) as refused:
        load_weights("lincir", encoder)
    found = str(refused.value)
    assert found.startswith(
        f"method lincir has no weights for encoder {encoder.identifier} (there are weights"
    )
    assert "for mini-clip@0123, other@123, which do not fit it" in found and "\n" not in found
    assert (
        f"python -m data_scripts.train_pseudo_words lincir --encoder ... --export {data}/words/lincir"
        in found
    )
    save_weights(data / "words" / "lincir" / NETWORK, "lincir", encoder.identifier, network.state_dict())
    with pytest.raises(InputError, match="maps 24 dimensions to words of 32, encoder .* has 16 and 32"):
        load_weights("lincir", encoder)
    save_weights(data / "words" / "lincir" / NETWORK, "searle", encoder.identifier, network.state_dict())
    with pytest.raises(InputError, match="is not a network of lincir"):
        load_weights("lincir", encoder)
    (data / "words" / "lincir" / NETWORK).unlink()
    publish("lincir", "lincir_large.pt")
    with pytest.raises(InputError, match=r"put the authors' lincir_large.pt \(https://example.org\) into"):
        load_weights("lincir", encoder)


def test_phrases_must_hold_their_concept(tmp_path: Path) -> None:
    write_json_atomic(tmp_path / PHRASES, {"cat": ["a red cat", "a dog"]})
    with pytest.raises(InputError, match="texts that contain it as a word"):
        word_networks.read_phrases(tmp_path)
    write_json_atomic(tmp_path / PHRASES, CONCEPTS)
    assert word_networks.read_phrases(tmp_path) == CONCEPTS


# --- training -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures of each domain, as data_scripts.pool writes them."""
    folder = tmp_path_factory.mktemp("pool")
    for domain in DOMAINS:
        rng = np.random.default_rng(3)
        things = [domain.train(rng) for _ in range(12)]
        (folder / domain.name).mkdir()
        pixels = np.stack([np.asarray(domain.draw(thing, seed=n)) for n, thing in enumerate(things)])
        np.save(folder / domain.name / "pixels.npy", pixels)
        labels = np.array([domain.encode(thing) for thing in things], np.uint8)
        assert labels.shape == (12, len(FIELDS))
        np.save(folder / domain.name / "labels.npy", labels)
    return folder


@pytest.mark.parametrize("system", TRAINED)
def test_training_goes_on_where_it_stopped(
    system: str, pool: Path, tmp_path: Path, mini: ClipEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six steps at once, and three and three, give the same weights; they are those of another network than
    at the beginning, and the method reads them."""
    monkeypatch.setattr(training, "INVERSION_STEPS", 2)
    monkeypatch.setattr(training, "INVERTED", 16)
    monkeypatch.setattr(training, "SAVE_EVERY", 3)
    monkeypatch.setattr(training, "PHRASES_EACH", 2)
    shared = ["--pool", str(pool), "--batch", "8", "--steps", "6"]
    training.main([system, *shared, "--out", str(tmp_path / "a"), "--export", str(tmp_path / "one")])

    class Killed(Exception):
        pass

    written: list[Path] = []
    write = training.write_checkpoint

    def write_and_die(path: Path, *rest: object) -> None:
        write(path, *rest)  # type: ignore[arg-type]
        written.append(path)
        if len(written) == 1:
            raise Killed

    monkeypatch.setattr(training, "write_checkpoint", write_and_die)
    with pytest.raises(Killed):
        training.main([system, *shared, "--out", str(tmp_path / "b")])
    training.main([system, *shared, "--out", str(tmp_path / "b"), "--export", str(tmp_path / "two")])
    assert len(written) == 2
    one, two = (load_file(tmp_path / name / NETWORK) for name in ("one", "two"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    record = json.loads((tmp_path / "two" / "training.json").read_text())
    assert (record["steps"], record["batch"], record["system"]) == (6, 8, system)
    monkeypatch.setattr(word_networks, "SHIPPED", tmp_path / "nothing")
    monkeypatch.setenv("CIR_DATA", str(tmp_path))
    (tmp_path / "words").mkdir()
    (tmp_path / "two").rename(tmp_path / "words" / system)
    assert load_weights(system, mini).tensors.keys() == one.keys()
    with pytest.raises(SystemExit, match="belongs to"):
        training.main([system, *shared[:-1], "7", "--out", str(tmp_path / "b")])


def test_no_text_of_the_phrases_names_a_held_out_combination() -> None:
    phrases = training.concept_phrases(0)
    assert list(phrases)[0] == "cat" and list(phrases)[-1] == "top" and len(phrases) == 17
    scenes, fashion = DOMAINS
    for name, texts in phrases.items():
        assert len(texts) == 24
        for text in texts:
            if name in scenes.choices["kind"]:
                seen = scenes.texts.read_caption(text)
                assert seen["kind"] == name
                kind = scenes.choices["kind"].index(name)
                if seen["colour"]:
                    colour = scenes.choices["colour"].index(seen["colour"])
                    assert not scenes.world.HELD_OUT_COLOURS[kind, colour], text
                if seen["background"]:
                    place = scenes.choices["background"].index(seen["background"])
                    assert not scenes.world.HELD_OUT_BACKGROUNDS[kind, place], text
            else:
                seen = fashion.texts.read_caption(text)
                kind = fashion.choices["category"].index(seen["category"])
                pattern = fashion.choices["pattern"].index(seen["pattern"])
                if seen["colour"]:
                    colour = fashion.choices["colour"].index(seen["colour"])
                    assert not fashion.world.HELD_OUT_COLOURS[kind, colour], text
                    named = seen["pattern"] != "plain" or "plain" in text.split()
                    assert not (named and fashion.world.HELD_OUT_PATTERNS[pattern, colour]), text


def test_a_caption_in_two_parts() -> None:
    rng = np.random.default_rng(1)
    scene = DOMAINS[0].train(rng, kind="cat", colour="red", count=2, pattern="striped", prop="ball")
    subject, attributes = training.subject_and_attributes(DOMAINS[0], scene)
    assert subject == "two cats"
    assert attributes.startswith("red, striped, ") and "ball" in attributes
    garment = DOMAINS[1].train(rng, category="dress", colour="red", pattern="plain")
    subject, attributes = training.subject_and_attributes(DOMAINS[1], garment)
    assert subject == "dress" and "red" in attributes and "dress" not in attributes


# --- what ships ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(mini: ClipEncoder) -> tuple[Tensor, list[Path]]:
    """Unit features and paths of 40 pictures of mini-circo's val, other than any of training."""
    bench = load_benchmark("mini-circo", "val")
    paths = [bench.image_path(query.reference) for query in bench.queries[:40]]
    return mini.encode_images(paths), paths


@pytest.mark.parametrize("method", TRAINED)
def test_shipped_words_say_which_picture_they_are_of(method: str, mini: ClipEncoder, pictures) -> None:
    """The sentence of a picture's word is nearer to it than to 39 others: for most of the words (guessing:
    one of 40)."""
    features, paths = pictures
    weights = load_weights(method, mini)
    assert weights.unit and weights.folder == SHIPPED / method
    assert (SHIPPED / method / NETWORK).stat().st_size < 800_000
    record = json.loads((SHIPPED / method / "training.json").read_text())
    assert (record["system"], record["encoder"]) == (method, mini.identifier)
    if method == "palavra":
        words = palavra.trained(weights)(features[:, None])
        sentences = [WORD] * 40
    elif method == "fti4cir":
        subjects, attributes, _ = fti4cir.trained(weights).words(features, fti4cir.patches_of(mini, paths))
        pairs = zip(subjects[:, None], attributes, strict=True)
        words = torch.cat([part for pair in pairs for part in pair])
        sentences = [f"{WORD} with {f'{WORD} ' * len(one)}".strip() for one in attributes]
    else:
        activation = nn.ReLU if method == "pic2word" else nn.GELU
        words = word_networks.as_mapping(weights.tensors, activation)(features)
        sentences = [WORD] * 40
    found, _ = compose(mini, sentences, words)
    right = ((found @ features.T).argmax(dim=1) == torch.arange(40)).float().mean().item()
    print(method, right)
    assert right >= AT_LEAST[method]


def test_damaged_shipped_weights_are_refused(
    tmp_path: Path, mini: ClipEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(SHIPPED / "lincir", tmp_path / "lincir")
    monkeypatch.setattr(word_networks, "SHIPPED", tmp_path)
    assert load_weights("lincir", mini).folder == tmp_path / "lincir"
    stored = (tmp_path / "lincir" / NETWORK).read_bytes()
    (tmp_path / "lincir" / NETWORK).write_bytes(stored[:-2] + b"xx")
    with pytest.raises(InputError, match="is damaged"):
        load_weights("lincir", mini)
