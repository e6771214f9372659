"""The mathematics of the algorithms: pure functions, no communication. Start at `table.ALGORITHMS`."""

from da3po_cli.algos.table import ALGORITHMS, AlgoConfig, Entry

__all__ = ["ALGORITHMS", "AlgoConfig", "Entry"]
