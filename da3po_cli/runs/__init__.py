"""The run directory and the files in it: what a run writes and reads, without torch."""
