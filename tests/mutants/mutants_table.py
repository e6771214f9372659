"""The mutants: mistakes that a developer could make in the training loop, each with the test that kills it.

An entry is (name, file, text that is in the file exactly once, what a mistake would put there, test). Where the text
changes with the code, change it here too. A mistake that no test kills wants a test, not another entry.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A mistake that a developer could make."""

    name: str
    file: str
    """Below the root of the project."""
    old: str
    """In the file exactly once."""
    new: str
    killer: str
    """The id of a test that fails on it; without a [case], one of its cases has to."""


ALGOS, RUNTIME, BRIDGE = "da3po_cli/algos/", "da3po_cli/runtime/", "megatron_bridge/"
LOOP, COLLECT, CHECKPOINT = RUNTIME + "loop.py", RUNTIME + "collect.py", RUNTIME + "checkpoint.py"
LOSSES, ADVANTAGES, SAMPLING = ALGOS + "losses.py", ALGOS + "advantages.py", ALGOS + "sampling.py"
BATCHING, SHAPING, ROLLOUT = ALGOS + "batching.py", "da3po_cli/rewards/shaping.py", RUNTIME + "rollout.py"
ENGINE, OPTIMIZER, LOGPROBS = BRIDGE + "engine.py", BRIDGE + "optimizer.py", BRIDGE + "logprobs.py"
PACKING, SYNC = BRIDGE + "packing.py", BRIDGE + "sync.py"


def replayed(arm: str) -> str:
    """Two steps on saved rollouts, against the oracle."""
    return f"tests/oracle/test_replayed.py::test_two_steps[{arm}]"


def live(arm: str) -> str:
    """Two steps with a vLLM engine, against the oracle; starting the engine takes most of it."""
    return f"tests/oracle/test_live.py::test_two_steps[{arm}]"


def test(file: str, name: str) -> str:
    folder, _, stem = file.partition("/")
    return f"tests/{folder}/test_{stem}.py::test_{name}"


OLD_RATIO, NEW_RATIO = "importance_ratio(old, rollout, mask, algo.ratio)", "importance_ratio({}, mask, algo.ratio)"

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
        test("rollout/engines", "cached_prefixes_are_of_the_present_weights"),
    ),
    Mutant(
        "the reward is not shaped",
        RUNTIME + "build.py",
        "            config.algo.overlong_cache,",
        "            0,",
        live("overlong shaping"),
    ),
]

STEP = [
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
    Mutant("truncated importance sampling never on", LOOP, "tis=use_tis(", "tis=False and use_tis(", replayed("TIS")),
    Mutant(
        "auto takes float32 for the rounded type",
        LOOP,
        'config.model.dtype != "float32"',
        'config.model.dtype == "float32"',
        test("runtime/loop", "tis_is_on_for_half_precision_unless_told_otherwise"),
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
    Mutant("one epoch only", LOOP, "(parts_of_batch * config.train.epochs, 1)", "(parts_of_batch, 1)", replayed("two epochs")),
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
        "range(0, groups, mini_batch_prompts)",
        "range(0, groups - mini_batch_prompts + 1, mini_batch_prompts)",
        replayed("a short last mini-batch"),
    ),
    Mutant(
        "all data-parallel ranks train on the first one's share",
        LOOP,
        "plan[comm.data_rank]",
        "plan[0]",
        test("runtime/loop", "every_trajectory_is_trained_on_by_exactly_one_data_parallel_rank"),
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
        test("runtime/health", "a_skipped_update_does_not_colour_the_means_of_the_others"),
    ),
]

