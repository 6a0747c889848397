"""The systems side by side: for each a drawing in boxes and three sentences, its lines of code, and the kept
records of its runs.

The drawings are a table here and are drawn by :mod:`cir_utils.diagrams`; what a system does in detail, with
its paper's equations, is in the docstring of its file in :mod:`cir_utils.methods`."""

from __future__ import annotations

import ast
import io
import itertools
import shlex
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cir_utils.benchmarks import BENCHMARKS
from cir_utils.errors import InputError
from cir_utils.methods import METHODS, get_method, resolve_settings
from cir_utils.reproduce import RESULTS, find_kept
from cir_utils.runs import TABLE_METRICS, Run, run_method
from cir_utils.tables import Comparison, comparison
from cir_utils.workbench import Workbench

FOLDER = Path(__file__).resolve().parent / "methods"
#: The families, by what stands between a query and its ranking.
FAMILIES = {
    "features": "features as they are",
    "descriptions": "a text about the target",
    "words": "a pseudo-word for the reference",
    "verification": "candidates that are checked",
}
#: What a box can be: what goes in, what works on it, what comes out.
KINDS = ("picture", "text", "mllm", "clip", "training", "network", "word", "score", "ranking")


@dataclass(frozen=True)
class Box:
    """A box of a drawing: its ``label`` (lines), its kind (of :data:`KINDS`), its place in ``column`` (from
    the left) and ``row`` (from the top), and the keys of the boxes whose arrows end in it."""

    label: str
    kind: str
    column: float
    row: float
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class System:
    """What readers are told about the method ``name``: its name in tables (``title``), where it comes from
    (``source``), its family (of :data:`FAMILIES`), three sentences, and its drawing by key of box."""

    name: str
    title: str
    source: str
    family: str
    sentences: tuple[str, str, str]
    boxes: Mapping[str, Box]

    def spoken(self) -> str:
        """The drawing in words: ``I_r → CLIP image F_r → ...``, one chain a box that has arrows."""
        chains = []
        for box in self.boxes.values():
            if box.after:
                sources = " and ".join(_flat(self.boxes[key].label) for key in box.after)
                chains.append(f"{sources} → {_flat(box.label)}")
        return f"{self.title}: {'; '.join(chains)}"


def _flat(label: str) -> str:
    return " ".join(label.split())


def _boxes(*rows: tuple[str, str, str, float, float, str]) -> dict[str, Box]:
    """Rows (key, kind, label, column, row, keys of the boxes before it) as a drawing."""
    return {
        key: Box(label, kind, column, row, tuple(after.split()))
        for key, kind, label, column, row, after in rows
    }


def _one_feature(source: str, label: str, feature: str, side: str) -> dict[str, Box]:
    return _boxes(
        ("in", source, label, 0, 0, ""),
        ("clip", "clip", f"CLIP {side}\n{feature}", 1, 0, "in"),
        ("end", "ranking", "rank by\ncosine", 2, 0, "clip"),
    )


def _by_word(
    training: str, network: str, sentence: str, *more: tuple[str, str, str, float, float, str]
) -> dict[str, Box]:
    """The systems with one pseudo-word: the reference through a network into a sentence. ``training`` says
    what the network learnt from; ``more`` boxes work on the word."""
    last = more[-1][0] if more else "network"
    shift = len(more)
    return _boxes(
        ("r", "picture", "I_r", 0, 1, ""),
        ("m", "text", "T_m", 0, 2, ""),
        ("training", "training", training, 1, 0, ""),
        ("network", "network", network, 1, 1, "r training"),
        *more,
        ("word", "word", "$", 2 + shift, 1, last),
        ("clip", "clip", sentence, 2 + shift, 2, "word m"),
        ("end", "ranking", "rank by\ncosine", 3 + shift, 2, "clip"),
    )


