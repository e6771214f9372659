"""What decides about an evaluation, and what its fingerprint sees."""

from dataclasses import replace

import pytest
from eval_helpers import make_job, make_task

from da3po_cli.config.schema import Config, DataConfig, RewardConfig, RolloutConfig, ValidationConfig
from da3po_cli.errors import UsageError
from da3po_cli.evals.identity import checkpoint_fingerprint, directory_fingerprint
from da3po_cli.evals.problems import Problem, Problems
from da3po_cli.evals.registry import Benchmark
from da3po_cli.evals.tasks import Asked, Job, resolve

PROBLEMS = Problems((Problem("a", 5, ({"role": "user", "content": "?"},), "1", "toy"),), "toy.jsonl", 1, ())
RUN = Config(
    data=DataConfig(template="chat", thinking=False),
    reward=RewardConfig(name="arith", by_source="x=math"),
    rollout=RolloutConfig(max_tokens=96),
    validation=ValidationConfig(samples=3, temperature=0.5, top_p=0.9),
)
OPEN = Benchmark("toy", path="toy.jsonl", reward=None)


def test_what_a_benchmark_leaves_open_comes_from_the_run():
    task = resolve(OPEN, PROBLEMS, RUN, Asked(), is_run=True)
    how = task.sampling
    assert (how.n, how.temperature, how.top_p, how.max_tokens, how.seed) == (3, 0.5, 0.9, 96, 1)
    assert (task.template, task.thinking, task.reward, task.by_source) == ("chat", False, "arith", "x=math")
    assert task.uid(task.problems[0]) == "toy-5"


def test_the_benchmark_comes_before_the_run_and_the_command_line_before_both():
    bench = replace(OPEN, k=8, temperature=1.0, top_p=0.7, max_tokens=50, template="boxed", reward="math")
    task = resolve(bench, PROBLEMS, RUN, Asked(), is_run=True)
    assert (task.sampling.n, task.sampling.temperature, task.sampling.top_p, task.sampling.max_tokens) == (
        8,
        1,
        0.7,
        50,
    )
    assert (task.template, task.thinking, task.reward, task.by_source) == ("boxed", None, "math", "")
    task = resolve(bench, PROBLEMS, RUN, Asked(2, 0.0, 1.0, 10, "none", None, 9), is_run=True)
    how = task.sampling
    assert (how.n, how.temperature, how.top_p, how.max_tokens, how.seed) == (2, 0, 1, 10, 9)
    assert task.template == "none"


def test_a_model_that_is_no_run_is_asked_like_the_papers():
    assert resolve(OPEN, PROBLEMS, Config(), Asked(), is_run=False).template == "dapo"


def test_the_demos_benchmark_has_the_uids_of_a_validation():
    """So it draws the very samples that the validation of a run drew."""
    task = resolve(Benchmark("arith", path="arith"), PROBLEMS, RUN, Asked(), is_run=True)
    assert task.uid(task.problems[0]) == "validation-5"


@pytest.mark.parametrize("asked", [Asked(k=0), Asked(max_tokens=0), Asked(temperature=-1.0), Asked(top_p=0.0)])
def test_numbers_without_sense(asked):
    with pytest.raises(UsageError):
        resolve(OPEN, PROBLEMS, RUN, asked, is_run=True)


def test_a_job_survives_its_file(tmp_path):
    job = make_job(make_task(), make_task("other", options={"rel_tol": 0.01}))
    job.write(tmp_path / "job.json")
    assert Job.read(tmp_path / "job.json") == job
    assert Job.read(tmp_path / "job.json").fingerprint == job.fingerprint


def test_the_fingerprint_sees_what_changes_the_numbers():
    base = make_job(make_task())
    task = base.tasks[0]
    others = [
        make_job(task, weights="v"),
        make_job(task, dtype="bfloat16"),
        make_job(task, make_task("more")),
        *(
            make_job(replace(task, **change))
            for change in (
                {"reward": "dapo"},
                {"by_source": "toy=arith"},
                {"options": {"rel_tol": 0.01}},
                {"data": "others"},
                *({"sampling": replace(task.sampling, **one)} for one in ({"n": 3}, {"seed": 2}, {"top_p": 0.5})),
                *({"sampling": replace(task.sampling, **one)} for one in ({"max_tokens": 9}, {"context": 30})),
            )
        ),
        replace(base, stop_token_ids=(2, 3)),
        *(
            replace(base, prompts=((replace(base.prompts[0][0], **change), *base.prompts[0][1:]),))
            for change in ({"token_ids": (1,)}, {"uid": "other-0"}, {"answer": "7"}, {"source": "other"})
        ),
    ]
    assert len({job.fingerprint for job in [base, *others]}) == len(others) + 1


def test_and_not_what_does_not():
    task = make_task()
    same = replace(task, title="Another", place="elsewhere.parquet", warnings=("careful",), metrics=("maj",))
    assert make_job(task).fingerprint == make_job(same, name="renamed").fingerprint


def test_limits_that_the_context_sets_anyway_are_the_same():
    task = make_task()
    one, other = (replace(task, sampling=replace(task.sampling, max_tokens=size, context=100)) for size in (2000, 3000))
    assert make_job(one).fingerprint == make_job(other).fingerprint


def test_weights_are_told_apart(tmp_path):
    for name, content in (("config.json", b"{}"), ("model.safetensors", b"weights"), ("README.md", b"text")):
        (tmp_path / name).write_bytes(content)
    before, plain = directory_fingerprint(tmp_path), directory_fingerprint(tmp_path, weights=False)
    (tmp_path / "README.md").write_bytes(b"more text")
    assert directory_fingerprint(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(b"weightz")
    assert directory_fingerprint(tmp_path) != before
    assert directory_fingerprint(tmp_path, weights=False) == plain


def test_checkpoints_are_told_apart(tmp_path):
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "0.distcp").write_bytes(b"weights")
    (tmp_path / "state.json").write_text("{}")
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    before = checkpoint_fingerprint(tmp_path, source)
    assert checkpoint_fingerprint(tmp_path, source) == before
    (tmp_path / "state.json").write_text('{"step": 2}')
    assert checkpoint_fingerprint(tmp_path, source) != before