ORDER = "tests/runtime/test_order.py::test_"
RUN = [
    Mutant("weights stay in the trainer", LOOP, "record |= push(parts, clock)", "pass", ORDER + "a_run_in_order"),
    Mutant(
        "the first rollouts come from dummy weights",
        LOOP,
        "parts.sync.push()\n    if first_step",
        "pass\n    if first_step",
        ORDER + "a_run_in_order",
    ),
    Mutant("steps begin at 1 after a resume", LOOP, "range(first_step, ", "range(1, ", ORDER + "a_resumed_run_in_order"),
    Mutant(
        "a validation that was left out is not made up for",
        LOOP,
        "elif validation_due and",
        "elif False and",
        ORDER + "a_resumed_run_in_order",
    ),
    Mutant(
        "a stop is forgotten", LOOP, "if stopping:\n", "if False:\n", ORDER + "a_run_that_is_asked_to_stop_saves_and_ends"
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
        "a new best is not saved", LOOP, "or best or stopping:", "or stopping:", ORDER + "a_validation_that_is_best_is_saved"
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
        "parts.checkpoints.save(step - 1, {})",
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
        "due one step late", LOOP, "step % every == 0", "step % every == 1", test("runtime/loop", "due_every_n_steps_and_always_at_the_end")
    ),
]

LOSS = [
    Mutant(
        "clip sides swapped",
        LOSSES,
        "ratio.clamp(1 - clip_low, 1 + clip_high)",
        "ratio.clamp(1 - clip_high, 1 + clip_low)",
        test("algos/losses", "clip_cases_of_dapo"),
    ),
    Mutant("dual clip missing", LOSSES, "if dual_clip is None:", "if True:", test("algos/losses", "clip_cases_of_dapo")),
    Mutant(
        "dual clip of positive advantages",
        LOSSES,
        "return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)",
        "return torch.minimum(loss, -advantages * dual_clip)",
        test("algos/losses", "clip_cases_of_dapo"),
    ),
    Mutant(
        "the larger of the two surrogates",
        LOSSES,
        "torch.maximum(-advantages",
        "torch.minimum(-advantages",
        test("algos/losses", "clip_cases_of_dapo"),
    ),
    Mutant(
        "both signs count as clipped above",
        LOSSES,
        "(advantages > 0) & (ratio > 1 + algo.clip_high)",
        "ratio > 1 + algo.clip_high",
        test("algos/losses", "clip_cases_of_dapo"),
    ),
    Mutant(
        "log-ratios are not clamped",
        LOSSES,
        "log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)",
        "log_ratio",
        test("algos/losses", "beyond_the_clamp_loss_is_finite_and_gradient_zero"),
    ),
    Mutant(
        "on-policy without a gradient",
        LOSSES,
        "old = logp.detach() if",
        "old = logp if",
        test("algos/losses", "on_policy_gradient_is_the_policy_gradient"),
    ),
    Mutant(
        "TIS without its cap",
        LOSSES,
        "per_token * raw_tis.clamp(max=algo.tis_cap)",
        "per_token * raw_tis",
        test("algos/losses", "tis_weight_is_truncated_and_has_no_gradient"),
    ),
    Mutant(
        "TIS with a gradient",
        LOSSES,
        OLD_RATIO + ".detach()",
        NEW_RATIO.format("logp, rollout"),
        test("algos/losses", "tis_on_policy_uses_the_current_logprobs_without_gradient"),
    ),
    Mutant(
        "TIS of the present weights",
        LOSSES,
        OLD_RATIO,
        NEW_RATIO.format("logp, rollout"),
        test("algos/losses", "tis_weight_is_truncated_and_has_no_gradient"),
    ),
    Mutant("TIS upside down", LOSSES, OLD_RATIO, NEW_RATIO.format("rollout, old"), replayed("TIS")),
    Mutant(
        "TIS weighs the KL term",
        LOSSES,
        "per_token + algo.kl_coef * kl",
        "per_token + raw_tis * algo.kl_coef * kl",
        test("algos/losses", "tis_does_not_weigh_the_kl_term"),
    ),
    Mutant(
        "KL the other way round",
        LOSSES,
        "k3(_masked(batch.ref_logprobs, mask).to(logp.dtype) - logp)",
        "k3(logp - _masked(batch.ref_logprobs, mask).to(logp.dtype))",
        test("algos/losses", "k3_value_and_gradient"),
    ),
    Mutant("KL rewarded", LOSSES, "per_token + algo.kl_coef", "per_token - algo.kl_coef", replayed("KL")),
    Mutant(
        "the sequence ratio is a product",
        LOSSES,
        " / mask.sum(1, keepdim=True).clamp(min=1)",
        "",
        replayed("gspo"),
    ),
    Mutant(
        "token mean over the micro-batch",
        LOSSES,
        "max(1, denominators.tokens)",
        "mask.sum().clamp(min=1)",
        replayed("small micro-batches"),
    ),
    Mutant(
        "sequence mean over the micro-batch",
        LOSSES,
        "max(1, denominators.sequences)",
        "mask.any(1).sum().clamp(min=1)",
        test("algos/losses", "splits_change_nothing"),
    ),
    Mutant("token mean over padding", LOSSES, "mask.sum(1).clamp(min=1)", "mask.shape[1]", replayed("grpo")),
    Mutant("the norm length is the padded width", LOSSES, "denominators.norm_length", "mask.shape[1]", replayed("dr_grpo")),
    Mutant("padding is summed", LOSSES, "per_token = _masked(per_token, mask)", "pass", replayed("dapo")),
    Mutant(
        "clip-higher lost",
        ALGOS + "table.py",
        'name="dapo", clip_low=0.2, clip_high=0.28',
        'name="dapo", clip_low=0.2, clip_high=0.2',
        test("algos/losses", "clip_cases_of_dapo"),
    ),
]

