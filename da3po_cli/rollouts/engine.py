"""Rollouts: an in-process vLLM engine behind the `Generator` protocol.

Every rank of the torch.distributed world holds one worker of one engine: `rollout.tensor` neighbouring ranks form an
engine, so there are world / tensor engines ("external launcher": no scheduler process, all ranks of an engine take the
same decisions). The samples of a call are split over the engines and the results gathered to all ranks.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from da3po_cli.algos.types import Group, Prompt, Response
from da3po_cli.config.schema import RolloutConfig
from da3po_cli.errors import EnvironmentProblem, UsageError
from da3po_cli.protocols import Comm, Sampling
from da3po_cli.rollouts.noise import SEED, by_place
from da3po_cli.rollouts.process import name_shared_memory, running, starting
from da3po_cli.runs.heartbeat import tick

if TYPE_CHECKING:
    import torch

Progress = Callable[[int, int], None]  # (samples done, samples of the call), on rank 0 only

FinishReason = Literal["stop", "length", "failed"]

CPU_BATCHED_TOKENS = 8192  # prefill tokens per engine step on CPU


def sample_seed(seed: int, uid: str, number: int) -> int:
    """Seed of one sample's random stream, 63 bits: a hash, so neither batching nor the engine count changes it."""
    digest = hashlib.blake2b(f"{seed}|{uid}|{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def split_evenly(count: int, parts: int, part: int) -> range:
    """The `part`-th of `parts` contiguous ranges of 0..count-1 whose sizes differ by at most one."""
    return range(count * part // parts, count * (part + 1) // parts)


class VllmGenerator:
    """`Generator` over vLLM; starts with random weights, so push the policy's before the first `generate`.

    Args:
        hf_dir: Hugging Face directory; only its config and tokenizer are read, and with `load` its weights.
        rollout: engine size, memory and number of sequences.
        dtype: "float32" or "bfloat16", of weights and KV cache.
        seed: of vLLM itself; samples take theirs from `Sampling.seed`.
        max_prompt_tokens: longest prompt. With rollout.max_tokens it sets the context length.
        stop_token_ids: tokens that end a response; they are kept in `Response.token_ids`.
        comm: where this rank stands. torch.distributed must be initialised.
        timeout: seconds that an engine waits for the others' responses.
        load: start with the weights of `hf_dir`, awake.

    Attributes:
        engines: engines of the job.
        engine: number of this rank's engine.
        leads: whether this rank is the one of its engine that speaks for it.

    Raises:
        UsageError: the world is not a multiple of rollout.tensor.
        EnvironmentProblem: vLLM is missing, or refuses the model, the layout or the memory.
    """

    def __init__(
        self,
        hf_dir: str | Path,
        *,
        rollout: RolloutConfig,
        dtype: str,
        seed: int,
        max_prompt_tokens: int,
        stop_token_ids: Sequence[int],
        comm: Comm,
        timeout: float = 1800.0,
        load: bool = False,
    ) -> None:
        import torch
        import torch.distributed as dist
        from transformers import AutoTokenizer

        if comm.world % rollout.tensor:
            raise UsageError(
                f"{comm.world} ranks can't be split into rollout engines of {rollout.tensor}",
                where="rollout.tensor",
                hint=f"set rollout.tensor to a divisor of {comm.world}",
            )
        self.hf_dir = Path(hf_dir)
        self.dtype = dtype
        self.max_prompt_tokens = max_prompt_tokens
        self.max_model_len = max_prompt_tokens + rollout.max_tokens
        self.cuda = torch.cuda.is_available()
        self.tied_head = bool(json.loads((self.hf_dir / "config.json").read_text()).get("tie_word_embeddings", False))
        self._comm = comm
        self.engines = comm.world // rollout.tensor
        self.engine, tensor_rank = divmod(comm.rank, rollout.tensor)
        self.leads = tensor_rank == 0
        self._stop = sorted(set(stop_token_ids))
        self._tokenizer = AutoTokenizer.from_pretrained(self.hf_dir)
        self._asleep = False
        # Python objects never travel over NCCL
        self._gather_group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        self._engine = self._start(rollout, seed, load)
        if not load:
            self.sleep()  # the trainer loads next

    def _start(self, rollout: RolloutConfig, seed: int, load: bool) -> Any:
        options: dict[str, Any] = {
            "model": str(self.hf_dir),
            "dtype": self.dtype,
            "seed": seed,
            "load_format": "auto" if load else "dummy",
            "use_tqdm_on_load": False,
            "tensor_parallel_size": rollout.tensor,
            "distributed_executor_backend": "external_launcher",
            "max_model_len": self.max_model_len,
            "max_num_seqs": rollout.max_sequences,
            "skip_tokenizer_init": True,  # text is decoded here, in one batch: 20 % of the time on CPU otherwise
            "generation_config": "vllm",  # the model's own top_p and the like must not change the sampling
            "logprobs_mode": "processed_logprobs",  # of logits / temperature
            "disable_log_stats": True,
            "quantization": rollout.quantization,  # from the trainer's dtype, at each load of the weights
        }
        if self.cuda:
            options |= {"gpu_memory_utilization": rollout.gpu_memory, "enable_sleep_mode": True}
        else:
            options |= {
                "enforce_eager": True,
                # an explicit size also skips vLLM's warm-up pass and its check of the free memory
                "kv_cache_memory_bytes": rollout.kv_cache_gib << 30,
                "max_num_batched_tokens": max(CPU_BATCHED_TOKENS, rollout.max_sequences),
                # blocks hold 128 tokens on CPU, so short prompts only pay for the hashing (15 %)
                "enable_prefix_caching": self.max_prompt_tokens >= 256,
            }
        with starting(self._comm.rank):
            try:
                from vllm import LLM
            except ImportError as error:
                raise EnvironmentProblem(
                    f"vLLM can't be imported: {error}",
                    hint="pip install --no-deps -r requirements/cpu.txt (CPU), or pip install 'da3po[gpu]'",
                ) from error
            if not self.cuda and rollout.tensor > 1:
                name_shared_memory(self._comm.broadcast(secrets.token_hex(4)))
            if not self.cuda:  # with a Triton for CPUs it would take the other runner, whose noise is another
                os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
            try:
                engine = LLM(**options).llm_engine
            except ValueError as error:  # what vLLM raises for a model, layout or memory that it can't serve
                raise EnvironmentProblem(
                    f"vLLM can't start: {_first_line(error)}",
                    where=f"model.path={self.hf_dir}, rollout.tensor={rollout.tensor}, context {self.max_model_len}",
                    hint="see rollout.tensor, rollout.max_tokens, data.max_prompt_tokens, rollout.gpu_memory and "
                    "rollout.kv_cache_gib",
                ) from error
            if not self.cuda:
                engine.collective_rpc(by_place)
            return engine

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, progress: Progress | None = None) -> list[Group]:
        """`sampling.n` responses per prompt, in prompt order, the same list on every rank (a collective).

        The samples are split over the engines. Their seeds depend on (sampling.seed, prompt uid, sample number) alone,
        so results do not change with the engines or the batch, up to the rounding of the matrix products. A request
        that vLLM fails, or whose log-probs are not finite, has `finish_reason` "failed" and no tokens.

        Raises:
            UsageError: a prompt with its longest response does not fit the context length.
        """
        for prompt in prompts:
            self._check_length(prompt, sampling)
        total = len(prompts) * sampling.n
        mine = split_evenly(total, self.engines, self.engine)
        requests = [self._request(prompts[index // sampling.n], index % sampling.n, sampling) for index in mine]
        report = None
        if progress is not None and self._comm.rank == 0 and mine:
            # rank 0 sees its own engine; the others have as much to do
            report = lambda done: progress(total * done // len(mine), total)  # noqa: E731
        outputs = self._run(requests, report)
        responses = self._gather([_response_parts(output) for output in outputs])
        return [
            Group(prompt, responses[start : start + sampling.n])
            for prompt, start in zip(prompts, range(0, total, sampling.n), strict=True)
        ]

    def stream(self, asked: Sequence[tuple[Prompt, int, Sampling]]) -> Iterator[list[tuple[int, Response]]]:
        """(position in `asked`, response) of this engine's own samples, as they finish; not a collective.

        One queue for all of them, so a long response keeps nothing else waiting. A sample is given by its prompt and
        number, and is the one that `generate` gives. Every rank of an engine asks for the same.

        Raises:
            UsageError: a prompt with its longest response does not fit the context length.
        """
        for prompt, _, sampling in asked:
            self._check_length(prompt, sampling)
        requests = [self._request(prompt, number, sampling) for prompt, number, sampling in asked]
        for outputs in self._finished(requests):
            parts = [_response_parts(output) for output in outputs]
            texts = self._decode([tokens for tokens, _, _ in parts])
            yield [
                (int(output.request_id), Response(tokens, values, text, reason))
                for output, (tokens, values, reason), text in zip(outputs, parts, texts, strict=True)
            ]

    def _request(self, prompt: Prompt, number: int, sampling: Sampling) -> tuple[list[int], Any]:
        """What vLLM needs to know of one sample."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        seed = sample_seed(sampling.seed, prompt.uid, number)
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=sampling.limit(prompt),
            seed=seed if self.cuda else None,
            extra_args=None if self.cuda else {SEED: seed},
            stop_token_ids=self._stop,
            ignore_eos=True,  # `stop_token_ids` holds every token that ends a response
            logprobs=0,  # the sampled token's own
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
        )
        return list(prompt.token_ids), params

    def score(self, token_lists: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs of the given tokens by this rank's engine: L - 1 values for L tokens, none for the first.

        They are of temperature 1, the only one for which vLLM knows the log-probs of a prompt. Every rank of the engine
        calls it, and gets the result.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            prompt_logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        outputs = self._run([(list(tokens), params) for tokens in token_lists])
        return [
            [entry[token].logprob for entry, token in zip(output.prompt_logprobs[1:], tokens[1:], strict=True)]
            for output, tokens in zip(outputs, token_lists, strict=True)
        ]

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Replace all weights, on every rank in step: wake, load, forget cached prefixes, wake the KV cache.

        `weights` yields Hugging Face (name, tensor) pairs, is consumed once, in order and to its end, and may contain
        collectives. A yielded tensor must stay unchanged until the end: vLLM keeps the parts of a layer until it is
        whole.
        """
        if self._asleep:
            import torch

            torch.cuda.empty_cache()  # the engine's memory is not from torch's pool, which keeps what the trainer freed
            self._engine.wake_up(tags=["weights"])
        with running():
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        for _ in weights:  # normally nothing is left; a rank that stopped early would leave the others in a collective
            pass
        self._engine.reset_prefix_cache()
        if self._asleep:
            self._engine.wake_up(tags=["kv_cache"])
            self._asleep = False

    def largest(self, values: list[float]) -> list[float]:
        """Elementwise maximum over all ranks (a collective)."""
        import torch
        import torch.distributed as dist

        box = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(box, op=dist.ReduceOp.MAX, group=self._gather_group)
        return box.tolist()

    def sleep(self) -> None:
        """Give weights and KV cache back to the device (they come back with the next push); nothing on CPU."""
        if self.cuda and not self._asleep:
            self._engine.sleep(level=2)
            self._asleep = True

    def close(self) -> None:
        """End the engine. It also takes down torch.distributed's default group, so nothing collective may follow."""
        with running():
            self._engine.engine_core.shutdown()

    def _check_length(self, prompt: Prompt, sampling: Sampling) -> None:
        tokens, longest = len(prompt.token_ids), max(1, sampling.limit(prompt))
        if tokens + longest > self.max_model_len:
            raise UsageError(
                f"prompt {prompt.uid} has {tokens} tokens and its responses up to {longest}; the engine was built for "
                f"{self.max_model_len} together",
                where="data.max_prompt_tokens, rollout.max_tokens",
                hint=f"raise the sum of the two to {tokens + longest}, or drop longer prompts",
            )

    def _run(self, requests: list[tuple[list[int], Any]], report: Callable[[int], None] | None = None) -> list[Any]:
        """vLLM's outputs of (prompt tokens, sampling parameters) requests, in order."""
        outputs: dict[str, Any] = {}
        for finished in self._finished(requests):
            outputs.update((output.request_id, output) for output in finished)
            if report is not None:
                report(len(outputs))
        return [outputs[str(index)] for index in range(len(requests))]

    def _finished(self, requests: list[tuple[list[int], Any]]) -> Iterator[list[Any]]:
        """The outputs of each engine step that ends some; their request_id is the position in `requests`."""
        with running():
            for index, (tokens, params) in enumerate(requests):
                self._engine.add_request(str(index), {"prompt_token_ids": tokens}, params)
            while self._engine.has_unfinished_requests():
                tick()
                if finished := self._engine.step():
                    yield finished

    def _decode(self, ids: list[list[int]]) -> list[str]:
        """The texts as they are: some tokenizers would else take the space before a full stop away."""
        return self._tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _gather(self, parts: list[tuple[list[int], list[float], FinishReason]]) -> list[Response]:
        """The responses of all engines, in the order of the samples, on every rank."""
        import numpy as np
        import torch.distributed as dist

        packed = None
        if self.leads:  # the other ranks of an engine hold copies
            ids = [tokens for tokens, _, _ in parts]
            texts = self._decode(ids) if ids else []
            packed = (
                [len(tokens) for tokens in ids],
                np.array([token for tokens in ids for token in tokens], dtype=np.int32),
                np.array([value for _, values, _ in parts for value in values], dtype=np.float32),
                [reason for _, _, reason in parts],
                texts,
            )
        everyone: list[Any] = [None] * self._comm.world
        dist.all_gather_object(everyone, packed, group=self._gather_group)
        responses = []
        for lengths, tokens, values, reasons, texts in filter(None, everyone):
            ends = np.cumsum(lengths)
            for length, end, reason, text in zip(lengths, ends, reasons, texts, strict=True):
                span = slice(end - length, end)
                responses.append(Response(tokens[span].tolist(), values[span].tolist(), text, reason))
        return responses


def _response_parts(output: Any) -> tuple[list[int], list[float], FinishReason]:
    """(token ids, their log-probs, finish reason) of a finished vLLM request; empty for a failed one."""
    completion = output.outputs[0]
    tokens, flat = list(completion.token_ids), completion.logprobs
    if completion.finish_reason not in ("stop", "length") or not tokens:
        return [], [], "failed"
    if flat.token_ids != tokens:  # one entry per position: the sampled token
        raise RuntimeError(f"vLLM gave log-probs of tokens {flat.token_ids[:8]} for the tokens {tokens[:8]}")
    if not math.isfinite(math.fsum(flat.logprobs)):
        return [], [], "failed"
    return tokens, list(flat.logprobs), completion.finish_reason


def _first_line(error: Exception) -> str:
    """The line of an error's text that says what is wrong (pydantic puts a heading first)."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0]:
        return lines[1]
    return lines[0] if lines else type(error).__name__
