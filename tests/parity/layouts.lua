-- A tiny model whose pipeline stages are listed: layout = "embed | block*3 | ... | head".

local prun = require "prun"

local arg = prun.args {
  layout = "embed | block*3 | ... | head", schedule = "1f1b", chunks = 1, micro = 4, transfer = "send",
  pp = 4, dp = 1, tp = 1, zero = 0, layers = 6, tied = false, model = "gpt",
  recompute = { -1, "the stage that is recomputed" },
}

-- Two inputs of an encoder and a decoder, which has its own stages: calls are in another order than stages.
local function two_streams(batch)
  local nn = prun.nn
  local function embedded(name)
    return nn.unit(name, function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 16 }, { "normal", 0.3 }))
    end)
  end
  local function layer(name, x) return nn.unit(name, function() return nn.tanh(nn.linear("fc", x, 16)) end) end
  local left, right = embedded "left", embedded "right"
  for i = 0, 1 do left = layer("encoder" .. i, left) end
  for i = 0, 1 do right = layer("decoder" .. i, i == 0 and right or right + left) end
  return nn.unit("head", function()
    return prun.losses.cross_entropy(nn.linear("logits", right, 256), batch.targets)
  end)
end

local zero = { [0] = prun.ddp, prun.zero1, prun.zero2, prun.zero3 }
local strategy = {
  prun.pipeline { axis = "pp", schedule = arg.schedule, layout = arg.layout, transfer = arg.transfer,
                  chunks = arg.chunks > 1 and arg.chunks or nil },
  prun.tensor_parallel { axis = "tp" }, zero[arg.zero] { axis = "dp" },
}
if arg.recompute >= 0 then strategy[#strategy + 1] = prun.recompute { stages = { arg.recompute } } end
local gpt = prun.models.gpt { vocab = 256, layers = arg.layers, width = 16, heads = 4, context = 16, tied = arg.tied }

return prun.plan {
  mesh = prun.mesh { pp = arg.pp, dp = arg.dp, tp = arg.tp }, model = arg.model == "gpt" and gpt or two_streams,
  data = prun.data.bytes { path = "text/sample.txt", batch = 16, context = arg.model ~= "gpt" and 16 or nil },
  strategy = strategy, optimizer = prun.adamw { lr = 1e-2, clip = 1.0 },
  micro = arg.micro, steps = 3, dtype = "f64",
}