ADVANTAGE = [
    Mutant(
        "amplification never applied",
        ADVANTAGES,
        "response.advantage = weight * advantage",
        "response.advantage = advantage",
        replayed("da3po"),
    ),
    Mutant(
        "a pass rate of tau is hard",
        ADVANTAGES,
        "0 < rate < tau",
        "0 < rate <= tau",
        test("algos/advantages", "only_strictly_hard_prompts_are_amplified"),
    ),
    Mutant(
        "amplification by the shaped reward",
        ADVANTAGES,
        "daa_weights([r.acc for r in known]",
        "daa_weights([int(r.reward > 0) for r in known]",
        test("algos/advantages", "correctness_decides_and_not_the_shaped_reward"),
    ),
    Mutant(
        "wrong answers amplified",
        ADVANTAGES,
        "weight if one else 1.0",
        "weight",
        test("algos/advantages", "sum_after_amplification"),
    ),
    Mutant("always the population's deviation", ADVANTAGES, "(len(rewards) - ddof)", "len(rewards)", replayed("grpo")),
    Mutant(
        "epsilon under the root",
        ADVANTAGES,
        "math.sqrt(variance) ** std_power + STD_EPS",
        "math.sqrt(variance + STD_EPS) ** std_power",
        test("algos/advantages", "nearly_equal_rewards_keep_their_size"),
    ),
    Mutant(
        "an answer that was not judged is a wrong one",
        ADVANTAGES,
        "known = group.known",
        "known = group.responses",
        replayed("da3po"),
    ),
    Mutant(
        "advantages out of rounding errors",
        ADVANTAGES,
        "if not rewards or max(rewards) == min(rewards):",
        "if not rewards:",
        test("algos/advantages", "equal_rewards_give_exact_zeros"),
    ),
    Mutant(
        "the overlong punishment grows over the whole length",
        SHAPING,
        "- length) / cache",
        "- length) / max_tokens",
        test("rewards/grade_groups", "overlong_closed_form"),
    ),
    Mutant(
        "the factor of the overlong punishment is forgotten",
        SHAPING,
        "outcome + self.overlong_factor * overlong(",
        "outcome + overlong(",
        test("rewards/grade_groups", "shaping"),
    ),
]

