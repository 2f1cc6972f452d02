-- prun check PLAN --nproc 2
local prun = require "prun"
local nn = prun.nn

-- Each microbatch runs the weight half of block0 before that of block1, which also reads block0's weight.
local early = prun.schedule("early", function(_, _, micro)
  for m = 0, micro - 1 do
    prun.forward(m, 0) prun.forward(m, 1)
    prun.backward_input(m, 1) prun.backward_input(m, 0)
    prun.backward_weight(m, 0) prun.backward_weight(m, 1)
  end
end, { chunks = 2 })

local lender = prun.model("lender", { inputs = { 8, "numbers in x" }, outputs = { 8, "numbers in y" } }, function(opt, batch)
  local lent
  local x = nn.unit("block0", function()
    lent = nn.parameter("lent", { opt.inputs, opt.outputs }, { "normal", 0.02 })
    return nn.linear("up", batch.x, opt.inputs)
  end)
  return nn.unit("block1", function()
    return prun.losses.mse(nn.linear("mix", x, opt.outputs, { weight = lent, bias = false }), batch.y)
  end)
end)

return prun.plan {
  mesh      = prun.mesh { pp = 1, dp = prun.rest },
  model     = lender {},
  data      = prun.data.random { batch = 4 },
  strategy  = { prun.pipeline { axis = "pp", schedule = early }, prun.ddp { axis = "dp" } },
  optimizer = prun.adamw { lr = 1e-3 },
  micro     = 2, steps = 2,
}
