"""Mistakes in a step, in the order of a run, in what an engine samples, and in what is saved."""

from __future__ import annotations

from mutant import (
    BRIDGE,
    CHECKPOINT,
    COLLECT,
    LOOP,
    ROLLOUT,
    ROLLOUTS,
    SAMPLING,
    TRAINING,
    Mutant,
    live,
    replayed,
    unit,
)

ORDER = "tests/training/test_order.py::test_"

LIVE = [
    Mutant(
        "all samples of a prompt share a seed",
        ROLLOUT,
        "sample_seed(sampling.seed, prompt.uid, number)",
        "sample_seed(sampling.seed, prompt.uid, 0)",
        live("da3po, lambda 2"),
    ),
    Mutant(
        "the engine samples at temperature 1",
        ROLLOUT,
        "temperature=sampling.temperature",
        "temperature=1.0",
        live("temperature 0.7"),
    ),
    Mutant(
        "the engine's log-probs are without the temperature",
        ROLLOUT,
        '"processed_logprobs"',
        '"raw_logprobs"',
        live("temperature 0.7"),
    ),
    Mutant(
        "prefixes of the old weights stay cached",
        ROLLOUT,
        "self._engine.reset_prefix_cache()",
        "pass",
        unit("rollouts/engines", "cached_prefixes_are_of_the_present_weights"),
    ),
    Mutant(
        "the reward is not shaped",
        TRAINING + "build.py",
        "            overlong_cache(config),",
        "            0,",
        live("overlong shaping"),
    ),
]

STEP = [
    Mutant(
        "carried groups are not corrected",
        LOOP,
        "any(one < step for one in sampled_in)",
        "False",
        "tests/oracle/test_replayed.py::test_a_group_of_older_weights_turns_tis_on",
    ),
    Mutant(
        "groups do not know their step",
        COLLECT,
        "group.step = step",
        "pass",
        unit("training/steps", "a_resume_knows_from_which_step_a_carried_group_is"),
    ),
    Mutant(
        "a validation that is made up for does not reach its checkpoint",
        LOOP,
        "    parts.checkpoints.amend(step, found.metrics)",
        "    pass",
        unit("training/steps", "a_validation_made_up_for_after_a_resume_counts_for_its_checkpoint"),
    ),
    Mutant(
        "trainer and engine are never compared",
        LOOP,
        "if parts.sync and all(sampled_in[row] == step for row in rows):",
        "if False:",
        ORDER + "a_run_in_order",
    ),
    Mutant(
        "tokens of older weights are compared",
        LOOP,
        "if parts.sync and all(sampled_in[row] == step for row in rows):",
        "if parts.sync:",
        ORDER + "an_update_with_tokens_of_older_weights_is_not_compared",
    ),
    Mutant(
        "a gap that is not looked at",
        ROLLOUTS + "agreement.py",
        "self.mean > limit or abs(self.slope) > limit",
        "abs(self.slope) > limit",
        unit("rollouts/agreement", "rounding_of_a_healthy_model_stops_nothing_and_more_is_called_rounding"),
    ),
    Mutant(
        "a temperature that rounding hides",
        ROLLOUTS + "agreement.py",
        "self.mean > limit or abs(self.slope) > limit",
        "self.mean > limit",
        unit("rollouts/agreement", "a_temperature_that_the_mean_hides_is_told_by_the_slope"),
    ),
    Mutant(
        "a step is begun twice",
        SAMPLING,
        "if self._step.started:",
        "if False:",
        unit("training/steps", "a_run_that_stops_at_max_rounds_goes_on_in_the_middle_of_its_step"),
    ),
    Mutant(
        "old log-probs never computed",
        LOOP,
        "batch.old_logprobs = logprobs",
        "batch.old_logprobs = None",
        replayed("dapo"),
    ),
    Mutant(
        "a second epoch takes its first mini-batch for on-policy",
        LOOP,
        "first_off_policy = 1 if config.train.epochs == 1 else 0",
        "first_off_policy = 1",
        replayed("two epochs"),
    ),
    Mutant(
        "truncated importance sampling never on", LOOP, "tis = use_tis(", "tis = False and use_tis(", replayed("TIS")
    ),
    Mutant(
        "auto takes float32 for the rounded type",
        LOOP,
        'config.model.dtype != "float32"',
        'config.model.dtype == "float32"',
        unit("training/loop", "tis_is_on_for_half_precision_and_older_samples_unless_told_otherwise"),
    ),
    Mutant("KL to the present policy", LOOP, "reference=True", "reference=False", replayed("KL")),
    Mutant(
        "the learning-rate schedule never advanced", LOOP, "parts.policy.advance_schedule()", "pass", replayed("dapo")
    ),
    Mutant(
        "the schedule counts updates",
        LOOP,
        "updates.append(update)",
        "updates.append(update)\n            parts.policy.advance_schedule()",
        replayed("dapo"),
    ),
    Mutant(
        "denominators of the whole step",
        LOOP,
        "denominators([trajectories[row] for row in rows]",
        "denominators(trajectories",
        replayed("dapo"),
    ),
    Mutant(
        "one epoch only",
        LOOP,
        "(parts_of_batch * config.train.epochs, 1)",
        "(parts_of_batch, 1)",
        replayed("two epochs"),
    ),
    Mutant(
        "epochs inside of mini-batches",
        LOOP,
        "(parts_of_batch * config.train.epochs, 1)",
        "([part for part in parts_of_batch for _ in range(config.train.epochs)], 1)",
        replayed("two epochs"),
    ),
    Mutant(
        "a short last mini-batch is left out",
        LOOP,
        "range(0, len(groups), mini_batch_prompts)",
        "range(0, len(groups) - mini_batch_prompts + 1, mini_batch_prompts)",
        replayed("a short last mini-batch"),
    ),
    Mutant(
        "all data-parallel ranks train on the first one's share",
        LOOP,
        "plan[comm.data_rank]",
        "plan[0]",
        unit("training/loop", "every_trajectory_is_trained_on_by_exactly_one_data_parallel_rank"),
    ),
    Mutant("advantages never assigned", LOOP, "assign_advantages(group, config.algo)", "pass", replayed("da3po")),
    Mutant("the loss is summed over updates", LOOP, " / max(1, len(sound))", "", replayed("dapo")),
    Mutant(
        "metrics of the last update only",
        LOOP,
        "totals[name] = totals.get(name, 0.0) + value",
        "totals[name] = value",
        replayed("dapo"),
    ),
    Mutant(
        "a skipped update spoils the means",
        LOOP,
        "if all(map(math.isfinite, (u.loss, *u.sums.values())))",
        "if True",
        unit("training/health", "a_skipped_update_does_not_colour_the_means_of_the_others"),
    ),
]

