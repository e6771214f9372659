"""REWARDS, and how a name or an import path becomes a grader."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import partial
from typing import Any

from da3po_cli.errors import UsageError
from da3po_cli.rewards.arith import grade_arith
from da3po_cli.rewards.dapo import grade_dapo
from da3po_cli.rewards.math import grade_math
from da3po_cli.rewards.types import Grade, MathOptions, Reward

REWARDS: dict[str, Reward] = {"math": grade_math, "arith": grade_arith, "dapo": grade_dapo}

_STATED = {"math": r"\boxed{%s}", "dapo": "Answer: %s", "arith": "=%s"}


def make_reward(name: str, options: Mapping[str, Any] | MathOptions | None = None) -> Reward:
    """The grader of a name in REWARDS or of an import path `package.module:function`.

    `options` are those of the `math` reward; the others take none.

    Raises:
        UsageError: there is no such reward, it cannot be called with (response, finish_reason, gold), or it returns
            something other than a Grade or a bool.
    """
    chosen = asdict(options) if isinstance(options, MathOptions) else dict(options or {})
    if name == "math":
        unknown = set(chosen) - {field.name for field in fields(MathOptions)}
        if unknown:
            raise UsageError(f"unknown option(s) of the math reward: {', '.join(sorted(unknown))}", where="reward")
        return partial(grade_math, options=MathOptions(**chosen)) if chosen else grade_math
    if chosen and chosen != asdict(MathOptions()):
        raise UsageError(f"reward {name!r} takes no options", where="reward", hint="use reward=math")
    if name in REWARDS:
        return REWARDS[name]
    if ":" not in name:
        raise UsageError(
            f"no reward named {name!r}",
            where="reward",
            hint=f"one of {', '.join(REWARDS)}, or an import path package.module:function",
        )
    return _imported(name)


def sources(by_source: str) -> dict[str, str]:
    """`gsm8k=math,aime=dapo` as data source -> reward.

    Raises:
        UsageError: a part is not of the form source=reward.
    """
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in by_source.split(","))):
        source, equals, reward = part.partition("=")
        if not (equals and source.strip() and reward.strip()):
            raise UsageError(
                f"{part!r} is not of the form source=reward", where="reward.by_source", hint="gsm8k=math,aime=dapo"
            )
        found[source.strip()] = reward.strip()
    return found


def stated(name: str, answer: str) -> str:
    """A response that gives `answer` in the form which the reward `name` reads."""
    return _STATED.get(name, r"\boxed{%s}") % answer


def _imported(path: str) -> Reward:
    module_name, _, attribute = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"cannot import the reward {path!r}: {error}",
            where="reward",
            hint="check the path, and that PYTHONPATH holds the directory of the package",
        ) from error
    _check(path, function)
    return function


def _check(path: str, function: Callable[..., Any]) -> None:
    """Call it once: a wrong signature or return type must show at the start, not after the first rollout."""
    expected = "def reward(response: str, finish_reason: str, gold: str) -> Grade | bool"
    if not callable(function):
        raise UsageError(f"the reward {path!r} is a {type(function).__name__}", where="reward", hint=expected)
    try:
        inspect.signature(function).bind("response", "stop", "gold")
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the reward {path!r} has another signature: {error}", where="reward", hint=expected
        ) from error
    try:
        value = function(r"The answer is \boxed{1}.", "stop", "1")
    except Exception as error:
        raise UsageError(
            f"the reward {path!r} raised {type(error).__name__} on a simple answer: {error}",
            where="reward",
            hint=expected,
        ) from error
    if not isinstance(value, Grade | bool):
        raise UsageError(
            f"the reward {path!r} returned a {type(value).__name__}, not a Grade or a bool",
            where="reward",
            hint=f"{expected}; Grade is da3po_cli.rewards.Grade",
        )
