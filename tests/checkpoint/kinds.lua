-- A model whose state is stored in many ways: tied between stages, offloaded, next to bf16 parameters, by each
-- optimizer, and separately by each rank.
local prun = require "prun"
local axes = { ddp = "dp", zero3 = "dp", pp = "pp", tp = "tp", drift = "dp" }
local arg = prun.args {
  strategy = { "none", "what spreads it", choices = { "none", "ddp", "zero3", "pp", "tp", "drift" } },
  model = { "gpt", "the model", choices = { "gpt", "llama" } },
  optimizer = { "adamw", "the optimizer", choices = { "adamw", "sgd", "lion", "adafactor" } },
  tied = false, dtype = "f32", offload = "", steps = 2,
  every = { 0, "steps between checkpoints; 0: the plan says nothing of them" }, keep = 0, cosine = false,
}
local drift = prun.strategy("drift", { axis = { "dp", "mesh axis" } }, function(unit, opt)
  unit:every(3, function() prun.all_reduce(unit.params, { axis = opt.axis, op = "avg" }) end)
end, { differs = "weights drift between averages" })
local strategies = {
  none = function() return {} end,
  ddp = function() return { prun.ddp { axis = "dp", offload = arg.offload } } end,
  zero3 = function() return { prun.zero3 { axis = "dp", offload = arg.offload } } end,
  pp = function() return { prun.pipeline { axis = "pp", schedule = "1f1b" } } end,
  drift = function() return { drift { axis = "dp" } } end,
  tp = function() return { prun.tensor_parallel { axis = "tp" } } end,
}
local optimizers = {
  adamw = function() return prun.adamw { lr = arg.cosine and prun.cosine { lr = 1e-3 } or 1e-3, clip = 1 } end,
  sgd = function() return prun.sgd { lr = 0.1, momentum = 0.9 } end,
  lion = function() return prun.lion { lr = 1e-4 } end,
  adafactor = function() return prun.adafactor { lr = 1e-3 } end,
}
local axis = axes[arg.strategy]
return prun.plan {
  mesh = axis and prun.mesh { [axis] = prun.world } or prun.mesh {},
  model = prun.models[arg.model] { vocab = 256, layers = 4, width = 32, heads = 4, context = 16, tied = arg.tied },
  data = prun.data.bytes { path = "text/sample.txt", batch = 8 },
  strategy = strategies[arg.strategy](), optimizer = optimizers[arg.optimizer](),
  micro = arg.strategy == "pp" and 4 or 1, dtype = arg.dtype, steps = arg.steps,
  checkpoint = arg.every > 0 and prun.checkpoint { every = arg.every, keep = arg.keep > 0 and arg.keep or nil } or nil,
}
