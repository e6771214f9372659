"""Mistakes in the policy on Megatron and in the weight sync."""

from __future__ import annotations

from mutant import ENGINE, LOGPROBS, OPTIMIZER, PACKING, ROLLOUT, SYNC, TRAINING, Mutant, replayed, unit

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
        unit("bridge/not_finite", "an_update_is_skipped_and_nothing_moves"),
    ),
    Mutant(
        "metrics of the last micro-batch only",
        ENGINE,
        "local[name] = local.get(name, 0.0) + value",
        "local[name] = value",
        replayed("small micro-batches"),
    ),
    Mutant(
        "the trainer's temperature is 1",
        ENGINE,
        "temperature=one.temperature",
        "temperature=1.0",
        replayed("temperature"),
    ),
    Mutant("gradients are not clipped", OPTIMIZER, "config.clip_grad > 0:", "config.clip_grad < 0:", replayed("dapo")),
    Mutant(
        "weight decay of norms",
        OPTIMIZER,
        'self.weight_decay * group["wd_mult"]',
        "self.weight_decay",
        unit("bridge/policy", "steps_equal_torch_adamw_with_clipping"),
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
        unit("bridge/policy", "warmup_is_linear_over_rollout_steps_then_constant"),
    ),
    Mutant(
        "a gradient that is not finite is taken",
        OPTIMIZER,
        "if not (sound and math.isfinite(norm)):",
        "if not sound:",
        unit("bridge/not_finite", "an_update_is_skipped_and_nothing_moves"),
    ),
    Mutant(
        "the steps of a loaded optimizer count once per parameter",
        OPTIMIZER,
        'state["step"].clone()',
        'state["step"]',
        unit("bridge/policy", "loading_keeps_one_step_counter_per_parameter"),
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
    Mutant(
        "entropy with the wrong sign",
        LOGPROBS,
        "log_z - sums[1] / sums[0]",
        "log_z + sums[1] / sums[0]",
        replayed("dapo"),
    ),
    Mutant(
        "positions run through packed sequences",
        PACKING,
        "torch.cat([torch.arange(length) for length in all_lengths])",
        "torch.arange(total)",
        unit("bridge/packing", "every_position_with_a_target_is_packed_once"),
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
        unit("bridge/packing", "every_position_with_a_target_is_packed_once"),
    ),
    Mutant(
        "attention sees what comes later",
        PACKING,
        "is_causal=True",
        "is_causal=False",
        unit("bridge/packing", "attention_equals_a_block_diagonal_causal_mask"),
    ),
    Mutant(
        "the policy is built for temperature 1",
        TRAINING + "build.py",
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
        unit("bridge/sync", "all_weights_arrive_and_both_compute_the_same"),
    ),
    Mutant(
        "a tied head is counted twice",
        SYNC,
        'if not (self._tied_head and name == "lm_head.weight"):',
        "if True:",
        unit("bridge/sync", "all_weights_arrive_and_both_compute_the_same"),
    ),
    Mutant(
        "the probe is scored at the temperature of the rollouts",
        SYNC,
        "logprobs([batch], temperature=1.0)",
        "logprobs([batch])",
        unit("bridge/sync", "all_weights_arrive_and_both_compute_the_same"),
    ),
    Mutant(
        "no gap is too large",
        SYNC,
        "if self._at_start > PROBE_FACTOR * self._max_gap:",
        "if False:",
        unit("bridge/sync", "an_engine_that_misses_a_weight_stops_the_run"),
    ),
    Mutant(
        "a gap that is no number passes",
        SYNC,
        "mean if math.isfinite(mean) else math.inf",
        "mean",
        unit("bridge/sync", "an_engine_whose_numbers_are_not_finite_stops_the_run"),
    ),
    Mutant(
        "seeds without the number of the sample",
        ROLLOUT,
        '{seed}|{uid}|{number}"',
        '{seed}|{uid}"',
        unit("rollouts/engines", "sample_seeds_differ_and_do_not_change"),
    ),
]
