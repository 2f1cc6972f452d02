#!/usr/bin/env python3
"""Containers that refuse system calls (seccomp), and a low limit on the size of files (ulimit -f).

Usage: refusals_test.py PRUN. Standard library only.
"""
import ctypes
import errno
import os
import pathlib
import platform
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

PRUN = str(pathlib.Path(sys.argv[1]).resolve())
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SIZES = ["layers=2", "width=32", "heads=2", "context=16", "batch=12"]
CALLS = {  # numbers on x86-64 and on arm64
    "waitid": (247, 95), "wait4": (61, 260), "pidfd_open": (434, 434), "memfd_create": (319, 279), "signalfd4": (289, 74),
    "prctl": (157, 167), "sched_setaffinity": (203, 122), "mbind": (237, 235), "pidfd_getfd": (438, 438)}


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def refuse(calls, error):
    """Installs a filter that makes these calls of this process and its children fail. x86-64 and arm64 only."""
    def instruction(code, value, if_equal=0, otherwise=0):
        return struct.pack("HBBI", code, if_equal, otherwise, value)
    numbers = [CALLS[call][platform.machine() == "aarch64"] for call in calls]
    code = [instruction(0x20, 0)]  # load the call's number
    for number in numbers:
        code += [instruction(0x15, number, 0, 1), instruction(0x06, 0x00050000 | error)]
    code.append(instruction(0x06, 0x7fff0000))
    text = ctypes.create_string_buffer(b"".join(code))
    program = Program(len(code), ctypes.cast(text, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


class Refusals(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_under(self, prepare, *options, steps=4):
        words = [word for setting in [*SIZES, f"steps={steps}"] for word in ("--set", setting)]
        done = subprocess.run([PRUN, str(ROOT / "plans/zero3.lua"), "--nproc", "2", *words, *options], cwd=self.folder,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60, check=False, preexec_fn=prepare)
        return done.returncode, done.stdout

    def refused(self, *calls, error=errno.EPERM, options=(), **more):
        return self.run_under(lambda: refuse(calls, error), *options, **more)

    def test_a_refused_call_has_a_substitute(self):
        for calls in [("waitid",), ("pidfd_open",), ("wait4",), ("waitid", "pidfd_open"), ("signalfd4",), ("prctl",),
                      ("sched_setaffinity", "mbind"), ("pidfd_getfd",)]:
            for error in (errno.EPERM, errno.ENOSYS):
                with self.subTest(calls=calls, error=errno.errorcode[error]):
                    code, text = self.refused(*calls, error=error)
                    self.assertEqual(code, 0, text)
                    self.assertNotIn("prun: ", text)

    def test_a_killed_rank_is_named_all_the_same(self):
        for calls in [("waitid",), ("pidfd_open",), ("waitid", "pidfd_open")]:
            with self.subTest(calls=calls):
                code, text = self.refused(*calls, options=["--chaos", "kill:rank=1@step=2"], steps=1000000)
                self.assertEqual(code, 10, text)
                self.assertIn("prun: rank 1 was killed by SIGKILL\n", text)

    def test_without_any_wait_the_call_is_named(self):
        code, text = self.refused("waitid", "wait4")
        self.assertEqual(code, 2, text)
        self.assertIn("prun: this container refuses waitid and wait4 (Operation not permitted)", text)

    def test_without_shared_memory_ranks_use_sockets(self):
        code, text = self.refused("memfd_create")
        self.assertEqual(code, 0, text)
        self.assertIn("auto passes over shm: it cannot create memory that ranks share: memfd_create: Operation not permitted", text)
        self.assertIn("\nover socket\n", text)

    def limited(self, megabytes, *options):
        return self.run_under(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (int(megabytes * 2**20),) * 2), *options)

    def test_a_limit_on_files_takes_sockets(self):
        code, text = self.limited(64)
        self.assertEqual(code, 0, text)
        self.assertIn("it cannot create memory that ranks share: the limit on the size of files (ulimit -f) is 64.0 MiB", text)
        self.assertIn("\nover socket\n", text)
        code, text = self.limited(64, "--transport", "shm")
        self.assertEqual(code, 14, text)
        self.assertIn("(limited by ulimit -f; use --transport socket)", text)

    def test_a_checkpoint_beyond_the_limit_is_abandoned(self):
        code, text = self.limited(1 / 64, "--checkpoint", "ck", "--checkpoint-every", "2")
        self.assertEqual(code, 15, text)
        self.assertIn("File too large; the limit on the size of files (ulimit -f) is lower", text)
        self.assertNotIn("SIGXFSZ", text)
        self.assertIn("step 4/4", text)


if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and ignored signals are inherited
    os.environ.pop("SLURM_JOB_ID", None)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
