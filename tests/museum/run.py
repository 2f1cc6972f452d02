#!/usr/bin/env python3
"""The museum: bugs that other systems had, each as a plan of ours that `prun check` refuses, and its corrected twin.

An exhibit is NAME.lua. Its first comment has `key: value` lines, whose values may continue on the next line: the mistake, the
reported bug, its report, the violated rule (law), other tools that could detect it, the number of ranks, and the error of
`prun check`. The line of the mistake ends in "-- here". With `--set right=1` the same file is the twin, which `--prove` compares
with one rank. README.md lists all exhibits; `run.py PRUN --update` generates the part between its two marks, and the errors.
"""
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import text_case  # noqa: E402

KEYS = ["mistake", "happened", "report", "law", "others", "ranks", "says"]
LAWS = {
    "complete reductions": "a gradient is reduced over every axis whose ranks hold partial sums of it",
    "single reductions": "a gradient is reduced over an axis once",
    "scale": "a mean is divided by the number of its terms, once",
    "order of reductions": "a reduction follows every op that accumulates into its input",
    "shards": "an op that needs a whole tensor does not receive one rank's shard",
    "matching collectives": "all ranks of a group issue the same collectives in the same order, with equal dtype, count and root",
    "no wait cycle": "ranks do not wait for each other in a cycle",
    "matching messages": "each send pairs with the intended receive",
    "lifetimes": "a buffer is read after it is written and before it is freed",
    "slots": "an op that runs ahead has a slot for its result and frees it",
    "complete schedules": "each microbatch runs forward, then backward, through every layer once",
    "averaging": "weights that ranks train independently are all averaged, at the same steps",
    "division": "sizes divide evenly, so that nothing is dropped or repeated",
    "reach": "every parameter affects the loss, so that it is trained",
    "names": "a name denotes one unit",
    "axes": "each mesh axis splits one thing",
    "one model": "model, data and evaluation agree on the meaning of a sample",
    "ranges": "an index is within the bounds of its table or group",
    "capacity": "the state of a rank fits in its memory",
}
MARKS = "<!-- written by run.py --update -->\n", "<!-- to here -->\n"
WIDTH = 100


class Exhibit:
    def __init__(self, path):
        self.path, self.name = path, path.stem
        self.lines = path.read_text().splitlines()
        self.header = next(i for i, line in enumerate(self.lines) if not line.startswith("--"))
        self.fields, key = {}, None
        for line in self.lines[:self.header]:
            text = line[2:].strip()
            found = re.match(r"(\w+): +(.*)", text)
            if found and found[1] in KEYS:
                key = found[1]
                self.fields[key] = found[2]
            elif key:
                self.fields[key] += " " + text
        self.here = [i for i, line in enumerate(self.lines, 1) if line.endswith("-- here")]

    def problems(self):
        """Yields the mistakes of the file itself."""
        missing = [key for key in KEYS if not self.fields.get(key)]
        if missing:
            yield f"its header lacks {', '.join(missing)}"
        elif self.fields["law"] not in LAWS:
            yield f"no law '{self.fields['law']}' (there are {', '.join(LAWS)})"
        elif not re.fullmatch(r"https://github.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", self.fields["report"]):
            yield f"its report is no issue or pull request: {self.fields['report']}"
        if len(self.here) != 1:
            yield f"{len(self.here)} lines end in '-- here', one should"

    def check(self, prun, right=False):
        command = f"prun check {self.path.relative_to(text_case.ROOT)} --nproc {self.fields.get('ranks', 2)}"
        if right:  # equal to one rank, unless weights drift apart on purpose
            command += " --set right=1" + (" --prove" if self.fields.get("law") != "averaging" else "")
        return text_case.run(prun, command)

    def place(self):
        return f"{self.path.relative_to(text_case.ROOT)}:{self.here[0]}"

    def said(self, first):
        """A message without its place, and without numbers that change with files beside this one."""
        text = first.removeprefix(f"prun: {self.place()}: ").replace(self.place(), "here")
        text = re.sub(re.escape(str(self.path.relative_to(text_case.ROOT))) + r":\d+", "this file", text)
        return re.sub(r"(lua/prun/\S+\.lua):\d+", r"\1", re.sub(r"#\d+", "", text))

    def run(self, prun, update):
        """Whether the mistake is refused at its line, in its words, and the twin accepted and proved."""
        bad = [] if update else list(self.problems())
        code, _, err = self.check(prun)
        first = err.split("\n", 1)[0]
        if code != 3:
            bad.append(f"prun check ends with {code}, not 3: {first}")
        elif not self.here or not first.startswith(f"prun: {self.place()}: "):
            bad.append(f"refused elsewhere, not in line {self.here}: {first}")
        elif self.fields.get("says") != self.said(first):
            if update:
                self.write(self.said(first))
            else:
                bad.append(f"says: {self.said(first)}")
        code, _, err = self.check(prun, right=True)
        if code != 0:
            bad.append(f"the corrected twin is refused: {err}")
        for text in bad:
            print(f"{self.name}: {text}")
        return not bad

    def write(self, says):
        kept = [f"-- {key}: {line}" if i == 0 else f"--   {line}" for key, value in [*self.fields.items(), ("says", says)]
                if key != "says" or value is says for i, line in enumerate(wrap(value, WIDTH - len(key) - 5))]
        self.path.write_text("\n".join(kept + self.lines[self.header:]) + "\n")
        self.__init__(self.path)

    def row(self):
        link = re.sub(r"https://github.com/(.*)/(?:issues|pull)/(\d+)", r"\1#\2", self.fields["report"])
        cells = [f"[{self.fields['mistake']}]({self.path.name})", f"[{link}]({self.fields['report']})"]
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def wrap(text, width):
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def page(exhibits):
    rows = {law: sorted((one for one in exhibits if one.fields["law"] == law), key=lambda one: one.name) for law in LAWS}
    rows = {law: found for law, found in rows.items() if found}
    text = f"{len(exhibits)} exhibits violate {len(rows)} rules.\n\n| mistake | report |\n|---|---|\n"
    return text + "".join(f"| **{law}**: {LAWS[law]} | |\n" + "".join(one.row() for one in found) for law, found in rows.items())


def page_agrees(exhibits, update):
    path = HERE / "README.md"
    before, _, rest = path.read_text().partition(MARKS[0])
    old, _, after = rest.partition(MARKS[1])
    new = "\n" + page(exhibits) + "\n"
    if old == new:
        return True
    if update:
        path.write_text(before + MARKS[0] + new + MARKS[1] + after)
        return True
    return text_case.compare(path, old, new, False)


def main():
    args = text_case.arguments(__doc__)
    exhibits = [Exhibit(path) for path in sorted(HERE.glob("*.lua")) if path.stem != "museum"]
    wanted = [one for one in exhibits if not args.cases or one.name in args.cases]
    results = [(one.name, one.run(args.prun, args.update)) for one in wanted]
    if not args.cases:
        mistakes = [one.fields.get("mistake") for one in exhibits]
        results.append(("no mistake is there twice", len(set(mistakes)) == len(mistakes)))
        results.append(("40 exhibits, 12 laws", len(exhibits) >= 40 and len({one.fields["law"] for one in exhibits}) >= 12))
        results.append(("README.md", page_agrees(exhibits, args.update)))
    return text_case.finish(results, "when the change is meant: tests/museum/run.py PRUN --update, and read the diff")


if __name__ == "__main__":
    sys.exit(main())
