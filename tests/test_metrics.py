"""CIRCO's metrics against hand-computed lists and a brute-force second opinion; rankings files that must be
refused.
"""

import itertools
import json
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cir_utils.errors import InputError
from cir_utils.metrics import (
    aspect_map,
    average_precision,
    check_permutations,
    check_rankings,
    circo_metrics,
    circo_per_query,
    hits,
    recall_per_query,
)


def brute_ap(ranking, relevant, k):
    """AP@k straight from its definition, in fractions."""
    relevant = set(relevant)
    total = Fraction(0)
    for rank in range(1, min(k, len(ranking)) + 1):
        if ranking[rank - 1] in relevant:
            total += Fraction(sum(image in relevant for image in ranking[:rank]), rank)
    return total / min(len(relevant), k)


def one(ranking, relevant, k):
    return circo_metrics({"0": ranking}, {"0": relevant}, None, (k,))[f"mAP@{k}"]


# --- values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "places, relevant, k, want",
    [
        ([1], 1, 5, 1),
        ([5], 1, 5, 1 / 5),
        ([6], 1, 5, 0),  # one past the cut
        ([6], 1, 10, 1 / 6),
        ([1, 2, 3, 4, 5], 5, 5, 1),
        ([1, 2, 3, 4, 5, 6], 6, 5, 1),  # more ground truths than k: divided by k
        ([2, 4], 2, 5, (1 / 2 + 2 / 4) / 2),
        ([2, 4, 6], 3, 5, (1 / 2 + 2 / 4) / 3),  # the third lies past the cut and still counts below the line
        ([10], 14, 10, (1 / 10) / 10),
        ([1, 10], 2, 10, (1 + 2 / 10) / 2),
        ([11], 1, 10, 0),
        ([25], 1, 25, 1 / 25),
        ([50], 3, 50, 1 / 150),
        ([], 2, 50, 0),
    ],
)
def test_average_precision_around_each_cut(places, relevant, k, want):
    ranking = [100 + i for i in range(60)]
    truths = [ranking[place - 1] for place in places] + [900 + i for i in range(relevant - len(places))]
    assert one(ranking, truths, k) == pytest.approx(want, abs=1e-15)
    assert float(brute_ap(ranking, truths, k)) == pytest.approx(want, abs=1e-15)


def test_limits():
    truths = [3, 1, 2]
    assert one([1, 2, 3, 4, 5], truths, 5) == 1
    assert one([2, 3, 1], truths, 50) == 1  # a short list
    assert one([4, 5], truths, 5) == 0
    assert one([], truths, 5) == 0


def test_recall_counts_the_target_alone():
    rankings = {"a": [1, 2, 3, 4, 5, 6], "b": [6, 5, 4, 3, 2, 1]}
    found = circo_metrics(rankings, {"a": (1, 6), "b": (1, 6)}, {"a": 6, "b": 6}, (1, 5, 6))
    assert found == {
        "mAP@1": 1.0,
        "mAP@5": 0.5,
        "mAP@6": pytest.approx((1 + 1 / 3) / 2),
        "R@1": 0.5,
        "R@5": 0.5,
        "R@6": 1.0,
    }
    assert "R@1" not in circo_metrics(rankings, {"a": (1,), "b": (1,)}, None, (1,))


def test_per_query_values_follow_the_order_of_the_targets():
    rankings = {"1": [7, 8, 9], "0": [9, 8, 7]}
    found = circo_per_query(rankings, {"0": (9,), "1": (9, 8)}, {"0": 9, "1": 7}, (1, 2))
    assert {name: values.tolist() for name, values in found.items()} == {
        "mAP@1": [1, 0], "mAP@2": [1, 0.25], "R@1": [1, 1], "R@2": [1, 1],
    }  # fmt: skip
    assert recall_per_query(rankings, {"1": 8, "0": 7}, (1, 2, 3))["R@2"].tolist() == [1, 0]


def test_aspects_average_over_their_own_queries():
    rankings = {"0": [1, 2], "1": [2, 1], "2": [3, 4]}
    targets = {"0": (1,), "1": (1,), "2": (1,)}
    aspects = {"0": ("viewpoint", "addition"), "1": ("addition",), "2": ()}
    assert aspect_map(rankings, targets, aspects) == {"addition": 0.75, "viewpoint": 1.0}
    assert list(aspect_map(rankings, targets, aspects)) == ["addition", "viewpoint"]
    assert aspect_map(rankings, targets, {}) == {}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    ranking=st.lists(st.integers(0, 30), unique=True, max_size=30),
    relevant=st.sets(st.integers(0, 40), min_size=1, max_size=14),
    k=st.integers(1, 35),
)
def test_average_precision_against_brute_force(ranking, relevant, k):
    assert one(ranking, relevant, k) == pytest.approx(float(brute_ap(ranking, relevant, k)), abs=1e-14)
    target = min(relevant)
    recalled = circo_metrics({"0": ranking}, {"0": relevant}, {"0": target}, (k,))[f"R@{k}"]
    assert recalled == float(target in ranking[:k])


