from __future__ import annotations

import json

import pytest

from cir_utils.benchmarks import load_benchmark
from cir_utils.errors import InputError
from cir_utils.evaluation import evaluate_file, score_rankings

KS = (1, 5, 10, 25, 50)
ASPECTS = (
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
# The official evaluator's figures (src/evaluation.py of miccunifi/CIRCO at 267b5c9), in percent:
# mAP@1..50, R@1..50, semantic mAP@10 in the order of ASPECTS. The first is the published example submission.
OFFICIAL = {
    "submission_examples/submission_val": (
        (0.45454545, 0.48611111, 0.51776696, 0.54003545, 0.60203915),
        (0, 0.90909091, 0.90909091, 1.36363636, 3.63636364),
        (0, 0.08705357, 0, 0.91970121, 0.02422481, 1.05, 0.61834592, 0.18075397, 0.61728395),
    ),
    "derived/val_oracle": ((100,) * 5, (100,) * 5, (100,) * 9),
    "derived/val_alternate": (
        (0, 33.515152, 45.406295, 49.967532, 50.0),
        (0, 100, 100, 100, 100),
        (46.46879, 45.275298, 42.044596, 44.471122, 44.833195, 44.545635, 44.979191, 45.997024, 45.443857),
    ),
    "derived/val_reversed_gt_late": (
        (0, 0, 14.816254, 24.4118, 24.4118),
        (0, 0, 54.545455, 100, 100),
        (15.029378, 14.801769, 13.691977, 14.35859, 14.751196, 13.714685, 14.532457, 15.043998, 15.193579),
    ),
    "derived/val_example_boosted": (
        (16.818182, 15.686616, 15.958769, 18.208224, 18.208224),
        (16.818182, 83.636364, 100, 100, 100),
        (19.09674, 11.942692, 9.646007, 14.983032, 15.127061, 19.230741, 16.203147, 17.666204, 15.990324),
    ),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_official_evaluators_figures(real_annotations, name):
    root = real_annotations / "circo"
    result = evaluate_file(root / f"{name}.json", "circo", "val", root)
    precision, recall, semantic = OFFICIAL[name]
    expected = {f"mAP@{k}": value for k, value in zip(KS, precision, strict=True)}
    expected |= {f"R@{k}": value for k, value in zip(KS, recall, strict=True)}
    expected |= {f"{aspect}/mAP@10": value for aspect, value in zip(ASPECTS, semantic, strict=True)}
    assert result["metrics"].keys() == expected.keys()
    for key, value in expected.items():
        assert 100 * result["metrics"][key] == pytest.approx(value, abs=1e-6), key
    assert (result["benchmark"], result["split"]) == ("circo", "val")
    assert result["protocol"]["queries"] == 220
    assert result["protocol"]["gallery_size"] is None
    assert "accepted unchecked" in result["notes"][0]
    json.dumps(result, allow_nan=False)


def test_the_real_test_split_names_the_submission_writer(real_annotations):
    root = real_annotations / "circo"
    with pytest.raises(
        InputError, match="answers of circo test are not public.*`cir submit RUN --to circo`.*--split val"
    ):
        evaluate_file(root / "submission_examples" / "submission_test.json", "circo", "test", root)


def row(query_id, **changes):
    """An entry of val.json: the target is image 10, the other ground truth image 20."""
    return {
        "id": query_id,
        "reference_img_id": 1000 + query_id,
        "relative_caption": "is red",
        "shared_concept": "a boat",
        "target_img_id": 10,
        "gt_img_ids": [10, 20],
        "semantic_aspects": ["addition"],
        **changes,
    }


@pytest.fixture
def root(tmp_path):
    """Annotations of 220 queries, numbered as CIRCO's val, and no image list."""
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "val.json").write_text(json.dumps([row(i) for i in range(220)]))
    return tmp_path


@pytest.fixture
def table():
    """A valid rankings file for ``root``."""
    return {str(query): [10, 20, *range(100 + query, 148 + query)] for query in range(220)}


def drop(table):
    del table["219"]


def first_hundred(table):
    for key in list(table)[100:]:
        del table[key]


def cut(table):
    for key in table:
        table[key] = table[key][:3]


def as_text(table):
    table["7"] = [str(image) for image in table["7"]]


def padded(table):
    table["7"] = [f"{image:012d}" for image in table["7"]]


def some_padded(table):
    table["7"][1] = f"{table['7'][1]:012d}"


def file_name(table):
    table["7"][1] = "000000123456.jpg"


def duplicate(table):
    table["130"][9] = table["130"][3]


def duplicate_as_text(table):
    table["130"][9] = str(table["130"][3])


def duplicate_padded(table):
    table["130"][9] = f"{table['130'][3]:012d}"


# What the official evaluator accepts, or answers with a mAP over 100, and what users have sent to the server.
ODD = {
    "a query is missing": (drop, "1 of 220 queries are missing (219)"),
    "a partial file": (first_hundred, "120 of 220 queries are missing (100, 101, 102, 103, 104, ...)"),
    "an extra query": (lambda t: t.update({"220": t["0"]}), "1 queries do not belong to this split (220)"),
    "a padded query id": (lambda t: t.update({"07": t.pop("7")}), "1 of 220 queries are missing (7)"),
    "three images a query": (cut, "query 0: 3 images are listed where 50 or more are needed"),
    "one image less": (lambda t: t["3"].pop(), "query 3: 49 images are listed where 50 or more are needed"),
    "ids as text": (as_text, "query 7: image id"),
    "zero-padded ids": (padded, "query 7: image id"),
    "one zero-padded id": (some_padded, "query 7: image id"),
    "a file name": (file_name, "query 7: image id '000000123456.jpg' has the wrong type"),
    "a repeat": (duplicate, "query 130: image"),
    "a repeat as text": (duplicate_as_text, "query 130: image"),
    "a repeat with zeros": (duplicate_padded, "query 130: image"),
    "a fraction": (lambda t: t["7"].__setitem__(1, 5.0), "query 7: 5.0 is not an image id"),
    "true": (lambda t: t["7"].__setitem__(1, True), "query 7: True is not an image id"),
    "null": (lambda t: t["7"].__setitem__(1, None), "query 7: None is not an image id"),
    "below zero": (lambda t: t["7"].__setitem__(1, -1), "query 7: -1 is not an image id"),
    "no list": (lambda t: t.__setitem__("7", "1 2 3"), "query 7: expected a list of image ids"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_refused_with_one_clear_line(root, table, name):
    change, expected = ODD[name]
    change(table)
    path = root / "rankings.json"
    path.write_text(json.dumps(table))
    with pytest.raises(InputError) as caught:
        evaluate_file(path, "circo", "val", root)
    message = str(caught.value)
    assert expected in message
    assert message.startswith(f"rankings file {path}: ")
    assert "\n" not in message and len(message.removeprefix(f"rankings file {path}: ")) < 200


def test_the_file_that_the_odd_ones_are_made_of_is_accepted(root, table):
    (root / "rankings.json").write_text(json.dumps(table))
    assert evaluate_file(root / "rankings.json", "circo", "val", root)["metrics"]["mAP@5"] == 1


def test_files_that_are_no_rankings(root):
    path = root / "x.json"
    for content, expected in (
        ("[]", "expected a JSON object"),
        ("{", "not valid JSON"),
        ("{}", "220 of 220 queries"),
        ('{"0": [1], "0": [2]}', "'0' occurs twice"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=expected):
            evaluate_file(path, "circo", "val", root)
    with pytest.raises(InputError, match="rankings file .* does not exist"):
        evaluate_file(root / "none.json", "circo", "val", root)
    with pytest.raises(InputError, match="is a folder"):
        evaluate_file(root, "circo", "val", root)


@pytest.fixture
def small(tmp_path):
    """A benchmark of two queries and a listed gallery of sixty images."""
    rows = [
        row(i, reference_img_id=1 + i, semantic_aspects=["addition", "negation"][: 2 - i]) for i in range(2)
    ]
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "val.json").write_text(json.dumps(rows))
    listing = tmp_path / "COCO2017_unlabeled" / "annotations" / "image_info_unlabeled2017.json"
    listing.parent.mkdir(parents=True)
    listing.write_text(json.dumps({"images": [{"id": i} for i in range(60)]}))
    return tmp_path


def evaluate(root, table):
    (root / "rankings.json").write_text(json.dumps(table))
    return evaluate_file(root / "rankings.json", "circo", "val", root)


def test_metrics_by_hand_with_a_known_gallery(small):
    others = [i for i in range(60) if i not in (10, 20)]
    rankings = {
        "0": [*others[:2], 10, *others[2:], 20],  # target at rank 3, the other ground truth at 60
        "1": [20, *others[:5], 10, *others[5:]],  # ground truths at ranks 1 and 7, the target at 7
    }
    result = evaluate(small, rankings)
    metrics = result["metrics"]
    assert metrics["mAP@1"] == pytest.approx((0 + 1) / 2)
    assert metrics["mAP@5"] == pytest.approx((1 / 3 / 2 + 1 / 2) / 2)
    assert metrics["mAP@10"] == pytest.approx((1 / 3 / 2 + (1 + 2 / 7) / 2) / 2)
    assert metrics["mAP@50"] == pytest.approx((1 / 3 / 2 + (1 + 2 / 7) / 2) / 2)
    assert (metrics["R@1"], metrics["R@5"], metrics["R@10"]) == (0, 0.5, 1)
    assert metrics["negation/mAP@10"] == pytest.approx(1 / 6)
    assert metrics["addition/mAP@10"] == metrics["mAP@10"]
    assert result["protocol"]["gallery_size"] == 60
    assert result["notes"] == ["2 queries where the published val split has 220"]


def test_foreign_ids_are_refused_where_the_gallery_is_known(small):
    table = {"0": list(range(50)), "1": [*range(1, 50), 60]}
    with pytest.raises(InputError, match="query 1: image 60 is not in the gallery"):
        evaluate(small, table)


def test_lists_cut_at_fifty_are_scored_as_full_ones(small):
    full = {"0": list(range(60)), "1": list(range(59, -1, -1))}
    cut_at_fifty = {key: ranking[:50] for key, ranking in full.items()}
    assert evaluate(small, full)["metrics"] == evaluate(small, cut_at_fifty)["metrics"]


def test_a_limited_run_is_scored_on_the_queries_it_has(small):
    bench = load_benchmark("circo", "val", small, need_images=False)
    metrics = score_rankings(bench, {"1": [10, 20, *(i for i in range(60) if i not in (10, 20))]})
    assert metrics["mAP@5"] == 1 and metrics["R@1"] == 1
    with pytest.raises(InputError, match="no query"):
        score_rankings(bench, {})


def test_unknown_names_list_the_choices(small):
    with pytest.raises(InputError, match="unknown benchmark 'cirko': choose mini-circo, circo"):
        evaluate_file(small / "x.json", "cirko", "val", small)
    with pytest.raises(InputError, match="unknown split 'dev' of circo: choose val, test"):
        evaluate_file(small / "x.json", "circo", "dev", small)
