#!/usr/bin/env python3
"""prun doctor: its JSON and exit code; given a folder with the CUDA substitute, also its checks of GPUs."""
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import unittest

PRUN, SUBSTITUTE = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None


def doctor(*words, **environment):
    done = subprocess.run([PRUN, "doctor", *words], env={**os.environ, **environment}, text=True, capture_output=True,
                          timeout=60)
    return done.returncode, done.stdout, done.stderr


def device(report, name):
    return next(each for each in report["devices"] if each["name"] == name)


class Doctor(unittest.TestCase):
    def test_machine(self):
        code, out, _ = doctor("--json")
        report = json.loads(out)
        self.assertEqual(code, 0)
        self.assertGreater(report["machine"]["cores"]["number"], 0)
        self.assertGreater(report["machine"]["memory"]["number"], 0)
        self.assertEqual(device(report, "cpu")["problem"], "")

    def test_device_that_is_not_there(self):
        code, out, err = doctor("--device", "tpu")
        self.assertEqual(code, 2)
        self.assertIn("no device 'tpu'", out)
        self.assertIn("no device 'tpu'", err)

    def test_takes_no_plan(self):
        code, _, err = doctor("plans/ddp.lua")
        self.assertEqual(code, 2)
        self.assertIn("prun doctor takes no plan", err)


def check(report, family, name):
    return next(each for each in report["checks"] if (each["family"], each["name"]) == (family, name))


