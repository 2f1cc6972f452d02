-- prun.wsd: warm-up, constant, then linear to least over the last `decay` steps (Hu et al. 2024, "MiniCPM").

return require("prun.learning_rate").curve("wsd", { "lr", "warmup", "steps", "least", "zero_first",
  { name = "decay", kind = "integer", least = 1, most = 2 ^ 53 | 0, help = "steps of the decay, the last ones" } },
  function(path, opt) path:flat(opt.steps - opt.decay):linear(opt.least, opt.steps) end)
