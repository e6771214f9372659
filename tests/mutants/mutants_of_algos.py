"""Mistakes in the mathematics: loss, advantages, dynamic sampling, batching."""

from __future__ import annotations

from mutant import ADVANTAGES, ALGOS, BATCHING, COLLECT, LOSSES, SAMPLING, SHAPING, Mutant, replayed, unit

OLD_RATIO, NEW_RATIO = "importance_ratio(old, rollout, mask, algo.ratio)", "importance_ratio({}, mask, algo.ratio)"

CARRIED = unit("algos/sampling", "a_step_may_be_filled_by_carried_groups_alone")
RESUMED = unit("training/source_state", "cursor_surplus_and_keep_rate_are_saved_and_restored")

LOSS = [
    Mutant(
        "clip sides swapped",
        LOSSES,
        "ratio.clamp(1 - clip_low, 1 + clip_high)",
        "ratio.clamp(1 - clip_high, 1 + clip_low)",
        unit("algos/loss_cases", "clip_cases_of_dapo"),
    ),
    Mutant(
        "dual clip missing", LOSSES, "if dual_clip is None:", "if True:", unit("algos/loss_cases", "clip_cases_of_dapo")
    ),
    Mutant(
        "dual clip of positive advantages",
        LOSSES,
        "return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)",
        "return torch.minimum(loss, -advantages * dual_clip)",
        unit("algos/loss_cases", "clip_cases_of_dapo"),
    ),
    Mutant(
        "the larger of the two surrogates",
        LOSSES,
        "torch.maximum(-advantages",
        "torch.minimum(-advantages",
        unit("algos/loss_cases", "clip_cases_of_dapo"),
    ),
    Mutant(
        "both signs count as clipped above",
        LOSSES,
        "(advantages > 0) & (ratio > 1 + algo.clip_high)",
        "ratio > 1 + algo.clip_high",
        unit("algos/loss_cases", "clip_cases_of_dapo"),
    ),
    Mutant(
        "log-ratios are not clamped",
        LOSSES,
        "log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)",
        "log_ratio",
        unit("algos/loss_cases", "beyond_the_clamp_loss_is_finite_and_gradient_zero"),
    ),
    Mutant(
        "on-policy without a gradient",
        LOSSES,
        "old = logp.detach() if",
        "old = logp if",
        unit("algos/losses", "on_policy_gradient_is_the_policy_gradient"),
    ),
    Mutant(
        "TIS without its cap",
        LOSSES,
        "per_token * raw_tis.clamp(max=algo.tis_cap)",
        "per_token * raw_tis",
        unit("algos/loss_cases", "tis_weight_is_truncated_and_has_no_gradient"),
    ),
    Mutant(
        "TIS with a gradient",
        LOSSES,
        OLD_RATIO + ".detach()",
        NEW_RATIO.format("logp, rollout"),
        unit("algos/loss_cases", "tis_on_policy_uses_the_current_logprobs_without_gradient"),
    ),
    Mutant(
        "TIS of the present weights",
        LOSSES,
        OLD_RATIO,
        NEW_RATIO.format("logp, rollout"),
        unit("algos/loss_cases", "tis_weight_is_truncated_and_has_no_gradient"),
    ),
    Mutant("TIS upside down", LOSSES, OLD_RATIO, NEW_RATIO.format("rollout, old"), replayed("TIS")),
    Mutant(
        "TIS weighs the KL term",
        LOSSES,
        "per_token + algo.kl_coef * kl",
        "per_token + raw_tis * algo.kl_coef * kl",
        unit("algos/loss_cases", "tis_does_not_weigh_the_kl_term"),
    ),
    Mutant(
        "KL the other way round",
        LOSSES,
        "k3(_masked(batch.ref_logprobs, mask).to(logp.dtype) - logp)",
        "k3(logp - _masked(batch.ref_logprobs, mask).to(logp.dtype))",
        unit("algos/loss_cases", "k3_value_and_gradient"),
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
        unit("algos/losses", "splits_change_nothing"),
    ),
    Mutant("token mean over padding", LOSSES, "mask.sum(1).clamp(min=1)", "mask.shape[1]", replayed("grpo")),
    Mutant(
        "the norm length is the padded width", LOSSES, "denominators.norm_length", "mask.shape[1]", replayed("dr_grpo")
    ),
    Mutant("padding is summed", LOSSES, "per_token = _masked(per_token, mask)", "pass", replayed("dapo")),
    Mutant(
        "clip-higher lost",
        ALGOS + "table.py",
        "clip_high=0.28,\n    dual_clip=10.0",
        "clip_high=0.2,\n    dual_clip=10.0",
        unit("algos/loss_cases", "clip_cases_of_dapo"),
    ),
]

