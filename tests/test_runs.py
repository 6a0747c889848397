"""Runs: measured, recorded, written whole or not at all, read back; tables of several; experiments."""

from __future__ import annotations

import json
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from small_world import IDS, SETTINGS, open_bench, write_world

from cir_utils import runs
from cir_utils.agents import MINI_MAX_NEW_TOKENS
from cir_utils.benchmarks import Query
from cir_utils.errors import InputError
from cir_utils.evaluation import evaluate_file
from cir_utils.experiments import (
    EXPERIMENTS,
    METHODS,
    compare_experiments,
    load_experiments,
    run_experiments,
    slug,
)
from cir_utils.methods import resolve_settings
from cir_utils.runs import Run, find_runs, load_run, measure, run_method
from cir_utils.tables import comparison, metrics_lines, pad, protocol_line
from cir_utils.workbench import Workbench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, tiny_clip: Path) -> Workbench:
    world = write_world(tmp_path_factory.mktemp("world"), hidden=("test",))
    return open_bench(world, tiny_clip, tmp_path_factory.mktemp("cache"))


def run(bench: Workbench, method: str, **overrides: object) -> Run:
    return run_method(bench, method, resolve_settings(method, bench.settings, overrides))


def test_a_record_says_what_ran_and_what_it_cost(bench: Workbench) -> None:
    record = run(bench, "xr", k_prime=4, prune="off").record
    assert record["method"] == "xr" and record["benchmark"] == "mini-circo" and record["split"] == "val"
    assert record["settings"] == {
        "lambda": 0.15, "k_prime": 4, "kappa": 60.0, "stages": "full", "vision": "on", "text": "on",
        "prune": "off",
    }  # fmt: skip
    assert record["overrides"] == {"k_prime": 4, "prune": "off"}
    assert record["protocol"]["queries"] == 8 and record["protocol"]["gallery_size"] == 24
    # 24 captions of the gallery, 8 of references, 16 imaginations, 8 for questions, and 4 candidates x 2
    # statements x 2 sides a query.
    assert record["cost"]["mllm_calls"] == 24 + 8 + 16 + 8 + 8 * 4 * 2 * 2
    by_agent = record["cost"]["by_agent"]
    assert {agent: cost["mllm_calls"] for agent, cost in by_agent.items()} == {
        "caption": 32, "imagine_text": 8, "imagine_vision": 8, "questions": 8,
        "verify_caption": 64, "verify_picture": 64,
    }  # fmt: skip
    for name in ("mllm_calls", "cached_calls", "prompt_tokens", "completion_tokens", "parse_failures"):
        assert sum(cost[name] for cost in by_agent.values()) == record["cost"][name], name
    assert by_agent["verify_picture"]["completion_tokens"] == 64
    # A scripted model computes nothing, and nothing was pruned.
    assert record["cost"]["computed"] == {} and record["cost"]["pruning"] == {}
    assert record["cost"]["parse_failures"] == 0
    assert record["cost"]["seconds"] > 0
    assert {"imagination", "coarse filtering", "fine filtering"} <= set(record["stages"])
    assert record["inputs"]["mllm"] == "scripted@1"
    assert record["inputs"]["encoder"]["weights_sha256"] and len(record["inputs"]["prompts"]["caption"]) == 64
    assert list(record["inputs"]["annotations"]) == ["val.json"]
    assert record["versions"]["python"] and record["versions"]["torch"]
    assert record["peak_memory_mb"]["host"] > 50
    assert record["device"] == "cpu"
    assert record["setting_sources"] == {
        "lambda": "the test", "k_prime": "given for this run", "kappa": "the test",
        "stages": "default of the method", "vision": "default of the method", "text": "default of the method",
        "prune": "given for this run",
    }  # fmt: skip
    folder = Path(bench.encoder_spec.partition(":")[2])
    assert record["choices"]["encoder"] == {"value": f"local-dir:{folder.name}", "source": "the caller"}
    assert {name: one["value"] for name, one in record["choices"].items() if name != "encoder"} == {
        "precision": "float32", "preprocessing": "clip", "mllm": "scripted", "prompts": "mini",
        "temperature": 0.0, "seed": 42, "max_tokens": MINI_MAX_NEW_TOKENS,
    }  # fmt: skip
    assert record["published"] == {}
    json.dumps(record, allow_nan=False)


