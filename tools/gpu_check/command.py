"""Commands with a deadline: their output goes to a log, and what they started dies with them."""
import dataclasses
import os
import pathlib
import shlex
import signal
import subprocess
import time


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
    """Runs to its end or to its timeout, in a process group of its own; appends command and output to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    out_path, err_path = log.with_suffix(".out"), log.with_suffix(".err")
    timed_out = False
    with open(out_path, "wb") as out, open(err_path, "wb") as err:  # files: a grandchild that lives on cannot hold a pipe open
        try:
            process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd,
                                       env={**os.environ, **(environment or {})}, start_new_session=True)
        except OSError as error:
            status = 127
            err.write(f"{words[0]}: {error.strerror}\n".encode())
        else:
            try:
                status = process.wait(timeout=max(timeout, 0.1))
            except subprocess.TimeoutExpired:
                timed_out = True
                status = stop(process)
            except BaseException:
                stop(process)
                raise
    done = Done(status, out_path.read_text(errors="replace"), err_path.read_text(errors="replace"), time.monotonic() - start, timed_out)
    out_path.unlink()
    err_path.unlink()
    with open(log, "a") as file:
        file.write(f"$ {shown(words, environment)}\n{done.out}{done.err}"
                   f"{'stopped at its timeout' if timed_out else f'exit {status}'} after {done.seconds:.1f} s\n\n")
    return done


def stop(process):
    """Asks the group to end; then ends all of it, also what is left when its first process is gone."""
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=patience)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
    return process.wait()
