"""The local client on tiny random models of every family it is written for: equal to the library alone,
whatever the batch, and both ways of verifying agree."""

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_families import FAMILIES
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor

from cir_utils.mllm import LocalMLLM, Request, VerifyItem

SHAPES = [(64, 64, 3), (96, 48, 3), (40, 100, 3), (64, 64, 3)]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    if request.param == "smolvlm":
        pytest.importorskip("num2words", reason="SmolVLM's processor needs num2words")
    return FAMILIES[request.param](tmp_path_factory.mktemp("families") / request.param)


@pytest.fixture(scope="module")
def mllm(folder):
    return LocalMLLM(folder)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    root, paths = tmp_path_factory.mktemp("pictures"), []
    for number, shape in enumerate(SHAPES):
        pixels = np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)
        paths.append(root / f"{number}.png")
        Image.fromarray(pixels).save(paths[-1])
    return paths


def alone(folder, images, text, tokens):
    """Ids of a prompt and of the greedy answer, by the library without us."""
    processor = AutoProcessor.from_pretrained(folder)
    processor.image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    content = [{"type": "image", "image": Image.open(path)} for path in images]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": [*content, {"type": "text", "text": text}]}],
        tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt",
    )  # fmt: skip
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    return inputs["input_ids"][0].tolist(), output[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("chosen", [(), (1,), (0, 2)])
def test_prompts_and_answers_are_those_of_the_library(folder, mllm, pictures, chosen):
    images = tuple(pictures[i] for i in chosen)
    prompt, tokens = alone(folder, images, "describe the picture", 10)
    answer = mllm.generate([Request("describe the picture", images, 10)])[0]
    assert answer.text == mllm.tokenizer.decode(
        [token for token in tokens if token not in mllm.stop_ids], skip_special_tokens=True
    )
    assert (answer.prompt_tokens, answer.completion_tokens) == (len(prompt), len(tokens))
    # what batches are planned by
    assert mllm._prompt_tokens([(images, "describe the picture")]) == [len(prompt)]


@pytest.mark.parametrize("tokens", [1, 300, 16_384])
def test_answers_belong_to_their_pictures_whatever_the_batch(folder, mllm, pictures, tokens):
    requests = [Request("describe the picture", (path,), 8) for path in pictures]
    requests += [Request("a red car in the city", (pictures[1], pictures[0]), 8), Request("two cats", (), 8)]
    single = [mllm.generate([request])[0] for request in requests]
    assert len({answer.text for answer in single[:4]}) == 4
    batched = LocalMLLM(folder, batch_tokens=tokens)
    assert batched.generate(requests) == single
    assert batched.generate(requests[::-1]) == single[::-1]


def test_both_ways_to_verify_read_the_same_token(folder, mllm, pictures):
    """The probability comes from the logits of "true" and "false" where the answer would begin."""
    item = VerifyItem((pictures[1],), "true or false: ", ("the dog is brown", "there are two red cats"))
    gaps = []
    for statement in item.statements:
        processor, model = mllm.processor, mllm.model
        inputs = processor(
            text=[mllm._prompt(1, item.prefix + statement)], images=[[Image.open(pictures[1])]],
            add_special_tokens=False, return_tensors="pt",
        )  # fmt: skip
        with torch.inference_mode():
            logits = model(**inputs).logits[0, -1]
        gaps.append((logits[mllm._true] - logits[mllm._false]).item())
    expected = [1 / (1 + np.exp(-gap)) for gap in gaps]
    assert mllm.verify([item])[0] == pytest.approx(expected, abs=1e-5)
    assert mllm.verify_plain([item, item])[1] == pytest.approx(expected, abs=1e-5)
    assert abs(expected[0] - expected[1]) > 1e-4


def test_passes_and_pictures_are_counted_in_every_family(folder, pictures):
    client = LocalMLLM(folder)
    client.verify_plain([VerifyItem((path,), "true or false: ", ("it is red",)) for path in pictures[:2]])
    used = client.usage
    assert used.forward_passes >= 1 and used.pictures_encoded == 2 and 1 <= used.vision_passes <= 2
    before = used.forward_passes
    answer = client.generate([Request("a red car in the city", (), 4)])[0]
    assert used.forward_passes - before == answer.completion_tokens and used.pictures_encoded == 2
