"""Compares the result of a job with the results that the model allows, then records it in the model."""
import dataclasses
import json

from folder import Snapshot
from job import Done
from model import INTERRUPTED, INVALID, KILLED, PREEMPTED, TERMINATED, USAGE, Node, same_samples
from samples import CONTENTS, Reference, rows_of, train

STOPPED = {"kill": {KILLED}, "term": {PREEMPTED, TERMINATED}, "int": {PREEMPTED, INTERRUPTED}}


class Wrong(Exception):
    """A broken invariant. Failures of one fault have the same `kind`, so that a shrunk sequence keeps it."""

    def __init__(self, kind, text):
        super().__init__(f"{kind}: {text}")
        self.kind = kind


def samples_text(total, values):
    """Names the samples in a sum of distinct powers of two."""
    whole = round(total)
    names = [str(i) for i, value in enumerate(values) if whole & int(value)]
    return f"{total:.3f}" + (f" (samples {' '.join(names)}, if each came once)" if abs(total - whole) < 0.01 else "")


def branch_of(name):
    return int(name.partition("-")[2] or 1)


class Course:
    """The batches, weights and losses that a job computes, starting at a node."""

    def __init__(self, job, start, reference: Reference, init=None):
        self.job, self.start = job, start
        settings, self.first = job.settings, start.step if start else 0
        self.known = settings["outputs"] == 1  # jobs with other models must be rejected
        self.values, self.batch = CONTENTS[settings["content"]], job.tuning["batch"]
        self.consumed = start.consumed if start and same_samples(settings, start.settings) else 0  # samples of the current data
        self.tokens = start.tokens if start else 0
        count = self.consumed + (job.steps - self.first) * self.batch
        weight, places = reference.order(settings["content"], settings["order"], settings["seed"], count)
        weight = init.weight if init else weight
        batches = [[self.values[place] for place in places[at:at + self.batch]] for at in range(self.consumed, count, self.batch)]
        self.states = list(train(start.weight if start else weight, start.momentum if start else 0.0, job.tuning["lr"],
                                 job.tuning["momentum"], batches))
        self.key = (settings["content"], job.nproc, tuple(sorted({**job.tuning, "order": settings["order"], "seed": settings["seed"],
                                                                   "outputs": settings["outputs"]}.items())))
        self.uniform = not init if start is None else start.course == self.key
        self.reference = reference

    def exact(self, steps):
        return self.reference.losses(self.key[0], self.key[1], dict(self.key[2]), steps) if self.uniform else None

    def node(self, stored):
        """Returns the node of a checkpoint that this course may have written; throws Wrong if its content differs."""
        if self.start and stored.step == self.first == self.job.steps and stored.weight == self.start.weight:  # nothing is left to train
            if stored.samples != self.consumed:
                raise Wrong("samples", f"{stored.name} counts {stored.samples} samples, and {self.consumed} were consumed")
            course = self.start.course if same_samples(self.job.settings, self.start.settings) else None
            return dataclasses.replace(self.start, name=stored.name, branch=branch_of(stored.name), job=self.job.number, parent=self.start,
                                       consumed=self.consumed, settings=self.job.settings, course=course, origin=None)
        if not self.first < stored.step <= self.job.steps:
            raise Wrong("step", f"{stored.name} is of step {stored.step}; the job trained steps {self.first + 1} to {self.job.steps}")
        done = stored.step - self.first
        _, _, weight, momentum = self.states[done - 1]
        if stored.weight is None or self.known and abs(stored.weight - weight) > 1e-5 * abs(weight):
            raise Wrong("state", f"{stored.name} holds the weight {stored.weight}, and after {stored.step} steps it is {weight}")
        consumed = self.consumed + done * self.batch
        if stored.samples != consumed:
            raise Wrong("samples", f"{stored.name} counts {stored.samples} samples, and {consumed} were consumed")
        return Node(stored.name, branch_of(stored.name), stored.step, consumed, self.tokens + done * self.batch, stored.weight, momentum, self.job.number,
                    self.start, self.job.settings, self.key if self.uniform else None)

    def check_losses(self, rows):
        exact = self.exact(self.job.steps) if rows else None
        for row, step in zip(rows, range(self.first + 1, self.job.steps + 1)):
            if row["step"] != step:
                raise Wrong("metrics", f"{self.job.metrics} has step {row['step']} where step {step} belongs")
            before, total, _, _ = self.states[step - self.first - 1]
            found = row["loss"] * self.batch / before
            if self.known and abs(found - total) > 0.3:
                raise Wrong("data", f"step {step} took {samples_text(found, self.values)}, "
                                    f"expected {samples_text(total, self.values)}")
            if exact and row["loss"] != exact[step - 1]:
                raise Wrong("bits", f"the loss of step {step} is {row['loss']!r}; of a run that nothing stopped {exact[step - 1]!r}")
            tokens = self.tokens + (step - self.first) * self.batch
            if row["tokens"] != tokens:
                raise Wrong("tokens", f"metrics count {row['tokens']} tokens at step {step}, and {tokens} were consumed")


