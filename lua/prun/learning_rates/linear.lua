-- prun.linear: after warm-up, linear from lr to least.

return require("prun.learning_rate").curve("linear", { "lr", "warmup", "steps", "least", "zero_first" },
  function(path, opt) path:linear(opt.least, math.max(opt.steps, path.at + 1)) end)
