"""`da3po doctor` where something is really broken: packages that do not import, full disks, low limits, no hub."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
TOKEN = "hf_" + "Secret0123456789secret"
GROUPS = ("config", "machine", "hub", "packages", "gpu")

BROKEN = {
    "torch": 'raise ImportError("libcudart.so.12: cannot open shared object file: No such file or directory")',
    "megatron/core": 'raise OSError("undefined symbol: _ZN3c105ErrorC2E")',
    "transformers": 'import sys; print("noise on stdout"); sys.exit("no licence")',
    "math_verify": 'import os, sys; print("double free or corruption", file=sys.stderr, flush=True); os.abort()',
    "vllm": 'raise RuntimeError("Failed to infer device type\\nlong explanation\\nof many lines")',
    "apex": "",  # a package of that name without NVIDIA's extension, as PyPI has one
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of packages that do not work."""
    root = tmp_path_factory.mktemp("broken")
    for package, code in BROKEN.items():
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").write_text(code)
    (root / "megatron/__init__.py").touch()
    return root


def doctor(
    cwd: Path, *arguments: str, env: Mapping[str, str] | None = None, packages: Path | None = None, shell: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `da3po doctor` in `cwd` as a user does, with `packages` before all others; `shell` runs first."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DA3PO_", "HF_"))}
    paths = [str(path) for path in (packages, REPOSITORY) if path is not None]
    offline = {"HF_HUB_OFFLINE": "1", "HOME": str(cwd), "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "da3po_cli", "doctor", *arguments]
    if shell:
        command = ["bash", "-c", f'{shell}; exec "$@"', "bash", *command]
    return subprocess.run(
        command, cwd=cwd, env=clean | offline | dict(env or {}), capture_output=True, text=True, timeout=300
    )


def version(package: str) -> str:
    """Of the installed distribution; the CPU build of vLLM has a name of its own."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return metadata.version(f"{package}-cpu")


def findings(run: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The checks of a --json run, by name."""
    assert "Traceback" not in run.stderr
    report = json.loads(run.stdout.splitlines()[0])
    assert report["event"] == "doctor"
    return {check["name"]: check for check in report["checks"]}


@pytest.fixture(scope="module")
def sick(broken: Path, tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    return doctor(tmp_path_factory.mktemp("sick"), "--json", packages=broken)


def test_broken_packages_are_lines_with_their_text(sick: subprocess.CompletedProcess[str]) -> None:
    found = findings(sick)
    told = {name: found[name]["found"] for name in ("torch", "megatron-core", "transformers", "math-verify", "vllm")}
    assert told == {
        "torch": f"{version('torch')} cannot be imported: ImportError: libcudart.so.12: cannot open shared object "
        "file: No such file or directory",
        "megatron-core": f"{version('megatron-core')} cannot be imported: OSError: undefined symbol: _ZN3c105ErrorC2E",
        "transformers": f"{version('transformers')} cannot be imported: SystemExit: no licence",
        "math-verify": "cannot be imported: the import ended the process with SIGABRT: double free or corruption",
        "vllm": f"{version('vllm')} cannot be imported: RuntimeError: Failed to infer device type",
    }
    assert all(found[name]["status"] == "fail" and found[name]["fix"] for name in told)
    assert not found["math-verify"]["needed"]  # training grades without it
    assert all(found[name]["needed"] for name in told if name != "math-verify")


def test_what_fails_with_torch_is_mended_with_torch(broken: Path, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    shutil.copytree(broken, packages)
    for name in ("vllm", "megatron/core"):
        (packages / name / "__init__.py").write_text("import torch")
    found = findings(doctor(tmp_path, "--json", packages=packages))
    assert {found[name]["fix"] for name in ("vllm", "megatron-core")} == {"mend torch first"}
    assert found["torch"]["fix"] == "pip install --no-deps -r requirements/cpu.txt"


def test_needed_failures_end_with_3_and_an_error_object(sick: subprocess.CompletedProcess[str]) -> None:
    report, error = map(json.loads, sick.stdout.splitlines())
    assert sick.returncode == 3
    assert not report["ready"]
    assert error["error"]["kind"] == "environment"
    assert error["error"]["message"] == (
        "a run of this config cannot start here: torch, megatron-core, vllm, transformers"
    )
    assert "error: a run of this config cannot start here" in sick.stderr


def test_the_impostor_is_told_from_apex(sick: subprocess.CompletedProcess[str]) -> None:
    apex = findings(sick)["apex"]
    assert (apex["status"], apex["details"]) == ("warn", {"kind": "impostor"})
    assert "not NVIDIA's Apex" in apex["found"] and apex["fix"].startswith("pip uninstall apex")


def test_an_apex_whose_extension_does_not_load(broken: Path, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    shutil.copytree(broken, packages)
    (packages / "amp_C.py").write_text('raise ImportError("libc10.so: cannot open shared object file")')
    apex = findings(doctor(tmp_path, "--json", packages=packages))["apex"]
    assert (apex["status"], apex["needed"], apex["details"]["kind"]) == ("fail", False, "nvidia")
    assert apex["found"] == "cannot be imported: ImportError: libc10.so: cannot open shared object file"


def test_text_has_a_line_for_each_check_and_its_fix(broken: Path, tmp_path: Path) -> None:
    run = doctor(tmp_path, "-q", packages=broken)
    lines = run.stdout.splitlines()
    assert run.returncode == 3
    assert all(line.startswith(("warn  ", "fail  ", "      ")) for line in lines)  # -q: nothing that is ok
    torch = next(number for number, line in enumerate(lines) if line.startswith("fail  torch "))
    assert lines[torch + 1].split() == ["fix:", "pip", "install", "--no-deps", "-r", "requirements/cpu.txt"]
    assert "importing" not in run.stderr
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_too_few_open_files(broken: Path, tmp_path: Path) -> None:
    run = doctor(tmp_path, "--json", packages=broken, shell="ulimit -n 128")
    found = findings(run)["open files"]
    assert (found["status"], found["needed"]) == ("fail", True)
    assert found["details"] == {"soft": 128, "hard": 128}
    assert found["fix"] == "ulimit -n 65536 as root, or LimitNOFILE of the service"
    found = findings(doctor(tmp_path, "--json", packages=broken, shell="ulimit -S -n 512"))["open files"]
    assert found["status"] == "warn" and found["fix"] == f"ulimit -n {found['details']['hard']}"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_full_and_small_and_read_only_disks(broken: Path, tmp_path: Path, tiny_disk: Path) -> None:
    env = {"DA3PO_RUNS": str(tiny_disk / "runs"), "DA3PO_HOME": str(tiny_disk)}
    found = findings(doctor(tmp_path, "--json", packages=broken, env=env))
    assert found["runs"]["status"] == "fail" and found["runs"]["found"].endswith("too little")
    assert found["runs"]["details"]["total"] == 1 << 20
    assert found["cache"]["status"] == "ok"

    (tiny_disk / "fill").write_bytes(b"\0" * (1 << 20))
    found = findings(doctor(tmp_path, "--json", packages=broken, env=env))
    assert found["runs"]["found"] == f"{tiny_disk / 'runs'}: cannot write: No space left on device"
    assert (found["cache"]["status"], found["cache"]["needed"]) == ("fail", False)

    (tiny_disk / "fill").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    found = findings(doctor(tmp_path, "--json", packages=broken, env=env))
    assert found["runs"]["found"] == f"{tiny_disk / 'runs'}: cannot write: Read-only file system"
    assert found["runs"]["fix"] == "DA3PO_RUNS=DIR on another disk"


class _Hub(http.server.BaseHTTPRequestHandler):
    asked: list[str | None] = []  # noqa: RUF012

    def do_HEAD(self) -> None:
        self.asked.append(self.headers.get("Authorization"))
        self.send_response(404)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://somebody:password@127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_hub_that_answers(broken: Path, tmp_path: Path, hub: str) -> None:
    secret = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub, "HF_TOKEN": TOKEN}
    run = doctor(tmp_path, "--json", packages=broken, env=secret)
    found = findings(run)["hub"]
    assert found["status"] == "ok" and "answers, with a token" in found["found"]
    assert found["details"]["endpoint"] == hub.replace("somebody:password", "***")
    assert _Hub.asked[-1] == "Basic c29tZWJvZHk6cGFzc3dvcmQ="  # echo -n somebody:password | base64
    for secret_text in (TOKEN, "password", "somebody"):
        assert secret_text not in run.stdout + run.stderr


def test_a_hub_that_does_not_answer(broken: Path, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        endpoint = f"http://user:pass@127.0.0.1:{closed.getsockname()[1]}"
        env = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint}
        spare = findings(doctor(tmp_path, "--json", packages=broken, env=env))["hub"]
        needing = doctor(tmp_path, "--json", "model.path=org/model", packages=broken, env=env)
    assert (spare["status"], spare["details"]["reachable"]) == ("warn", False)
    assert "Connection refused" in spare["found"] and "nothing is needed from it" in spare["found"]
    needed = findings(needing)["hub"]
    assert (needed["status"], needed["details"]["wanted"]) == ("fail", ["org/model"])
    assert "for org/model" in needed["found"] and "user:pass" not in needing.stdout


def test_offline_is_respected(broken: Path, tmp_path: Path) -> None:
    run = doctor(tmp_path, "--json", "model.path=org/model", packages=broken)
    found = findings(run)["hub"]
    assert found["details"] | {"wanted": []} == {
        "endpoint": "https://huggingface.co",
        "token": False,
        "wanted": [],
        "offline": True,
        "reachable": None,
    }
    assert found["found"] == "switched off by HF_HUB_OFFLINE, for org/model"
    snapshot = tmp_path / ".cache/huggingface/hub/models--org--model/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text((REPOSITORY / "da3po_cli/demo_model/config.json").read_text())
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text("abc")
    found = findings(doctor(tmp_path, "--json", "model.path=org/model", packages=broken))
    assert found["hub"]["status"] == "ok" and found["hub"]["details"]["wanted"] == []
    assert found["hub cache"]["details"]["repositories"] == 1


def test_a_config_that_does_not_fit_is_a_finding_and_a_wrong_one_an_error(broken: Path, tmp_path: Path) -> None:
    run = doctor(tmp_path, "--json", "fp8.format=hybrid", "model.dtype=bfloat16", packages=broken)
    report = json.loads(run.stdout.splitlines()[0])
    config = [check for check in report["checks"] if check["name"] == "config"]
    assert config[0]["found"] == (
        "fp8.recipe=tensorwise needs a CUDA device of compute capability 8.9, and this is a CPU (fp8.format)"
    )
    assert findings(run)["fp8"]["status"] == findings(run)["transformer-engine"]["status"] == "fail"
    wrong = doctor(tmp_path, "--json", "train.lrr=1", packages=broken)
    assert wrong.returncode == 2
    (problem,) = json.loads(wrong.stdout)["error"]["problems"]
    assert problem["hint"] == "did you mean train.lr?"


@pytest.mark.slow
def test_this_environment_is_whole(tmp_path: Path) -> None:
    run = doctor(tmp_path, "--json", "-c", "demo")
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert set(report) == {"event", "ready", "config", "summary", "checks"}
    assert report["ready"] is True and report["summary"]["fail"] == 0
    assert sum(report["summary"].values()) == len(report["checks"])
    assert [group for group in GROUPS if any(check["group"] == group for check in report["checks"])] == list(GROUPS)
    found = findings(run)
    for name in ("torch", "megatron-core", "transformers", "math-verify"):
        assert found[name]["details"]["version"] == metadata.version(name)
    assert found["vllm"]["details"]["lacking"] == []
    assert "importing torch" in run.stderr
