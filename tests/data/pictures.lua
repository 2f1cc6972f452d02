-- A classifier of images in .npy files, for data_test.py.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { x = "x.npy", y = "y.npy", own_model = false, inputs = 48, classes = 3, steps = 60, x_as = "",
                        order = "epochs", cp = 1, eval = 0 }

local function model(batch)
  local x = nn.unit("in", function() return nn.relu(nn.linear("in", batch.x, 16)) end)
  return nn.unit("out", function() return prun.losses.cross_entropy(nn.linear("out", x, arg.classes), batch.y) end)
end

local cp = arg.cp > 1 and { prun.context_parallel { axis = "cp" } } or {}

return prun.plan {
  mesh      = prun.mesh { dp = prun.rest, cp = arg.cp },
  model     = arg.own_model and model
    or prun.models.mlp { inputs = arg.inputs, outputs = arg.classes, width = 16, loss = "cross_entropy" },
  data      = prun.data.arrays { x = arg.x, y = arg.y, batch = 12, scale = 1 / 255, order = arg.order,
                                 x_as = arg.x_as ~= "" and arg.x_as or nil },
  strategy  = { prun.ddp { axis = "dp" }, table.unpack(cp) },
  eval      = arg.eval > 0 and prun.eval { every = arg.eval, hold_out = 0.2 } or nil,
  optimizer = prun.adamw { lr = 1e-2 },
  steps     = arg.steps,
}
