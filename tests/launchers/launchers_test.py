#!/usr/bin/env python3
"""prun as a process of mpirun and srun, which really run, and of launchers whose variables are recorded.

Usage: launchers_test.py PRUN. Needs Open MPI and Slurm (tools/packages.txt); the test starts and stops its own Slurm
daemons. Without the packages it fails.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "faults"), str(TOP / "tests" / "launchers")]
import prun_faults_test as faults  # noqa: E402
from slurm_daemons import SlurmDaemons, free_ports  # noqa: E402

PLAN = faults.ENDLESS[:-1]
STEPS = [*PLAN, "steps=4"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
OWN = re.compile(r"^(PRUN|OMPI|PMI|PMIX|SLURM|MPI|TORCHELASTIC)_|^(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)$")


def processes_of(pid, name=None):
    """Returns the descendants of a process, optionally only those with a name."""
    found, left = [], [pid]
    while left:
        for task in pathlib.Path(f"/proc/{left.pop()}/task").glob("*/children"):
            try:
                children = [int(child) for child in task.read_text().split()]
            except OSError:
                continue
            left += children
            found += children
    def named(each):
        try:
            return pathlib.Path(f"/proc/{each}/comm").read_text().strip() == name
        except OSError:
            return False
    return [each for each in found if name is None or named(each)]


class Launchers(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-launchers-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "runtime").mkdir(mode=0o700)
        self.environment = {name: value for name, value in os.environ.items() if not OWN.match(name)}
        self.environment["XDG_RUNTIME_DIR"] = str(self.folder / "runtime")
        self.metrics = self.folder / "metrics.jsonl"

    def tearDown(self):
        left = self.folder / "runtime" / "prun"
        names = [path.name for path in left.iterdir()] if left.exists() else []
        # A killed launcher leaves its state folder, named by its pid, to `prun clean`.
        self.assertEqual([name for name in names if not name.isdigit()], [], "left in the runtime folder")

    def start(self, *command, output="output", **more):
        with (self.folder / output).open("w") as output_file:
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output_file,
                                       stderr=output_file, cwd=self.folder, env={**self.environment, **more})
        self.addCleanup(lambda: process.poll() is None and (process.kill(), process.wait()))
        return process

    def text(self, output="output"):
        return (self.folder / output).read_text()

    def run_to_end(self, *command, **more):
        return self.start(*command, **more).wait(timeout=60)

    def rows(self):
        return [json.loads(line) for line in self.metrics.read_text().splitlines()] if self.metrics.exists() else []

    def wait_for_steps(self, process, count=3):
        def enough():
            if process.poll() is not None:
                raise AssertionError(f"ended with {process.returncode} before step {count}\n{self.text()}")
            return len(self.metrics.read_bytes().splitlines()) >= count if self.metrics.exists() else False
        faults.wait_for(enough, f"step {count}")

    def losses(self):
        return [row["loss"] for row in self.rows()]

    def expect_training(self, code, ranks):
        """Asserts that one job was reported, once, with the results of one prun."""
        text = self.text()
        self.assertEqual(code, 0, text)
        self.assertEqual(text.count(f"zero3.lua on {ranks} ranks (dp={ranks})"), 1, text)
        self.assertEqual(text.count("\nover shm\n"), 1, text)
        self.assertNotIn("prun: ", text)
        theirs = self.losses()
        self.assertEqual(len(theirs), 4)
        self.metrics.unlink()
        alone = self.run_to_end(faults.PRUN, *STEPS, "--nproc", ranks, "--metrics", self.metrics)
        self.assertEqual(alone, 0, self.text())
        for one, other in zip(theirs, self.losses()):
            self.assertAlmostEqual(one, other, delta=1e-4 * abs(other))

    def expect_one_cause(self, what, code):
        text = self.text()
        self.assertEqual(text.count("prun: "), 1, f"one cause, not its effects:\n{text}")
        self.assertIn(what, text)
        self.assertEqual(code, 10, text)

    def expect_end_with(self, launcher, others):
        """Kills a launcher's own process; its ranks, which have lost their reader, must end within a second."""
        everybody = [pid for each in others for pid in [each, *processes_of(each)]]
        self.assertGreaterEqual(len(everybody), 4, "two processes and their ranks")
        begin = time.monotonic()
        os.kill(launcher, signal.SIGKILL)
        faults.wait_for(lambda: not any(map(faults.running, everybody)), "the end of all ranks", 10)
        self.assertLess(time.monotonic() - begin, 1)

    def kill_one(self, process, name):
        """Kills a process and waits for the end; returns the seconds that it took."""
        everybody = processes_of(process.pid)
        victim = processes_of(process.pid, name)[0]
        begin = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        faults.wait_for(lambda: not any(map(faults.running, everybody)), "the end of all ranks", 10)
        process.wait(timeout=20)
        return time.monotonic() - begin


