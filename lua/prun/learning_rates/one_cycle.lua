-- prun.one_cycle: a cosine up from lr / 25 to lr, then one down (Smith and Topin 2018; PyTorch's OneCycleLR).

return require("prun.learning_rate").curve("one_cycle", { "lr", "steps",
  { name = "rise", kind = "number", default = 0.3, above = 0, below = 1, help = "part of the steps in which it rises" },
  { name = "start", kind = "number", optional = true, least = 0,
    help = "the rate of the first step, by default lr / 25" },
  { name = "end_rate", kind = "number", optional = true, least = 0,
    help = "the rate of the last step, by default start / 10000" } },
  function(path, opt)
    local start = opt.start or opt.lr / 25
    local top = math.max(1, math.floor(opt.rise * opt.steps + 0.5) - 1)
    path:jump(start):cosine(opt.lr, top):cosine(opt.end_rate or start / 1e4, math.max(opt.steps - 1, top + 1))
  end)
