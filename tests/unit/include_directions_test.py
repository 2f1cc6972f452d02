"""Checks the allowed directions of includes: base <- ir <- {compile, verify}; comm, device and exec use base, ir and
the public headers, exec also comm, data, device and kernels; kernels implement the interface of device and list the
devices; script uses base, ir and data; launch uses base and the public headers; watch reads the records of exec; job
uses all of these; predict uses job and simulate. Plugins may include only the public headers, which contain prun/sdk.
The runtime never names a plugin, and each wrapped library (Lua, oneDNN) is included in one folder only.
"""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RUNTIME = ROOT / "runtime"
PLUGINS = ROOT / "plugins"

PUBLIC = "prun"  # runtime/include/prun
MAY_INCLUDE = {
    "include": {PUBLIC},
    "base": {"base", PUBLIC},
    "ir": {"base", "ir", PUBLIC},
    "tokenizer": {"base", "tokenizer"},
    "compile": {"base", "ir", "compile"},
    "verify": {"base", "ir", "verify"},
    "checkpoint": {"base", "ir", "checkpoint", PUBLIC},
    "data": {"base", "ir", "data", PUBLIC},
    "script": {"base", "ir", "data", "script"},
    "launch": {"base", "launch", PUBLIC},
    "comm": {"base", "ir", "comm", PUBLIC},
    "device": {"base", "ir", "device", PUBLIC},
    "kernels": {"base", "ir", "device", "kernels", PUBLIC},
    "exec": {"base", "ir", "checkpoint", "comm", "data", "device", "exec", "kernels", PUBLIC},
    "simulate": {"base", "ir", "simulate"},
    "prove": {"base", "ir", "compile", "device", "exec", "kernels", "prove"},
    "watch": {"base", "ir", "checkpoint", "exec", "launch", "watch"},
    "job": {"base", "ir", "data", "script", "compile", "verify", "prove", "checkpoint", "comm", "device", "exec", "kernels", "launch", "watch", "job", PUBLIC},
    "predict": {"base", "ir", "script", "compile", "watch", "job", "simulate", "predict"},
}
ONLY_IN = {  # header of a library -> the only folders or files that may include it
    r"(lua|lualib|lauxlib)\.h": ["runtime/script"],
    r"dnnl.*\.h.*": ["runtime/kernels/cpu"],
    r"yaml-cpp/.*": ["runtime/simulate", "runtime/checkpoint/hf/description.cc"],
}
MEMORY_KINDS = {"cuda"}  # values of prun_mem_kind, which comm reads in manifests; a device has the same name
COMM_ROOMS = ["transport", "collectives", "hierarchical"]  # each may include itself and the ones before it
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
NAMESPACE = re.compile(r"^namespace (prun[\w:]*) \{", re.MULTILINE)
TYPE = re.compile(r"^(?:struct|class|enum class) (?:\w+\(\S*\) )?(\w+)[^;]*?\{", re.MULTILINE)
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def sources(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in (".h", ".cc", ".c") and p.is_file())


def includes(path):
    return INCLUDE.findall(path.read_text())


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def include_faults(part, path, found):
    """Returns messages about the includes of one file in runtime/<part>; found: [(quote, header)]."""
    faults = []
    for quote, header in found:
        folder = header.split("/")[0] if "/" in header else ""
        ours = quote == '"' or folder in MAY_INCLUDE or folder == PUBLIC
        if ".." in header.split("/") or (quote == '"' and not folder):
            faults.append(f'{path}: "{header}" should be named from runtime/')
        elif ours and folder not in MAY_INCLUDE[part]:
            faults.append(f"{path}: {part} may not include {folder} ({header})")
    return faults


def plugin_faults(path, found):
    faults = []
    for quote, header in found:
        if quote == '"' and header.startswith(PUBLIC + "/"):
            continue
        if header.startswith(tuple(f"{part}/" for part in MAY_INCLUDE)) or ".." in header.split("/"):
            faults.append(f"{path}: a plugin sees only prun/ headers and its own, not {header}")
    return faults


