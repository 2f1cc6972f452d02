#!/usr/bin/env python3
"""What nvcc made of the kernels, read from cuda.so, so that no GPU is needed: machine code and PTX are there for every
target, no kernel spills its registers into local memory, and static shared memory fits every GPU.

The formats: a fat binary is a row of entries, each with a kind (1 PTX, 2 machine code), a target and bytes; machine code is
ELF, whose section .nv.info has a register count and a stack frame for each kernel, and whose sections .nv.shared.KERNEL
are as long as its static shared memory.
"""
import struct
import sys

MOST_LOCAL = 32  # bytes of local memory: what calls of nvcc's own routines (a 64-bit division, say) keep there
MOST_STATIC_SHARED = 48 << 10
FATBIN, PTX, CODE = 0xBA55ED50, 1, 2
FRAME_SIZE, REGISTERS = 0x11, 0x2F  # attributes of .nv.info


class Elf:
    def __init__(self, data):
        self.data = data
        offset, = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        rows = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
        self.sections = [(self.text(rows[names][4] + row[0]), row) for row in rows]

    def text(self, at):
        return self.data[at:self.data.index(b"\0", at)].decode()

    def bytes_of(self, name):
        return b"".join(self.data[row[4]:row[4] + row[5]] for each, row in self.sections if each == name)

    def symbols(self):
        table = next(row for _, row in self.sections if row[1] == 2)
        names = self.sections[table[6]][1]
        return [self.text(names[4] + struct.unpack_from("<I", self.data, at)[0])
                for at in range(table[4], table[4] + table[5], 24)]


def entries(fatbins):
    """(kind, target, bytes) of each entry, one list for each source file."""
    at = 0
    while at + 16 <= len(fatbins):
        magic, _, header, size = struct.unpack_from("<IHHQ", fatbins, at)
        if magic != FATBIN:
            at += 8  # padding
            continue
        entry, at, found = at + header, at + header + size, []
        while entry < at:
            kind, _, own_header, own_size = struct.unpack_from("<HHIQ", fatbins, entry)
            target, = struct.unpack_from("<I", fatbins, entry + 28)
            found.append((kind, target, fatbins[entry + own_header:entry + own_header + own_size]))
            entry += own_header + own_size
        yield found


def attributes(info):
    """(attribute, symbol, value) of those that belong to a kernel."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:
            if size == 8:
                yield attribute, *struct.unpack_from("<II", info, at)
            at += size


def resources(cubin):
    """kernel -> [registers, stack frame, static shared memory]"""
    elf = Elf(cubin)
    symbols, kernels = elf.symbols(), {}
    for attribute, symbol, value in attributes(elf.bytes_of(".nv.info")):
        if attribute in (FRAME_SIZE, REGISTERS):
            kernels.setdefault(symbols[symbol], [0, 0, 0])[attribute == FRAME_SIZE] = value
    for name, row in elf.sections:
        kernel = name.removeprefix(".nv.shared.")
        if kernel != name and kernel in kernels:
            kernels[kernel][2] = row[5]
    return kernels


def main(path, architectures):
    numbers = [(int(text.split("-")[0].rstrip("af")), text) for text in architectures]
    wanted = {(CODE, number) for number, text in numbers if not text.endswith("-virtual")}
    wanted |= {(PTX, number) for number, text in numbers if not text.endswith("-real")}
    problems, kernels, closed = [], 0, 0
    for number, found in enumerate(entries(Elf(open(path, "rb").read()).bytes_of(".nv_fatbin"))):
        missing = wanted - {(kind, target) for kind, target, _ in found}
        problems += [f"source {number} has no {'PTX' if kind == PTX else 'code'} for {target}" for kind, target in missing]
        for kind, target, data in found:
            if kind != CODE:
                continue
            if not data.startswith(b"\x7fELF"):
                closed += 1  # compressed, as nvcc 12 does
                continue
            for kernel, (registers, frame, shared) in resources(data).items():
                if not registers:
                    continue  # such a routine
                kernels += 1
                if frame > MOST_LOCAL:
                    problems.append(f"sm_{target} {kernel}: {frame} bytes of local memory, {registers} registers")
                if shared > MOST_STATIC_SHARED:
                    problems.append(f"sm_{target} {kernel}: {shared} bytes of static shared memory")
    print(f"{kernels} kernels looked at" + (f"; {closed} pieces of machine code are compressed, and were not" if closed else ""))
    if not kernels and not closed:
        problems.append("there is no kernel")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2].split(",")))
