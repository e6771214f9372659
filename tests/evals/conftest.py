"""Lets the tests of this directory import eval_helpers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
