"""The numbers of README.md and docs/results.md come from run records."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_world import open_bench, write_cirr_world, write_fashion_world, write_world

from cir_utils.errors import InputError
from cir_utils.experiments import ABLATIONS, METHODS, Experiment, load_experiments, run_experiments
from cir_utils.workbench import Workbench
from data_scripts import make_readme_tables
from data_scripts.make_readme_tables import DOCUMENTS, MARKS, filled, main

TEXT = "# Title\n\n<!-- {} -->\nold\n<!-- end of table -->\n\nAfter.\n"
WORLDS = {"mini-circo": write_world, "mini-cirr": write_cirr_world, "mini-fashioniq": write_fashion_world}
CHOSEN = {"mini-circo": (*METHODS, ABLATIONS[1]), "mini-cirr": METHODS, "mini-fashioniq": METHODS}


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory, tiny_clip: Path) -> dict[str, Workbench]:
    place = tmp_path_factory.mktemp("worlds")
    return {
        name: open_bench(write(place / name), tiny_clip, place / "cache", benchmark=name)
        for name, write in WORLDS.items()
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, benches: dict[str, Workbench]) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for name, bench in benches.items():
        run_experiments(bench, folder / f"{name}-val", CHOSEN[name], whole=False)
    return folder


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_what_is_generated_is_in_step_with_the_records(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert MARKS.search(text), f"{path.name} has no generated table"
    assert filled(text) == text, "run `python -m data_scripts.make_readme_tables`"


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("mini-circo", ["mAP@5", "mAP@10", "mAP@25", "mAP@50"]),
        ("mini-cirr", ["R@1", "R@5", "R@10", "R@50", "R_subset@1", "R_subset@2", "R_subset@3"]),
        (
            "mini-fashioniq",
            ["mean/R@10", "mean/R@50", "dress/R@10", "dress/R@50", "shirt/R@10", "shirt/R@50", "toptee/R@10",
             "toptee/R@50"],
        ),
    ],
)  # fmt: skip
def test_a_table_has_the_columns_of_its_benchmark_and_the_methods_alone(
    results: Path, name: str, metrics: list[str]
) -> None:
    text = filled(TEXT.format(f"table: {name}-val"), results)
    assert text.startswith(f"# Title\n\n<!-- table: {name}-val -->\n\n{name} val, ")
    assert text.endswith("<!-- end of table -->\n\nAfter.\n") and "old" not in text
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == ["method", *metrics, "MLLM calls", "parse failures"]
    assert [row[0] for row in rows[2:]] == [experiment.label for experiment in METHODS]
    runs = {run.name: run for run in load_experiments(results / f"{name}-val")}
    for row in rows[2:]:
        for metric, cell in zip(metrics, row[1:], strict=False):
            assert cell.partition(" ")[0] == f"{100 * runs[row[0]].metrics[metric]:.2f}"
    assert "Models tiny-clip@" in text and "scripted@1; settings" in text and "alpha 0.15" in text
    assert filled(text, results) == text


def test_ablations_come_with_the_paired_tests_of_all_runs(results: Path) -> None:
    text = filled(TEXT.format("ablations: mini-circo-val"), results)
    (run,) = [run for run in load_experiments(results / "mini-circo-val") if run.name not in
              {experiment.label for experiment in METHODS}]  # fmt: skip
    assert f"| {run.name} | {100 * run.metrics['mAP@5']:.2f}" in text
    assert "| image-only |" not in text
    assert "| sdr-cir | description-only |" in text and "| sdr-cir | sdr-cir, Anchor only |" in text
    text = filled(TEXT.format("ablations: mini-cirr-val"), results)
    assert "Paired sign-flip tests on R@1" in text and "| method | R@1" not in text


def test_the_summary_has_one_column_a_benchmark(results: Path) -> None:
    mark = "summary: mini-circo-val mini-cirr-val mini-fashioniq-val"
    text = filled(TEXT.format(mark), results)
    assert "mini-circo val, 8 queries; mini-cirr val, 8 queries; mini-fashioniq val, 12 queries." in text
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == ["method", "mini-circo mAP@5", "mini-cirr R@1", "mini-fashioniq mean/R@10"]
    assert [row[0] for row in rows[2:]] == [experiment.label for experiment in METHODS]
    for column, (name, metric) in enumerate(
        (("mini-circo", "mAP@5"), ("mini-cirr", "R@1"), ("mini-fashioniq", "mean/R@10")), start=1
    ):
        for row, run in zip(rows[2:], load_experiments(results / f"{name}-val"), strict=False):
            assert row[column].partition(" ")[0] == f"{100 * run.metrics[metric]:.2f}"
            assert row[0] == run.name
    assert filled(text, results) == text


def test_rows_of_notebooks_get_their_minutes(tmp_path: Path) -> None:
    row = "| [00 Start](notebooks/00_start_here.ipynb) | the task | {} |"
    text = f"| notebook | learn | minutes |\n|---|---|---|\n{row.format('')}\n| other | x | 7 |\n"
    assert row.format("not measured") in filled(text, tmp_path)
    for seconds, told in ((61.0, "2"), (60.0, "1"), (3.0, "1")):
        (tmp_path / "notebooks.json").write_text(f'{{"00_start_here": {{"seconds": {seconds}}}}}')
        made = filled(text, tmp_path)
        assert row.format(told) in made and "| other | x | 7 |" in made
        assert filled(made, tmp_path) == made


def test_a_mark_without_records_is_named(tmp_path: Path, benches: dict[str, Workbench]) -> None:
    for kind in ("table", "ablations", "summary"):
        with pytest.raises(
            InputError, match="results/mini-cirr-test holds no records.*--benchmark mini-cirr`"
        ):
            filled(TEXT.format(f"{kind}: mini-cirr-test"), tmp_path)
    run_experiments(benches["mini-cirr"], tmp_path / "mini-cirr-val", METHODS[1:3], whole=False)
    with pytest.raises(InputError, match="holds no record of random, image\\+text, .*--benchmark mini-cirr`"):
        filled(TEXT.format("summary: mini-cirr-val"), tmp_path)


def test_the_command_runs_what_it_is_asked_for_and_writes_both_files(
    tmp_path: Path,
    benches: dict[str, Workbench],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened: list[str] = []

    def open_small(name: str, profile: str, split: str, device: str) -> Workbench:
        opened.append(f"{profile} {name} {split} {device}")
        return benches[name]

    def run_two(bench: Workbench, out: Path, wanted: list[Experiment], whole: bool) -> None:
        assert [one.label for one in wanted] == ["random", "image-only"]
        run_experiments(bench, out, wanted, whole=whole)

    documents = (tmp_path / "README.md", tmp_path / "results.md")
    documents[0].write_text(TEXT.format("table: mini-cirr-val"))
    documents[1].write_text(TEXT.format("table: mini-fashioniq-val"))
    monkeypatch.setattr(make_readme_tables, "open_workbench", open_small)
    monkeypatch.setattr(make_readme_tables, "run_experiments", run_two)
    monkeypatch.setattr(make_readme_tables, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(make_readme_tables, "DOCUMENTS", documents)
    run = ["--run", "--split", "val", "--device", "cpu", "--only", "image-only", "--only", "random"]
    assert main([*run, "--benchmark", "mini-cirr"]) == 2  # the other file's records are not there yet
    assert "results/mini-fashioniq-val holds no records" in capsys.readouterr().err
    assert "old" in documents[0].read_text()
    assert main([*run, "--benchmark", "mini-fashioniq", "--benchmark", "mini-cirr"]) == 0
    assert opened == ["mini mini-cirr val cpu"] * 2 + ["mini mini-fashioniq val cpu"]
    assert "| random |" in documents[0].read_text() and "toptee/R@50" in documents[1].read_text()
    assert not list(tmp_path.rglob("rankings.parquet"))
    assert main(["--check"]) == 0
    assert "README.md, results.md: in step" in capsys.readouterr().out
    documents[1].write_text(documents[1].read_text().replace("| random |", "| guess |"))
    assert main(["--check"]) == 1
    assert capsys.readouterr().out == "results.md: not in step: run me without --check\n"
    opened.clear()
    main([*run, "--benchmark", "all"])
    assert [line.split()[1] for line in opened] == ["mini-circo", "mini-cirr", "mini-fashioniq"]
