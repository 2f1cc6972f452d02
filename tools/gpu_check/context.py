"""The environment of a check: paths, the machine, and a way to run commands within its time.

One Context belongs to the call; `of_check` derives one for each check, so that checks can run concurrently.
"""
import copy
import json
import os
import pathlib
import tempfile
import time

from gpu_check import command, remedies
from gpu_check.results import NotPossible

SCRATCH = "scratch"


class Context:
    def __init__(self, options, machine):
        self.top = pathlib.Path(__file__).resolve().parent.parent.parent
        self.options, self.machine = options, machine
        self.device, self.gpus = options.device, len(machine["gpus"])
        self.small = options.small
        self.patience = 6 if options.small else 1  # factor of all timeouts, because a kernel on substitutes takes seconds
        self.environment = machine["environment"]
        self.shared = {}  # measurements that several checks of a call share
        self.build = options.build
        self.folder = options.out
        self.cores = len(os.sched_getaffinity(0))
        self.processes = command.Processes()
        self.budget_end = time.monotonic() + options.budget if options.budget else float("inf")
        self.part_end, self.check_end = float("inf"), float("inf")
        self.remedy = None
        self.log, self.commands, self.cut = None, [], False

    def of_check(self, name, check_end):
        own = copy.copy(self)
        own.processes = self.processes.child()
        own.log = self.folder / "logs" / f"{name}.log"
        own.log.unlink(missing_ok=True)
        own.check_end, own.commands, own.cut = check_end, [], False
        return own

    def with_remedy(self, remedy):
        own = copy.copy(self)
        own.remedy = remedy
        return own

    @property
    def scratch(self):
        """Returns a folder for large files that are not saved, such as weights."""
        path = self.folder / SCRATCH
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def prun(self):
        return self.options.prun or self.build / "bin/prun"

    @property
    def plugin(self):
        """Returns the library of the device cuda that prun loads."""
        folders = [pathlib.Path(folder) for folder in os.environ.get("PRUN_DEVICE_PATH", "").split(":") if folder]
        return next((folder / "cuda.so" for folder in folders if (folder / "cuda.so").exists()), self.build / "lib/prun/devices/cuda.so")

    @property
    def nccl(self):
        return self.build / "lib/prun/plugins/nccl.so"

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

    def end(self):
        """Returns when the budget of the call or the limit of the part ends the check, whichever is earlier."""
        return min(self.budget_end, self.part_end)

    def left(self):
        return min(self.check_end, self.end()) - time.monotonic()

    def run(self, *words, timeout=None, environment=None):
        """Runs a command within the check's time. Sets `cut` if the budget or the part's limit ended it; the check then
        returns the figures that it has."""
        limit = self.left() if timeout is None else min(timeout * self.patience, self.left())
        if limit <= 0.1 and self.end() <= self.check_end:
            self.cut = True
            return command.NOT_STARTED
        words, environment = remedies.applied(self, [str(word) for word in words], {**self.environment, **(environment or {})})
        self.commands.append(command.shown(words, {k: v for k, v in environment.items() if k not in self.environment}))
        done = self.processes.run(words, limit, self.log, self.top, environment)
        if done.timed_out and time.monotonic() >= self.end():
            self.cut = True
        return done

    def together(self, *calls, most=None):
        return self.processes.together(calls, most or self.cores + 1)

    def once(self, name, measure):
        """Returns the value of `measure()`, shared by all checks of this call with this name and remedy."""
        key = name, self.remedy.name if self.remedy else ""
        if key not in self.shared:
            self.shared[key] = measure()
        return self.shared[key]

    def rows(self, words, timeout=None):
        """Returns (how the command ended, its --metrics: one object per step)."""
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as metrics:
            done = self.run(*words, "--metrics", metrics.name, timeout=timeout)
            found = []
            for line in pathlib.Path(metrics.name).read_text().splitlines():
                try:
                    found.append(json.loads(line))
                except ValueError:  # a truncated line
                    break
        return done, [row for row in found if "step" in row]

    def train(self, plan, ranks, device, *more, settings=None, timeout=60):
        """Returns (how the run ended, its metrics)."""
        words = [self.prun, plan, "--nproc", ranks, "--device", device, *more]
        for name, value in (settings or {}).items():
            words += ["--set", f"{name}={value}"]
        return self.rows(words, timeout)
