-- prun.step_decay: times `factor` after every `every` steps, counted from the first one (PyTorch's StepLR).

return require("prun.learning_rate").curve("step_decay", { "lr", "warmup", "steps", "zero_first",
  { name = "every", kind = "integer", least = 1, help = "steps between two decays" },
  { name = "factor", kind = "number", default = 0.1, least = 0, help = "of the rate at each decay" } },
  function(path, opt)
    for decay = opt.every, opt.steps - 1, opt.every do
      if decay >= path.at then path:flat(decay) end
      path:jump(path.value * opt.factor)
    end
  end)
