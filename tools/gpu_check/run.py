"""One call: the parts in order of value, each with its limit, one line of output, and saved files before the next one
starts."""
import dataclasses
import functools
import pathlib
import shutil
import tarfile
import time

from gpu_check import keep, machine, needs, remedies, report, warm
from gpu_check.check import perform
from gpu_check.context import SCRATCH, Context
from gpu_check.keys import Keys
from gpu_check.results import CUT, FAIL, IMPOSSIBLE, PASS, Store

OK, FAILED, USAGE, UNFINISHED = 0, 1, 2, 75  # exit statuses; USAGE also = no GPU can be reached
TOP = pathlib.Path(__file__).resolve().parent.parent.parent
MOST_OF_A_FILE = 8 << 20  # upper bound in bytes of a file packed by `--save`, because at most 16 MiB return from a lent machine in one file


def files_to_save(out, runs, since):
    """Returns [(path, name in the archive)] of the run's folder, and of failed runs since then, which prun keeps in
    runs/."""
    found = [(path, path.relative_to(out)) for path in sorted(out.rglob("*")) if SCRATCH not in path.relative_to(out).parts]
    failed = [run for run in sorted(runs.glob("*")) if run.stat().st_mtime >= since] if runs.exists() else []
    found += [(path, path.relative_to(runs.parent)) for run in failed for path in sorted(run.rglob("*"))]
    return [(path, name) for path, name in found if path.is_file() and not path.is_symlink() and path.stat().st_size <= MOST_OF_A_FILE]


class Run:
    def __init__(self, options, parts):
        self.options, self.parts = options, parts
        self.start, self.started = time.monotonic(), time.time()
        packed = (needs.read(TOP) or {}).get("library_path")
        self.here = machine.describe(options.device, options.torch, [TOP / packed] if packed else []) | {"small": options.small}
        self.context = Context(options, self.here)
        options.out.mkdir(parents=True, exist_ok=True)
        if options.fresh:
            (options.out / "results.json").unlink(missing_ok=True)
        self.keys = Keys(self.context)
        self.store = Store(options.out, [] if options.fresh else keep.files(self.context.top), self.keys.changed)
        self.left = []  # (part, check) without a final result

    def needed(self, part, check):
        """Returns whether the check runs in this call."""
        found = self.store.find(part.name, check.name)
        return (found is None or not part.kept or found.key != self.keys.of(part.uses + check.uses) or found.status in (IMPOSSIBLE, CUT)
                or (self.options.again and found.status == FAIL))

    def ask(self, part, check, context):
        """Returns the check's result and stores it; None if the budget leaves no time for it. Called from several
        threads."""
        left = context.end() - time.monotonic()
        whole = min(self.options.budget, part.limit) if self.options.budget else check.least
        # Nine tenths of the budget suffice, because a budget below `least` would never start the check.
        if left < min(check.least, check.timeout, 0.9 * whole):
            self.left.append((part.name, check.name))
            return None
        result = perform(context, part, check)
        result.key = self.keys.of(part.uses + check.uses)
        if context.processes.stopped:  # this call is ending: its commands were killed
            return None
        if result.status == CUT:
            self.left.append((part.name, check.name))
            if not result.figure and not result.table:
                return None
        self.store.add(result)
        return result

    def cure(self, part, check, result, context):
        """Retries a failed check with each of its remedies, and records those with which it passes."""
        for name in check.remedies:
            if context.end() - time.monotonic() < max(2, result.seconds):
                break
            shorter = dataclasses.replace(check, timeout=min(check.timeout, max(20, 3 * result.seconds)))
            found = perform(context.with_remedy(remedies.REMEDIES[name]), part, shorter)
            if found.status == CUT:
                break
            result.tried.append(name)
            if found.status == PASS:
                result.cured.append(name)
            self.store.add(result)
            if result.cured == [remedies.AGAIN]:
                break

    def each(self, part, calls):
        """Returns the results of the calls, run `part.together` at a time, but few at a time on few cores."""
        return self.context.together(*calls, most=min(part.together, max(4, self.context.cores)))

    def part(self, part):
        begin = time.monotonic()
        context = self.context
        context.part_end = begin + part.limit if self.options.budget else float("inf")
        if context.end() - begin < 1:
            self.left.append((part.name, "all of it"))
            return
        chosen = [check for check in part.checks(context) if self.options.check in check.name]
        asked = [check for check in chosen if self.needed(part, check)]
        changed = {name for check in asked for name in self.store.dropped.get((part.name, check.name), [])}
        found = self.each(part, [functools.partial(self.ask, part, check, context) for check in asked])
        failed = [(check, result) for check, result in zip(asked, found) if result is not None and result.status == FAIL and check.remedies]
        self.each(part, [functools.partial(self.cure, part, check, result, context) for check, result in failed[:remedies.FIRST_TRIES]])
        results = [result for result in found if result is not None]
        cut = sum((part.name, check.name) in self.left for check in asked)
        if asked:
            print(report.line(time.monotonic() - self.start, part, results, len(chosen) - len(asked), cut, time.monotonic() - begin, sorted(changed)),
                  flush=True)
        self.save()

    def steps(self):
        for part in self.parts:
            if part.name in self.options.only and not (part.name == "build" and self.options.prun):
                self.part(part)

    def write(self):
        report.write(self.options.out, self.here, self.store.results, self.left, self.parts)

    def save(self):
        """Writes the report, and copies all files to the `--save` folder, if given."""
        self.write()
        if not self.options.save:
            return
        self.options.save.mkdir(parents=True, exist_ok=True)
        for name in ("report.md", "results.json"):
            if (self.options.out / name).exists():
                shutil.copy(self.options.out / name, self.options.save / name)
        new = self.options.save / "files.tar.gz.new"
        with tarfile.open(new, "w:gz", compresslevel=3) as tar:
            for path, name in files_to_save(self.options.out, self.context.top / "runs", self.started):
                tar.add(path, name)
        new.replace(self.options.save / "files.tar.gz")

    def finish(self):
        """Runs the parts and returns the exit status. The report is written whatever ends the parts."""
        helper = warm.start(self.context)
        try:
            self.steps()
        finally:
            warm.stop(helper)
            self.save()
            print(f"{report.headline(self.here, self.store.results, self.left).replace('**', '')}\n{self.options.out / 'report.md'}", flush=True)
        return self.status()

    def status(self):
        if self.left:
            return UNFINISHED
        if any(r.status == FAIL for r in self.store.results if r.part in self.options.only):
            return FAILED
        return USAGE if self.options.device == "cuda" and not self.here["gpus"] else OK
