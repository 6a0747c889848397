"""The scene drawer: same arguments, same bytes; every field of a scene shows in its picture."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import ImageOps

from data_scripts.draw import OBJECT_COLOURS, PATTERN_COLOURS, draw_scene
from data_scripts.world import CHOICES, COLOURS, KINDS, STYLES, Scene, random_scene

BASE = Scene("cat", "orange", 2, "striped", "meadow", "ball", "left", "flat", "light", 0, "left")


def _pixels(scene: Scene, seed: int = 5) -> np.ndarray:
    return np.asarray(draw_scene(scene, seed), np.float64)


def test_size_and_mode():
    picture = draw_scene(BASE, 0)
    assert (picture.mode, picture.size) == ("RGB", (112, 112))
    assert draw_scene(replace(BASE, style="mosaic"), 0, size=70).size == (70, 70)
    assert draw_scene(replace(BASE, style="shaded"), 0, size=224).size == (224, 224)


@pytest.mark.parametrize("style", STYLES)
def test_same_arguments_give_the_same_bytes(style):
    scene = replace(BASE, style=style)
    assert draw_scene(scene, 3).tobytes() == draw_scene(scene, 3).tobytes()
    assert draw_scene(scene, 3).tobytes() != draw_scene(scene, 4).tobytes()


@pytest.mark.parametrize("field", CHOICES)
def test_every_value_of_every_field_shows(field):
    pictures = [_pixels(replace(BASE, **{field: value})) for value in CHOICES[field]]
    for i, one in enumerate(pictures):
        for other in pictures[:i]:
            changed = (np.abs(one - other).max(axis=2) > 24).mean()
            assert changed > 0.01, (field, CHOICES[field][i])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", (0, 1))
def test_facing_turns_every_kind(kind, variant):
    """Facing right differs from facing left, and is nearer to its mirror image."""
    scene = replace(
        BASE, kind=kind, variant=variant, count=1, pattern="plain", prop="none", background="night sky"
    )
    area = slice(20, 92)
    left = draw_scene(scene, 5)
    right = _pixels(replace(scene, facing="right"))[area, area]
    to_original = np.abs(right - np.asarray(left, float)[area, area]).mean()
    to_mirrored = np.abs(right - np.asarray(ImageOps.mirror(left), float)[area, area]).mean()
    assert to_original > 6
    assert to_mirrored < to_original


def test_colours_are_far_apart():
    """Any two colours, in any two shades, and a colour and its own pattern, differ clearly."""
    for i, one in enumerate(COLOURS):
        for other in COLOURS[:i]:
            for a in OBJECT_COLOURS[one]:
                for b in OBJECT_COLOURS[other]:
                    assert np.linalg.norm(np.subtract(a, b)) > 50, (one, other, a, b)
        for main, mark in zip(OBJECT_COLOURS[one], PATTERN_COLOURS[one], strict=True):
            assert np.linalg.norm(np.subtract(main, mark)) > 90, one


def test_random_scenes_draw():
    rng = np.random.default_rng(0)
    for seed in range(60):
        assert np.asarray(draw_scene(random_scene(rng), seed)).std() > 10
