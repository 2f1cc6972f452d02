"""Plays prun for gpu_check_test.py: what it does follows from FAKE_* of the environment. Each call is a line of FAKE_CALLS.

FAKE_RUN, for plans on the device cuda: "" as on the CPU; off: other losses; drift: other losses each time; nan; crash; hang, which
writes its process id beside FAKE_CALLS.
"""
import json
import os
import sys
import time

words = sys.argv[1:]
mode = os.environ.get("FAKE_RUN", "")
if "FAKE_CALLS" in os.environ:
    with open(os.environ["FAKE_CALLS"], "a") as calls:
        calls.write(" ".join(words) + "\n")


def value(option, default=None):
    return words[words.index(option) + 1] if option in words else default


def argument(name, default):
    return {"name": name, "default": default, "kind": "integer", "help": ""}


def leave(status, text):
    print(text, file=sys.stderr)
    sys.exit(status)


if words[0] == "plans":
    shared = [argument("width", 256), argument("batch", 64), argument("steps", 20)]
    print(json.dumps({"plans": [{"name": "single", "path": "single.lua", "error": "", "arguments": shared},
                      {"name": "ddp", "path": "ddp.lua", "error": "", "arguments": shared},
                      {"name": "huge", "path": "huge.lua", "error": "", "arguments": []},
                      {"name": "broken", "path": "broken.lua", "error": "syntax", "arguments": []}]}))
elif words[0] == "check":
    ranks = int(value("--nproc"))
    sys.exit(0 if (words[1], ranks) in (("single.lua", 1), ("ddp.lua", 1), ("ddp.lua", 2), ("ddp.lua", 4)) else 3)
elif words[0] == "doctor":
    print(json.dumps({"devices": [{"name": "cuda", "devices": [{"peak_flops_bf16": 1e15}]}]}) if "--json" in words else "cuda:0 NVIDIA Fake 1\nwell")
elif words[0] == "bench":
    for size in value("--bytes").split(","):
        size = int(size) if size.isdigit() else 1
        print(json.dumps({"op": words[1], "bytes": size, "time_us": 10.0}))
elif value("--device", "cpu").startswith("cuda") and os.environ.get("CUDA_VISIBLE_DEVICES") == "":
    leave(2, "prun: --device cuda: CUDA_VISIBLE_DEVICES='' hides every GPU")
elif value("--device") == "cuda" and "--metrics" not in words and os.environ.get("FAKE_DRIVER") == "none":
    leave(2, "prun: --device cuda: no NVIDIA driver")
elif value("--device") == "coda":
    leave(2, "prun: no device 'coda' (did you mean 'cuda'?)")
elif value("--device") == "cuda:2":
    leave(2, "prun: there is no device cuda:2: here are cuda:0 to cuda:1")
elif value("--device") == "cuda" and int(value("--nproc", 1)) > 2 and "--ranks-per-device" not in words:
    leave(2, "prun: --nproc 3 on --device cuda:0 needs 3 devices. To share them: --ranks-per-device 2")
elif value("--transport") == "nccl" and "--ranks-per-device" in words:
    leave(2, "prun: --transport nccl: NCCL refuses ranks that share a device; shm and socket go through host memory")
elif "layers=400" in words:
    leave(3, "prun: cuda:0: its rank needs 3 TiB, 1 GiB are free; prun.zero3 divides")
elif "--check-finite" in words:
    leave(20, "prun: linear of block0 made a NaN")
else:
    on_device = value("--device") == "cuda"
    if on_device and mode == "crash":
        leave(10, "prun: rank 0 was killed by SIGSEGV")
    if on_device and mode == "hang":
        with open(os.environ["FAKE_CALLS"] + ".hang", "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(600)
    scale = 1.001 if on_device and mode == "off" else 1 + time.monotonic_ns() % 1000 * 1e-9 if on_device and mode == "drift" else 1
    with open(value("--metrics"), "w") as metrics:
        for step in range(40):
            loss = None if on_device and mode == "nan" and step == 3 else 5.5 * scale / (step + 1)
            metrics.write(json.dumps({"step": step, "loss": loss, "time_s": 0.01, "host_us": 12.5, "idle": 0.004}) + "\n")
