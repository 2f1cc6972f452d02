"""The guide's example of LoRA, for tests of a smaller GPT-2."""
import pathlib
import random
import re
import struct

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "lua/prun/README.md"
MOST_LINES = 25


def text_of(language):
    """Returns the example's block of a language, and checks that plan and commands are short."""
    text = GUIDE.read_text().split("## Fine-tuning with LoRA", 1)[1].split("\n## ", 1)[0]
    blocks = dict(re.findall(r"```(lua|sh)\n(.*?)```", text, re.S))
    lines = [line for block in blocks.values() for line in block.splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES, f"the example has {len(lines)} lines"
    return blocks[language]


def commands():
    """Returns the commands of prun: [["sft.lua", "--nproc", "2", ..], ..]."""
    return [line.split("#")[0].split()[1:] for line in text_of("sh").splitlines() if line.startswith("prun ")]


def write_ids(path, rows):
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({len(rows)}, {len(rows[0])}), }}\n".encode()
    data = b"".join(struct.pack(f"<{len(row)}q", *row) for row in rows)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data)


def write(folder, vocab, layers, width, heads, context, ignored, samples=16):
    """Writes sft.lua for a model of these sizes, and arrays, and returns tokens and labels. `ignored`: the label of the first half
    of each sample; None = they count.
    """
    sizes = {"vocab": vocab, "layers": layers, "width": width, "heads": heads, "context": context, "steps": 6}
    plan = text_of("lua")
    for name, size in sizes.items():
        plan, found = re.subn(rf"\b{name}( *)= \d+", rf"{name}\1= {size}", plan)
        assert found == 1, f"{name} is in the example {found} times"
    (folder / "sft.lua").write_text(plan)
    numbers = random.Random(3)
    whole = [[numbers.randrange(vocab) for _ in range(context + 1)] for _ in range(samples)]
    tokens, labels = [row[:-1] for row in whole], [row[1:] for row in whole]
    if ignored is not None:
        labels = [[ignored] * (context // 2) + row[context // 2:] for row in labels]
    write_ids(folder / "x.npy", tokens)
    write_ids(folder / "y.npy", labels)
    return tokens, labels
