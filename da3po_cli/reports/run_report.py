"""The report of one run: scores, what the filter and the amplification did, where the time went, examples."""

from __future__ import annotations

from da3po_cli.ablations.directory import AblationDir
from da3po_cli.algos.types import Group, Response
from da3po_cli.config.plan import logprob_gap_limit
from da3po_cli.evals.metrics import EASY, HARD
from da3po_cli.evals.tables import percent
from da3po_cli.reports.data import Curve, RunData
from da3po_cli.reports.document import Document, Example, Section, Table
from da3po_cli.reports.plots import Plot, Series
from da3po_cli.runs.log import resume_command

READ_BYTES = 64 * 2**20  # of rollouts, for the examples
EXAMPLES = 6
SHOWN_TEXT = 1200  # characters of a prompt or response
PHASES = ("rollout", "grade", "logprob", "train", "sync", "validate", "checkpoint", "other")
DROPS = ("too_easy", "too_hard", "surplus", "failed")


def run_document(run: RunData) -> Document:
    """Everything that a report says about a run; parts without data are left out."""
    config = run.config
    versions = run.record.get("versions", {})
    lead = (
        f"{config.algo.name} on {config.model.path}, seed {config.run.seed}: {run.status}, "
        f"{run.steps} of {config.run.steps} steps."
    )
    sections = [
        Section("Result", text=_hints(run), tables=[_scores(run), _facts(run)], plots=_score_plots(run)),
        Section("Training", plots=_training_plots(run)),
        Section("Dynamic sampling and amplification", text=_filter_text(run), plots=_filter_plots(run)),
        Section("Time", tables=_time_table(run), plots=_time_plots(run)),
        Section("Hard prompts solved for the first time", text=[EXAMPLES_TEXT], examples=first_solves(run)),
        Section(
            "Config",
            text=[", ".join(f"{name} {version}" for name, version in versions.items())],
            code=run.directory.config_file.read_text(encoding="utf-8"),
        ),
    ]
    return Document(f"Run {run.name}", lead, [section for section in sections if _filled(section)])


def _filled(section: Section) -> bool:
    return bool(section.tables or section.plots or section.examples or section.code)


def _hints(run: RunData) -> list[str]:
    """How a run that stopped before its end goes on, where it has a checkpoint to go on from."""
    path = run.directory.path
    if run.steps >= run.config.run.steps or not run.directory.saved_steps():
        return []
    ablation = AblationDir(path.parent)
    command = f"da3po ablate --resume --name {ablation.path.name}" if ablation.file.is_file() else resume_command(path)
    return [f"The run has not come to its end; {command} goes on from a checkpoint."]


# -------------------------------------------------------------------------------------------------------------- tables


def _scores(run: RunData) -> Table:
    rows: list[tuple[str, ...]] = []
    for bench in run.benches:
        for kind in ("avg", "pass"):
            rows += _score_row(f"{bench.name} {kind}@{bench.k}", run.curve(bench.metric(kind)))
    rows += _score_row(f"hard problems (base rate < {HARD:g})", run.hard_curve())
    rows += _score_row("other problems", run.hard_curve(hard=False))
    return Table("Validation, %", ("held-out problems", "first", "last", "change", "best", "at step"), rows)


def _score_row(label: str, curve: Curve) -> list[tuple[str, ...]]:
    if not curve:
        return []
    first, last = curve[0][1], curve[-1][1]
    step, best = max(curve, key=lambda point: point[1])
    return [(label, percent(first), percent(last), f"{100 * (last - first):+.2f}", percent(best), f"{step:.0f}")]


