"""Paths as people write them."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """`path` with `~` filled in; `~name` of a user who is not here stays as it is: a path that is missing."""
    return Path(os.path.expanduser(path))
