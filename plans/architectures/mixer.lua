-- An MLP-mixer (Tolstikhin et al., 2021): images [3, 8, 8] in patches of 4 x 4, five numbers each.
local prun = require "prun"
local nn = prun.nn

local arg = prun.args { width = 16, hidden = 12, layers = 2, folder = ".", batch = 8, dtype = "f32" }

local function mlp(name, x, hidden, out)
  return nn.linear(name .. "2", nn.gelu(nn.linear(name .. "1", x, hidden), "none"), out)
end

return prun.plan {
  mesh  = prun.mesh { dp = prun.world },
  model = function(batch)
    local patches = batch.x:reshape { -1, 3, 2, 4, 2, 4 }:permute { 0, 2, 4, 1, 3, 5 }:reshape { -1, 4, 48 }
    local x = nn.unit("embed", function() return nn.linear("patch", patches, arg.width) end)
    for i = 0, arg.layers - 1 do
      x = nn.unit("block" .. i, function()
        local y = x + mlp("token", nn.layernorm("ln1", x):transpose(1, 2), arg.hidden, 4):transpose(1, 2)
        return y + mlp("channel", nn.layernorm("ln2", y), 2 * arg.width, arg.width)
      end)
    end
    return nn.unit("head", function()
      return prun.losses.mse(nn.linear("out", nn.layernorm("ln", x):flatten(1), 5), batch.y)
    end)
  end,
  data = prun.data.arrays { x = arg.folder .. "/images.npy", y = arg.folder .. "/numbers.npy", batch = arg.batch },
  strategy = { prun.zero3 { axis = "dp" } }, optimizer = prun.sgd { lr = 0.05 }, steps = 10, dtype = arg.dtype,
}
