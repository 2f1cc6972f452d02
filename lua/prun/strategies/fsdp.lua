-- Fully sharded data parallelism by its PyTorch name (Zhao et al. 2023, "PyTorch FSDP"): an alias of zero3.

return require "prun.strategies.zero3":renamed "fsdp"