CARRIED = test("algos/sampling", "a_step_may_be_filled_by_carried_groups_alone")
RESUMED = test("runtime/checkpoint", "cursor_surplus_and_keep_rate_are_saved_and_restored")
DYNAMIC = [
    Mutant("the last groups are kept", SAMPLING, "kept[: self._needed]", "kept[-self._needed :]", CARRIED),
    Mutant("surplus forgotten", SAMPLING, "self._carried = surplus", "self._carried = []", CARRIED),
    Mutant("carried groups lost", SAMPLING, "_Step(groups=self._carried)", "_Step()", CARRIED),
    Mutant(
        "kept by the reward",
        SAMPLING,
        "if group.correct == 0:",
        "if group.correct == 0 and len({one.reward for one in group.responses}) == 1:",
        test("algos/advantages", "correctness_decides_and_not_the_shaped_reward"),
    ),
    Mutant(
        "a failed response is a wrong one",
        SAMPLING,
        'response.finish_reason == "failed" for',
        "False for",
        test("algos/sampling", "judge"),
    ),
    Mutant(
        "all of the keep rate's evidence is remembered",
        SAMPLING,
        "FORGET = 0.5",
        "FORGET = 1.0",
        test("algos/sampling", "the_keep_rate_follows_a_policy_that_moves"),
    ),
    Mutant(
        "one round too many",
        SAMPLING,
        "self._step.rounds >= limit",
        "self._step.rounds > limit",
        test("algos/sampling", "at_the_cap"),
    ),
    Mutant(
        "failed groups fill the batch up",
        SAMPLING,
        'in ("too_easy", "too_hard")',
        "is not None",
        test("algos/sampling", "at_the_cap"),
    ),
    Mutant(
        "carried groups are not saved",
        SAMPLING,
        '"carried": [group_to_dict(group) for group in self._carried]',
        '"carried": []',
        RESUMED,
    ),
    Mutant(
        "the keep rate is not restored",
        SAMPLING,
        'self._kept, self._seen = state["kept"], state["seen"]',
        "self._kept = self._seen = 0.0",
        RESUMED,
    ),
    Mutant(
        "every step draws the same samples",
        COLLECT,
        "seed=self._sampling.seed + step",
        "seed=self._sampling.seed",
        test("runtime/collect", "a_step_samples_with_a_seed_of_its_own"),
    ),
    Mutant(
        "first solves are not marked",
        COLLECT,
        "self._solved.mark(batch.kept + batch.dropped)",
        "pass",
        test("runtime/collect", "a_row_is_solved_for_the_first_time_once"),
    ),
    Mutant(
        "groups that were filtered are trained on again",
        COLLECT,
        "kept = [group for group in groups if group.drop_reason is None]",
        "kept = groups",
        replayed("dapo"),
    ),
    Mutant(
        "the sampler's state is not restored",
        COLLECT,
        'self._sampler.load_state(state["sampler"])',
        "pass",
        RESUMED,
    ),
]

BATCH = [
    Mutant(
        "the mask is off by one",
        BATCHING,
        "(position >= prompt - 1) & (position < total - 1)",
        "(position >= prompt) & (position < total)",
        replayed("dapo"),
    ),
    Mutant(
        "targets are not shifted",
        BATCHING,
        "targets[:, :-1] = tokens[:, 1:]",
        "targets[:, :-1] = tokens[:, :-1]",
        replayed("dapo"),
    ),
    Mutant(
        "the last row is lost",
        BATCHING,
        "_spread(range(len(lengths)), lengths, data_size)",
        "_spread(range(len(lengths) - 1), lengths, data_size)",
        replayed("dapo"),
    ),
    Mutant(
        "empty responses count as sequences",
        BATCHING,
        "sum(length > 0 for length in lengths)",
        "len(lengths)",
        test("algos/batching", "denominators"),
    ),
    Mutant(
        "prompt tokens count", BATCHING, "[len(trajectory.response_ids) for", "[trajectory.length for", replayed("dapo")
    ),
    Mutant(
        "a full micro-batch is not filled",
        BATCHING,
        "load + length <= budget",
        "load + length < budget",
        test("algos/batching", "plan_needs_as_few_passes_as_the_tokens_allow"),
    ),
]

