"""Reads the kernels that nvcc compiled out of a shared library: registers, stack, shared memory and instructions.

No tool of the CUDA Toolkit is needed. A fat binary is a sequence of entries, each with a kind (1 PTX, 2 machine code), a
target and its bytes. Machine code is ELF: the section .nv.info holds a register count and a stack frame per kernel, the
section .nv.shared.KERNEL is as large as its static shared memory, and .text.KERNEL holds instructions of 16 bytes.

From sm_70 on, an instruction's low 12 bits are its opcode and bits 105-125 are its scheduling fields. A global load names
one of six scoreboards (bits 110-112); the first instruction that reads a loaded register waits for that scoreboard (a mask
in bits 116-121). Loads are in flight from their issue to that wait.
"""
import ctypes
import re
import struct

PTX, CODE = 1, 2
FATBIN_MAGIC, FRAME_SIZE, REGISTERS = 0xBA55ED50, 0x11, 0x2F  # the latter two are attributes of .nv.info
LD, LDG, LDL, STL = 0x180, 0x181, 0x183, 0x187  # opcodes without the bits of the operands' form
BRA, EXIT, ALWAYS = 0x947, 0x94D, 7
LOAD_BYTES = (1, 1, 2, 2, 4, 8, 16)


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


class Kernel:
    """registers, frame (bytes of stack), shared (bytes of static shared memory), and from its instructions:
    spills: number of accesses to local memory; loads: bytes -> most loads of at least that size in flight."""

    def __init__(self):
        self.registers = self.frame = self.shared = self.spills = self.instructions = 0
        self.loads = dict.fromkeys((1, 2, 4, 8, 16), 0)

    def __str__(self):
        loads = ", ".join(f"{count} of {size} bytes or more" for size, count in self.loads.items() if size >= 4)
        return (f"{self.registers} registers, {self.frame} bytes of stack, {self.spills} accesses to it, "
                f"{self.shared} bytes of shared memory, {self.instructions} instructions, loads in flight: {loads}")

    def read_code(self, code):
        in_flight = [[] for _ in range(8)]  # sizes of the loads of each scoreboard
        self.instructions = len(code) // 16
        for low, high in struct.iter_unpack("<QQ", code):
            wait = high >> 52 & 0x3F
            if wait:
                for board in range(6):
                    if wait >> board & 1:
                        in_flight[board].clear()
            form = low & 0x1FF
            if form in (LD, LDG):  # the former through a pointer that was itself loaded
                in_flight[high >> 46 & 7].append(LOAD_BYTES[high >> 9 & 7])
                sizes = [size for board in in_flight for size in board]
                for least in self.loads:
                    self.loads[least] = max(self.loads[least], sum(size >= least for size in sizes))
            elif form in (LDL, STL):
                self.spills += 1
            elif low & 0xFFF in (BRA, EXIT) and low >> 12 & 0xF == ALWAYS:
                for board in in_flight:  # the next instruction is reached by a branch only
                    board.clear()


def fat_binaries(library):
    """Yields [(kind, target, bytes), ...] for each source file of the library."""
    data, at = Elf(open(library, "rb").read()).bytes_of(".nv_fatbin"), 0
    while at + 16 <= len(data):
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != FATBIN_MAGIC:
            at += 8  # padding
            continue
        entry, at, found = at + header, at + header + size, []
        while entry < at:
            kind, _, own_header, own_size = struct.unpack_from("<HHIQ", data, entry)
            target, = struct.unpack_from("<I", data, entry + 28)
            found.append((kind, target, data[entry + own_header:entry + own_header + own_size]))
            entry += own_header + own_size
        yield found


def attributes(info):
    """Yields (attribute, symbol, value) of the attributes that belong to a kernel."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:
            if size == 8:
                yield attribute, *struct.unpack_from("<II", info, at)
            at += size


def kernels_of(cubin):
    """Returns mangled name -> Kernel. Routines of nvcc's own (a 64-bit division) have no registers and are omitted."""
    elf, kernels = Elf(cubin), {}
    symbols = elf.symbols()
    for attribute, symbol, value in attributes(elf.bytes_of(".nv.info")):
        kernel = kernels.setdefault(symbols[symbol], Kernel())
        if attribute == REGISTERS:
            kernel.registers = value
        elif attribute == FRAME_SIZE:
            kernel.frame = value
    kernels = {name: kernel for name, kernel in kernels.items() if kernel.registers}
    for name, row in elf.sections:
        for prefix in (".nv.shared.", ".text."):
            kernel = kernels.get(name.removeprefix(prefix))
            if kernel is None:
                continue
            if prefix == ".text.":
                kernel.read_code(cubin[row[4]:row[4] + row[5]])
            else:
                kernel.shared = row[5]
    return kernels


class Demangler:
    """Demangles C++ names with the host's C++ library, and removes the namespaces of prun: pointwise<bf16, 2, 1, Sum>."""

    def __init__(self):
        self.demangle = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
        self.demangle.restype = ctypes.c_void_p
        self.free = ctypes.CDLL(None).free
        self.free.argtypes = [ctypes.c_void_p]

    def __call__(self, name):
        status = ctypes.c_int()
        text = self.demangle(name.encode(), None, None, ctypes.byref(status))
        if not text:
            return name
        full = ctypes.string_at(text).decode()
        self.free(text)
        full = re.sub(r"prun::cuda::|\(anonymous namespace\)::|_GLOBAL__N_\w+::", "", full.removeprefix("void "))
        depth = 0  # the parameters begin at the first parenthesis outside < >
        for at, letter in enumerate(full):
            depth += (letter == "<") - (letter == ">")
            if letter == "(" and depth == 0:
                full = full[:at]
                break
        return re.sub(r"\((?:bool|int)\)", "", full).replace("__nv_bfloat16", "bf16").replace("> >", ">>")
