"""Evaluation without an engine: the benchmarks, their problems, metrics, results, tables and comparisons."""