_ALL = (
    System(
        "random", "Random", "", "features",
        (
            "The gallery is put into a random order, drawn anew for every query.",
            "Neither the picture nor the text is looked at.",
            "It says what guessing is worth, and so what every other row has to beat.",
        ),
        _boxes(
            ("gallery", "picture", "gallery", 0, 0, ""),
            ("draw", "score", "draw a\nnumber", 1, 0, "gallery"),
            ("end", "ranking", "rank\nby it", 2, 0, "draw"),
        ),
    ),
    System(
        "image-only", "Image only", "", "features",
        (
            "CLIP encodes the reference image, and the gallery is ranked by the cosine with that feature.",
            "The modification text plays no part, so look-alikes of the reference come first.",
            "It shows how far looks alone carry.",
        ),
        _one_feature("picture", "I_r", "F_r", "image"),
    ),
    System(
        "text-only", "Text only", "", "features",
        (
            "CLIP encodes the modification text, and the gallery is ranked by the cosine with that feature.",
            "The reference plays no part, so whatever the text leaves unsaid is lost.",
            "It shows how much of the target the text alone gives away.",
        ),
        _one_feature("text", "T_m", "F_m", "text"),
    ),
    System(
        "image+text", "Image + text", "", "features",
        (
            "The mean of the features of reference and text is the query.",
            "Nothing says which part of the reference the text replaces, so the old content and the new pull "
            "in two directions.",
            "It needs no MLLM, which makes it the baseline that everything dearer has to beat.",
        ),
        _boxes(
            ("r", "picture", "I_r", 0, 0, ""),
            ("m", "text", "T_m", 0, 1, ""),
            ("F_r", "clip", "CLIP image\nF_r", 1, 0, "r"),
            ("F_m", "clip", "CLIP text\nF_m", 1, 1, "m"),
            ("mean", "score", "mean", 2, 0.5, "F_r F_m"),
            ("end", "ranking", "rank by\ncosine", 3, 0.5, "mean"),
        ),
    ),
    System(
        "weimocir", "WeiMoCIR", "arXiv:2409.04918", "features",
        (
            "The query is a weighted mean of the features of reference and text.",
            "An MLLM captions the gallery once, and a candidate's score is a weighted mean of the cosines "
            "with its picture and with its caption.",
            "No language model reads the query, so a query costs no call of its own.",
        ),
        _boxes(
            ("r", "picture", "I_r", 0, 0, ""),
            ("m", "text", "T_m", 0, 1, ""),
            ("gallery", "picture", "gallery\nI_a", 0, 2, ""),
            ("F_r", "clip", "CLIP image\nF_r", 1, 0, "r"),
            ("F_m", "clip", "CLIP text\nF_m", 1, 1, "m"),
            ("C_a", "mllm", "MLLM\ncaptions C_a", 1, 2, "gallery"),
            ("mean", "score", "weighted\nmean", 2, 0.5, "F_r F_m"),
            ("end", "ranking", "rank by two\ncosines", 3, 1, "mean C_a"),
        ),
    ),
    System(
        "description-only", "Description only", "arXiv:2602.04451, ablation", "descriptions",
        (
            "An MLLM sees the reference, reads the text and describes the target in the four stages of "
            "Selective CoT.",
            "The description's CLIP feature is the query.",
            "This is SDR-CIR before its Anchor and Debias steps.",
        ),
        _boxes(
            ("r", "picture", "I_r", 0, 0, ""),
            ("m", "text", "T_m", 0, 1, ""),
            ("cot", "mllm", "MLLM, four\nstages", 1, 0.5, "r m"),
            ("F_d", "clip", "CLIP text\nF_d", 2, 0.5, "cot"),
            ("end", "ranking", "rank by\ncosine", 3, 0.5, "F_d"),
        ),
    ),
    System(
        "sdr-cir", "SDR-CIR", "arXiv:2602.04451", "descriptions",
        (
            "An MLLM describes the target by Selective CoT, which takes from the reference only what the "
            "text keeps or implies.",
            "Anchor mixes the reference's own feature back in, and Debias takes the reference's share, "
            "the description's cosine less the text's, out of the score.",
            "Both steps make one vector a query, so the gallery is searched with one product, and the MLLM "
            "is asked once.",
        ),
        _boxes(
            ("r", "picture", "I_r", 0, 0, ""),
            ("m", "text", "T_m", 0, 2, ""),
            ("cot", "mllm", "MLLM, four\nstages", 1, 1, "r m"),
            ("F_r", "clip", "CLIP image\nF_r", 2, 0, "r"),
            ("F_d", "clip", "CLIP text\nF_d", 2, 1, "cot"),
            ("F_m", "clip", "CLIP text\nF_m", 2, 2, "m"),
            ("w", "score", "Anchor,\nDebias", 3, 1, "F_r F_d F_m"),
            ("end", "ranking", "rank by\nS_f", 4, 1, "w"),
        ),
    ),
    System(
        "cirevl", "CIReVL", "arXiv:2310.09291", "descriptions",
        (
            "An MLLM captions the reference, and a language model that does not see the picture rewrites the "
            "caption by the text.",
            "The rewritten caption's CLIP feature is the query.",
            "What the caption leaves out is out of reach for the edit.",
        ),
        _boxes(
            ("r", "picture", "I_r", 0, 0, ""),
            ("m", "text", "T_m", 0, 1, ""),
            ("C_r", "mllm", "MLLM\ncaption", 1, 0, "r"),
            ("edit", "mllm", "LLM\nedit", 1, 1, "C_r m"),
            ("clip", "clip", "CLIP\ntext", 2, 1, "edit"),
            ("end", "ranking", "rank by\ncosine", 3, 1, "clip"),
        ),
    ),
    System(
        "ldre", "LDRE", "doi 10.1145/3626772.3657740", "descriptions",
        (
            "Many dense captions of the reference are sampled, and each is edited by the text.",
            "A pair of captions weighs the more, the further its edit lowers similarities in the gallery: an "
            "edit that changes nothing says nothing.",
            "The weighted mean of the edited captions' features is the query.",
        ),
        _boxes(
            ("r", "picture", "I_r", 0, 0, ""),
            ("m", "text", "T_m", 0, 1, ""),
            ("C_r", "mllm", "MLLM many\ncaptions", 1, 0, "r"),
            ("edit", "mllm", "LLM\nedit each", 1, 1, "C_r m"),
            ("weigh", "score", "weigh\neach", 2, 0, "C_r edit"),
            ("mean", "score", "weighted\nmean", 2, 1, "weigh edit"),
            ("end", "ranking", "rank by\ncosine", 3, 1, "mean"),
        ),
    ),
    System(
        "seize", "SEIZE", "doi 10.1145/3664647.3681649", "descriptions",
        (
            "Captions are sampled and edited as in LDRE, and the features of both groups are averaged.",
            "A picture that the edit brings nearer gains, one that it moves away loses: this increment is "
            "added to the cosine with the edited captions.",
            "So pictures like the reference fall back, for they are near the captions before the edit.",
        ),
        _boxes(
            ("r", "picture", "I_r", 0, 0, ""),
            ("m", "text", "T_m", 0, 1, ""),
            ("C_r", "mllm", "MLLM many\ncaptions", 1, 0, "r"),
            ("edit", "mllm", "LLM\nedit each", 1, 1, "C_r m"),
            ("F_c", "clip", "mean\nF_c", 2, 0, "C_r"),
            ("F_e", "clip", "mean\nF_e", 2, 1, "edit"),
            ("gain", "score", "gain or\nloss", 3, 0, "F_c F_e"),
            ("end", "ranking", "rank by\nboth", 3, 1, "F_e gain"),
        ),
    ),
    System(
        "pic2word", "Pic2Word", "arXiv:2302.03084", "words",
        (
            "A network turns the reference's CLIP feature into a pseudo-word, a vector that stands in a "
            "sentence as a word does.",
            "“a photo of $, T_m” goes through CLIP's frozen text encoder and ranks the gallery.",
            "In training, the sentence with a picture's word had to agree with that picture; pictures alone "
            "were needed, and no MLLM is called.",
        ),
        _by_word("learnt from\npictures", "CLIP F_r,\nnetwork", "CLIP text\n$, T_m"),
    ),
    System(
        "searle", "SEARLE", "arXiv:2303.15247", "words",
        (
            "For every training picture a pseudo-word is found by optimisation, kept near real words by "
            "phrases about concepts that the picture resembles.",
            "A network then learns to give such words at once.",
            "“a photo of $ that T_m” with the reference's word ranks the gallery.",
        ),
        _by_word("learnt from\ninversions", "CLIP F_r,\nnetwork", "CLIP text\n$ that T_m"),
    ),
    System(
        "isearle", "iSEARLE", "arXiv:2405.02951", "words",
        (
            "SEARLE's two stages, sentence and network stay.",
            "Noise on the text features during the optimisation covers the gap between texts and pictures.",
            "The network learns from batches of pictures that look alike, whose words are harder to tell "
            "apart.",
        ),
        _by_word("from noisy\ninversions", "CLIP F_r,\nnetwork", "CLIP text\n$ that T_m"),
    ),
    System(
        "lincir", "LinCIR", "arXiv:2312.01998", "words",
        (
            "The network is trained on texts alone: from a caption's feature it must make a word that can "
            "stand for the caption's keywords.",
            "Noise on the features prepares it for pictures, which it meets only when it is searched with.",
            "As in SEARLE, “a photo of $ that T_m” ranks the gallery.",
        ),
        _by_word("learnt from\ntexts", "CLIP F_r,\nnetwork", "CLIP text\n$ that T_m"),
    ),
    System(
        "palavra", "PALAVRA", "arXiv:2204.01694", "words",
        (
            "A set network guesses a word from the features of one or several pictures of a concept.",
            "The guess is then optimised for the reference, towards its picture and away from the name of "
            "its class.",
            "“a photo of $ that T_m” with that word ranks the gallery.",
        ),
        _by_word(
            "learnt from\nsets", "CLIP F_r,\nset network", "CLIP text\n$ that T_m",
            ("tune", "score", "optimise\nthe word", 2, 1, "network"),
        ),
    ),
    System(
        "fti4cir", "FTI4CIR", "arXiv:2503.19296", "words",
        (
            "A network makes a word for the reference's subject of its CLIP feature, and several words for "
            "its attributes of the patches of the picture.",
            "In training the words were held to captions, split into subject and attributes.",
            "“a photo of S* with A* but T_m” ranks the gallery.",
        ),
        _boxes(
            ("r", "picture", "I_r", 0, 0, ""),
            ("training", "training", "learnt from\ncaptions", 0, 1, ""),
            ("m", "text", "T_m", 2, 2, ""),
            ("subject", "network", "CLIP F_r,\nnetwork", 1, 0, "r training"),
            ("patches", "network", "patches,\nnetwork", 1, 1, "r training"),
            ("S", "word", "S*", 2, 0, "subject"),
            ("A", "word", "A*", 2, 1, "patches"),
            ("clip", "clip", "CLIP text\nS*, A*, T_m", 3, 1, "S A m"),
            ("end", "ranking", "rank by\ncosine", 4, 1, "clip"),
        ),
    ),
    System(
        "imagescope", "ImageScope", "arXiv:2503.10166", "verification",
        (
            "From the reference's caption and the text a language model writes atomic instructions and the "
            "target on three levels of detail, which score every candidate by its picture and its caption.",
            "The best candidates are checked against true/false propositions, and those that satisfy most "
            "come first.",
            "At last the first few are looked at beside the reference, and the first that fits goes to the "
            "top.",
        ),
        _boxes(
            ("r", "picture", "I_r", 0, 0, ""),
            ("m", "text", "T_m", 0, 1, ""),
            ("gallery", "picture", "gallery\nI_a", 0, 2, ""),
            ("C_r", "mllm", "MLLM\ncaption C_r", 1, 0, "r"),
            ("C_a", "mllm", "MLLM\ncaptions C_a", 1, 2, "gallery"),
            ("levels", "mllm", "LLM three\nlevels", 2, 1, "C_r m"),
            ("S", "score", "cosines,\nmean", 3, 1, "levels C_a"),
            ("check", "mllm", "MLLM\ntrue/false", 4, 1, "S"),
            ("pair", "mllm", "MLLM\nside by side", 5, 1, "check"),
            ("end", "ranking", "ranking", 6, 1, "pair"),
        ),
    ),
    System(
        "xr", "X^R", "arXiv:2601.14245", "verification",
        (
            "Two agents imagine the target, from the reference's caption and from its picture; four cosines "
            "with the candidates' captions and pictures, added up for each imagined caption and fused by "
            "rank, keep the best k'.",
            "A question agent writes true/false statements, and each of these candidates is checked against "
            "them twice, by its caption and by its picture.",
            "The number of right answers times the normalised similarity gives the order.",
        ),
        _boxes(
            ("r", "picture", "I_r", 0, 0, ""),
            ("m", "text", "T_m", 0, 1, ""),
            ("gallery", "picture", "gallery\nI_a", 0, 2, ""),
            ("C_r", "mllm", "MLLM\ncaption C_r", 1, 0, "r"),
            ("C_a", "mllm", "MLLM\ncaptions C_a", 1, 2, "gallery"),
            ("C_t", "mllm", "LLM\nimagines C_t", 2, 0, "C_r m"),
            ("C_v", "mllm", "MLLM\nimagines C_v", 2, 1, "r m"),
            ("S", "score", "four cosines,\nRRF", 3, 1, "C_v C_t C_a"),
            ("check", "mllm", "MLLM\ntrue/false", 4, 1, "S"),
            ("fine", "score", "answers ×\nsimilarity", 5, 1, "check"),
            ("end", "ranking", "ranking", 6, 1, "fine"),
        ),
    ),
    System(
        "xr-sdr", "xr-sdr (ours)", "no paper", "verification",
        (
            "X^R's agents and their calls stay.",
            "In the coarse stage pictures are compared with SDR-CIR's anchored and debiased query, made of "
            "each imagined caption.",
            "In the fine stage the log-probabilities of the expected answers are added to the similarity, "
            "with weights fitted on val, where X^R counts right answers.",
        ),
        _boxes(
            ("r", "picture", "I_r", 0, 0, ""),
            ("m", "text", "T_m", 0, 1, ""),
            ("gallery", "picture", "gallery\nI_a", 0, 2, ""),
            ("C", "mllm", "MLLM\nC_t and C_v", 1, 1, "r m"),
            ("C_a", "mllm", "MLLM\ncaptions C_a", 1, 2, "gallery"),
            ("w", "score", "Anchor,\nDebias", 2, 0, "r m C"),
            ("S", "score", "four cosines,\nRRF", 3, 1, "w C C_a"),
            ("check", "mllm", "MLLM\np(true)", 4, 1, "S"),
            ("fine", "score", "similarity +\nΣ log p", 5, 1, "check"),
            ("end", "ranking", "ranking", 6, 1, "fine"),
        ),
    ),
)  # fmt: skip
#: Every method of the package, by name, in the order of the families.
SYSTEMS: dict[str, System] = {system.name: system for system in _ALL}


