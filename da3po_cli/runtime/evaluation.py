"""`da3po eval` in one process: the policy, one engine, one validation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from da3po_cli.config.schema import Config
from da3po_cli.errors import UsageError
from da3po_cli.runtime.build import Engine, make_policy
from da3po_cli.runtime.models import local_model


def evaluate(config: Config, checkpoint: Path | None, say: Callable[[str], None]) -> dict[str, float]:
    """Scores of `config.model.path`, or of a run's `checkpoint`, on `config.data.validation`.

    Raises:
        UsageError: there is nothing to validate on.
    """
    from megatron_bridge.parallel import initialize

    parallel = initialize(1, 1, config.run.seed)
    engine = None
    try:
        hf_dir = local_model(config.model.path)
        say("starting the rollout engine ...")
        engine = Engine.start(config, hf_dir, parallel)
        policy = make_policy(config, hf_dir, parallel)
        if checkpoint is not None:
            policy.load(checkpoint / "policy")
        validator = engine.validator()
        if validator is None:
            raise UsageError("data.validation is not set", where="data.validation", hint="--bench NAME")
        engine.connect(policy, validator.prompts).push()
        say(f"sampling {len(validator.prompts)} problems x {validator.sampling.n} ...")
        return validator()
    finally:
        if engine is not None:
            engine.generator.close()
        parallel.shutdown()