def test_every_order_of_five_with_two_ground_truths():
    best = {}
    for order in itertools.permutations(range(5)):
        hit = hits(order, (0, 1))
        best[tuple(hit)] = average_precision(hit, 2, 5)
    assert max(best.values()) == 1 and best[(True, True, False, False, False)] == 1
    assert min(best.values()) == pytest.approx((1 / 4 + 2 / 5) / 2) == best[(False, False, False, True, True)]
    assert len(best) == 10 and len(set(best.values())) == 10


def test_impossible_questions_raise():
    with pytest.raises(InputError, match="query 3: no ground truths"):
        circo_metrics({"3": [1]}, {"3": ()})
    with pytest.raises(InputError, match="query 3 is not ranked"):
        circo_metrics({"4": [1]}, {"3": (1,)})
    with pytest.raises(InputError, match="k = 0"):
        circo_metrics({"3": [1]}, {"3": (1,)}, None, (0,))
    with pytest.raises(InputError, match="no query"):
        circo_metrics({}, {})


# --- the real annotations ---------------------------------------------------------------------------------

REAL = os.environ.get("CIR_REAL_ANNOTATIONS")
needs_real = pytest.mark.skipif(not REAL, reason="CIR_REAL_ANNOTATIONS names no folder of real annotations")
#: The official evaluator's figures in percent: mAP@1, 5, 10, 25, 50, then recall at the same cut-offs.
OFFICIAL = {
    "submission_examples/submission_val": (0.45454545, 0.48611111, 0.51776696, 0.54003545, 0.60203915,
                                           0.0, 0.90909091, 0.90909091, 1.36363636, 3.63636364),
    "derived/val_oracle": (100, 100, 100, 100, 100, 100, 100, 100, 100, 100),
    "derived/val_alternate": (0, 33.515152, 45.406295, 49.967532, 50.0, 0, 100, 100, 100, 100),
    "derived/val_reversed_gt_late": (0, 0, 14.816254, 24.4118, 24.4118, 0, 0, 54.545455, 100, 100),
    "derived/val_example_boosted": (16.818182, 15.686616, 15.958769, 18.208224, 18.208224,
                                    16.818182, 83.636364, 100, 100, 100),
}  # fmt: skip
ASPECTS = {
    "submission_examples/submission_val": (0.0, 0.08705357, 0.0, 0.91970121, 0.02422481, 1.05,
                                           0.61834592, 0.18075397, 0.61728395),
    "derived/val_alternate": (46.46879, 45.275298, 42.044596, 44.471122, 44.833195, 44.545635,
                              44.979191, 45.997024, 45.443857),
}  # fmt: skip
ASPECT_NAMES = (
    "cardinality",
    "addition",
    "negation",
    "direct_addressing",
    "compare_change",
    "comparative_statement",
    "statement_with_conjunction",
    "spatial_relations_background",
    "viewpoint",
)


def real(name):
    return json.loads((Path(str(REAL)) / "circo" / f"{name}.json").read_text(encoding="utf-8"))


@needs_real
@pytest.mark.parametrize("name", OFFICIAL)
def test_official_figures_of_circo_val(name):
    annotations = real("annotations/val")
    queries = {str(query["id"]): query for query in annotations}
    rankings = check_rankings(real(name), queries.keys(), integer_ids=True, at_least=50)
    targets = {key: query["gt_img_ids"] for key, query in queries.items()}
    found = circo_metrics(
        rankings, targets, {key: q["target_img_id"] for key, q in queries.items()}, (1, 5, 10, 25, 50)
    )
    assert [100 * value for value in found.values()] == pytest.approx(list(OFFICIAL[name]), abs=1e-6)
    if name in ASPECTS:
        by_aspect = aspect_map(rankings, targets, {key: q["semantic_aspects"] for key, q in queries.items()})
        assert [100 * by_aspect[aspect] for aspect in ASPECT_NAMES] == pytest.approx(
            list(ASPECTS[name]), abs=1e-6
        )


# --- checks of files --------------------------------------------------------------------------------------

QUERIES = ("0", "1")
GALLERY = range(100)


def checked(rankings, **change):
    return check_rankings(rankings, QUERIES, **{"integer_ids": True, "gallery": GALLERY} | change)


