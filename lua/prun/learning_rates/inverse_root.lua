-- prun.inverse_root: after warm-up, lr · √(warmup / step) (Vaswani et al. 2017; Raffel et al. 2020, "T5").

return require("prun.learning_rate").curve("inverse_root", { "lr", "warmup", "steps", "zero_first" },
  function(path, opt) path:inverse_root(math.max(opt.steps, path.at + 1)) end)
