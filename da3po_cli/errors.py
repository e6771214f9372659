"""Errors that a user can act on. `main` is the one place that turns them into messages and exit codes."""

from __future__ import annotations


class Da3poError(Exception):
    """What went wrong (with the values), and how to mend it.

    Args:
        message: one line, with the offending values.
        hint: the exact key, flag or command that fixes it.
        where: file, key or step at which it happened.
    """

    exit_code = 1
    kind = "error"

    def __init__(self, message: str, *, hint: str | None = None, where: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where


class UsageError(Da3poError):
    """A wrong command line, config, model or data file."""

    exit_code = 2
    kind = "usage"


class ConfigErrors(UsageError):
    """All problems of a config at once."""

    kind = "config"

    def __init__(self, problems: list[UsageError]) -> None:
        super().__init__(f"{len(problems)} problem(s) in the config")
        self.problems = problems


class EnvironmentProblem(Da3poError):
    """Something that the machine lacks: a package, a device, memory."""

    exit_code = 3
    kind = "environment"


class GateError(Da3poError):
    """The command finished and its gate was not met."""

    exit_code = 4
    kind = "gate"


class DivergedError(Da3poError):
    """Training went wrong in numbers: not finite, or the two engines disagree."""

    exit_code = 5
    kind = "diverged"


class SyncError(DivergedError):
    """The rollout engine does not compute what the trainer computes."""

    kind = "sync"


class RankFailed(Da3poError):
    """A rank of a job ended with something other than a Da3poError."""

    kind = "rank"

    def __init__(self, message: str, *, exit_code: int = 1, hint: str | None = None, where: str | None = None) -> None:
        super().__init__(message, hint=hint, where=where)
        self.exit_code = exit_code


class Terminated(BaseException):
    """SIGTERM arrived. Not an Exception, so that no library takes it for a failure of its own."""