RUN = [
    Mutant("weights stay in the trainer", LOOP, "record |= push(parts, clock)", "pass", ORDER + "a_run_in_order"),
    Mutant(
        "the first rollouts come from dummy weights",
        LOOP,
        "parts.sync.push()\n    record: dict",
        "pass\n    record: dict",
        ORDER + "a_run_in_order",
    ),
    Mutant(
        "steps begin at 1 after a resume", LOOP, "range(first_step, ", "range(1, ", ORDER + "a_resumed_run_in_order"
    ),
    Mutant(
        "a validation that was left out is not made up for",
        LOOP,
        "elif validation_due and",
        "elif False and",
        ORDER + "a_resumed_run_in_order",
    ),
    Mutant(
        "a stop is forgotten",
        LOOP,
        "if stopping:\n",
        "if False:\n",
        ORDER + "a_run_that_is_asked_to_stop_saves_and_ends",
    ),
    Mutant(
        "validation before a stop",
        LOOP,
        "last) and not stopping:",
        "last):",
        ORDER + "a_run_that_is_asked_to_stop_saves_and_ends",
    ),
    Mutant(
        "a stop without a checkpoint",
        LOOP,
        "or best or stopping:",
        "or best:",
        ORDER + "a_run_that_is_asked_to_stop_saves_and_ends",
    ),
    Mutant(
        "a new best is not saved",
        LOOP,
        "or best or stopping:",
        "or stopping:",
        ORDER + "a_validation_that_is_best_is_saved",
    ),
    Mutant(
        "the last background save is never whole",
        LOOP,
        "parts.checkpoints.wait()\n    return step",
        "return step",
        ORDER + "the_last_background_save_is_whole_at_the_end",
    ),
    Mutant(
        "data that run out cost a step",
        LOOP,
        "parts.checkpoints.save_in_step(step - 1, before)",
        "pass",
        ORDER + "data_that_run_out_leave_a_checkpoint",
    ),
    Mutant(
        "skipped updates are not counted",
        LOOP,
        "parts.health.count(update)",
        "pass",
        ORDER + "updates_skipped_in_a_row_end_the_run",
    ),
    Mutant(
        "due one step late",
        LOOP,
        "step % every == 0",
        "step % every == 1",
        unit("training/loop", "due_every_n_steps_and_always_at_the_end"),
    ),
]

SAVED = [
    Mutant(
        "the score of a checkpoint is lost",
        CHECKPOINT,
        'self._scores[pending.step] = pending.state["score"]',
        "pass",
        unit("training/checkpoint", "the_best_is_kept"),
    ),
    Mutant(
        "the score is lost where a step is saved again",
        CHECKPOINT,
        "self._scores.get(step) if score is None else score",
        "score",
        unit("training/checkpoint", "a_step_that_is_saved_again_keeps_its_score"),
    ),
    Mutant(
        "scores are lost in a restart",
        CHECKPOINT,
        'self._load_scores(step, state.get("best_metric"))',
        "pass",
        unit("training/checkpoint", "the_best_score_outlives_a_restart"),
    ),
    Mutant(
        "of equal checkpoints the oldest is kept",
        CHECKPOINT,
        "(self._scores[step], step)",
        "(self._scores[step], -step)",
        unit("training/checkpoint", "of_equally_good_checkpoints_the_newest_is_kept"),
    ),
    Mutant(
        "the position in the data is not restored",
        CHECKPOINT,
        'self._source.load_state(state["source"])',
        "pass",
        unit("training/checkpoint", "load_restores_the_cursor_of_the_step_asked_for"),
    ),
    Mutant(
        "the position in the data is that of the end of the save",
        CHECKPOINT,
        'pending.state["score"] is not None:',
        'pending.state.update(source=self._source.state()) or pending.state["score"] is not None:',
        unit("training/checkpoint", "a_background_save_is_whole_at_the_safe_point_after_its_last_byte"),
    ),
    Mutant(
        "the schedule begins anew after a resume",
        BRIDGE + "checkpoint.py",
        'schedule.seek(loaded["schedule"]["position"])',
        "pass",
        unit("bridge/policy", "loading_keeps_one_step_counter_per_parameter"),
    ),
    Mutant(
        "the random state is not restored",
        BRIDGE + "checkpoint.py",
        '_set_rng_state(loaded["rng"])',
        "pass",
        unit("bridge/policy", "random_state_comes_back"),
    ),
]
