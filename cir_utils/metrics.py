"""The protocols' metrics, and the checks that come before any of them.

Rankings are `{query id: [image ids, best first]}`. Values are fractions at full precision; percent is for
tables. Image ids are compared as they are: integers for CIRCO, names elsewhere (`check_rankings` brings a
file's ids into that form).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cir_utils.errors import InputError

ImageId = int | str
Rankings = Mapping[str, Sequence[ImageId]]

CIRCO_KS = (5, 10, 25, 50)
SUBSET_KS = (1, 2, 3)
SHOWN = 5


class LazyRankings(Mapping[str, Sequence[ImageId]]):
    """Rankings by query id, each made a list when it is asked for.

    800 rankings of CIRCO's 123,403 images are 400 MB as gallery positions of four bytes and several GB as
    lists of Python objects. ``rows`` holds for every query id a function without arguments that gives its
    list; two accesses give two equal lists."""

    def __init__(self, rows: Mapping[str, Callable[[], Sequence[ImageId]]]) -> None:
        self._rows = dict(rows)

    def __getitem__(self, query: str) -> Sequence[ImageId]:
        return self._rows[query]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, query: object) -> bool:
        return query in self._rows  # Mapping's own form would make the list

    def __or__(self, other: LazyRankings) -> LazyRankings:
        return LazyRankings(self._rows | other._rows)


# --- checks -----------------------------------------------------------------------------------------------


def check_rankings(
    rankings: Any,
    queries: Collection[str],
    *,
    integer_ids: bool,
    gallery: Collection[ImageId] | None = None,
    at_least: int = 1,
    removed: Mapping[str, ImageId] | None = None,
) -> dict[str, list[ImageId]]:
    """Check rankings as read from a file and return them in the order of `queries`, with keys as strings.

    Every query of `queries` must be there and no other; every value must be a list of at least `at_least` ids
    (fewer only where the whole gallery is shorter), each once; all ids must be integers (`integer_ids`) or
    all names; all must be in `gallery` where it is given. Where ids are integers, `12`, `"12"` and `"000012"`
    are the same image when repeats are counted. The image that `removed` names for a query is taken out of
    its list before its length is looked at (CIRR's reference).

    Raises `InputError` that names the first query and image at fault.
    """
    if not isinstance(rankings, Mapping):
        raise InputError(
            f"rankings: expected a JSON object {{query id: [image ids, best first]}}, got "
            f"{type(rankings).__name__}"
        )
    by_key: dict[str, Any] = {}
    for key, ranking in rankings.items():
        if str(key) in by_key:
            raise InputError(f"query {str(key)!r} occurs twice, as a number and as text; keep one of them")
        by_key[str(key)] = ranking
    wanted = list(dict.fromkeys(queries))
    check_queries(by_key, wanted)
    known = None if gallery is None else frozenset(gallery)
    most = at_least if known is None else len(known)
    checked = {}
    for query in wanted:
        own = (removed or {}).get(query)
        enough = min(at_least, most - (known is not None and own in known))
        checked[query] = _check_ranking(query, by_key[query], integer_ids, known, enough, own)
    return checked


def check_queries(found: Mapping[str, Any], wanted: Sequence[str]) -> None:
    """`found` has an entry for every query of `wanted` and no other; else an `InputError` names the first."""
    missing = [query for query in wanted if query not in found]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(wanted)} queries are missing ({_some(missing)}); "
            "rank the gallery for every query of the split"
        )
    extra = sorted(set(found) - set(wanted))
    if extra:
        raise InputError(
            f"{len(extra)} queries do not belong to this split ({_some(extra)}); check benchmark and split, "
            "or remove them"
        )


def _check_ranking(
    query: str,
    ranking: Any,
    integer_ids: bool,
    known: frozenset[ImageId] | None,
    enough: int,
    removed: ImageId | None,
) -> list[ImageId]:
    if not isinstance(ranking, (list, tuple)):
        raise InputError(f"query {query}: expected a list of image ids, got {type(ranking).__name__}")
    seen: dict[ImageId, ImageId] = {}
    for image in ranking:
        if isinstance(image, bool) or not isinstance(image, (int, str)):
            raise InputError(f"query {query}: {image!r} is not an image id; write {_form(integer_ids)}")
        plain = plain_id(image) if integer_ids else image
        if plain in seen:
            both = f" (as {seen[plain]!r} and {image!r})" if repr(seen[plain]) != repr(image) else ""
            raise InputError(f"query {query}: image {plain} is listed twice{both}; list every image once")
        seen[plain] = image
    for image in ranking:
        if isinstance(image, int) != integer_ids:
            raise InputError(
                f"query {query}: image id {image!r} has the wrong type; write {_form(integer_ids)} throughout"
            )
        if known is not None and image not in known:
            raise InputError(
                f"query {query}: image {image!r} is not in the gallery; check benchmark, split and id"
            )
    left = [image for image in ranking if removed is None or image != removed]
    if len(left) < enough:
        without = " (without its reference)" if len(left) < len(ranking) else ""
        raise InputError(
            f"query {query}: {len(left)} images are listed{without} where {enough} or more are needed; list "
            "more"
        )
    return left


def plain_id(image: ImageId) -> ImageId:
    """The image that an id means: digits in text are their number, so that `"000012"` is 12. (Python reads no
    number of thousands of digits, and no image has one.)"""
    digits = isinstance(image, str) and len(image) < 100 and image.isascii() and image.isdigit()
    return int(image) if digits else image


def _form(integer_ids: bool) -> str:
    return "integers (12, not '000000000012')" if integer_ids else "image names as text"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def check_permutations(
    rankings: Rankings,
    gallery: Collection[ImageId],
    targets: Mapping[str, Collection[ImageId]],
    removed: Mapping[str, Collection[ImageId]] | None = None,
) -> None:
    """Check full rankings before any metric of a run: every one is a permutation of `gallery` (without the
    `removed` images of its query, such as CIRR's reference), and holds all ground truths of its query.

    Raises `InputError` that names the first query and image at fault.
    """
    check_queries(rankings, list(targets))
    everything = frozenset(gallery)
    for query, relevant in targets.items():
        ranking, expected = rankings[query], everything - frozenset((removed or {}).get(query, ()))
        found = frozenset(ranking)
        if len(found) != len(ranking):
            twice = next(image for i, image in enumerate(ranking) if image in ranking[:i])
            raise InputError(
                f"query {query}: image {twice!r} is ranked twice; rank every image of the gallery once"
            )
        foreign = [image for image in ranking if image not in expected]
        if foreign:
            raise InputError(
                f"query {query}: image {foreign[0]!r} is not in the gallery; rank the gallery's images alone"
            )
        left_out = [image for image in gallery if image in expected and image not in found]
        if left_out:
            raise InputError(f"query {query}: image {left_out[0]!r} is not ranked; rank every image once")
        lost = [image for image in relevant if image not in found]
        if lost:
            raise InputError(
                f"query {query}: its ground truth {lost[0]!r} is not in the gallery; check the gallery list"
            )


# --- metrics ----------------------------------------------------------------------------------------------


def hits(ranking: Sequence[ImageId], relevant: Collection[ImageId]) -> np.ndarray:
    """Which ranks hold a relevant image: booleans `(len(ranking),)`."""
    wanted = frozenset(relevant)
    return np.fromiter((image in wanted for image in ranking), dtype=bool, count=len(ranking))


def average_precision(hit: np.ndarray, relevant: int, k: int) -> float:
    """CIRCO's AP@k: the precision at each of the first `k` ranks that is a hit, summed, over min(`relevant`,
    k). In [0, 1].

    `relevant` is the number of ground truths (at least 1). A ranking shorter than k counts as misses beyond
    its end. This is the official evaluator's rule: with fewer ground truths than k, a perfect head is 1.
    """
    head = hit[:k].astype(np.float64)
    return float((head.cumsum() / np.arange(1, len(head) + 1) * head).sum() / min(relevant, k))


def recall(hit: np.ndarray, k: int) -> float:
    """R@k for one query and one target: 1.0 when `hit` (booleans by rank) is true within the first `k`, else
    0.0.
    """
    return float(hit[:k].any())


def recall_per_query(
    rankings: Rankings, target: Mapping[str, ImageId], ks: Sequence[int]
) -> dict[str, np.ndarray]:
    """`R@k` for each k of `ks`: 0.0 or 1.0 per query, `(Q,)` float64 in the order of `target` (one target a
    query).

    Raises `InputError` for k under 1 and for a query that is not ranked.
    """
    _check_ks(ks)
    most = max(ks)
    hit = [hits(_ranking(rankings, query)[:most], (image,)) for query, image in target.items()]
    return {f"R@{k}": np.array([recall(h, k) for h in hit], dtype=np.float64) for k in ks}


def subset_recall_per_query(
    subsets: Rankings, target: Mapping[str, ImageId], ks: Sequence[int] = SUBSET_KS
) -> dict[str, np.ndarray]:
    """CIRR's `R_subset@k`: as `recall_per_query` for rankings of the subset's members alone."""
    found = recall_per_query(subsets, target, ks)
    return {f"R_subset@{k}": found[f"R@{k}"] for k in ks}


def in_order(ranking: Sequence[ImageId], members: Collection[ImageId]) -> list[ImageId] | None:
    """The `members` in the order of `ranking`; None where it does not hold them all."""
    wanted = frozenset(members)
    found = [image for image in ranking if image in wanted]
    return found if len(found) == len(wanted) else None


def category_means(per_query: Mapping[str, np.ndarray], categories: Sequence[str]) -> dict[str, float]:
    """FashionIQ's figures: `<category>/M`, the mean of metric M over the category's queries, and `mean/M`,
    the plain mean of those.

    `categories` names the category of every query, in the order of the values `(Q,)`. Raises `InputError`
    when there is no query.
    """
    groups = {name: np.array([own == name for own in categories]) for name in dict.fromkeys(categories)}
    found: dict[str, float] = {}
    for group, own in groups.items():
        found |= means({f"{group}/{name}": values[own] for name, values in per_query.items()})
    if not groups:
        return means(per_query)
    for name in per_query:
        found[f"mean/{name}"] = float(np.mean([found[f"{group}/{name}"] for group in groups]))
    return found


def circo_per_query(
    rankings: Rankings,
    targets: Mapping[str, Collection[ImageId]],
    target: Mapping[str, ImageId] | None = None,
    ks: Sequence[int] = CIRCO_KS,
) -> dict[str, np.ndarray]:
    """CIRCO's metrics query by query: `mAP@k` holds AP@k, `R@k` holds 0 or 1; each `(Q,)` float64 in the
    order of `targets`.

    `targets` are all ground truths of a query; `target` is the single one that recall counts (CIRCO's
    `target_img_id`; without it there is no recall). Raises `InputError` for k under 1, a query that is not
    ranked, or one without ground truths.
    """
    _check_ks(ks)
    found: dict[str, np.ndarray] = {}
    hit = []
    for query, relevant in targets.items():
        if not relevant:
            raise InputError(
                f"query {query}: no ground truths; this split's answers are not public, use another split"
            )
        hit.append((hits(_ranking(rankings, query)[: max(ks)], relevant), len(frozenset(relevant))))
    for k in ks:
        found[f"mAP@{k}"] = np.array([average_precision(h, count, k) for h, count in hit], dtype=np.float64)
    if target is not None:
        found |= recall_per_query(rankings, {query: target[query] for query in targets}, ks)
    return found


def circo_metrics(
    rankings: Rankings,
    targets: Mapping[str, Collection[ImageId]],
    target: Mapping[str, ImageId] | None = None,
    ks: Sequence[int] = CIRCO_KS,
) -> dict[str, float]:
    """CIRCO's metrics, fractions in [0, 1]: `mAP@k`, and `R@k` where `target` is given: means over the
    queries of `targets`.

    Equal to the official evaluator (Baldrati et al., ICCV 2023). Raises as `circo_per_query`, and for no
    query at all.
    """
    return means(circo_per_query(rankings, targets, target, ks))


def means(per_query: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The mean over queries of each metric. Raises `InputError` when there is no query (an empty mean is not
    0).
    """
    for name, values in per_query.items():
        if len(values) == 0:
            raise InputError(f"{name}: there is no query to average over; choose a split with queries")
    return {name: float(values.mean()) for name, values in per_query.items()}


def aspect_map(
    rankings: Rankings,
    targets: Mapping[str, Collection[ImageId]],
    aspects: Mapping[str, Collection[str]],
    k: int = 10,
) -> dict[str, float]:
    """mAP@k over the queries of each semantic aspect (CIRCO's `semantic_aspects`; the official evaluator
    prints k = 10).

    `aspects` are the aspects of each query; a query counts for every one of them. The keys come sorted;
    aspects without a query are absent. Raises as `circo_per_query`.
    """
    values = circo_per_query(rankings, targets, None, (k,))[f"mAP@{k}"]
    groups: dict[str, list[float]] = {}
    for query, value in zip(targets, values, strict=True):
        for aspect in aspects.get(query, ()):
            groups.setdefault(aspect, []).append(float(value))
    return {aspect: float(np.mean(groups[aspect])) for aspect in sorted(groups)}


def _check_ks(ks: Sequence[int]) -> None:
    for k in ks:
        if k < 1:
            raise InputError(f"k = {k}: a metric's cut-off is at least 1")


def _ranking(rankings: Rankings, query: str) -> Sequence[ImageId]:
    if query not in rankings:
        raise InputError(f"query {query} is not ranked; rank the gallery for every query of the split")
    return rankings[query]
