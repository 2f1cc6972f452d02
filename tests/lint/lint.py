"""Linters over this repository, one per call; CI runs each as a test (tests/lint/CMakeLists.txt).

    tests/lint/lint.py clang-format | ruff | mypy | luacheck | thread-safety
    tests/lint/lint.py clang-tidy [--changed | --all]

clang-tidy reads the lines that differ from main; on main, those of the last day. CI sets TIDY_SECONDS and reads the
sources with most changes first; --changed reads each changed source without a time limit; --all reads all sources
whole.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import venv

TOP = pathlib.Path(__file__).resolve().parents[2]
RUFF = "ruff==0.4.0"
MYPY = "mypy==1.11.2"
SKIPPED = 77  # CTest's SKIP_RETURN_CODE
AFTER_A_BUILD = {"tools/prun/version.cc"}  # includes a header that only a build makes
DAY = 24 * 60 * 60
DATABASE = "build/dev/tidy"  # folder of a compile_commands.json
TIDY_SECONDS = 50  # of CI's 45 minutes; a source takes 6 to 25 s of a core, so about 8 fit on 2 cores


def lines(*command):
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    if done.returncode > 1:  # 1: git grep finds nothing
        sys.exit(done.stderr)
    return done.stdout.split()


def run(*command, **options):
    return subprocess.run(command, cwd=TOP, check=False, **options).returncode


def missing(what):
    """Fails in CI, which has every linter; otherwise prints that the linter is missing."""
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


def mypy():
    """Checks the package prun (pyproject.toml: strict). Packages that it imports where it needs them may be missing."""
    place = TOP / "build/mypy"
    if not (place / "bin/mypy").exists():
        venv.create(place, with_pip=True)
        if run(place / "bin/pip", "install", "-q", MYPY) != 0:
            return missing(f"{MYPY} is not here and cannot be had from PyPI")
    # Without torch its types are Any, and comments that silence an error of its types are unused.
    return run(place / "bin/mypy", "--cache-dir", place / "cache", "--no-warn-unused-ignores", "--allow-subclassing-any",
               "-p", "prun", env={**os.environ, "MYPYPATH": str(TOP / "tools/python")})


def luacheck():
    return run("luacheck", "--quiet", "lua", "plans")


def thread_safety():
    headers = ["thread_annotations.h"]
    headers += [pathlib.Path(name).name for name in lines("git", "grep", "-lF", "thread_annotations.h", "--", "*.h")]
    sources = {name for header in headers for name in lines("git", "grep", "-lE", f'["/]{header}"', "--", "*.cc")}
    command = ["clang++", "-std=c++20", "-fsyntax-only", "-Wthread-safety", "-Werror=thread-safety", "-I.",
               "-Iruntime", "-Iruntime/include", "-Itools/prun"]
    return max([run(*command, name) for name in sorted(sources) if not name.startswith("tests/")], default=0)


def landing_base():
    """Returns the commit where this branch left main. On main itself, where landings leave no mark, it is the newest
    commit that is a day older than HEAD, because one landing's commits are hours old. None (all lines) in a younger
    history.
    """
    known = [name for name in ("origin/main", "main") if run("git", "rev-parse", "-q", "--verify", name,
                                                             stdout=subprocess.DEVNULL) == 0]
    head = lines("git", "rev-parse", "HEAD")[0]
    base = lines("git", "merge-base", "HEAD", known[0])[0] if known else head
    if base != head:
        return base
    made = int(lines("git", "show", "-s", "--format=%ct", "HEAD")[0])
    return (lines("git", "rev-list", "-1", f"--before={made - DAY}", "HEAD") or lines("git", "hash-object", "-t", "tree", "/dev/null"))[0]


def changed():
    """Returns {source: its lines that differ from landing_base()}."""
    parts, name = {}, ""
    for line in subprocess.run(["git", "diff", "-U0", "--diff-filter=d", landing_base(), "--", "*.cc", "*.h"], cwd=TOP,
                               capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith("+++ b/"):
            name = line[len("+++ b/"):]
        elif found := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))?", line):
            first, count = int(found[1]), int(found[2] or 1)
            if count > 0:
                parts.setdefault(name, []).append([first, first + count - 1])
    return parts


def one_command_each():
    """Writes DATABASE with one of dev's commands for each source; returns the sources. Tests compile the sources of
    plugins/cuda again with the substitute's headers, which clang 14 cannot read.
    """
    found = json.loads((TOP / "build/dev/compile_commands.json").read_text())
    found.sort(key=lambda each: "-o tests/" in each.get("command", ""))
    commands = {}
    for each in found:
        commands.setdefault(pathlib.Path(each["file"]).resolve(), each)
    (TOP / DATABASE).mkdir(exist_ok=True)
    (TOP / DATABASE / "compile_commands.json").write_text(json.dumps(list(commands.values())))
    return set(commands)


def tidy(names, options, seconds):
    """Runs clang-tidy on the sources, one process per core; returns (whether all passed, sources not begun in time)."""
    end = time.monotonic() + seconds

    def one(name):
        if time.monotonic() > end:
            return None
        done = subprocess.run(["clang-tidy", "--quiet", "-p", DATABASE, "--warnings-as-errors=*", *options, name], cwd=TOP,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(done.stdout + done.stderr, flush=True)
        return done.returncode == 0

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        passed = dict(zip(names, pool.map(one, names)))
    return False not in passed.values(), [name for name in names if passed[name] is None]


def clang_tidy():
    every = "--all" in sys.argv
    parts = {} if every else changed()
    names = [name for name in (lines("git", "ls-files", "*.cc") if every else parts)
             if name.startswith(("runtime/", "plugins/", "tools/prun/", "tools/mutate/")) and name.endswith(".cc")]
    if not names:
        return 0
    # The preset that compiles each source separately; configuring it suffices.
    if not (TOP / "build/dev/compile_commands.json").exists() and run("cmake", "--preset", "dev", stdout=subprocess.DEVNULL) != 0:
        return missing("clang-tidy: build/dev cannot be configured")
    # A source that needs a missing library has no command, and its headers would not be found.
    commands = one_command_each()
    if not all((TOP / name).resolve() in commands for name in names):  # added after build/dev was configured
        run("cmake", "--preset", "dev", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        commands = one_command_each()
    apart = [name for name in names if (TOP / name).resolve() not in commands or name in AFTER_A_BUILD]
    names = [name for name in names if name not in apart]
    if apart:
        print(f"clang-tidy: not configured here, so not checked: {', '.join(apart)}")
    if every:
        return int(not tidy(names, [], float("inf"))[0])
    names.sort(key=lambda name: sum(first - last - 1 for first, last in parts[name]))  # most changed lines first
    # The filter of a large landing exceeds the kernel's 128 KiB for one argument, so it is in a file.
    options = TOP / DATABASE / "options"
    options.write_text(f"'--line-filter={json.dumps([{'name': n, 'lines': at} for n, at in parts.items()])}'")
    # The analyzer takes ten times as long as all other checks.
    passed, left = tidy(names, ["--checks=-clang-analyzer-*", f"@{options}"],
                        float("inf") if "--changed" in sys.argv else TIDY_SECONDS)
    if left:
        print(f"clang-tidy: {len(left)} of {len(names)} sources are not checked, for want of time: {', '.join(left)}")
    return 1 if not passed else SKIPPED if left or apart else 0


CHECKS = {"clang-format": clang_format, "ruff": ruff, "mypy": mypy, "luacheck": luacheck, "thread-safety": thread_safety,
          "clang-tidy": clang_tidy}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in CHECKS:
        sys.exit(__doc__)
    try:
        sys.exit(CHECKS[sys.argv[1]]())
    except FileNotFoundError as error:
        sys.exit(missing(f"{error.filename} is not installed (tools/packages.txt)"))
