"""Labels and losses of the training scripts, over both domains."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from data_scripts import domains, train_mini_vlm
from data_scripts.domains import COLUMN, DOMAINS, FIELDS, UNKNOWN, domain_of
from data_scripts.train_mini_vlm import (
    HELD_OUT,
    attribute_loss,
    mean_weights,
    mirror,
    mirrored,
    unseen_values,
)
from data_scripts.vlm_examples import pair_branches, partner


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
def test_a_row_of_labels_is_the_thing_and_tells_its_domain(domain):
    rng = np.random.default_rng(0)
    for _ in range(200):
        thing = domain.random(rng)
        row = np.array(domain.encode(thing), np.uint8)
        assert domain.decode(row) == thing and domain_of(row) is domain
        others = np.delete(row, np.r_[domain.columns])
        assert (others == UNKNOWN).all()


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
def test_the_difference_of_two_things_is_an_edit_that_the_second_shows(domain):
    rng = np.random.default_rng(1)
    for _ in range(300):
        first = domain.train(rng)
        second = partner(rng, domain, first)
        edit = domain.difference(first, second)
        assert edit.changes and not domain.world.held_out(second)
        assert domain.shows(first, edit, second)
        name, _ = edit.changes[0]
        both = (getattr(first, name), getattr(second, name))
        wrong = next((value for value in domain.choices[name] if value not in both), None)
        if wrong is None:  # two values, and the edit names both
            continue
        if name not in (
            "pattern",
            "colour",
            "colour2",
        ):  # a colour may clash with another, a pattern wants one
            try:
                other = domain.make(**second.as_dict() | {name: wrong})
            except ValueError:  # not in this category
                continue
            assert not domain.shows(first, edit, other)


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
def test_comparisons_are_true_about_half_of_the_time(domain):
    rng = np.random.default_rng(2)
    answers = []
    for _ in range(300):
        first = domain.train(rng)
        answers += [b.answer for b in pair_branches(rng, domain, first, partner(rng, domain, first), 4)]
    assert set(answers) == {"true", "false"}
    assert 0.42 < np.mean([answer == "true" for answer in answers]) < 0.6


def test_unseen_values_are_those_that_would_make_a_held_out_combination():
    rng = np.random.default_rng(3)
    touched = {name for first, second, _ in HELD_OUT for name in (first, second)}
    for domain in DOMAINS:
        things = [domain.train(rng) for _ in range(60)]
        found = unseen_values(torch.tensor([domain.encode(thing) for thing in things]))
        assert set(found) == touched
        for name in touched:
            for thing, row in zip(things, found[name], strict=True):
                if not name.startswith(domain.name):
                    assert not row.any()  # another domain's field
                    continue
                field = name.split("/")[1]
                for value, unseen in zip(FIELDS[name], row.tolist(), strict=True):
                    changed = thing.as_dict() | {field: value}
                    if domain is domains.SCENES:
                        assert unseen == domain.world.held_out(domain.make(**changed))
                    else:
                        spoken = ("category", "colour", "pattern", "background")
                        assert unseen == domain.world.unseen(**{f: changed[f] for f in spoken})


def test_no_picture_shows_a_pattern_in_the_colour_of_a_ground_that_it_never_has():
    rng = np.random.default_rng(4)
    things = [domains.FASHION.train(rng) for _ in range(400)]
    rows = np.array([domains.FASHION.encode(thing) for thing in things], dtype=np.uint8)
    pairs = {("striped", "blue"), ("dotted", "orange"), ("checked", "white"), ("floral", "purple")}
    wanted = [(thing.pattern, thing.colour2) in pairs for thing in things]
    assert mirrored(rows).tolist() == wanted and 10 < sum(wanted) < 80
    scenes = np.array([domains.SCENES.encode(domains.SCENES.train(rng)) for _ in range(50)], dtype=np.uint8)
    assert not mirrored(scenes).any()  # no garment there


def test_attribute_loss_counts_known_labels_alone_and_leaves_unseen_values_out():
    rng = np.random.default_rng(4)
    scene = domains.SCENES.train(rng)
    row = domains.SCENES.encode(scene)
    logits = [torch.zeros(1, len(values)) for values in FIELDS.values()]
    loss, hits = attribute_loss(logits, torch.tensor([row]))
    # with equal logits each field's loss is the log of how many values take part
    unseen = unseen_values(torch.tensor([row]))
    parts, weights = [], []
    for i, (name, values) in enumerate(FIELDS.items()):
        if name.startswith("scenes/"):
            parts.append(np.log(len(values) - int(unseen[name].sum() if name in unseen else 0)))
            weights.append(train_mini_vlm.WEIGHTS[i])
    assert loss.item() == pytest.approx(np.average(parts, weights=weights), rel=1e-5)
    assert torch.isnan(hits[COLUMN["fashion/colour"]]) and hits[COLUMN["scenes/kind"]] in (0.0, 1.0)


def test_averaged_weights_are_the_mean_of_two_stretches(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    model.load_state_dict({"0.weight": torch.tensor([[1.0, 2, 3], [4, 5, 6]]), "0.bias": torch.zeros(2)})
    other = {"model.0.weight": torch.full((2, 3), 2.0), "model.0.bias": torch.tensor([1.0, -3])}
    save_file(other | {"heads.x": torch.zeros(1)}, tmp_path / "checkpoint.safetensors")
    mean_weights(model, tmp_path / "checkpoint.safetensors")
    assert model[0].weight.tolist() == [[1.5, 2, 2.5], [3, 3.5, 4]] and model[0].bias.tolist() == [0.5, -1.5]


def test_a_mirrored_picture_has_mirrored_labels():
    rng = np.random.default_rng(5)
    things = [domain.random(rng) for domain in DOMAINS for _ in range(100)]
    labels = np.array(
        [domain.encode(t) for domain in DOMAINS for t in things if isinstance(t, domain.make)], np.uint8
    )
    pixels = np.zeros((200, 4, 4, 3), np.uint8)
    pixels[:, :, 0] = 255  # a bright left edge
    turned_pixels, turned = mirror(np.random.default_rng(6), pixels, labels)
    moved = turned_pixels[:, 0, -1, 0] == 255
    assert 60 < moved.sum() < 140
    assert (turned[~moved] == labels[~moved]).all()
    for before, after in zip(labels[moved], turned[moved], strict=True):
        domain = domain_of(before)
        was, now = domain.decode(before), domain.decode(after)
        assert now.facing != was.facing
        same = {"facing"}
        if domain is domains.SCENES and was.prop != "none":
            assert now.side != was.side
            same.add("side")
        kept = [name for name in domain.choices if name not in same]
        assert all(getattr(now, name) == getattr(was, name) for name in kept)
