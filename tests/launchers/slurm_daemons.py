"""A Slurm of one node for tests: its own munged, slurmctld and slurmd, in a folder and on free ports."""
import getpass
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

CONFIGURATION = """\
ClusterName=prun-test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
SlurmdParameters=config_overrides
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=1
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class SlurmDaemons:
    def __init__(self):
        for program in ("munged", "slurmctld", "slurmd", "srun", "sbatch"):
            if shutil.which(program) is None:
                raise RuntimeError(f"no {program}: apt-get install munge slurmctld slurmd slurm-client (tools/packages.txt)")
        self.processes = []
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prun-slurm-"))
        self.folder.chmod(0o755)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        host = socket.gethostname().split(".")[0]
        controller, daemon = free_ports(2)
        configuration = self.folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(host=host, user=getpass.getuser(), controller=controller, daemon=daemon,
                                                      folder=self.folder, cpus=os.cpu_count()))
        self.environment = {**os.environ, "SLURM_CONF": str(configuration)}
        names = {name: self.folder / f"munge.{name}" for name in ("sock", "pid", "log", "seed")}
        self.start("munged", "--foreground", "--force", f"--socket={names['sock']}", f"--key-file={key}",
                   f"--pid-file={names['pid']}", f"--log-file={names['log']}", f"--seed-file={names['seed']}")
        self.wait_for(names["sock"].exists)
        self.start("slurmctld", "-D", "-f", str(configuration))
        self.start("slurmd", "-D", "-f", str(configuration), "-N", host)
        self.wait_for(lambda: "idle" in self.ask("sinfo", "-h", "-o", "%T"))

    def start(self, *command):
        with (self.folder / f"{command[0]}.out").open("w") as log:
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                   env=self.environment, cwd=self.folder))

    def ask(self, *command):
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=20).stdout

    def wait_for(self, condition, seconds=20):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                logs = "".join(path.read_text(errors="replace") for path in self.folder.glob("*.out"))
                self.stop()
                raise RuntimeError(f"Slurm did not start within {seconds} s:\n{logs}")
            time.sleep(0.05)

    def stop(self):
        self.ask("scancel", "--user", getpass.getuser())
        end = time.monotonic() + 10
        while time.monotonic() < end and self.ask("squeue", "-h"):
            time.sleep(0.1)
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
