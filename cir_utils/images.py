"""The one way an image file becomes pixels: the same for CLIP, the MLLM and the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from cir_utils.errors import InputError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
MAX_PIXELS = 50_000_000
#: Largest picture file that is opened, in bytes: as many pixels of 16 bits in four channels, uncompressed.
MAX_BYTES = 8 * MAX_PIXELS
#: Long side over short side that target padding aims at.
TARGET_RATIO = 1.25


def load_image(path: Path | str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read an image file as an RGB picture of 8 bits a channel (``PIL.Image``, mode ``RGB``, fully decoded).

    The EXIF orientation is applied. Transparent pixels are laid on white. An animation gives its first frame.
    Grey, palette, CMYK and one-bit pictures are converted; of 16 bits the upper eight are kept. Colour
    profiles are ignored, as CLIP's and Qwen's own preprocessing do. The format is told by content, not by the
    file's extension.

    Raises :class:`InputError`, naming the file, when it is missing, empty, truncated, no image (an HTML page
    saved by a failed download is called that), of a format outside ``FORMATS``, or larger than
    ``max_pixels`` or ``MAX_BYTES``.
    """
    path = Path(path)
    try:
        size = path.stat().st_size if path.is_file() else -1
    except OSError as error:
        raise InputError(
            f"image {path} cannot be read ({error.strerror}); check the path and its permissions"
        ) from None
    if size < 0:
        raise InputError(f"image {path} {_no_file(path)}; check the benchmark's folder")
    if size > MAX_BYTES:
        raise InputError(
            f"image {path} has {size:,} bytes, more than the {MAX_BYTES:,} allowed; save it smaller"
        )
    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise InputError(
                    f"image {path} has {width} x {height} pixels, more than the {max_pixels} allowed; "
                    "make it smaller or raise max_pixels"
                )
            image.load()
            return _as_rgb(_upright(image))
    except UnidentifiedImageError:
        raise InputError(f"image {path} {_what_it_is(path)}; fetch the file again") from None
    except Image.DecompressionBombError:
        raise InputError(
            f"image {path} has more than the {max_pixels} pixels allowed; make it smaller"
        ) from None
    except InputError:
        raise
    except PermissionError as error:
        raise InputError(
            f"image {path} cannot be read ({error.strerror}); check the path and its permissions"
        ) from None
    except Exception as error:
        # Pillow's readers raise what damaged bytes lead to: OSError, SyntaxError, struct.error ...
        raise InputError(f"image {path} is damaged or incomplete ({error}); fetch the file again") from None


def pad_to_ratio(image: Image.Image, ratio: float = TARGET_RATIO) -> Image.Image:
    """Target padding: equal black bands on both long sides of a picture whose long side is ``ratio`` times
    its short side or more, so that it comes down to that ratio; any other picture as it is.

    The short side becomes ``long / ratio``, not the long side: a centre crop still takes something off the
    ends. Bands are rounded down to whole pixels, as in the code of CLIP4Cir (Baldrati et al., 2022) and of
    those that follow it (SEARLE, CIReVL, FTI4CIR). 600 x 100 becomes 600 x 480, 500 x 400 stays.
    """
    longest, shortest = max(image.size), min(image.size)
    if longest / shortest < ratio:
        return image
    across, down = (max(int((longest / ratio - side) / 2), 0) for side in image.size)
    return ImageOps.expand(image, (across, down), fill=0)


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation; unreadable EXIF data count as none."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a damaged tag block raises whatever its bytes lead to; the pixels are still good
        return image.copy()


def _as_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB, transparency on white."""
    if image.mode.startswith(("I", "F")):
        values = np.nan_to_num(np.asarray(image).astype(np.float64))
        if image.mode.startswith("I;16") or values.max(initial=0) > 255:
            values = values // 256
        image = Image.fromarray(values.clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert("RGB")


def _no_file(path: Path) -> str:
    """Say what is at a path that is no ordinary file."""
    if path.is_dir():
        return "is a folder, not a file"
    if path.exists():
        return "is no ordinary file"
    return "is a link that leads to no file" if path.is_symlink() else "does not exist"


def _what_it_is(path: Path) -> str:
    """Say what stands in a file that is no image."""
    with open(path, "rb") as stream:
        head = stream.read(512)
    if not head:
        return "is empty (0 bytes)"
    if (
        head.lstrip(b"\xef\xbb\xbf \t\r\n")
        .lower()
        .startswith((b"<!doctype html", b"<html", b"<?xml", b"<head"))
    ):
        return "holds an HTML or XML page, not an image"
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the image itself"
    return f"is not an image of a known format ({', '.join(FORMATS)})"
