"""prun sim: simulating one rank per class gives bitwise the result of simulating all ranks, for every plan of this
project.
"""
import collections
import json
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RANKS = (2, 4, 8, 16, 64)  # also two and more nodes of DGX A100
ALONE = {"single"}  # runs on one rank only
# Meshes of several axes, schedules with rounds and split backward, and sharding, in addition to the default arguments.
MORE = [("3d", 64, dict(pp=4, tp=4, layers=8)), ("3d", 32, dict(pp=2, tp=8, heads=8, schedule="gpipe")),
        ("gpt", 64, dict(pp=4, tp=4, chunks=2, layers=8, batch=32, zero=1, sequence="true")),
        ("gpt", 64, dict(pp=2, tp=4, cp=2, layers=4, batch=32, arch="llama", recompute="full")),
        ("gpt", 64, dict(zero=3, batch=64, prefetch=2)), ("gpt", 32, dict(pp=4, layers=8, batch=64, schedule="zb_h1")),
        ("fsdp", 64, dict(replicate=8, batch=64)), ("moe", 16, dict(ep=4)),
        ("zero_bubble", 8, dict(pp=4, layers=8, schedule="zb_v")), ("interleaved", 64, dict(pp=4, chunks=2, layers=8, batch=128)),
        ("one_sided", 16, dict(pp=4, schedule="gpipe")), ("local_sgd", 64, dict(batch=64))]


def prun(*words):
    return subprocess.run([PRUN, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=120)


def of_rank(one):
    return one["peak_bytes"], one["idle_s"], tuple(sorted(one["op_s"].items()))


class Classes(unittest.TestCase):
    def compare(self, path, ranks, arguments):
        """Whether this plan exists for this number of ranks."""
        words = ["sim", path, "--cluster", "plans/clusters/dgx-a100.yaml", "--nproc", ranks, "--whole", "--json"]
        words += [word for name, value in arguments.items() for word in ("--set", f"{name}={value}")]
        done, each = prun(*words), prun(*words, "--every-rank")
        self.assertEqual(done.returncode, each.returncode, done.stderr + each.stderr)
        if done.returncode == 3:  # the plan does not support this number of ranks
            return False
        self.assertEqual(done.returncode, 0, done.stderr)
        classes, all_ranks = json.loads(done.stdout), json.loads(each.stdout)
        self.assertEqual(classes["step_s"], all_ranks["step_s"])
        self.assertEqual(classes["bytes"], all_ranks["bytes"])
        self.assertEqual(len(all_ranks["classes"]), ranks)
        counted = collections.Counter()
        for one in classes["classes"]:
            counted[of_rank(one)] += one["ranks"]
        self.assertEqual(counted, collections.Counter(of_rank(one) for one in all_ranks["classes"]))
        return True

    def test_every_plan(self):
        for plan in json.loads(prun("plans", "--json").stdout)["plans"]:
            tried = []
            for ranks in (1,) if plan["name"] in ALONE else RANKS:
                with self.subTest(plan["path"], ranks=ranks):
                    tried.append(self.compare(plan["path"], ranks, {}))
            with self.subTest(plan["path"]):
                self.assertIn(True, tried)

    def test_more_meshes(self):
        paths = {plan["name"]: plan["path"] for plan in json.loads(prun("plans", "--json").stdout)["plans"]}
        for name, ranks, arguments in MORE:
            with self.subTest(name, ranks=ranks, **arguments):
                self.assertTrue(self.compare(paths[name], ranks, arguments))


if __name__ == "__main__":
    PRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
