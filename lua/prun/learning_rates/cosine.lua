-- prun.cosine: after warm-up, half a cosine period from lr to least (Loshchilov and Hutter 2017, "SGDR").

return require("prun.learning_rate").curve("cosine", { "lr", "warmup", "steps", "least", "zero_first" },
  function(path, opt) path:cosine(opt.least, math.max(opt.steps, path.at + 1)) end)
