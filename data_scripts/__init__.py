"""Scripts that make the mini world, its benchmarks and its models; nothing here is needed to use `cir_utils`."""
