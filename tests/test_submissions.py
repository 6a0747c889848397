"""Server files: written from runs, valid as published, and every broken rule named in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_world import open_bench, write_cirr_world, write_fashion_world, write_world

from cir_utils import submissions
from cir_utils.benchmarks import EMPTY_TEXT, Benchmark, load_benchmark
from cir_utils.cli import main
from cir_utils.errors import InputError
from cir_utils.evaluation import evaluate_file
from cir_utils.methods import resolve_settings
from cir_utils.runs import run_method
from cir_utils.submissions import find_faults, submit_run, validate_file, write_submissions

Table = dict[str, Any]


# --- the published files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "name", "split"),
    [
        ("cirr", "demo_files/test1_pred_ranks_recall.json", None),
        ("cirr", "demo_files/test1_pred_ranks_recall_subset.json", None),
        ("circo", "submission_examples/submission_test.json", None),
        ("circo", "submission_examples/submission_val.json", "val"),
    ],
)
def test_published_server_files_are_valid(
    real_annotations: Path, to: str, name: str, split: str | None
) -> None:
    verdict = validate_file(real_annotations / to / name, to, real_annotations / to, split=split)
    assert verdict.valid and verdict.errors == []
    if to == "circo":
        (warning,) = verdict.warnings
        count = 10 if split is None else 1
        assert warning.startswith(f"{count} times a listed image is the query's own reference (allowed)")
        assert "image list is absent" in verdict.notes[0]
    else:
        assert verdict.warnings == [] and verdict.notes == []


@pytest.fixture(scope="module")
def circo(real_annotations: Path) -> tuple[Table, Benchmark]:
    root = real_annotations / "circo"
    table = json.loads((root / "submission_examples" / "submission_test.json").read_text(encoding="utf-8"))
    return table, load_benchmark("circo", "test", root, need_images=False)


def change_all(table: Table, change: Callable[[list], list]) -> None:
    for key in table:
        table[key] = change(table[key])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("799"), "1 of 800 queries are missing (799)"),
        (lambda t: t.update({"800": t["0"]}), "1 keys are no query of the 800 of circo test (800)"),
        (lambda t: t["130"].pop(), "1 lists do not have exactly 50 images (query 130: 49)"),
        (lambda t: t["130"].append(1), "1 lists do not have exactly 50 images (query 130: 51)"),
        (lambda t: t["130"].__setitem__(0, "000000123456.jpg"), "1 images are written as file names, not as"),
        (lambda t: t["130"].__setitem__(5, 297636), "1 lists hold an image twice (query 130: image 297636)"),
        (
            lambda t: t["130"].__setitem__(5, "297636"),
            "1 lists hold an image twice (query 130: image 297636, as ",
        ),
        (lambda t: t["130"].__setitem__(0, -1), "1 image ids are not integers from 0"),
        (lambda t: t["130"].__setitem__(0, 1.0), "1 image ids are not integers from 0"),
        (lambda t: t["130"].__setitem__(0, True), "1 image ids are not integers from 0"),
        (lambda t: t.update({"130": "x"}), "the value of a query must be a list of image ids (130)"),
        (lambda t: change_all(t, lambda r: [str(i) for i in r]), "40000 image ids are not integers from 0"),
        (lambda t: change_all(t, lambda r: [f"{i:012d}" for i in r]), "40000 image ids are not integers"),
        (lambda t: change_all(t, lambda r: r[:3]), "800 lists do not have exactly 50 images (query 0: 3, "),
        (
            lambda t: [t.pop(str(n)) for n in range(100, 800)],
            "700 of 800 queries are missing (100, 101, 102, ...)",
        ),
    ],
)
def test_every_broken_rule_of_circo_is_named(
    circo: tuple[Table, Benchmark], change: Callable[[Table], object], message: str
) -> None:
    table, bench = circo
    broken = {key: list(row) for key, row in table.items()}
    if "297636" in message:
        broken["130"][3] = 297636
    change(broken)
    errors = find_faults(broken, bench).errors
    # An image that is written once as text and once as a number breaks two rules.
    assert len(errors) == (2 if message.endswith(", as ") else 1), errors
    assert any(error.startswith(message) for error in errors), errors


def test_images_of_no_gallery_are_named_where_the_image_list_is_there(circo: tuple[Table, Benchmark]) -> None:
    table, bench = circo
    known = replace(bench, gallery=tuple(sorted({image for row in table.values() for image in row})))
    assert find_faults(table, known).valid and find_faults(table, known).notes == []
    foreign = max(known.gallery) + 1
    broken = table | {"130": [*table["130"][:7], foreign, *table["130"][8:]]}
    assert find_faults(broken, known).errors == [
        f"1 times a listed image is not in the gallery (query 130: {foreign})"
    ]
    assert find_faults(broken, bench).valid  # without the list nobody can know, and the notes say so


@pytest.fixture(scope="module")
def cirr(real_annotations: Path) -> tuple[dict[str, Table], Benchmark]:
    root = real_annotations / "cirr"
    tables = {
        name: json.loads((root / "demo_files" / f"test1_pred_ranks_{name}.json").read_text(encoding="utf-8"))
        for name in ("recall", "recall_subset")
    }
    return tables, load_benchmark("cirr", "test1", root, need_images=False)


@pytest.fixture(scope="module")
def few(cirr: tuple[dict[str, Table], Benchmark]) -> tuple[dict[str, Table], Benchmark]:
    """The first sixty queries of the same."""
    tables, bench = cirr
    kept = {query.id for query in bench.queries[:60]} | {"version", "metric"}
    cut = {name: {key: row for key, row in table.items() if key in kept} for name, table in tables.items()}
    return cut, replace(bench, queries=bench.queries[:60])


@pytest.mark.parametrize(
    ("name", "change", "messages"),
    [
        ("recall", lambda t: t.pop("12063"), ["1 of 60 queries are missing (12063)"]),
        ("recall", lambda t: t.update({"1": t["12063"]}), ["1 keys are no query of the 60"]),
        ("recall", lambda t: t.pop("version"), ["'version' must be 'rc2', not None"]),
        ("recall", lambda t: t.update(version="rc1"), ["'version' must be 'rc2', not 'rc1'"]),
        ("recall", lambda t: t.update(metric="R@1"), ["'metric' must be 'recall'"]),
        (
            "recall_subset",
            lambda t: t.pop("metric"),
            ["'metric' must be 'recall'"],
        ),
        (
            "recall",
            lambda t: t.update(metric="recall_subset"),
            ["60 lists do not have exactly 3", "member"],
        ),
        ("recall", lambda t: t["12063"].pop(), ["1 lists do not have exactly 50 images (query 12063: 49)"]),
        (
            "recall",
            lambda t: t["12063"].__setitem__(0, t["12063"][1]),
            ["1 lists hold an image twice (query 12063: image test1-147-0-img1)"],
        ),
        (
            "recall",
            lambda t: t["12063"].__setitem__(0, "test1-147-1-img1"),
            ["1 times a listed image is the query's own reference, to be removed (query 12063"],
        ),
        (
            "recall",
            lambda t: t["12063"].__setitem__(0, "dev-244-0-img0"),
            ["1 times a listed image is not in the gallery (query 12063: 'dev-244-0-img0')"],
        ),
        (
            "recall",
            lambda t: t["12063"].__setitem__(0, "./test1/test1-38-2-img1.png"),
            ["1 images are written as file names", "is not in the gallery"],
        ),
        (
            "recall",
            lambda t: t["12063"].__setitem__(0, 7),
            ["1 image ids are not names as text (query 12063: 7)"],
        ),
        (
            "recall_subset",
            lambda t: t["12063"].__setitem__(0, "test1-38-2-img1"),
            ["1 times a listed image is no member of the query's subset (query 12063: 'test1-38-2-img1')"],
        ),
        (
            "recall_subset",
            lambda t: t["12063"].append("test1-906-0-img1"),
            ["1 lists do not have exactly 3 images (query 12063: 4)"],
        ),
    ],
)
def test_every_broken_rule_of_cirr_is_named(
    few: tuple[dict[str, Table], Benchmark],
    name: str,
    change: Callable[[Table], object],
    messages: list[str],
) -> None:
    tables, bench = few
    broken = {key: list(row) if isinstance(row, list) else row for key, row in tables[name].items()}
    change(broken)
    errors = find_faults(broken, bench).errors
    assert len(errors) == len(messages), errors
    for message, error in zip(messages, errors, strict=True):
        assert message in error


def test_several_broken_rules_are_all_named_at_once(few: tuple[dict[str, Table], Benchmark]) -> None:
    tables, bench = few
    broken = dict(tables["recall"]) | {"version": 2, "12063": ["a", "a"], "x": []}
    del broken["12064"]
    errors = find_faults(broken, bench).errors
    assert [error.split(" (")[0] for error in errors] == [
        "'version' must be 'rc2', not 2",
        "1 of 60 queries are missing",
        "1 keys are no query of the 60 of cirr test1",
        "1 lists do not have exactly 50 images",
        "1 lists hold an image twice",
        "2 times a listed image is not in the gallery",
    ]
    assert find_faults([1, 2], bench).errors == ["expected a JSON object {query id: [image ids]}, not a list"]


# --- writing ----------------------------------------------------------------------------------------------


def test_files_of_the_whole_test_split_have_the_form_of_the_published_ones(
    cirr: tuple[dict[str, Table], Benchmark], tmp_path: Path
) -> None:
    tables, bench = cirr
    # The reference first, as an unwary method has it; the writer takes it out.
    rankings = {q.id: [q.reference, *tables["recall"][q.id]] for q in bench.queries}
    subsets = {q.id: list(q.members) for q in bench.queries}
    assert {query.text for query in bench.queries if query.id == "27098"} == {EMPTY_TEXT}
    recall, subset = write_submissions(bench, rankings, subsets, tmp_path)
    assert [one.path.name for one in (recall, subset)] == [
        "cirr-test1-recall.json",
        "cirr-test1-recall_subset.json",
    ]
    found = json.loads(recall.path.read_text(encoding="utf-8"))
    assert found == tables["recall"] and list(found) == list(tables["recall"]) and "27098" in found
    assert recall.size == recall.path.stat().st_size < 4_192_413 and subset.size < 294_618
    assert b" " not in recall.path.read_bytes()
    found = json.loads(subset.path.read_text(encoding="utf-8"))
    assert found.keys() == tables["recall_subset"].keys() and found["metric"] == "recall_subset"
    text = submissions.describe_written([recall, subset], "cirr")
    assert "upload to https://cirr.cecs.anu.edu.au (backup: https://cirr.junjie.au)" in text
    assert f"{recall.size:,} bytes, valid" in text


def test_a_file_that_the_server_cannot_take_is_not_written(
    cirr: tuple[dict[str, Table], Benchmark], real_annotations: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tables, bench = cirr
    wide = tmp_path / "wide.json"
    wide.write_text(json.dumps(tables["recall"], indent=4))
    (error,) = validate_file(wide, "cirr", real_annotations / "cirr").errors
    assert error.startswith(f"the file has {wide.stat().st_size:,} bytes where the server takes 5,000,000")
    rankings = {query.id: tables["recall"][query.id] for query in bench.queries}
    monkeypatch.setattr(submissions, "MOST_BYTES", 1_000_000)
    with pytest.raises(InputError, match="would have .* bytes where the server takes 1,000,000"):
        write_submissions(bench, rankings, {q.id: list(q.members) for q in bench.queries}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_clip: Path) -> Path:
    """Worlds, and a run of text-only on each."""
    folder = tmp_path_factory.mktemp("submit")
    for name, write in (
        ("circo", write_world),
        ("cirr", write_cirr_world),
        ("fashioniq", write_fashion_world),
    ):
        write(folder / name)
        for limit in (None, 3):
            bench = open_bench(
                folder / name, tiny_clip, folder / "cache", "test", benchmark=f"mini-{name}", limit=limit
            )
            run = run_method(bench, "text-only", resolve_settings("text-only", {}))
            run.save(folder / f"run-{name}-{limit}")
    return folder


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert "Traceback" not in err
    return line


@pytest.mark.parametrize("to", ["circo", "cirr"])
def test_submit_writes_the_files_of_a_run_and_they_score_as_the_run(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str
) -> None:
    given = ["submit", str(place / f"run-{to}-None"), "--to", to, "--root", str(place / to)]
    code = main([*given, "--out", str(tmp_path), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    found = json.loads(out)
    names = ["mini-circo-test.json"] if to == "circo" else [
        "mini-cirr-test-recall.json", "mini-cirr-test-recall_subset.json",
    ]  # fmt: skip
    assert [Path(one["file"]).name for one in found["files"]] == names
    metrics = json.loads((place / f"run-{to}-None" / "metrics.json").read_text())["metrics"]
    scored: dict[str, float] = {}
    for one in found["files"]:
        assert one["valid"] and one["bytes"] == Path(one["file"]).stat().st_size
        scored |= evaluate_file(one["file"], f"mini-{to}", "test", place / to)["metrics"]
        check = [
            "submit",
            "--validate",
            one["file"],
            "--to",
            to,
            "--root",
            str(place / to),
            "-b",
            f"mini-{to}",
        ]
        assert main(check) == 0
        assert ": valid for" in capsys.readouterr().out
    assert scored == metrics
    main(given)
    text = capsys.readouterr().out
    assert f"this is mini-{to} test, for practice" in text and "bytes, valid" in text
    assert (place / f"run-{to}-None" / names[0]).is_file()


def test_wrong_submissions_are_refused_in_one_line(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    circo, cirr = place / "circo", place / "cirr"
    assert "unknown server 'fashioniq': choose cirr, circo; FashionIQ has no server" in refused(
        capsys, "submit", place / "run-fashioniq-None", "--to", "fashioniq"
    )
    assert "submit needs --to: choose cirr, circo" in refused(capsys, "submit", place / "run-cirr-None")
    assert "give one of the two" in refused(capsys, "submit", "--to", "cirr")
    assert "of mini-fashioniq, which the server of cirr does not take" in refused(
        capsys, "submit", place / "run-fashioniq-None", "--to", "cirr", "--root", place / "fashioniq"
    )
    assert "is not a run folder" in refused(capsys, "submit", tmp_path, "--to", "cirr")
    line = refused(capsys, "submit", place / "run-cirr-3", "--to", "cirr", "--root", cirr, "--out", tmp_path)
    assert "the run gives no valid mini-cirr-test-recall.json: 5 of 8 queries are missing" in line
    assert not list(tmp_path.iterdir())
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps({"0": [1], "1": [100, 100]}))
    line = refused(capsys, "submit", "--validate", bad, "--to", "circo", "--root", circo, "-b", "mini-circo")
    assert "6 of 8 queries are missing (2, 3, 4, ...); 2 lists do not have exactly 24 images" in line
    assert "1 lists hold an image twice (query 1: image 100); 1 times a listed image is not in" in line
    assert "mini-circo has no files for the server of cirr" in refused(
        capsys, "submit", "--validate", bad, "--to", "cirr", "-b", "mini-circo", "--root", circo
    )
    bad.write_text('{"0": [1], "0": [2]}')
    assert "the key '0' occurs twice" in refused(
        capsys, "submit", "--validate", bad, "--to", "circo", "--root", circo, "-b", "mini-circo"
    )
    given = ["submit", "--validate", str(circo / "annotations" / "test.json"), "--to", "circo"]
    code = main([*given, "--root", str(circo), "-b", "mini-circo", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 2 and found["valid"] is False and "not a list" in found["errors"][0]


def test_a_run_without_subsets_gives_no_cirr_files(place: Path, tmp_path: Path) -> None:
    bench = load_benchmark("mini-cirr", "test", place / "cirr")
    rankings = {query.id: list(bench.gallery) for query in bench.queries}
    with pytest.raises(InputError, match="no valid mini-cirr-test-recall_subset.json: 8 of 8 queries"):
        write_submissions(bench, rankings, {}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_submit_of_a_mini_run_finds_its_own_benchmark(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cir_utils import profiles

    monkeypatch.setattr(profiles, "PACKAGE", tmp_path / "package")
    (tmp_path / "package" / "mini").mkdir(parents=True)
    (tmp_path / "package" / "mini" / "cirr").symlink_to(place / "cirr")
    written = submit_run(place / "run-cirr-None", "cirr", out=tmp_path / "out")
    assert [one.benchmark for one in written] == ["mini-cirr", "mini-cirr"]
    assert written[0].path.parent == tmp_path / "out"
