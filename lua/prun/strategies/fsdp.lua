-- Fully sharded data parallelism by its PyTorch name (Zhao et al. 2023, "PyTorch FSDP"): zero3 under another name.

return require "prun.strategies.zero3":renamed "fsdp"