def codes_of(job, new):
    """Returns the exit codes allowed for an accepted job that has made the checkpoints `new`."""
    codes = {0}
    if job.stop and job.stop.get("sent"):
        codes |= STOPPED[job.stop["signal"]]
        training = job.stop["commits"] and job.stop["reached"] and not any(each.step == job.steps for each in new)
        if training and job.stop["signal"] != "kill":
            codes -= {TERMINATED, INTERRUPTED}
    return codes


class Judge:
    """Judges jobs that wrote to one folder; `before` and `after` are snapshots of it."""

    def __init__(self, model, reference, shell, name, before):
        self.model, self.reference, self.shell, self.before = model, reference, shell, before
        self.folder, self.after = model.folders[name], Snapshot(shell.at(name))
        self.new, self.gone, self.other = self.after.changes(before)

    def changes(self):
        return (f"new {self.new}, gone {self.gone}, of other bytes {self.other}, LATEST {self.before.latest} -> {self.after.latest}, "
                f"others {sorted(self.before.other ^ self.after.other)}")

    def unchanged(self, why):
        if self.after != self.before:
            raise Wrong("refusal", f"{why}, and the folder changed: {self.changes()}")

    def alone(self, job, done: Done):
        if self.refused(job, done):
            return self.unchanged(f"exit {done.code}, as the job must {self.model.expect(job).text()}")
        return self.trained(job, done, self.new + self.other, self.gone)

    def refused(self, job, done):
        """Returns whether the job was rejected; throws Wrong if the model does not allow its exit code."""
        expectation, accepted = self.model.expect(job), codes_of(job, [self.after.checkpoints[name] for name in self.new])
        if done.code in accepted and (expectation.starts or done.code != 0):
            return not expectation.starts
        if done.code in expectation.codes:
            return True
        raise Wrong(f"exit {done.code}", f"the job must {expectation.text()}; {self.changes()}")

    def beside(self, job, done, starts):
        """Judges a job that begins with the newest checkpoint of a folder to which another job writes."""
        if done.code in (USAGE, INVALID):
            return self.unchanged(f"exit {done.code}")
        if done.code:
            raise Wrong(f"exit {done.code}", "a job that begins in another's folder")
        return self.trained(job, done, self.new + self.other, self.gone, [start for start in starts if start])

    def trained(self, job, done, names, gone, starts=None, replaced=False, latest=True):
        """Judges a job that may begin with one of several nodes: the result must fit one of them."""
        failures = []
        for start in self.model.expect(job).starts if starts is None else starts:
            try:
                course = Course(job, start, self.reference, self.model.folders[job.init].newest() if job.init else None)
                course.check_losses(rows_of(self.shell.at(job.metrics)))
                nodes = sorted((course.node(self.after.checkpoints[name]) for name in names), key=lambda node: node.step)
                self.check_course(job, done, course, nodes, replaced)
                self.check_branch(start, nodes)
                self.check_removed(job, start, nodes, gone, replaced)
                return self.take_over(job, start, nodes, gone, latest)
            except Wrong as wrong:
                failures.append(wrong)
        raise failures[0]

    def check_course(self, job, done, course, nodes, replaced):
        rows = rows_of(self.shell.at(job.metrics))
        last = nodes[-1].step if nodes else course.first
        if done.code == 0 and last != job.steps and not replaced:
            raise Wrong("last", f"exit 0, and the last checkpoint is of step {last}, not {job.steps}")
        if done.code == 0 and len(rows) != job.steps - course.first:
            raise Wrong("metrics", f"{len(rows)} rows of metrics for {job.steps - course.first} steps")
        if done.code == PREEMPTED and rows and last < rows[-1]["step"]:
            raise Wrong("last", f"exit {PREEMPTED} after step {rows[-1]['step']}, and the last checkpoint is of step {last}")
        odd = [node.name for node in nodes if node.step % job.every and node.step != job.steps]
        if odd and done.code != PREEMPTED or len(odd) > 1:
            raise Wrong("schedule", f"{odd} are not due, every {job.every} steps")

    def check_removed(self, job, start, nodes, gone, overwritten_since):
        """Checks that --checkpoint-keep counts checkpoints of its branch and removes none that another branch needs."""
        if job.overwrite and not self.folder.present(start):
            return
        replaced = [name for name in self.other if name in self.folder.nodes and not self.folder.nodes[name].damage]
        if replaced and not overwritten_since:
            raise Wrong("replaced", f"{replaced} have other bytes than before")
        for name in gone:
            node = self.folder.nodes[name]
            if node.damage:
                continue
            if not job.keep:
                raise Wrong("removed", f"{name} is gone, and nothing asked for it")
            if node.same(start):
                raise Wrong("removed", f"--checkpoint-keep removed {name}, with which the job began")
            if not nodes or node.branch != nodes[0].branch:
                raise Wrong("removed", f"--checkpoint-keep removed {name}, which is of another branch")
        here = [node for node in self.after.checkpoints if nodes and branch_of(node) == nodes[0].branch]
        if len(here) < job.keep < len(here) + len(gone):
            raise Wrong("removed", f"--checkpoint-keep {job.keep} left {here} and removed {gone}")

    def check_branch(self, start, nodes):
        """Checks that the new nodes are one chain: they continue the branch of `start` if it is the last node there, or begin a branch."""
        if not nodes:
            return
        branch, present = nodes[0].branch, [node for node in self.folder.nodes.values() if node.name not in self.other + self.gone]
        if any(node.branch != branch for node in nodes):
            raise Wrong("branch", f"one job wrote to several branches: {[node.name for node in nodes]}")
        inside = self.folder.twin(start)
        if inside and self.folder.last_of_branch(inside) and branch != inside.branch:
            raise Wrong("branch", f"{nodes[0].name} goes on from {inside.name}, the last of its branch, and is not in it")
        others = [node.name for node in present if node.branch == branch and not (inside and inside.branch == branch and node.step <= inside.step)]
        if others:
            raise Wrong("branch", f"{nodes[0].name} has the branch of {others}, which are not before it")

    @staticmethod
    def unseen(job, start, node):
        """Returns the parent of `node`. --checkpoint-keep may have removed nodes between it and `start`."""
        first, before = start.step if start else 0, (node.step - 1) // job.every * job.every
        if before <= first:
            return start
        return dataclasses.replace(node, name=f"gone before {node.name}", step=before, parent=start, origin=None)

    def take_over(self, job, start, nodes, gone, latest):
        for name in gone:
            self.folder.nodes.pop(name, None)
        for before, node in zip([self.folder.twin(start) or start, *nodes], nodes):
            node.parent = self.unseen(job, before, node)
            self.folder.nodes[node.name] = node
        self.folder.latest = self.after.latest if latest else nodes[-1].name if nodes else self.folder.latest
        if nodes and not any(node.name == self.folder.latest for node in nodes) and self.folder.newest() not in nodes:
            raise Wrong("newest", f"LATEST names {self.folder.latest}, and the job committed {[node.name for node in nodes]}")
        return nodes

    def both(self, jobs, dones):
        """Judges two jobs in one folder: one is rejected, or the result is that of one after the other."""
        refused = [done.code in (USAGE, INVALID) for done in dones]
        if all(refused):
            return self.unchanged("both were refused")
        if any(refused):  # by the lock, or because of the other job's checkpoints
            return self.alone(jobs[refused.index(False)], dones[refused.index(False)])
        runs = {self.after.checkpoints[name].run for name in self.new + self.other}
        nodes, latest, failures = dict(self.folder.nodes), self.folder.latest, []
        for first, second in ((0, 1), (1, 0)):
            for run in runs | {None}:  # run of the first job; None = it wrote nothing, or the second job replaced its checkpoints
                for gone in [[], self.removable(jobs[first])] if jobs[first].keep else [[]]:
                    try:
                        self.one_of_two(jobs[first], dones[first], lambda each, run=run: each == run, gone, jobs[second].overwrite, latest=False)
                        self.one_of_two(jobs[second], dones[second], lambda each, run=run: each != run, [n for n in self.gone if n not in gone])
                        return None
                    except Wrong as wrong:
                        failures.append(wrong)
                        self.folder.nodes, self.folder.latest = dict(nodes), latest
        raise Wrong("pair", f"the result is neither of one job after the other: {' | '.join(map(str, failures))}")

    def removable(self, job):
        """Returns the checkpoints that are gone and that --checkpoint-keep of this job may have removed."""
        starts = self.model.expect(job).starts
        return [name for name in self.gone if not any(self.folder.nodes[name].same(start) for start in starts)]

    def one_of_two(self, job, done, is_its_run, gone, replaced=False, latest=True):
        names = [name for name in self.new + self.other if is_its_run(self.after.checkpoints[name].run)]
        if not self.refused(job, done):
            self.trained(job, done, names, gone, replaced=replaced, latest=latest)


