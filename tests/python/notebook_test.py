#!/usr/bin/env python3
"""The notebook tools/python/pytorch.ipynb: its cells run, and they have outputs of the kinds that are stored in it.

Usage: notebook_test.py PRUN BUILD [VENV] [--update]. Cells with the tag `torch` run only if VENV is given, which has torch
(tests/packages.py). Outputs of cells with the tag `exact` are compared as text. --update stores all outputs.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import packages  # noqa: E402
import venv_of_tests  # noqa: E402

WORDS = [word for word in sys.argv[1:] if not word.startswith("--")]
venv_of_tests.rerun_inside(WORDS[1], {"nbclient": "nbclient", "ipykernel": "ipykernel"})
import nbclient  # noqa: E402
import nbformat  # noqa: E402
from traitlets.config import Config  # noqa: E402

TOP = HERE.parents[1]
NOTEBOOK = TOP / "tools/python/pytorch.ipynb"
LARGEST = 40_000  # bytes
CELL_S = 120


def torch_folder(venv):
    """Returns the folder of torch's package, for PYTHONPATH: the kernel's own Python has the packages of Jupyter."""
    code = "import importlib.util; print(importlib.util.find_spec('torch').origin)"
    found = subprocess.run([packages.python_of(venv), "-c", code], capture_output=True, text=True, check=True)
    return str(pathlib.Path(found.stdout.strip()).parents[1])


def tags(cell):
    return cell.metadata.get("tags", [])


def kinds(outputs):
    """Returns what a cell has shown: names of streams and types of displayed data."""
    found = []
    for output in outputs:
        kind = (output.output_type, output.get("name", ""), tuple(sorted(output.get("data", {}))))
        if kind[0] != "stream" or found[-1:] != [kind]:
            found.append(kind)
    return found


def text_of(outputs):
    return "".join(output.get("text", "") for output in outputs)


def executed(venv):
    """Returns the notebook with the outputs of a run; without `venv` it lacks the cells that need torch."""
    notebook = nbformat.read(NOTEBOOK, 4)
    if venv is None:
        notebook.cells = [cell for cell in notebook.cells if "torch" not in tags(cell)]
    config = Config()
    with tempfile.TemporaryDirectory() as folder:
        config.KernelManager.transport, config.KernelManager.ip = "ipc", f"{folder}/kernel"  # sockets, no ports
        path = [str(TOP / "tools/python"), *([torch_folder(venv)] if venv else [])]
        os.environ.update(PRUN_COMMAND=os.path.abspath(WORDS[0]), PYTHONPATH=":".join(path), TMPDIR=folder,
                          IPYTHONDIR=folder, JUPYTER_CONFIG_DIR=folder, JUPYTER_RUNTIME_DIR=folder,
                          OMP_NUM_THREADS="1", PYDEVD_DISABLE_FILE_VALIDATION="1")
        nbclient.NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", record_timing=False,
                                resources={"metadata": {"path": folder}}, config=config).execute()
    return notebook


class Notebook(unittest.TestCase):
    venv = WORDS[2] if len(WORDS) > 2 else None

    def test_stored(self):
        self.assertLess(NOTEBOOK.stat().st_size, LARGEST)
        notebook = nbformat.read(NOTEBOOK, 4)
        nbformat.validate(notebook)
        self.assertNotIn(str(TOP), NOTEBOOK.read_text())
        self.assertNotIn("/tmp/", NOTEBOOK.read_text())
        self.assertFalse([cell.source for cell in notebook.cells if cell.cell_type == "code" and any(
            output.output_type == "error" or output.get("name") == "stderr" for output in cell.outputs)])

    def test_runs(self):
        stored = {cell.id: cell for cell in nbformat.read(NOTEBOOK, 4).cells}
        cells = [cell for cell in executed(self.venv).cells if cell.cell_type == "code"]
        self.assertGreaterEqual(len(cells), 12 if self.venv else 6)
        for cell in cells:
            with self.subTest(cell=cell.source[:60]):
                self.assertEqual(kinds(cell.outputs), kinds(stored[cell.id].outputs))
                if "exact" in tags(cell):
                    self.assertEqual(text_of(cell.outputs), text_of(stored[cell.id].outputs))
        html = [output.data["text/html"] for cell in cells for output in cell.outputs if "text/html" in output.get("data", {})]
        self.assertTrue(any("<polyline" in text for text in html), html)
        self.assertTrue(any(text.startswith("step 200, loss ") for text in html), html)
        [mistake] = [cell for cell in cells if "prefech" in cell.source]
        self.assertIn("prun: cell:5: the strategy zero3 has no option 'prefech' (did you mean 'prefetch'?)", text_of(mistake.outputs))
        self.assertIn("prefech", mistake.source.splitlines()[4])


if __name__ == "__main__":
    if "--update" in sys.argv:
        nbformat.write(executed(WORDS[2]), NOTEBOOK)
    else:
        unittest.main(argv=sys.argv[:1])
