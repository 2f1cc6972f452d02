#!/usr/bin/env python3
"""--cluster FILE whose `nodes:` name hosts: prun doctor checks their pairs, and a run uses them as its nodes. Two
addresses of this machine serve as two nodes.
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PRUN = str(pathlib.Path(sys.argv[1]).resolve())
SMALL = ["--set", "layers=1", "--set", "width=32", "--set", "context=16", "--set", "batch=6", "--set", "steps=2"]


def free_port():
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


def start(*words):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PRUN_")}
    return subprocess.Popen([PRUN, *map(str, words)], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def ended(process):
    out, err = process.communicate(timeout=110)
    return process.returncode, out, err


class Hosts(unittest.TestCase):
    def hosts(self, *nodes, include=True):
        file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self.addCleanup(file.close)
        if include:
            file.write(f"include: {ROOT}/plans/clusters/laptops.yaml\n")
        file.write("nodes:\n")
        file.write("".join(f"  - {{ {node} }}\n" for node in nodes))
        file.flush()
        return file.name

    def both_nodes(self, *words):
        words = [*words, "--rendezvous", f"127.0.0.1:{free_port()}"]
        nodes = [start(*words, "--node-rank", node) for node in (0, 1)]
        return [ended(node) for node in nodes]

    def test_doctor_tries_the_pair(self):
        cluster = self.hosts("host: localhost", "host: 127.0.0.1")
        first, second = self.both_nodes("doctor", "--json", "--cluster", cluster)
        self.assertEqual((first[0], second[0]), (0, 0), first[2] + second[2])
        checks = json.loads(first[1])["checks"]
        names = [each["name"] for each in checks if each["family"] == "nodes"]
        self.assertIn("socket bandwidth, node 0 to node 1", names)
        network = {each["name"]: each["status"] for each in checks if each["family"] == "network"}
        self.assertEqual((network["host localhost"], network["host 127.0.0.1"]), ("ok", "ok"))

    def test_a_run_takes_nodes_and_ranks_from_the_file(self):
        cluster = self.hosts("host: localhost", "host: 127.0.0.1, devices: 2")
        first, second = self.both_nodes("plans/ddp.lua", "--json", "--cluster", cluster, *SMALL)
        self.assertEqual((first[0], second[0]), (0, 0), first[2] + second[2])
        self.assertIn("3 ranks", first[2])  # one on node 0, two on node 1
        one = json.loads(ended(start("plans/ddp.lua", "--json", "--nproc", 3, *SMALL))[1])
        self.assertAlmostEqual(json.loads(first[1])["loss"], one["loss"], places=5)

    def test_hosts_alone_suffice(self):
        cluster = self.hosts("host: localhost", "host: 127.0.0.1", include=False)
        nodes = self.both_nodes("plans/ddp.lua", "--cluster", cluster, *SMALL)
        self.assertEqual([code for code, _, _ in nodes], [0, 0], nodes)
        code, _, err = ended(start("sim", "plans/ddp.lua", "--nproc", 2, "--cluster", cluster))
        self.assertEqual(code, 2)
        self.assertIn("only lists hosts; a prediction also needs their device", err)

    def test_this_machine_is_found_by_its_name(self):
        cluster = self.hosts("host: other.invalid", f"host: {socket.gethostname()}")
        code, out, _ = ended(start("doctor", "--json", "--cluster", cluster, "--timeout", 1,
                                   "--rendezvous", f"127.0.0.1:{free_port()}"))
        checks = {(each["family"], each["name"]): each for each in json.loads(out)["checks"]}
        self.assertEqual(code, 1)
        self.assertEqual(checks["network", "host other.invalid"]["status"], "fail")
        self.assertEqual(checks["nodes", "nodes"]["status"], "fail")  # node 0 never joins

    def test_node_0_listens_on_the_first_host(self):
        cluster = self.hosts("host: no-such-host.invalid", f"host: {socket.gethostname()}")
        code, _, err = ended(start("plans/ddp.lua", "--cluster", cluster, "--timeout", 1, *SMALL))
        self.assertEqual(code, 13, err)
        self.assertIn("no-such-host.invalid", err)

    def test_which_of_them_this_machine_is(self):
        code, _, err = ended(start("plans/ddp.lua", "--cluster", self.hosts("host: first", "host: second")))
        self.assertEqual(code, 2)
        self.assertRegex(err, r"this machine, \S+, is not among the hosts of \S+ \(one of: first, second\); name it with --node-rank")
        code, _, err = ended(start("doctor", "--cluster", self.hosts("host: 127.0.0.1", "host: 127.0.0.2")))
        self.assertEqual(code, 2)
        self.assertRegex(err, r"is several of the hosts of \S+: 0 \(127.0.0.1\), 1 \(127.0.0.2\); --node-rank says which")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
