"""From one command to all ranks of a job, on one machine or several; signals, stalls, and where a model's files are."""
