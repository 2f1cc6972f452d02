-- nn.groupnorm, nn.instancenorm and nn.batchnorm: normalize x [samples, channels, ...] as GroupNorm, InstanceNorm and
-- BatchNorm of torch.nn do: groups of channels of a sample, single channels of a sample, channels over all samples.
--
-- Surprising fact: they are no ops. Means and arithmetic compose them, which the compiler merges.

local arithmetic = require "prun.arithmetic"
local buffers = require "prun.buffers"
local graph = require "prun.graph"
local schema = require "prun.schema"
local views = require "prun.views"

local norms = {}

local ones, zeros = schema.convert("init", "ones"), schema.convert("init", "zeros")
local eps = { name = "eps", kind = "number", default = 1e-5, least = 0, help = "added to the variance" }
local x = { name = "x", kind = "tensor", help = "[samples, channels, ...]" }
local name = { name = "name", kind = "name", help = "of the layer; its weights are called after it" }

local function affine(default)
  return { name = "affine", kind = "boolean", default = default, help = "learn a scale and a shift of each channel" }
end

local function word(called, arguments, fn)
  arguments.before = function() graph.here("nn." .. called) end
  norms[called] = schema.word("prun.nn." .. called, arguments, fn)
end

-- Returns the shape of x; fails unless x has samples and channels.
local function channels_of(called, layer, input)
  local shape = input.shape
  if #shape < 2 then
    host.fail(("nn.%s '%s': x is [%s]; it should be [samples, channels, ...]"):format(called, layer,
      table.concat(shape, ", ")))
  end
  return shape
end

-- Returns the elements that a sample has of each channel.
local function elements_of_channel(shape)
  local count = 1
  for i = 3, #shape do count = count * shape[i] end
  return count
end

-- Returns x in the dtype of statistics: f32 if the plan computes in bf16.
local function wide(input, dtype)
  return dtype == "bf16" and graph.op("cast", { input }, { dtype = "f32" }) or input
end

-- Scales and shifts the channels, whose parameters get these dims; returns y with the shape and the dtype of x.
local function finished(layer, input, y, dims, with_affine)
  local shape, dtype = input.shape, input.dtype
  local function of_channels(suffix, init)
    return wide(views.reshape(graph.parameter(layer .. suffix, { shape[2] }, init), dims), dtype)
  end
  if with_affine then y = y * of_channels(".weight", ones) + of_channels(".bias", zeros) end
  shape[1] = -1
  y = views.reshape(y, shape)
  return dtype == "bf16" and graph.op("cast", { y }, { dtype = "bf16" }) or y
end

-- Normalizes the channels of each group of a sample.
local function by_groups(called, layer, input, groups, opt)
  local shape = channels_of(called, layer, input)
  local channels = shape[2]
  if channels % groups ~= 0 then
    host.fail(("nn.%s '%s': %d channels do not divide into %d groups"):format(called, layer, channels, groups))
  end
  local size = channels // groups
  local y = wide(views.reshape(input, { -1, groups, size, elements_of_channel(shape) }), input.dtype)
  local function over_group(value) return arithmetic.mean(value, { 2, 3 }, { keep = true }) end
  local mean = over_group(y)
  local centred = y - mean
  local variance = over_group(centred * centred)
  y = (y - mean) * arithmetic.rsqrt(variance + opt.eps)  -- subtracts again, because that costs less than a tensor
  return finished(layer, input, y, { groups, size, 1 }, opt.affine)
end

word("groupnorm", {
  name, x, { name = "groups", kind = "integer", least = 1, most = graph.most_elements,
             help = "groups of neighbouring channels that share a mean and a variance" },
  options = { eps, affine(true) },
}, function(layer, input, groups, opt) return by_groups("groupnorm", layer, input, groups, opt) end)

word("instancenorm", { name, x, options = { eps, affine(false) } }, function(layer, input, opt)
  return by_groups("instancenorm", layer, input, channels_of("instancenorm", layer, input)[2], opt)
end)

-- Updates the running statistics by those of a batch, whose channels have `count` elements; returns them.
local function running(layer, channels, mean, variance, count, opt)
  local steps = buffers.buffer(layer .. ".num_batches_tracked", { 1 })
  local function statistic(suffix, init, value, factor)
    local buffer = buffers.buffer(layer .. suffix, { channels }, init)
    local difference = arithmetic.sub(views.reshape(value, { channels }) * factor, buffer)
    local share = opt.cumulative and difference / (steps + 1) or difference * opt.momentum
    buffers.update(buffer, arithmetic.sub(buffer, -share))
    return buffer
  end
  local of_mean = statistic(".running_mean", "zeros", mean, 1.0)
  local of_variance = statistic(".running_var", "ones", variance, count / (count - 1))
  buffers.update(steps, steps + 1)
  return of_mean, of_variance
end

word("batchnorm", { name, x, options = {
  eps, affine(true),
  { name = "momentum", kind = "number", default = 0.1, least = 0, most = 1,
    help = "share of a batch in the running statistics" },
  { name = "cumulative", kind = "boolean", default = false,
    help = "running statistics are means over all steps, as momentum = None" },
  { name = "track_running_stats", kind = "boolean", default = true,
    help = "keep running statistics, which evaluations use; false: they use those of their batch" },
} }, function(layer, input, opt)
  local shape = channels_of("batchnorm", layer, input)
  local channels = shape[2]
  local count = shape[1] * elements_of_channel(shape) * graph.current.sample_ranks
  if count < 2 then
    host.fail(("nn.batchnorm '%s': a microbatch has one element of each channel, whose variance is 0"):format(layer))
  end
  local y = wide(views.reshape(input, { -1, channels, elements_of_channel(shape) }), input.dtype)
  -- Without a dim of samples, so that it also repeats along the one sample of a rank.
  local function over_samples(value)
    return views.reshape(arithmetic.mean(value, { 0, 2 }, { samples = true }), { channels, 1 })
  end
  local mean = over_samples(y)
  local centred = y - mean
  local variance = over_samples(centred * centred)
  if opt.track_running_stats then
    local of_steps, variance_of_steps = running(layer, channels, mean, variance, count, opt)
    local function choose(of_batch, buffer)
      return buffers.by_phase { train = of_batch, eval = views.reshape(buffer, { channels, 1 }) }
    end
    mean, variance = choose(mean, of_steps), choose(variance, variance_of_steps)
  end
  y = (y - mean) * arithmetic.rsqrt(variance + opt.eps)
  return finished(layer, input, y, { channels, 1 }, opt.affine)
end)

return norms
