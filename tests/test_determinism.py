"""The same inputs and settings give the same bytes, at any batch size and number of threads: with the shipped
models, on a small world."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_world import write_world

from benchmarks.determinism import VARIATIONS, Outcome, Variation, compare, outcome, page
from cir_utils.encoder import load_encoder, not_alone
from cir_utils.profiles import load_profile


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("determinism") / "world", splits=("val",))


@pytest.fixture(scope="module")
def base(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    found = outcome(Variation(), tmp_path_factory.mktemp("base"), limit=2, root=world, k_prime=4)
    assert len(found.answers) > 30 and len(found.verdicts) > 10 and len(found.features) > 30
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one at a time", "small odd batches, two threads"])
def test_rankings_and_metrics_are_the_same_bytes(
    world: Path, base: Outcome, tmp_path: Path, name: str
) -> None:
    found = outcome(VARIATIONS[name], tmp_path, limit=2, root=world, k_prime=4)
    difference = compare(base, found)
    assert difference.rankings and difference.metrics, difference
    assert (difference.features, difference.answers, difference.decisions) == (0, 0, 0), difference
    assert difference.p_true < 1e-6
    assert len(json.loads(found.metrics["xr"])["queries"]) == 2


def test_a_feature_is_the_same_bits_in_any_batch(world: Path) -> None:
    encoder = load_encoder(load_profile("mini").encoder)
    paths = sorted(world.rglob("*.jpg"))[:9]
    texts = [f"a {colour} {thing}" for colour in ("red", "blue") for thing in ("cat", "old boat")] + ["a car"]
    images, wanted = encoder.encode_images(paths), encoder.encode_texts(texts).features
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for size in (1, 2, 4, 7):
                assert torch.equal(encoder.encode_images(paths, size), images), (count, size)
                assert torch.equal(encoder.encode_texts(texts, size).features, wanted), (count, size)
    finally:
        torch.set_num_threads(threads)


def test_a_row_alone_is_computed_beside_itself() -> None:
    seen: list[int] = []

    def double(batch: torch.Tensor) -> torch.Tensor:
        seen.append(len(batch))
        return 2 * batch

    assert not_alone(double, torch.ones(1, 3)).tolist() == [[2, 2, 2]]
    assert not_alone(double, torch.ones(4, 3)).shape == (4, 3)
    assert seen == [2, 4]


def test_a_difference_is_seen() -> None:
    """The comparison, and the page, on outcomes made by hand."""
    feature = np.ones(2, dtype=np.float32)
    one = Outcome({"a": feature}, {b"q": "red"}, {b"v": 0.6, b"w": 0.9}, {"xr": b"1"}, {"xr": b"2"})
    assert compare(one, one).rankings and compare(one, one).features == 0
    other = Outcome({"a": feature + 0.5}, {b"q": "blue"}, {b"v": 0.4, b"u": 0.9}, {"xr": b"3"}, {"xr": b"2"})
    found = compare(one, other)
    assert (found.features, found.feature) == (1, 0.5)
    assert (found.answers, found.verdicts, found.decisions) == (1, 3, 3)
    assert found.p_true == pytest.approx(0.2) and not found.rankings and found.metrics
    text = page({"other": found}, one, "mini-circo", 4)
    assert "| other | 1 | 5e-01 | 1 | 3 | 2e-01 | 3 | **differ** | byte-equal |" in text
    assert "1.0e-01 from the" in text and "4 queries of mini-circo" in text
