"""The policy's part of a checkpoint, with real Megatron-Core: saved in the background, and killed in the middle."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from da3po_cli.config.models import DEMO_MODEL
from da3po_cli.config.schema import CheckpointConfig, Config, ModelConfig, TrainConfig
from da3po_cli.errors import EnvironmentProblem, UsageError

pytestmark = pytest.mark.slow


def make(parallel):
    from da3po_cli.training.build import make_policy

    config = replace(
        Config(), model=ModelConfig(path="demo", dtype="float32"), train=TrainConfig(lr=1e-2, warmup_steps=4)
    )
    return make_policy(config, DEMO_MODEL, parallel)


def batch():
    """Two sequences, every token but the first a response."""
    import torch

    from da3po_cli.algos.types import MicroBatch

    tokens = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 8, 7, 6, 5, 4]])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, -1] = False
    targets = tokens.roll(-1, dims=1) * mask
    return MicroBatch(tokens, targets, mask, torch.ones(2), torch.zeros(tokens.shape))


def learn(policy, times=1):
    """Steps on the log-likelihood of the batch; the losses."""

    def loss(logprobs, entropy, one):
        return -(logprobs * one.mask).sum() / 10, {}

    losses = []
    for _ in range(times):
        losses.append(policy.update([batch()], loss).loss)
        policy.advance_schedule()
    return losses


def weights(policy):
    return {name: tensor.clone() for name, tensor in policy.iter_hf_weights()}


def same(left, right):
    import torch

    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_background_save_holds_the_values_of_its_moment(single, tmp_path, monkeypatch):
    """Training goes on while the writer is held back; a load gives the moment of the save, and the same next steps."""
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    go = threading.Event()
    write = FileSystemWriterAsync.write_preloaded_data

    def held_back(*arguments, **more):
        assert go.wait(60)
        write(*arguments, **more)

    monkeypatch.setattr(FileSystemWriterAsync, "write_preloaded_data", held_back)
    policy = make(single)
    learn(policy, 2)
    then = weights(policy)
    saving = policy.begin_save(tmp_path / "policy")
    expected = learn(policy, 2)
    later = weights(policy)
    assert not same(then, later)
    assert not saving.done()
    assert not (tmp_path / "policy" / "metadata.json").exists()
    go.set()
    saving.finish()
    assert saving.done() and saving.seconds > 0
    again = make(single)
    again.load(tmp_path / "policy")
    assert same(weights(again), then)
    assert learn(again, 2) == expected  # the moments, the step count and the schedule are of that moment too
    assert same(weights(again), later)


def test_the_writer_gets_no_memory_of_the_model():
    """What Megatron hands on as it is, a tensor on the CPU with a storage of its own, is copied; its copies are not."""
    import torch

    from megatron_bridge.checkpoint import _own  # pyright: ignore[reportPrivateUsage]

    live, buffer, copied = torch.ones(3), torch.ones(6), torch.ones(3)
    bucket = ("file", "key", ([("bytes", 0)], [("a", live), ("b", buffer[:3]), ("c", copied)]))
    _, _, (plain, tensors) = _own(bucket, [live, buffer[3:], torch.ones(3)])
    live += 1
    buffer += 1
    assert plain == [("bytes", 0)]
    assert [(name, tensor.tolist()) for name, tensor in tensors] == [(name, [1.0, 1.0, 1.0]) for name in "abc"]
    assert tensors[2][1] is copied


@pytest.mark.parametrize("background", [True, False])
def test_a_disk_that_is_full_is_said_so(single, tmp_path, monkeypatch, background):
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    def full(*_arguments, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(filesystem_async, "_write_item", full)
    policy = make(single)
    with pytest.raises(EnvironmentProblem, match="No space left on device") as caught:
        policy.begin_save(tmp_path / "policy").finish() if background else policy.save(tmp_path / "policy")
    assert "make room" in caught.value.hint
    assert caught.value.exit_code == 3


def test_shards_that_cannot_be_read_are_an_error_of_this_checkpoint(single, tmp_path):
    policy = make(single)
    policy.save(tmp_path / "policy")
    (shard,) = (tmp_path / "policy").glob("*.distcp")
    shard.write_bytes(os.urandom(shard.stat().st_size))
    with pytest.raises(UsageError, match="cannot be read"):
        make(single).load(tmp_path / "policy")


# ---------------------------------------------------------------------------------------------------------- kill -9


class _Source:
    """A cursor that says how many updates the policy has seen."""

    cursor = 0

    def state(self):
        return {"cursor": self.cursor}

    def load_state(self, state):
        self.cursor = state["cursor"]


def store(directory, parallel, policy, **config):
    from da3po_cli.training.checkpoint import CheckpointStore

    source = _Source()
    return CheckpointStore(directory, CheckpointConfig(keep=1, **config), policy, source, parallel), source


def save_for_ever(directory: Path, background: bool) -> None:
    """In a process of its own: learn, save, say so, again. `kill -9` comes from outside."""
    from megatron_bridge.parallel import initialize

    parallel = initialize(1, 1, seed=1)
    policy = make(parallel)
    checkpoints, source = store(directory, parallel, policy, async_save=background)
    for step in range(1, 10_000):
        learn(policy)
        source.cursor = step
        checkpoints.save(step, {})
        checkpoints.poll()
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()


@pytest.mark.parametrize("background", [False, True], ids=["inline", "in the background"])
def test_kill_9_at_random_moments_leaves_a_checkpoint_that_loads(single, tmp_path, background):
    """Four processes that do nothing but save are killed; what is left equals that many updates, bit for bit."""
    import torch

    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    # sums differ in the last bit with the number of threads
    environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    moments = random.Random(5)
    jobs = []
    for number in range(4):
        jobs.append(
            subprocess.Popen(
                [sys.executable, __file__, str(tmp_path / str(number)), str(int(background))],
                env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        if number % 2:
            for index, job in enumerate(jobs[-2:]):
                for _ in range(2 + index):
                    assert job.stdout is not None and job.stdout.readline()
                threading.Event().wait(moments.uniform(0, 0.3))
                job.send_signal(signal.SIGKILL)
                job.wait()
    reference, losses = make(single), []
    after = []
    for _ in range(60):
        after.append(weights(reference))
        losses += learn(reference)
    for number in range(4):
        policy = make(single)
        checkpoints, source = store(tmp_path / str(number), single, policy)
        checkpoints.open()
        step = checkpoints.load(None)
        assert step == source.cursor >= 1
        assert step < 60, "the machine was too fast for this test"
        assert same(weights(policy), after[step])
        assert learn(policy) == [losses[step]]


if __name__ == "__main__":
    save_for_ever(Path(sys.argv[1]), sys.argv[2] == "1")
