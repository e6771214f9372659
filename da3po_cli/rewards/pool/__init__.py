"""Grading in worker processes."""
