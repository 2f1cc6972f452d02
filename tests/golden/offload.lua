-- Host-resident optimizer state and f32 parameters of a bf16 plan: two units in two pieces each use two slots, which
-- separate streams load and store; the compute stream stores the last piece.
local prun = require "prun"
local nn = prun.nn

return prun.plan {
  mesh  = prun.mesh { dp = prun.world },
  model = function(batch)
    local x = nn.unit("layer0", function() return nn.relu(nn.linear("in", batch.x, 16)) end)
    return prun.losses.mse(nn.unit("out", function() return nn.linear("out", x, 8) end), batch.y)
  end,
  data      = prun.data.random { batch = 4, inputs = 8, outputs = 8 },
  strategy  = { prun.zero3 { axis = "dp", offload = "optimizer", offload_ahead = 1, offload_piece = "256 B" } },
  optimizer = prun.adamw { lr = 0.1 },
  dtype     = "bf16",
}
