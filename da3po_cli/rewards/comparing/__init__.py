"""Whether two answers mean the same."""
