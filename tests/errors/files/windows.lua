-- Mistakes with convolutions and pools: --set case=NAME. windows/commands.txt has prun's messages.
local prun = require "prun"
local nn = prun.nn
local arg = prun.args { case = "", micro = 1, axis = "dp" }

-- x [b, 4, 2, 3] of numbers.
local cases = {
  rank = function(x) return nn.conv2d("c", x:flatten(2), 8, 3) end,
  rank_of_one_dim = function(x) return nn.conv1d("c", x, 8, 3) end,
  kernel_too_large = function(x) return nn.conv2d("c", x, 8, 3) end,
  kernel_too_large_padded = function(x) return nn.conv2d("c", x, 8, { 2, 7 }, { padding = { 0, 1 } }) end,
  kernel_dilated = function(x) return nn.conv2d("c", x, 8, { 1, 2 }, { dilation = 3 }) end,
  kernel_zero = function(x) return nn.conv2d("c", x, 8, 0) end,
  kernel_of_three = function(x) return nn.conv2d("c", x, 8, { 1, 1, 1 }) end,
  kernel_huge = function(x) return nn.conv2d("c", x, 8, 1048577) end,
  groups = function(x) return nn.conv2d("c", x, 8, 1, { groups = 3 }) end,
  groups_of_the_result = function(x) return nn.conv2d("c", x, 6, 1, { groups = 4 }) end,
  stride_zero = function(x) return nn.conv2d("c", x, 8, 1, { stride = 0 }) end,
  padding_negative = function(x) return nn.conv2d("c", x, 8, 1, { padding = -1 }) end,
  ids = function(x) return nn.conv1d("c", nn.argmax(x, 1), 8, 1) end,
  option = function(x) return nn.conv2d("c", x, 8, 1, { strides = 2 }) end,
  bias_of_none = function(x) return nn.conv2d("c", x, 8, 1, { bias = false, bias_init = "zeros" }) end,
  weight = function(x) return nn.conv2d("c", x, 8, 1, { weight = nn.parameter("w", { 8, 4, 1 }) }) end,
  output_padding = function(x) return nn.conv_transpose2d("c", x, 8, 2, { stride = 2, output_padding = 2 }) end,
  transposed_to_nothing = function(x) return nn.conv_transpose2d("c", x, 8, 1, { padding = 1 }) end,
  pool_too_large = function(x) return nn.maxpool2d(x, 3) end,
  pool_padding = function(x) return nn.avgpool2d(x, { 2, 1 }, { padding = 1 }) end,
  upsample_vectors = function(x) return nn.upsample(x:flatten(1), 2) end,
  samples_as_channels = function(x) return nn.conv2d("c", x:transpose(0, 1), 8, 1):transpose(0, 1) end,
  weight_of_samples = function(x)
    return nn.conv2d("c", x:slice(1, 0, 1), 8, 1, { weight = x:reshape { 8, -1, 1, 1 }:slice(1, 0, 1) })
  end,
  channels_split = function(x) return nn.conv2d("c", x, 8, 1) end,
  tokens_split = function(x) return nn.conv2d("c", x, 8, 1) end,
}

local strategy = { prun.ddp { axis = "dp" } }
if arg.axis == "tp" then strategy = { prun.tensor_parallel { axis = "tp", column = { "c" }, row = {}, rows = {} } } end
if arg.axis == "cp" then strategy = { prun.context_parallel { axis = "cp" } } end

return prun.plan {
  mesh = prun.mesh { { arg.axis, prun.world } },
  model = function(batch)
    return nn.unit("net", function()
      if not cases[arg.case] then error("no case " .. arg.case) end
      return prun.losses.mean_square(cases[arg.case](batch.x:reshape { -1, 4, 2, 3 }):flatten(1))
    end)
  end,
  data = prun.data.random { batch = 8, inputs = 24, outputs = 5 },
  strategy = strategy, optimizer = prun.sgd { lr = 0.1 }, micro = arg.micro, steps = 1,
}
