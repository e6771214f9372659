"""What Typer says about a wrong command line, as our own error: one form of messages, and --json has them too."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Sequence
from typing import Any

from da3po_cli.errors import UsageError

_KINDS = {
    r"valid integer": "a whole number",
    r"valid (number|float)": "a number",
    r"(greater than or equal to|in the range x>=) ?(\d+)": "a number of at least {}",
}
"""What the message says that a value is not, in the words of several versions of Typer."""


def is_usage(error: BaseException) -> bool:
    """Whether Typer (or Click below older ones) raised it for the command line."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def is_help(error: BaseException) -> bool:
    """Whether it is the help text that a command without arguments shows."""
    return type(error).__name__ == "NoArgsIsHelpError"


def usage_error(error: Any, arguments: Sequence[str]) -> UsageError:
    """The same as a UsageError: what is wrong with the value, the command, and what to write."""
    context = getattr(error, "ctx", None)
    verbs = itertools.takewhile(lambda token: not token.startswith("-"), arguments[:1])
    command = " ".join(context.command_path.split() if context is not None else ["da3po", *verbs])
    hint = f"{command} -h"
    parameter, possible = getattr(error, "param", None), getattr(error, "possibilities", None)
    if possible:
        near = _nearest(error.option_name, possible)
        return UsageError(
            f"no such option: {error.option_name}", where=command, hint=f"did you mean {near}? see {hint}"
        )
    if parameter is not None and type(error).__name__ == "BadParameter":
        return _bad_value(parameter, arguments, error.format_message(), command, hint)
    text, _, guess = str(error.format_message()).partition(" Did you mean ")
    text = text.strip().rstrip(".")
    if guess:
        hint = f"did you mean {guess.strip('?')}?"
    return UsageError(text[:1].lower() + text[1:], where=command, hint=hint)


def _bad_value(parameter: Any, arguments: Sequence[str], said: str, command: str, hint: str) -> UsageError:
    flag, value = _given([flag for flag in parameter.opts if flag.startswith("-")], arguments)
    found = ((words, re.search(pattern, said)) for pattern, words in _KINDS.items())
    kind = next((words.format(match[match.re.groups]) for words, match in found if match), None)
    if choices := re.search(r"is not one of (.+)", said):
        kind = "one of " + ", ".join(re.findall(r"'([^']+)'", choices[1]))
    if flag is None or kind is None:
        return UsageError(said.rstrip("."), where=command, hint=hint)
    return UsageError(f"{flag} {value}: not {kind}", where=command, hint=f"{flag} takes {kind}; see {hint}")


def _given(flags: Sequence[str], arguments: Sequence[str]) -> tuple[str | None, str]:
    """The flag as it was written, and its value."""
    for position, token in enumerate(arguments):
        name, equals, value = token.partition("=")
        if name in flags:
            return name, value if equals else " ".join(arguments[position + 1 : position + 2])
    return None, ""


def _nearest(given: str, possible: Sequence[str]) -> str:
    return (difflib.get_close_matches(given, possible, n=1, cutoff=0.0) or list(possible))[0]
