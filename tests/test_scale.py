"""The plan for large galleries: its counts against real models and files, its times against the measurements
of docs/benchmarks.md."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from test_scoring import unit
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cir_utils import scale
from cir_utils.costs import Speed, Tokens
from cir_utils.encoder import load_encoder
from cir_utils.errors import InputError
from cir_utils.feature_store import IMAGES_PER_SHARD
from cir_utils.index import build_index, save_index
from cir_utils.profiles import load_profile
from cir_utils.response_cache import ResponseCache, StoredAnswer
from cir_utils.scale import GPU, LOAD, Load, Scan

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "docs" / "benchmarks.md"


def test_operations_are_those_of_the_real_model() -> None:
    """Mini-CLIP, run under torch's counter of operations, which knows attention in its plain form alone."""
    encoder = load_encoder(load_profile("mini").encoder)
    config: dict[str, Any] = encoder._config
    pixels = torch.zeros(1, 3, config["vision_cfg"]["image_size"], config["vision_cfg"]["image_size"])
    model: Any = encoder.model
    plain = sdpa_kernel(SDPBackend.MATH)
    with torch.no_grad(), plain, FlopCounterMode(display=False) as counter:
        model.encode_image(pixels)
    assert scale.vision_flops(config) == pytest.approx(counter.get_total_flops(), rel=0.01)


@pytest.mark.parametrize(("name", "gflops"), [("ViT-B-32", 8.8), ("ViT-L-14", 162.1), ("ViT-bigG-14", 967.8)])
def test_operations_of_published_models(name: str, gflops: float) -> None:
    """Twice the multiplications and additions that open_clip's profile lists for their vision towers."""
    assert scale.vision_flops(open_clip.get_model_config(name)) / 1e9 == pytest.approx(gflops, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "given"), [("flat", {}), ("hnsw", {"M": 16}), ("hnsw", {}), ("ivfpq", {"nlist": 16, "m": 8})]
)
def test_bytes_of_an_index_are_those_of_its_file(kind: Any, given: dict[str, int], tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed (the extra `index`)")
    rows = unit(3000, 32, 0)
    save_index(build_index(rows, range(3000), kind, **given), tmp_path)
    (data,) = tmp_path.glob("*.faiss")
    assert scale.index_bytes(kind, 3000, 32, **given) == pytest.approx(data.stat().st_size, rel=0.02)


def test_bytes_of_captions_are_those_of_the_response_cache(tmp_path: Path) -> None:
    texts = {number.to_bytes(32, "big"): "a red car on the beach, " * 10 for number in range(1, 4001)}
    with ResponseCache(tmp_path / "answers.sqlite") as cache:
        rows = {key: StoredAnswer(text, "stop", 500, 60, "good", "caption") for key, text in texts.items()}
        cache.put_answers(rows, "model@1")
    size = sum(path.stat().st_size for path in tmp_path.iterdir() if "-" not in path.name)
    assert scale.caption_bytes(4000, 240) == pytest.approx(size, rel=0.2)


def test_files_of_the_store() -> None:
    assert [scale.store_files(rows) for rows in (1, IMAGES_PER_SHARD, IMAGES_PER_SHARD + 1)] == [2, 2, 4]


def test_a_scan_takes_the_later_of_its_bounds() -> None:
    """1,000 operations and 100 bytes a second; 10 rows of 5 values."""
    scan = Scan(1000.0, 100.0, sorting=0.5)
    assert scan.seconds(1, 10, 5) == 2.0, "200 bytes are read in 2 s, 100 operations take 0.1 s"
    assert scan.seconds(1, 10, 5, item=2) == 1.0
    assert scan.seconds(50, 10, 5) == 5.0, "5,000 operations take 5 s"
    assert scan.seconds(50, 10, 5, products=3) == 15.0
    assert scan.sorts(2, 10) == 10.0


def test_hours_by_hand() -> None:
    """Three queries on ten pictures, two candidates, one statement; a tenth of the verifications pruned."""
    machine = replace(GPU, speed=Speed(100.0, 10.0), flops=1e12, share=0.5, reading=1e3, bandwidth=1e6)
    tokens = {agent: Tokens(200, 10) for agent in LOAD.tokens}
    load = Load("ViT-B-32", 3, 2, 1.0, picture_bytes=720.0, caption_bytes=1.0, tokens=tokens)
    found = scale.hours(machine, load, 10, left_out=0.1)
    call = 200 / 100 + 10 / 10  # seconds
    assert found.captions == pytest.approx(10 * call / 3600)
    assert found.sdr_cir == pytest.approx(3 * call / 3600)
    # four agents a query, and 3 * 2 statements from either side
    assert found.xr_unpruned == pytest.approx((4 * 3 + 12) * call / 3600)
    assert found.xr == pytest.approx((4 * 3 + 0.9 * 12) * call / 3600)
    assert found.features == pytest.approx(7.2 / 3600), "reading takes longer than computing"
    assert found.scan == pytest.approx(10 * 512 * 2 / (1e6 * 0.5) / 3600)


def test_the_pruned_share_is_that_of_the_records(tmp_path: Path) -> None:
    def write(name: str, label: str, pruning: dict[str, Any]) -> None:
        folder = tmp_path / "mini-circo-test" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"label": label, "cost": {"pruning": pruning}}))

    with pytest.raises(InputError, match="has no record of xr with pruning"):
        scale.pruned_share(tmp_path)
    write("1", "xr", {"asked": 60, "captions_not_asked": 10, "pictures_not_asked": 30})
    write("2", "xr", {"asked": 90, "captions_not_asked": 0, "pictures_not_asked": 10})
    write("3", "another", {"asked": 0, "captions_not_asked": 5, "pictures_not_asked": 5})
    write("4", "xr", {})
    assert scale.pruned_share(tmp_path) == 50 / 200
    assert 0 < scale.pruned_share(ROOT / "results") < 1


def test_predictions_hold_within_the_stated_factor() -> None:
    """Four measurements that no rate was taken from. The rates are those of the same page, so that a page of
    another machine does as well."""
    found = scale.checks(BENCHMARKS.read_text(encoding="utf-8"))
    assert len(found) == 4
    assert {one.what: one.factor for one in found if one.factor > scale.TOLERANCE} == {}


def test_a_page_without_a_row_says_so() -> None:
    page = BENCHMARKS.read_text(encoding="utf-8")
    with pytest.raises(InputError, match="lacks 'torch.mm alone'; write it with `make bench`"):
        scale.checks(page.replace("| torch.mm alone |", "| torch |"))
    with pytest.raises(InputError, match="lacks 'torch.mm alone'|lacks 'sizes'"):
        scale.checks("nothing")
    with pytest.raises(InputError, match="unknown part 'years' of docs/scale.md: choose assumptions, bytes"):
        scale.part("years", ROOT / "results", BENCHMARKS)
