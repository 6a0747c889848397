from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from cir_utils.errors import InputError
from cir_utils.images import load_image, pad_to_ratio


def colours(image):
    """The distinct colours of a picture."""
    return {tuple(int(v) for v in pixel) for pixel in np.asarray(image).reshape(-1, 3)}


def saved(path, image, **options):
    image.save(path, **options)
    return path


def test_rgb_comes_back_unchanged(tmp_path):
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    image = load_image(saved(tmp_path / "a.png", Image.fromarray(pixels)))
    assert image.mode == "RGB"
    assert (np.asarray(image) == pixels).all()


def test_transparency_is_laid_on_white(tmp_path):
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    clear.paste((255, 0, 0, 255), (0, 0, 4, 8))
    assert colours(load_image(saved(tmp_path / "rgba.png", clear))) == {(255, 0, 0), (255, 255, 255)}
    grey = Image.new("LA", (8, 8), (10, 0))
    assert colours(load_image(saved(tmp_path / "la.png", grey))) == {(255, 255, 255)}
    half = Image.new("RGBA", (2, 2), (0, 0, 0, 128))
    assert colours(load_image(saved(tmp_path / "half.png", half))) == {(127, 127, 127)}


def test_palette_with_a_transparent_entry(tmp_path):
    image = Image.new("P", (4, 4), 0)
    image.putpalette([0, 0, 0, 0, 200, 0])
    image.paste(1, (0, 0, 2, 4))
    path = saved(tmp_path / "p.png", image, transparency=0)
    assert colours(load_image(path)) == {(0, 200, 0), (255, 255, 255)}
    path = saved(tmp_path / "opaque.png", image)
    assert colours(load_image(path)) == {(0, 200, 0), (0, 0, 0)}


def test_rgb_with_a_transparent_colour(tmp_path):
    path = saved(tmp_path / "a.png", Image.new("RGB", (2, 2), (1, 2, 3)), transparency=(1, 2, 3))
    assert colours(load_image(path)) == {(255, 255, 255)}


def test_grey_one_bit_and_sixteen_bit(tmp_path):
    assert colours(load_image(saved(tmp_path / "l.png", Image.new("L", (2, 2), 77)))) == {(77, 77, 77)}
    assert colours(load_image(saved(tmp_path / "one.png", Image.new("1", (2, 2), 1)))) == {(255, 255, 255)}
    deep = Image.fromarray(np.array([[0, 255], [256, 65535]], dtype=np.uint16))
    expected = {(0, 0, 0), (1, 1, 1), (255, 255, 255)}
    assert colours(load_image(saved(tmp_path / "i16.png", deep))) == expected
    assert colours(load_image(saved(tmp_path / "i16.tif", deep))) == expected
    wide = Image.fromarray(np.array([[0, 65535]], dtype=np.int32))
    assert colours(load_image(saved(tmp_path / "i.tif", wide))) == {(0, 0, 0), (255, 255, 255)}