POLICY = [
    Mutant("gradients of the last update stay", ENGINE, "chunk.zero_grad_buffer()", "pass", replayed("dapo")),
    Mutant(
        "the reference stays in the policy",
        ENGINE,
        "_copy_in(self.chunks, current)",
        "pass",
        replayed("KL"),
    ),
    Mutant(
        "a log-prob of -inf is learnt from",
        ENGINE,
        "sound=all(map(math.isfinite, (value, *sums.values())))",
        "sound=math.isfinite(value)",
        test("bridge/not_finite", "an_update_is_skipped_and_nothing_moves"),
    ),
    Mutant(
        "metrics of the last micro-batch only",
        ENGINE,
        "local[name] = local.get(name, 0.0) + value",
        "local[name] = value",
        replayed("small micro-batches"),
    ),
    Mutant("the trainer's temperature is 1", ENGINE, "temperature=self.temperature", "temperature=1.0", replayed("temperature")),
    Mutant("gradients are not clipped", OPTIMIZER, "config.clip_grad > 0:", "config.clip_grad < 0:", replayed("dapo")),
    Mutant(
        "weight decay of norms",
        OPTIMIZER,
        'self.weight_decay * group["wd_mult"]',
        "self.weight_decay",
        test("bridge/policy", "steps_equal_torch_adamw_with_clipping"),
    ),
    Mutant(
        "one beta for both moments",
        OPTIMIZER,
        "adam_beta2=train.adam_beta2",
        "adam_beta2=train.adam_beta1",
        replayed("dapo"),
    ),
    Mutant("warm-up begins at 0", OPTIMIZER, "(self.position + 1) / max", "self.position / max", replayed("dapo")),
    Mutant(
        "the rate is counted up but not set",
        OPTIMIZER,
        "        self.position = position\n        self._apply()",
        "        self.position = position",
        test("bridge/policy", "warmup_is_linear_over_rollout_steps_then_constant"),
    ),
    Mutant(
        "a gradient that is not finite is taken",
        OPTIMIZER,
        "if not (sound and math.isfinite(norm)):",
        "if not sound:",
        test("bridge/not_finite", "an_update_is_skipped_and_nothing_moves"),
    ),
    Mutant(
        "the steps of a loaded optimizer count once per parameter",
        OPTIMIZER,
        'state["step"].clone()',
        'state["step"]',
        test("bridge/policy", "loading_keeps_one_step_counter_per_parameter"),
    ),
    Mutant(
        "the gradient is without the temperature", LOGPROBS, "grad / ctx.temperature", "grad", replayed("temperature")
    ),
    Mutant(
        "padding of the vocabulary has probability",
        LOGPROBS,
        "real = min(max(vocab - start, 0), columns)",
        "real = columns",
        replayed("dapo"),
    ),
    Mutant("entropy with the wrong sign", LOGPROBS, "log_z - sums[1] / sums[0]", "log_z + sums[1] / sums[0]", replayed("dapo")),
    Mutant(
        "positions run through packed sequences",
        PACKING,
        "torch.cat([torch.arange(length) for length in all_lengths])",
        "torch.arange(total)",
        test("bridge/packing", "every_position_with_a_target_is_packed_once"),
    ),
    Mutant(
        "packed sequences see each other",
        PACKING,
        "packed_attention(query, key, value, packed_seq_params.lengths)",
        "packed_attention(query, key, value, [len(query)])",
        replayed("dapo"),
    ),
    Mutant(
        "rows are unpacked in another order",
        PACKING,
        "zip(order.tolist(), real, strict=False)",
        "zip(range(len(real)), real, strict=False)",
        replayed("dapo"),
    ),
    Mutant(
        "attention sees what comes later",
        PACKING,
        "is_causal=True",
        "is_causal=False",
        test("bridge/packing", "attention_equals_a_block_diagonal_causal_mask"),
    ),
    Mutant(
        "the policy is built for temperature 1",
        RUNTIME + "build.py",
        "temperature=config.rollout.temperature",
        "temperature=1.0",
        replayed("temperature"),
    ),
]