def in_family(family: str) -> list[System]:
    """The systems of a family; :class:`InputError` lists the choices."""
    if family not in FAMILIES:
        raise InputError(f"unknown family {family!r}: choose {', '.join(FAMILIES)}")
    return [system for system in SYSTEMS.values() if system.family == family]


# --- lines of code ----------------------------------------------------------------------------------------


def code_lines(source: str) -> int:
    """Lines of Python ``source`` that hold code: no blank lines, comments or docstrings. A text of several
    lines that is used counts with all of them."""
    documents = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                if isinstance(first.value.value, str) and first.end_lineno is not None:
                    documents.add((first.lineno, first.end_lineno))
    skipped = (
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
    )  # fmt: skip
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped and (token.start[0], token.end[0]) not in documents:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def file_of(method: str) -> Path:
    """The file of ``method``; the plain baselines share one."""
    return FOLDER / f"{get_method(method).where.partition(':')[0]}.py"


def lines_of_code(method: str) -> tuple[int, int]:
    """The code lines of the method's file, and those of it together with the files of other methods that it
    imports from, directly or through them."""
    seen: dict[str, int] = {}
    waiting = [file_of(method).stem]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
            seen[name] = code_lines(source)
            waiting += _borrowed(source)
    return seen[file_of(method).stem], sum(seen.values())


