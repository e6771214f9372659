"""The grading pool with real worker processes: order, deadlines, deaths, memory, threads, custom rewards."""

import os
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from da3po_cli.errors import UsageError
from da3po_cli.rewards import GradingPool, MathOptions, self_check
from da3po_cli.rewards.pool.pool import CHUNK, DEADLINE

REWARDS = """
import os, signal, sys, time
from da3po_cli.rewards import Grade

def by_text(response, finish_reason, gold):
    if response == "spin":
        while True:
            pass
    if response == "spin in C":
        sum(range(10**12))
    if response == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if response == "exit":
        os._exit(7)
    if response == "eat memory":
        bytearray(4 * 2**30)
    if response == "raise":
        raise KeyError("x")
    if response == "print":
        print("to stdout", sys.stdin.read())
    if response == "half":
        return 0.5
    return response == gold

def graded(response, finish_reason, gold):
    return Grade("correct", "seen", finish_reason)

def two(response, gold):
    return True

def fails(response, finish_reason, gold):
    raise RuntimeError("no")

def number(response, finish_reason, gold):
    return 1.0

constant = 3
"""


@pytest.fixture
def rewards(tmp_path, monkeypatch):
    (tmp_path / "pool_test_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "pool_test_rewards"
    sys.modules.pop("pool_test_rewards", None)


def alive(pids):
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def children():
    """Grading workers of this process, by pid."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            words = (entry / "cmdline").read_text()
        except (OSError, IndexError):
            continue
        if parent == os.getpid() and "da3po_cli.rewards.pool.worker" in words:
            found.append(int(entry.name))
    return found


def test_grades_come_back_in_order_and_processes_end():
    items = [(rf"\boxed{{{n}}}", "stop", str(n if n % 3 else n + 1)) for n in range(500)]
    with GradingPool(workers=2) as pool:
        assert not children()  # they start with the first answer
        grades = pool.grade(items)
        started = children()
        assert len(started) == 2
        assert pool.grade([]) == []
    assert [grade.verdict for grade in grades] == ["correct" if n % 3 else "wrong" for n in range(500)]
    assert [grade.extracted for grade in grades] == [str(n) for n in range(500)]
    assert not alive(started)
    with pytest.raises(RuntimeError, match="closed"):
        pool.grade(items)


@pytest.mark.parametrize("text", ["spin", "spin in C"])
def test_an_answer_past_its_deadline_is_unknown_and_the_others_are_graded_on_time(rewards, text):
    items = [("a", "stop", "a" if n % 2 else "b") for n in range(2 * CHUNK)]
    items[CHUNK // 2] = (text, "stop", "a")
    with GradingPool(f"{rewards}:by_text", workers=2, deadline_s=1.0) as pool:
        pool.grade(items[:4])
        start = time.monotonic()
        grades = pool.grade(items)
        waited = time.monotonic() - start
        assert pool.grade(items[:4])[1].verdict == "correct"  # the pool is whole again
    late = grades.pop(CHUNK // 2)
    assert (late.verdict, late.rule, late.seconds) == ("unknown", DEADLINE, 1.0)
    expected = ["correct" if n % 2 else "wrong" for n in range(2 * CHUNK) if n != CHUNK // 2]
    assert [grade.verdict for grade in grades] == expected
    assert waited < 20  # wall time; the machine may be busy


def test_while_one_answer_hangs_the_rest_of_its_chunk_is_graded_elsewhere(rewards):
    """The deadline is far away: only stealing lets the others finish."""
    items = [("spin", "stop", "a")] + [("a", "stop", "a")] * (CHUNK - 1)
    job_done = []
    with GradingPool(f"{rewards}:by_text", workers=2, deadline_s=8.0) as pool:
        pool.grade([("a", "stop", "a")] * 8)
        start = time.monotonic()
        with ThreadPoolExecutor(1) as threads:
            slow = threads.submit(pool.grade, items)
            time.sleep(0.6)
            quick = pool.grade([("a", "stop", "a")] * 64)
            job_done.append(time.monotonic() - start)
            assert {grade.verdict for grade in quick} == {"correct"}
            assert not slow.done()
            grades = slow.result()
    assert job_done[0] < 8.0
    assert [grade.verdict for grade in grades] == ["unknown"] + ["correct"] * (CHUNK - 1)


def test_deaths_and_failures_cost_one_answer_each(rewards):
    texts = ["a", "die", "a", "exit", "eat memory", "raise", "print", "half", "a"]
    with GradingPool(f"{rewards}:by_text", workers=1) as pool:
        grades = pool.grade([(text, "stop", "a") for text in texts])
    assert [grade.verdict for grade in grades] == [
        "correct", "unknown", "correct", "unknown", "unknown", "unknown", "wrong", "unknown", "correct",
    ]  # fmt: skip
    assert grades[1].rule == "grader killed by signal 9"
    assert grades[3].rule == "grader ended with exit code 7"
    assert grades[4].rule == "out of memory"
    assert grades[5].rule == "grader raised KeyError"
    assert grades[7].rule == "grader raised TypeError"


def test_any_thread_and_several_at_once():
    items = [(rf"\boxed{{{n}}}", "stop", str(n)) for n in range(100)]
    with GradingPool(workers=2) as pool, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(pool.grade, [items] * 16))
    assert all(len(grades) == 100 and {g.verdict for g in grades} == {"correct"} for grades in results)


def test_a_custom_reward_may_return_a_grade(rewards):
    with GradingPool(f"{rewards}:graded", workers=1) as pool:
        (grade,) = pool.grade([("x", "length", "y")])
    assert (grade.verdict, grade.extracted, grade.rule) == ("correct", "seen", "length")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "no reward named"),
        ("{}:absent", "cannot import"),
        ("not_a_module:f", "cannot import"),
        ("{}:constant", "is a int"),
        ("{}:two", "another signature"),
        ("{}:fails", "raised RuntimeError"),
        ("{}:number", "returned a float"),
    ],
)
def test_what_is_no_reward_is_an_error_that_says_why(rewards, name, words):
    with GradingPool(name.format(rewards), workers=1) as pool, pytest.raises(UsageError, match=words) as caught:
        pool.grade([("a", "stop", "a")])
    assert caught.value.hint


def test_options_reach_the_workers():
    with GradingPool(options=MathOptions(rel_tol=0.01, fallback="bare"), workers=1) as pool:
        assert pool.grade([("3.15", "stop", "3.14")])[0].verdict == "correct"
    with GradingPool("dapo", options=MathOptions(rel_tol=0.01), workers=1) as pool, pytest.raises(UsageError):
        pool.grade([("3.15", "stop", "3.14")])


def test_golds_verify_themselves():
    assert self_check(["1", "", r"\frac{1}{2}", "x<3"], workers=1) == [True, False, True, True]
    assert self_check(["12", "-3"], "arith", workers=1) == [True, True]
    assert self_check(["12", r"\text{yes}"], "dapo", workers=1) == [True, True]
    with GradingPool(workers=1) as pool:
        assert pool.verify_golds([""])[0].rule == "empty gold answer"


def test_workers_do_not_import_the_main_module_and_end_with_their_parent(tmp_path):
    """A trainer killed by force leaves no worker behind, and its script is not run a second time."""
    script = tmp_path / "trainer.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal
            print("main runs", flush=True)
            from da3po_cli.rewards import GradingPool
            pool = GradingPool(workers=1)
            print(pool.grade([("\\\\boxed{1}", "stop", "1")])[0].verdict, flush=True)
            print(*[p for p in os.listdir("/proc") if p.isdigit() and os.path.exists(f"/proc/{p}/stat") and
                    open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[1] == str(os.getpid())], flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120)
    lines = done.stdout.split("\n")
    assert lines[:2] == ["main runs", "correct"]
    workers = [int(pid) for pid in lines[2].split()]
    assert workers
    for _ in range(100):
        if not alive(workers):
            break
        time.sleep(0.1)
    assert not alive(workers)


def test_the_pool_imports_no_torch():
    code = (
        "import sys, da3po_cli.rewards; print([m for m in ('torch', 'sympy', 'mpmath', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "[]", done.stderr