WEIGHTS = [
    Mutant(
        "the head is not sent",
        SYNC,
        "            yield name, sent",
        '            if name != "lm_head.weight":\n                yield name, sent',
        test("bridge/sync", "all_weights_arrive_and_both_compute_the_same"),
    ),
    Mutant(
        "a tied head is counted twice",
        SYNC,
        'if not (self._tied_head and name == "lm_head.weight"):',
        "if True:",
        test("bridge/sync", "all_weights_arrive_and_both_compute_the_same"),
    ),
    Mutant(
        "the probe is scored at temperature 1",
        SYNC,
        "score(self._probe, self._policy.temperature)",
        "score(self._probe)",
        test("bridge/sync", "all_weights_arrive_and_both_compute_the_same"),
    ),
    Mutant(
        "no gap is too large",
        SYNC,
        "if gap > self._max_gap:",
        "if False:",
        test("bridge/sync", "an_engine_that_misses_a_weight_stops_the_run"),
    ),
    Mutant(
        "a gap that is no number passes",
        SYNC,
        "worst if math.isfinite(worst) else math.inf",
        "worst",
        test("bridge/sync", "an_engine_whose_numbers_are_not_finite_stops_the_run"),
    ),
    Mutant(
        "seeds without the number of the sample",
        ROLLOUT,
        '{seed}|{uid}|{number}"',
        '{seed}|{uid}"',
        test("rollout/engines", "sample_seeds_differ_and_do_not_change"),
    ),
]

SAVED = [
    Mutant(
        "the score of a checkpoint is lost",
        CHECKPOINT,
        'self._scores[pending.step] = pending.state["score"]',
        "pass",
        test("runtime/checkpoint", "the_best_is_kept"),
    ),
    Mutant(
        "the score is lost where a step is saved again",
        CHECKPOINT,
        "self._scores.get(step) if score is None else score",
        "score",
        test("runtime/checkpoint", "a_step_that_is_saved_again_keeps_its_score"),
    ),
    Mutant(
        "scores are lost in a restart",
        CHECKPOINT,
        'self._load_scores(step, state.get("best_metric"))',
        "pass",
        test("runtime/checkpoint", "the_best_score_outlives_a_restart"),
    ),
    Mutant(
        "of equal checkpoints the oldest is kept",
        CHECKPOINT,
        "(self._scores[step], step)",
        "(self._scores[step], -step)",
        test("runtime/checkpoint", "of_equally_good_checkpoints_the_newest_is_kept"),
    ),
    Mutant(
        "the position in the data is not restored",
        CHECKPOINT,
        'self._source.load_state(state["source"])',
        "pass",
        test("runtime/checkpoint", "load_restores_the_cursor_of_the_step_asked_for"),
    ),
    Mutant(
        "the position in the data is that of the end of the save",
        CHECKPOINT,
        'pending.state["score"] is not None:',
        'pending.state.update(source=self._source.state()) or pending.state["score"] is not None:',
        test("runtime/checkpoint", "a_background_save_is_whole_at_the_safe_point_after_its_last_byte"),
    ),
    Mutant(
        "the schedule begins anew after a resume",
        BRIDGE + "checkpoint.py",
        'schedule.seek(loaded["schedule"]["position"])',
        "pass",
        test("bridge/policy", "loading_keeps_one_step_counter_per_parameter"),
    ),
    Mutant(
        "the random state is not restored",
        BRIDGE + "checkpoint.py",
        '_set_rng_state(loaded["rng"])',
        "pass",
        test("bridge/policy", "random_state_comes_back"),
    ),
]

# the slowest first: they are under way while the others come and go
MUTANTS = [*LIVE, *STEP, *RUN, *LOSS, *ADVANTAGE, *DYNAMIC, *BATCH, *POLICY, *WEIGHTS, *SAVED]
