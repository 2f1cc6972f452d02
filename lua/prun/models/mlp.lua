-- Linear layers with an activation after each (or after all but the last). Units: layer0 .. layer<layers-1>.

local prun = require "prun"
local nn = prun.nn

return prun.model("mlp", {
  inputs = { 256, "size of a sample", least = 1 },
  outputs = { 256, "size of a result", least = 1 },
  width = { 256, "size between the layers", least = 1 },
  layers = { 2, "number of linear layers", least = 1 },
  bias = { true, "add a bias in each layer" },
  activation = { "relu", "relu, gelu or none", choices = { "relu", "gelu", "none" } },
  activate_last = { false, "put an activation after the last layer too" },
  loss = { "mse", "against y, or of the result alone", choices = { "mse", "cross_entropy", "mean_square", "mean" } },
}, function(opt, batch)
  local x = batch.x
  for i = 1, opt.layers do
    x = nn.unit("layer" .. i - 1, function()
      local last = i == opt.layers
      local y = nn.linear("linear", x, last and opt.outputs or opt.width, { bias = opt.bias })
      if opt.activation == "none" or (last and not opt.activate_last) then return y end
      return nn[opt.activation](y)
    end)
  end
  if opt.loss == "mse" or opt.loss == "cross_entropy" then return prun.losses[opt.loss](x, batch.y) end
  return prun.losses[opt.loss](x)
end)