class IncludeDirections(unittest.TestCase):
    def test_parts_of_the_runtime(self):
        parts = sorted(p.name for p in RUNTIME.iterdir() if p.is_dir() and sources(p))
        self.assertEqual([p for p in parts if p not in MAY_INCLUDE], [], "a folder without a rule: add one above")
        faults, seen = [], 0
        for part in parts:
            for path in sources(RUNTIME / part):
                seen += 1
                faults += include_faults(part, path.relative_to(ROOT), includes(path))
        self.assertGreater(seen, 20)
        self.assertEqual(faults, [], "\n" + "\n".join(faults))

    def test_rooms_of_comm(self):
        for index, room in enumerate(COMM_ROOMS):
            folder = RUNTIME / "comm" / room
            self.assertTrue(sources(folder), f"runtime/comm/{room} is empty")
            for path in sources(folder):
                rooms = [header.split("/")[1] for _, header in includes(path) if header.startswith("comm/")]
                later = [r for r in rooms if r in COMM_ROOMS[index + 1 :]]
                self.assertEqual(later, [], f"{path.relative_to(ROOT)}: {room} may not include {later}")

    def test_type_names_are_unique(self):
        """If two types of one program share a name, the linker uses one's inline functions for both."""
        seen = {}
        for path in sources(RUNTIME):
            text = without_comments(path.read_text())
            for namespace in NAMESPACE.findall(text)[:1] if path.suffix == ".h" else []:
                for name in TYPE.findall(text):
                    first = seen.setdefault((namespace, name), path)
                    self.assertEqual(first, path, f"{namespace}::{name} is defined twice")
        self.assertGreater(len(seen), 100)

    def test_plugins_see_only_the_public_headers(self):
        faults = [f for path in sources(PLUGINS) for f in plugin_faults(path.relative_to(ROOT), includes(path))]
        self.assertEqual(faults, [], "\n" + "\n".join(faults))

    def test_the_runtime_names_no_plugin(self):
        names = {p.name for p in PLUGINS.iterdir() if p.is_dir()}
        for path in sources(RUNTIME):
            strings = set(STRING.findall(without_comments(path.read_text())))
            named = {s for s in strings for name in names if s in (name, f"prun_{name}", f"{name}.so")}
            if path.is_relative_to(RUNTIME / "comm"):
                named -= MEMORY_KINDS
            self.assertEqual(named, set(), f"{path.relative_to(ROOT)} names a plugin")

    def test_libraries_are_included_in_one_place(self):
        for path in sources(RUNTIME) + sources(PLUGINS) + sources(ROOT / "tools"):
            for _, header in includes(path):
                for pattern, places in ONLY_IN.items():
                    if re.fullmatch(pattern, header):
                        self.assertTrue(any(path.is_relative_to(ROOT / one) for one in places), f"{path}: {header} belongs in {places}")

    def test_the_rules_can_fail(self):
        self.assertEqual(include_faults("ir", "f", [('"', "base/error.h"), ("<", "vector"), ("<", "fmt/format.h")]), [])
        self.assertEqual(len(include_faults("ir", "f", [('"', "compile/compile.h")])), 1)
        self.assertEqual(len(include_faults("launch", "f", [("<", "ir/plan.h")])), 1)
        self.assertEqual(include_faults("comm", "f", [("<", "prun/sdk/reduce.h")]), [])
        self.assertEqual(len(include_faults("compile", "f", [("<", "prun/sdk/reduce.h")])), 1)
        self.assertEqual(len(include_faults("ir", "f", [('"', "types.h")])), 1)
        self.assertEqual(len(include_faults("base", "f", [('"', "base/../ir/types.h")])), 1)
        self.assertEqual(plugin_faults("f", [('"', "prun/transport.h"), ('"', "ring.h"), ("<", "sys/mman.h")]), [])
        self.assertEqual(len(plugin_faults("f", [('"', "base/error.h")])), 1)


if __name__ == "__main__":
    unittest.main()
