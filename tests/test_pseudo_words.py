"""Pseudo-words in open_clip's text towers: a real word's embedding gives the real word's feature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import open_clip
import pytest
import torch
from tiny_clip import SMALL, write_open_clip

from cir_utils import pseudo_words
from cir_utils.encoder import ClipEncoder, load_encoder
from cir_utils.errors import InputError
from cir_utils.profiles import PACKAGE
from cir_utils.pseudo_words import (
    WORD,
    compose,
    embeddings_of,
    encode_prompts,
    fill,
    read_prompts,
    token_table,
)

MINI = PACKAGE / "mini" / "models" / "mini-clip"


@pytest.fixture(scope="module")
def tiny(tiny_clip: Path) -> ClipEncoder:
    return load_encoder(f"local-dir:{tiny_clip}")


@pytest.fixture(scope="module", params=["mini-clip", "tiny", "ViT-B-32", "ViT-B-32-quickgelu", "custom text"])
def encoder(request: pytest.FixtureRequest, tiny: ClipEncoder, tmp_path_factory) -> ClipEncoder:
    """The shipped model; open_clip's own towers with its tokenizer, pooled at the highest token; and a text
    tower of its own module (CustomTextCLIP)."""
    if request.param == "mini-clip":
        return load_encoder(f"local-dir:{MINI}")
    if request.param == "tiny":
        return tiny
    folder = tmp_path_factory.mktemp("clip") / "small"
    if request.param == "custom text":
        return load_encoder(f"local-dir:{write_open_clip(folder, changes=SMALL | {'custom_text': True})}")
    return load_encoder(f"local-dir:{write_open_clip(folder, request.param)}")


def test_a_real_word_put_in_is_the_text_with_that_word(encoder: ClipEncoder) -> None:
    texts = [
        ("a red {} on the beach", "cat"),
        ("{}", "dog"),
        ("{} is the same but blue", "boat"),
        ("two red {} and a blue dog " + "on the beach and in the city " * 3, "car"),
        ("a dog and a {}", "car"),
    ]
    wanted = encoder.encode_texts([text.format(word) for text, word in texts]).features
    prompts = [text.format(WORD) for text, _ in texts]
    found, cut = compose(encoder, prompts, embeddings_of(encoder, [word for _, word in texts]))
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=0)
    assert cut == [False] * 5
    other, _ = compose(encoder, prompts, embeddings_of(encoder, ["red", "red", "red", "red", "red"]))
    assert (other - wanted).abs().max() > 1e-3


def test_custom_text_towers_are_another_class(tmp_path: Path) -> None:
    loaded = load_encoder(
        f"local-dir:{write_open_clip(tmp_path / 'c', changes=SMALL | {'custom_text': True})}"
    )
    assert type(loaded.model) is open_clip.CustomTextCLIP


def test_several_words_keep_their_order(encoder: ClipEncoder) -> None:
    words = ["red", "cat", "blue", "boat", "green"]
    prompts = [f"a {WORD} {WORD} and a {WORD} {WORD} on the beach", f"make it {WORD}"]
    found, _ = compose(encoder, prompts, embeddings_of(encoder, words))
    wanted = encoder.encode_texts(["a red cat and a blue boat on the beach", "make it green"]).features
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=0)


def test_batches_do_not_mix_prompts(tiny: ClipEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["cat", "dog", "boat", "car", "red", "blue", "green"]
    prompts = [f"a {WORD} " + "on the beach " * (number % 4 * 4) for number in range(7)]
    words = embeddings_of(tiny, names)
    wanted = tiny.encode_texts([p.replace(WORD, n) for p, n in zip(prompts, names, strict=True)]).features
    monkeypatch.setattr(pseudo_words, "BATCH", 3)
    torch.testing.assert_close(compose(tiny, prompts, words)[0], wanted, atol=2e-6, rtol=0)


def test_pooling_is_at_the_end_token_and_nothing_behind_it_counts(tiny: ClipEncoder) -> None:
    """A pseudo-word that looks like the end token moves no pooling; one behind the end token does nothing."""
    read = read_prompts(tiny, [f"a {WORD} on the beach"])
    assert read.tokens[0, :8].tolist()[0] == 1 and read.tokens[0, 6].item() == 2
    assert (read.rows.tolist(), read.columns.tolist(), read.length) == ([0], [2], 7)
    end = token_table(tiny).weight.detach()[[2]]
    behind = replace(read, columns=torch.tensor([10]), length=16)
    plain = tiny.encode_texts(["a a on the beach"]).features
    torch.testing.assert_close(
        torch.nn.functional.normalize(encode_prompts(tiny, behind, end), dim=1), plain, atol=2e-6, rtol=0
    )
    assert (torch.nn.functional.normalize(encode_prompts(tiny, read, end), dim=1) - plain).abs().max() > 1e-3


def test_a_text_may_hold_the_signs_of_a_template(tiny: ClipEncoder) -> None:
    prompt = fill("a photo of $ that {T_m}", f"costs $5 {WORD} in {{T_m}}")
    assert prompt == f"a photo of {WORD} that costs $5   in {{T_m}}"
    assert read_prompts(tiny, [prompt]).rows.tolist() == [0]


def test_gradients_reach_the_words_and_nothing_stays_behind(tiny: ClipEncoder) -> None:
    before = tiny.encode_texts(["a red cat"]).features
    words = embeddings_of(tiny, ["cat"]).requires_grad_()
    read = read_prompts(tiny, [f"a red {WORD}"])
    encode_prompts(tiny, read, words)[0, 0].backward()
    assert words.grad is not None and words.grad.abs().max() > 0
    step = torch.zeros_like(words).index_fill_(1, torch.tensor([3]), 1e-2)
    up, down = (encode_prompts(tiny, read, (words + sign * step).detach())[0, 0] for sign in (1, -1))
    assert words.grad[0, 3].item() == pytest.approx(((up - down) / 2e-2).item(), rel=2e-2)
    assert torch.equal(tiny.encode_texts(["a red cat"]).features, before)
    with pytest.raises(ValueError, match="width"):
        encode_prompts(tiny, read, words[:, :5])
    assert not token_table(tiny)._forward_hooks


def test_cut_prompts(tiny: ClipEncoder) -> None:
    long = "on the beach " * 40
    features, cut = compose(tiny, [f"a {WORD} {long}"], embeddings_of(tiny, ["cat"]))
    assert cut == [True]
    torch.testing.assert_close(features, tiny.encode_texts([f"a cat {long}"]).features, atol=2e-6, rtol=0)
    with pytest.raises(InputError, match=r"0 of its 1 pseudo-words lie in the 77 tokens"):
        read_prompts(tiny, [f"{long} {WORD}"])


def test_towers_without_a_table_are_refused(tiny: ClipEncoder) -> None:
    other = ClipEncoder.__new__(ClipEncoder)
    other.__dict__ |= tiny.__dict__ | {"model": torch.nn.Linear(1, 1)}
    with pytest.raises(InputError, match="no table of token embeddings"):
        token_table(other)
