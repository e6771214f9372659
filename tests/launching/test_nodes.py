"""Several nodes: two agents of torchrun on loopback. Real ranks, Megatron-Core, vLLM and the demo model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from da3po_cli.errors import DivergedError
from da3po_cli.launching.launch import note_error
from da3po_cli.launching.nodes import Place, identity, outer_launcher, same_job
from da3po_cli.runs.directory import RunDir
from da3po_cli.runs.metrics import read_metrics
from da3po_cli.training.job import _first_to_fail

REPOSITORY = Path(__file__).parents[2]
SMALL = [
    "--config=demo",
    "rollout.prompts=4",
    "rollout.group_size=4",
    "train.mini_batch_prompts=4",
    "validation.prompts=8",
    "validation.samples=2",
    "checkpoint.every=1",
    "run.tensorboard=false",
]
STEPS = 24  # of a replayed run, whose steps take a tenth of a second: time enough to kill a rank


def environment(runs: Path, **more: str) -> dict[str, str]:
    ours = ("DA3PO_", "SLURM_", "TORCHELASTIC_", "OMP_NUM_THREADS")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        clean.pop(name, None)
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    return clean | {"DA3PO_RUNS": str(runs), "PYTHONPATH": path} | more


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Nodes:
    """Two agents of torchrun, each with its ranks, that meet at a port of their own and run one `da3po train`."""

    def __init__(self, runs: list[Path], per_node: int, *arguments: str, restarts: int = 0, cold: str = "") -> None:
        port, name = free_port(), next(one for one in arguments if one.startswith("--name=")).partition("=")[2]
        self.agents: list[subprocess.Popen[str]] = []
        for node in range(2):
            torchrun = [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={per_node}"),
                *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={name}"),
                *("--local-addr=127.0.0.1", f"--max-restarts={restarts}"),
            ]
            self.agents.append(
                subprocess.Popen(
                    [*torchrun, "-m", "da3po_cli", "train", *arguments],
                    env=environment(runs[node], OMP_NUM_THREADS="1", COLD=cold),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()  # its ranks with it

    def finish(self, seconds: float = 600) -> list[tuple[int, str, str]]:
        """Exit code, stdout and stderr of each agent."""
        deadline = time.monotonic() + seconds
        with self:
            ended = [agent.communicate(timeout=max(1.0, deadline - time.monotonic())) for agent in self.agents]
        return [(agent.returncode, *both) for agent, both in zip(self.agents, ended, strict=True)]


def ranks_of(agents: list[subprocess.Popen[str]]) -> dict[int, int]:
    """Process id by rank, of the ranks that these agents have started."""
    found: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent in [agent.pid for agent in agents]:
                variables = (stat.parent / "environ").read_bytes().split(b"\0")
                found |= {int(one[5:]): int(stat.parent.name) for one in variables if one.startswith(b"RANK=")}
        except OSError:  # it has just ended
            continue
    return found


def train(root: Path, *arguments: str) -> None:
    """One node: `da3po train` with an agent in the process."""
    done = subprocess.run(
        [sys.executable, "-m", "da3po_cli", "train", *arguments],
        env=environment(root, OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


def metrics(run: Path) -> list[dict[str, object]]:
    """The records of a run without what depends on the machine's speed."""
    return [
        {
            name: value
            for name, value in record.items()
            if not name.startswith("timing/") and not name.endswith(("_per_s", "/seconds"))
        }
        for record in read_metrics(run / "metrics.jsonl")
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference: a live run of one node with two ranks."""
    root = tmp_path_factory.mktemp("runs")
    train(root, *SMALL, "--steps=2", "--name=one", "parallel.data=2")
    return root


@pytest.mark.slow
def test_two_nodes_train_as_one_bit_for_bit(root: Path) -> None:
    """The same collectives over the same ranks; where a rank runs changes no number."""
    nodes = Nodes([root, root], 1, *SMALL, "--steps=2", "--name=two", "--json")
    ended = nodes.finish()
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert metrics(root / "two") == metrics(root / "one")
    talk = sorted((out for _, out, _ in ended), key=len)
    assert talk[0] == "", "only global rank 0 prints"
    events = [json.loads(line)["event"] for line in talk[1].splitlines()]
    assert events == ["launch", "step", "step", "step", "done"]
    record = RunDir(root / "two").read()
    assert (record["status"], len(record["attempts"])) == ("finished", 1)
    assert (root / "two/logs/attempt_1/rank_1.log").is_file()
    assert not list(root.glob("two/logs/*/token"))


# --------------------------------------------------------------------------------------- replayed rollouts, no engine


@pytest.fixture(scope="module")
def replay(root: Path) -> list[str]:
    """The two steps' rollouts again and again, as a run of many steps."""
    folder = root / "long"
    folder.mkdir()
    for step in range(1, STEPS + 1):
        (folder / f"step_{step}.jsonl").symlink_to(root / "one" / "rollouts" / f"step_{(step - 1) % 2 + 1}.jsonl")
    return [*SMALL, f"--replay-rollouts={folder}", "data.validation=null"]


@pytest.mark.slow
@pytest.mark.long
def test_four_ranks_on_two_nodes(root: Path, replay: list[str]) -> None:
    """Tensor parallel 2 within a node, data parallel 2 over the nodes."""
    layout = ["parallel.tensor=2", "parallel.data=2", "--steps=3"]
    train(root, *replay, *layout, "--name=four")
    ended = Nodes([root, root], 2, *replay, *layout, "--name=four-2x2").finish()
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert metrics(root / "four-2x2") == metrics(root / "four")
    assert RunDir(root / "four-2x2").saved_steps() == RunDir(root / "four").saved_steps() == [2, 3]


@pytest.fixture(scope="module")
def uninterrupted(root: Path, replay: list[str]) -> list[dict[str, object]]:
    train(root, *replay, f"--steps={STEPS}", "--name=whole", "parallel.data=2")
    return metrics(root / "whole")


@pytest.mark.slow
def test_a_killed_rank_is_restarted_from_the_last_checkpoint(
    root: Path, replay: list[str], uninterrupted: list[dict[str, object]]
) -> None:
    """kill -9 of a rank on one node: torchrun starts all again, and the run ends as one that nothing happened to."""
    run = RunDir(root / "killed")
    # cold: a fork does not show its rank in /proc
    with Nodes([root, root], 1, *replay, f"--steps={STEPS}", "--name=killed", restarts=2, cold="1") as nodes:
        for _ in seconds(600):
            if run.saved_steps():
                break
        os.kill(ranks_of(nodes.agents)[1], signal.SIGKILL)
        ended = nodes.finish()
    assert [code for code, _, _ in ended] == [0, 0], ended
    record = run.read()
    assert record["status"] == "finished"
    assert len(record["attempts"]) == 2
    assert sum("the ranks were started again: going on with" in err for _, _, err in ended) == 1
    assert not any("this is a bug" in err for _, _, err in ended)
    assert metrics(run.path) == uninterrupted
    assert run.saved_steps() == [STEPS - 1, STEPS]


@pytest.mark.slow
@pytest.mark.long
def test_before_the_first_checkpoint_a_restart_begins_anew(
    root: Path, replay: list[str], uninterrupted: list[dict[str, object]]
) -> None:
    """`--restarts` of the command itself, without torchrun; here rank 0 dies, which keeps the records."""
    name = "early"
    command = [sys.executable, "-m", "da3po_cli", "train", *replay, "checkpoint.every=0", f"--steps={STEPS}"]
    job = subprocess.Popen(
        [*command, f"--name={name}", "parallel.data=2", "--restarts=1"],
        env=environment(root, OMP_NUM_THREADS="1", COLD="1"),
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in seconds(600):
        if (root / name / "metrics.jsonl").is_file() and len(read_metrics(root / name / "metrics.jsonl")) >= 2:
            break
    os.kill(ranks_of([job])[0], signal.SIGKILL)
    _, err = job.communicate(timeout=600)
    assert job.returncode == 0, err
    assert [record["step"] for record in metrics(root / name)] == list(range(1, STEPS + 1))
    assert metrics(root / name) == uninterrupted


@pytest.mark.slow
def test_run_directories_that_are_not_shared_are_refused_before_training(root: Path, replay: list[str]) -> None:
    """Each rank writes its part of a checkpoint; on two disks there would be two halves."""
    places = [root / "node0", root / "node1"]
    nodes = Nodes(places, 1, *replay, "--steps=2", "--name=apart")
    ended = nodes.finish()
    assert all(code != 0 for code, _, _ in ended)
    said = "".join(err for _, _, err in ended)
    assert "no access to the files that rank 0 on" in said
    assert "fix: DA3PO_RUNS=DIR, on a file system that all nodes share" in said
    made = [place for place in places if (place / "apart").exists()]
    assert len(made) == 1, "the node without rank 0 has made nothing"
    assert RunDir(made[0] / "apart").read()["status"] == "failed"
    assert not (made[0] / "apart" / "metrics.jsonl").exists()


def seconds(limit: float) -> Iterator[None]:
    """Try again for so long."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)
    raise AssertionError(f"not within {limit} s")


# ------------------------------------------------------------------------------------------------------------ srun


def tasks(runs: Path, *arguments: str, job: str = "7") -> list[subprocess.CompletedProcess[str]]:
    """Two tasks of an srun on two nodes: its variables, and no agent that would keep anything for them."""
    port = str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "da3po_cli", "train", *arguments],
            env=environment(
                runs,
                OMP_NUM_THREADS="1",
                SLURM_JOB_ID=job,
                SLURM_STEP_ID="0",
                SLURM_PROCID=str(task),
                SLURM_LOCALID="0",
                SLURM_STEP_NUM_TASKS="2",
                SLURM_STEP_TASKS_PER_NODE="1(x2)",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for task in range(2)
    ]
    try:
        said = [task.communicate(timeout=600) for task in started]
    finally:
        for task in started:
            task.kill()
    return [
        subprocess.CompletedProcess(one.args, one.returncode, *both) for one, both in zip(started, said, strict=True)
    ]


@pytest.mark.slow
def test_tasks_of_srun_are_ranks(root: Path, replay: list[str], uninterrupted: list[dict[str, object]]) -> None:
    """Without --name the run is called after the job; asked again when it is done, all tasks end well."""
    first, second = tasks(root, *replay, "--steps=2", "--json")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert [json.loads(line)["event"] for line in first.stdout.splitlines()] == ["launch", "step", "step", "done"]
    assert second.stdout == ""
    run = RunDir(root / "da3po-demo-7")
    assert metrics(run.path) == uninterrupted[:2]
    assert run.read()["attempts"][0]["launcher"] == "7.0"
    requeued = tasks(root, *replay, "--steps=2")
    assert [task.returncode for task in requeued] == [0, 0], requeued
    assert "nothing to do" in requeued[0].stderr
    assert len(run.read()["attempts"]) == 1


@pytest.mark.slow
def test_an_error_of_rank_0_ends_all_ranks_with_its_exit_code(tmp_path: Path) -> None:
    first, second = tasks(tmp_path, "--config=demo", "train.lrr=1", "--json")
    assert (first.returncode, second.returncode) == (2, 2)
    assert "train.lrr" in first.stderr
    assert second.stderr.splitlines() == ["rank 1: error: rank 0 has ended the job; its output says why"]
    assert "train.lrr" in json.loads(first.stdout)["error"]["problems"][0]["message"]
    assert second.stdout == ""
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------- pure: places, identities


def test_a_task_of_srun_with_one_device_of_its_own() -> None:
    """--gpus-per-task=1: every task sees one device, which has number 0."""
    task = {
        "SLURM_PROCID": "11",
        "SLURM_LOCALID": "3",
        "SLURM_STEP_NUM_TASKS": "16",
        "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
        "SLURM_JOB_ID": "7",
    }
    every, own = outer_launcher(task), outer_launcher(task | {"CUDA_VISIBLE_DEVICES": "3"})
    assert every is not None and own is not None
    assert (every.local_rank, own.local_rank) == (3, 0)
    assert own.rank == 11
    eight = outer_launcher(task | {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"})
    assert eight is not None and eight.local_rank == 3


def test_how_often_a_rank_was_started_again() -> None:
    ours = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "2"}
    requeued = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}
    assert [place.restarts for one in (ours, requeued) if (place := outer_launcher(one))] == [2, 1]


@pytest.mark.parametrize(
    ("change", "restarts", "expected"),
    [
        ({}, 0, True),  # the agent only followed another one's restart
        ({"launcher": "other:1"}, 1, True),  # another agent has rank 0 now, or the job was requeued
        ({"launcher": "other:1"}, 0, False),  # a second job of that name
        ({"launcher": "other:1", "job": "8"}, 1, False),  # a job that was restarted before it made its directory
    ],
)
def test_whose_attempt_it_was(change: dict[str, str], restarts: int, expected: bool) -> None:
    own = {"job": "7", "launcher": "host:1", "process": "new"}
    assert same_job({**own, "process": "old", **change}, own, restarts) is expected


def test_an_attempt_of_this_process_or_without_a_job_is_none_to_go_on_with() -> None:
    own = identity(Place(0, 0, 2, 1, "7"), {"TORCHELASTIC_RUN_ID": "7"})
    assert own["launcher"] == f"{socket.gethostname()}:{os.getppid()}"
    assert not same_job(own, own, 1)
    assert not same_job({"started": "2026-01-01"}, own, 1)


def test_steps_of_srun_in_one_allocation_are_different_jobs() -> None:
    variables = {"SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}
    first, second = (identity(Place(0, 0, 2, 1, "7"), variables | {"SLURM_STEP_ID": step}) for step in ("0", "1"))
    assert not same_job({**first, "process": "old"}, second, 0)
    assert same_job({**first, "process": "old"}, second, 1), "after a requeue the steps are counted anew"


def test_rank_0_names_the_rank_that_failed_before_it(tmp_path: Path) -> None:
    lost = RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:10144: Connection reset by peer. Th")
    note_error(lost, tmp_path, 0)
    alone = _first_to_fail(lost, tmp_path)
    assert alone.message.startswith("a rank has gone without a word, killed perhaps: [gloo")
    assert alone.where == str(tmp_path)
    record = json.loads((tmp_path / "rank_0.error.json").read_text())
    note_error(DivergedError("loss is nan", where="step 3"), tmp_path, 1)
    file = tmp_path / "rank_1.error.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"time": record["time"] - 1}))
    first = _first_to_fail(lost, tmp_path)
    assert (first.message, first.exit_code) == ("rank 1: loss is nan", 5)