def names_of(text):
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {row["checkpoint"].rsplit("/", 1)[1]: row for row in rows if "checkpoint" in row}


def check_listing(model, shell, name):
    """Compares `prun ckpt ls --json` and `prun ckpt show --json` with the model."""
    folder = model.folders[name]
    if not folder.listed():
        return
    newest, listed = folder.newest(), shell.ask("ckpt", "ls", name, "--json")
    rows, nodes = names_of(listed.text), folder.nodes
    unreadable = {each for each in nodes if "index" in nodes[each].damage}
    if set(rows) | unreadable != set(nodes):
        raise Wrong("ls", f"ckpt ls {name} lists {sorted(rows)}, and the folder holds {sorted(nodes)}: {listed.text}")
    for each, row in rows.items():
        node = nodes[each]
        if each in unreadable:
            continue
        if row.get("branch") != node.branch:
            raise Wrong("ls", f"ckpt ls shows branch {row.get('branch')} of {each}, which is of branch {node.branch}")
        if model.runs.setdefault(node.job, row.get("run")) != row.get("run") or list(model.runs.values()).count(row.get("run")) != 1:
            raise Wrong("ls", f"ckpt ls shows run {row.get('run')} of {each}; the runs of jobs are {model.runs}")
        parent = row["parent"]["checkpoint"] if row.get("parent") else None
        if node.parent is None and parent or folder.present(node.parent) and parent != node.parent.name:
            raise Wrong("ls", f"ckpt ls shows parent {parent} of {each}, which was trained on from {node.parent and node.parent.name}")
        if row.get("newest") != (node is newest):
            raise Wrong("newest", f"ckpt ls says newest: {row.get('newest')} of {each}, and the newest is {newest and newest.name}")
    if newest is None or not newest.damage:
        shown = shell.ask("ckpt", "show", name, "--json")
        found = next(iter(names_of(shown.text)), None)
        if found != (newest and newest.name) or shown.code != (0 if newest else INVALID):
            raise Wrong("newest", f"ckpt show {name} takes {found}, exit {shown.code}; the newest is {newest and newest.name}: {shown.text}")
