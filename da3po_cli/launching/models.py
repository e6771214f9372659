"""Where a model's files are: shipped in the package, in a directory, or on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from da3po_cli.config.models import is_hub_id, model_directory
from da3po_cli.errors import EnvironmentProblem, UsageError

_NEEDED_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]


def local_model(path: str) -> Path:
    """The directory of a model: `demo`, a directory, or a hub id that is downloaded to the Hugging Face cache.

    Raises:
        EnvironmentProblem: the hub can't be reached and the model is not in the cache.
    """
    if not is_hub_id(path) and (directory := model_directory(path)):
        return directory
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(path, allow_patterns=_NEEDED_FILES))
    except (LocalEntryNotFoundError, RepositoryNotFoundError, HfHubHTTPError, OSError) as error:
        raise EnvironmentProblem(
            f"can't get the model {path!r} from the hub: {type(error).__name__}",
            where="model.path",
            hint="check the id, or download it where there is a network and give its directory: --model DIR",
        ) from error


def load_tokenizer(model: str | Path) -> Any:
    """The tokenizer of a directory or hub id. It takes seconds: transformers imports torch.

    Raises:
        UsageError: there is none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot load the tokenizer of {str(model)!r}: {str(error).splitlines()[0]}",
            where="--model",
            hint="give a directory with tokenizer.json, or a hub id with the network",
        ) from error
