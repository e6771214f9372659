"""What the shell offers at TAB: names of algorithms, configs, runs, benchmarks and keys. Nothing heavy is imported.

Each function takes what has been typed of a word and gives the words that begin so. A broken run or config must not
print a traceback into the user's prompt, so `_quietly` turns every failure into no offer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path

import typer

Offer = tuple[str, str]  # a word, and what it is; empty where there is nothing to say


def _quietly(offers: Callable[[str], Iterable[Offer]]) -> Callable[[str], list[Offer]]:
    """Keep the offers that begin with what has been typed; none at all when something is wrong."""

    @wraps(offers)
    def complete(incomplete: str) -> list[Offer]:
        try:
            return [(word, about) for word, about in offers(incomplete) if word.startswith(incomplete)]
        except Exception:
            return []

    # wraps() also copies the signature that Typer would read through; it must see the parameter's name only
    del complete.__wrapped__  # type: ignore[attr-defined]
    return complete


def _last_of(names: Iterable[Offer], incomplete: str) -> Iterable[Offer]:
    """Offers for the last name of a list with commas, without those that it already has."""
    before, comma, _ = incomplete.rpartition(",")
    taken = before.split(",")
    return ((f"{before}{comma}{name}", about) for name, about in names if name not in taken)


@_quietly
def complete_algo(incomplete: str) -> Iterable[Offer]:
    return _algorithms()


@_quietly
def complete_algos(incomplete: str) -> Iterable[Offer]:
    """A list with commas."""
    return _last_of(_algorithms(), incomplete)


@_quietly
def complete_config(incomplete: str) -> Iterable[Offer]:
    """Presets; the shell itself offers files where none of them fits."""
    from da3po_cli.config.presets import preset_names

    return ((name, "preset") for name in preset_names())


@_quietly
def complete_saved_config(incomplete: str) -> Iterable[Offer]:
    """Presets, and the configs of runs."""
    from da3po_cli.config.presets import preset_names
    from da3po_cli.runs.directory import all_runs

    saved = ((str(run.config_file), "config of the run") for run in all_runs() if run.config_file.is_file())
    return [*((name, "preset") for name in preset_names()), *saved]


@_quietly
def complete_run(incomplete: str) -> Iterable[Offer]:
    """Names of runs, newest first."""
    return _runs()


@_quietly
def complete_checkpoint(incomplete: str) -> Iterable[Offer]:
    """RUN, and after the @ the steps that it has saved."""
    return _checkpoints(incomplete)


@_quietly
def complete_model(incomplete: str) -> Iterable[Offer]:
    """What `eval --model` takes: the shipped model, runs and their checkpoints."""
    return [*_checkpoints(incomplete), ("demo", "the shipped model")]


@_quietly
def complete_resume(incomplete: str) -> Iterable[Offer]:
    """`latest`, and the steps that the newest run has saved."""
    from da3po_cli.runs.directory import latest_run

    run = latest_run()
    steps = reversed(run.saved_steps()) if run is not None else ()
    return [("latest", "the newest checkpoint"), *((str(step), f"step of {run.name}") for step in steps if run)]


@_quietly
def complete_report(incomplete: str) -> Iterable[Offer]:
    """Runs and ablations."""
    from da3po_cli.runs.directory import runs_root

    ablations = ((file.parent.name, "ablation") for file in runs_root().glob("*/ablation.json"))
    return [*_runs(), *ablations]


@_quietly
def complete_bench(incomplete: str) -> Iterable[Offer]:
    """A list with commas of the shipped benchmarks."""
    from da3po_cli.evals.registry import ALL, load_registry

    names = ((name, bench.title) for name, bench in load_registry().items())
    return _last_of([*names, (ALL, "those of the paper's tables")], incomplete)


@_quietly
def complete_template(incomplete: str) -> Iterable[Offer]:
    from da3po_cli.data.spec import TEMPLATES

    return ((name, "") for name in TEMPLATES)


@_quietly
def complete_reward(incomplete: str) -> Iterable[Offer]:
    from da3po_cli.rewards.registry import REWARDS

    return ((name, "") for name in REWARDS)


def complete_setting(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """`section.key=`, and after the equals sign the values, where the key has a few."""
    before: list[str] = [str(word) for word in ctx.params.get("overrides") or ()]
    # bash takes the equals sign for a word of its own: `train.lr`, `=`, and what follows, which is then replaced alone;
    # Click makes an empty word of an equals sign that nothing follows
    if not incomplete and before and "=" not in before[-1]:
        return [(word.partition("=")[2], about) for word, about in _offered(f"{before[-1]}=")]
    if len(before) > 1 and before[-1] == "=":
        return [(word.partition("=")[2], about) for word, about in _offered(f"{before[-2]}={incomplete}")]
    return _offered(incomplete)


@_quietly
def _offered(incomplete: str) -> Iterable[Offer]:
    return _settings(incomplete)


def _algorithms() -> list[Offer]:
    from da3po_cli.algos.table import ALGORITHMS

    return [(name, entry.summary) for name, entry in ALGORITHMS.items()]


def _runs() -> list[Offer]:
    from da3po_cli.runs.directory import all_runs

    runs = [(run.name, str(run.read().get("status", "run"))) for run in reversed(all_runs())]
    return [*runs, ("latest", "the newest run")] if runs else []


def _checkpoints(incomplete: str) -> list[Offer]:
    from da3po_cli.runs.directory import find_run

    name, at, _ = incomplete.rpartition("@")
    if not at:
        return _runs()
    return [(f"{name}@{step}", "checkpoint") for step in reversed(find_run(name).saved_steps())]


def _settings(incomplete: str) -> list[Offer]:
    from da3po_cli.config.keys import ALIASES, key_types, sections

    key, equals, given = incomplete.partition("=")
    if not equals:
        matching = [name for name in key_types() if name.startswith(key)]
        if len(matching) > 40:  # all of them would fill the screen: sections first
            return [(f"{section}.", "section") for section in sections()]
        return [(f"{name}=", "") for name in matching]
    accepted, nullable = key_types()[ALIASES.get(key, key)]
    values: list[str] = []
    if key == "algo.name":
        values = [name for name, _ in _algorithms()]
    elif accepted[0] is bool:
        values = ["true", "false"]
    elif not isinstance(accepted[0], type):
        values = [str(value) for value in accepted]
    elif key in ("model.path", "data.train", "data.validation", "data.template"):
        values = _paths(given)
    before, comma, _ = given.rpartition(",")
    return [(f"{key}={before}{comma}{value}", "") for value in [*values, *(["null"] if nullable else [])]]


def _paths(given: str) -> list[str]:
    """Files and directories that begin so; the shell would look for one called `key=...`."""
    place = Path(given).parent if not given.endswith("/") else Path(given)
    from da3po_cli.config.paths import expanded

    found = sorted(expanded(place).glob("*"))[:200]
    return [f"{path}/" if path.is_dir() else str(path) for path in found]
