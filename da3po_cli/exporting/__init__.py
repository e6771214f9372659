"""A checkpoint as a Hugging Face directory: weights in shards, a model card, and the proof that nothing was lost."""
