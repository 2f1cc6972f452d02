"""The oracle: the checkpoints that a folder must hold, the newest one, and the results that a job may have.

It follows the rules of runtime/checkpoint/README.md and shares no code with prun. A checkpoint is a node of a tree. A
job that resumes appends a chain of nodes to its start: on the start's branch if the start is the last node there,
otherwise on a new branch.
"""
import dataclasses

# Exit codes, from README.md.
USAGE, PLAN, INVALID, PREEMPTED, INTERRUPTED, KILLED, TERMINATED = 2, 3, 16, 75, 130, 137, 143


@dataclasses.dataclass(eq=False)
class Node:
    """A checkpoint that a job committed."""
    name: str  # name of its folder
    branch: int
    step: int
    consumed: int  # samples of its data, over all steps of its branch
    tokens: int  # samples of all data over all steps; a sample is one token
    weight: float
    momentum: float  # the optimizer's state
    job: int  # the number of the operation that made it
    parent: "Node | None"
    settings: dict  # settings of that job: content, seed, order, outputs
    course: tuple | None  # the reference run that has this state bitwise; None = settings changed on the way
    origin: "Node | None" = None  # the node that it is a copy of
    damage: str = ""  # "" = whole; "data" = its files; "cut index", "lose index" = its content is unknown

    def path(self):
        """Returns this node and the ones before it, newest first."""
        node, found = self, []
        while node:
            found.append(node)
            node = node.parent
        return found

    def identity(self):
        return id(self.origin or self)

    def same(self, other):
        return other is not None and self.identity() == other.identity()


class Folder:
    """The nodes whose folders exist, by name, and the name in LATEST."""

    def __init__(self):
        self.nodes, self.latest = {}, None

    @property
    def used(self):
        return bool(self.nodes) or self.latest is not None

    def present(self, node):
        return node is not None and self.nodes.get(node.name) is node

    def listed(self):
        """Returns the nodes that have an index.json, which may be damaged."""
        return [node for node in self.nodes.values() if node.damage != "lose index"]

    def twin(self, node):
        """Returns the node itself or its copy here, if its index.json is readable."""
        return next((each for each in self.nodes.values() if each.same(node) and "index" not in each.damage), None)

    def earlier(self, branch, step):
        """Returns the last node of a branch before a step, by names alone."""
        return max((node for node in self.listed() if node.branch == branch and node.step < step), key=lambda node: node.step, default=None)

    def newest(self):
        """Returns the newest node, or None if several branches are possible."""
        listed = self.listed()
        head = next((node for node in listed if node.name == self.latest), None)
        if head:
            while child := next((node for node in listed if self.goes_on(node, head)), None):
                head = child
            return head
        if self.latest is not None:
            step, _, branch = self.latest.removeprefix("step_").partition("-")
            return self.earlier(int(branch or 1), int(step))
        branches = {node.branch for node in listed}
        return max(listed, key=lambda node: node.step) if len(branches) == 1 else None

    @staticmethod
    def goes_on(node, head):
        """Returns whether `node` continues `head`. A job that was killed during a commit leaves a later child of the node that LATEST
        names. A job that resumes from the parent of a damaged head and trains nothing commits a copy of that parent, which is not later."""
        later = node.branch == head.branch and node.step > head.step
        return later and head.same(node.parent) and "index" not in node.damage + head.damage

    def before(self, node):
        """Returns the node that a job resumes if this one is damaged."""
        parent = next((each for each in self.listed() if each.same(node.parent) and "index" not in each.damage), None)
        if "index" not in node.damage and (parent or node.parent is None):
            return parent
        return self.earlier(node.branch, node.step)

    def begin(self):
        """Returns the node that `--resume auto` resumes, or None if the job must be refused."""
        node = self.newest()
        while node and node.damage:
            node = self.before(node)
        return node

    def last_of_branch(self, node):
        return all(each.branch != node.branch or each.step <= node.step for each in self.nodes.values())

    def copy(self):
        twin, made = Folder(), {}
        for node in sorted(self.nodes.values(), key=lambda node: len(node.path())):
            made[id(node)] = dataclasses.replace(node, origin=node.origin or node, parent=made.get(id(node.parent), node.parent))
            twin.nodes[node.name] = made[id(node)]
        twin.latest = self.latest
        return twin


