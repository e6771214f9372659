"""Four real ranks over gloo: every layout against transformers and against autograd on its plain models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

HERE = Path(__file__).parent
NAMES = ["qwen3-tied", "qwen3-untied", "qwen2-tied", "qwen2-untied", "llama-tied", "llama-untied"]
PLAIN = ["(2, 2)", "(1, 1)", "(2, 1)", "(1, 2)"]  # (2, 2) first: it writes the checkpoint that the others load
MORE = ["tp2 sp", "tp2 pp2 sp", "pp2 vpp2", "pp2 1+3", "tp4"]
LAYOUTS = [*PLAIN, *(pytest.param(layout, marks=pytest.mark.long) for layout in MORE)]

pytestmark = pytest.mark.slow


class Worlds(dict[str, Any]):
    """What `world.py` found, by layout: one world of 4 ranks for the plain ones, another for those beside them."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.inputs = inputs

    def __missing__(self, layout: str) -> Any:
        layouts = PLAIN if layout in PLAIN else MORE
        if layouts is MORE:
            self[PLAIN[0]]
        self |= self.run(layouts)
        return self[layout]

    def run(self, layouts: list[str]) -> dict[str, Any]:
        given, results = (self.inputs["scratch"] / name for name in ("inputs.pt", "results.pt"))
        torch.save(self.inputs | {"layouts": layouts}, given)
        path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
        clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
        run = subprocess.run(
            [*torchrun, str(HERE / "world.py"), str(given), str(results)],
            env={**clean, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert run.returncode == 0, run.stderr[-6000:]
        return torch.load(results, weights_only=False)


@pytest.fixture(scope="module")
def results(models: Path, rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(dict(rows=rows, models=models, names=NAMES, scratch=tmp_path_factory.mktemp("world")))


@pytest.fixture(scope="module")
def plain(models: Path) -> dict[str, Any]:
    """The same weights in transformers, in float64: exact beside float32."""
    from transformers import AutoModelForCausalLM

    return {name: AutoModelForCausalLM.from_pretrained(models / name, dtype=torch.float64) for name in NAMES}


def row_logprobs(model: Any, row: dict[str, Any], temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probs, entropy) of one unpadded row's response tokens."""
    logits = model(row["ids"][None]).logits[0, row["prompt"] - 1 : -1] / temperature
    table = torch.log_softmax(logits, dim=-1)
    response = row["ids"][row["prompt"] :]
    return table.gather(1, response[:, None])[:, 0], -(table.exp() * table).sum(-1)


def unpad(batches: list[torch.Tensor], rows: list[dict[str, Any]]) -> list[torch.Tensor]:
    """Each row's response log-probs out of padded [B, S] tensors; everything else must be 0."""
    flat = [line for batch in batches for line in batch]
    out = []
    for line, row in zip(flat, rows, strict=True):
        cut = slice(row["prompt"] - 1, len(row["ids"]) - 1)
        out.append(line[cut])
        assert line[: cut.start].abs().sum() == 0 and line[cut.stop :].abs().sum() == 0
    return out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logprobs_equal_transformers(results: Any, plain: Any, rows: Any, layout: str, name: str) -> None:
    for key, temperature in (("logprobs", 1.0), ("warm", 0.7)):
        got = unpad(results[layout]["forward"][name][key], rows)
        for one, row in zip(got, rows, strict=True):
            with torch.no_grad():
                want, _ = row_logprobs(plain[name], row, temperature)
            torch.testing.assert_close(one.double(), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_export_is_the_source_bit_for_bit(results: Any, models: Path, layout: str, name: str) -> None:
    source: dict[str, torch.Tensor] = {}
    for file in (models / name).glob("*.safetensors"):
        source |= load_file(file)
    assert len(list((models / name).glob("*.safetensors"))) > 1 or name != "qwen2-untied"
    export = results[layout]["forward"][name]
    assert set(export["export_names"]) == set(source)
    assert len(export["export_names"]) == len(source)
    if name.endswith("-tied"):
        source["lm_head.weight"] = source["model.embed_tokens.weight"]
    assert set(export["weights"]) == set(source)
    for key, tensor in source.items():
        assert torch.equal(export["weights"][key], tensor), key


def autograd(model: Any, rows: list[dict[str, Any]]) -> tuple[float, dict[str, torch.Tensor], float]:
    """(loss, gradients, summed entropy) of world.objective by autograd, one unpadded row at a time."""
    tokens = sum(len(row["ids"]) - row["prompt"] for row in rows)
    model.zero_grad()
    total, entropies = 0.0, 0.0
    for row in rows:
        logprobs, entropy = row_logprobs(model, row, 0.7)
        ratio = torch.exp(logprobs - row["rollout"][row["prompt"] :])
        loss = -(ratio * row["advantage"]).sum() / tokens
        loss.backward()
        total, entropies = total + loss.item(), entropies + entropy.sum().item()
    return total, {key: param.grad.clone() for key, param in model.named_parameters()}, entropies


def distance(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """|left - right| / |right| of the whole gradient."""
    assert set(left) == set(right)
    gap = sum((left[key].double() - right[key].double()).square().sum() for key in right)
    return float((gap / sum(tensor.double().square().sum() for tensor in right.values())).sqrt())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradient_equal_autograd_however_the_batch_is_cut(
    results: Any, plain: Any, rows: Any, layout: str
) -> None:
    runs = results[layout]["backward"]
    assert {label for _, label in runs} >= {"one", "pairs", "singles"}
    for (name, label), run in runs.items():
        loss, grads, entropy = autograd(plain[name], rows)
        where = f"{layout} {name} {label}"
        norm = float(sum(tensor.double().square().sum() for tensor in grads.values())) ** 0.5
        assert run["loss"] == pytest.approx(loss, rel=2e-6), where
        assert run["update"].loss == pytest.approx(loss, rel=2e-6), where
        assert run["update"].grad_norm == pytest.approx(norm, rel=2e-6), where
        assert not run["update"].skipped
        assert run["sums"]["tokens"] == sum(len(row["ids"]) - row["prompt"] for row in rows)
        assert run["sums"]["entropy"] == pytest.approx(entropy, rel=1e-5), where
        assert distance(run["grads"], grads) < 5e-6, where
        for key, tensor in grads.items():
            torch.testing.assert_close(
                run["grads"][key].double(), tensor, rtol=0, atol=1e-5 * float(tensor.abs().max())
            )


@pytest.mark.parametrize("tensor", [1, 2])
def test_cuts_and_data_ranks_agree_among_themselves(results: Any, tensor: int) -> None:
    """1 to 8 micro-batches on 1, 2 and 4 data-parallel ranks, even, uneven and idle: 1e-6 relative.

    Tensor parallelism adds in another order, which is why each of its sizes is compared with itself.
    """
    runs = {
        (layout, label): run
        for layout in PLAIN
        for (name, label), run in results[layout]["backward"].items()
        if name == "qwen3-tied" and layout.startswith(f"({tensor},")
    }
    assert len(runs) == {1: 10, 2: 8}[tensor]
    first = next(iter(runs.values()))
    for where, run in runs.items():
        assert run["loss"] == pytest.approx(first["loss"], rel=1e-6), where
        assert run["update"].grad_norm == pytest.approx(first["update"].grad_norm, rel=1e-6), where
        assert distance(run["grads"], first["grads"]) < 1e-6, where


def test_resume_is_exact_on_the_same_layout(results: Any) -> None:
    at = results["(2, 2)"]["resume"]
    assert at["straight"][:2] == at["resumed"][:2]
    assert all(torch.equal(at["straight"][2][key], at["resumed"][2][key]) for key in at["straight"][2])
    assert at["straight"][0].loss != at["first"][0].loss


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_a_checkpoint_of_tp2_pp2_goes_on_elsewhere(results: Any, layout: str) -> None:
    straight, resumed = results["(2, 2)"]["resume"]["straight"], results[layout]["resume"]["resumed"]
    for want, got in zip(straight[:2], resumed[:2], strict=True):
        assert got.loss == pytest.approx(want.loss, rel=1e-5)
        assert got.grad_norm == pytest.approx(want.grad_norm, rel=1e-4)
        assert got.lr == want.lr
    for key, tensor in straight[2].items():
        torch.testing.assert_close(resumed[2][key], tensor, rtol=0, atol=2e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_parameter_counts_its_own_steps_after_loading(results: Any, layout: str) -> None:
    counts, tensors = results[layout]["resume"]["counters"]
    assert counts == [2.0] * len(counts)
    assert tensors == len(counts)


def test_warmup_is_saved_and_reference_stays(results: Any) -> None:
    at = results["(2, 2)"]["resume"]
    assert [one.lr for one in at["first"][:2]] == pytest.approx([0.25e-2, 0.5e-2])
    assert [one.lr for one in at["resumed"][:2]] == pytest.approx([0.75e-2, 1e-2])
    initial, reference, trained = at["reference"]
    assert all(torch.equal(*pair) for pair in zip(initial, reference, strict=True))
    assert not torch.equal(trained[0], initial[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bfloat16_trains(results: Any, models: Path, rows: Any, layout: str) -> None:
    from transformers import AutoModelForCausalLM

    run = results[layout]["half"]
    model = AutoModelForCausalLM.from_pretrained(models / "qwen3-tied", dtype=torch.float32)
    for one, row in zip(unpad(run["logprobs"], rows), rows, strict=True):
        with torch.no_grad():
            want, _ = row_logprobs(model, row, 1.0)
        torch.testing.assert_close(one, want, rtol=0, atol=0.3)  # 8 bits of mantissa through 4 layers
    assert all(tensor.dtype is torch.bfloat16 for tensor in run["weights"].values())
    assert run["update"].grad_norm == pytest.approx(results["(1, 1)"]["half"]["update"].grad_norm, rel=0.05)
    assert any(not torch.equal(*pair) for pair in zip(run["logprobs"], run["after"], strict=True))


@pytest.mark.parametrize("layout", PLAIN)
def test_comm(results: Any, layout: str) -> None:
    sent, data_ranks = results[layout]["comm"]
    assert sent == {"from": 0}
    tensor, pipeline = (int(digit) for digit in layout if digit.isdigit())
    data = 4 // (tensor * pipeline)
    assert data_ranks == [rank // tensor % data for rank in range(4)]