def _borrowed(source: str) -> list[str]:
    """The modules of :mod:`cir_utils.methods` that ``source`` imports."""
    package, found = "cir_utils.methods", []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module == package:
                found += [alias.name for alias in node.names]
            elif node.module.startswith(f"{package}."):
                found.append(node.module.removeprefix(f"{package}."))
    return [name for name in found if (FOLDER / f"{name}.py").exists()]


# --- records and live runs --------------------------------------------------------------------------------


def kept_runs(results: Path | str = RESULTS) -> dict[str, dict[str, Run]]:
    """The kept records of the mini benchmarks' test splits: by benchmark, then by the run's name; a benchmark
    without records has none."""
    found: dict[str, dict[str, Run]] = {name: {} for name, entry in BENCHMARKS.items() if entry.shipped}
    for kept in find_kept([results]):
        name, split = kept.run.record["benchmark"], kept.run.record["split"]
        if name in found and split == "test":
            found[name][kept.run.name] = kept.run
    return found


def run_command(method: str, benchmark: str, split: str = "test") -> str:
    """The command that makes the record of ``method`` on ``benchmark``."""
    words = ["cir", "run", method, "--benchmark", benchmark, "--split", split]
    return shlex.join(words)


def missing_runs(kept: Mapping[str, Mapping[str, Run]]) -> list[tuple[str, str, str]]:
    """What is not run yet: (system, benchmark, command) for every system of :data:`SYSTEMS` that has no
    record there."""
    return [
        (name, benchmark, run_command(name, benchmark))
        for name in SYSTEMS
        for benchmark, runs in kept.items()
        if name not in runs
    ]


