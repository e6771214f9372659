"""metrics.jsonl: strict JSON, one record per step, continued after a resume without the steps that are done again."""

import json
import math

import pytest

from da3po_cli.errors import EnvironmentProblem, UsageError
from da3po_cli.runs.metrics import MetricsWriter, read_metrics, to_json


def test_numbers_that_are_not_finite_become_null():
    assert json.loads(to_json({"a": math.nan, "b": math.inf, "c": 1.5})) == {"a": None, "b": None, "c": 1.5}


def test_records_are_on_disk_after_each_write(tmp_path):
    writer = MetricsWriter(tmp_path, wandb_project=None)
    writer.write({"step": 1, "train/acc": 0.5})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "train/acc": 0.5}]
    writer.close()


def test_a_resume_drops_the_steps_past_the_checkpoint(tmp_path):
    first = MetricsWriter(tmp_path, wandb_project=None)
    for step in range(5):
        first.write({"step": step})
    first.close()
    second = MetricsWriter(tmp_path, resume_step=2, wandb_project=None)
    second.write({"step": 3, "again": True})
    second.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 0},
        {"step": 1},
        {"step": 2},
        {"step": 3, "again": True},
    ]


def test_a_broken_line_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "trai\n')
    with pytest.raises(UsageError) as caught:
        read_metrics(tmp_path / "metrics.jsonl")
    assert caught.value.where.endswith("metrics.jsonl:2")


def test_a_last_line_that_a_crash_cut_short_does_not_stop_a_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "trai')
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]
    writer = MetricsWriter(tmp_path, resume_step=2, wandb_project=None)
    writer.write({"step": 3})
    writer.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_tensorboard_has_the_same_numbers(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer = MetricsWriter(tmp_path, tensorboard=True, wandb_project=None)
    writer.write({"step": 7, "train/acc": 0.25, "note": "text is left out"})
    writer.close()
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["train/acc"]
    [point] = events.Scalars("train/acc")
    assert (point.step, point.value) == (7, 0.25)


def test_wandb_without_the_package_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(EnvironmentProblem) as caught:
        MetricsWriter(tmp_path, wandb_project="demo")
    assert "da3po[wandb]" in caught.value.hint


def test_a_record_can_be_amended(tmp_path):
    writer = MetricsWriter(tmp_path, wandb_project=None)
    writer.write({"step": 1, "train/loss": 0.5})
    writer.write({"step": 2, "train/loss": math.nan})
    writer.amend(1, {"val/a/avg@1": 0.25})
    writer.write({"step": 3})
    writer.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 1, "train/loss": 0.5, "val/a/avg@1": 0.25},
        {"step": 2, "train/loss": None},
        {"step": 3},
    ]


@pytest.mark.parametrize("line", ["12\n", '["step"]\n', '{"loss": 1}\n', '{"step": "two"}\n', "\x00\n", "\n"])
def test_a_line_that_is_no_record_of_a_step_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + line + '{"step": 3}\n')
    with pytest.raises(UsageError, match="not a record of a step") as caught:
        read_metrics(tmp_path / "metrics.jsonl")
    assert caught.value.where.endswith("metrics.jsonl:2")


def test_bytes_that_are_no_text_are_named_too(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step\xff": 2}\n')
    with pytest.raises(UsageError) as caught:
        read_metrics(tmp_path / "metrics.jsonl")
    assert caught.value.where.endswith("metrics.jsonl:2")


def test_a_resume_takes_the_record_of_its_step_from_the_checkpoint_only_where_it_is_missing(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "tr')
    writer = MetricsWriter(tmp_path, resume_step=2, resume_record={"step": 2, "saved": True}, wandb_project=None)
    assert writer.cut == '{"step": 2, "tr'
    writer.close()
    assert read_metrics(path) == [{"step": 1}, {"step": 2, "saved": True}]
    again = MetricsWriter(tmp_path, resume_step=2, resume_record={"step": 2, "other": True}, wandb_project=None)
    assert again.cut == ""
    again.close()
    begun = MetricsWriter(tmp_path, resume_step=-1, resume_record={"step": 0}, wandb_project=None)
    begun.close()
    assert read_metrics(path) == [], "step 0 is done again"
    path.write_text('{"step": 1}\n{"step": 2, "saved": true}\n')
    assert read_metrics(path) == [{"step": 1}, {"step": 2, "saved": True}]
