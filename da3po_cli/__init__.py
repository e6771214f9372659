"""da3po: reinforcement learning from verifiable rewards with DA3PO, on Megatron-Core and vLLM."""

__version__ = "0.1.0"
