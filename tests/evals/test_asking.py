"""The prompts of an evaluation by a real tokenizer, the limits of their responses, and what its name sees of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from da3po_cli.config.schema import Config
from da3po_cli.data import templates
from da3po_cli.errors import UsageError
from da3po_cli.evals import asking
from da3po_cli.evals.asking import ask, ask_in_child
from da3po_cli.evals.problems import Problem, Problems
from da3po_cli.evals.registry import Benchmark
from da3po_cli.evals.tasks import Asked, Job, Model, Task, resolve

DEMO = Path(__file__).parents[2] / "da3po_cli" / "demo_model"
POSITIONS = 512  # of the demo's model; its tokens are characters
SHORT, LONG = ["1+2=", "12+34="], ["1+" * 50 + "1="]


def toy(name: str, texts: Sequence[str], max_tokens: int | None = None, template: str = "none") -> Task:
    messages = [({"role": "user", "content": text},) for text in texts]
    rows = tuple(Problem(f"{name}{at}", at, message, "3", name) for at, message in enumerate(messages))
    bench = Benchmark(name, title=name, path=f"{name}.jsonl", max_tokens=max_tokens)
    return resolve(
        bench, Problems(rows, bench.path or "", len(rows), ()), Config(), Asked(template=template), is_run=False
    )


def job(*tasks: Task, path: Path = DEMO, stop_tokens: str | None = None) -> Job:
    return ask(Model("demo", str(path), "w"), tasks, {}, stop_tokens)


def requests(job: Job, name: str) -> list[tuple[str, tuple[int, ...], int, int]]:
    """What decides about the samples of a benchmark: uid, tokens, limit and seed."""
    (at,) = [at for at, task in enumerate(job.tasks) if task.name == name]
    how = job.tasks[at].sampling
    return [(one.uid, one.token_ids, how.limit(one), how.seed) for one in job.prompts[at]]


def test_a_prompt_has_the_room_that_it_leaves_whatever_else_is_asked():
    alone, beside = job(toy("a", SHORT)), job(toy("a", SHORT), toy("b", LONG))
    assert [limit for _, _, limit, _ in requests(alone, "a")] == [POSITIONS - 4, POSITIONS - 6]
    assert requests(beside, "a") == requests(alone, "a")
    assert [limit for _, _, limit, _ in requests(beside, "b")] == [POSITIONS - 102]
    assert beside.facts["max_tokens"] == {"a": [506, 508], "b": [410, 410]}
    assert any(
        note.startswith("a: 2 of 2 prompts leave less than 20480") and "506 to 508" in note for note in beside.notes
    )


def test_the_limit_of_a_benchmark_comes_first_where_there_is_room():
    found = job(toy("a", SHORT, max_tokens=50), toy("b", LONG, max_tokens=420))
    assert found.facts["max_tokens"] == {"a": [50, 50], "b": [410, 410]}
    assert [note.partition(":")[0] for note in found.notes] == ["b"]


@pytest.mark.parametrize(
    ("tasks", "context"),
    [
        ([("a", SHORT, 50)], 56),  # 6 + 50
        ([("a", SHORT, 300), ("b", LONG, 50)], 306),  # the longest response is not one to the longest prompt
        ([("a", SHORT, 300), ("b", LONG, 250)], 352),  # 102 + 250
        ([("a", SHORT, 9999), ("b", LONG, 9999)], POSITIONS),
    ],
)
def test_the_context_is_what_the_longest_pair_needs(tasks: list[tuple[str, list[str], int]], context: int) -> None:
    assert job(*(toy(*one) for one in tasks)).longest == context


@pytest.mark.parametrize("length", [POSITIONS, POSITIONS + 5])
def test_a_prompt_without_room_is_named(length: int) -> None:
    with pytest.raises(UsageError, match=f"b: prompt b-1 has {length} tokens and leaves no room .* context of 512"):
        job(toy("a", SHORT), toy("b", ["1+2=", "1" * length]))
    assert job(toy("a", ["1" * (POSITIONS - 1)])).facts["max_tokens"] == {"a": [1, 1]}


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    found = job(toy("a", SHORT), toy("b", LONG))
    found.write(tmp_path / "job.json")
    again = Job.read(tmp_path / "job.json")
    assert again == found and again.fingerprint == found.fingerprint


def changed_tokenizer(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One character more has a token of its own, and its neighbour's."""
    file = copy / "tokenizer.json"
    raw = json.loads(file.read_text())
    vocab = raw["model"]["vocab"]
    vocab["1"], vocab["2"] = vocab["2"], vocab["1"]
    file.write_text(json.dumps(raw))


def changed_instruction(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "BOXED_SUFFIX", "=")


def changed_join(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_instructed", lambda messages, task: [{**messages[-1], "content": "1+1="}])


def changed_positions(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = copy / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 256}))


def changed_stops(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = copy / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": [2, 5]}))


@pytest.mark.parametrize(
    "change", [changed_tokenizer, changed_instruction, changed_join, changed_positions, changed_stops]
)
def test_the_fingerprint_sees_whatever_changes_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    """The weights' fingerprint stays the same here: what the engine is asked is what differs."""
    copy = tmp_path / "model"
    shutil.copytree(DEMO, copy)
    task = toy("a", SHORT, template="boxed")
    before = job(task, path=copy)
    assert job(task, path=copy).fingerprint == before.fingerprint
    change(copy, monkeypatch)
    assert job(task, path=copy).fingerprint != before.fingerprint


def test_a_template_file_counts_by_what_it_writes(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    prints = []
    for source in ("{{ problem }}", "{{ problem }}{# the same #}", "{{ problem }}1"):
        file.write_text(source)
        prints.append(job(toy("a", SHORT, template=str(file))).fingerprint)
    assert prints[0] == prints[1] != prints[2]


def test_stop_tokens_are_asked_for_too() -> None:
    one, other = job(toy("a", SHORT)), job(toy("a", SHORT), stop_tokens="=")
    assert set(other.stop_token_ids) - set(one.stop_token_ids)
    assert one.fingerprint != other.fingerprint


def test_a_child_asks_the_same_and_its_errors_are_raised_here() -> None:
    task = toy("a", SHORT)
    assert ask_in_child(Model("demo", str(DEMO), "w"), [task], {"dtype": "float32"}, "=") == ask(
        Model("demo", str(DEMO), "w"), [task], {"dtype": "float32"}, "="
    )
    with pytest.raises(UsageError, match="leaves no room") as caught:
        ask_in_child(Model("demo", str(DEMO), "w"), [toy("a", ["1" * POSITIONS])], {}, None)
    assert caught.value.where == str(DEMO) and "--template" in (caught.value.hint or "")
    with pytest.raises(RuntimeError, match="exit code 1"):  # a bug in the child
        ask_in_child(Model("demo", str(DEMO), "w"), [None], {}, None)  # pyright: ignore[reportArgumentType]


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("no JSON")
    with pytest.raises(UsageError, match=f"cannot load the tokenizer of '{tmp_path}'"):
        job(toy("a", SHORT), path=tmp_path)
