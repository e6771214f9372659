"""A place for the commands of the pages; `docs_pages` and helpers of other folders are made importable."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from da3po_cli.config import devices

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "reports", HERE.parent / "evals"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files and runs that the pages speak of."""
    import pyarrow as pa
    import pyarrow.parquet as parquet
    from docs_pages import PAGES, blocks
    from eval_helpers import result_of
    from report_runs import make_ablation, make_group, make_run

    from da3po_cli.evals.result import write_results

    root = tmp_path_factory.mktemp("docs")
    rows = [{"problem": f"What is {n} times 7?", "answer": str(7 * n)} for n in range(2, 12)]
    for name in ("problems.jsonl", "rows.jsonl"):
        (root / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("dapo.parquet", "gsm8k.parquet"):
        parquet.write_table(pa.Table.from_pylist(rows), root / name)
    answers = [{"gold": "1/2", "response": "0.5"}, {"gold": "3", "response": r"It is \boxed{4}."}]
    (root / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    quick_start = next(page for page in PAGES if page.name == "quick-start.md")
    (root / "mine.yaml").write_text(next(b.text for b in blocks(quick_start) if b.language == "yaml"))
    for name, right in (("base", [0, 1, 1, 2]), ("run", [1, 2, 2, 2])):
        write_results([result_of({"toy": right}, name=name)], root / f"{name}.json")
    groups = {step: [make_group(10 * step + k, k, size=8) for k in range(9)] for step in (1, 2)}
    for name in ("first", "demo"):
        make_run(root / "runs" / name, {0: (0.4, 0.8), 2: (0.6, 0.9)}, groups=groups)
    make_ablation(root / "runs" / "lambda-demo", {"1.0": [0.5, 0.6], "2.0": [0.7, 0.75]})
    return root


@pytest.fixture
def machine(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a GPU and without settings, in that directory."""
    for name in list(os.environ):
        if name.startswith(("DA3PO_", "SLURM_")) or name in ("RANK", "WORLD_SIZE", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(devices, "installed_gpus", lambda root: 0)
    return place
