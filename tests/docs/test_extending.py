"""docs/extending.md is carried out on a copy of the code; then each addition computes what it should.

In `FILE`, below `LINE`:  (or above)  and a block    the block goes there
In `FILE`, replace `OLD` by `NEW`.                   once
New file `FILE`:  and a block                        beside the copy
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from docs_pages import ROOT, blocks, read

PAGE = ROOT / "docs" / "extending.md"
_EDIT = re.compile(
    r"^In `(?P<file>[^`]+)`, (?P<where>below|above) `(?P<line>[^`]+)`:\n\n```\w+\n(?P<text>.*?)^```$"
    r"|^In `(?P<changed>[^`]+)`, replace `(?P<old>[^`]+)` by `(?P<new>[^`]+)`\.$"
    r"|^New file `(?P<fresh>[^`]+)`:\n\n```\w+\n(?P<content>.*?)^```$",
    re.M | re.S,
)


def carry_out(page: str, root: Path) -> list[str]:
    """Do all edits of a page below `root`. Returns the files that were changed."""
    changed: list[str] = []
    for edit in _EDIT.finditer(page):
        if edit["fresh"]:
            (root / edit["fresh"]).write_text(edit["content"])
            changed.append(edit["fresh"])
            continue
        file = root / (edit["file"] or edit["changed"])
        text = file.read_text()
        if edit["old"]:
            assert text.count(edit["old"]) == 1, f"{file.name} has {edit['old']!r} {text.count(edit['old'])} times"
            text = text.replace(edit["old"], edit["new"])
        else:
            line = edit["line"] + "\n"
            assert text.count(line) == 1, f"{file.name} has the line {edit['line']!r} {text.count(line)} times"
            text = text.replace(line, line + edit["text"] if edit["where"] == "below" else edit["text"] + line)
        file.write_text(text)
        changed.append(file.relative_to(root).as_posix())
    return changed


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code with everything on the page added, and the files that its commands name."""
    root = tmp_path_factory.mktemp("extended")
    for package in ("da3po_cli", "megatron_bridge"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", root / "configs")
    carry_out(read(PAGE), root)
    answers = [("Paris", "I think it is\nPARIS."), ("Paris", "Paris, or rather\nLyon.")]
    lines = [json.dumps({"gold": gold, "response": response}) for gold, response in answers]
    (root / "answers.jsonl").write_text("\n".join(lines) + "\n")
    rows = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(5)]
    for name in ("rows.jsonl", "problems.jsonl"):
        (root / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "rows.csv").write_text("problem,answer\n" + "".join(f'"{r["problem"]}",{r["answer"]}\n' for r in rows))
    return root


