"""Execution traces of MLCommons Chakra: a reader with protobuf's decoder and the field numbers of et_def.proto (schema
1.0), a replay in which a rank runs one collective or send at a time as ASTRA-sim does, and ASTRA-sim itself.
"""
import collections
import json
import pathlib
import re
import subprocess

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = 2, 3, 4, 5, 6, 7
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 6, 7
FIELDS = {
    "Metadata": [("version", 1, "string")],
    "Attribute": [("name", 1, "string"), ("int32_val", 7, "int32"), ("int64_val", 9, "int64"), ("uint64_val", 13, "uint64"),
                  ("bool_val", 27, "bool"), ("string_val", 29, "string")],
    "Node": [("id", 1, "uint64"), ("name", 2, "string"), ("type", 3, "int32"), ("ctrl_deps", 4, "*uint64"), ("data_deps", 5, "*uint64"),
             ("duration_micros", 7, "uint64"), ("attr", 10, "*Attribute")],
}


def message_classes():
    file = descriptor_pb2.FileDescriptorProto(name="chakra.proto", package="chakra", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, label=kinds.LABEL_REPEATED if kind[0] == "*" else kinds.LABEL_OPTIONAL)
            kind = kind.lstrip("*")
            if kind in FIELDS:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".chakra.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"chakra.{name}")) for name in FIELDS}


MESSAGES = message_classes()


class Node:
    def __init__(self, message):
        self.id, self.name, self.type = message.id, message.name, message.type
        self.waits_for = {*message.ctrl_deps, *message.data_deps}
        self.attributes = {attribute.name: attribute for attribute in message.attr}

    def number(self, name):
        kind = {"comm_size": "int64_val", "comm_type": "int64_val", "num_ops": "int64_val", "tensor_size": "uint64_val"}.get(name, "int32_val")
        return getattr(self.attributes[name], kind)

    def text(self, name):
        return self.attributes[name].string_val


def delimited(data):
    at = 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            size |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                break
        yield data[at:at + size]
        at += size


def read(path):
    """Returns the nodes of a rank, in the order of the file."""
    first, *rest = delimited(pathlib.Path(path).read_bytes())
    assert MESSAGES["Metadata"].FromString(first).version == "1.0.0"
    return [Node(MESSAGES["Node"].FromString(data)) for data in rest]


def stuck(ranks, groups):
    """Returns the nodes left when no rank can proceed; a rank starts the first ready node by number."""
    left = [{node.id: node for node in nodes} for nodes in ranks]
    ended = [set() for _ in ranks]
    busy = [None] * len(ranks)  # the node that communicates
    arrived, sent = collections.defaultdict(dict), set()

    def begin(rank):
        """Starts nodes; returns whether anything changed."""
        for node in [left[rank][key] for key in sorted(left[rank])]:
            if not node.waits_for <= ended[rank]:
                continue
            if node.type == RECEIVE:
                if (node.number("comm_src"), node.number("comm_dst"), node.number("comm_tag")) not in sent:
                    continue
            elif node.type in (COLLECTIVE, SEND):
                if busy[rank] is not None:
                    continue
                if node.type == SEND:
                    sent.add((node.number("comm_src"), node.number("comm_dst"), node.number("comm_tag")))
                else:
                    group = int(node.text("pg_name"))
                    arrived[group][rank] = node.id
                    if len(arrived[group]) < len(groups[group]):
                        busy[rank] = node.id
                        return True
                    for member, met in arrived.pop(group).items():
                        ended[member].add(met)
                        del left[member][met]
                        busy[member] = None
                    return True
            ended[rank].add(node.id)
            del left[rank][node.id]
            return True
        return False

    moved = True
    while moved:
        moved = False
        for rank in range(len(ranks)):
            while begin(rank):
                moved = True
    return [(rank, node.name) for rank, nodes in enumerate(left) for node in nodes.values()]


def replay(program, prefix, ranks):
    """Returns how many ranks complete in ASTRA-sim on a ring of links, and its output."""
    folder = pathlib.Path(prefix).parent
    (folder / "network.yml").write_text(f"topology: [ Ring ]\nnpus_count: [ {ranks} ]\nbandwidth: [ 50 ]\nlatency: [ 500 ]\n")
    (folder / "system.json").write_text(json.dumps({
        "scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1, "preferred-dataset-splits": 1,
        "all-reduce-implementation": ["ring"], "all-gather-implementation": ["ring"], "reduce-scatter-implementation": ["ring"],
        "all-to-all-implementation": ["ring"], "collective-optimization": "localBWAware", "local-mem-bw": 1600, "boost-mode": 0,
        "roofline-enabled": 1, "peak-perf": 100}))
    (folder / "memory.json").write_text(json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}))
    done = subprocess.run([program, f"--workload-configuration={prefix}", f"--comm-group-configuration={prefix}.groups.json",
                           f"--system-configuration={folder / 'system.json'}", f"--remote-memory-configuration={folder / 'memory.json'}",
                           f"--network-configuration={folder / 'network.yml'}"], capture_output=True, text=True, timeout=300, cwd=folder)
    # It may crash at exit by a double free, so the count of completed ranks decides.
    return len(set(re.findall(r"sys\[(\d+)\] finished", done.stdout))), done.stdout[-2000:] + done.stderr[-2000:]