class Checks(unittest.TestCase):
    def report(self, *words, code=0, **environment):
        done = doctor("--json", *words, **environment)
        self.assertEqual(done[0], code, done[2])
        return json.loads(done[1])

    def test_a_family_each_and_every_transport(self):
        report = self.report()
        self.assertEqual({each["family"] for each in report["checks"]},
                         {"machine", "limits", "between ranks of this host", "network", "environment", "transports", "devices"})
        for transport in ("shm", "socket"):
            latency = check(report, "between ranks of this host", f"{transport} latency")
            self.assertGreater(latency["number"], 0)
            self.assertIn("usual", latency["text"])
            self.assertGreater(check(report, "between ranks of this host", f"{transport} bandwidth")["number"], 10**7)
        self.assertIn("ran in its sandbox", check(report, "machine", "script")["text"])
        self.assertIn("written", check(report, "machine", "/dev/shm")["text"])

    def test_people_read_the_same(self):
        _, out, _ = doctor()
        self.assertRegex(out, r"(?m)^  OK    cores +\d")
        self.assertRegex(out, r"(?m)^\d+ well, \d+ warnings?, 0 failures$")

    def test_few_descriptors(self):
        done = subprocess.run([PRUN, "doctor", "--json"], text=True, capture_output=True, timeout=60,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)))
        found = check(json.loads(done.stdout), "limits", "open files")
        self.assertEqual((found["status"], found["text"]), ("warn", "200, 1024 cannot be opened"))
        self.assertIn("ulimit -Hn", found["fix"])

    def test_checkpoint_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            report = self.report("--checkpoint", f"{folder}/new/runs")
            for name in ("space", "write", "fsync", "rename"):
                self.assertIn(check(report, "checkpoints", name)["status"], ("ok", "warn"))
            self.assertEqual(os.listdir(folder), [])
        found = check(self.report("--checkpoint", "/dev/null/runs", code=1), "checkpoints", "folder")
        self.assertEqual((found["status"], found["text"]), ("fail", "/dev/null/runs: Not a directory"))
        found = check(self.report("--checkpoint", "/dev/shm"), "checkpoints", "filesystem")
        self.assertEqual((found["status"], found["text"]), ("warn", "tmpfs"))
        self.assertEqual(check(self.report("--checkpoint", "/proc", code=1), "checkpoints", "write")["status"], "fail")

    def test_a_disk_that_is_full(self):
        with tempfile.TemporaryDirectory() as folder:  # limits files to 1 MiB; Python ignores SIGXFSZ, so write() fails
            done = subprocess.run([PRUN, "doctor", "--json", "--checkpoint", folder], text=True, capture_output=True, timeout=60,
                                  restore_signals=False,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
            found = check(json.loads(done.stdout), "checkpoints", "write")
            self.assertEqual((done.returncode, found["status"], found["text"]), (1, "fail", "File too large"))
            self.assertEqual(os.listdir(folder), [])

    def test_environment(self):
        report = self.report(PRUN_SECRET="hunter2", PRUN_PLUGINPATH="x")
        self.assertNotIn("hunter2", json.dumps(report))
        found = check(report, "environment", "PRUN_PLUGINPATH")
        self.assertEqual((found["status"], found["fix"]), ("warn", "did you mean PRUN_PLUGIN_PATH?"))
        self.assertEqual(report["worst"], "warn")
        self.assertEqual(check(report, "environment", "launcher")["text"], "none but prun itself")
        report = self.report(PRUN_PLUGIN_PATH="/no/such/folder")
        found = [each for each in report["checks"] if each["name"] == "PRUN_PLUGIN_PATH" and each["status"] == "warn"]
        self.assertEqual([each["text"] for each in found], ["there is no folder /no/such/folder"])

    def test_a_launcher(self):
        places = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
        self.assertEqual(check(self.report(**places), "environment", "launcher")["text"], "openmpi: process 1 of 4")

    def test_a_transport_that_is_broken(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/mine.so", "w") as file:
                file.write("no library\n")
            report = self.report(PRUN_PLUGIN_PATH=folder)
            self.assertIn("cannot be loaded", check(report, "transports", "mine")["text"])
            self.assertEqual(check(report, "between ranks of this host", "mine")["status"], "warn")
            with open(f"{folder}/shm.so", "w") as file:
                file.write("no library\n")
            with open(f"{folder}/shm.plugin", "w") as file:
                file.write("auto = 1\nlocal_only = 1\nmemory = host\n")
            self.assertEqual(check(self.report(PRUN_PLUGIN_PATH=folder, code=1), "transports", "shm")["status"], "fail")

    def test_a_name_that_nobody_knows(self):
        report = self.report("--nnodes", "2", "--node-rank", "1", "--rendezvous", "no-such-host.invalid:29400", "--timeout", "2", code=1)
        self.assertEqual(check(report, "network", "--rendezvous")["status"], "fail")
        self.assertEqual(check(report, "nodes", "nodes")["status"], "fail")


def free_port():
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


class Hosts(unittest.TestCase):
    def test_two_nodes(self):
        words = [PRUN, "doctor", "--json", "--nnodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}", "--node-rank"]
        nodes = [subprocess.Popen([*words, str(rank)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
        first, second = (json.loads(node.communicate(timeout=90)[0]) for node in nodes)
        self.assertEqual([node.returncode for node in nodes], [0, 0])
        names = [each["name"] for each in first["checks"] if each["family"] == "nodes"]
        self.assertEqual(names, ["nodes", "version", "MTU", "clock, node 0 to node 1", "socket latency, node 0 to node 1",
                                 "socket bandwidth, node 0 to node 1"])
        self.assertLess(abs(check(first, "nodes", "clock, node 0 to node 1").get("number", 0)), 10**8)
        self.assertEqual(check(second, "nodes", "nodes")["text"], "taken part; node 0 has the report")

    def test_a_node_that_does_not_come(self):
        code, out, _ = doctor("--json", "--nnodes", "2", "--node-rank", "0", "--rendezvous", f"127.0.0.1:{free_port()}", "--timeout", "1")
        found = check(json.loads(out), "nodes", "nodes")
        self.assertEqual((code, found["status"]), (1, "fail"))
        self.assertIn("node 1", found["text"])


@unittest.skipIf(SUBSTITUTE is None, "built without the CUDA Toolkit")
class Gpus(unittest.TestCase):
    def doctor(self, *words, **settings):
        return doctor(*words, PRUN_DEVICE_PATH=SUBSTITUTE, **{"PRUN_SUBSTITUTE_" + k: v for k, v in settings.items()})

    def test_each_is_described(self):
        code, out, _ = self.doctor("--json", "--device", "cuda", DEVICES="2", MEMORY_MIB="256")
        cuda = device(json.loads(out), "cuda")
        self.assertEqual((code, cuda["problem"]), (0, ""))
        self.assertEqual([each["index"] for each in cuda["devices"]], [0, 1])
        for each in cuda["devices"]:
            self.assertEqual((each["architecture"], each["problem"]), ("sm_90", ""))
            self.assertEqual(each["total_bytes"], 256 << 20)
        self.assertEqual(len({each["id"] for each in cuda["devices"]}), 2)
        self.assertIn("CUDA", cuda["driver"])

    def cuda(self, **settings):
        _, out, _ = self.doctor("--json", **settings)
        return device(json.loads(out), "cuda")["devices"]

    def test_what_a_context_takes_and_who_is_reached(self):
        first, second, third = self.cuda(DEVICES="3", CONTEXT_MIB="40")
        self.assertEqual((first["context_bytes"], first["facts"], first["advice"]), (40 << 20, "ECC on; NVLink to GPUs 1, 2", []))
        self.assertEqual(second["facts"], "ECC on; NVLink to GPUs 0, 2")
        self.assertEqual(third["facts"], "ECC on; NVLink to GPUs 0, 1")

    def test_what_is_wrong_is_said_with_what_to_do(self):
        first, second = self.cuda(DEVICES="2", PEERS="0", ECC="0", LOST_BITS="1", ROWS_WAITING="1", PERSISTENCE="0", COMPUTE_MODE="3")
        self.assertEqual((first["facts"], first["exclusive"]), ("one process at a time (exclusive); ECC off", True))
        said = first["advice"]
        for line, words in zip(said, (("1 error that ECC", "replace it"), ("next reset", "nvidia-smi -r"),
                                      ("does not reach GPU 1 directly", "host's memory"), ("persistence mode is off", "-pm 1"))):
            for word in words:
                self.assertIn(word, line)
        self.assertEqual(len(said), 4, said)
        self.assertIn("does not reach GPU 0 directly", "".join(second["advice"]))

    def test_an_instance_of_a_divided_gpu(self):
        only, = self.cuda(DEVICES="1", MIG="1", PEERS="0")
        self.assertEqual(len(only["advice"]), 1, only["advice"])
        self.assertIn("(MIG)", only["advice"][0])

    def test_people_read_the_same(self):
        _, out, _ = self.doctor(DEVICES="2", PEERS="1", PERSISTENCE="0", CONTEXT_MIB="40")
        self.assertIn("ECC on; PCIe to GPU 1; a context takes 40.0 MiB of it\n", out)
        self.assertIn("! its persistence mode is off", out)
        self.assertRegex(out, r"cuBLASLt [0-9.]+ \(.*/libcublasLt\.so")

    def test_another_process_has_it(self):
        code, _, err = self.doctor("--device", "cuda", DEVICES="1", BUSY="0")
        self.assertEqual(code, 2)
        self.assertIn("another process has it for itself", err)

    def test_driver_too_old(self):
        code, out, err = self.doctor("--device", "cuda", DRIVER="11040")
        self.assertEqual(code, 2)
        self.assertIn("is for CUDA 11.4", err)
        self.assertIn("is for CUDA 11.4", out)

    def test_without_the_question_it_only_tells(self):
        code, out, _ = self.doctor(DRIVER="11040")
        self.assertEqual(code, 0)
        self.assertIn("is for CUDA 11.4", out)

    def test_too_few(self):
        code, _, err = self.doctor("--device", "cuda", "--nproc", "3", DEVICES="2")
        self.assertEqual(code, 2)
        self.assertIn("needs 3 devices", err)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
