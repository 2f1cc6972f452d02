#!/usr/bin/env python3
"""The verifier accepts all valid plans: `prun check` of all plans, on several numbers of ranks and in several forms.

    good_plans_test.py PRUN SOURCE_DIR [--all]

CI checks each plan on 1, 3 and 8 ranks; --all adds 2, 4 and 6. A plan that does not support a number of ranks is
rejected before verification, which does not count as a failure.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

PRUN, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
RANKS = (1, 2, 3, 4, 6, 8) if "--all" in sys.argv[3:] else (1, 3, 8)
IMPOSSIBLE = re.compile(r"need a multiple of|is for \d+ rank|no strategy uses mesh axis|has one chunk a rank|do not divide (into|over the)|"
                        r"at least one|the plan has no argument|cannot be 'zb_v'")
FORMS = [[], ["micro=2", "layers=4"], ["dtype=bf16", "layers=2"], ["tp=1", "pp=1", "cp=1", "ep=1"], ["pp=4", "layers=5"],
         ["tp=2", "micro=3"], ["replicate=2"], ["schedule=zb_v", "layers=4", "micro=2"], ["chunks=3", "layers=6", "micro=2"]]


def arguments(plan):
    text = subprocess.run([PRUN, plan, "--help"], capture_output=True, text=True, timeout=60).stdout
    return set(re.findall(r"^  ([a-z_]+)", text, re.MULTILINE))


def main():
    with tempfile.TemporaryDirectory(prefix="prun-good-plans-") as folder:
        subprocess.run([sys.executable, SOURCE / "plans/architectures/data.py", folder], check=True)
        return check(folder)


def check(folder):
    failed = checked = 0
    for plan in sorted(SOURCE.glob("plans/**/*.lua")):
        known = arguments(plan)
        for form in FORMS:
            settings = [s for s in form if s.split("=")[0] in known]
            if form and not settings:
                continue
            for ranks in RANKS:
                command = [PRUN, "check", str(plan), "--nproc", str(ranks)]
                if "batch" in known:
                    settings_here = settings + [f"batch={48 * ranks}"]
                else:
                    settings_here = settings
                if "folder" in known:
                    settings_here = [*settings_here, f"folder={folder}"]
                for setting in settings_here:
                    command += ["--set", setting]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60)
                if done.returncode != 0 and IMPOSSIBLE.search(done.stderr):
                    continue
                checked += 1
                if done.returncode != 0:
                    failed += 1
                    print(" ".join(command[1:]), "\n  ", done.stderr.strip())
    print(f"{checked} good plans, {failed} refused")
    return 1 if failed or checked < 50 * len(RANKS) else 0


if __name__ == "__main__":
    sys.exit(main())
