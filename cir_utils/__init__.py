"""Training-free composed image retrieval: a tutorial and reproducibility package."""

__version__ = "0.1.0"
