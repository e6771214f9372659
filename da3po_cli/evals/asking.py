"""What held-out problems become for the engine: prompts, the longest response to each, and the tokens that end one."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from da3po_cli.algos.types import Prompt
from da3po_cli.data.formats import Message
from da3po_cli.data.templates import encode, make_renderer, stop_token_ids, unknown_token_id
from da3po_cli.data.wraps import BOXED_SUFFIX, bare_problem
from da3po_cli.errors import Da3poError, UsageError
from da3po_cli.evals.tasks import PLAIN_TEMPLATES, Job, Model, Task
from da3po_cli.launching.models import load_tokenizer
from da3po_cli.protocols import Sampling


def ask(model: Model, tasks: Sequence[Task], engine: dict[str, Any], stop_tokens: str | None) -> Job:
    """The evaluation with the prompts that the model's tokenizer makes of the problems. Loading that takes seconds.

    Args:
        engine: see `Job`.
        stop_tokens: data.stop_tokens.

    Raises:
        UsageError: no tokenizer, a template that does not fit, or a prompt that leaves no room for a response.
    """
    hf_dir = Path(model.path)
    tokenizer, context = load_tokenizer(hf_dir), _positions(hf_dir)
    tasks = tuple(replace(task, sampling=replace(task.sampling, context=context)) for task in tasks)
    prompts = tuple(tuple(make_prompts(task, tokenizer)) for task in tasks)
    hint = "leave that benchmark out, or choose a shorter --template"
    found = [
        limit_note(task.name, group, task.sampling, str(hf_dir), hint)
        for task, group in zip(tasks, prompts, strict=True)
    ]
    unknown = unknown_token_id(tokenizer)
    for task, group in zip(tasks, prompts, strict=True):
        strange = sum(unknown in prompt.token_ids for prompt in group)
        if unknown is not None and strange:
            found.append(f"{task.name}: {strange} prompts have characters that the tokenizer does not know")
    plain = [task.name for task in tasks if task.template in PLAIN_TEMPLATES and task.name != "arith"]
    if plain and getattr(tokenizer, "chat_template", None):
        found.append(f"{', '.join(plain)}: asked as plain text; --template chat uses the tokenizer's chat template")
    stops = stop_token_ids(tokenizer, hf_dir, stop_tokens)
    return Job(model, tasks, engine, prompts, stops, tuple(note for note in found if note))


def ask_in_child(model: Model, tasks: Sequence[Task], engine: dict[str, Any], stop_tokens: str | None) -> Job:
    """`ask` in a process of its own: the tokenizer brings torch, which neither a command nor a script should hold.

    Raises:
        Da3poError: what `ask` raises.
        RuntimeError: anything else went wrong; the traceback is on stderr.
    """
    asked = pickle.dumps((model, tasks, engine, stop_tokens))
    child = subprocess.run([sys.executable, "-m", __name__], input=asked, stdout=subprocess.PIPE, check=False)
    if child.returncode:
        raise RuntimeError(f"the process that makes the prompts ended with exit code {child.returncode}")
    found: Job | Da3poError = pickle.loads(child.stdout)
    if isinstance(found, Da3poError):
        raise found
    return found


def _child() -> None:
    """The other end: the arguments of `ask` from stdin, its job or error to stdout, which is kept from libraries."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is the parent's to report
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        try:
            found: Job | Da3poError = ask(*pickle.load(sys.stdin.buffer))
        except Da3poError as error:
            found = error
        pickle.dump(found, out)


def _positions(hf_dir: Path) -> int | None:
    config = json.loads((hf_dir / "config.json").read_text(encoding="utf-8"))
    found = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
    return None if found is None else int(found)


def make_prompts(task: Task, tokenizer: Any) -> list[Prompt]:
    """The prompts of a benchmark, one per problem, none left out."""
    render = make_renderer(task.template, tokenizer, task.thinking)
    texts = [render(_instructed(problem.messages, task)) for problem in task.problems]
    ids = encode(texts, tokenizer, from_chat=task.template == "chat")
    return [
        Prompt(task.uid(problem), tuple(tokens), text, problem.answer, problem.source, problem.index)
        for problem, text, tokens in zip(task.problems, texts, ids, strict=True)
    ]


def _instructed(messages: Sequence[Message], task: Task) -> Sequence[Message]:
    """With the instruction how to answer, where the template has none and the problem does not say it itself."""
    *before, last = messages
    if (
        task.template in PLAIN_TEMPLATES
        or task.instruction == "none"
        or bare_problem(last["content"]) != last["content"]
    ):
        return messages
    return [*before, {**last, "content": last["content"] + BOXED_SUFFIX}]


def limit_note(name: str, prompts: Sequence[Prompt], sampling: Sampling, where: str, hint: str) -> str | None:
    """What a reader must know where prompts leave less room in the context than sampling.max_tokens; else None.

    Args:
        name: of the benchmark.
        where, hint: of the error.

    Raises:
        UsageError: a prompt leaves no room for a response.
    """
    longest = max(prompts, key=lambda prompt: len(prompt.token_ids))
    if sampling.limit(longest) < 1:
        raise UsageError(
            f"{name}: prompt {longest.uid} has {len(longest.token_ids)} tokens and leaves no room for a response in a "
            f"context of {sampling.context}",
            where=where,
            hint=hint,
        )
    short = [limit for prompt in prompts if (limit := sampling.limit(prompt)) < sampling.max_tokens]
    if not short:
        return None
    return (
        f"{name}: {len(short)} of {len(prompts)} prompts leave less than {sampling.max_tokens} tokens in a context of "
        f"{sampling.context}; responses to them are cut at {min(short)} to {max(short)}"
    )


if __name__ == "__main__":
    _child()
