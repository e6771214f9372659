#!/usr/bin/env bash
# Print a Python >= 3.12 that starts: $PYTHON312, one on the path, one of pyenv, or one of uv.
set -uo pipefail
candidates=(${PYTHON312:-python3.12 python3.13 "$HOME"/.pyenv/versions/3.12*/bin/python "$HOME"/.pyenv/versions/3.13*/bin/python})
if [[ -z "${PYTHON312:-}" ]] && command -v uv >/dev/null; then
    candidates+=("$(uv python find --quiet '>=3.12' 2>/dev/null)")
fi
for python in "${candidates[@]}"; do
    # pyenv's shims are on the path for versions that are not switched on, and fail
    if [[ -n "$python" ]] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
        echo "$python"
        exit 0
    fi
done
echo "no Python >= 3.12 here (tried: ${candidates[*]}); install one, or set PYTHON312=PATH" >&2
exit 1
