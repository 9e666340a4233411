"""Benchmarks of this package and of comparable ones, on one machine in one run: ``python -m
benchmarks --help``.
"""
