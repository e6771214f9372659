"""Where a source of rollouts stands is saved with a checkpoint, and restored."""

import json

from loop_runs import One

from da3po_cli.algos.sampling import DynamicSampler
from da3po_cli.algos.table import AlgoConfig
from da3po_cli.algos.types import Group, Prompt, Response
from da3po_cli.config.models import DEMO_MODEL
from da3po_cli.config.schema import CheckpointConfig, DataConfig
from da3po_cli.data.prompts import open_stream
from da3po_cli.protocols import Sampling
from da3po_cli.training.checkpoint import CheckpointStore
from da3po_cli.training.clock import Clock
from da3po_cli.training.collect import LiveRollouts


class NoWeights:
    """Stands for the policy."""

    def save(self, directory): ...
    def load(self, directory): ...


class Scripted:
    """A generator whose answers are known: response i of row r is right iff (r + i) % 3 == 0, or never for r == 2."""

    def generate(self, prompts, sampling):
        return [Group(prompt, [self._one(prompt, i) for i in range(sampling.n)]) for prompt in prompts]

    def _one(self, prompt: Prompt, i: int) -> Response:
        right = prompt.index != 2 and (prompt.index + i) % 3 == 0
        return Response([i], [-0.5], str(i), "stop", "correct" if right else "wrong", int(right), 2.0 * right - 1)

    def sleep(self): ...


def live(data, tokenizer):
    sampler = DynamicSampler(AlgoConfig(dynamic_sampling=True, carry_surplus=True), 4)
    prompts = open_stream(data, tokenizer, "train", 3)
    return LiveRollouts(prompts, Scripted(), lambda groups: None, sampler, Sampling(2, 4), lambda *_: None), sampler


def collect(source, steps):
    batches = [source.collect(step, Clock()) for step in steps]
    return [([g.prompt.uid for g in b.kept], len(b.generated), b.rounds, b.carried) for b in batches]


def test_cursor_surplus_and_keep_rate_are_saved_and_restored(tmp_path):
    """A source that is saved after any step goes on as one that never stopped, over several epochs of 7 rows."""
    from transformers import AutoTokenizer

    file = tmp_path / "seven.jsonl"
    file.write_text("".join(json.dumps({"problem": f"{row}+1=?", "answer": str(row + 1)}) + "\n" for row in range(7)))
    made = DataConfig(train=str(file), template="none"), AutoTokenizer.from_pretrained(DEMO_MODEL)
    whole, _ = live(*made)
    expected = collect(whole, range(1, 9))
    assert any(carried for *_, carried in expected)
    for split in range(1, 8):
        first, before = live(*made)
        assert collect(first, range(1, split + 1)) == expected[:split]
        saving = CheckpointStore(tmp_path / str(split), CheckpointConfig(), NoWeights(), first, One())
        saving.save(split, {})
        second, after = live(*made)
        loading = CheckpointStore(tmp_path / str(split), CheckpointConfig(), NoWeights(), second, One())
        assert loading.load(None) == split
        assert after.state() == before.state()
        assert second.state() == first.state()
        assert collect(second, range(split + 1, 9)) == expected[split:]
