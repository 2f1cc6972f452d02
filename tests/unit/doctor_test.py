#!/usr/bin/env python3
"""prun doctor: its JSON and its exit code; with a folder of the substitute for CUDA also what it says of GPUs."""
import json
import os
import subprocess
import sys
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
