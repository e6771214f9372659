"""The vLLM engine, what it needs of its process, the weights into it, and whether it agrees with the trainer."""
