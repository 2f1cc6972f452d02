"""Carries out the operations of a sequence on a folder on disk and on the model of the folder.

An operation is a dictionary of plain values. It names a checkpoint by a number modulo the number of checkpoints, so
that a sequence remains valid if shrinking removes earlier operations.
"""
from folder import Snapshot
from job import Job, free_port
from judge import Judge, Wrong, check_listing
from model import Model
from samples import CONTENTS, PLAN, npy

PLAIN = {  # default settings of a job
    "do": "run", "to": "D", "from": None, "more": 4, "every": 2, "keep": 0, "nodes": 1, "nproc": 1, "share": 4, "strategy": "ddp", "rate": 1.0,
    "differs": {}, "overwrite": False, "new_data": False, "chaos": None, "memory": 0, "init": "", "stop": None}
DAMAGE = {  # shell commands that damage a checkpoint's folder
    "cut": "for f in {0}/*.safetensors; do truncate -s 10 $f; done",
    "flip": "for f in {0}/*.safetensors; do printf x | dd of=$f bs=1 seek=$(($(stat -c %s $f) - 3)) conv=notrunc 2>/dev/null; done",
    "lose": "rm {0}/*.safetensors",
    "cut index": "truncate -s 100 {0}/index.json",
    "lose index": "rm {0}/index.json",
}


