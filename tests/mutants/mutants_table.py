"""The mutants: mistakes that a developer could make in the training loop, each with the test that kills it.

An entry is (name, file, text that is in the file exactly once, what the mistake puts there, test). Where the code
changes, change its text here too. A mistake that no test kills wants a test first.
"""

from __future__ import annotations

from mutants_of_algos import ADVANTAGE, BATCH, DYNAMIC, LOSS
from mutants_of_policy import POLICY, WEIGHTS
from mutants_of_steps import LIVE, RUN, SAVED, STEP

# the slowest first: they are under way while the others come and go
MUTANTS = [*LIVE, *STEP, *POLICY, *LOSS, *ADVANTAGE, *DYNAMIC, *BATCH, *WEIGHTS, *RUN, *SAVED]