@dataclasses.dataclass
class Expectation:
    """The allowed results of a job: it begins with one of `starts` (None = from nothing) or is rejected with one of
    `codes`.
    """
    starts: list
    codes: dict  # {exit code: reason}

    def text(self):
        begin = [f"begin with {start.name if start else 'nothing'}" for start in self.starts]
        return " or ".join(begin + [f"be refused with {code}: {why}" for code, why in self.codes.items()])


class Model:
    def __init__(self):
        self.folders, self.runs = {"D": Folder(), "E": Folder(), "F": Folder()}, {}  # runs: {job: prun's id of its run}

    def source(self, job):
        """Returns the node that --resume names, and the codes with which it may be rejected."""
        if job.resume is None:
            return None, {}
        if isinstance(job.resume, Node):
            here = any(folder.present(job.resume) for folder in self.folders.values())
            return job.resume, {} if here and not job.resume.damage else {INVALID: "that checkpoint is damaged or gone"}
        folder = self.folders[job.checkpoint if job.resume == "auto" else job.resume]
        if job.resume == "auto" and not folder.used:
            return None, {}
        node = folder.begin() if job.resume == "auto" else folder.newest()
        return node, {} if node and not node.damage else {INVALID: "the newest checkpoint is damaged, gone or not known"}

    def expect(self, job):
        """Returns the Expectation of a job, the settings of one `prun` command (job.py)."""
        if job.new_data and job.resume is None:
            return Expectation([], {USAGE: "--new-data is for --resume"})
        start, codes = self.source(job)
        target, perhaps = self.folders[job.checkpoint], False
        if not codes:
            codes = {**settings_refused(start, job), **self.init_refused(job)}
        if USAGE not in codes and not job.overwrite:
            owner, perhaps = owner_refused(start, target)
            perhaps = perhaps and not codes
            codes = {**codes, **owner}
        return Expectation([start] if not codes or perhaps else [], codes)

    def init_refused(self, job):
        if not job.init:
            return {}
        node = self.folders[job.init].newest()
        if node is None or node.damage or node.settings["outputs"] != job.settings["outputs"]:
            return {INVALID: "no whole checkpoint has the first weights", PLAN: "the same", USAGE: "the same"}
        return {USAGE: "--overwrite would remove the first weights"} if job.overwrite and job.init == job.checkpoint else {}


def settings_refused(start, job):
    """Returns the codes of a job that resumes `start` with incompatible settings."""
    if start is None:
        return {}
    before, found = start.settings, {}
    if job.steps < start.step:
        found[USAGE] = "the plan has fewer steps"
    if job.settings["outputs"] != before["outputs"]:
        found[INVALID] = "another model"
    elif not job.new_data and not same_samples(job.settings, before):
        found[INVALID] = "other data, or another order of them"
    return found


def same_samples(settings, others):
    return all(settings[name] == others[name] for name in ("content", "order", "seed"))


def owner_refused(start, target):
    """Returns the codes of a job that may not write to `target`, and whether it may also be accepted."""
    refusal = {USAGE: "another run owns the folder"}
    if not target.used:
        return {}, False
    if start is None:
        return refusal, False
    if any(start.same(node) or start.job == node.job for node in target.listed() if "index" not in node.damage):
        return {}, False
    # The folder has no checkpoint of the run of `start`, but both may continue the same run.
    jobs = {before.job for before in start.path()}
    return refusal, any(before.job in jobs for node in target.nodes.values() for before in node.path())
