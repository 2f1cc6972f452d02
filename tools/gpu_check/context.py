"""What a check is given: where things lie, how many GPUs there are, and a way to run commands within its time."""
import json
import os
import pathlib
import tempfile
import time

from gpu_check import command
from gpu_check.results import BudgetSpent, NotPossible


class Context:
    def __init__(self, options, machine):
        self.top = pathlib.Path(__file__).resolve().parent.parent.parent
        self.options, self.machine = options, machine
        self.device, self.gpus = options.device, len(machine["gpus"])
        self.small = options.small
        self.environment = machine["environment"]
        self.steps = None  # of the figures of a step
        self.build = options.build
        self.folder = options.out
        self.budget_end = time.monotonic() + options.budget if options.budget else float("inf")
        self.check_end, self.log, self.commands = float("inf"), None, []

    @property
    def prun(self):
        return self.options.prun or self.build / "bin/prun"

    @property
    def plugin(self):
        """The library of the device cuda that prun takes."""
        folders = [pathlib.Path(folder) for folder in os.environ.get("PRUN_DEVICE_PATH", "").split(":") if folder]
        return next((folder / "cuda.so" for folder in folders if (folder / "cuda.so").exists()), self.build / "lib/prun/devices/cuda.so")

    def need_gpu(self, count=1):
        if self.device != "cuda":
            raise NotPossible(f"needs --device cuda, not {self.device}")
        if self.gpus == 0:
            raise NotPossible(f"no GPU can be reached: {self.machine['problem']}")
        if self.gpus < count:
            raise NotPossible(f"needs {count} GPUs, here is {self.gpus}")

    def need_file(self, path, what):
        if not pathlib.Path(path).exists():
            raise NotPossible(f"{path} is not there: {what}")
        return path

    def left(self):
        return min(self.check_end, self.budget_end) - time.monotonic()

    def run(self, *words, timeout=None, environment=None):
        """Within the check's time; BudgetSpent when it is the budget of the call that cuts it off."""
        limit = self.left() if timeout is None else min(timeout, self.left())
        if limit <= 0.1 and self.budget_end < self.check_end:
            raise BudgetSpent
        self.commands.append(command.shown(words, environment))
        done = command.run(words, limit, self.log, self.top, {**self.environment, **(environment or {})})
        if done.timed_out and time.monotonic() >= self.budget_end:
            raise BudgetSpent
        return done

    def together(self, *calls):
        return command.together(calls)

    def train(self, plan, ranks, device, *more, settings=None, timeout=60):
        """(what the run was, its metrics: one object a step)."""
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as metrics:
            words = [self.prun, plan, "--nproc", ranks, "--device", device, "--metrics", metrics.name, *more]
            for name, value in (settings or {}).items():
                words += ["--set", f"{name}={value}"]
            done = self.run(*words, timeout=timeout)
            try:
                steps = [json.loads(line) for line in pathlib.Path(metrics.name).read_text().splitlines()]
            except (OSError, ValueError):
                steps = []
        return done, steps
