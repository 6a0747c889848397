"""Measure the networks for pseudo-words on val of the mini benchmarks, and write their model cards.

    python -m data_scripts.evaluate_pseudo_words [--write] [system ...]

Beside each system stands image+text, the mean of picture and text feature, which it has to beat. `--write`
puts `figures.json`, `README.md` and `SHA256SUMS` into the systems' folders below `cir_utils/mini/models`.
`test` is not looked at here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from cir_utils.files import write_atomic, write_json_atomic, write_manifest
from cir_utils.methods import resolve_settings
from cir_utils.runs import run_method
from cir_utils.word_networks import NETWORK, SHIPPED
from cir_utils.workbench import open_workbench
from data_scripts.train_pseudo_words import INVERSION_STEPS, INVERTED, SYSTEMS

BASELINE = "image+text"
BENCHMARKS = {
    "mini-circo": ("mAP@5", "mAP@10"),
    "mini-cirr": ("R@1", "R@5", "R_subset@1"),
    "mini-fashioniq": ("mean/R@10", "mean/R@50"),
}
ABOUT = {
    "pic2word": "The mapping network of Pic2Word (arXiv:2302.03084): an image feature to one pseudo-word.",
    "searle": "The network phi of SEARLE (arXiv:2303.15247), distilled from words found by optimisation.",
    "isearle": "The network phi of iSEARLE (arXiv:2405.02951): SEARLE's with noise and hard negatives.",
    "lincir": "The projection phi of LinCIR (arXiv:2312.01998), trained on texts alone.",
    "palavra": "The set network f_theta of PALAVRA (arXiv:2204.01694), whose words are then optimised.",
    "fti4cir": "The network of FTI4CIR (arXiv:2503.19296): a subject word and several attribute words.",
}
LEARNT_FROM = {
    "lincir": "Texts of `train` worlds in both domains, drawn anew at every step; no picture.",
    "palavra": "{pictures} pictures of `train` worlds (`data_scripts.pool`), by colour and kind.",
    "fti4cir": "{pictures} pictures of `train` worlds (`data_scripts.pool`) and their captions in two parts.",
}


def measure(systems: Sequence[str]) -> dict[str, dict[str, float]]:
    """Metric values of `systems` and the baseline by "benchmark metric", fractions."""
    found: dict[str, dict[str, float]] = {name: {} for name in (BASELINE, *systems)}
    for benchmark, metrics in BENCHMARKS.items():
        bench = open_workbench(benchmark, split="val", device="cpu")
        for name in found:
            run = run_method(bench, name, resolve_settings(name, bench.settings))
            found[name] |= {f"{benchmark} {metric}": run.metrics[metric] for metric in metrics}
    return found


def card(system: str, figures: dict[str, dict[str, float]]) -> str:
    """The model card: every number from `training.json`, the weights' file or the figures."""
    folder = SHIPPED / system
    record = json.loads((folder / "training.json").read_text())
    size = (folder / NETWORK).stat().st_size
    learnt = LEARNT_FROM.get(
        system, "{pictures} pictures of `train` worlds (`data_scripts.pool`); no caption of theirs."
    )
    lines = [
        f"# {system}, for mini-CLIP\n",
        f"{ABOUT[system]} {size / 2e6:.2f} million parameters in float16, for the encoder "
        f"`{record['encoder']}` and no other: the loader refuses it elsewhere.\n",
        f"**Data**: {learnt.format(**record)} Held-out combinations are not among them.\n",
        f"**Recipe**: `python -m data_scripts.train_pseudo_words {system}`; the losses are described in "
        f"`cir_utils/methods/{system}.py`. {record['steps']} steps of {record['batch']}, AdamW, highest "
        f"learning rate {record['learning_rate']}, {record['seconds']} seconds of one core, seed "
        f"{record['seed']}; mini-CLIP is frozen.",
    ]
    if system in ("searle", "isearle"):
        lines.append(f"Its words come from {INVERTED} pictures, inverted in {INVERSION_STEPS} steps each.")
    lines += [
        "\n**Measured** on val by `python -m data_scripts.evaluate_pseudo_words`, in percent:\n",
        f"| | {system} | {BASELINE} |\n|---|---|---|",
        *(
            f"| {name} | {100 * value:.2f} | {100 * figures[BASELINE][name]:.2f} |"
            for name, value in figures[system].items()
        ),
        "\n**Known weaknesses**: It knows the mini world alone, and its word holds no more than mini-CLIP's "
        "image feature does.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("systems", nargs="*", help=f"default: all that are there, of {', '.join(SYSTEMS)}")
    parser.add_argument("--write", action="store_true", help="cards, figures and checksums")
    args = parser.parse_args()
    systems = args.systems or [name for name in SYSTEMS if (SHIPPED / name / NETWORK).is_file()]
    if args.write:  # the methods verify checksums
        for system in systems:
            write_manifest(SHIPPED / system)
    figures = measure(systems)
    print(json.dumps(figures, indent=1))
    if args.write:
        for system in systems:
            folder: Path = SHIPPED / system
            own = {name: figures[name] for name in (BASELINE, system)}
            write_json_atomic(folder / "figures.json", own)
            write_atomic(folder / "README.md", card(system, figures))
            write_manifest(folder)


if __name__ == "__main__":
    main()