class OpenMpi(Launchers):
    def test_it_trains_as_one_prun(self):
        code = self.run_to_end(*MPIRUN, "-n", 4, faults.PRUN, *STEPS, "--metrics", self.metrics, "--trace", "trace.json")
        self.expect_training(code, 4)
        self.assertEqual([path.name for path in self.folder.glob("trace*")], ["trace.json"], "node 0 traces all ranks")

    def test_a_process_may_have_several_ranks(self):
        self.expect_training(self.run_to_end(*MPIRUN, "-n", 2, faults.PRUN, *STEPS, "--nproc", 2, "--metrics", self.metrics), 4)

    def test_a_killed_rank_ends_the_job(self):
        process = self.start(*MPIRUN, "-n", 4, faults.PRUN, *PLAN, "steps=1000000", "--metrics", self.metrics)
        self.wait_for_steps(process)
        self.assertLess(self.kill_one(process, "prun-rank2"), 3)
        self.expect_one_cause("prun: rank 2 was killed by SIGKILL\n", process.returncode)

    def test_a_killed_process_of_mpirun_ends_the_job(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                process = self.start(*MPIRUN, "-n", 3, faults.PRUN, *PLAN, "steps=1000000", "--metrics", self.metrics)
                self.wait_for_steps(process)
                everybody = processes_of(process.pid)
                theirs = [each for each in processes_of(process.pid, "prun")
                          if f"OMPI_COMM_WORLD_RANK={victim}\0".encode() in pathlib.Path(f"/proc/{each}/environ").read_bytes()]
                begin = time.monotonic()
                os.kill(theirs[0], signal.SIGKILL)
                faults.wait_for(lambda everybody=everybody: not any(map(faults.running, everybody)), "the end of all ranks", 10)
                self.assertLess(time.monotonic() - begin, 3)
                self.assertNotEqual(process.wait(timeout=20), 0)
                self.metrics.unlink()
        self.assertIn("prun: the process that started rank 2 was killed\n", self.text())

    def test_a_killed_mpirun_ends_the_job(self):
        for wrapper in ([], ["sh", "-c", '"$@"; exit $?', "wrapper"]):
            with self.subTest(wrapper=wrapper):
                process = self.start(*MPIRUN, "-n", 2, *wrapper, faults.PRUN, *PLAN, "steps=1000000", "--metrics", self.metrics)
                self.wait_for_steps(process)
                self.expect_end_with(process.pid, processes_of(process.pid, "prun"))
                process.wait()
                self.metrics.unlink()

    def test_an_error_is_said_once(self):
        code = self.run_to_end(*MPIRUN, "-n", 3, faults.PRUN, *STEPS, "--set", "widht=3")
        self.assertEqual(code, 2, self.text())
        self.assertEqual(self.text().count("prun: "), 1, self.text())

    def test_flags_come_first(self):
        code = self.run_to_end(*MPIRUN, "-n", 2, faults.PRUN, *STEPS, "--nnodes", 1)
        self.assertEqual(code, 0, self.text())
        self.assertEqual(self.text().count("zero3.lua on 1 rank "), 2, "two jobs of one rank")

    def test_a_conflict_prints_the_table(self):
        code = self.run_to_end(*MPIRUN, "-n", 2, faults.PRUN, *STEPS, RANK="2", WORLD_SIZE="8")
        self.assertEqual(code, 2, self.text())
        self.assertIn("torchrun has 2 of 8, openmpi has ", self.text())
        self.assertIn("  torchrun    process 2 of 8   (RANK=2 WORLD_SIZE=8)\n", self.text())

    def test_bench(self):
        self.assertEqual(self.run_to_end(*MPIRUN, "-n", 2, faults.PRUN, "bench", "all_reduce", "--bytes", "64K"), 0, self.text())
        self.assertEqual(len(re.findall(r"(?m)^ +65536 ", self.text())), 1, self.text())


class Slurm(Launchers):
    @classmethod
    def setUpClass(cls):
        cls.slurm = SlurmDaemons()
        cls.addClassCleanup(cls.slurm.stop)

    def setUp(self):
        super().setUp()
        self.environment["SLURM_CONF"] = self.slurm.environment["SLURM_CONF"]

    def test_it_trains_as_one_prun(self):
        self.expect_training(self.run_to_end("srun", "--overcommit", "-n", 4, faults.PRUN, *STEPS, "--metrics", self.metrics), 4)

    def test_a_killed_rank_ends_the_job(self):
        process = self.start("srun", "--overcommit", "-n", 3, faults.PRUN, *PLAN, "steps=1000000", "--metrics", self.metrics)
        self.wait_for_steps(process)
        found = subprocess.run(["pgrep", "-f", str(self.metrics)], capture_output=True, text=True, check=True).stdout.split()
        ranks = [int(pid) for pid in found if pathlib.Path(f"/proc/{pid}/comm").read_text() == "prun-rank1\n"]
        os.kill(ranks[0], signal.SIGKILL)
        code = process.wait(timeout=20)
        text = self.text()
        self.assertEqual(text.count("prun: "), 1, text)
        self.assertIn("prun: rank 1 was killed by SIGKILL\n", text)
        self.assertEqual(code, 10, text)

    def test_a_job_that_is_preempted_goes_on_where_it_was(self):
        script = TOP / "tools" / "clusters" / "slurm.sh"
        log, plan = self.folder / "log", [*PLAN, "steps=1000"]
        words = ["sbatch", "--parsable", "--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", f"--output={log}",
                 str(script), *plan, "--metrics", str(self.metrics), "--checkpoint-every", "1000000"]
        more = {"PRUN": faults.PRUN, "SRUN_OPTIONS": "--overcommit", "CHECKPOINT": str(self.folder / "checkpoints")}
        job = subprocess.run(words, capture_output=True, text=True, check=True, cwd=self.folder,
                             env={**self.environment, **more}).stdout.strip()
        written = lambda: len(self.metrics.read_bytes().splitlines()) if self.metrics.exists() else 0
        faults.wait_for(lambda: written() >= 20, f"20 steps of job {job}")
        self.slurm.ask("scancel", "--signal=TERM", job)
        faults.wait_for(lambda: "stopped by SIGTERM" in log.read_text(), "the end of the first part", 20)
        done = lambda: self.slurm.ask("scontrol", "show", "job", job)
        end = time.monotonic() + 120
        while "JobState=COMPLETED" not in done():
            self.assertLess(time.monotonic(), end, f"{log.read_text()}\n{done()}")
            time.sleep(0.2)
        self.assertIn("Restarts=1", done())
        self.assertEqual([row["step"] for row in self.rows() if "loss" in row], list(range(1, 1001)), "no step is missing, none twice")


class Recorded(Launchers):
    """Launchers that do not run here: processes with the variables that they set."""

    TORCHRUN = {"RANK": "{}", "WORLD_SIZE": "2", "LOCAL_RANK": "{}", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "ROLE_RANK": "{}",
                "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}

    def start_job(self, count, variables, *words):
        """Starts the processes of one job. Only process 0 writes the metrics, although all have the option."""
        return [self.start(faults.PRUN, *words, "--metrics", self.metrics, output=f"output{each}",
                           **{name: value.format(each) for name, value in variables.items()}) for each in range(count)]

    def run_job(self, count, variables):
        """Returns the exit code of a job that ends by itself."""
        processes = self.start_job(count, variables, *STEPS)
        codes = [process.wait(timeout=60) for process in processes]
        text = [self.text(f"output{each}") for each in range(count)]
        self.assertEqual(text[1:], [""] * (count - 1), text)
        (self.folder / "output").write_text(text[0])
        return max(codes)

    def test_torchrun(self):
        self.expect_training(self.run_job(2, self.TORCHRUN), 2)

    def test_a_signal_that_torchrun_passes_on_commits_a_checkpoint(self):
        """torchrun sends the signal that it received to each of its processes."""
        for number, words in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
            with self.subTest(signal=number.name):
                folder = self.folder / number.name
                processes = self.start_job(2, self.TORCHRUN, *PLAN, "steps=1000000", "--checkpoint", folder)
                self.wait_for_steps(processes[0])
                for process in processes:
                    process.send_signal(number)
                codes = [process.wait(timeout=60) for process in processes]
                text = self.text("output0") + self.text("output1")
                self.assertEqual(codes, [75, 75], text)
                self.assertEqual(text.count(f"prun: stopped by {words}; "), 1, text)
                self.assertEqual(self.run_to_end(faults.PRUN, "ckpt", "verify", folder), 0, self.text())
                self.metrics.unlink()

    def test_kubeflow(self):
        port = str(free_ports(1)[0])
        self.expect_training(self.run_job(2, {"RANK": "{}", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port,
                                              "PRUN_SECRET": "of this test"}), 2)

    def test_mpich(self):
        self.expect_training(self.run_job(2, self.MPICH), 2)

    MPICH = {"PMI_RANK": "{}", "PMI_SIZE": "2", "MPI_LOCALRANKID": "{}", "MPI_LOCALNRANKS": "2"}
    # Plays mpiexec's proxy or torchrun's agent: starts two processes with a row's variables.
    LAUNCHER = """import json, os, subprocess, sys
variables, words = json.loads(sys.argv[1]), sys.argv[2:]
processes = [subprocess.Popen(words, env={**os.environ, **{name: value.format(each) for name, value in variables.items()}})
             for each in range(2)]
sys.exit(max(each.wait() for each in processes))
"""

    def play(self, variables, *words):
        return self.start(sys.executable, "-c", self.LAUNCHER, json.dumps(variables), *words)

    def test_wrapper_scripts_meet(self):
        """MPICH names no job: the processes share their launcher, not their parents."""
        process = self.play(self.MPICH, "sh", "-c", '"$@"; exit $?', "wrapper", faults.PRUN, *STEPS, "--metrics", self.metrics)
        self.expect_training(process.wait(timeout=60), 2)

    def test_a_killed_launcher_ends_the_job(self):
        for name, variables in (("mpich", self.MPICH), ("torchrun", self.TORCHRUN)):
            with self.subTest(launcher=name):
                process = self.play(variables, faults.PRUN, *PLAN, "steps=1000000", "--metrics", self.metrics)
                self.wait_for_steps(process)
                self.expect_end_with(process.pid, processes_of(process.pid, "prun"))
                process.wait()
                self.assertIn(f"prun: {name} (pid {process.pid}), which started this process, is gone", self.text())
                self.metrics.unlink()

    def test_a_launcher_killed_before_all_have_joined(self):
        variables = {**self.MPICH, "PMI_SIZE": "3", "MPI_LOCALNRANKS": "3"}
        process = self.play(variables, faults.PRUN, *STEPS)
        faults.wait_for(lambda: "2/3 nodes joined" in self.text(), "the report of the missing process")
        joining = processes_of(process.pid, "prun")
        process.kill()
        process.wait()
        faults.wait_for(lambda: not any(map(faults.running, joining)), "the end of all processes", 5)

    def test_an_interactive_step_is_no_task(self):
        """In salloc's shell with use_interactive_step, the step has a number of its own."""
        code = self.run_to_end(faults.PRUN, *STEPS, SLURM_JOB_ID="7", SLURM_STEP_ID="4294967290", SLURM_STEP_NUM_TASKS="2",
                               SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_STEP_NODELIST="localhost")
        self.assertEqual(code, 0, self.text())

    def test_kubernetes(self):
        port = free_ports(1)[0]
        self.expect_training(self.run_job(2, {"JOB_COMPLETION_INDEX": "{}", "PRUN_NNODES": "2",
                                              "PRUN_RENDEZVOUS": f"localhost:{port}", "PRUN_SECRET": "of this test"}), 2)

    def test_several_hosts_need_an_address(self):
        code = self.run_to_end(faults.PRUN, *STEPS, OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4",
                               OMPI_COMM_WORLD_LOCAL_RANK="0", OMPI_COMM_WORLD_LOCAL_SIZE="2")
        self.assertEqual(code, 2, self.text())
        self.assertIn("openmpi started 4 processes on several hosts and names no host that all reach: --rendezvous", self.text())


class Secrets(Launchers):
    SECRET = "nobody else may see this"

    def test_no_process_shows_the_secret(self):
        port = free_ports(1)[0]
        words = [*PLAN, "steps=1000000", "--nproc", 1, "--nnodes", 2, "--rendezvous", f"127.0.0.1:{port}"]
        nodes = [self.start(faults.PRUN, *words, "--node-rank", node, *(["--metrics", self.metrics] if node == 0 else []),
                            output=f"output{node}", PRUN_SECRET=self.SECRET) for node in (0, 1)]
        faults.wait_for(lambda: self.metrics.exists() and self.metrics.stat().st_size > 0, "the first step")
        for pid in [node.pid for node in nodes] + [rank for node in nodes for rank in processes_of(node.pid)]:
            for name in ("environ", "cmdline"):
                self.assertNotIn(self.SECRET.encode(), pathlib.Path(f"/proc/{pid}/{name}").read_bytes(), f"{pid}'s {name}")
        nodes[0].send_signal(signal.SIGINT)
        self.assertEqual([node.wait(timeout=20) for node in nodes], [130, 130])

    def test_a_file_that_others_may_read_is_refused(self):
        file = self.folder / "secret"
        file.write_text(self.SECRET + "\n")
        for mode in (0o644, 0o640, 0o602):
            file.chmod(mode)
            self.assertEqual(self.run_to_end(faults.PRUN, *STEPS, "--secret-file", file), 2)
            self.assertEqual(self.text(), f"prun: --secret-file {file}: others than its owner may use it (mode {mode:03o}): "
                                          f"chmod 600 {file}\n")
        file.chmod(0o600)
        self.assertEqual(self.run_to_end(faults.PRUN, *STEPS, "--secret-file", file), 0, self.text())


if __name__ == "__main__":
    faults.PRUN = str(pathlib.Path(sys.argv[1]).resolve())
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
