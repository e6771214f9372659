"""da3po: reinforcement learning from verifiable rewards with DA3PO, on Megatron-Core and vLLM.

From Python: `from da3po_cli import Config, evaluate, load_config, train`; see `da3po_cli.api`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from da3po_cli.api import Config, TrainResult, evaluate, load_config, train

__version__ = "0.1.0"
__all__ = ["Config", "TrainResult", "__version__", "evaluate", "load_config", "train"]


def __getattr__(name: str) -> Any:
    """The API, when it is first asked for: `import da3po_cli` alone reads nothing else."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from da3po_cli import api

    return getattr(api, name)
