-- A U-Net in a pipeline: activations skip several stages, from the first ones (down) to the last ones (up).
-- prun derives the transfers over each stage border from the uses; the plan does not declare them.
--
--   prun plans/atlas/unet.lua --nproc 4

local prun = require "prun"
local nn = prun.nn

local arg = prun.args {
  pp = { prun.world, "pipeline stages" },
  schedule = { "1f1b", "gpipe, 1f1b, interleaved, zb_h1 or zb_v" },
  depth = { 3, "levels down, and up again", least = 1 },
  width = 32, batch = 24, micro = 4, steps = 20, dtype = "f32",
}

-- Level i has half the width of the previous one; its up layer joins the output of its down layer.
local function unet(batch)
  local skips, x = {}, batch.x
  for i = 1, arg.depth do
    x = nn.unit("down" .. i, function() return nn.gelu(nn.linear("in", x, arg.width >> (i - 1))) end)
    skips[i] = x
  end
  x = nn.unit("bottom", function() return nn.gelu(nn.linear("in", x, arg.width >> (arg.depth - 1))) end)
  for i = arg.depth, 1, -1 do
    local skip = skips[i]
    x = nn.unit("up" .. i, function()
      local joined = nn.layernorm("ln", x + skip)
      return nn.gelu(nn.linear("out", joined, i > 1 and arg.width >> (i - 2) or arg.width))
    end)
  end
  return nn.unit("head", function() return prun.losses.mse(nn.linear("out", x, 8), batch.y) end)
end

return prun.plan {
  mesh      = prun.mesh { pp = arg.pp, dp = prun.rest },
  model     = unet,
  data      = prun.data.random { batch = arg.batch, inputs = 16, outputs = 8 },
  strategy  = { prun.pipeline { axis = "pp", schedule = arg.schedule, split = "flops" }, prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.1 },
  micro     = arg.micro,
  steps     = arg.steps,
  dtype     = arg.dtype,
}