def test_good_rankings_come_back_in_query_order():
    assert list(checked({"1": [3, 4], "0": [5]}).items()) == [("0", [5]), ("1", [3, 4])]
    assert checked({0: [5], 1: (3, 4)}) == {"0": [5], "1": [3, 4]}
    names = {"0": ["b", "a"], "1": ["c"]}
    assert check_rankings(names, QUERIES, integer_ids=False, gallery="abc") == names
    assert checked({"0": [5], "1": [1000]}, gallery=None)["1"] == [1000]  # unknown gallery: cannot be checked


@pytest.mark.parametrize(
    "rankings, said",
    [
        ([[1]], "expected a JSON object"),
        ({"0": [1]}, r"1 of 2 queries are missing \(1\)"),
        ({}, r"2 of 2 queries are missing \(0, 1\)"),
        ({"0": [1], "1": [1], "2": [1]}, r"do not belong to this split \(2\)"),
        ({"0": [1], "1": [1], "01": [1]}, r"do not belong to this split \(01\)"),
        ({"0": [1], 0: [2], "1": [1]}, "query '0' occurs twice"),
        ({"0": [1], "1": 7}, "query 1: expected a list of image ids, got int"),
        ({"0": [1], "1": "12"}, "query 1: expected a list of image ids, got str"),
        ({"0": [1, 2, 1], "1": [1]}, "query 0: image 1 is listed twice; list"),
        ({"0": [1], "1": [12, "12"]}, r"query 1: image 12 is listed twice \(as 12 and '12'\)"),
        ({"0": [1], "1": ["000012", 12]}, r"query 1: image 12 is listed twice \(as '000012' and 12\)"),
        ({"0": [1], "1": ["12", "000012"]}, r"query 1: image 12 is listed twice \(as '12' and '000012'\)"),
        ({"0": [1], "1": [12, "13"]}, "query 1: image id '13' has the wrong type; write integers"),
        ({"0": ["1"], "1": ["12"]}, "query 0: image id '1' has the wrong type"),
        ({"0": ["000000000001"], "1": [1]}, "query 0: image id '000000000001' has the wrong type"),
        ({"0": [1], "1": [True]}, "query 1: True is not an image id"),
        ({"0": [1], "1": [1.0]}, "query 1: 1.0 is not an image id"),
        ({"0": [1], "1": [None]}, "query 1: None is not an image id"),
        ({"0": [1], "1": [[1]]}, "is not an image id"),
        ({"0": [1], "1": [100]}, "query 1: image 100 is not in the gallery"),
        ({"0": [1], "1": [-1]}, "query 1: image -1 is not in the gallery"),
        ({"0": [1], "1": []}, "query 1: 0 images are listed where 1 or more are needed"),
    ],
)
def test_bad_rankings_are_refused_by_name(rankings, said):
    with pytest.raises(InputError, match=said) as caught:
        checked(rankings)
    assert "\n" not in str(caught.value)


def test_names_refuse_integers_and_short_lists_are_refused():
    with pytest.raises(InputError, match="query 1: image id 7 has the wrong type; write image names"):
        check_rankings({"0": ["7a"], "1": [7]}, QUERIES, integer_ids=False)
    with pytest.raises(InputError, match="query 0: 3 images are listed where 50 or more"):
        checked({"0": [1, 2, 3], "1": list(range(60))}, at_least=50)
    assert checked({"0": [1, 2, 3], "1": [3, 2, 1]}, at_least=50, gallery={1, 2, 3})["0"] == [
        1,
        2,
        3,
    ]  # all there is


def test_many_missing_queries_are_cut_short():
    with pytest.raises(InputError, match=r"9 of 9 queries are missing \(0, 1, 2, 3, 4, \.\.\.\)"):
        check_rankings({}, [str(i) for i in range(9)], integer_ids=True)


def test_full_rankings_are_permutations_that_find_every_ground_truth():
    targets = {"q": (2, 3)}
    check_permutations({"q": [3, 1, 2]}, [1, 2, 3], targets)
    check_permutations({"q": [3, 2]}, [1, 2, 3], targets, removed={"q": (1,)})
    for ranking, gallery, removed, said in [
        ([3, 1, 2, 3], [1, 2, 3], None, "query q: image 3 is ranked twice"),
        ([3, 2], [1, 2, 3], None, "query q: image 1 is not ranked"),
        ([3, 1, 2, 4], [1, 2, 3], None, "query q: image 4 is not in the gallery"),
        ([3, 1, 2], [1, 2, 3], {"q": (1,)}, "query q: image 1 is not in the gallery"),
        ([1, 2], [1, 2], None, "query q: its ground truth 3 is not in the gallery"),
    ]:
        with pytest.raises(InputError, match=said):
            check_permutations({"q": ranking}, gallery, targets, removed)
    with pytest.raises(InputError, match="missing"):
        check_permutations({}, [1], targets)


def test_hits_are_booleans_by_rank():
    assert hits([4, 2, 9], {9, 4}).tolist() == [True, False, True] and hits([], {1}).dtype == np.bool_
