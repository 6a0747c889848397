"""A pool of training pictures on disk: drawn once, read by every training script.

    python -m data_scripts.pool --out work/pool --pictures 100000

The folder holds `pixels.npy` (n, 112, 112, 3) uint8, memory-mapped, and `scenes.npy` (n, 11) uint8, the index
of each field's value in `world.CHOICES`. Only `train` scenes are drawn. A share of the pictures (`--unnamed`)
paints the main objects in a colour that has no name in the world (the indices of colour and shade are
`UNNAMED`): a shape seen in many colours is known again in a new one.
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

from data_scripts.draw import draw_scene, unnamed_colour
from data_scripts.world import CHOICES, Scene, train_scene

SIZE = 112
CHUNK = 1000
UNNAMED = 255
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


def encode_scene(scene: Scene) -> list[int]:
    return [choices.index(getattr(scene, name)) for name, choices in CHOICES.items()]


def decode_scene(row: np.ndarray) -> Scene:
    """The scene of a row whose colour has a name."""
    return Scene(**{name: choices[row[i]] for i, (name, choices) in enumerate(CHOICES.items())})


def _draw_chunk(start: int, seed: int, unnamed: float) -> tuple[int, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, start])
    pixels, scenes = np.empty((CHUNK, SIZE, SIZE, 3), np.uint8), np.empty((CHUNK, len(CHOICES)), np.uint8)
    for i in range(CHUNK):
        scene = train_scene(rng)
        tint = unnamed_colour(rng, scene.kind) if rng.random() < unnamed else None
        pixels[i] = np.asarray(draw_scene(scene, seed=int(rng.integers(2**31)), tint=tint))
        scenes[i] = encode_scene(scene)
        if tint:
            scenes[i, [list(CHOICES).index(name) for name in ("colour", "shade")]] = UNNAMED
    return start, pixels, scenes


def make_pool(out: Path, pictures: int, seed: int = 1, unnamed: float = 0.25, workers: int = 2) -> None:
    out.mkdir(parents=True, exist_ok=True)
    pictures = -(-pictures // CHUNK) * CHUNK
    pixels = np.lib.format.open_memmap(out / "pixels.npy", "w+", np.uint8, (pictures, SIZE, SIZE, 3))
    scenes = np.empty((pictures, len(CHOICES)), np.uint8)
    with ProcessPoolExecutor(workers) as executor:
        draw = partial(_draw_chunk, seed=seed, unnamed=unnamed)
        jobs = executor.map(draw, range(0, pictures, CHUNK))
        for start, some_pixels, some_scenes in tqdm(jobs, total=pictures // CHUNK, unit="k pictures"):
            pixels[start : start + CHUNK], scenes[start : start + CHUNK] = some_pixels, some_scenes
    pixels.flush()
    np.save(out / "scenes.npy", scenes)


def open_pool(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """(pixels memory-mapped, scenes)."""
    return np.load(folder / "pixels.npy", mmap_mode="r"), np.load(folder / "scenes.npy")


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
    parser.add_argument("--pictures", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unnamed", type=float, default=0.25)
    arguments = parser.parse_args()
    make_pool(arguments.out, arguments.pictures, arguments.seed, arguments.unnamed)
