"""The benchmarks' layouts on disk, one file a benchmark. Each has a function

    read(name, split, root, need_images, options) -> Benchmark

that :func:`cir_utils.benchmarks.load_benchmark` calls; ``common.py`` is shared.
"""
