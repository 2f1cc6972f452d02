-- A vision transformer with a class token: images [3, 8, 8] in patches of 4 x 4, one label each.
local prun = require "prun"
local nn = prun.nn

local arg = prun.args { folder = ".", batch = 8, width = 32, heads = 4, layers = 2, classes = 5, dtype = "f32" }
local tokens = 5  -- the class token and 2 x 2 patches

local function block(x)
  local y = nn.layernorm("ln1", x)
  local q, k, v = nn.linear("q", y, arg.width), nn.linear("k", y, arg.width), nn.linear("v", y, arg.width)
  x = x + nn.linear("proj", nn.attention { q = q, k = k, v = v, heads = arg.heads, causal = false }, arg.width)
  return x + nn.linear("down", nn.gelu(nn.linear("up", nn.layernorm("ln2", x), 4 * arg.width), "none"), arg.width)
end

return prun.plan {
  mesh = prun.mesh { dp = prun.world },
  model = function(batch)
    local x = nn.unit("embed", function()
      local patches = batch.x:reshape { -1, 3, 2, 4, 2, 4 }:permute { 0, 2, 4, 1, 3, 5 }:reshape { -1, 4, 48 }
      patches = nn.linear("patch", patches, arg.width)
      local class = nn.parameter("class", { arg.width }, { "normal", 0.02 })
      class = nn.slice(patches, 1, 0, 1) * 0 + class  -- one for each sample
      return nn.concat({ class, patches }, 1) + nn.parameter("position", { tokens, arg.width }, { "normal", 0.02 })
    end)
    for i = 0, arg.layers - 1 do x = nn.unit("block" .. i, function() return block(x) end) end
    return nn.unit("head", function()
      local class = nn.layernorm("ln", nn.slice(x, 1, 0, 1)):flatten(1)
      return prun.losses.cross_entropy(nn.linear("logits", class, arg.classes), batch.y)
    end)
  end,
  data = prun.data.arrays { x = arg.folder .. "/images.npy", y = arg.folder .. "/classes.npy", batch = arg.batch },
  strategy = { prun.zero3 { axis = "dp" } }, optimizer = prun.sgd { lr = 0.1 }, steps = 10, dtype = arg.dtype,
}