def test_cmyk(tmp_path):
    path = saved(tmp_path / "a.tif", Image.new("CMYK", (4, 4), (0, 255, 255, 0)))
    assert colours(load_image(path)) == {(255, 0, 0)}
    path = saved(tmp_path / "a.jpg", Image.new("CMYK", (8, 8), (0, 255, 255, 0)), quality=95)
    red, green, blue = np.asarray(load_image(path)).reshape(-1, 3).mean(0)
    assert red > 250 and green < 5 and blue < 5


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_an_animation_gives_its_first_frame(tmp_path, kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    path = tmp_path / f"a.{kind}"
    frames[0].save(path, save_all=True, append_images=frames[1:], lossless=True, duration=100)
    assert colours(load_image(path)) == {(255, 0, 0)}


@pytest.mark.parametrize(
    ("orientation", "size", "red_at"),
    [
        (1, (64, 48), "left"),
        (2, (64, 48), "right"),
        (3, (64, 48), "right"),
        (6, (48, 64), "top"),
        (8, (48, 64), "bottom"),
    ],
)
def test_exif_orientation_is_applied(tmp_path, orientation, size, red_at):
    image = Image.new("RGB", (64, 48), "white")
    image.paste("red", (0, 0, 8, 48))
    exif = Image.Exif()
    exif[0x0112] = orientation
    loaded = load_image(saved(tmp_path / "a.jpg", image, exif=exif, quality=95))
    assert loaded.size == size
    pixels = np.asarray(loaded).astype(int)
    sides = {"left": pixels[:, :4], "right": pixels[:, -4:], "top": pixels[:4], "bottom": pixels[-4:]}
    redness = {side: (part[..., 0] - part[..., 1]).mean() for side, part in sides.items()}
    assert max(redness, key=lambda side: redness[side]) == red_at
    assert redness[red_at] > 200
    assert loaded.getexif().get(0x0112, 1) == 1  # nobody downstream can turn it a second time


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_does_not_hide_the_pixels(tmp_path):
    path = saved(
        tmp_path / "a.jpg", Image.new("RGB", (8, 8), "red"), exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff"
    )
    assert load_image(path).size == (8, 8)


def test_the_extension_does_not_matter(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 8), "red").save(path, format="JPEG")
    assert load_image(path).size == (8, 8)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"\n<!DOCTYPE html><html></html>", "HTML or XML page"),
        (b"<HTML>", "HTML or XML page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"hello", "is not an image of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", "is not an image of a known format"),
    ],
)
def test_files_that_are_no_image(tmp_path, content, expected):
    path = tmp_path / "B00ABC.jpg"
    path.write_bytes(content)
    with pytest.raises(InputError, match=expected) as caught:
        load_image(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["jpg", "png", "gif", "webp", "bmp", "tif"])
def test_every_cut_of_a_file_is_an_input_error(tmp_path, kind):
    rng = np.random.default_rng(0)
    whole = saved(
        tmp_path / f"a.{kind}", Image.fromarray(rng.integers(0, 255, (24, 24, 3), dtype=np.uint8))
    ).read_bytes()
    path = tmp_path / f"cut.{kind}"
    refused = 0
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        path.write_bytes(whole[: int(len(whole) * share)])
        try:
            load_image(path)
        except InputError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused == 5


def test_missing_folder_and_too_large(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_image(tmp_path / "none.jpg")
    with pytest.raises(InputError, match="is a folder"):
        load_image(tmp_path)
    path = saved(tmp_path / "a.png", Image.new("RGB", (20, 10)))
    with pytest.raises(InputError, match="20 x 10 pixels, more than the 199 allowed"):
        load_image(path, max_pixels=199)
    assert load_image(path, max_pixels=200).size == (20, 10)


# --- target padding ---


@pytest.mark.parametrize(
    ("size", "padded", "bands"),
    [
        ((600, 100), (600, 480), (0, 190)),  # 600 / 1.25 = 480: bands of 190 above and below
        ((100, 600), (480, 600), (190, 0)),
        ((640, 480), (640, 512), (0, 16)),
        ((501, 200), (501, 400), (0, 100)),  # 400.8: bands are rounded down
        ((1000, 1), (1000, 799), (0, 399)),
    ],
)
def test_target_padding_brings_long_pictures_down_to_the_ratio(size, padded, bands):
    found = np.asarray(pad_to_ratio(Image.new("RGB", size, (10, 20, 30))))
    assert found.shape == (padded[1], padded[0], 3)
    across, down = bands
    inner = found[down : padded[1] - down, across : padded[0] - across]
    assert inner.shape[:2] == (size[1], size[0]) and (inner == (10, 20, 30)).all()
    assert int((found != 0).any(axis=2).sum()) == size[0] * size[1]  # everything else is black


@pytest.mark.parametrize("size", [(500, 400), (400, 500), (499, 400), (32, 32), (5, 4), (1, 1)])
def test_target_padding_leaves_other_pictures_alone(size):
    image = Image.new("RGB", size, (1, 2, 3))
    assert np.array_equal(np.asarray(pad_to_ratio(image)), np.asarray(image))