ADVANTAGE = [
    Mutant(
        "a punishment is amplified",
        ADVANTAGES,
        "weight if advantage > 0 else 1.0",
        "weight",
        unit("algos/advantages", "a_punished_correct_response_is_not_punished_more"),
    ),
    Mutant(
        "amplification never applied",
        ADVANTAGES,
        "response.advantage = response.daa_weight * advantage",
        "response.advantage = advantage",
        replayed("da3po"),
    ),
    Mutant(
        "a pass rate of tau is hard",
        ADVANTAGES,
        "0 < rate < tau",
        "0 < rate <= tau",
        unit("algos/advantages", "only_strictly_hard_prompts_are_amplified"),
    ),
    Mutant(
        "amplification by the shaped reward",
        ADVANTAGES,
        "daa_weights([r.acc for r in known]",
        "daa_weights([int(r.reward > 0) for r in known]",
        unit("algos/advantages", "correctness_decides_and_not_the_shaped_reward"),
    ),
    Mutant(
        "wrong answers amplified",
        ADVANTAGES,
        "weight if one else 1.0",
        "weight",
        unit("algos/advantages", "only_strictly_hard_prompts_are_amplified"),
    ),
    Mutant("always the population's deviation", ADVANTAGES, "(len(rewards) - ddof)", "len(rewards)", replayed("grpo")),
    Mutant(
        "epsilon under the root",
        ADVANTAGES,
        "math.sqrt(variance) ** std_power + STD_EPS",
        "math.sqrt(variance + STD_EPS) ** std_power",
        unit("algos/advantages", "nearly_equal_rewards_keep_their_size"),
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
        unit("algos/advantages", "equal_rewards_give_exact_zeros"),
    ),
    Mutant(
        "the overlong punishment grows over the whole length",
        SHAPING,
        "- length) / cache",
        "- length) / max_tokens",
        unit("rewards/grade_groups", "overlong_closed_form"),
    ),
    Mutant(
        "the factor of the overlong punishment is forgotten",
        SHAPING,
        "outcome + self.overlong_factor * overlong(",
        "outcome + overlong(",
        unit("rewards/grade_groups", "shaping"),
    ),
]

DYNAMIC = [
    Mutant("the last groups are kept", SAMPLING, "kept[: self._needed]", "kept[-self._needed :]", CARRIED),
    Mutant("surplus forgotten", SAMPLING, "self._carried = surplus", "self._carried = []", CARRIED),
    Mutant(
        "carried groups lost", SAMPLING, "_Step(groups=self._carried, started=True)", "_Step(started=True)", CARRIED
    ),
    Mutant(
        "kept by the reward",
        SAMPLING,
        "if group.correct == 0:",
        "if group.correct == 0 and len({one.reward for one in group.responses}) == 1:",
        unit("algos/advantages", "correctness_decides_and_not_the_shaped_reward"),
    ),
    Mutant(
        "a failed response is a wrong one",
        SAMPLING,
        'response.finish_reason == "failed" for',
        "False for",
        unit("algos/sampling", "judge"),
    ),
    Mutant(
        "all of the keep rate's evidence is remembered",
        SAMPLING,
        "FORGET = 0.5",
        "FORGET = 1.0",
        unit("algos/sampling", "the_keep_rate_follows_a_policy_that_moves"),
    ),
    Mutant(
        "one round too many",
        SAMPLING,
        "self._step.rounds >= limit",
        "self._step.rounds > limit",
        unit("algos/sampling", "at_the_cap"),
    ),
    Mutant(
        "failed groups fill the batch up",
        SAMPLING,
        'in ("too_easy", "too_hard")',
        "is not None",
        unit("algos/sampling", "at_the_cap"),
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
        unit("training/collect", "a_step_samples_with_a_seed_of_its_own"),
    ),
    Mutant(
        "first solves are not marked",
        COLLECT,
        "self._solved.mark(batch.generated)",
        "pass",
        unit("training/collect", "a_row_is_solved_for_the_first_time_once"),
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
        unit("algos/batching", "denominators"),
    ),
    Mutant(
        "prompt tokens count", BATCHING, "[len(trajectory.response_ids) for", "[trajectory.length for", replayed("dapo")
    ),
    Mutant(
        "a full micro-batch is not filled",
        BATCHING,
        "load + length <= budget",
        "load + length < budget",
        unit("algos/batching", "plan_needs_as_few_passes_as_the_tokens_allow"),
    ),
]