def _facts(run: RunData) -> Table:
    tokens, generated = run.total("rollout/tokens"), run.total("sample/generated")
    seconds = run.total("timing/step")
    entropy = run.curve("train/entropy")
    gap = [value for _, value in run.curve("train/rollout_gap")]
    kept = f"{run.total('sample/kept') / generated:.3f}" if generated else "-"
    rows = [
        ("time in the loop", _clock(seconds)),
        ("response tokens generated", f"{tokens:,.0f}"),
        ("groups kept / generated", f"{run.total('sample/kept'):,.0f} / {generated:,.0f} = {kept}"),
        ("largest mean log-prob gap of a step, nats", f"{max(gap):.2g}" if gap else "-"),
        ("entropy, first and last step, nats", f"{entropy[0][1]:.3f}, {entropy[-1][1]:.3f}" if entropy else "-"),
        ("optimizer steps skipped", f"{run.total('train/skipped'):.0f}"),
    ]
    return Table("In numbers", ("quantity", "value"), rows)


def _time_table(run: RunData) -> list[Table]:
    total = run.total("timing/step")
    if not total:
        return []
    spent = [(phase, run.total(f"timing/{phase}")) for phase in PHASES]
    rows = [(phase, _clock(seconds), percent(seconds / total)) for phase, seconds in spent]
    return [Table("Time per phase, whole run", ("phase", "h:m:s", "%"), rows)]


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


# --------------------------------------------------------------------------------------------------------------- plots


def series(run: RunData, *metrics: tuple[str, str]) -> list[Series]:
    """(metric, label) as lines, those that the run has."""
    return [line for metric, label in metrics if (line := curve_series(label, run.curve(metric)))]


def curve_series(label: str, curve: Curve) -> Series | None:
    """A curve as a line, None where it has no point."""
    return Series(label, [x for x, _ in curve], [y for _, y in curve]) if curve else None


def _above_zero(curve: Curve, label: str) -> list[Series]:
    """A curve for a logarithmic axis, which has no place for a gap of exactly 0."""
    line = curve_series(label, [(x, y) for x, y in curve if y > 0])
    return [line] if line else []


def plots_with_data(*plots: Plot) -> list[Plot]:
    return [plot for plot in plots if plot.series]


def _score_plots(run: RunData) -> list[Plot]:
    lines = [
        line
        for bench in run.benches
        for kind in ("avg", "pass")
        for line in series(run, (bench.metric(kind), f"{bench.name} {kind}@{bench.k}"))
    ]
    levels = {
        "hard": f"hard: base rate < {HARD:g}",
        "medium": f"medium: {HARD:g} to {EASY:g}",
        "easy": f"easy: {EASY:g} and more",
    }
    by_difficulty = [
        line
        for bench in run.benches
        for level, label in levels.items()
        for line in series(
            run, (f"val/{bench.name}/acc_{level}", label if len(run.benches) == 1 else f"{bench.name} {label}")
        )
    ]
    return plots_with_data(
        Plot("validation", "Validation", "step", "share of correct samples", lines),
        Plot("difficulty", "Validation by difficulty", "step", "share of correct samples", by_difficulty),
    )


def _training_plots(run: RunData) -> list[Plot]:
    accuracy = series(
        run,
        ("train/acc", "all generated"),
        ("train/acc_kept", "kept groups"),
    )
    clips = series(
        run,
        ("train/clip_high", "clipped above"),
        ("train/clip_low", "clipped below"),
        ("train/dual_clip", "dual clip"),
    )
    limit = logprob_gap_limit(run.config)
    return plots_with_data(
        Plot("accuracy", "Training accuracy", "step", "share of correct responses", accuracy),
        Plot("entropy", "Policy entropy", "step", "nats per token", series(run, ("train/entropy", "entropy"))),
        Plot("clip", "Clipped tokens", "step", "share of tokens", clips),
        Plot("gradient", "Gradient norm", "step", "norm before clipping", series(run, ("train/grad_norm", "gradient"))),
        Plot("length", "Response length", "step", "tokens, mean", series(run, ("rollout/length", "generated"))),
        Plot(
            "logprob_gap",
            "Trainer and engine",
            "step",
            "mean log-prob gap of the sampled tokens, nats",
            _above_zero(run.curve("train/rollout_gap"), "gap"),
            log_y=True,
            levels=[(limit, "limit: rollout.max_logprob_gap")],
        ),
    )


