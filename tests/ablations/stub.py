"""Stands in for `da3po train` where the thing under test is who runs when, and what becomes of it.

It makes a run directory, one record per step, a checkpoint where told, and ends as told:
lambda=5 with exit code 5 and an error line, lambda=7 by a signal of its own, lambda=9 only when it is stopped, and
lambda=4 after step 1 with exit code 0, as checkpoint.before does; all but lambda=5 go on at a resume.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

arguments = sys.argv[1:]
name = arguments[arguments.index("--name") + 1]
directory = Path(os.environ["DA3PO_RUNS"]) / name
values = dict(one.split("=", 1) for one in arguments if "=" in one)
if "--resume" in arguments:
    values = json.loads((directory / "values.json").read_text())
directory.mkdir(exist_ok=True)
(directory / "values.json").write_text(json.dumps(values))
(directory / "config.yaml").write_text(
    f"algo: {{daa_lambda: {values['lambda']}}}\nrun: {{steps: {values['run.steps']}}}\n"
)
with (directory / "calls.jsonl").open("a") as calls:
    call = {
        "arguments": arguments,
        "cores": sorted(os.sched_getaffinity(0)),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "at": time.monotonic(),
    }
    calls.write(json.dumps(call) + "\n")


def stopped(number, frame):
    (directory / "checkpoints/step_1").mkdir(parents=True)
    (directory / "checkpoints/step_1/state.json").touch()
    sys.exit(128 + number)


signal.signal(signal.SIGINT, stopped)
signal.signal(signal.SIGTERM, stopped)
steps, kind = int(values["run.steps"]), float(values["lambda"])
with (directory / "metrics.jsonl").open("w") as file:
    for step in range(steps + 1):
        file.write(json.dumps({"step": step, "val/arith/avg@8": 0.5 + step * kind / 100}) + "\n")
        file.flush()
        if kind == 5 and step == 1:
            sys.stderr.write("error: gradients were not finite\n  fix: lower train.lr\n")
            sys.exit(5)
        if kind == 4 and step == 1 and "--resume" not in arguments:
            stopped(-128, None)
        if kind == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        while kind == 9 and "--resume" not in arguments:
            time.sleep(0.05)
time.sleep(float(os.environ.get("STUB_SLEEP", "0")))
with (directory / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps({"end": time.monotonic()}) + "\n")
