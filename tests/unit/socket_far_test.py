#!/usr/bin/env python3
"""Ranks with 5 ms of round-trip time (the line of tools/bench/line.py): the socket plugin classifies them as distant,
and the messages that it then sends before their receives arrive complete. Needs root and /dev/net/tun; skipped
otherwise.
"""
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools/bench"))
import line  # noqa: E402

SKIPPED = 77


def run(prun, names, op, *options):
    words = [prun, "bench", op, "--nproc", 1, "--nnodes", 2, "--rendezvous", f"10.80.0.1:{line.PORT}", "--transport", "socket",
             "--transport-options", ",".join(options), "--bytes", "100K,3M", "--iters", 3, "--samples", 2, "--check", 1, "--log-level", "debug"]
    jobs = [subprocess.Popen(["ip", "netns", "exec", name, *map(str, words), "--node-rank", str(node)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, env={**os.environ, "PRUN_SECRET": "of this test"}) for node, name in enumerate(names)]
    said = [job.communicate(timeout=60) for job in jobs]
    for job, (out, err) in zip(jobs, said):
        assert job.returncode == 0, f"{op} {options}: exit {job.returncode}\n{out}{err}"
        assert "peers far away" in err, err
    rows = [row.split() for row in said[0][0].splitlines() if row.strip() and not row.startswith("#")]
    assert len(rows) == 2, said[0][0]


def can_make_hosts():
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    try:
        with line.two_hosts(1.0, 5.0):
            return True
    except (OSError, subprocess.CalledProcessError) as error:
        print(error)
        return False


def main():
    if not can_make_hosts():
        print("needs root, iproute2, network namespaces and /dev/net/tun")
        return SKIPPED
    with line.two_hosts(1.0, 5.0) as names:
        for op in ("all_to_all", "all_reduce", "broadcast"):
            run(sys.argv[1], names, op)
        run(sys.argv[1], names, "all_reduce", "encrypt=1", "connections=2")
    return 0


if __name__ == "__main__":
    sys.exit(main())
