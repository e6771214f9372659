#!/usr/bin/env bash
# Checks da3po on a machine with one GPU, in under 8 minutes, and prints a table: what ran, what was skipped and why.
#   scripts/gpu_check.sh [--only training,vllm] [--budget SECONDS] [--json FILE]
# The interpreter is $PYTHON, else .venv/bin/python, else python3; it needs torch, transformers, megatron-core and
# pytest. Nothing is installed or downloaded.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z "${PYTHON:-}" ]]; then
    if [[ -x .venv/bin/python ]]; then PYTHON=.venv/bin/python; else PYTHON=python3; fi
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export CUDA_DEVICE_MAX_CONNECTIONS=1 # what Megatron asks for with tensor parallelism
exec "$PYTHON" scripts/gpu_check.py "$@"
