"""The language of formulas: text to tree, tree to value, and whether two values are equal."""
