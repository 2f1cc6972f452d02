#!/usr/bin/env python3
"""The rows of tools/bench/collectives.py: bounds and bars computed from given times. Measures nothing."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/bench"))
import collectives  # noqa: E402

K, M = 1 << 10, 1 << 20
PEERS = {"shm": ["Open MPI", "Open MPI over UCX", "Gloo ring"], "socket": ["Open MPI over TCP", "Gloo ring", "Gloo bcube"], "ucx": ["Open MPI over UCX"]}


def rows_of(times, errors=None):
    return list(collectives.rows_of(times, errors or {}, PEERS, 2))


class Rows(unittest.TestCase):
    def test_the_best_setting_of_all_peers_counts(self):
        row, = rows_of({("all_reduce", 4, "shm"): {4 * M: 120}, ("all_reduce", 4, "Open MPI"): {4 * M: 600}, ("all_reduce", 4, "Open MPI over UCX"): {4 * M: 480},
                        ("all_reduce", 4, "Gloo ring"): {4 * M: 5000}, ("all_reduce", 4, "copy"): {4 * M: 66}, ("all_reduce", 4, "stream"): {4 * M: 60}},
                       {("all_reduce", 4, "Open MPI over UCX"): "exit 1: no such device"})
        self.assertEqual(row, {"what": "all_reduce, 4 ranks, 4 MiB, shm", "unit": "µs", "prun": 120, "peer": "Open MPI over UCX", "peers": 480, "ratio": 4,
                               "bar": "≥ 3", "reached": True, "limit": "copies 60 µs", "share": 0.5})

    def held(self, transport, op, ranks, size, ours, **peers):
        names = {"mpi": "Open MPI over TCP" if transport == "socket" else "Open MPI over UCX", "gloo": "Gloo ring"}
        row, = rows_of({(op, ranks, transport): {size: ours}, (op, ranks, "copy"): {size: peers.get("copy", 1)},
                        **{(op, ranks, names[peer]): {size: us} for peer, us in peers.items() if peer in names}})
        return row["reached"]

    def test_bars(self):
        for size, ranks, ours, theirs, holds in ((4 * M, 2, 100, 251, True), (4 * M, 2, 100, 249, False), (64 * M, 8, 100, 299, False), (256 * K, 8, 100, 121, True),
                                                 (256 * K, 8, 100, 119, False), (16 * K, 2, 1.19, 1, True), (16 * K, 2, 1.3, 1, False), (4, 2, 0.29, 0.1, True),
                                                 (4, 4, 14, 10, True), (4, 4, 16, 10, False)):
            self.assertEqual(self.held("shm", "all_reduce", ranks, size, ours, mpi=theirs), holds, (size, ranks, ours, theirs))
            self.assertEqual(self.held("shm", "reduce_scatter", ranks, size, ours, mpi=theirs), holds)
        self.assertTrue(self.held("socket", "all_reduce", 4, 4 * M, 100, gloo=200, mpi=100))
        self.assertFalse(self.held("socket", "all_reduce", 4, 4 * M, 100, gloo=199, mpi=100))
        self.assertFalse(self.held("socket", "all_reduce", 4, 64 * M, 100, gloo=200, mpi=99))
        self.assertTrue(self.held("socket", "all_reduce", 4, 64 * M, 100, gloo=141, mpi=100))
        self.assertTrue(self.held("ucx", "all_reduce", 4, 4 * M, 100, mpi=95))
        self.assertFalse(self.held("ucx", "all_reduce", 4, 4 * M, 100, mpi=94))

    def test_copying_bounds_the_largest(self):
        self.assertTrue(self.held("shm", "all_gather", 4, 64 * M, 100, mpi=100, copy=71))
        self.assertFalse(self.held("shm", "all_gather", 4, 64 * M, 100, mpi=100, copy=69))
        self.assertFalse(self.held("shm", "all_gather", 4, 4 * M, 101, mpi=100, copy=101))
        # reduce_scatter writes only a part; in a broadcast one rank copies nothing.
        row, = rows_of({("reduce_scatter", 4, "shm"): {64 * M: 100}, ("reduce_scatter", 4, "copy"): {64 * M: 80}})
        self.assertEqual(row["share"], 0.5)
        row, = rows_of({("broadcast", 4, "shm"): {64 * M: 100}, ("broadcast", 4, "copy"): {64 * M: 80}, ("copy", 3, "copy"): {64 * M: 40}})
        self.assertEqual(row["share"], 0.4)

    def test_what_did_not_run_is_a_row(self):
        row, = rows_of({}, {("all_reduce", 2, "shm"): "exit 1: why", ("all_reduce", 2, "Open MPI"): "exit 1: too"})
        self.assertEqual((row["what"], row["error"]), ("all_reduce, 2 ranks, shm", "exit 1: why"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
