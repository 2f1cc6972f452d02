"""The headline figures of the report, and their required values."""

# Host time of a replayed step: an upload, three event calls and a graph launch. The estimate is 25 to 40 µs, from a
# step with 5 copies and 6 event calls; no GPU has measured it. Without transport queues a step has one launch per
# region.
HOST_US = 50
IDLE, KERNELS, NCCL = 0.01, 1.05, 1.02
ALONE, HOST, GAPS = "GPT-2 124M in bf16", "host time of a replayed step", "idle GPU between steps"
TRAINING = "GPT-2 124M in bf16 against PyTorch with torch.compile"
GEMM, ATTENTION = "GEMMs of GPT-2 124M at 65,536 rows", "attention of GPT-2 124M at 65,536 rows"
OTHER_GEMM, OTHER_ATTENTION = "GEMMs of Llama", "attention of Llama"
COLLECTIVES = "nccl against nccl-tests"
BARS = {ALONE: "step, tokens/s and MFU, a table by op", TRAINING: "at least PyTorch's tokens/s", HOST: f"under {HOST_US} µs", GAPS: f"under {IDLE:.0%}",
        GEMM: f"within {KERNELS - 1:.0%} of cuBLASLt's best", ATTENTION: f"within {KERNELS - 1:.0%} of cuDNN's best",
        OTHER_GEMM: f"within {KERNELS - 1:.0%} of cuBLASLt's best", OTHER_ATTENTION: f"within {KERNELS - 1:.0%} of cuDNN's best",
        COLLECTIVES: f"within {NCCL - 1:.0%} of nccl-tests"}
