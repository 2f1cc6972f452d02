-- Models of convolutions and pools over 24 numbers, (batch, width, layers).

local prun = require "prun"
local nn = prun.nn

local windows = {}

-- Images [3, 2, 4]: depthwise and dilated convolutions, pools, and both ways back to the larger size.
function windows.images(batch, width, layers)
  local channels = width // 4
  local x = nn.unit("embed", function()
    return nn.conv2d("in", batch.x:reshape { -1, 3, 2, 4 }, channels, 3, { padding = 1 })
  end)
  for i = 1, layers do
    x = nn.unit("layer" .. i, function()
      local y = nn.conv2d("wide", x, channels, { 1, 3 }, { padding = { 0, 2 }, dilation = { 1, 2 }, groups = 2 })
      y = nn.gelu(y)
      local small = nn.conv2d("depth", y, channels, 3, { padding = 1, groups = channels, bias = false })
      small = nn.maxpool2d(small, 2)
      local up = nn.conv_transpose2d("up", nn.tanh(small), channels, 2, { stride = 2 })
      return x + up + nn.upsample(nn.avgpool2d(y, { 2, 1 }, { stride = { 2, 2 } }), 2)
    end)
  end
  return nn.unit("head", function()
    local y = nn.conv2d("out", x, 3, 3, { padding = 1, stride = 1 })
    return prun.losses.mse(y:flatten(1), batch.y)
  end)
end

-- Sequences of two channels, with a stride and a padded mean.
function windows.sequences(batch, width, layers)
  local x = nn.unit("embed", function() return nn.conv1d("in", batch.x:reshape { -1, 2, 12 }, width // 4, 1) end)
  for i = 1, layers do
    x = nn.unit("layer" .. i, function()
      local y = nn.gelu(nn.conv1d("down", x, width, 4, { stride = 2, padding = 1 }))
      local mean = nn.avgpool1d(y, 3, { stride = 1, padding = 1, count_padding = false })
      y = mean + nn.maxpool1d(y, 3, { stride = 1, padding = 1 })
      return x + nn.conv_transpose1d("up", y, width // 4, 3, { stride = 2, padding = 1, output_padding = 1 })
    end)
  end
  return prun.losses.mse(nn.unit("head", function() return nn.conv1d("out", x, 2, 1):flatten(1) end), batch.y)
end

return windows
