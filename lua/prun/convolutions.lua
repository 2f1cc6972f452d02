-- Convolutions, pools and nearest-neighbour upsampling of images [samples, channels, height, width], and in one
-- dimension [samples, channels, length]. Weights have PyTorch's layouts, so that its checkpoints fit.
--
-- Sizes such as a kernel are one number or one for each dim: 3 or { 3, 5 }.

local graph = require "prun.graph"
local schema = require "prun.schema"
local views = require "prun.views"

local convolutions = {}

local function word(called, arguments, fn)
  local shown = "nn." .. called
  arguments.before = function() graph.here(shown) end
  convolutions[called] = schema.word("prun.nn." .. called, arguments, fn)
end

local most_window = 1048576
local zeros, one, none = schema.convert("init", "zeros"), { 1 }, { 0 }
local x = { name = "x", kind = "tensor", help = "[samples, channels, height, width], in one dimension [.., length]" }
local name = { name = "name", kind = "name", help = "of the layer; its weights are called after it" }
local out = { name = "out", kind = "integer", least = 1, most = graph.most_elements, help = "channels of the result" }

local function sizes(called, help, least, more)
  local entry = { name = called, kind = "dims", least = least, most = most_window, help = help }
  for key, value in pairs(more or {}) do entry[key] = value end
  return entry
end
local kernel = sizes("kernel", "size of the kernel, such as 3 or { 3, 5 }", 1)
local padding = sizes("padding", "zeros added at both ends of each dim", 0, { default = none })
local dilation = sizes("dilation", "distance of the kernel's elements", 1, { default = one })

local function text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

-- Fails unless the tensor is an image with `rank` spatial dims.
local function require_image(what, input, rank)
  if #input.shape == rank + 2 then return end
  host.fail(("%s: '%s' is %s, should be [samples, channels, %s]"):format(what, input.name, text(input.shape),
    rank == 1 and "length" or "height, width"))
end

