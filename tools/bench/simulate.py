"""prun sim against published measurements: arXiv 2104.04473 Table 1 (Megatron-LM, A100) and arXiv 2205.05198 Table 5
(sequence parallelism and selective recomputation, A100), with nothing tuned per row.

    tools/bench/simulate.py [PRUN] [ROW ..]

Rows print the measured and the simulated figure and the error of the step time in percent. Exit code 1: the mean of all
rows is above 3.5 %, or one row is off by more than 8 %. Both systems ran with dropout, their default; table 1's
settings are in examples/academic_paper_scripts/sc21 of github.com/NVIDIA/Megatron-LM (CONFIG.sh, run_table_1.sh).
"""
import json
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CLUSTER = "plans/clusters/dgx-a100.yaml"
SEQUENCE, VOCABULARY = 2048, 51200
MEAN, MOST = 3.5, 8.0  # percent

# parameters (10^9), heads, width, layers, tp, pp, chunks, devices, microbatch, batch, measured TFLOP/s per device
MEGATRON = [
    (1.7, 24, 2304, 24, 1, 1, 1, 32, 16, 512, 137),
    (7.5, 32, 4096, 36, 4, 1, 1, 128, 16, 512, 142),
    (39.1, 64, 8192, 48, 8, 2, 1, 512, 4, 1536, 138),
    (145.6, 96, 12288, 80, 8, 8, 2, 1536, 2, 2304, 148),
    (1008.0, 160, 25600, 128, 8, 64, 1, 3072, 1, 3072, 163),
]
# name, width, layers, heads, pp, chunks, devices, batch, microbatch, measured seconds: selective, full
SELECTIVE = [
    ("22B", 6144, 48, 64, 1, 1, 8, 4, 4, 1.10, 1.42),
    ("175B", 12288, 96, 96, 8, 3, 64, 64, 1, 13.75, 18.13),
    ("530B", 20480, 105, 128, 35, 3, 280, 280, 1, 37.83, 49.05),
    ("1T", 25600, 128, 160, 64, 1, 512, 512, 1, 71.49, 94.42),
]


def rows():
    """Returns [(name, arguments, ranks, measured seconds)]."""
    for billions, heads, width, layers, tp, pp, chunks, devices, micro, batch, tflops in MEGATRON:
        flops = 96 * batch * SEQUENCE * layers * width**2 * (
            1 + SEQUENCE / (6 * width) + VOCABULARY / (16 * layers * width))
        yield (f"2104.04473 {billions:g}B", dict(dropout=0.1, heads=heads, width=width, layers=layers, tp=tp, pp=pp, chunks=chunks,
               micro_size=micro, batch=batch, recompute="full", overlap=int(pp == 1)), devices,
               flops / devices / (tflops * 1e12))
    for name, width, layers, heads, pp, chunks, devices, batch, micro, selective, full in SELECTIVE:
        common = dict(dropout=0.1, heads=heads, width=width, layers=layers, tp=8, pp=pp, chunks=chunks, micro_size=micro, batch=batch)
        yield f"2205.05198 {name} selective", dict(common, recompute="selective", sequence=1), devices, selective
        yield f"2205.05198 {name} full", dict(common, recompute="full"), devices, full


def simulate(prun, arguments, ranks):
    words = [str(prun), "sim", "plans/gpt.lua", "--cluster", CLUSTER, "--nproc", str(ranks), "--json"]
    for name, value in dict(arguments, context=SEQUENCE, vocab=VOCABULARY).items():
        words += ["--set", f"{name}={value}"]
    begun = time.monotonic()
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")
    return json.loads(done.stdout), time.monotonic() - begun


def main():
    prun = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/bin/prun"
    chosen = sys.argv[2:]
    errors = []
    print(f"{'row':<32}{'measured':>10}{'simulated':>11}{'error':>9}{'took':>9}")
    for name, arguments, ranks, measured in rows():
        if chosen and not any(word in name for word in chosen):
            continue
        result, took = simulate(prun, arguments, ranks)
        error = 100 * (result["step_s"] / measured - 1)
        errors.append((name.split()[0], abs(error)))
        print(f"{name:<32}{measured:>8.2f} s{result['step_s']:>9.2f} s{error:>+7.1f} %{took:>7.2f} s", flush=True)
    mean, largest = sum(error for _, error in errors) / len(errors), max(error for _, error in errors)
    for table in sorted({table for table, _ in errors}) + [""]:
        some = [error for of, error in errors if of.startswith(table)]
        print(f"{table or 'both':<12} mean {sum(some) / len(some):.1f} %, largest {max(some):.1f} %")
    return int(largest > MOST or (not chosen and mean > MEAN))


if __name__ == "__main__":
    sys.exit(main())