def headline(benchmark: str) -> str:
    """The metric that methods are compared on."""
    return TABLE_METRICS[benchmark][0]


def places(scores: Mapping[str, float]) -> dict[str, int]:
    """The place of every name, 1 for the highest score; equal scores share the better place."""
    return {name: 1 + sum(other > score for other in scores.values()) for name, score in scores.items()}


def compared_pairs(runs: Mapping[str, Run], pairs: Iterable[tuple[str, str]]) -> Comparison | None:
    """The paired tests of those ``pairs`` (method, against) whose members are both among ``runs``, corrected
    together; None where there are none."""
    known = [pair for pair in pairs if pair[0] in runs and pair[1] in runs]
    if not known:
        return None
    return comparison([runs[name] for name in dict.fromkeys(itertools.chain(*known))], pairs=known)


def difference(made: Comparison | None, method: str, against: str) -> str:
    """One test of :func:`compared_pairs` for a cell of a table, in percentage points: ``+1.2 (p = 0.010)``;
    "not run yet" where it has no such pair."""
    if made is not None:
        for _, row in made.paired.iterrows():
            if (row["method"], row["against"]) == (method, against):
                return f"{100 * row['difference']:+.1f} (p = {row['p (Holm)']:.3f})"
    return "not run yet"


def calls_per_query(run: Run) -> float:
    """MLLM calls that the method made, divided by its queries (answers from the cache are counted)."""
    return float(run.record["cost"]["mllm_calls"]) / len(run.queries)


