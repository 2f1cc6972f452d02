#!/usr/bin/env python3
"""Training on two hosts of four ranks: the same results as on one, faults of the other host, network interfaces.

Usage: prun_hosts_test.py PRUN. Hosts are network namespaces, which need root and iproute2. Without them the test prints
that, and checks that two nodes on one machine are detected as one host. (hosts_test has the other cases, partly with
simulated hosts.)
"""
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import prun_faults_test as faults  # noqa: E402

PORT = 29473  # all ports are free in new namespaces
HOSTS = [f"prun{os.getpid()}h{host}" for host in (0, 1)]
ENDLESS = [word.replace("batch=12", "batch=16") for word in faults.ENDLESS]
STEPS = [*ENDLESS[:-1], "steps=4"]


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def permitted():
    try:
        ip("netns", "add", HOSTS[0])
        ip("netns", "del", HOSTS[0])
        return True
    except (OSError, subprocess.CalledProcessError):
        return False


def losses(run):
    return re.findall(r'"loss": ?([0-9.eE+-]+)', run.metrics.read_text())


class Hosts(faults.Faults):
    """eth0 joins the hosts; eth1 has addresses but no cable, eth2 no address, eth3 is down."""

    @classmethod
    def setUpClass(cls):
        for host in HOSTS:
            ip("netns", "add", host)
            cls.addClassCleanup(ip, "netns", "del", host)
        ip("-n", HOSTS[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", HOSTS[1])
        for number, host in enumerate(HOSTS):
            ip("-n", host, "link", "add", "eth1", "type", "veth", "peer", "name", "loose1")
            ip("-n", host, "link", "add", "eth2", "type", "veth", "peer", "name", "eth3")
            ip("-n", host, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            ip("-n", host, "addr", "add", f"10.78.0.{number + 1}/24", "dev", "eth1")
            for name in ("lo", "eth0", "eth1", "loose1", "eth2"):
                ip("-n", host, "link", "set", name, "up")

    def node(self, number, *options, plan=ENDLESS, ranks=4):
        return self.start("--nproc", str(ranks), "--nnodes", "2", "--node-rank", str(number), "--rendezvous",
                          f"10.77.0.1:{PORT}", *options, before=["ip", "netns", "exec", HOSTS[number]], plan=plan)

    def test_two_hosts_train_as_one(self):
        plan = [*STEPS, "--set", "reduce=rank_order"]
        nodes = [self.node(number, plan=plan) for number in (0, 1)]
        for node in nodes:
            self.assertEqual(node.wait()[0], 0, node.text())
        self.assertIn("\nover shm inside a host, socket between hosts (eth0)\n", nodes[0].text())
        alone = self.start("--nproc", "8", plan=plan)
        self.assertEqual(alone.wait()[0], 0, alone.text())
        self.assertIn("\nover shm\n", alone.text())
        self.assertEqual(losses(nodes[0]), losses(alone), "sums in rank order are the same to the bit")
        self.assertEqual(len(losses(alone)), 4)

    def test_a_killed_rank_of_the_other_host_is_named(self):
        nodes = [self.node(number) for number in (0, 1)]
        nodes[0].wait_for_steps()
        ranks = {**nodes[0].ranks(), **nodes[1].ranks()}
        self.assertEqual(sorted(ranks), list(range(8)))
        os.kill(ranks[6], signal.SIGKILL)
        code, seconds = nodes[0].wait()
        self.expect_crash(nodes[0], 6, ranks[6], "SIGKILL", code, seconds)
        self.assertEqual(nodes[1].wait()[0], 10)
        self.expect_gone(ranks.values())

    def test_a_wrong_interface_is_an_error_at_once(self):
        for wanted, why in (("eht0", r"there is no such network interface or address \(did you mean 'eth0'\?\)"),
                            ("10.99.0.0/16", "there is no such network interface or address"),
                            ("eth2", "eth2 has no IP address"), ("eth3", "eth3 is down")):
            run = self.node(0, "--interface", wanted)
            code, seconds = run.wait()
            self.assertEqual(code, 2, run.text())
            self.assertLess(seconds, 3)
            self.assertRegex(run.text(), f"prun: --interface {re.escape(wanted)}: {why}; there are ")
            self.assertIn("eth0 (10.77.0.1)", run.text())
            self.assertIn("eth3 (down)", run.text())

    def test_an_interface_by_address_network_or_exclusion(self):
        for wanted in ("10.77.0.0/24", "^lo,eth1"):
            nodes = [self.node(number, "--interface", wanted, "--transport", "socket", plan=STEPS) for number in (0, 1)]
            for node in nodes:
                self.assertEqual(node.wait()[0], 0, node.text())
            self.assertIn("\nover socket (eth0)\n", nodes[0].text())

    def test_a_peer_that_cannot_be_reached_is_named_with_its_address(self):
        nodes = [self.node(number, "--interface", "eth1", "--timeout", "3") for number in (0, 1)]
        code, seconds = nodes[0].wait()
        self.assertEqual(code, 14, nodes[0].text())
        self.assertLess(seconds, 8)
        self.assertRegex(nodes[0].text() + nodes[1].text(), r"rank \d.*10\.78\.0\.\d:\d+")
        nodes[1].wait()

    def test_an_outage_below_the_link_timeout_is_survived(self):
        """An outage of half the link timeout, or of all but 2 s if TCP can retransmit every second."""
        with socket.socket() as probe:
            try:
                probe.setsockopt(socket.IPPROTO_TCP, 44, 1000)  # TCP_RTO_MAX_MS
                outage = 6
            except OSError:
                outage = 3.5
        nodes = [self.node(number, "--link-timeout", "9") for number in (0, 1)]
        nodes[0].wait_for_steps()
        ip("-n", HOSTS[1], "link", "set", "eth0", "down")
        time.sleep(outage)
        ip("-n", HOSTS[1], "link", "set", "eth0", "up")
        done = nodes[0].steps()
        nodes[0].wait_for_steps(done + 20)
        nodes[0].process.send_signal(signal.SIGINT)
        self.assertEqual(nodes[0].wait()[0], 130, nodes[0].text())
        nodes[1].wait()

    def test_an_outage_that_lasts_ends_the_job(self):
        nodes = [self.node(number, "--link-timeout", "1") for number in (0, 1)]
        nodes[0].wait_for_steps()
        ip("-n", HOSTS[1], "link", "set", "eth0", "down")
        begin = time.monotonic()
        codes = [node.process.wait(timeout=20) for node in nodes]
        self.assertLess(time.monotonic() - begin, 8)
        ip("-n", HOSTS[1], "link", "set", "eth0", "up")
        self.assertTrue(set(codes) <= {14, 17}, nodes[0].text() + nodes[1].text())

    def test_a_firewall_that_rejects_is_told(self):
        """Routing rejects packets with ICMP messages, as some firewalls do."""
        host = HOSTS[0]
        subprocess.run(["ip", "netns", "exec", host, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv4/icmp_ratelimit"], check=True)
        ip("-n", host, "rule", "add", "pref", "100", "lookup", "local")
        ip("-n", host, "rule", "add", "pref", "10", "to", "10.77.0.1", "ipproto", "tcp", "dport", "29600-29700", "prohibit")
        ip("-n", host, "rule", "del", "pref", "0")
        try:
            nodes = [self.node(number, "--port-range", "29600:29607", ranks=1) for number in (0, 1)]
            codes = [node.process.wait(timeout=90) for node in nodes]
        finally:
            ip("-n", host, "rule", "add", "pref", "0", "lookup", "local")
            for pref in ("10", "100"):
                ip("-n", host, "rule", "del", "pref", pref)
        self.assertEqual(codes, [14, 14], nodes[0].text() + nodes[1].text())
        self.assertRegex(nodes[0].text(), r"prun: rank \d: .*rank \d on 10\.77\.0\.1:296\d\d cannot be reached: No route to host; a firewall rejects it")

    def test_ports_of_a_range(self):
        nodes = [self.node(number, "--port-range", "29600:29607") for number in (0, 1)]
        nodes[0].wait_for_steps()
        for host in HOSTS:
            ports = subprocess.run(["ip", "netns", "exec", host, "ss", "-tnH"], capture_output=True, text=True, check=True).stdout
            pairs = [tuple(int(end.rsplit(":", 1)[1]) for end in line.split()[3:5]) for line in ports.splitlines()]
            data = [pair for pair in pairs if PORT not in pair]
            self.assertTrue(data, ports)
            for pair in data:
                self.assertTrue(any(29600 <= port <= 29607 for port in pair), ports)
        nodes[0].process.send_signal(signal.SIGINT)
        for node in nodes:
            node.wait()

    def test_a_range_that_is_too_small_is_told(self):
        nodes = [self.node(number, "--port-range", "29600:29601", "--transport", "socket", "--transport-options", "socket.unix=0")
                 for number in (0, 1)]
        self.assertEqual(nodes[0].wait()[0], 14, nodes[0].text())
        self.assertIn("all of the ports 29600:29601 are in use; each rank of a host needs one (--port-range)",
                      nodes[0].text() + nodes[1].text())
        nodes[1].wait()

    def test_nodes_with_other_settings_are_told(self):
        for words, theirs, ours in ((["--set", "layers=1"], "--set layers = 1", "--set layers = 2"),
                                    (["--check-finite"], "--check-finite (given)", "no --check-finite"),
                                    (["--device", "reference"], "--device reference", "--device cpu")):
            nodes = [self.node(0), self.node(1, *words)]
            for node in nodes:
                self.assertEqual(node.wait()[0], 2, node.text())
                self.assertIn(f" has {theirs}, node 0 has {ours}: give all nodes the same", node.text())
        nodes = [self.node(0), self.node(1, plan=["plans/nowhere.lua", *ENDLESS[1:]])]
        for node in nodes:
            self.assertEqual(node.wait()[0], 2, node.text())
        self.assertIn("has plan plans/nowhere.lua (there is no such file), node 0 has plan plans/zero3.lua (", nodes[0].text())

    def test_the_choice_is_explained(self):
        text = subprocess.run(["ip", "netns", "exec", HOSTS[1], faults.PRUN, "plugins", "--explain", "--nproc", "4",
                               "--rendezvous", f"10.77.0.1:{PORT}"], capture_output=True, text=True, check=True).stdout
        self.assertRegex(text, r"(?m)^ranks of one host \(4\), host memory\n  \* shm +score 90, the highest$")
        self.assertRegex(text, r"(?m)^ranks of several hosts \(8 on 2\), host memory\n  \* socket +score")
        self.assertRegex(text, r"(?m)^    shm +reaches ranks of one host only$")
        self.assertRegex(text, r"(?m)^    groups over hosts: +shm inside a host, socket between hosts$")
        self.assertRegex(text, r"(?m)^  \* eth0 +10\.77\.0\.2/24")
        self.assertIn("  eth0: it reaches the rendezvous\n", text)
        self.assertRegex(text, r"(?m)^    /.*/socket\.so$")


class OneHost(faults.Faults):
    def test_two_nodes_on_one_machine_are_one_host(self):
        nodes = self.two_nodes(plan=STEPS)
        for node in nodes:
            self.assertEqual(node.wait()[0], 0, node.text())
        self.assertIn("\nover shm\n", nodes[0].text())


def load_tests(loader, _tests, _pattern):
    suite = unittest.TestSuite()
    for case in (Hosts, OneHost):
        own = [name for name in vars(case) if name.startswith("test_")]
        if case is Hosts and not permitted():
            print("network namespaces are not permitted here (root and iproute2): only one host is tested", file=sys.stderr)
            continue
        suite.addTests(loader.loadTestsFromNames(own, case))
    return suite


if __name__ == "__main__":
    faults.run_with_own_shm()
    faults.PRUN = str(pathlib.Path(sys.argv[1]).resolve())
    os.environ["PRUN_SECRET"] = "of this test alone"
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
