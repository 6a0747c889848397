"""The cost model: counts by hand, and the same counts in the records of real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_world import open_bench, write_cirr_world, write_fashion_world, write_world

from cir_utils.costs import (
    PLAIN,
    PLANNED,
    Speed,
    Tokens,
    calls_of_record,
    feature_bytes,
    fit_speed,
    plan,
    sdr_cir_calls,
    xr_calls,
)
from cir_utils.errors import InputError
from cir_utils.methods import resolve_settings
from cir_utils.runs import run_method

RESULTS = Path(__file__).parent.parent / "results"
RECORDS = [
    path
    for path in sorted(RESULTS.glob("*/*/run.json"))
    if json.loads(path.read_text(encoding="utf-8"))["method"] in (*PLANNED, *PLAIN)
]


def test_sdr_cir_asks_once_a_query() -> None:
    assert sdr_cir_calls(800) == {"selective_cot": 800}


def test_xr_by_hand() -> None:
    """Three queries, ten pictures, k' 4, five statements every two queries."""
    assert xr_calls(3, 10, 4, 2.5) == {
        "gallery_captions": 10, "reference_captions": 3, "imagine_text": 3, "imagine_vision": 3,
        "questions": 3, "verify_caption": 30, "verify_picture": 30,
    }  # fmt: skip
    assert xr_calls(3, 10, 4, 2, vision=False) == {
        "gallery_captions": 10, "reference_captions": 3, "imagine_text": 3, "questions": 3,
        "verify_caption": 24,
    }  # fmt: skip
    assert xr_calls(3, 10, 4, 2, text=False) == {"imagine_vision": 3, "questions": 3, "verify_picture": 24}


