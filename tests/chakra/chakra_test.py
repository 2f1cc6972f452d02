#!/usr/bin/env python3
"""prun dump --format chakra, decoded by PyPI's protobuf with the published field numbers: every plan decodes, completes
when a rank runs one collective or send at a time, and moves the bytes that prun check predicts.

Usage: chakra_test.py PRUN VENV [--astra-sim PROGRAM]    PROGRAM: ASTRA-sim's analytical back end, which replays each
trace
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import packages  # noqa: E402

PRUN = sys.argv[1]
packages.run_inside(__file__, sys.argv[2], ["protobuf==6.32.1"])
import traces  # noqa: E402

ASTRA = sys.argv[4] if len(sys.argv) > 4 else None
SMALL = ["layers=2", "width=16", "heads=2", "context=8", "batch=16"]
PLANS = [("plans/ddp.lua", 2), ("plans/zero1.lua", 3, "batch=12"), ("plans/zero2.lua", 2), ("plans/zero3.lua", 4), ("plans/fsdp.lua", 8, "replicate=2"),
         ("plans/megatron.lua", 4), ("plans/megatron.lua", 4, "sequence=true"), ("plans/1f1b.lua", 2, "micro=4"),
         ("plans/interleaved.lua", 2, "micro=4", "layers=4"), ("plans/zero_bubble.lua", 2, "micro=4"), ("plans/one_sided.lua", 2, "micro=4"),
         ("plans/ring_attention.lua", 4), ("plans/moe.lua", 4), ("plans/3d.lua", 8, "micro=2"), ("plans/custom/local_sgd.lua", 2, "every=2"),
         ("plans/3d.lua", 64, "pp=4", "tp=4", "layers=4", "heads=4", "micro=4", "batch=64")]


def prun(*words):
    done = subprocess.run([PRUN, *map(str, words)], capture_output=True, text=True, timeout=100)
    if done.returncode != 0:
        raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def ring_bytes(node, members):
    """Returns the bytes that one rank sends, as prun check counts them."""
    n, size = len(members), node.number("comm_size")
    return {traces.ALL_REDUCE: 2 * (n - 1) / n, traces.ALL_GATHER: n - 1, traces.REDUCE_SCATTER: (n - 1) / n,
            traces.ALL_TO_ALL: (n - 1) / n}.get(node.number("comm_type"), 1 if n > 1 else 0) * size


class Chakra(unittest.TestCase):
    def each(self):
        for plan, ranks, *settings in PLANS:
            arguments = dict(setting.split("=") for setting in [*SMALL, *settings])
            words = [plan, "--nproc", ranks] + [word for name in arguments for word in ("--set", f"{name}={arguments[name]}")]
            with self.subTest(plan=plan, ranks=ranks, settings=settings), tempfile.TemporaryDirectory(prefix="prun-chakra-") as folder:
                prefix = pathlib.Path(folder, "trace")
                prun("dump", *words, "--format", "chakra", "--out", prefix)
                groups = {int(name): members for name, members in json.loads(pathlib.Path(f"{prefix}.groups.json").read_text()).items()}
                yield words, prefix, [traces.read(f"{prefix}.{rank}.et") for rank in range(ranks)], groups

    def test_traces_are_whole(self):
        for _, _, ranks, groups in self.each():
            for rank, nodes in enumerate(ranks):
                seen = set()
                for node in nodes:
                    self.assertNotIn(node.id, seen)
                    self.assertLessEqual(node.waits_for, seen, "dependencies come first")
                    seen.add(node.id)
                    if node.type == traces.COLLECTIVE:
                        self.assertIn(rank, groups[int(node.text("pg_name"))])
            self.assertEqual(len(ranks[0]), len({node.id for node in ranks[0]}))

    def test_collectives_and_messages_meet(self):
        for _, _, ranks, groups in self.each():
            for name, members in groups.items():
                calls = [[(node.number("comm_type"), node.name) for node in ranks[member]
                          if node.type == traces.COLLECTIVE and int(node.text("pg_name")) == name] for member in members]
                self.assertTrue(calls[0])
                for other in calls[1:]:
                    self.assertEqual([call[0] for call in other], [call[0] for call in calls[0]])
            messages = {kind: {} for kind in (traces.SEND, traces.RECEIVE)}
            for rank, nodes in enumerate(ranks):
                for node in nodes:
                    if node.type in messages:
                        key = (node.number("comm_src"), node.number("comm_dst"), node.number("comm_tag"))
                        self.assertNotIn(key, messages[node.type])
                        self.assertEqual(key[0 if node.type == traces.SEND else 1], rank)
                        messages[node.type][key] = node.number("comm_size")
            self.assertEqual(messages[traces.SEND], messages[traces.RECEIVE])

    def test_traces_end_where_a_rank_communicates_once_at_a_time(self):
        for _, _, ranks, groups in self.each():
            self.assertEqual(traces.stuck(ranks, groups), [])

    def test_bytes_are_those_of_check(self):
        for words, _, ranks, groups in self.each():
            checked = json.loads(prun("check", *words, "--json"))
            for rank, nodes in enumerate(ranks):
                sent = sum(ring_bytes(node, groups[int(node.text("pg_name"))]) for node in nodes if node.type == traces.COLLECTIVE)
                sent += sum(node.number("comm_size") for node in nodes if node.type == traces.SEND)
                expected = checked["classes"][checked["class_of_rank"][rank]]
                self.assertEqual(len(nodes), expected["ops"])
                wire = expected["wire_bytes_per_step"] or {}
                self.assertAlmostEqual(sent, sum(wire.values()), delta=len(wire))

    @unittest.skipIf(ASTRA is None, "ASTRA-sim is no package: --astra-sim names its program")
    def test_astra_sim_ends(self):
        for _, prefix, ranks, _ in self.each():
            ended, text = traces.replay(ASTRA, prefix, len(ranks))
            self.assertEqual(ended, len(ranks), text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
