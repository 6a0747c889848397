"""All systems and ablations of a benchmark on one workbench: one pass, one table.

They share gallery features, models and stored answers, so the course's list costs little more than its most
expensive member; LDRE and SEIZE ask most of what the whole list adds. A random ranking is the first row."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from cir_utils import methods
from cir_utils.errors import InputError
from cir_utils.methods import SettingValue, resolve_settings
from cir_utils.runs import Run, find_runs, load_run, run_method
from cir_utils.tables import Comparison, comparison
from cir_utils.workbench import Workbench


@dataclass(frozen=True)
class Experiment:
    """A row of the table: its label, the method, and the settings that differ from the benchmark's usual
    ones."""

    label: str
    method: str
    overrides: dict[str, SettingValue] = field(default_factory=dict)


#: The random ranking and the six methods of the course.
FIRST = ("random", "image-only", "text-only", "image+text", "description-only", "sdr-cir", "xr")
METHODS = tuple(Experiment(name, name) for name in FIRST)
#: All other systems, as the registry lists them: those that the two papers compare with, and ours.
OTHERS = tuple(Experiment(name, name) for name in methods.METHODS if name not in FIRST)
#: SDR-CIR's Table 3 (description only is a method of its own) and X^R's stages and agents.
ABLATIONS = (
    Experiment("description-only, plain prompt", "description-only", {"description": "plain"}),
    Experiment("sdr-cir, Anchor only", "sdr-cir", {"beta": 0.0}),
    Experiment("sdr-cir, Debias only", "sdr-cir", {"alpha": 0.0}),
    Experiment("sdr-cir, plain prompt", "sdr-cir", {"description": "plain"}),
    Experiment("xr, coarse stage only", "xr", {"stages": "coarse"}),
    Experiment("xr, without the vision side", "xr", {"vision": "off"}),
    Experiment("xr, without the text side", "xr", {"text": "off"}),
)
#: What each part of ours adds.
OWN_ABLATIONS = (
    Experiment("xr-sdr, coarse stage only", "xr-sdr", {"stages": "coarse"}),
    Experiment("xr-sdr, X^R's coarse stage", "xr-sdr", {"alpha": 0.0, "beta": 0.0}),
    Experiment("xr-sdr, X^R's fine stage", "xr-sdr", {"verification": "counts"}),
)
#: The course's methods and the papers' ablations, which notebook 07 runs; and everything there is.
EXPERIMENTS = METHODS + ABLATIONS
ALL = METHODS + OTHERS + ABLATIONS + OWN_ABLATIONS
#: Which differences are tested (method, against).
PAIRS = (
    ("sdr-cir", "description-only"),
    ("sdr-cir", "sdr-cir, Anchor only"),
    ("sdr-cir", "sdr-cir, Debias only"),
    ("sdr-cir", "sdr-cir, plain prompt"),
    ("description-only", "description-only, plain prompt"),
    ("xr", "xr, coarse stage only"),
    ("xr", "xr, without the vision side"),
    ("xr", "xr, without the text side"),
    ("xr", "sdr-cir"),
    ("xr-sdr", "xr"),
    ("xr-sdr", "xr-sdr, X^R's coarse stage"),
    ("xr-sdr", "xr-sdr, X^R's fine stage"),
)


def run_experiments(
    bench: Workbench,
    out: Path | str | None = None,
    chosen: Sequence[Experiment] = EXPERIMENTS,
    *,
    whole: bool = True,
) -> list[Run]:
    """Run ``chosen`` in order; with ``out``, each into a folder of its own below it (``whole`` as in
    :meth:`Run.save`), which takes the place of an earlier run of that label there. Folders are numbered by
    the place in :data:`ALL`, so that some may be run again, or later, without changing the table."""
    runs = []
    place = {experiment.label: number for number, experiment in enumerate(ALL, start=1)}
    own = len(ALL) + 1  # labels of a caller's own come after all others
    for experiment in tqdm(chosen, desc="runs", disable=not sys.stderr.isatty()):
        number = place.get(experiment.label, own)
        settings = resolve_settings(experiment.method, bench.settings, experiment.overrides)
        run = run_method(bench, experiment.method, settings, label=experiment.label)
        if out is not None:
            name = slug(experiment.label)
            folder = run.save(Path(out) / f"{number:02d}-{name}", whole=whole)
            for earlier in find_runs(out):  # the same run under another number would be a second row
                if earlier != folder and re.fullmatch(rf"[0-9]{{2}}-{name}", earlier.name):
                    shutil.rmtree(earlier)
        runs.append(run)
    return runs


def load_experiments(folder: Path | str, *, whole: bool = False) -> list[Run]:
    """The runs below ``folder`` in order of their folders' names; :class:`InputError` when there is none."""
    found = find_runs(folder)
    if not found:
        raise InputError(f"no run folder in {folder}; run notebook 07 or `cir run` first")
    return [load_run(path, whole=whole) for path in found]


def compare_experiments(runs: Sequence[Run], metric: str | None = None) -> Comparison:
    """Every run with 95 % intervals, and the paired tests of :data:`PAIRS` as far as both members are
    there."""
    return comparison(runs, metric, pairs_among(runs))


def pairs_among(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Those of :data:`PAIRS` whose members are both among ``runs``."""
    names = {run.name for run in runs}
    return [(name, against) for name, against in PAIRS if name in names and against in names]


def slug(label: str) -> str:
    """A label as a folder's name: lower-case words and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
