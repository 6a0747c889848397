"""Choose SDR-CIR's alpha and beta and X^R's k', lambda and kappa on a validation split.

Everything that costs is done once: gallery features, descriptions, imaginations, and the verification of
every candidate that any setting of the grid could send there. The grid itself is arithmetic on the stored
scores.

The rule, fixed beforehand: the highest value of the metric wins; of equal ones the smallest setting (alpha
then beta; k' then lambda then kappa). ``cir tune`` refuses every split but val."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cir_utils.compare import MEAN
from cir_utils.errors import InputError
from cir_utils.files import write_json_atomic
from cir_utils.methods import description_only, xr
from cir_utils.profiles import GIVEN, MINI_SETTINGS, SETTING_NAMES, read_mini_settings
from cir_utils.runs import TABLE_METRICS
from cir_utils.scoring import exact_scores, rerank
from cir_utils.tables import protocol_line
from cir_utils.workbench import Workbench

ALPHAS = tuple(step / 20 for step in range(11))
BETAS = tuple(step / 20 for step in range(21))
LAMBDAS = tuple(step / 20 for step in range(21))
K_PRIMES = (10, 20, 30, 40, 50, 75, 100)
KAPPAS = (10, 30, 60, 100)


@dataclass(frozen=True)
class Tuned:
    """The chosen settings and how they compare: ``values`` by setting name; ``best`` and ``usual`` the metric
    of each method with the chosen and with the profile's settings; ``edges`` names settings chosen at the end
    of their grid. ``choices`` (models, prompts, generation, each with its source) and ``protocol`` say under
    what, as in a run record."""

    benchmark: str
    split: str
    queries: int
    metric: str
    values: dict[str, float | int]
    best: dict[str, float]
    usual: dict[str, float]
    edges: list[str]
    choices: dict[str, dict[str, Any]]
    protocol: dict[str, Any]

    @property
    def tuned_on(self) -> str:
        return f"{self.benchmark} {self.split}, {self.queries} queries, {self.metric}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "split": self.split,
            "queries": self.queries,
            "metric": self.metric,
            "values": self.values,
            "best": self.best,
            "usual": self.usual,
            "edges": self.edges,
            "choices": self.choices,
            "protocol": self.protocol,
        }

    def describe(self, written: bool) -> str:
        """The result for the terminal."""
        lines = [f"tuned on {self.tuned_on}", protocol_line(self.protocol)]
        given = [
            f"{name} {choice['value']}" for name, choice in self.choices.items() if choice["source"] == GIVEN
        ]
        if given:
            lines.append(f"{GIVEN}: {', '.join(given)}")
        for method, names in (("sdr-cir", ("alpha", "beta")), ("xr", ("k_prime", "lambda", "kappa"))):
            chosen = ", ".join(f"{name} {self.values[name]:g}" for name in names)
            lines.append(
                f"{method}: {chosen}: {100 * self.best[method]:.2f} (usual {100 * self.usual[method]:.2f})"
            )
        if self.edges:
            lines.append(f"note: at the end of the grid: {', '.join(self.edges)}")
        lines.append(
            f"written to {MINI_SETTINGS.name}" if written else "not kept; --write makes it the mini profile's"
        )
        return "\n".join(lines)


class Judge:
    """The metric of rankings given as gallery positions, on the workbench's device. ``places`` are the
    positions that are ranked: :attr:`Workbench.places`, for R_subset@k :attr:`Workbench.members`."""

    def __init__(self, bench: Workbench, metric: str) -> None:
        family, _, cut = metric.partition("@")
        known = ("mAP", "R") if bench.members is None else ("mAP", "R", "R_subset")
        if family not in known or not cut.isascii() or not cut.isdigit() or int(cut) < 1:
            names = " or ".join(f"{name}@k" for name in known)
            raise InputError(
                f"metric {metric!r} cannot be tuned on; choose {names}, for instance {known[0]}@5"
            )
        if not all(query.targets for query in bench.queries):
            raise InputError(
                f"the answers of {bench.benchmark.name} {bench.benchmark.split} are not public; tune on val"
            )
        self.family, self.k = family, int(cut)
        self.places = bench.places
        if family == "R_subset" and bench.members is not None:
            self.places = bench.members
        places = bench.place_of
        self.relevant = torch.zeros(len(bench.queries), len(places), dtype=torch.bool, device=bench.device)
        for row, query in enumerate(bench.queries):
            wanted = query.targets if family == "mAP" else [query.target]
            self.relevant[row, [places[image] for image in wanted if image is not None]] = True
        self.most = self.relevant.sum(dim=1).clamp(max=self.k).double()

    def per_query(self, order: Tensor) -> Tensor:
        """AP@k or R@k of each query ``(Q,)`` float64; ``order`` ``(Q, >= k)`` holds gallery positions, best
        first."""
        hit = self.relevant.gather(1, order[:, : self.k]).double()
        if self.family != "mAP":
            return hit.amax(dim=1)
        ranks = torch.arange(1, hit.shape[1] + 1, device=hit.device)
        return (hit.cumsum(dim=1) / ranks * hit).sum(dim=1) / self.most

    def __call__(self, order: Tensor) -> float:
        return float(self.per_query(order).mean())


def sdr_grid(
    bench: Workbench,
    metric: str,
    alphas: Sequence[float] = ALPHAS,
    betas: Sequence[float] = BETAS,
    description: str = "selective",
) -> Tensor:
    """``metric`` of SDR-CIR for every pair, ``(len(alphas), len(betas))`` float64: the heat map of the
    notebooks. ``description`` is the setting of that name, "selective" or "plain".

    Three products serve all pairs: ``S_q`` is the weighted sum of ``S_d`` and ``S_r`` over the length of
    ``F_q``."""
    if bench.benchmark.categories:
        return _over_parts(bench, metric, lambda part, own: sdr_grid(part, own, alphas, betas, description))
    values = sdr_grid_per_query(bench, metric, alphas, betas, description)
    return torch.stack([torch.stack([pair.mean() for pair in row]) for row in values]).cpu()


def sdr_grid_per_query(
    bench: Workbench,
    metric: str,
    alphas: Sequence[float] = ALPHAS,
    betas: Sequence[float] = BETAS,
    description: str = "selective",
) -> Tensor:
    """The values behind `sdr_grid`, one a query: ``(len(alphas), len(betas), Q)`` float64; for a benchmark
    with one gallery."""
    judge = Judge(bench, metric)
    described = description_only.describe(bench, description)
    F_r, F_d, gallery = bench.reference_features, described.features, bench.gallery_features
    S_r, S_d = exact_scores(F_r, gallery), exact_scores(F_d, gallery)
    S_i = S_d - exact_scores(bench.modification_features, gallery)
    cosine = (F_r.double() * F_d.double()).sum(dim=1, keepdim=True)
    vague = torch.tensor(described.vague, device=S_r.device)[:, None]
    values = torch.zeros(len(alphas), len(betas), len(S_r), dtype=torch.float64, device=S_r.device)
    for row, alpha in enumerate(alphas):
        length = ((1 - alpha) ** 2 + alpha**2 + 2 * alpha * (1 - alpha) * cosine).clamp_min(1e-12).sqrt()
        S_q = ((1 - alpha) * S_d + alpha * S_r) / length
        for column, beta in enumerate(betas):
            scores = torch.where(vague, S_r, (1 + beta) * S_q - beta * S_i)
            values[row, column] = judge.per_query(
                judge.places.gather(1, _head(scores.gather(1, judge.places), judge.k))
            )
    return values


def weight_grid(bench: Workbench, metric: str, weights: Any, description: str = "selective") -> Tensor:
    """``metric`` of weighted means of (F_d, F_r, F_m) as queries, ``(P,)`` float64: the map over the triangle
    of notebook 03.

    ``weights`` ``(P, 3)``, the same for every query (`plots.triangle_grid` covers the triangle): its corners
    are description-only, image-only and text-only, (0, 1/2, 1/2) is image+text. A cosine of a sum is the sum
    of cosines over its length, so the three products of `sdr_grid` serve all of them."""
    if bench.benchmark.categories:
        return _over_parts(bench, metric, lambda part, own: weight_grid(part, own, weights, description))
    judge = Judge(bench, metric)
    described = description_only.describe(bench, description)
    gallery = bench.gallery_features
    S_d, S_r, S_m = (
        exact_scores(F, gallery)
        for F in (described.features, bench.reference_features, bench.modification_features)
    )
    vague = torch.tensor(described.vague, device=S_r.device)[:, None]
    values = []
    for d, r, m in torch.as_tensor(weights, dtype=torch.float64).tolist():
        scores = torch.where(vague & (d > 0), S_r, d * S_d + r * S_r + m * S_m)
        values.append(judge(judge.places.gather(1, _head(scores.gather(1, judge.places), judge.k))))
    return torch.tensor(values, dtype=torch.float64)


def chosen_on_few(values: Tensor, few: int, draws: int = 200, seed: int = 42) -> tuple[float, float]:
    """What it is worth to choose a setting on the queries that are reported: ``values`` ``(settings, Q)``.

    ``draws`` times, ``few`` queries are drawn, the setting that is best on them is chosen, and two means are
    noted: on these queries (the boast) and on all others (what holds). Returns their means. Raises
    :class:`InputError` unless both groups have a query."""
    count = values.shape[1]
    if not 0 < few < count:
        raise InputError(f"few = {few} is not valid: give 1 to {count - 1}, so that some of {count} are left")
    generator = torch.Generator().manual_seed(seed)
    boasts, holds = [], []
    for _ in range(draws):
        order = torch.randperm(count, generator=generator).to(values.device)
        ours, theirs = values[:, order[:few]].mean(dim=1), values[:, order[few:]].mean(dim=1)
        chosen = int(ours.argmax())
        boasts.append(float(ours[chosen]))
        holds.append(float(theirs[chosen]))
    return sum(boasts) / draws, sum(holds) / draws


def xr_grid(
    bench: Workbench,
    metric: str,
    k_primes: Sequence[int] = K_PRIMES,
    lambdas: Sequence[float] = LAMBDAS,
    kappas: Sequence[float] = KAPPAS,
) -> Tensor:
    """``metric`` of X^R for every setting, ``(len(k_primes), len(lambdas), len(kappas))`` float64.

    The candidates of all settings together are verified once. A k' above the gallery's size counts as all of
    it; the subset's members are all verified whatever k' is."""
    if bench.benchmark.categories:
        return _over_parts(bench, metric, lambda part, own: xr_grid(part, own, k_primes, lambdas, kappas))
    judge = Judge(bench, metric)
    sides = xr.Sides(text=True, vision=True)
    imagined = xr.imagine(bench, sides)
    captions = xr.gallery_captions(bench)
    S_t, S_v = xr.similarities(bench, imagined, captions)
    orders = [xr.coarse_among(S_t, S_v, judge.places, kappa, sides)[1] for kappa in kappas]
    if judge.family == "R_subset":
        k_primes = [judge.places.shape[1]] * len(k_primes)
    most = min(max(k_primes), judge.places.shape[1])
    union = [
        list(dict.fromkeys(place for order in orders for place in order[row, :most].tolist()))
        for row in range(len(bench.queries))
    ]
    asked = xr.ask(bench, imagined, sides)
    checked = xr.verify(bench, asked, union, captions, sides)
    correct = torch.zeros(2, *S_t.shape, dtype=torch.int64, device=S_t.device)
    for row, places in enumerate(union):
        correct[0, row, places] = torch.tensor(checked.text[row], device=S_t.device)
        correct[1, row, places] = torch.tensor(checked.vision[row], device=S_t.device)
    questions = torch.tensor(asked.counts, device=S_t.device)
    values = torch.zeros(len(k_primes), len(lambdas), len(kappas), dtype=torch.float64)
    for c, order in enumerate(orders):
        for a, k_prime in enumerate(k_primes):
            head = order[:, : min(k_prime, most)]
            text, vision = correct[0].gather(1, head), correct[1].gather(1, head)
            t, v = S_t.gather(1, head), S_v.gather(1, head)
            for b, lam in enumerate(lambdas):
                fine = rerank(text, vision, t, v, lam, questions=questions, positions=head)
                full = torch.cat([head.gather(1, fine.order), order[:, head.shape[1] :]], dim=1)
                values[a, b, c] = judge(full)
    return values


def _over_parts(bench: Workbench, metric: str, grid: Callable[[Workbench, str], Tensor]) -> Tensor:
    """A grid of FashionIQ: that of one category for ``dress/R@10``, the mean of all three for
    ``mean/R@10``."""
    name, _, own = metric.rpartition("/")
    if name not in (MEAN, *bench.parts):
        choices = ", ".join(f"{known}/R@10" for known in (MEAN, *bench.parts))
        raise InputError(f"metric {metric!r} cannot be tuned on; choose one such as {choices}")
    parts = bench.parts.values() if name == MEAN else [bench.parts[name]]
    return torch.stack([grid(part, own) for part in parts]).mean(dim=0)


def tune(bench: Workbench, metric: str | None = None) -> Tuned:
    """Both grids on ``bench``, whose split must be val; ``metric`` None is the benchmark's headline."""
    if bench.benchmark.split != "val":
        raise InputError(
            f"cir tune refuses split {bench.benchmark.split!r}: settings are chosen on val alone"
        )
    metric = metric or TABLE_METRICS[bench.benchmark.name][0]
    sdr = sdr_grid(bench, metric)
    fine = xr_grid(bench, metric)
    alpha, beta = _first_best(sdr)
    k_prime, lam, kappa = _first_best(fine)
    grids: dict[str, Sequence[float]] = {
        "alpha": ALPHAS, "beta": BETAS, "k_prime": K_PRIMES, "lambda": LAMBDAS, "kappa": KAPPAS,
    }  # fmt: skip
    places = {"alpha": alpha, "beta": beta, "k_prime": k_prime, "lambda": lam, "kappa": kappa}
    usual = bench.settings
    return Tuned(
        benchmark=bench.benchmark.name,
        split=bench.benchmark.split,
        queries=len(bench.queries),
        metric=metric,
        values={name: grids[name][places[name]] for name in SETTING_NAMES},
        best={"sdr-cir": float(sdr.max()), "xr": float(fine.max())},
        usual={
            "sdr-cir": float(sdr_grid(bench, metric, [usual["alpha"]], [usual["beta"]])),
            "xr": float(xr_grid(bench, metric, [int(usual["k_prime"])], [usual["lambda"]], [usual["kappa"]])),
        },
        edges=[name for name in SETTING_NAMES if places[name] == len(grids[name]) - 1],
        choices=bench.choices(),
        protocol=bench.benchmark.protocol.as_dict() | {"queries": len(bench.queries)},
    )


def write_settings(tuned: Tuned) -> None:
    """Keep ``tuned`` as the mini profile's settings of its benchmark (``cir_utils/mini/settings.json``)."""
    kept = read_mini_settings() | {tuned.benchmark: dict(tuned.values) | {"tuned_on": tuned.tuned_on}}
    try:
        write_json_atomic(MINI_SETTINGS, kept)
    except OSError as error:
        raise InputError(
            f"{MINI_SETTINGS.name} cannot be written ({error.strerror}); use a checkout of your own"
        ) from None


def _head(scores: Tensor, k: int) -> Tensor:
    """The first ``k`` places of ``rank_by(scores)`` without sorting whole rows (for fewer than 3k equal
    scores at the cut, beyond which the choice among equals is not the gallery's)."""
    places = scores.topk(min(4 * k, scores.shape[1]), dim=1).indices.sort(dim=1).values
    values = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    return places.gather(1, values.indices)[:, :k]


def _first_best(values: Tensor) -> tuple[int, ...]:
    """Where the largest value stands; of equal ones the first in row order, which is the smallest setting."""
    place = int((values.flatten() == values.max()).nonzero()[0])
    found = []
    for size in reversed(values.shape):
        found.append(place % size)
        place //= size
    return tuple(reversed(found))
