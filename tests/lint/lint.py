"""Linters over this repository, one a call; CI runs each as a test (tests/lint/CMakeLists.txt).

    tests/lint/lint.py clang-format | ruff | luacheck | thread-safety
    tests/lint/lint.py clang-tidy [--all]     # lines that differ from main, or all
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv

TOP = pathlib.Path(__file__).resolve().parents[2]
RUFF = "ruff==0.4.0"
SKIPPED = 77  # CTest's SKIP_RETURN_CODE


def lines(*command):
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    if done.returncode > 1:  # 1: git grep finds nothing
        sys.exit(done.stderr)
    return done.stdout.split()


def run(*command, **options):
    return subprocess.run(command, cwd=TOP, check=False, **options).returncode


def missing(what):
    """CI has every linter; elsewhere one that is missing is told, no more."""
    print(f"{what}: not checked")
    return 1 if os.environ.get("CI") else SKIPPED


def clang_format():
    return run("clang-format", "--dry-run", "-Werror", *lines("git", "ls-files", "*.cc", "*.h", "*.cu", "*.cuh"))


def ruff():
    program = shutil.which("ruff") or TOP / "build/ruff/bin/ruff"
    if not pathlib.Path(program).exists():
        venv.create(TOP / "build/ruff", with_pip=True)
        if run(TOP / "build/ruff/bin/pip", "install", "-q", RUFF) != 0:
            return missing(f"{RUFF} is not here and cannot be had from PyPI")
    return run(program, "check", "--no-cache", "tools", "tests")


def luacheck():
    return run("luacheck", "--quiet", "lua", "plans")


def thread_safety():
    headers = ["thread_annotations.h"]
    headers += [pathlib.Path(name).name for name in lines("git", "grep", "-lF", "thread_annotations.h", "--", "*.h")]
    sources = {name for header in headers for name in lines("git", "grep", "-lE", f'["/]{header}"', "--", "*.cc")}
    command = ["clang++", "-std=c++20", "-fsyntax-only", "-Wthread-safety", "-Werror=thread-safety", "-I.",
               "-Iruntime", "-Iruntime/include", "-Iplugins/sdk/include", "-Itools/prun"]
    return max([run(*command, name) for name in sorted(sources) if not name.startswith("tests/")], default=0)


def changed():
    """{source: its lines that differ from where this branch left main, on main itself those of the last commit}"""
    known = [name for name in ("origin/main", "main") if run("git", "rev-parse", "-q", "--verify", name,
                                                             stdout=subprocess.DEVNULL) == 0]
    base = lines("git", "merge-base", "HEAD", known[0])[0] if known else "HEAD"
    if base == lines("git", "rev-parse", "HEAD")[0]:
        base = "HEAD~1"
    parts, name = {}, ""
    for line in subprocess.run(["git", "diff", "-U0", "--diff-filter=d", base, "--", "*.cc", "*.h"], cwd=TOP,
                               capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith("+++ b/"):
            name = line[len("+++ b/"):]
        elif found := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))?", line):
            first, count = int(found[1]), int(found[2] or 1)
            if count > 0:
                parts.setdefault(name, []).append([first, first + count - 1])
    return parts


def clang_tidy():
    every = "--all" in sys.argv
    parts = {} if every else changed()
    names = [name for name in (lines("git", "ls-files", "*.cc") if every else parts)
             if name.startswith(("runtime/", "plugins/", "tools/prun/", "tools/mutate/")) and name.endswith(".cc")]
    # The preset that compiles each source alone; configured is enough.
    if names and not (TOP / "build/dev/compile_commands.json").exists() and run("cmake", "--preset", "dev", stdout=subprocess.DEVNULL) != 0:
        return missing("clang-tidy: build/dev cannot be configured")
    # The analyzer takes ten times as long as all other checks.
    only = [] if every else ["--checks=-clang-analyzer-*", "--line-filter=" + json.dumps([{"name": n, "lines": at} for n, at in parts.items()])]
    return run("xargs", "-P", str(len(os.sched_getaffinity(0))), "-n", "4", "-d", "\n", "clang-tidy", "--quiet", "-p", "build/dev",
               "--warnings-as-errors=*", *only, input="\n".join(names), text=True) if names else 0


CHECKS = {"clang-format": clang_format, "ruff": ruff, "luacheck": luacheck, "thread-safety": thread_safety,
          "clang-tidy": clang_tidy}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in CHECKS:
        sys.exit(__doc__)
    try:
        sys.exit(CHECKS[sys.argv[1]]())
    except FileNotFoundError as error:
        sys.exit(missing(f"{error.filename} is not installed (tools/packages.txt)"))
