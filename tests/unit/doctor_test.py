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