def _filter_text(run: RunData) -> list[str]:
    algo = run.config.algo
    if not algo.dynamic_sampling:
        return ["No dynamic sampling: every group is trained on, a unanimous one with advantage 0."]
    text = "A group is kept when some of its responses are correct and some are not."
    if algo.daa_lambda != 1:
        how = {"constant": f"multiplied by {algo.daa_lambda:g}"}.get(algo.daa_schedule, f"scaled ({algo.daa_schedule})")
        text += f" Correct responses of a kept group with pass rate below {algo.daa_tau:g} have their advantage {how}."
    return [text]


def _filter_plots(run: RunData) -> list[Plot]:
    stacked = [("sample/kept", "kept"), *((f"sample/drop_{reason}", reason.replace("_", " ")) for reason in DROPS)]
    groups = [line for line in series(run, *stacked) if any(line.ys)]
    amplified = series(
        run, ("sample/hard_share", "hard groups / kept"), ("daa/amplified", "amplified / kept responses")
    )
    mass = series(run, ("adv/mass_correct", "correct responses"), ("adv/mass_wrong", "wrong responses"))
    alphas = series(run, ("filter/alpha_plus", "alpha+ (correct)"), ("filter/alpha_minus", "alpha- (wrong)"))
    solves = series(run, ("sample/first_solves", "prompts"))
    return plots_with_data(
        Plot("groups", "Groups per step and drop reasons", "step", "groups", groups, kind="stack"),
        Plot("hard", "Hard groups and amplified responses", "step", "share", amplified),
        Plot("mass", "Advantage mass", "step", "sum of |A| per kept response", mass),
        Plot("alphas", "Filter factors, measured over all prompts", "step", "factor", alphas),
        Plot("first_solves", "Prompts solved for the first time", "step", "prompts", solves),
    )


def _time_plots(run: RunData) -> list[Plot]:
    lines = [line for line in series(run, *((f"timing/{phase}", phase) for phase in PHASES)) if any(line.ys)]
    total = sum(sum(line.ys) for line in lines)
    large = [line for line in lines if sum(line.ys) > 0.005 * total]
    return plots_with_data(Plot("time", "Time per step", "step", "seconds", large, kind="stack"))


# ------------------------------------------------------------------------------------------------------------ examples

EXAMPLES_TEXT = (
    f"Training prompts with a pass rate below {HARD:g} in their group, none of whose responses had been correct "
    "before: from those with the lowest rates, with one correct and one wrong response."
)


def first_solves(run: RunData, count: int = EXAMPLES, budget: int = READ_BYTES) -> list[Example]:
    """Kept groups of hard prompts at their first correct response: from the hardest, spread over the run."""
    found = [
        (group.pass_rate, step, group)
        for step, group in run.groups(budget)
        if group.first_solve and group.pass_rate < HARD and group.drop_reason is None
    ]
    found.sort(key=lambda one: one[:2])
    lowest = [one for one in found if one[0] == found[0][0]]
    pool = sorted(lowest if len(lowest) >= count else found[:count], key=lambda one: one[1])
    chosen = pool if len(pool) <= count else [pool[round(n * (len(pool) - 1) / (count - 1))] for n in range(count)]
    return [_example(step, group) for _, step, group in chosen]


def _example(step: int, group: Group) -> Example:
    correct = next(response for response in group.responses if response.acc)
    wrong = next((response for response in group.known if not response.acc), None)
    title = f"Step {step}: {group.correct} of {len(group.known)} correct"
    shown = [(_what("correct", correct), _cut(correct.text))]
    if wrong is not None:
        shown.append((_what("wrong", wrong), _cut(wrong.text)))
    return Example(f"{title}, gold answer {_cut(group.prompt.answer, 80)}", _cut(group.prompt.text), shown)


def _what(verdict: str, response: Response) -> str:
    amplified = f" (amplified by {response.daa_weight:g})" if response.daa_weight != 1 else ""
    return f"{verdict}, {len(response.token_ids)} tokens, advantage {response.advantage:+.2f}{amplified}"


def _cut(text: str, limit: int = SHOWN_TEXT) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]} [...] {text[-limit // 2 :]}"
