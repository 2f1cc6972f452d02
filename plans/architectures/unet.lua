-- A U-Net (Ronneberger et al., 2015): a class for each pixel of images [3, 8, 8].
local prun = require "prun"
local nn = prun.nn

local arg = prun.args { width = 8, levels = 2, classes = 5, folder = ".", batch = 8, dtype = "f32" }

local function twice(x, channels)
  for i = 1, 2 do x = nn.relu(nn.conv2d("conv" .. i, x, channels, 3, { padding = 1 })) end
  return x
end

return prun.plan {
  mesh  = prun.mesh { dp = prun.world },
  model = function(batch)
    local x, levels = batch.x, {}
    for i = 1, arg.levels do
      levels[i] = nn.unit("down" .. i, function() return twice(x, arg.width << i - 1) end)
      x = nn.maxpool2d(levels[i], 2)
    end
    x = nn.unit("bottom", function() return twice(x, arg.width << arg.levels) end)
    for i = arg.levels, 1, -1 do
      x = nn.unit("up" .. i, function()
        local channels = arg.width << i - 1
        local up = nn.conv_transpose2d("up", x, channels, 2, { stride = 2 })
        return twice(nn.concat({ levels[i], up }, 1), channels)
      end)
    end
    return nn.unit("head", function()
      local logits = nn.conv2d("logits", x, arg.classes, 1):permute { 0, 2, 3, 1 }
      return prun.losses.cross_entropy(logits, batch.y)
    end)
  end,
  data = prun.data.arrays { x = arg.folder .. "/images.npy", y = arg.folder .. "/pixels.npy", batch = arg.batch },
  strategy = { prun.zero3 { axis = "dp" } }, optimizer = prun.sgd { lr = 0.1 }, steps = 10, dtype = arg.dtype,
}
