"""Commands with a deadline: their output goes to a log, and what they started dies with them.

Each is a process group of its own but stays in the session, so that whoever ends that (a lent machine at its limit) ends them, too.
"""
import concurrent.futures
import dataclasses
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time

GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
RUNNING = set()  # those of all threads, for `together`


@dataclasses.dataclass
class Done:
    status: int  # of the command; negative: the signal that ended it; 127: it could not be started
    out: str
    err: str
    seconds: float
    timed_out: bool = False

    @property
    def ok(self):
        return self.status == 0 and not self.timed_out

    def last_words(self, lines=3):
        """The end of what it said, for a table's cell."""
        text = (self.err.strip() or self.out.strip()).splitlines()
        return " / ".join(line.strip() for line in text[-lines:] if line.strip())

    def why(self):
        if self.timed_out:
            return f"stopped after {self.seconds:.0f} s"
        return f"exit {self.status}: {self.last_words()}" if self.status >= 0 else f"killed by {signal.Signals(-self.status).name}: {self.last_words()}"


def shown(words, environment=None):
    """The command as one would type it."""
    before = [f"{name}={shlex.quote(value)}" for name, value in sorted((environment or {}).items())]
    return " ".join([*before, *(shlex.quote(str(word)) for word in words)])


def run(words, timeout, log: pathlib.Path, cwd, environment=None):
    """Runs to its end or to its timeout; appends command and output to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    timed_out = False
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:  # files: a grandchild that lives on cannot hold a pipe open
        try:
            process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd,
                                       env={**os.environ, **(environment or {})}, **GROUP)
        except OSError as error:
            status = 127
            err.write(f"{words[0]}: {error.strerror}\n".encode())
        else:
            RUNNING.add(process)
            try:
                status = process.wait(timeout=max(timeout, 0.1))
            except subprocess.TimeoutExpired:
                timed_out = True
                status = stop(process)
            except BaseException:
                stop(process)
                raise
            finally:
                RUNNING.discard(process)
        done = Done(status, *(said(file) for file in (out, err)), time.monotonic() - start, timed_out)
    text = (f"$ {shown(words, environment)}\n{done.out}{done.err}"
            f"{'stopped at its timeout' if timed_out else f'exit {status}'} after {done.seconds:.1f} s\n\n")
    with open(log, "ab", 0) as file:  # at once: others may be writing
        file.write(text.encode())
    return done


def said(file):
    file.seek(0)
    return file.read().decode(errors="replace")


def together(calls):
    """Their results; when one raises, or this process is to end, all their commands end first."""
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)) + 1) as pool:
        asked = [pool.submit(call) for call in calls]
        try:
            return [one.result() for one in asked]
        except BaseException:
            for one in asked:
                one.cancel()
            for process in list(RUNNING):
                stop(process)
            raise


def stop(process):
    """Asks the group to end; then ends all of it, also what is left when its first process is gone."""
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=patience)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
    return -signal.SIGKILL if process.poll() is None else process.returncode  # in a driver's call it may outlive SIGKILL
