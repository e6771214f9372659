"""Rules that span several keys of a config, and what a model and a machine can take. Imports no torch."""
