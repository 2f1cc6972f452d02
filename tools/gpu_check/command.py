"""Commands with a deadline. Their output is logged, and all processes that they started end with them.

Each command is a process group of its own in the same session, so that the end of the session (a lent machine at its
limit) ends it, too.
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
import threading
import time

GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}  # Python 3.10 lacks process_group


@dataclasses.dataclass
class Done:
    status: int  # exit status; negative = the signal that ended it; 127 = it could not be started
    out: str
    err: str
    seconds: float
    timed_out: bool = False

    @property
    def ok(self):
        return self.status == 0 and not self.timed_out

    def last_words(self, lines=3):
        """Returns the end of its output, for a table's cell."""
        text = (self.err.strip() or self.out.strip()).splitlines()
        return " / ".join(line.strip() for line in text[-lines:] if line.strip())

    def why(self):
        if self.timed_out:
            return f"stopped after {self.seconds:.0f} s"
        return f"exit {self.status}: {self.last_words()}" if self.status >= 0 else f"killed by {signal.Signals(-self.status).name}: {self.last_words()}"


MOST = 300  # characters of a printed argument, because a prompt may have thousands
NOT_STARTED = Done(-signal.SIGTERM, "", "", 0, True)


def shown(words, environment=None):
    """Returns the command as typed in a shell."""
    before = [f"{name}={shlex.quote(value)}" for name, value in sorted((environment or {}).items())]
    return " ".join([*before, *(shlex.quote(str(word) if len(str(word)) <= MOST else f"{str(word)[:MOST]}...") for word in words)])


class Processes:
    """The commands of one owner. Threads may run commands concurrently; `stop` ends them and rejects new ones."""

    def __init__(self):
        self.lock = threading.Lock()
        self.running, self.children, self.stopped = set(), [], False

    def child(self):
        """Returns processes that end with these."""
        with self.lock:
            made = Processes()
            made.stopped = self.stopped
            self.children.append(made)
            return made

    def stop(self):
        with self.lock:
            self.stopped = True
            running, children = list(self.running), list(self.children)
        for process in running:
            signal_group(process, signal.SIGTERM)
        for child in children:
            child.stop()
        for process in running:
            stop(process)

    def start(self, words, out, err, cwd, environment):
        """Returns the process, or None after `stop`."""
        with self.lock:
            if self.stopped:
                return None
            process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd,
                                       env={**os.environ, **(environment or {})}, **GROUP)
            self.running.add(process)
            return process

    def run(self, words, timeout, log: pathlib.Path, cwd, environment=None):
        """Runs the command to its end or its timeout; appends the command and its output to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        timed_out = False
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:  # files and not pipes, because a surviving grandchild may hold a pipe open
            try:
                process = self.start(words, out, err, cwd, environment)
            except OSError as error:
                status = 127
                err.write(f"{words[0]}: {error.strerror}\n".encode())
            else:
                if process is None:
                    return NOT_STARTED
                try:
                    status = process.wait(timeout=max(timeout, 0.1))
                except subprocess.TimeoutExpired:
                    timed_out = True
                    status = stop(process)
                except BaseException:
                    stop(process)
                    raise
                finally:
                    self.running.discard(process)
            done = Done(status, *(text_of(file) for file in (out, err)), time.monotonic() - start, timed_out)
        text = (f"$ {shown(words, environment)}\n{done.out}{done.err}"
                f"{'stopped at its timeout' if timed_out else f'exit {status}'} after {done.seconds:.1f} s\n\n")
        with open(log, "ab", 0) as file:  # one write, because other threads append, too
            file.write(text.encode())
        return done

    def together(self, calls, most):
        """Returns the results of the calls, at most `most` concurrently. If one raises, all commands of these processes
        end."""
        with concurrent.futures.ThreadPoolExecutor(most) as pool:
            asked = [pool.submit(call) for call in calls]
            try:
                return [one.result() for one in asked]
            except BaseException:
                for one in asked:
                    one.cancel()
                self.stop()
                raise


def text_of(file):
    file.seek(0)
    return file.read().decode(errors="replace")


def signal_group(process, number):
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def stop(process):
    """Terminates the group, then kills all of it, including processes that outlive the first one."""
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 10)):
        signal_group(process, number)
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            pass
    return -signal.SIGKILL if process.poll() is None else process.returncode  # a process in a driver call may outlive SIGKILL
