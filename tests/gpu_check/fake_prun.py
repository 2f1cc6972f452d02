"""Replaces prun in the tests of gpu-check: FAKE_* variables control its behaviour. Each call appends a line to
FAKE_CALLS.

FAKE_RUN, for plans on the device cuda: "" like the CPU; off: other losses; drift: other losses each time; nan; crash;
hang, which writes its process id next to FAKE_CALLS; cudnn, graphs, blocking: crash unless the run has cudnn=0, a trace
(which disables capture), CUDA_LAUNCH_BLOCKING=1.
"""
import json
import os
import sys
import time

words = sys.argv[1:]
mode = os.environ.get("FAKE_RUN", "")
call = 0  # counts the calls so far
if "FAKE_CALLS" in os.environ:
    with open(os.environ["FAKE_CALLS"], "a+") as calls:
        calls.write(" ".join(word[:200] for word in words) + "\n")
        calls.seek(0)
        call = len(calls.readlines())


def value(option, default=None):
    return words[words.index(option) + 1] if option in words else default


def argument(name, default):
    return {"name": name, "default": default, "kind": "integer", "help": ""}


def leave(status, text):
    print(text, file=sys.stderr)
    sys.exit(status)


def write_trace(path):
    """Writes three steps: two GEMMs and an attention each, and a wait, which is not an op."""
    events = [{"ph": "M", "pid": 0, "tid": 0, "name": "thread_name", "args": {"name": "compute"}}]
    for step in range(3):
        for name, dur, cat in (("linear block0", 2000, "compute"), ("linear block1", 2000, "compute"), ("attention block0", 1500, "compute"),
                               ("(wait for edge)", 9000, "wait")):
            events.append({"ph": "X", "pid": 0, "tid": 0, "ts": step * 10000, "dur": dur, "name": name, "cat": cat, "args": {"step": step}})
    with open(path, "w") as file:
        json.dump({"traceEvents": events}, file)


if words[0] == "plans":
    shared = [argument("width", 256), argument("batch", 64), argument("steps", 20)]
    print(json.dumps({"plans": [{"name": "single", "path": "single.lua", "error": "", "arguments": shared},
                      {"name": "ddp", "path": "ddp.lua", "error": "", "arguments": shared},
                      {"name": "huge", "path": "huge.lua", "error": "", "arguments": []},
                      {"name": "broken", "path": "broken.lua", "error": "syntax", "arguments": []}]}))
elif words[0] == "check":
    ranks = int(value("--nproc"))
    sys.exit(0 if (words[1], ranks) in (("single.lua", 1), ("ddp.lua", 1), ("ddp.lua", 2), ("ddp.lua", 4)) else 3)
elif words[0] == "doctor" and os.environ.get("FAKE_DRIVER") == "none":
    leave(2, "prun: --device cuda: no NVIDIA driver")
elif words[0] == "doctor":
    print(json.dumps({"devices": [{"name": "cuda", "devices": [{"peak_flops_bf16": 1e15}]}]}) if "--json" in words else "cuda:0 NVIDIA Fake 1\nwell")
elif words[0] == "sim":
    ideal = "ideal" in value("--cluster")
    print(json.dumps({"step_s": 0.004 if ideal else 0.008, "classes": [{"op_s": {"linear": 0.002 if ideal else 0.005, "attention": 0.001, "adamw": 0.0005}}]}))
elif words[0] == "generate":
    print(f"{value('--tokens')} tokens, 250.0 a second", file=sys.stderr)
elif words[0] == "conform":
    item = words[2]
    if os.environ.get("FAKE_CONFORM") == "many" and "share=1" not in value("--transport-options", ""):
        print(json.dumps({"item": item, "result": "failed", "text": "4 local ranks and 2 CUDA devices: every rank needs one of its own", "case": ""}))
        sys.exit(1)
    if os.environ.get("FAKE_CONFORM") == item:
        print(json.dumps({"item": item, "result": "failed", "text": "the gate opened by itself", "case": "Streams.Wait"}))
        sys.exit(1)
    print(json.dumps({"item": item, "result": "ok", "text": "well", "case": ""}))
elif words[0] == "bench":
    for op in words[1].split(","):
        for size in value("--bytes").split(","):
            print(json.dumps({"op": op, "bytes": int(size) if size.isdigit() else 1, "time_us": 10.0}))
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
elif value("--transport") == "nccl" and "--ranks-per-device" in words and "share=1" not in value("--transport-options", ""):
    leave(2, "prun: --transport nccl: NCCL refuses ranks that share a device; shm and socket go through host memory")
elif "layers=400" in words:
    leave(3, "prun: cuda:0: its rank needs 3 TiB, 1 GiB are free; prun.zero3 divides")
elif "--check-finite" in words:
    leave(20, "prun: linear of block0 made a NaN")
elif "--checkpoint" in words:
    sys.exit(0)
else:
    on_device = value("--device") == "cuda"
    cured = {"cudnn": "cudnn=0" in value("--device-options", ""), "graphs": "--trace" in words,
             "blocking": os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"}.get(mode, mode != "crash")
    if on_device and not cured:
        leave(10, "prun: rank 0 was killed by SIGSEGV")
    if on_device and mode == "hang":
        with open(os.environ["FAKE_CALLS"] + ".hang", "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(600)
    if "--trace" in words:
        write_trace(value("--trace"))
    scale = {"off": 1.001, "drift": 1 + call * 1e-9}.get(mode, 1) if on_device else 1
    if "--metrics" in words:
        with open(value("--metrics"), "w") as metrics:
            for step in range(40):
                loss = None if on_device and mode == "nan" and step == 3 else 5.5 * scale / (step + 1)
                metrics.write(json.dumps({"step": step, "loss": loss, "time_s": 0.01, "host_us": 32.5, "idle": 0.004, "mfu": 0.4}) + "\n")
