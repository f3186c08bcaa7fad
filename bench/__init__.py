"""Benchmarks: ratios between the project and a yardstick, taken in one run on one machine."""
