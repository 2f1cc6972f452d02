-- An evaluation on few samples, for evaluation_test.py; with lr 0 each sample has one loss.
local prun = require "prun"

local arg = prun.args { batch = 4, eval_batch = 0, batches = "2", context = 4, order = "epochs", eval_order = "epochs", held = 0.0,
                        strategy = "ddp", micro = 1, lr = 0.0, steps = 2, every = 1, kind = "tokens", dtype = "f32" }

local function source(path, order)
  return prun.data.tokens { path = path, batch = arg.batch, order = order }
end

local strategies = {
  ddp = { prun.ddp { axis = "dp" } },
  zero3 = { prun.zero3 { axis = "dp" } },
  tp = { prun.tensor_parallel { axis = "dp" } },
  cp = { prun.context_parallel { axis = "dp" } },
  pp = { prun.pipeline { axis = "dp" } },
}

local own = arg.kind == "random" and prun.data.random { batch = arg.batch, inputs = 1, outputs = 1 }
  or source("eval.bin", arg.eval_order)
local gpt = arg.kind ~= "random"

return prun.plan {
  mesh  = prun.mesh { dp = prun.world },
  model = gpt and prun.models.gpt { vocab = 50, layers = 2, width = 16, heads = 2, context = arg.context }
    or prun.models.mlp { inputs = 1, outputs = 1, layers = 1, loss = "mse" },
  data  = gpt and source("train.bin", arg.order) or prun.data.random { batch = arg.batch },
  eval  = prun.eval { every = arg.every, batches = math.tointeger(tonumber(arg.batches)) or arg.batches,
                      data = arg.held == 0 and own or nil, hold_out = arg.held > 0 and arg.held or nil },
  strategy  = strategies[arg.strategy],
  optimizer = prun.sgd { lr = arg.lr },
  micro     = arg.micro,
  steps     = arg.steps,
  dtype     = arg.dtype,
}
