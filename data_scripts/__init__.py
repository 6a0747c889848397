"""Scripts that make the mini world, its benchmarks and its models. `cir_utils` needs none of them."""
