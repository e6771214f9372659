"""Write requirements/cpu.txt: requirements/cpu.in with all dependencies, pinned, less what nothing imports.

    python scripts/lock_cpu.py

pip resolves (nothing is installed; a minute or two), then the packages of DROPPED are left out. vLLM names most of them
for its HTTP server, tools and multimodal input, none of which runs here. The result is installed with --no-deps. To
check an entry of DROPPED, install without it and run `make test`.
"""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"

HEADER = """\
# A complete environment for CPU machines; install with --no-deps:
#   pip install --no-deps -r requirements/cpu.txt
# Made by scripts/lock_cpu.py from requirements/cpu.in; do not edit.
"""

# Names; `#` starts a comment, a trailing `*` stands for any ending.
DROPPED = """
    torchaudio torchcodec torchvision opencv-python-headless  # for other torch builds, images and sound
    triton numba llvmlite ninja depyf astor intel-openmp intel-cmplr-lib-ur  # compilers: on CPU the model runs eagerly
    # vLLM's HTTP server, its clients and its monitoring
    anthropic docstring-parser jiter mcp mcp-types fastapi-cli fastapi-cloud-cli fastar rich-toolkit rignore sentry-sdk
    uvicorn httptools watchfiles websockets sse-starlette python-dotenv python-json-logger pydantic-settings
    prometheus-fastapi-instrumentator model-hosting-container-standards jmespath supervisor setproctitle httpcore2
    truststore dnspython agent-detector detect-installer pyjwt cryptography cffi pycparser opentelemetry-*
    googleapis-common-protos
    # structured output, other checkpoint and tokenizer formats
    interegular lark lm-format-enforcer outlines-core jsonschema jsonschema-specifications referencing rpds-py
    mistral-common pycountry ijson blake3
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    patterns = [name for line in DROPPED.splitlines() for name in line.partition("#")[0].split()]
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        subprocess.run([*command, "--report", str(report), "-r", str(REQUIREMENTS / "cpu.in")], check=True)
        resolved = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    pins = {normal(one["name"]): one["version"].partition("+")[0] for one in resolved}
    for pattern in patterns:
        if not fnmatch.filter(pins, pattern):
            print(f"nothing needs {pattern} any more: take it out of DROPPED", file=sys.stderr)
    dropped = {name for pattern in patterns for name in fnmatch.filter(pins, pattern)}
    kept = [f"{name}=={version}\n" for name, version in sorted(pins.items()) if name not in dropped]
    (REQUIREMENTS / "cpu.txt").write_text(HEADER + "".join(kept))
    print(f"{len(kept)} packages, {len(dropped)} left out")


if __name__ == "__main__":
    main()
