#!/usr/bin/env python3
"""A run continues, or ends and reports why, if its output is not read, closed or full, if it is stopped, or under low
limits.

Usage: deaf_test.py PRUN. Standard library only.
"""
import os
import pathlib
import pty
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import prun_faults_test as faults  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Deaf(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.begun = []

    def tearDown(self):
        for process in self.begun:
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, *options, plan=tuple(faults.ENDLESS), **more):
        """Starts a run whose metrics fill a pipe within a second."""
        process = subprocess.Popen([faults.PRUN, *plan, *options, "--runs", self.folder.name], cwd=ROOT, stdin=subprocess.DEVNULL, **more)
        self.begun.append(process)
        return process

    def stuck(self):
        """Returns a run whose standard output is a full pipe that no process reads, and that pipe."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        process = self.start("--nproc", "2", "--metrics", "-", stdout=writer, stderr=writer)
        os.close(writer)
        faults.wait_for(lambda: len(faults.ranks_of(process.pid)) == 2, "the start of both ranks")
        time.sleep(1.5)
        return process

    def test_a_dead_rank_is_noticed_though_nobody_reads(self):
        process = self.stuck()
        ranks = faults.ranks_of(process.pid)
        os.kill(ranks[1], signal.SIGKILL)
        faults.wait_for(lambda: not any(map(faults.running, ranks.values())), "the end of all ranks", 3)
        self.assertEqual(process.wait(timeout=20), 10)

    def test_sigterm_is_obeyed_though_nobody_reads(self):
        process = self.stuck()
        ranks = faults.ranks_of(process.pid)
        process.send_signal(signal.SIGTERM)
        faults.wait_for(lambda: not any(map(faults.running, ranks.values())), "the end of all ranks", 3)
        self.assertEqual(process.wait(timeout=20), 143)

    def test_a_terminal_after_ctrl_s(self):
        """The master is not read, as after Ctrl-S, so the terminal accepts only its buffer's size."""
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        process = self.start("--nproc", "2", "--metrics", "-", stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"})
        os.close(slave)
        faults.wait_for(lambda: len(faults.ranks_of(process.pid)) == 2, "the start of both ranks")
        time.sleep(1.5)
        ranks = faults.ranks_of(process.pid)
        os.kill(ranks[0], signal.SIGKILL)
        faults.wait_for(lambda: not any(map(faults.running, ranks.values())), "the end of all ranks", 3)
        self.assertEqual(process.wait(timeout=20), 10)

    def test_a_slow_reader_gets_all(self):
        """The pipe's reader starts after the ranks have ended; the rows exceed the pipe's capacity."""
        steps = [*faults.ENDLESS[:-1], "steps=400"]
        process = self.start("--nproc", "2", "--metrics", "-", plan=tuple(steps), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        faults.wait_for(lambda: len(faults.ranks_of(process.pid)) == 2, "the start of both ranks")
        faults.wait_for(lambda: not faults.ranks_of(process.pid), "the end of both ranks", 60)
        rows = process.stdout.read()
        process.stdout.close()
        self.assertEqual(process.wait(timeout=20), 0)
        self.assertEqual(rows.count(b"\n"), 400)

    def test_a_slow_reader_gets_more_than_the_queue_holds(self):
        """7 MB of a plan's output, of which the queue for a reader that takes nothing holds 4 MiB."""
        plan = pathlib.Path(self.folder.name, "plan.lua")
        plan.write_text("""local prun = require "prun"
return prun.program(function(r)
  local x = prun.full({ 4000 }, r.rank)
  for i = 1, 300 do prun.print("row", i, x) end
end)
""")
        process = self.start("--nproc", "2", plan=[plan], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        rows = b""
        while part := process.stdout.read1(65536):
            rows += part
            time.sleep(0.01)
        process.stdout.close()
        with process.stderr as errors:
            self.assertEqual(process.wait(timeout=20), 0, errors.read())
        self.assertEqual(rows.count(b"row "), 600)

    def test_ctrl_z_stops_the_ranks_and_nobody_is_blamed(self):
        metrics = pathlib.Path(self.folder.name, "metrics")
        words = pathlib.Path(self.folder.name, "words").open("w+")
        self.addCleanup(words.close)
        process = self.start("--nproc", "2", "--timeout", "2", "--metrics", str(metrics), stdout=words, stderr=words)

        def steps():
            return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

        def all_in(states):
            return all(faults.state(pid) in states for pid in (process.pid, *ranks.values()))
        faults.wait_for(lambda: steps() > 3, "step 3")
        ranks = faults.ranks_of(process.pid)
        process.send_signal(signal.SIGTSTP)
        faults.wait_for(lambda: all_in("T"), "the stop of launcher and ranks", 3)
        time.sleep(4)  # longer than --timeout
        process.send_signal(signal.SIGCONT)
        before = steps()
        faults.wait_for(lambda: steps() > before + 10, "more steps", 10)
        time.sleep(3)
        self.assertIsNone(process.poll(), pathlib.Path(words.name).read_text())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=10), 130)

    def once(self, *options, before="", plan="plans/ddp.lua", settings=("layers=1", "width=32", "heads=2", "context=16", "batch=4", "steps=3"), **more):
        words = [word for each in settings for word in ("--set", each)]
        command = f'{before} exec "$@"'
        return subprocess.run(["bash", "-c", command, "bash", faults.PRUN, plan, *words, *options], cwd=ROOT, stdin=subprocess.DEVNULL,
                              stdout=more.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE, text=True, timeout=60, check=False, **more)

    def test_closed_streams(self):
        """If a standard stream is closed, the --metrics file must not get its descriptor."""
        metrics = pathlib.Path(self.folder.name, "metrics.jsonl")
        for closed in ("2>&-", ">&-", "<&-", "<&- >&- 2>&-"):
            with self.subTest(closed=closed):
                metrics.unlink(missing_ok=True)
                done = self.once("--nproc", "2", "--metrics", str(metrics), before=f"exec {closed};")
                self.assertEqual(done.returncode, 0, done.stderr)
                for line in metrics.read_text().splitlines():
                    self.assertRegex(line, r'^\{"step":')
                self.assertEqual(metrics.read_text().count("\n"), 3)

    def test_a_full_disk_is_no_success(self):
        with open("/dev/full", "w") as full:
            for command in ((), ("check",)):
                with self.subTest(command=command):
                    done = subprocess.run([faults.PRUN, *command, "plans/ddp.lua", "--nproc", "2", "--set", "steps=2"], cwd=ROOT, stdout=full,
                                          stderr=subprocess.PIPE, text=True, timeout=120, check=False)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertIn("prun: standard output is incomplete: No space left on device\n", done.stderr)
            done = self.once("--nproc", "2", "--metrics", "/dev/full")
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("prun: /dev/full is incomplete: No space left on device\n", done.stderr)

    def test_few_addresses_are_enough(self):
        done = self.once("--nproc", "4", "--transport", "shm", before="ulimit -v 3000000;")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_without_addresses_for_the_others_memory_auto_takes_sockets(self):
        done = self.once("--nproc", "4", before="ulimit -v 400000;", settings=("batch=8", "steps=1"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"auto passes over shm: it cannot map the memory of 4 ranks, .* each: the limit on addresses \(ulimit -v\) is ")
        self.assertIn("over socket\n", done.stdout)

    def test_plugins_that_others_may_write_are_refused(self):
        plugins = pathlib.Path(self.folder.name, "plugins")
        plugins.mkdir()
        plugins.chmod(0o777)
        done = self.once("--nproc", "2", env={**os.environ, "PRUN_PLUGIN_PATH": str(plugins)})
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, f"{plugins}.*write")

    def test_few_processes(self):
        """root is exempt from the limit."""
        def few():
            os.setgroups([])
            os.setgid(61234)
            os.setuid(61234)
            resource.setrlimit(resource.RLIMIT_NPROC, (ALLOWED, ALLOWED))
        if os.geteuid() != 0:
            self.skipTest("takes another user of whom nothing else runs")
        for ALLOWED in (2, 3, 5, 6, 7):
            with self.subTest(allowed=ALLOWED):
                done = self.once("--nproc", "2", preexec_fn=few)
                self.assertIn(done.returncode, (0, 2), done.stderr)
                self.assertNotIn("terminate called", done.stderr)
                if done.returncode == 2:
                    self.assertIn("ulimit -u", done.stderr)

    def test_words_do_not_command_the_terminal(self):
        plan = pathlib.Path(self.folder.name, "plan.lua")
        text = (ROOT / "plans/ddp_simple.lua").read_text()
        plan.write_text('print("\\27[31mred")\n' + text)
        done = self.once("--nproc", "2", plan=str(plan), settings=())
        self.assertNotIn("\x1b", done.stderr + done.stdout)
        self.assertIn("\\x1b[31mred", done.stderr)
        plan.write_text('error("\\27]0;title\\7")\n' + text)
        done = self.once("--nproc", "2", plan=str(plan), settings=())
        self.assertEqual(done.returncode, 3)
        self.assertNotIn("\x1b", done.stderr)

    def test_a_pipe_in_place_of_a_manifest(self):
        plugins = pathlib.Path(self.folder.name, "plugins")
        plugins.mkdir()
        (plugins / "odd.so").write_text("")
        os.mkfifo(plugins / "odd.plugin")
        done = self.once("--nproc", "2", env={**os.environ, "PRUN_PLUGIN_PATH": str(plugins)})
        self.assertEqual(done.returncode, 14, done.stderr)
        self.assertIn("odd.plugin is no regular file", done.stderr)


if __name__ == "__main__":
    faults.PRUN = str(pathlib.Path(sys.argv[1]).resolve())
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