def test_xr_at_its_edges() -> None:
    coarse = xr_calls(3, 10, 0, 2)
    assert coarse == {
        "gallery_captions": 10,
        "reference_captions": 3,
        "imagine_text": 3,
        "imagine_vision": 3,
    }
    assert xr_calls(3, 10, 99, 2) == xr_calls(3, 10, 10, 2), "more candidates than pictures are not verified"
    with pytest.raises(InputError, match="leave text or vision on"):
        xr_calls(3, 10, 4, 2, text=False, vision=False)
    with pytest.raises(InputError, match="k_prime must be a whole number from 0, not -1"):
        xr_calls(3, 10, -1, 2)
    with pytest.raises(InputError, match="statements must be a number from 0"):
        xr_calls(3, 10, 1, float("nan"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: f"{path.parts[-3]}/{path.parts[-2]}")
def test_the_records_of_the_mini_runs_have_the_calls_that_were_planned(path: Path) -> None:
    """Exactly, but for CIRR, whose members of subsets are counted over all queries alone."""
    record = json.loads(path.read_text(encoding="utf-8"))
    least, most = calls_of_record(record)
    calls, cached = record["cost"]["mllm_calls"], record["cost"]["cached_calls"]
    assert least <= calls <= most
    if record["benchmark"] != "mini-cirr" and not record["cost"]["fallbacks"]:
        assert least == calls == most
    if "reference_captions" in _xr_plan(record):
        assert cached >= record["protocol"]["queries"], "references are gallery pictures: captioned once"


def _xr_plan(record: dict[str, Any]) -> dict[str, float]:
    if record["method"] not in ("xr", "xr-sdr"):
        return {}
    return xr_calls(1, 1, 1, 1, text=record["settings"].get("text") != "off")


WORLDS = {"mini-circo": write_world, "mini-cirr": write_cirr_world, "mini-fashioniq": write_fashion_world}


@pytest.mark.parametrize("name", WORLDS)
def test_a_run_on_the_small_world_asks_as_planned_and_the_cache_answers_the_rest(
    name: str, tmp_path: Path, tiny_clip: Path
) -> None:
    bench = open_bench(WORLDS[name](tmp_path / "world"), tiny_clip, tmp_path / "cache", benchmark=name)
    mllm: Any = bench.agents.mllm
    for method in ("sdr-cir", "xr", "xr-sdr", "image-only"):
        before = len(mllm.requests) + sum(len(item.statements) for item in mllm.items)
        record = run_method(bench, method, resolve_settings(method, bench.settings)).record
        least, most = calls_of_record(record)
        cost = record["cost"]
        assert least <= cost["mllm_calls"] <= most
        if name != "mini-cirr":
            assert most - least <= cost["fallbacks"]
        asked = len(mllm.requests) + sum(len(item.statements) for item in mllm.items) - before
        assert asked == cost["mllm_calls"] - cost["cached_calls"], "the model answers what is not cached"


def test_a_method_without_a_plan_says_so() -> None:
    record = {"method": "ldre", "settings": {}, "counts": {}, "cost": {"parse_failures": 0, "fallbacks": 0},
              "protocol": {"queries": 1, "gallery_size": 1}}  # fmt: skip
    with pytest.raises(InputError, match="method ldre has no plan of its calls"):
        calls_of_record(record)


def test_what_was_asked_again_is_counted_by_the_record() -> None:
    record = {
        "method": "xr",
        "settings": {"text": "on", "vision": "on", "stages": "full", "k_prime": 4},
        "counts": {"questions": 5},
        "cost": {"parse_failures": 3, "fallbacks": 1},
        "protocol": {"benchmark": "mini-circo", "queries": 2, "gallery_size": 10, "reference": "kept"},
    }
    # 10 + 4 * 2 texts, 5 statements * 4 candidates * 2 sides, 3 asked again; a fallback's caption or none
    assert calls_of_record(record) == (10 + 8 + 40 + 3, 10 + 8 + 40 + 3 + 1)
    cirr = record | {
        "cost": {"parse_failures": 0, "fallbacks": 0},
        "protocol": {"benchmark": "mini-cirr", "queries": 2, "gallery_size": 10, "reference": "removed"},
    }
    assert calls_of_record(cirr) == (18 + 5 * 4 * 2, 18 + 5 * 9 * 2)
    again = {**record, "method": "sdr-cir", "settings": {}, "counts": {"asked_again": 2},
             "cost": {"parse_failures": 1, "fallbacks": 0}}  # fmt: skip
    assert calls_of_record(again) == (2 + 2, 2 + 2 + 1), "the failure was of a first or of a second answer"


def test_tokens_hours_and_prices_by_hand() -> None:
    calls = xr_calls(3, 10, 4, 2.5)
    tokens = {agent: Tokens(100, 10) for agent in calls}
    tokens["verify_picture"] = Tokens(100, 1, shared=80)
    made = plan(calls, tokens, statements=2.5)
    assert made.total_calls == 82 and made.sent == 8200
    # 30 statements about 12 candidates: 80 tokens are computed 12 times, not 30 times
    assert made.computed == pytest.approx(8200 - (30 - 12) * 80)
    assert made.generated == 52 * 10 + 30
    assert made.hours(Speed(100, 10)) == pytest.approx((6760 / 100 + 550 / 10) / 3600)
    assert made.hosted((2.0, 8.0)) == pytest.approx((8200 * 2 + 550 * 8) / 1e6)
    assert plan(calls, tokens).computed == made.sent, "one statement a candidate has nothing to share with"
    with pytest.raises(InputError, match="tokens of questions are not given"):
        plan({"questions": 1.0}, {})


def record_of(prompt: int, completion: int, seconds: float, cached: int = 0) -> dict[str, Any]:
    cost = {"mllm_calls": 9, "cached_calls": cached, "prompt_tokens": prompt, "completion_tokens": completion}
    return {"cost": cost, "stages": {"describing": seconds, "loading models": 99.0}}


def test_the_speed_is_found_again_from_uncached_records() -> None:
    """1000 prompt tokens and 50 completion tokens a second."""
    records = [
        record_of(4000, 100, 4 + 2),
        record_of(1000, 400, 1 + 8),
        record_of(9000, 900, 0.1, cached=1),
    ]
    speed = fit_speed(records)
    assert speed.prompt == pytest.approx(1000) and speed.completion == pytest.approx(50)
    with pytest.raises(InputError, match="1 run records have no answer from the cache"):
        fit_speed(records[1:])
    with pytest.raises(InputError, match="do not tell prompt and completion tokens apart"):
        fit_speed([record_of(4000, 100, 4), record_of(1000, 400, 0.5)])


def test_bytes_of_features() -> None:
    assert feature_bytes(123_403, 768) == 379_094_016
    assert feature_bytes(123_403, 768, "float16") == feature_bytes(123_403, 768, "bfloat16") == 189_547_008
    with pytest.raises(InputError, match="unknown precision 'int8': choose float32, float16, bfloat16"):
        feature_bytes(1, 1, "int8")
