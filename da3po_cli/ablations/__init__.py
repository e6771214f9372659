"""Ablations: a matrix of arms and seeds, each an ordinary run below one directory, and the table that they make."""