def test_no_path_of_this_machine_is_in_a_record(bench: Workbench) -> None:
    text = json.dumps(run(bench, "sdr-cir").record)
    for place in (bench.cache_dir, bench.benchmark.root, Path.home(), runs.PACKAGE):
        assert str(place) not in text


def test_methods_that_use_no_model_do_not_record_one(tmp_path: Path, tiny_clip: Path) -> None:
    bench = open_bench(write_world(tmp_path / "world"), tiny_clip, tmp_path / "cache")
    del bench.agents
    record = run(bench, "image-only").record
    assert "mllm" not in record["inputs"] and record["cost"]["mllm_calls"] == 0


def test_metrics_are_those_of_evaluate(bench: Workbench, tmp_path: Path) -> None:
    done = run(bench, "text-only")
    path = tmp_path / "rankings.json"
    path.write_text(json.dumps(dict(done.rankings)))
    assert evaluate_file(path, "mini-circo", "val", bench.benchmark.root)["metrics"] == done.metrics
    assert done.metrics["mAP@5"] == pytest.approx(float(done.per_query["mAP@5"].mean()), abs=1e-15)
    assert done.metrics["compare_change/mAP@10"] == done.metrics["mAP@10"]
    assert set(done.summary()) >= {
        "method",
        "benchmark",
        "split",
        "profile",
        "settings",
        "protocol",
        "metrics",
        "cost",
    }


def test_a_split_without_answers_has_no_metrics(bench: Workbench) -> None:
    rankings = {str(number): IDS for number in range(8)}
    queries = [Query(query.id, query.reference, query.text, (), None) for query in bench.queries]
    assert measure(bench.benchmark, queries, rankings) == ({}, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: ids[:-1], "is not ranked"),
        (lambda ids: [*ids[:-1], ids[0]], "is ranked twice"),
        (lambda ids: [*ids[:-1], 5], "5 is not in the gallery"),
    ],
)
def test_a_ranking_that_is_no_permutation_is_not_measured(
    bench: Workbench, change: object, message: str
) -> None:
    rankings = {query.id: list(IDS) for query in bench.queries}
    rankings["3"] = change(rankings["3"])  # type: ignore[operator]
    with pytest.raises(InputError, match=f"query 3: .*{message}"):
        measure(bench.benchmark, bench.queries, rankings)


def test_a_folder_holds_the_run_and_reads_back(bench: Workbench, tmp_path: Path) -> None:
    done = run(bench, "xr")
    folder = done.save(tmp_path / "one")
    assert sorted(path.name for path in folder.iterdir()) == [
        "SHA256SUMS",
        "metrics.json",
        "rankings.parquet",
        "run.json",
        "traces.jsonl",
    ]
    back = load_run(folder, whole=True)
    assert back.record == done.record and back.metrics == done.metrics and back.queries == done.queries
    assert back.rankings == done.rankings
    assert all(type(image) is int for image in back.rankings["0"])
    assert back.traces == json.loads(json.dumps(done.traces))
    assert {name: values.tolist() for name, values in back.per_query.items()} == {
        name: values.tolist() for name, values in done.per_query.items()
    }
    light = load_run(folder)
    assert light.rankings == {} and light.metrics == done.metrics


def test_any_changed_byte_of_a_run_folder_is_found(bench: Workbench, tmp_path: Path) -> None:
    folder = run(bench, "text-only").save(tmp_path / "one")
    assert load_run(folder, whole=True).rankings
    for name in ("run.json", "metrics.json", "rankings.parquet", "traces.jsonl"):
        data = (folder / name).read_bytes()
        place = len(data) // 2
        (folder / name).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(InputError, match=f"{name} is damaged .*; run the method again"):
            load_run(folder, whole=True)
        (folder / name).write_bytes(data)
    (folder / "rankings.parquet").write_bytes(b"")
    assert load_run(folder).metrics, "what is not read is not asked for"


