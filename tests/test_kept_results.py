"""The records in results/: the mini benchmarks are neither saturated nor hopeless, and guessing is worth
little."""

from __future__ import annotations

import pytest

from cir_utils.benchmarks import load_benchmark
from cir_utils.experiments import ALL, METHODS, load_experiments
from cir_utils.runs import FAMILY_METRICS, Run, find_runs
from data_scripts.make_readme_tables import MINI, RESULTS

#: What the best method may reach, and how far below it image and text alone must stay, as fractions.
LOWEST, HIGHEST, MARGIN = 0.25, 0.85, 0.10


def kept(name: str) -> dict[str, Run]:
    folder = RESULTS / f"{name}-test"
    if not find_runs(folder):
        pytest.skip(
            f"results/{folder.name} holds no records yet; `python -m data_scripts.make_readme_tables --run "
            f"--benchmark {name}` makes them"
        )
    return {run.name: run for run in load_experiments(folder)}


@pytest.mark.parametrize("name", MINI)
def test_every_method_and_ablation_has_one_record_of_the_whole_split(name: str) -> None:
    runs = kept(name)
    assert sorted(runs) == sorted(experiment.label for experiment in ALL)
    assert len(find_runs(RESULTS / f"{name}-test")) == len(ALL)
    bench = load_benchmark(name, "test", need_images=False)
    for run in runs.values():
        assert run.queries == tuple(query.id for query in bench.queries), run.name
        assert run.record["protocol"] == bench.protocol.as_dict(), run.name


@pytest.mark.parametrize("name", MINI)
def test_the_headline_leaves_room_above_and_below(name: str) -> None:
    runs = kept(name)
    metric = FAMILY_METRICS[load_benchmark(name, "test", need_images=False).family][0]
    value = {
        experiment.label: runs[experiment.label].metrics[metric] for experiment in METHODS
    }  # the course's
    best = max(value, key=value.__getitem__)
    told = f"{name} {metric}: " + ", ".join(f"{label} {100 * value[label]:.2f}" for label in value)
    assert LOWEST <= value[best] <= HIGHEST, told
    for single in ("image-only", "text-only"):
        assert value[single] <= value[best] - MARGIN, told
        assert value["random"] < value[single], told
