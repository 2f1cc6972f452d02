"""Shrinks a failing sequence: removes operations, then simplifies them, while it fails in the same way."""
from operations import PLAIN


def shrink(operations, fails, most=80):
    """Returns the smallest operations found. `fails` runs operations and returns whether they fail like the whole
    sequence. It is called at most `most` times.
    """
    runs = 0

    def still(candidate):
        nonlocal runs
        runs += 1
        return runs <= most and fails(candidate)

    at = len(operations)
    while at > 0:  # from the end: operations after the failure are removed at once
        at -= 1
        candidate = operations[:at] + operations[at + 1:]
        if candidate and still(candidate):
            operations = candidate
    for at in range(len(operations)):
        for simpler in simplified(operations[at]):
            candidate = operations[:at] + [simpler(operations[at])] + operations[at + 1:]
            operations = candidate if still(candidate) else operations
    return operations


def simplified(operation):
    """Yields functions that simplify an operation: a job's settings become the defaults, copies become whole."""
    for name, value in PLAIN.items():
        if operation.get(name, value) != value and name not in ("do", "to", "from"):
            yield lambda now, name=name: {each: now[each] for each in now if each != name}
    for part in ("one", "other"):
        if operation["do"] in ("pair", "beside"):
            for simpler in simplified({"do": "run", **operation[part]}):
                yield lambda now, part=part, simpler=simpler: {**now, part: simpler(now[part])}
    if operation.get("without"):
        yield lambda now: {**now, "without": now["without"][1:]}
