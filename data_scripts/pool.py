"""A pool of training pictures on disk: drawn once, read by every training script.

    python -m data_scripts.pool --out work/pool --pictures 100000

The folder holds a folder for each domain, with `pixels.npy` (n, 112, 112, 3) uint8, memory-mapped, and
`labels.npy` (n, fields of all domains) uint8 (`domains.FIELDS`). Only `train` worlds are drawn. A share of
the pictures (`--unnamed`) paints objects or garment in a colour that has no name in the world (the labels of
colour and shade are `UNKNOWN`): a shape seen in many colours is known again in a new one.
"""

from __future__ import annotations

import argparse
import io
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from data_scripts.domains import COLUMN, DOMAINS, FIELDS, UNKNOWN

SIZE = 112
CHUNK = 1000
JPEG = {
    "format": "JPEG",
    "quality": 70,
    "subsampling": 2,
    "optimize": True,
    "progressive": True,
}  # as shipped


def jpeg(picture: Image.Image) -> Image.Image:
    """The picture after a trip through JPEG (the quick form of it, with the same pixels)."""
    buffer = io.BytesIO()
    picture.save(buffer, **(JPEG | {"optimize": False, "progressive": False}))
    return Image.open(buffer).convert("RGB")


def _draw_chunk(start: int, number: int, seed: int, unnamed: float) -> tuple[int, np.ndarray, np.ndarray]:
    domain = DOMAINS[number]
    rng = np.random.default_rng([seed, number, start])
    pixels, labels = np.empty((CHUNK, SIZE, SIZE, 3), np.uint8), np.empty((CHUNK, len(FIELDS)), np.uint8)
    for i in range(CHUNK):
        thing, picture_seed = domain.train(rng), int(rng.integers(2**31))
        labels[i] = domain.encode(thing)
        tint = domain.unnamed(rng, thing) if rng.random() < unnamed else None
        pixels[i] = np.asarray(domain.draw(thing, seed=picture_seed, tint=tint))
        if tint:
            labels[i, [COLUMN[f"{domain.name}/{name}"] for name in ("colour", "shade")]] = UNKNOWN
    return start, pixels, labels


def make_pool(out: Path, pictures: int, seed: int = 1, unnamed: float = 0.25, workers: int = 2) -> None:
    """Draw `pictures` of each domain that is not there yet."""
    pictures = -(-pictures // CHUNK) * CHUNK
    for number, domain in enumerate(DOMAINS):
        folder = out / domain.name
        if (folder / "labels.npy").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.lib.format.open_memmap(folder / "pixels.npy", "w+", np.uint8, (pictures, SIZE, SIZE, 3))
        labels = np.empty((pictures, len(FIELDS)), np.uint8)
        with ProcessPoolExecutor(workers) as executor:
            draw = partial(_draw_chunk, number=number, seed=seed, unnamed=unnamed)
            jobs = executor.map(draw, range(0, pictures, CHUNK))
            for start, some_pixels, some_labels in tqdm(jobs, domain.name, pictures // CHUNK, unit="k"):
                pixels[start : start + CHUNK], labels[start : start + CHUNK] = some_pixels, some_labels
        pixels.flush()
        np.save(folder / "labels.npy", labels)


def open_pool(folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """(pixels memory-mapped, labels) of each domain."""
    return [
        (
            np.load(folder / d.name / "pixels.npy", mmap_mode="r", allow_pickle=False),
            np.load(folder / d.name / "labels.npy", allow_pickle=False),
        )
        for d in DOMAINS
    ]


def add_history(out: Path, **stretch) -> None:
    """Append one stretch of training to `out/history.json`, from which the model card is written."""
    path = out / "history.json"
    stretches = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*stretches, stretch], indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pictures", type=int, default=100_000, help="of each domain")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unnamed", type=float, default=0.25)
    arguments = parser.parse_args()
    make_pool(arguments.out, arguments.pictures, arguments.seed, arguments.unnamed)
