#!/usr/bin/env python3
"""The share of a line between two hosts that a job uses: 1 Gbit/s and 20 ms of round-trip time by default.

Usage: line.py [--prun PRUN] [--gbit 1] [--ms 20] [--ops all_reduce,...] [--bytes 64M] [--options OPTIONS]

Two hosts are network namespaces (root, iproute2), each with a TUN device as its only network. This program is the line:
it forwards packets between the devices, paced in each direction and delayed by half the time, because few kernels have
a queueing discipline for that. Each op is compared with a bare TCP connection on the same line, and with the capacity
left by IP and TCP headers. Exits with 1 if a row has less than --least of it, 0.95.
"""
import argparse
import collections
import contextlib
import ctypes
import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time

import figures
import rows

PORT = 29476
MTU, HEADERS = 1500, 52  # HEADERS: IP, and TCP with timestamps
TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
VNET_HEADER = 10
CLONE_NEWNET = 0x40000000
QUEUE_MS = 50  # queue at the sender's end of the line; packets beyond it are dropped
CALLS = 8  # between two barriers, which leave one rank up to the one-way delay after the other


def in_namespace(name, then):
    """Runs `then()` in a thread of the namespace."""
    result = []

    def run():
        with open(f"/run/netns/{name}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {name}")
        result.append(then())
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


def open_tun():
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tun, TUNSETVNETHDRSZ, struct.pack("i", VNET_HEADER))
    fcntl.ioctl(tun, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    return tun


def bytes_on_the_line(packet):
    """Returns the IP bytes; the kernel passes several segments in one packet, and the headers of each count."""
    segment = struct.unpack_from("<H", packet, 4)[0]
    size = len(packet) - VNET_HEADER
    return size + (max(0, -(-(size - HEADERS) // segment) - 1) * HEADERS if segment else 0)


def relay(tuns, rate, delay):
    """Moves packets between the two devices forever; rate in bytes/s."""
    with contextlib.suppress(PermissionError):  # a line is never busy with other work
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    poll = select.poll()
    for tun in tuns:
        poll.register(tun, select.POLLIN)
    free = [0.0, 0.0]  # when each direction has sent its queue
    queues = [collections.deque(), collections.deque()]
    while True:
        due = min((queue[0][0] for queue in queues if queue), default=None)
        wait = 20 if due is None else max(0, (due - time.monotonic()) * 1e3)
        for tun, _ in poll.poll(wait):
            way = tuns.index(tun)
            for _ in range(16):
                try:
                    packet = os.read(tun, 1 << 17)
                except BlockingIOError:
                    break
                now = time.monotonic()
                if free[way] - now > QUEUE_MS / 1e3:
                    continue  # the queue is full: dropped
                free[way] = max(now, free[way]) + bytes_on_the_line(packet) / rate
                queues[way].append((free[way] + delay, packet))
        now = time.monotonic()
        for way, queue in enumerate(queues):
            while queue and queue[0][0] <= now:
                try:
                    os.write(tuns[1 - way], queue.popleft()[1])
                except OSError:
                    pass


def bare(names, size):
    """Returns the seconds in which a bare TCP connection moves `size` bytes to the other host and back, in full flow.
    """
    listener = in_namespace(names[0], lambda: socket.create_server(("10.80.0.1", PORT + 1)))
    ends = [in_namespace(names[1], lambda: socket.create_connection(("10.80.0.1", PORT + 1))), listener.accept()[0]]
    times = [[], []]

    def send(end):
        data = bytes(size)
        for _ in range(3):
            end.sendall(data)

    def receive(end, taken):
        data = bytearray(1 << 20)
        for _ in range(3):
            start, left = time.monotonic(), size
            while left > 0:
                left -= end.recv_into(data, min(left, len(data)))
            taken.append(time.monotonic() - start)
    threads = [threading.Thread(target=send, args=(end,)) for end in ends]
    threads += [threading.Thread(target=receive, args=pair) for pair in zip(ends, times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(max(pair) for pair in zip(*times))


def job(prun, names, op, sizes, options):
    words = [prun, "bench", op, "--nproc", 1, "--nnodes", 2, "--rendezvous", f"10.80.0.1:{PORT}", "--transport", "socket",
             "--transport-options", options, "--bytes", sizes, "--place", "out", "--iters", CALLS, "--samples", 5, "--json"]
    jobs = [subprocess.Popen(["ip", "netns", "exec", name, *map(str, words), "--node-rank", str(number)], stdout=subprocess.PIPE,
                             text=True, env={**os.environ, "PRUN_SECRET": "of this bench"}) for number, name in enumerate(names)]
    outputs = [each.communicate(timeout=600)[0] for each in jobs]
    if any(each.returncode for each in jobs):
        sys.exit(f"{' '.join(map(str, words))} ended with {[each.returncode for each in jobs]}")
    return [json.loads(line) for line in outputs[0].splitlines() if line.startswith("{")]


# Bytes per call, relative to `size`, in one direction of the line, with one rank on either side.
CARRIED = {"all_reduce": 1.0, "reduce_scatter": 0.5, "all_gather": 0.5, "broadcast": 1.0, "all_to_all": 0.5}


@contextlib.contextmanager
def two_hosts(gbit, ms):
    """Yields the names of two namespaces, 10.80.0.1 and 10.80.0.2, joined by such a line."""
    names = [f"prunl{os.getpid()}h{host}" for host in (0, 1)]

    def ip(*words):
        subprocess.run(["ip", *words], check=True)
    try:
        for name in names:
            ip("netns", "add", name)
        tuns = [in_namespace(name, open_tun) for name in names]
        for number, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.80.0.{number + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "mtu", str(MTU), "up")
        line = os.fork()
        if line == 0:
            relay(tuns, gbit * 1e9 / 8, ms / 2e3)
        try:
            yield names
        finally:
            os.kill(line, 9)
            os.waitpid(line, 0)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prun", default=figures.PROGRAM)
    parser.add_argument("--gbit", type=float, default=1.0)
    parser.add_argument("--ms", type=float, default=20.0)
    parser.add_argument("--ops", type=rows.names(CARRIED), default=",".join(CARRIED), help="of: " + ", ".join(CARRIED))
    parser.add_argument("--bytes", default="64M")
    parser.add_argument("--options", default="")
    parser.add_argument("--least", type=float, default=0.95, help="share of the line below which the program ends with 1")
    rows.add_option(parser)
    args = parser.parse_args()
    most = args.gbit * 1e9 / 8 * (MTU - HEADERS) / MTU
    out = rows.File(args.json)
    with two_hosts(args.gbit, args.ms) as names:
        rate = (32 << 20) / bare(names, 32 << 20)
        out.tell(rows.alone("bare TCP, both ways at once", "% of the line", 100 * rate / most))
        for op in args.ops:
            for row in job(args.prun, names, op, args.bytes, args.options):
                share = 100 * row["bytes"] * CARRIED[op] / (row["time_us"] * 1e-6) / most
                what = f"{op}, 2 hosts, {row['bytes'] / rows.MIB:g} MiB, {args.gbit:g} Gbit/s, {args.ms:g} ms"
                out.tell(rows.at_least(what, "% of the line", share, 100 * args.least, limit=f"{row['time_us'] / 1e3:.1f} ms"))
    return 1 if out.missed else 0


if __name__ == "__main__":
    sys.exit(main())
