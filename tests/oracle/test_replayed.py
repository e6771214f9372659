"""Two steps on saved rollouts, computed by da3po and by the oracle: every algorithm, and what combines with it."""

from __future__ import annotations

import pytest
import synthetic
from oracle_runs import disagreements, train

from da3po_cli.runs.metrics import read_metrics

ARMS = {
    "da3po": ("da3po", []),
    "lambda falls with the pass rate": ("da3po", ["algo.daa_schedule=linear", "algo.daa_lambda=3"]),
    "lambda undoes the filter": ("da3po", ["algo.daa_schedule=inverse_gamma"]),
    "dapo": ("dapo", []),
    "grpo": ("grpo", []),
    "gspo": ("gspo", ["algo.tis=on"]),
    "dr_grpo": ("dr_grpo", []),
    "population std": ("grpo", ["algo.std_ddof=0", "algo.std_power=0.5"]),
    "two epochs": ("da3po", ["train.epochs=2"]),
    "a short last mini-batch": ("dapo", ["rollout.prompts=9", "train.mini_batch_prompts=3"]),
    "one mini-batch": ("da3po", ["train.mini_batch_prompts=8"]),
    "KL": ("grpo", ["algo.kl_coef=0.05"]),
    "TIS": ("da3po", ["algo.tis=on", "algo.tis_cap=1.2"]),
    "temperature": ("da3po", ["rollout.temperature=0.7"]),
    "dual clip": ("dapo", ["algo.dual_clip=1.01", "train.epochs=2"]),
    "small micro-batches": ("dapo", ["train.micro_batch_tokens=40"]),
    "no clipping of the gradient": ("dapo", ["train.grad_clip=100"]),
}


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory):
    return synthetic.write(tmp_path_factory.mktemp("saved") / "run")


@pytest.mark.parametrize(("algo", "overrides"), ARMS.values(), ids=ARMS)
def test_two_steps(tmp_path, rollouts, algo, overrides):
    run = train(tmp_path, "run", *overrides, algo=algo, replay=rollouts)
    (run.path / "rollouts").symlink_to(rollouts / "rollouts")
    assert disagreements(run, replayed=True) == []


def test_a_group_of_older_weights_turns_tis_on(tmp_path):
    """In float32 too, and for the whole step: step 1 has no such group, step 2 has one."""
    saved = synthetic.write(tmp_path / "saved", older=True)
    run = train(tmp_path, "run", replay=saved)
    (run.path / "rollouts").symlink_to(saved / "rollouts")
    assert ["train/tis" in record for record in read_metrics(run.metrics_file)] == [False, True]
    assert disagreements(run, replayed=True) == []


def test_groups_of_another_size_than_the_config(tmp_path):
    saved = synthetic.write(tmp_path / "saved", size=6)
    run = train(tmp_path, "run", replay=saved)
    (run.path / "rollouts").symlink_to(saved / "rollouts")
    assert disagreements(run, replayed=True) == []
