#!/usr/bin/env python3
"""Writes small random .npy files for the plans of this folder: data.py [FOLDER]"""
import array
import pathlib
import random
import sys

FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
SAMPLES, WORDS, TOKENS, TARGETS, CLASSES = 64, 48, 12, 7, 5
draw = random.Random(1)


def write(name, kind, *shape, value):
    count = 1
    for size in shape:
        count *= size
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    values = array.array("i" if kind == "<i4" else "f", (value(i) for i in range(count)))
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    (FOLDER / name).write_bytes(start + header.encode() + values.tobytes())


lengths = [draw.randrange(3, TOKENS + 1) for _ in range(SAMPLES)]
counts = [i % TOKENS < lengths[i // TOKENS] for i in range(SAMPLES * TOKENS)]
write("images.npy", "<f4", SAMPLES, 3, 8, 8, value=lambda i: draw.gauss(0, 1))
write("classes.npy", "<i4", SAMPLES, value=lambda i: draw.randrange(CLASSES))
write("sentences.npy", "<i4", SAMPLES, TOKENS, value=lambda i: draw.randrange(1, WORDS) if counts[i] else 0)
write("mask.npy", "<i4", SAMPLES, TOKENS, value=lambda i: int(counts[i]))
write("labels.npy", "<i4", SAMPLES, TOKENS,
      value=lambda i: draw.randrange(WORDS) if counts[i] and draw.random() < 0.4 else -100)
write("numbers.npy", "<f4", SAMPLES, 5, value=lambda i: draw.gauss(0, 1))
write("before.npy", "<i4", SAMPLES, TARGETS, value=lambda i: draw.randrange(WORDS))
write("after.npy", "<i4", SAMPLES, TARGETS, value=lambda i: draw.randrange(WORDS))
write("pixels.npy", "<i4", SAMPLES, 8, 8, value=lambda i: draw.randrange(CLASSES))
