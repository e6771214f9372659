"""The report of an ablation: who is better, by how much and how surely, and at what cost."""

from __future__ import annotations

from da3po_cli.reports import arms as stats
from da3po_cli.reports.ablation_plots import behaviour_plots, cost_plots, curve_plots, rank_plots
from da3po_cli.reports.ablation_tables import behaviour_table, cost_table, diff_table, result_tables, runs_table
from da3po_cli.reports.arms import AblationData
from da3po_cli.reports.document import Document, Section
from da3po_cli.reports.run_report import EXAMPLES_TEXT, first_solves

_BAND = "Lines: mean over seeds; bands: lowest to highest seed."


def ablation_document(data: AblationData, target: float | None = None, *, examples: bool = True) -> Document:
    """Everything that a report says about an ablation.

    Args:
        target: score at which the arms' cost is compared; what the reference arm ends with by default.
    """
    target = target if target is not None else data.ablation.target
    target = target if target is not None else stats.default_target(data)
    finished, total = len(data.runs), len(data.ablation.runs)
    lead = (
        f"{len(data.arms)} arms x {len(data.ablation.seeds)} seed(s), {finished} of {total} runs finished. "
        f"Reference arm: {data.reference}."
    )
    sections = [
        Section("Result", text=_result_text(data), tables=result_tables(data), plots=rank_plots(data)),
        Section("Learning curves", text=[_BAND], plots=curve_plots(data)),
        Section("Cost", tables=[cost_table(data, target)], plots=cost_plots(data, target)),
        Section("Policy and filter", tables=[behaviour_table(data)], plots=behaviour_plots(data)),
        Section("Arms and runs", tables=[diff_table(data), runs_table(data)]),
    ]
    if examples:
        sections.append(_example_section(data))
    return Document(f"Ablation {data.name}", lead, [one for one in sections if one.tables or one.plots or one.examples])


def _result_text(data: AblationData) -> list[str]:
    texts: list[str] = []
    start = stats.same_start(data)
    if start is not None:
        texts.append(
            "All runs scored the same before training, as they must: same weights, same validation samples."
            if start
            else "The runs did NOT score the same before training: they did not start from the same weights."
        )
    if data.ablation.gate:
        texts.append(f"Gate: {data.ablation.gate}")
    return texts


def _example_section(data: AblationData) -> Section:
    """Examples of the arm with the best mean."""
    means = stats.mean_scores(data)
    best = max(means, key=lambda label: means[label], default=data.reference)
    run = next(iter(data.arm(best).runs.values()), None)
    if run is None:
        return Section("")
    title = f"Hard prompts solved for the first time, {run.name}"
    return Section(title, text=[EXAMPLES_TEXT], examples=first_solves(run))