def test_a_record_without_hashes_must_be_one_that_a_run_could_write(bench: Workbench, tmp_path: Path) -> None:
    folder = run(bench, "text-only").save(tmp_path / "one", whole=False)
    assert not (folder / "SHA256SUMS").exists()
    for name, change, message in (
        ("run.json", {"label": 5}, "run.json: label: Input should be a valid string"),
        ("run.json", {"cost": {}}, "run.json: cost.mllm_calls: Field required"),
        (
            "run.json",
            {"benchmark": "nothing"},
            "is of the benchmark 'nothing', which this",
        ),
        (
            "metrics.json",
            {"metrics": {"mAP@5": 1.5}},
            "metrics.json: metrics.mAP@5: Input should be",
        ),
        ("metrics.json", {"queries": ["0"]}, "metrics.json: content: Value error, lists differ in length"),
        ("metrics.json", {"per_query": {}}, "metrics and per_query belong together"),
    ):
        whole = (folder / name).read_text()
        (folder / name).write_text(json.dumps(json.loads(whole) | change))
        with pytest.raises(InputError, match=message):
            load_run(folder)
        (folder / name).write_text(whole)
    assert load_run(folder).metrics


def test_rankings_are_written_in_groups_and_small_ones_as_one_table(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(bench, "text-only")
    lists = dict(done.rankings)
    pq.write_table(
        pa.table({"query_id": list(lists), "image_ids": list(lists.values())}),
        tmp_path / "at-once.parquet",
        compression="zstd",
    )
    one = done.save(tmp_path / "one") / runs.RANKINGS
    assert one.read_bytes() == (tmp_path / "at-once.parquet").read_bytes()
    monkeypatch.setattr(runs, "WRITTEN_IDS", 3 * len(IDS))
    several = done.save(tmp_path / "several") / runs.RANKINGS
    groups = pq.ParquetFile(several).metadata
    assert [groups.row_group(number).num_rows for number in range(groups.num_row_groups)] == [3, 3, 2]
    assert pq.read_table(several) == pq.read_table(one)
    back = load_run(several.parent, whole=True).rankings
    assert dict(back) == lists and list(back) == list(lists) and len(back) == 8
    assert "3" in back and "8" not in back and back["3"] is not back["3"]


def test_rankings_take_four_bytes_an_image(bench: Workbench) -> None:
    """800 rankings of CIRCO's 123,403 images are 400 MB so, and twice as much as lists of ids that are
    there already."""
    count, rows = 20_000, len(bench.queries)
    wide = replace(bench.benchmark, gallery=tuple(range(count)))
    fresh = Workbench(
        wide, profile="mini", encoder="", mllm="", prompts="mini", settings={}, settings_source="",
        device=bench.device, cache_dir=bench.cache_dir,
    )  # fmt: skip
    scores = torch.rand(rows, count, generator=torch.Generator().manual_seed(0))
    tracemalloc.start()
    output = fresh.output(scores, fresh.plain_traces())
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 4 * rows * count
    kept = [row.args[1] for row in output.rankings._rows.values()]
    assert {row.dtype for row in kept} == {np.dtype(np.int32)}
    order = scores.double().sort(dim=1, descending=True, stable=True).indices
    assert list(output.rankings.values()) == order.tolist()
    top = output.traces[0]["top"]
    assert [image for image, _ in top] == order[0, :10].tolist()
    assert [value for _, value in top] == scores[0, order[0, :10]].tolist()


def test_saving_again_replaces_a_run_and_nothing_else(bench: Workbench, tmp_path: Path) -> None:
    first, second = run(bench, "image-only"), run(bench, "text-only")
    first.save(tmp_path / "one")
    second.save(tmp_path / "one")
    assert load_run(tmp_path / "one").record["method"] == "text-only"
    assert os.listdir(tmp_path) == ["one"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep me")
    with pytest.raises(InputError, match="is not empty and holds no run"):
        first.save(tmp_path / "mine")
    with pytest.raises(InputError, match="is a file"):
        first.save(tmp_path / "mine" / "letter.txt")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "keep me"


def test_a_save_that_fails_leaves_the_old_run(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(bench, "image-only")
    done.save(tmp_path / "one")
    monkeypatch.setattr(
        runs.pq.ParquetWriter, "write_table", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full"))
    )
    with pytest.raises(InputError, match=r"run folder below .* cannot be written \(disk full\); make room"):
        run(bench, "text-only").save(tmp_path / "one")
    assert load_run(tmp_path / "one").record["method"] == "image-only"
    assert os.listdir(tmp_path) == ["one"]


def test_what_killed_writers_left_goes_and_an_earlier_run_comes_back(
    bench: Workbench, tmp_path: Path
) -> None:
    """The second time the process was killed between moving the earlier run away and putting the new one in
    its place. While another process writes, nothing is cleared away."""
    made = run(bench, "image-only")
    earlier = made.save(tmp_path / "a")
    left, old = tmp_path / ".run.x.part", tmp_path / ".run.y.old"
    left.mkdir()
    (left / "rankings.parquet").write_bytes(b"half")
    old.mkdir()
    earlier.rename(old / "a")
    with runs._writing(tmp_path):  # the first of two
        assert (tmp_path / "a" / "run.json").is_file()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
        left.mkdir()
        made.save(tmp_path / "b")
        assert left.is_dir()
    made.save(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert load_run(tmp_path / "a").metrics == made.metrics


def test_two_runs_of_one_second_get_two_folders(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(bench, "image+text")
    first, second = done.save(), done.save()
    assert second.name == f"{first.name}-2"
    assert first.name.startswith("image-text--mini-circo-val--")
    assert find_runs("runs") == [Path("runs") / first.name, Path("runs") / second.name]


@pytest.mark.parametrize("damage", ["metrics", "record", "rankings", "format"])
def test_a_damaged_folder_is_named(bench: Workbench, tmp_path: Path, damage: str) -> None:
    folder = run(bench, "image-only").save(tmp_path / "one")
    if damage == "metrics":
        (folder / "metrics.json").write_text("{}")
    elif damage == "record":
        (folder / "run.json").unlink()
    elif damage == "rankings":
        (folder / "rankings.parquet").write_bytes(b"PAR1 nothing")
    else:
        (folder / "run.json").write_text('{"format": 99}')
    with pytest.raises(InputError, match="one"):
        load_run(folder, whole=True)


def test_a_comparison_has_intervals_and_paired_tests(bench: Workbench) -> None:
    done = [run(bench, "image-only"), run(bench, "text-only"), run(bench, "sdr-cir", beta=0.0)]
    table = comparison(done)
    assert list(table.results["method"]) == ["image-only", "text-only", "sdr-cir, beta=0"]
    assert table.metric == "mAP@5"
    assert table.results["mAP@5"].tolist() == [one.metrics["mAP@5"] for one in done]
    assert list(table.paired["against"]) == ["image-only", "image-only"]
    difference = done[1].metrics["mAP@5"] - done[0].metrics["mAP@5"]
    assert table.paired["difference"][0] == pytest.approx(difference, abs=1e-12)
    text = table.text()
    assert "mini-circo val, 8 queries, gallery 24, reference kept" in text and "Paired tests on mAP@5" in text
    back = json.loads(json.dumps(table.as_dict(), allow_nan=False))
    assert back["results"][0]["mAP@5"] == done[0].metrics["mAP@5"]
    with pytest.raises(InputError, match="has no metric 'mAP@7'"):
        comparison(done, "mAP@7")
    twice = comparison([done[0], done[0]])
    assert list(twice.results["method"]) == ["image-only", "image-only (2)"]


def test_runs_of_other_queries_are_not_compared(bench: Workbench, tmp_path: Path, tiny_clip: Path) -> None:
    short = open_bench(bench.benchmark.root, tiny_clip, bench.cache_dir, limit=4)
    with pytest.raises(InputError, match="differ in protocol"):
        comparison([run(bench, "image-only"), run(short, "text-only")])
    assert run(short, "text-only").record["protocol"]["queries"] == 4


def test_a_limit_below_one_is_refused(bench: Workbench, tiny_clip: Path) -> None:
    with pytest.raises(InputError, match="limit 0 is not valid"):
        open_bench(bench.benchmark.root, tiny_clip, bench.cache_dir, limit=0)


def test_experiments_run_on_one_workbench_and_are_found_again(bench: Workbench, tmp_path: Path) -> None:
    done = run_experiments(bench, tmp_path / "runs")
    assert [one.name for one in done] == [experiment.label for experiment in EXPERIMENTS]
    assert [one.record["method"] for one in done[: len(METHODS)]] == [
        "random", "image-only", "text-only", "image+text", "description-only", "sdr-cir", "xr",
    ]  # fmt: skip
    by_name = {one.name: one for one in done}
    assert by_name["sdr-cir, Anchor only"].record["settings"]["beta"] == 0
    assert by_name["sdr-cir, Debias only"].record["settings"]["alpha"] == 0
    assert by_name["xr, coarse stage only"].record["settings"]["stages"] == "coarse"
    found = load_experiments(tmp_path / "runs")
    assert [one.name for one in found] == [one.name for one in done]
    table = compare_experiments(found)
    assert len(table.results) == len(EXPERIMENTS) and len(table.paired) == 9
    assert len(compare_experiments(done[:6]).paired) == 1
    with pytest.raises(InputError, match="no run folder"):
        load_experiments(tmp_path / "nowhere")
    assert slug("sdr-cir, Anchor only") == "sdr-cir-anchor-only"
    assert bench.settings == SETTINGS


def test_an_experiment_replaces_its_earlier_run_under_another_number(
    bench: Workbench, tmp_path: Path
) -> None:
    run_experiments(bench, tmp_path / "runs", METHODS[1:3], whole=False)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["02-image-only", "03-text-only"]
    (tmp_path / "runs" / "02-image-only").rename(
        tmp_path / "runs" / "11-image-only"
    )  # an older list's number
    (tmp_path / "runs" / "notes-image-only").mkdir()
    run_experiments(bench, tmp_path / "runs", METHODS[:3], whole=False)
    found = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert found == ["01-random", "02-image-only", "03-text-only", "notes-image-only"]
    assert [one.name for one in load_experiments(tmp_path / "runs")] == ["random", "image-only", "text-only"]


def test_a_random_ranking_makes_no_second_encoder(bench: Workbench, tmp_path: Path) -> None:
    fresh = open_bench(bench.benchmark.root, Path(bench.encoder_spec.removeprefix("local-dir:")), tmp_path)
    guessed, looked = run(fresh, "random"), run(fresh, "image-only")
    assert "encoder" not in guessed.record["inputs"] and "encoder" in looked.record["inputs"]
    assert list(comparison([guessed, looked]).results["method"]) == ["random", "image-only"]


def test_text_for_the_terminal() -> None:
    assert (
        metrics_lines({"mAP@5": 0.1234, "mAP@10": 0.5, "R@1": 1.0})
        == "mAP@5  12.34   mAP@10  50.00\nR@1 100.00"
    )
    protocol = {
        "benchmark": "circo", "split": "val", "queries": 220, "gallery_size": None, "gallery": "unknown",
        "reference": "kept", "caption_rule": "relative caption", "missing_images": 3,
    }  # fmt: skip
    assert protocol_line(protocol) == (
        "circo val, 220 queries, gallery unknown, reference kept, text: relative caption, 3 images missing"
    )
    protocol |= {"gallery_size": 5121, "gallery": "laptop set of CIRCO val (seed 0, 4,000 distractors)"}
    assert "gallery 5,121 (laptop set of CIRCO val (seed 0, 4,000 distractors))," in protocol_line(protocol)
    assert (
        pad("| a | b |\n| --- | ---: |\n| long | 1 |\n") == "| a    |   b |\n| ---- | --: |\n| long |   1 |"
    )