def run_live(
    bench: Workbench,
    names: Iterable[str] = tuple(SYSTEMS),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[dict[str, Run], dict[str, str]]:
    """Run the systems ``names`` on ``bench`` with the benchmark's settings and ``overrides`` by name. Returns
    the runs, and for every trained system without weights for this encoder the line that says how to get
    them."""
    runs, lacking = {}, {}
    for name in names:
        settings = resolve_settings(name, bench.settings, (overrides or {}).get(name, {}))
        try:
            runs[name] = run_method(bench, name, settings)
        except InputError as error:
            if not METHODS[name].trained:
                raise
            lacking[name] = str(error)
    return runs, lacking


def composed(run: Run, number: int) -> list[tuple[str, str]]:
    """What a live run made of its query ``number``: its texts, pseudo-word sentence or weights, each with
    what it is."""
    settings = run.record["settings"]
    formulas = {
        "random": ("query", "none"),
        "image-only": ("query", "F_r"),
        "text-only": ("query", "F_m"),
        "image+text": ("query", "(F_r + F_m) / 2"),
    }
    method = run.record["method"]
    if method in formulas:
        return [formulas[method]]
    if method == "weimocir":
        text, caption = settings["text_weight"], settings["caption_weight"]
        return [
            ("query", f"{1 - text:g} F_r + {text:g} F_m"),
            ("candidates", f"{1 - caption:g} picture + {caption:g} caption"),
        ]
    found = [(str(what), str(text)) for what, text in run.traces[number]["said"]]
    if "alpha" in settings:
        found.append(("weights", f"α = {settings['alpha']:g}, β = {settings['beta']:g}"))
    return found


def reversals(
    methods: Sequence[str], ours: Sequence[float], published: Sequence[float]
) -> list[tuple[str, str]]:
    """The pairs of ``methods`` that the two score lists order the other way round: (better in ``published``,
    better in ``ours``). Ties are no reversal."""
    pairs = []
    for i, first in enumerate(methods):
        for j, second in enumerate(methods):
            if published[i] > published[j] and ours[i] < ours[j]:
                pairs.append((first, second))
    return pairs
