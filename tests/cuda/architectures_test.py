#!/usr/bin/env python3
"""Tests that CMake converts PRUN_CUDA_ARCHITECTURES to options for nvcc, or reports an error with place, problem and fix.

    architectures_test.py CMAKE NVCC
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

MODULE = pathlib.Path(__file__).resolve().parents[2] / "plugins/cuda/architectures.cmake"
SCRIPT = """cmake_minimum_required(VERSION 3.25)
include({module})
prun_cuda_targets(_options {nvcc} {architectures})
foreach(_each ${{_options}})
  message("OPTION ${{_each}}")
endforeach()
"""


class Architectures(unittest.TestCase):
    def configure(self, architectures):
        """Returns (exit code, the text with single spaces)."""
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "script.cmake")
            script.write_text(SCRIPT.format(module=MODULE, nvcc=NVCC, architectures=" ".join(architectures)))
            done = subprocess.run([CMAKE, "-P", str(script)], capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def options(self, *architectures):
        code, text = self.configure(architectures)
        self.assertEqual(code, 0, text)
        return [word.removeprefix("--generate-code=") for word in text.split() if word != "OPTION"]

    def error(self, *architectures):
        code, text = self.configure(architectures)
        self.assertNotEqual(code, 0, text)
        self.assertIn(f"PRUN_CUDA_ARCHITECTURES={';'.join(architectures)}:", text)
        self.assertRegex(text, r"nvcc compiles for 80, .*, 90, .* each as N, N-real \(machine code\) or N-virtual \(PTX\)")
        self.assertIn('-DPRUN_CUDA_ARCHITECTURES="80-real;90a-real;80-virtual"', text)
        return text

    def test_one_ptx_serves_all_targets_without_a_suffix(self):
        self.assertEqual(self.options("80-real", "90-real", "80-virtual"),
                         ["arch=compute_80,code=sm_80", "arch=compute_80,code=sm_90", "arch=compute_80,code=compute_80"])

    def test_a_target_with_a_suffix_has_its_own_ptx(self):
        self.assertEqual(self.options("80-real", "90a-real", "80-virtual"),
                         ["arch=compute_80,code=sm_80", "arch=compute_90a,code=sm_90a", "arch=compute_80,code=compute_80"])

    def test_a_bare_number_is_both(self):
        self.assertEqual(self.options("90"), ["arch=compute_90,code=sm_90", "arch=compute_90,code=compute_90"])

    def test_unknown_to_nvcc(self):
        self.assertIn("nvcc does not know '91-real';", self.error("80-real", "91-real"))
        self.assertIn("nvcc does not know '80a';", self.error("80a"))

    def test_no_architecture(self):
        self.assertIn("'sm_90' names no architecture (did you mean '90'?);", self.error("sm_90"))
        self.assertIn("'9.0' names no architecture (did you mean '90'?);", self.error("9.0"))
        self.assertIn("'hopper' names no architecture;", self.error("hopper"))
        self.assertIn("no architecture is named;", self.error())

    def test_below_the_least(self):
        self.assertIn("'75' is below 80 (Ampere), the least that prun's kernels compile for;", self.error("75"))


if __name__ == "__main__":
    CMAKE, NVCC = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
