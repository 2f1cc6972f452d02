-- mistake: missing all_reduce of norm gradients if tokens are split
-- happened: with sequence parallelism the gradient of the last layernorm covered only a rank's own
--   tokens and was not reduced over tp
-- report: https://github.com/NVIDIA/Megatron-LM/issues/1446
-- law: complete reductions
-- others: an SPMD type checker; a comparison of ranks' weights
-- ranks: 2
-- says: the gradients of 'norm' are never reduced over 'cp': each rank would train on its own share
--   of the tokens
local prun, museum = require "prun", require "museum"
local nn = prun.nn

local tokens = prun.strategy("tokens", { axis = "cp" }, function(unit, opt)
  unit:after("backward", function()
    if museum.wrong and unit.name == "norm" then return end
    prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg" })
  end)
end, { splits = "tokens" })

local function model(batch)
  local x = nn.unit("embed", function()
    return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, 32 }, { "normal", 0.02 }))
  end)
  x = nn.unit("norm", function() return nn.layernorm("ln", x) end)
  return nn.unit("head", function() return prun.losses.cross_entropy(nn.linear("logits", x, 256), batch.targets) end)
end

return museum.plan {
  mesh = prun.mesh { cp = 2 }, model = model, data = museum.text,
  strategy = { tokens {} }, -- here
}
