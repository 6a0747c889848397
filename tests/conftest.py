"""Shared fixtures. Nothing in the tests may reach the network."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

from pathlib import Path  # noqa: E402

import pytest  # noqa: E402


@pytest.fixture(scope="session")
def real_annotations() -> Path:
    """The folder of published annotation files, named by ``CIR_REAL_ANNOTATIONS``."""
    folder = os.environ.get("CIR_REAL_ANNOTATIONS")
    if not folder:
        pytest.skip("CIR_REAL_ANNOTATIONS is not set: no published annotation files to read")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"CIR_REAL_ANNOTATIONS names {path}, which is not a folder")
    return path


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random CLIP. Tests that change files work on a copy."""
    from tiny_clip import write_tiny_clip

    return write_tiny_clip(tmp_path_factory.mktemp("models") / "tiny-clip")
