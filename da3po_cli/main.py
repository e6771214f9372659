"""The `da3po` command: registers the verbs, and is the one place where exceptions become messages and exit codes."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Annotated

import typer

from da3po_cli import __version__
from da3po_cli.commands import (
    ablate,
    algos,
    config,
    data,
    doctor,
    evaluate,
    export,
    grade,
    plan,
    report,
    runs,
    theory,
    train,
)
from da3po_cli.commands.usage import is_help, is_usage, usage_error
from da3po_cli.errors import Da3poError, Terminated, UsageError
from da3po_cli.output import print_error, redact, wants_colour

_EPILOG = """\b
Examples:
  da3po train                                  the demo on a CPU, qwen3-4b on CUDA devices
  da3po train --algo da3po --lambda 2.0 --dry-run
  da3po train -c qwen3-8b parallel.tensor=4 train.lr=5e-7
  da3po doctor                                 is everything here that a run needs?
  da3po --install-completion                   TAB for commands, algorithms, configs, runs and keys

\b
Exit codes: 0 ok, 1 bug, 2 usage or config, 3 environment, 4 gate not met, 5 diverged, 130/143 interrupted.
Environment: DA3PO_CONFIG (presets or files, comma-separated), DA3PO_RUNS (directory of runs, default ./runs),
DA3PO_HOME (cache), DA3PO_BENCH_DIR (benchmark files), DA3PO_DEBUG=1 (tracebacks), DA3PO_SECTION__KEY (any config key),
NO_COLOR."""


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"da3po {__version__}")
        raise typer.Exit


def make_app() -> typer.Typer:
    """The Typer app. Boxes and colour only where a terminal shows them."""
    styled = wants_colour(sys.stdout) and wants_colour(sys.stderr)
    app = typer.Typer(
        name="da3po",
        help="Train language models to reason with reinforcement learning from verifiable rewards.",
        epilog=_EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if styled else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def main(  # pyright: ignore[reportUnusedFunction]
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        pass

    for command in (train, plan, evaluate, ablate, report, theory, export, data, grade, runs, config, algos, doctor):
        command.register(app)
    return app


def normalise(arguments: list[str]) -> list[str]:
    """Give the optional value of `--resume` its default: `--resume` alone is `--resume=latest`."""
    found: list[str] = []
    for position, token in enumerate(arguments):
        following = arguments[position + 1] if position + 1 < len(arguments) else ""
        if token == "--resume" and not (following == "latest" or following.isdecimal()):
            token = "--resume=latest"
        found.append(token)
    return found


def _open_streams() -> None:
    """Whatever is printed, and wherever to: a closed stream takes nothing, and no encoding ends a command."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # started with >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (for as long as the process)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run() -> None:
    """Entry point of the console script."""
    _open_streams()
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup leaves it
        signal.signal(signal.SIGHUP, _terminate)
    arguments = normalise(sys.argv[1:])
    sys.exit(execute(arguments))


def execute(arguments: list[str]) -> int:
    """Run one command line. Returns its exit code."""
    debug, as_json = os.environ.get("DA3PO_DEBUG") == "1", "--json" in arguments
    try:
        code: object = make_app()(args=arguments, prog_name="da3po", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0 if done.code is None else 1
    except Da3poError as error:
        if debug:
            _traceback()
        print_error(error, as_json=as_json)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Terminated:
        return 143
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if is_help(error):
            sys.stderr.write(f"{error}\n")
            return UsageError.exit_code
        if is_usage(error):
            print_error(usage_error(error, arguments), as_json=as_json)
            return UsageError.exit_code
        _traceback()
        bug = Da3poError(
            f"{type(error).__name__}: {error}", hint="this is a bug in da3po: please report the lines above"
        )
        print_error(bug, as_json=as_json)
        return 1


def _traceback() -> None:
    """The traceback of the present exception, on stderr; libraries put addresses and tokens into theirs."""
    sys.stderr.write(redact(traceback.format_exc()))


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise Terminated