def run(copy: Path, *arguments: str) -> str:
    """Python in the copy. Returns stdout."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DA3PO_")}
    env |= {"PYTHONPATH": str(copy), "DA3PO_RUNS": str(copy / "runs"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, *arguments], cwd=copy, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def script(copy: Path, text: str) -> str:
    return run(copy, "-c", textwrap.dedent(text))


def test_the_edits_are_found() -> None:
    edits = list(_EDIT.finditer(read(PAGE)))
    announced = re.findall(r"^(?:In `[^`]+`, (?:below|above|replace)|New file)", read(PAGE), re.M)
    assert len(edits) == len(announced) > 8


def test_an_edit_that_does_not_fit_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(AssertionError, match="has the line 'y = 1' 0 times"):
        carry_out("In `a.py`, below `y = 1`:\n\n```python\nz = 2\n```\n", tmp_path)
    assert carry_out("In `a.py`, below `x = 1`:\n\n```python\nz = 2\n```\n", tmp_path) == ["a.py"]
    assert (tmp_path / "a.py").read_text() == "x = 1\nz = 2\n"


def test_an_algorithm(copy: Path) -> None:
    """Advantages and loss of the new entry and schedule, by hand, for G = 4, k = 1 and rewards of +1 and -1."""
    found = json.loads(
        script(
            copy,
            """
            import json, torch
            from da3po_cli.algos.advantages import assign_advantages, daa_weights
            from da3po_cli.algos.batching import collate, denominators
            from da3po_cli.algos.losses import policy_loss
            from da3po_cli.algos.table import ALGORITHMS
            from da3po_cli.algos.types import Group, Prompt, Response, Trajectory

            algo = ALGORITHMS["dr_da3po"].defaults
            lengths, rewards = [1, 2, 3, 4], [1.0, -1.0, -1.0, -1.0]
            responses = [
                Response([5] * n, [-1.0] * n, "", "stop", "correct" if r > 0 else "wrong", int(r > 0), r)
                for n, r in zip(lengths, rewards)
            ]
            group = Group(Prompt("u", (1, 2), "", "", "", 0), responses)
            assign_advantages(group, algo)
            rows = [Trajectory((1, 2), r.token_ids, r.logprobs, r.advantage) for r in responses]
            batch = collate(rows, range(4))
            logp = torch.full(batch.tokens.shape, -1.0, requires_grad=True)
            loss, _ = policy_loss(
                logp, batch, algo, denominators(rows, 10), tis=False, entropy=torch.zeros_like(logp)
            )
            print(json.dumps({
                "advantages": [r.advantage for r in responses],
                "loss": loss.item(),
                "geometric": daa_weights([1, 1, 0, 0, 0, 0, 0, 0], lam=4.0, tau=0.5, schedule="geometric"),
            }))
            """,
        )
    )
    # mean -0.5: A = 1.5 and -0.5; p = 1/4 < 0.5 doubles the correct one
    assert found["advantages"] == [3.0, -0.5, -0.5, -0.5]
    # on-policy: -A per token; sums over L = 10, mean over 4: -(1 * 3 - (2 + 3 + 4) * 0.5) / 10 / 4
    assert found["loss"] == pytest.approx(-(3.0 - 4.5) / 40, rel=1e-6)
    assert found["geometric"] == [4 ** (1 - 0.25 / 0.5)] * 2 + [1.0] * 6


def test_the_command_line_knows_the_algorithm(copy: Path) -> None:
    listed = run(copy, "-m", "da3po_cli", "algos")
    assert "dr_da3po: Dr. DA3PO, this page" in listed
    planned = run(
        copy, "-m", "da3po_cli", "train", "-c", "demo", "--algo", "dr_da3po", "algo.daa_schedule=geometric", "--dry-run"
    )
    assert "Dr. DA3PO" in planned


def test_the_places_of_a_family_agree() -> None:
    """megatron_bridge/families.py, config/models.py and planning/shape.py."""
    from da3po_cli.config.models import SUPPORTED_ARCHITECTURES, facts_from
    from da3po_cli.planning.known import known_models
    from da3po_cli.planning.shape import shape_of
    from megatron_bridge.families import FAMILIES

    assert set(FAMILIES) == set(SUPPORTED_ARCHITECTURES)
    planned = {entry["architectures"][0]: facts_from(entry, where="") for entry in known_models().values()}
    assert set(planned) == set(FAMILIES)
    for architecture, facts in planned.items():
        shape, kind = shape_of(facts), FAMILIES[architecture]
        assert (shape.qkv_bias, shape.qk_norm) == (kind.qkv_bias, kind.qk_norm), architecture


@pytest.mark.slow
def test_a_model_family(copy: Path) -> None:
    """Log-probs of a small random Mistral under Megatron are those of transformers; a window is refused."""
    found = json.loads(
        script(
            copy,
            """
            import json, torch
            from pathlib import Path
            from transformers import MistralConfig, MistralForCausalLM
            from da3po_cli.algos.types import Trajectory
            from da3po_cli.algos.batching import collate
            from da3po_cli.config.models import model_facts
            from da3po_cli.config.schema import TrainConfig
            from da3po_cli.errors import UsageError
            from megatron_bridge import build_policy
            from megatron_bridge.arch import read_arch
            from megatron_bridge.parallel import initialize

            sizes = dict(vocab_size=45, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
            torch.manual_seed(0)
            model = MistralForCausalLM(MistralConfig(**sizes, sliding_window=None)).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.normal_(std=0.3)
            model.save_pretrained("mistral")
            MistralConfig(**sizes, sliding_window=8, architectures=["MistralForCausalLM"]).save_pretrained("window")
            try:
                read_arch(Path("window"))
                refused = ""
            except UsageError as error:
                refused = error.message
            parallel = initialize(1, 1, 1)
            policy = build_policy(Path("mistral"), dtype="float32", parallel=parallel, train=TrainConfig(),
                                  temperature=1.0, seed=1)
            ids = torch.randint(0, 45, (20,)).tolist()
            batch = collate([Trajectory(tuple(ids[:1]), ids[1:], [0.0] * 19, 0.0)], [0])
            ours = policy.logprobs([batch])[0][batch.mask]
            with torch.no_grad():
                theirs = model(torch.tensor([ids])).logits.log_softmax(-1)[0, :-1]
            theirs = theirs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
            parallel.shutdown()
            print(json.dumps({
                "gap": (ours - theirs).abs().max().item(), "spread": theirs.std().item(), "refused": refused,
                "facts": model_facts("mistral").architecture,
            }))
            """,
        ).splitlines()[-1]
    )
    assert found["gap"] < 1e-4 and found["spread"] > 0.1
    assert "sliding-window attention" in found["refused"]
    assert found["facts"] == "MistralForCausalLM"


def test_the_commands_of_the_page_run(copy: Path) -> None:
    """Those of blocks tagged `extended`: a reward of one's own and a CSV file."""
    lines = [line for block in blocks(PAGE) if block.tag == "extended" for line in block.text.splitlines()]
    said = {line: run(copy, "-m", "da3po_cli", *line.split()[1:]) for line in lines}
    assert len(said) == 3
    graded = next(json.loads("[" + ",".join(text.splitlines()) + "]") for line, text in said.items() if "grade" in line)
    assert [(one["verdict"], one["extracted"]) for one in graded] == [("correct", "PARIS."), ("wrong", "Lyon.")]
    assert "5 read, 5 usable" in next(text for line, text in said.items() if "csv" in line)


def test_a_benchmark(copy: Path) -> None:
    from da3po_cli.evals.problems import load_problems
    from da3po_cli.evals.registry import choose, load_registry

    (bench,) = choose("ours", load_registry([copy / "ours.yaml"]))
    assert (bench.title, bench.k, bench.temperature, bench.top_p, bench.options) == (
        "Ours",
        16,
        0.6,
        0.95,
        {"rel_tol": 1e-3},
    )
    found = load_problems(bench)
    assert [problem.answer for problem in found.problems] == ["1", "2", "3", "4", "5"]


def test_a_metric(copy: Path) -> None:
    out = script(
        copy,
        """
        from da3po_cli.algos.diagnostics import batch_metrics
        from da3po_cli.algos.sampling import Batch
        from da3po_cli.algos.types import Group, Prompt, Response

        responses = [Response([1] * n, [0.0] * n, "", "stop", "wrong") for n in (3, 7, 5)]
        groups = [Group(Prompt("u", (1,), "", "", "", 0), responses)]
        print(batch_metrics(Batch(groups, [], groups), tau=0.5, rollout_seconds=1.0)["rollout/longest"])
        """,
    )
    assert out.split() == ["7"]
