#!/usr/bin/env python3
"""The table of tools/bench/collectives.py: medians, bounds and bars from rows as it keeps them. Measures nothing."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/bench"))
import collectives_table  # noqa: E402

K, M = 1 << 10, 1 << 20
MACHINE = {"machine": {"machine": "m", "cores": 2, "kernel": "6", "congestion": "bbr", "peer_congestion": "bbr", "commit": "c", "mpi": "Open MPI 4",
                       "day": "2026-11-21", "rounds": 3, "budget": 0.1}}
PEERS = {"shm": ["Open MPI", "Open MPI over UCX", "Gloo ring"], "socket": ["Open MPI over TCP", "Gloo ring", "Gloo bcube"], "ucx": ["Open MPI over UCX"]}


def runs(op, ranks, side, *rounds):
    """A row of the file for each round; a round is {bytes: µs} or the text of an error."""
    return [{"run": [op, ranks, side, i], "error": r if isinstance(r, str) else None,
             "rows": [] if isinstance(r, str) else [{"bytes": size, "time_us": us} for size, us in r.items()]} for i, r in enumerate(rounds)]


def table(*rows):
    text, short = collectives_table.write([MACHINE, *(row for some in rows for row in some)], PEERS)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return cells[1:], short, text


class Table(unittest.TestCase):
    def test_medians_of_rounds_and_the_best_setting_of_each_peer(self):
        rows, short, _ = table(runs("all_reduce", 4, "shm", {4 * M: 100}, {4 * M: 900}, {4 * M: 120}),
                               runs("all_reduce", 4, "Open MPI", {4 * M: 700}, {4 * M: 500}, {4 * M: 600}),
                               runs("all_reduce", 4, "Open MPI over UCX", {4 * M: 480}, "exit 1: no such device", {4 * M: 480}),
                               runs("all_reduce", 4, "Gloo ring", {4 * M: 5000}),
                               runs("all_reduce", 4, "copy", {4 * M: 66}), runs("all_reduce", 4, "stream", {4 * M: 60}))
        self.assertEqual(rows, [["all_reduce", "4", "4 MiB", "120", "Open MPI over UCX 480, Gloo ring 5,000", "4.00", "≥ 3: yes", "60.0", "50 %"]])
        self.assertEqual(short, 0)

    def held(self, transport, op, ranks, size, ours, **peers):
        names = {"mpi": "Open MPI over TCP" if transport == "socket" else "Open MPI over UCX", "gloo": "Gloo ring"}
        rows, short, text = table(runs(op, ranks, transport, {size: ours}),
                                  *(runs(op, ranks, names[peer], {size: us}) for peer, us in peers.items() if peer in names),
                                  runs(op, ranks, "copy", {size: peers.get("copy", 1)}))
        self.assertEqual(len(rows), 1, text)
        self.assertEqual(short, rows[0][6].endswith("**no**"), text)
        return short == 0

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
        # A reduce_scatter writes a part only; in a broadcast one rank does not copy.
        rows, _, _ = table(runs("reduce_scatter", 4, "shm", {64 * M: 100}), runs("reduce_scatter", 4, "copy", {64 * M: 80}))
        self.assertEqual(rows[0][-2:], ["50.0", "50 %"])
        rows, _, _ = table(runs("broadcast", 4, "shm", {64 * M: 100}), runs("broadcast", 4, "copy", {64 * M: 80}), runs("copy", 3, "copy", {64 * M: 40}))
        self.assertEqual(rows[0][-2:], ["40.0", "40 %"])

    def test_what_did_not_run_is_said(self):
        _, _, text = table(runs("all_reduce", 2, "shm", {4: 1}), runs("all_reduce", 2, "Open MPI", "exit 1: why"))
        self.assertIn("- all_reduce, 2 ranks, Open MPI: exit 1: why\n", text)

    def test_waiting_ranks(self):
        idle = [{"run": ["idle", 4, "shm", 0], "error": None, "rows": [{"core_percent": share}]} for share in (1.5, 2.5)]
        _, short, text = table(idle)
        self.assertEqual(short, 1)
        self.assertIn("| 1.50 % of a core | < 2 %: yes |", text)
        self.assertIn("| 2.50 % of a core | < 2 %: **no** |", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
