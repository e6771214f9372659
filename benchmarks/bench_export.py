"""Memory and speed of `da3po export`, on a random model many times the size of a file.

    OMP_NUM_THREADS=1 python benchmarks/bench_export.py [--gigabytes 1.2] [--shard 100MB] [--directory DIR]

One process makes a float32 model and saves a checkpoint of it as the trainer does, with the optimizer (four times the
model on the disk); a second one exports it. `peak` is the most memory that was resident above what was there after the
imports (VmHWM - VmRSS); `copy` is the time in which the files of the export are copied and brought to the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HIDDEN, FFN, VOCABULARY = 1024, 3072, 32000
PER_LAYER = 4 * HIDDEN**2 + 3 * HIDDEN * FFN  # parameters without norms; 16 heads of 64, no grouping


def prepare(directory: Path, layers: int) -> None:
    """DIRECTORY/model and DIRECTORY/run with one checkpoint."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from da3po_cli.config.schema import TrainConfig
    from megatron_bridge import build_policy
    from megatron_bridge.parallel import initialize

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=layers,
        num_attention_heads=16,
        tie_word_embeddings=False,
    )
    model, policy_dir = directory / "model", directory / "run" / "checkpoints" / "step_1" / "policy"
    LlamaForCausalLM(config).save_pretrained(model)
    parallel = initialize(1, 1, seed=1)
    policy = build_policy(model, dtype="float32", parallel=parallel, train=TrainConfig(), temperature=1.0, seed=1)
    policy.save(policy_dir)
    parallel.shutdown()


def measure(directory: Path, shard: str) -> None:
    """Export in this process and print what it took as JSON."""
    from da3po_cli.config.schema import Config, ModelConfig
    from da3po_cli.exporting.export import export
    from da3po_cli.exporting.shards import parse_size
    from da3po_cli.runs.directory import RunDir
    from da3po_cli.runs.locate import Checkpoint
    from megatron_bridge.arch import read_arch

    read_arch(directory / "model")  # imports transformers
    run = RunDir(directory / "run")
    config = Config(model=ModelConfig(path=str(directory / "model"), dtype="float32"))
    before, limit = status("VmRSS"), parse_size(shard)
    checkpoint = Checkpoint(run, 1, run.checkpoints / "step_1")
    done = export(config, checkpoint, directory / "out", max_shard_bytes=limit, say=lambda text: None)
    peak = status("VmHWM") - before
    print(json.dumps(dict(before=before, peak=peak, limit=limit, nbytes=done.nbytes, seconds=done.seconds)))


def status(field: str) -> int:
    """Bytes of a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def copy(source: Path, target: Path) -> float:
    """Seconds to copy the files with weights and bring them to the disk."""
    target.mkdir()
    start = time.perf_counter()
    for file in source.glob("*.safetensors"):
        with file.open("rb") as reader, (target / file.name).open("wb") as writer:
            while block := reader.read(1 << 22):
                writer.write(block)
            writer.flush()
            os.fsync(writer.fileno())
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.2, help="of the model in float32")
    parser.add_argument("--shard", default="100MB", help="size of a file")
    parser.add_argument("--directory", type=Path, help="where to work; a temporary directory by default")
    parser.add_argument("--stage", choices=["prepare", "measure"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    layers = max(1, round((args.gigabytes * 1e9 / 4 - 2 * VOCABULARY * HIDDEN) / PER_LAYER))
    if args.stage == "prepare":
        return prepare(args.directory, layers)
    if args.stage == "measure":
        return measure(args.directory, args.shard)
    with tempfile.TemporaryDirectory(dir=args.directory) as scratch:
        own = [sys.executable, __file__, "--gigabytes", str(args.gigabytes), "--shard", args.shard]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        subprocess.run([*own, "--directory", scratch, "--stage", "prepare"], check=True, env=env)
        done = subprocess.run(
            [*own, "--directory", scratch, "--stage", "measure"], check=True, env=env, stdout=subprocess.PIPE, text=True
        )
        found = json.loads(done.stdout)
        seconds = copy(Path(scratch, "out"), Path(scratch, "copy"))
    size, peak, limit = found["nbytes"], found["peak"], found["limit"]
    print(f"model   {size / 1e6:8.0f} MB in {layers} layers, files of {limit / 1e6:.0f} MB")
    print(f"memory  {found['before'] / 1e6:8.0f} MB after the imports")
    print(f"peak    {peak / 1e6:8.0f} MB above that: {peak / limit:.2f} files, {peak / size:.2f} models")
    print(f"tensor  {4 * VOCABULARY * HIDDEN / 1e6:8.0f} MB, the largest: it is in memory twice while it is read")
    print(f"export  {found['seconds']:8.2f} s   {size / 1e9 / found['seconds']:.2f} GB/s")
    print(f"copy    {seconds:8.2f} s   {size / 1e9 / seconds:.2f} GB/s")


if __name__ == "__main__":
    main()
