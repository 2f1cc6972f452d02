#!/usr/bin/env python3
"""Addresses as networks have them: ports in TIME_WAIT, a name that is known late, interfaces with several addresses.

Usage: addresses_test.py PRUN. Cases that need root (mount and network namespaces) are skipped without it.
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import prun_faults_test as faults  # noqa: E402

os.environ["PRUN_SECRET"] = "of this test"
STEPS = [*faults.ENDLESS[:-1], "steps=4"]


def permitted(*words):
    return subprocess.run(["unshare", *words, "true"], capture_output=True, check=False).returncode == 0


class Ports(faults.Jobs):
    def test_a_port_range_is_free_again_at_once(self):
        """The side that closes a connection first keeps its port in TIME_WAIT for a minute."""
        first = faults.free_port()
        for _ in range(4):
            run = self.start("--nproc", "2", "--transport", "socket", "--transport-options", "unix=0",
                             "--port-range", f"{first}:{first + 1}", plan=STEPS)
            self.assertEqual(run.wait()[0], 0, run.text())


@unittest.skipUnless(permitted("--mount"), "needs root: mounts its own /etc/hosts")
class Names(faults.Jobs):
    HOST = "prun-late-name.invalid"

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.names = pathlib.Path(folder.name, "hosts")
        self.names.write_text("127.0.0.1 localhost\n")
        self.port = faults.free_port()

    def within_names(self):
        return ["unshare", "--mount", "sh", "-c", f'mount --bind {self.names} /etc/hosts && exec "$@"', "sh"]

    def node(self, number):
        return self.start("--nproc", "1", "--nnodes", "2", "--node-rank", str(number), "--rendezvous",
                          f"{self.HOST}:{self.port}", before=self.within_names(), plan=STEPS)

    def test_a_name_that_is_loopback_is_named(self):
        """Debian's /etc/hosts maps the machine's own name to 127.0.1.1."""
        self.names.write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.HOST}\n")
        node = self.node(0)
        said = f"'{self.HOST}' is a loopback address here (see /etc/hosts), and other hosts cannot reach it: use --rendezvous ADDRESS:{self.port}"
        faults.wait_for(lambda: said in node.text(), "the report of the loopback name", 20)
        done = subprocess.run([*self.within_names(), faults.PRUN, "doctor", "--json", "--nnodes", "2", "--node-rank", "0", "--timeout", "1",
                               "--rendezvous", f"{self.HOST}:{faults.free_port()}"], capture_output=True, text=True, check=False)
        found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}["--rendezvous"]
        self.assertEqual((found["status"], found["text"]), ("warn", f"{self.HOST} is 127.0.1.1, a loopback address (see /etc/hosts)"))

    def test_a_name_may_be_known_late(self):
        nodes = [self.node(number) for number in (0, 1)]
        said = f"prun: waiting for the address of '{self.HOST}' (--rendezvous): "
        faults.wait_for(lambda: all(said in node.text() for node in nodes), "the report of the missing name", 20)
        with self.names.open("a") as names:
            names.write(f"127.0.0.1 {self.HOST}\n")
        for node in nodes:
            self.assertEqual(node.wait()[0], 0, node.text())


@unittest.skipUnless(permitted("--net"), "needs root: network namespaces")
class SeveralAddresses(faults.Jobs):
    """eth0's first address is one that the other host cannot reach."""

    HOSTS = [f"prun{os.getpid()}a{host}" for host in (0, 1)]

    @classmethod
    def setUpClass(cls):
        def ip(*words):
            subprocess.run(["ip", *words], check=True, capture_output=True)
        for host in cls.HOSTS:
            ip("netns", "add", host)
            cls.addClassCleanup(ip, "netns", "del", host)
        ip("-n", cls.HOSTS[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", cls.HOSTS[1])
        for number, host in enumerate(cls.HOSTS):
            ip("-n", host, "addr", "add", f"172.16.{number}.9/32", "dev", "eth0")
            for network in ("10.77.0", "10.78.0"):
                ip("-n", host, "addr", "add", f"{network}.{number + 1}/24", "dev", "eth0")
            ip("-n", host, "addr", "add", f"fd00:77::{number + 1}/64", "dev", "eth0", "nodad")
            for name in ("lo", "eth0"):
                ip("-n", host, "link", "set", name, "up")

    def run_nodes(self, rendezvous, *options):
        return [self.start("--nproc", "2", "--nnodes", "2", "--node-rank", str(number), "--rendezvous", rendezvous, *options,
                           before=["ip", "netns", "exec", self.HOSTS[number]], plan=self.PLAN) for number in (0, 1)]

    PLAN = STEPS

    def test_the_address_that_reaches_the_rendezvous_is_used(self):
        for rendezvous, options in (("10.77.0.1:29473", []), ("10.77.0.1:29473", ["--interface", "eth0"]),
                                    ("10.77.0.1:29473", ["--interface", "10.78.0.0/24"]), ("[fd00:77::1]:29473", [])):
            with self.subTest(rendezvous=rendezvous, options=options):
                for node in self.run_nodes(rendezvous, *options):
                    self.assertEqual(node.wait()[0], 0, node.text())

    def test_packets_that_vanish_are_named(self):
        """Host 0 cannot answer host 1's second address, as if a firewall dropped the answers."""
        blackhole = ["ip", "-n", self.HOSTS[0], "route", "add", "blackhole", "10.78.0.2/32"]
        subprocess.run(blackhole, check=True, capture_output=True)
        self.addCleanup(subprocess.run, [word.replace("add", "del") for word in blackhole], check=True)
        nodes = self.run_nodes("10.77.0.1:29473", "--interface", "10.78.0.0/24", "--timeout", "3")
        self.assertEqual(nodes[0].wait()[0], 14, nodes[0].text())
        self.assertRegex(nodes[0].text(), r"missing: rank [02] at \S+ \((no answer|no connection from it)\), [13] at \S+ \(\1\); "
                                          r"a firewall may drop packets: --port-range A:B uses ports that it lets pass")
        nodes[1].wait()

    def test_a_small_mtu_on_the_way_is_named(self):
        """Host 1 drops frames above 1280 bytes; host 0 does not learn it and sends 1500."""
        def ip(*words):
            subprocess.run(["ip", "-n", self.HOSTS[1], *words], check=True, capture_output=True)
        for host in self.HOSTS:  # otherwise packets of 64 KiB pass the veth whole
            done = subprocess.run(["ip", "netns", "exec", host, "ethtool", "-K", "eth0", "tso", "off", "gso", "off", "tx", "off"],
                                  capture_output=True, check=False) if shutil.which("ethtool") else None
        if done is None or done.returncode != 0:
            self.skipTest("needs ethtool")
        ip("link", "set", "eth0", "mtu", "1280")
        self.addCleanup(ip, "link", "set", "eth0", "mtu", "1500")
        ip("route", "replace", "10.77.0.0/24", "dev", "eth0", "src", "10.77.0.2", "advmss", "1460")
        nodes = self.run_nodes("10.77.0.1:29473")
        self.assertEqual(nodes[0].wait()[0], 17, nodes[0].text())
        self.assertIn("an MTU on the way may be too small (prun doctor tests it)", nodes[0].text())
        nodes[1].wait()

    def test_clones_are_two_hosts(self):
        """Clones of a running virtual machine have one boot id and the same numbers of namespaces."""
        os.environ["PRUN_HOST_ID"] = "one image"
        self.addCleanup(os.environ.pop, "PRUN_HOST_ID")
        nodes = self.run_nodes("10.77.0.1:29473")
        for node in nodes:
            self.assertEqual(node.wait()[0], 0, node.text())
        text = nodes[0].text() + nodes[1].text()
        self.assertIn("rank 2 has the host identity of rank 0 (boot id or PRUN_HOST_ID), but no local socket connects them", text)
        self.assertIn("\nover shm inside a host, socket between hosts (eth0)\n", text)


class Hints(faults.Jobs):
    def test_variables_without_a_launcher_are_named(self):
        os.environ.update(RANK="0", WORLD_SIZE="2")
        self.addCleanup(lambda: [os.environ.pop(name) for name in ("RANK", "WORLD_SIZE")])
        run = self.start("--nproc", "1", plan=STEPS)
        faults.wait_for(lambda: "; RANK=0 and WORLD_SIZE=2 in the environment make this process one of several" in run.text(),
                        "the report of the missing process", 20)
        done = subprocess.run([faults.PRUN, "doctor", "--json"], capture_output=True, text=True, check=False)
        found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}["launcher"]
        self.assertEqual((found["status"], found["text"]),
                         ("warn", "torchrun: process 0 of 2, from RANK and WORLD_SIZE, which torchrun did not set"))

    LEFT_OVER = {"openmpi": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
                 "mpich": {"PMI_RANK": "0", "PMI_SIZE": "2"},
                 "slurm": {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7",
                           "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2"}}

    def test_variables_that_a_shell_has_set_are_named(self):
        for launcher, variables in self.LEFT_OVER.items():
            exports = "; ".join(f"export {name}={value}" for name, value in variables.items())
            index, count = list(variables)[:2]
            words = f"; {index}=0 and {count}=2 in the environment make this process one of several"
            with self.subTest(launcher):
                run = self.start("--nproc", "1", plan=STEPS, before=["bash", "-c", f'{exports}; "$@"; exit', "bash"])
                faults.wait_for(lambda run=run, words=words: words in run.text(), "the report of the missing process", 20)
                for child in pathlib.Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
                run.process.wait()
                done = subprocess.run(["bash", "-c", f'{exports}; "$@"; exit', "bash", faults.PRUN, "doctor", "--json"], capture_output=True,
                                      text=True, check=False)
                found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}["launcher"]
                self.assertEqual((found["status"], found["text"]),
                                 ("warn", f"{launcher}: process 0 of 2, from {index} and {count}, which {launcher} did not set"))

    def test_variables_of_a_living_launcher_are_its_own(self):
        variables = self.LEFT_OVER["openmpi"]
        done = subprocess.run([faults.PRUN, "doctor", "--json"], capture_output=True, text=True, check=False, env={**os.environ, **variables})
        found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}["launcher"]
        self.assertEqual((found["status"], found["text"]), ("ok", "openmpi: process 0 of 2"))


if __name__ == "__main__":
    faults.run_with_own_shm()
    faults.PRUN = str(pathlib.Path(sys.argv[1]).resolve())
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
