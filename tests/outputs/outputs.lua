-- A small gpt on any mesh, for outputs_test.py. Its learning rate is 0 after step `learns`, so that later evaluations
-- do not improve.

local prun = require "prun"

local arg = prun.args {
  steps = 8, learns = 4, tp = 1, pp = 1, micro = 1, zero3 = false, dtype = "f64", batches = 3, whole = false,
  first = false, patience = 0, best = "eval_loss", best_of = "", keep = 1, every = 2, evaluated = 2, vocab = 256,
  optimizer = "adamw", data = "text/sample.txt", own = false, eval = true,
  ema = 0.0, of_ema = false, offload = false, experts = false, ep = 1,
}

local nn = prun.nn
local function own_model(batch)
  local x = nn.unit("body", function() return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 16 })) end)
  return nn.unit("head", function()
    local few = prun.output("few", nn.linear("few", x, 3))
    return prun.losses.cross_entropy(prun.output("all", nn.linear("all", few, 256)), batch.targets)
  end)
end

local data = prun.data.bytes { path = arg.data, batch = 8, context = 12 }

local strategies = { arg.zero3 and prun.zero3 { axis = "dp", offload = arg.offload and "optimizer" or nil } or
  prun.ddp { axis = "dp" } }
if arg.tp > 1 then table.insert(strategies, 1, prun.tensor_parallel { axis = "tp" }) end
if arg.ep > 1 then strategies[#strategies + 1] = prun.expert_parallel { axis = "ep" } end
if arg.pp > 1 then strategies[#strategies + 1] = prun.pipeline { axis = "pp" } end

return prun.plan {
  mesh = prun.mesh { dp = prun.rest, ep = arg.ep, tp = arg.tp, pp = arg.pp },
  model = arg.own and own_model or arg.experts and
    prun.models.moe { vocab = arg.vocab, layers = 2, width = 16, heads = 2, context = 12, experts = 4 } or
    prun.models.gpt { vocab = arg.vocab, layers = 2, width = 16, heads = 2, context = 12 },
  data = data,
  strategy = strategies,
  micro = arg.micro,
  eval = arg.eval and prun.eval { every = arg.evaluated, batches = arg.whole and "all" or arg.batches,
    ema = arg.of_ema, first = arg.first, patience = arg.patience > 0 and arg.patience or nil } or nil,
  checkpoint = prun.checkpoint { best = arg.best ~= "" and arg.best or nil, keep = arg.keep,
    every = arg.every > 0 and arg.every or nil, best_of = arg.best_of ~= "" and arg.best_of or nil },
  optimizer = prun[arg.optimizer] { lr = function(step) return step < arg.learns and 0.01 or 0 end, ema = arg.ema },
  steps = arg.steps,
  dtype = arg.dtype,
}
