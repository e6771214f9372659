"""Make a report: of a run or of an ablation, as HTML, PNG files and Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from da3po_cli.ablations.directory import AblationDir, find_ablation, newest_ablation
from da3po_cli.errors import UsageError
from da3po_cli.output import Out
from da3po_cli.reports.ablation_report import ablation_document
from da3po_cli.reports.arms import read_ablation
from da3po_cli.reports.data import RunData
from da3po_cli.reports.document import Document
from da3po_cli.reports.run_report import run_document
from da3po_cli.runs.directory import RunDir, find_run, latest_run
from da3po_cli.runs.files import replace_text

REPORT = "report.html"


def find(name: str) -> RunDir | AblationDir:
    """The run or ablation of that name, or at that path; `latest` is the newest run, or where there is none, ablation.

    Raises:
        UsageError: there is none.
    """
    found = find_ablation(name)
    if found is None and name == "latest" and latest_run() is None:
        found = newest_ablation()
    return found or find_run(name)


def document_of(directory: RunDir | AblationDir, target: float | None = None) -> Document:
    """What there is to say about it now.

    Raises:
        UsageError: nothing has been measured yet.
    """
    if isinstance(directory, AblationDir):
        return ablation_document(read_ablation(directory), target)
    run = RunData(directory)
    if not run.metrics:
        raise UsageError(f"{directory.path} has no metrics yet", where=str(directory.metrics_file), hint="wait a step")
    return run_document(run)


def write_html(document: Document, file: Path) -> None:
    """A reader never sees half a page."""
    from da3po_cli.reports.page import html

    file.parent.mkdir(parents=True, exist_ok=True)
    replace_text(file, [html(document)])


@contextmanager
def output_of(option: str, path: Path) -> Iterator[None]:
    """The body writes what an option has asked for.

    Raises:
        UsageError: it cannot be written there.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}", where=option, hint="name a place that you may write to"
        ) from error


def report_after(out: Out, directory: RunDir | AblationDir) -> None:
    """The page of what has just ended. A page that cannot be made is a warning, never a failure of the run."""
    if isinstance(directory, RunDir) and not directory.metrics_file.is_file():
        return  # nothing was measured
    file = directory.path / REPORT
    try:
        write_html(document_of(directory), file)
    except Exception as error:  # the run is done: whatever goes wrong here must not hide that
        out.warn(f"no report: {type(error).__name__}: {error}; da3po report {directory.path} tries again")
    else:
        out.say(f"report: {file}")