class World:
    """A folder in which commands run, and the model of its content."""

    def __init__(self, shell, reference, config):
        self.shell, self.reference, self.config, self.model = shell, reference, config, Model()
        self.content, self.data, self.jobs, self.moves = "first", "x.npy", 0, 0
        shell.do(f"cp {PLAN} .")
        shell.put(self.data, npy(CONTENTS[self.content]))

    def go(self, operation):
        touched = getattr(self, operation["do"])(operation)
        for name in touched or []:
            check_listing(self.model, self.shell, name)

    def pick(self, folder, number):
        nodes = sorted(self.model.folders[folder].nodes.values(), key=lambda node: (node.job, node.step))
        return nodes[number % len(nodes)] if nodes else None

    # Jobs

    def job(self, operation):
        self.jobs, operation = self.jobs + 1, {**PLAIN, **operation}
        resume = path = operation["from"]
        if isinstance(path, list):  # a checkpoint, or a name without a checkpoint
            node = self.pick(*path)
            resume, path = node or path[0], f"{path[0]}/{node.name if node else 'step_00000001'}"
        settings = {"content": self.content, "order": self.config["order"], "seed": self.config["seed"], "outputs": 1, **operation["differs"]}
        tuning = {"batch": operation["nproc"] * operation["share"], "lr": self.config["lr"] * operation["rate"],
                  "momentum": self.config["momentum"], "strategy": operation["strategy"]}
        every, memory = operation["every"], operation["memory"]
        job = Job(number=self.jobs, checkpoint=operation["to"], resume=resume, resume_path=path or "", steps=0,
                  every=every, keep=operation["keep"], nproc=operation["nproc"], data=self.data, settings=settings, tuning=tuning,
                  overwrite=operation["overwrite"], new_data=operation["new_data"], init="" if path else operation["init"],
                  memory=memory if memory and every % memory == 0 else min(memory, 1), stop=dict(operation["stop"]) if operation["stop"] else None,
                  port=free_port() if operation["nodes"] > 1 else 0)
        start, _ = self.model.source(job)
        begin = start.step if start else 0
        job.steps = max(1, begin + operation["more"])
        if operation["chaos"] is not None:
            step = begin + 1 + int(operation["chaos"] * max(0, job.steps - begin - 1))
            job.chaos = f"kill:rank={operation['nproc'] - 1}@step={step}"
        return job

    def run(self, operation):
        job = self.job(operation)
        before = Snapshot(self.shell.at(job.checkpoint))
        done = self.shell.run(job)
        self.judged(job.checkpoint, before, [done], lambda judge: judge.alone(job, done))
        return [job.checkpoint]

    def pair(self, operation):
        one, other = self.job(operation["one"]), self.job(operation["other"])
        before = Snapshot(self.shell.at(one.checkpoint))
        dones = self.shell.run_both(one, other, operation["ms"] / 1000)
        self.judged(one.checkpoint, before, dones, lambda judge: judge.both([one, other], dones))
        return [one.checkpoint]

    def beside(self, operation):
        """A job continues in a folder while another begins with that folder's newest checkpoint and writes to another
        folder. The first job keeps all checkpoints, because the model does not accept a removed one as a start of the
        second job.
        """
        one = self.job({**operation["one"], "keep": 0})
        other = self.job({**operation["other"], "to": operation["to"], "from": one.checkpoint})
        if one.checkpoint == other.checkpoint:
            return None
        befores = [Snapshot(self.shell.at(job.checkpoint)) for job in (one, other)]
        earlier = self.model.folders[one.checkpoint].newest()
        dones = self.shell.run_both(one, other, operation["ms"] / 1000)
        made = []
        self.judged(one.checkpoint, befores[0], dones, lambda judge: made.extend(judge.alone(one, dones[0]) or []))
        self.judged(other.checkpoint, befores[1], dones, lambda judge: judge.beside(other, dones[1], [earlier, *made]))
        return [one.checkpoint, other.checkpoint]

    def judged(self, name, before, dones, judge):
        try:
            judge(Judge(self.model, self.reference, self.shell, name, before))
        except Wrong as wrong:
            said = "".join(f"\n  exit {done.code}: {done.text.strip()[:1500]}" for done in dones)
            raise Wrong(wrong.kind, f"{str(wrong).split(': ', 1)[1]}{said}") from None

    # Changes made by users, disks and clocks

    def data_changes(self, operation):
        self.content = operation["content"]
        self.shell.put(self.data, npy(CONTENTS[self.content]))

    def data_moves(self, _):
        self.moves += 1
        before, self.data = self.data, f"moved{self.moves}.npy"
        self.shell.do(f"mv {before} {self.data}")

    def damage(self, operation):
        folder = self.model.folders[operation["folder"]]
        node = self.pick(operation["folder"], operation["number"]) if operation["number"] is not None else folder.newest()
        if not node or node.damage:
            return None
        node.damage = operation["how"] if "index" in operation["how"] else "data"
        self.shell.do(DAMAGE[operation["how"]].format(f"{operation['folder']}/{node.name}"))
        return [operation["folder"]]

    def remove_latest(self, operation):
        self.shell.do(f"rm -f {operation['folder']}/LATEST")
        self.model.folders[operation["folder"]].latest = None
        return [operation["folder"]]

    def remove(self, operation):
        """Removes a checkpoint by name: any, or the parent of the newest."""
        folder = self.model.folders[operation["folder"]]
        node = self.pick(operation["folder"], operation["number"]) if operation["number"] is not None else \
            getattr(folder.newest(), "parent", None)
        if not folder.present(node):
            return None
        self.shell.do(f"rm -rf {operation['folder']}/{node.name}")
        del folder.nodes[node.name]
        return [operation["folder"]]

    def clock(self, operation):
        """Sets modification times that contradict the order of the checkpoints."""
        names = sorted(self.model.folders[operation["folder"]].nodes)
        if not names:
            return None
        times = [operation["times"][i % len(operation["times"])] + i for i in range(len(names))]
        self.shell.do("; ".join(f"touch -d @{at} {operation['folder']}/{name} {operation['folder']}/{name}/*" for at, name in zip(times, names)))
        return [operation["folder"]]

    def copy(self, operation):
        """Copies a folder, whole or in part like an interrupted copy."""
        source, target = operation["folder"], operation["to"]
        if self.shell.at(target).exists() or not self.model.folders[source].nodes:
            return None
        self.shell.do(f"cp -r {source} {target}")
        copy = self.model.folders[target] = self.model.folders[source].copy()
        for how, number in operation["without"]:
            self.damage({"folder": target, "how": how, "number": number}) if how in DAMAGE else self.remove_latest({"folder": target})
        return [target] if copy.nodes else None

    def move(self, operation):
        source, target = operation["folder"], operation["to"]
        if self.shell.at(target).exists() or not self.shell.at(source).exists():
            return None
        self.shell.do(f"mv {source} {target}")
        folders = self.model.folders
        folders[source], folders[target] = folders[target], folders[source]
        return [target]

    def leftover(self, operation):
        """Adds the files of a job that was killed during a save."""
        folder = operation["folder"]
        self.shell.do(f"mkdir -p {folder}/step_00000007.gone.tmp && echo half >{folder}/step_00000007.gone.tmp/rank_00000_0.safetensors")
        return [folder]

    def clean(self, operation):
        """Runs `prun clean`. Its exit code also depends on other sequences on this machine, so it is not compared."""
        folder = operation["folder"]
        if not self.shell.at(folder).exists():
            return None
        before = Snapshot(self.shell.at(folder))
        self.shell.log(f"prun clean {folder}")
        done = self.shell.ask("clean", folder)
        after = Snapshot(self.shell.at(folder))
        if after.checkpoints != before.checkpoints or after.latest != before.latest:
            raise Wrong("clean", f"exit {done.code}; new, gone and other checkpoints: {after.changes(before)}; {done.text}")
        return [folder]
