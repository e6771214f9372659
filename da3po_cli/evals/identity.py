"""Fingerprints: whether these are the same weights, and the same code, as those of the samples that are on disk."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

_MODEL_FILES = (".json", ".safetensors", ".bin", ".jinja", ".txt", ".model", ".tiktoken")
_WEIGHTS = (".safetensors", ".bin")
_BLOCK = 1 << 24


def directory_fingerprint(directory: Path, *, weights: bool = True) -> str:
    """Hash of the contents of a Hugging Face directory's files, with or without the weights."""
    digest = blake2b(digest_size=16)
    for file in _files(directory):
        if weights or file.suffix not in _WEIGHTS:
            digest.update(f"{file.name},{file.stat().st_size};".encode())
            with file.open("rb") as content:
                while block := content.read(_BLOCK):
                    digest.update(block)
    return digest.hexdigest()


def _files(directory: Path) -> Iterator[Path]:
    return (file for file in sorted(directory.iterdir()) if file.suffix in _MODEL_FILES and file.is_file())


def checkpoint_fingerprint(checkpoint: Path, source: Path) -> str:
    """Hash that tells a run's checkpoint from any other: its state file, and name, size and time of its shards.

    The shards hold the optimizer too, so reading them all would cost as much as loading the model several times.

    Args:
        checkpoint: the directory step_N.
        source: the run's Hugging Face directory, which gives config and tokenizer.
    """
    digest = blake2b(directory_fingerprint(source, weights=False).encode(), digest_size=16)
    digest.update((checkpoint / "state.json").read_bytes())
    for file in sorted((checkpoint / "policy").iterdir()):
        about = file.stat()
        digest.update(f"{file.name},{about.st_size},{about.st_mtime_ns};".encode())
    return digest.hexdigest()


_PACKAGE = Path(__file__).resolve().parent.parent
_CODE = ("rollouts/engine.py", "rewards/**/*.py", "evals/metrics.py", "algos/stats.py")


def code_fingerprint() -> str:
    """Hash of the code that samples, grades and scores. In a checkout it may change within a version.

    What makes the prompts is not part: its outcome is in `Job.fingerprint`.
    """
    digest = blake2b(digest_size=8)
    for file in sorted(file for pattern in _CODE for file in _PACKAGE.glob(pattern)):
        digest.update(file.read_bytes())
    return digest.hexdigest()
