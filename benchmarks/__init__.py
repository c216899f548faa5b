"""Benchmarks: ratios against plain training, measured in one run on whatever device there is."""