-- Returns one number for each of `rank` dims.
local function each(what, option, given, rank)
  if #given == rank then return given end
  if #given ~= 1 then
    host.fail(("%s: '%s' has %d numbers, should have one, or %d"):format(what, option, #given, rank))
  end
  local all = {}
  for i = 1, rank do all[i] = given[1] end
  return all
end

-- Returns the attributes of an op; numbers that are the default in each dim are absent.
local function windows(what, opt, rank, attrs)
  for option, usual in pairs { stride = 1, padding = 0, dilation = 1 } do
    local all = each(what, option, opt[option] or { usual }, rank)
    for _, number in ipairs(all) do
      if number ~= usual then attrs[option] = all end
    end
  end
  return attrs
end

local layer_options = {
  sizes("stride", "distance of the kernel's places", 1, { default = one }), padding, dilation,
  { name = "groups", kind = "integer", default = 1, least = 1, most = graph.most_elements,
    help = "channels of each of these groups read only their own; as many as channels: depthwise" },
  { name = "bias", kind = "boolean", default = true, help = "add a bias" },
  { name = "init", kind = "init", optional = true, help = 'initial weights, such as { "normal", 0.02 }' },
  { name = "bias_init", kind = "init", optional = true, help = 'initial bias, such as { "uniform", 0.1 }' },
  { name = "weight", kind = "tensor", optional = true, help = "a tensor to use as the weight instead" },
}

-- Returns the weight [first, second / groups, ..], the attributes and the site's name.
local function weighted(called, layer, input, first, second, taps, opt, rank)
  local what = ("nn.%s '%s'"):format(called, layer)
  require_image(what, input, rank)
  local channels = input.shape[2]
  if channels % opt.groups ~= 0 or first % opt.groups ~= 0 or second % opt.groups ~= 0 then
    host.fail(("%s: %d channels, and %d of the result, do not divide into %d groups"):format(what, channels,
      channels == first and second or first, opt.groups), host.site_of_word(host.site("user"), "groups"))
  end
  local shape, reads = { first, second // opt.groups }, second // opt.groups
  for i, size in ipairs(each(what, "kernel", taps, rank)) do
    shape[i + 2], reads = size, reads * size
  end
  if opt.weight and table.concat(opt.weight.shape, ",") ~= table.concat(shape, ",") then
    host.fail(("%s: the weight '%s' is %s, should be %s"):format(what, opt.weight.name, text(opt.weight.shape),
      text(shape)), host.site_of_word(host.site("user"), "weight"))
  end
  if opt.bias_init and not opt.bias then
    host.fail(("%s: 'bias_init' is of a bias, and the layer has none"):format(what),
      host.site_of_word(host.site("user"), "bias_init"))
  end
  -- The bound is that of torch.nn.Conv2d.
  local weight = opt.weight or graph.parameter(layer .. ".weight", shape,
    opt.init or { "uniform", 1 / math.sqrt(reads) })
  local attrs = windows(what, opt, rank, { groups = opt.groups > 1 and opt.groups or nil })
  return weight, attrs, what
end

local function bias_of(layer, opt, channels)
  return opt.bias and graph.parameter(layer .. ".bias", { channels }, opt.bias_init or zeros) or nil
end

-- y [samples, out, ..] of torch.nn.Conv2d: the weight is [out, channels / groups, ..].
for rank, called in ipairs { "conv1d", "conv2d" } do
  word(called, { name, x, out, kernel, options = layer_options }, function(layer, input, channels, taps, opt)
    local weight, attrs = weighted(called, layer, input, channels, input.shape[2] or 0, taps, opt, rank)
    return (graph.op("conv", { input, weight, bias_of(layer, opt, channels) }, attrs, layer))
  end)
end

local transpose_options = {
  sizes("output_padding", "added to one end of the result, which several sizes could have", 0, { default = none }),
}
for _, option in ipairs(layer_options) do transpose_options[#transpose_options + 1] = option end

-- y [samples, out, ..] of torch.nn.ConvTranspose2d: the weight is [channels, out / groups, ..].
for rank, called in ipairs { "conv_transpose1d", "conv_transpose2d" } do
  word(called, { name, x, out, kernel, options = transpose_options }, function(layer, input, channels, taps, opt)
    local weight, attrs, what = weighted(called, layer, input, input.shape[2] or 0, channels, taps, opt, rank)
    for _, more in ipairs(opt.output_padding) do
      if more > 0 then attrs.output_padding = each(what, "output_padding", opt.output_padding, rank) end
    end
    local y = graph.op("conv_transpose", { input, weight }, attrs, layer)
    local bias = bias_of(layer, opt, channels)
    return bias and y + views.reshape(bias, rank == 1 and { channels, 1 } or { channels, 1, 1 }) or y
  end)
end

local stride = sizes("stride", "distance of the windows; by default the kernel's size", 1, { optional = true })
local window = sizes("kernel", "size of a window, such as 2 or { 2, 3 }", 1)
local pools = {
  maxpool = { op = "max", options = { stride, padding, dilation } },
  avgpool = { op = "mean", options = { stride, padding,
    { name = "count_padding", kind = "boolean", default = true, help = "divide by the whole size at edges, too" },
  } },
}

-- nn.maxpool2d(x, 2), nn.avgpool1d(x, 3, { stride = 1, padding = 1 }): the maximum or mean of each window.
for begin, pool in pairs(pools) do
  for rank = 1, 2 do
    local called = begin .. rank .. "d"
    word(called, { x, window, options = pool.options }, function(input, taps, opt)
      local what = "nn." .. called
      require_image(what, input, rank)
      local all = each(what, "kernel", taps, rank)
      local attrs = { op = pool.op, kernel = all, count_padding = opt.count_padding == false and 0 or nil }
      return (graph.op("pooling", { input }, windows(what, { stride = opt.stride or all, padding = opt.padding,
        dilation = opt.dilation }, rank, attrs), called))
    end)
  end
end

-- Repeats each element `factor` times along each spatial dim.
word("upsample", { x, sizes("factor", "of each spatial dim, such as 2 or { 2, 4 }", 1) }, function(input, factor)
  local shape, what = input.shape, "nn.upsample"
  local rank = math.max(1, math.min(2, #shape - 2))
  require_image(what, input, rank)
  local apart, repeated, result = { -1, shape[2] }, { -1, -1 }, { -1, shape[2] }
  for i, times in ipairs(each(what, "factor", factor, rank)) do
    for _, size in ipairs { shape[i + 2], 1 } do apart[#apart + 1] = size end
    for _, size in ipairs { -1, times } do repeated[#repeated + 1] = size end
    result[#result + 1] = shape[i + 2] * times
  end
  return views.reshape(views.expand(views.reshape(input, apart), repeated), result)
end)

return convolutions
