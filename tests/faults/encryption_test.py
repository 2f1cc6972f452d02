#!/usr/bin/env python3
"""Two launchers and their ranks with --encrypt: results are the same, the traffic is unreadable, and modified traffic
ends the job.

Usage: encryption_test.py PRUN. The launchers communicate through a relay; the ranks' own links are TCP on loopback.
Standard library only.
"""
import os
import pathlib
import re
import select
import socket
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import prun_faults_test as faults  # noqa: E402

STEPS = [*faults.ENDLESS[:-1], "steps=4"]
TCP = ["--transport", "socket", "--transport-options", "unix=0"]
FRAMES = (b"--set reduce", b"--transport-options", b"zero3.lua")  # parts of the settings and the job


class Relay:
    """Forwards and records the bytes of both ends; `flip`: flips a bit of node 0's next bytes."""

    def __init__(self, port):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.node0, self.seen, self.flip = self.listener.getsockname()[1], port, bytearray(), None
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            member, _ = self.listener.accept()
            try:
                head = socket.create_connection(("127.0.0.1", self.node0))
            except OSError:
                member.close()
                continue
            threading.Thread(target=self.forward, args=(member, head), daemon=True).start()

    def forward(self, member, head):
        with member, head:
            while True:
                for end in select.select([member, head], [], [])[0]:
                    try:
                        data = bytearray(end.recv(1 << 16))
                        if not data:
                            return
                        self.seen += data
                        if self.flip is not None and end is head:
                            data[len(data) // 2 if self.flip == "middle" else 3] ^= 4  # 3: in a record's length
                            self.flip = None
                        (head if end is member else member).sendall(data)
                    except OSError:
                        return


class Encryption(faults.Jobs):
    def nodes(self, *options, plan, others=None, port=None, environment=()):
        """`others`: options of node 1 if they differ; `environment`: arguments of env(1) for node 1."""
        self.port = port or faults.free_port()
        self.relay = Relay(self.port)
        place = ["--nproc", "1", "--nnodes", "2", "--node-rank"]
        return [self.start(*place, "0", "--rendezvous", f"127.0.0.1:{self.port}", *options, plan=plan),
                self.start(*place, "1", "--rendezvous", f"127.0.0.1:{self.relay.port}", *(options if others is None else others), plan=plan,
                           before=["env", *environment])]

    def finished(self, nodes):
        codes = [node.process.wait(timeout=60) for node in nodes]
        return codes, [node.text() for node in nodes]

    def test_the_numbers_are_the_same_and_nobody_reads_them(self):
        losses = {}
        for encrypted in (False, True):
            nodes = self.nodes(*TCP, *(["--encrypt"] if encrypted else []), plan=[*STEPS, "--set", "reduce=rank_order"])
            codes, texts = self.finished(nodes)
            self.assertEqual(codes, [0, 0], texts)
            losses[encrypted] = re.findall(r'"loss": ?([0-9.eE+-]+)', nodes[0].metrics.read_text())
            for frame in FRAMES:
                self.assertEqual(frame in self.relay.seen, not encrypted, frame)
            self.assertEqual(bool(re.search(r"(?m)^over socket.*, TLS \((no )?kTLS\)$", texts[0])), encrypted, texts[0])
        self.assertEqual(len(losses[True]), 4)
        self.assertEqual(losses[True], losses[False])

    def test_a_changed_bit_ends_the_job(self):
        for place in ("middle", "length"):
            with self.subTest(place=place):
                nodes = self.nodes(*TCP, "--encrypt", plan=faults.ENDLESS)
                nodes[0].wait_for_steps()
                self.relay.flip = place
                codes, texts = self.finished(nodes)
                self.assertEqual(codes, [17, 17], texts)
                self.assertRegex(texts[0], r"prun: the connection to node 1 \(.*\) is lost, with its ranks 1-1\n")
                self.assertRegex(texts[0], r"data was changed in transit to the peer \(TLS: ")
                self.assertRegex(texts[1], r"prun: the connection to node 0 \(.*\) is lost\n(.*\n)*.*a frame was changed on its way \(TLS: ")

    def test_all_nodes_encrypt_or_none_does(self):
        for first, other in ((["--encrypt"], []), ([], ["--encrypt"])):
            with self.subTest(first=first):
                nodes = self.nodes(*TCP, *first, others=[*TCP, *other], plan=STEPS)
                codes, texts = self.finished(nodes)
                self.assertEqual(codes, [2, 2], texts)
                has, not_ = ("no --encrypt", "has it") if first else ("--encrypt", "has not")
                self.assertRegex(texts[0], rf"prun: node 1 \(.*\) has {has} and node 0 {not_}: give all nodes the same\n")
                self.assertRegex(texts[1], rf"prun: this node \(1\) has {has} and node 0 at .* {not_}: give all nodes the same\n")

    def test_another_secret_is_told_as_ever(self):
        nodes = self.nodes(*TCP, "--encrypt", "--timeout", "3", plan=STEPS, environment=["PRUN_SECRET=another"])
        codes, texts = self.finished(nodes)
        self.assertEqual(codes, [13, 13], texts)
        self.assertIn("has another secret", texts[0])
        self.assertIn("has another secret than this node (--secret-file, PRUN_SECRET)", texts[1])

    def test_loopback_without_a_secret(self):
        os.environ.pop("PRUN_SECRET")
        try:
            port = faults.free_port()
            place = ["--nproc", "1", "--nnodes", "2", "--rendezvous", f"127.0.0.1:{port}", *TCP, "--encrypt", "--node-rank"]
            nodes = [self.start(*place, str(number), plan=STEPS) for number in (0, 1)]
            codes, texts = self.finished(nodes)
        finally:
            os.environ["PRUN_SECRET"] = SECRET
        self.assertEqual(codes, [0, 0], texts)

    def test_a_killed_rank_is_named(self):
        nodes = self.nodes(*TCP, "--encrypt", plan=faults.ENDLESS)
        nodes[0].wait_for_steps()
        ranks = {**nodes[0].ranks(), **nodes[1].ranks()}
        os.kill(ranks[1], 9)
        codes, texts = self.finished(nodes)
        self.assertEqual(codes, [10, 10], texts)
        self.assertIn("prun: rank 1 was killed by SIGKILL\n", texts[0])
        self.expect_gone(ranks.values())

    def test_a_changed_bit_between_ranks_names_both(self):
        run = self.start("--nproc", "2", *TCP, "--encrypt", "--chaos", "flip:rank=0,peer=1@step=2;seed=5", plan=faults.ENDLESS)
        self.assertEqual(run.process.wait(timeout=60), 17, run.text())
        self.assertRegex(run.text(), r"(?m)^prun: .*\brank [01]\b.*\brank [01]\b")

    def test_a_transport_that_cannot_encrypt(self):
        plugins = pathlib.Path(self.start("--help").folder.name)
        (plugins / "other.so").write_text("")
        os.environ["PRUN_PLUGIN_PATH"] = str(plugins)
        try:
            for transport in ("other", "shm+other"):
                run = self.start("--nnodes", "2", "--rendezvous", "127.0.0.1:1", "--encrypt", "--transport", transport, plan=STEPS)
                self.assertEqual(run.wait()[0], 2, run.text())
                self.assertIn("prun: --encrypt: transport other does not encrypt between hosts; --transport auto and socket do\n", run.text())
        finally:
            os.environ.pop("PRUN_PLUGIN_PATH")

    def test_a_long_job_is_handed_over(self):
        """The job is larger than the socket buffers."""
        nodes = self.nodes("--encrypt", plan=["plans/3d.lua", "--set", "layers=16", "--set", "width=32", "--set", "heads=2", "--set", "context=16",
                                              "--set", "pp=2", "--set", "tp=1", "--set", "micro=16", "--set", "batch=16", "--set", "steps=2"])
        codes, texts = self.finished(nodes)
        self.assertEqual(codes, [0, 0], texts)


SECRET = "of this test alone"

if __name__ == "__main__":
    faults.run_with_own_shm()
    faults.PRUN = str(pathlib.Path(sys.argv[1]).resolve())
    os.environ["PRUN_SECRET"] = SECRET
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
