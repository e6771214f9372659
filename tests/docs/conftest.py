"""Makes `docs_pages` importable, and the helpers of other folders that lay out runs and results."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "reports", HERE.parent / "evals"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
