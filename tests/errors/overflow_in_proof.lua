-- prun check PLAN --nproc 2 --prove
-- Values overflow on the ranks and on the one rank: the proof finds neither equality nor a difference.
local prun = require "prun"
local nn = prun.nn

return prun.plan {
  mesh = prun.mesh { dp = 2 },
  model = function(batch)
    local x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 4 }, { "normal", 0.5 }))
    end)
    for i = 0, 2 do
      x = nn.unit("block" .. i, function() return x + x * x * 1e30 end)
    end
    return nn.unit("head", function() return prun.losses.cross_entropy(nn.linear("out", x, 256), batch.targets) end)
  end,
  data = prun.data.bytes { path = "../../plans/text/sample.txt", batch = 4, context = 4 },
  strategy = { prun.ddp { axis = "dp" } },
  optimizer = prun.sgd { lr = 0.05 },
  steps = 3,
}
