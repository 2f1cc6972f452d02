-- nn.layernorm and nn.rmsnorm: normalize the last dim, with a learned scale and shift, a learned scale, or neither.
--
-- Surprising fact: a layernorm without a shift is the rmsnorm of x minus its mean.

local arithmetic = require "prun.arithmetic"
local graph = require "prun.graph"
local schema = require "prun.schema"

local norms = {}

local ones, zeros = schema.convert("init", "ones"), schema.convert("init", "zeros")
local eps = { name = "eps", kind = "number", default = 1e-5, least = 0, help = "added to the variance" }
local eps_option = { name = "eps", kind = "number", optional = true, least = 0, help = "added to the variance" }
local affine = { name = "affine", kind = "boolean", default = true,
                 help = "learn the parameters of the norm; false: it has none, as elementwise_affine = False" }
local bias = { name = "bias", kind = "boolean", default = true, help = "learn a shift, too" }

-- Defines a norm. Its options may follow x directly: nn.layernorm("ln", x, { bias = false }).
local function word(called, options, fn)
  local checked = schema.word("prun.nn." .. called, {
    { name = "name", kind = "name", help = "of the layer; its weights are called after it" },
    { name = "x", kind = "tensor", help = "the tensor that it works on" }, eps, options = options,
    before = function() graph.here("nn." .. called) end,
  }, function(layer, x, added, opt) return fn(layer, x, opt.eps or added, opt) end)
  norms[called] = function(layer, x, added, opt, ...)
    if type(added) == "table" and opt == nil then added, opt = nil, added end
    return checked(layer, x, added, opt, ...)
  end
end

local function rms(layer, x, added, with_scale)
  if with_scale then
    local gamma = graph.parameter(layer .. ".weight", { graph.last_dim(x) }, ones)
    return (graph.op("rmsnorm", { x, gamma }, { eps = added }, layer, { "rrms" }))
  end
  return x * arithmetic.rsqrt(arithmetic.mean(x * x, -1, { keep = true }) + added)
end

word("rmsnorm", { eps_option, affine }, function(layer, x, added, opt) return rms(layer, x, added, opt.affine) end)

word("layernorm", { eps_option, bias, affine }, function(layer, x, added, opt)
  if not (opt.affine and opt.bias) then
    return rms(layer, x - arithmetic.mean(x, -1, { keep = true }), added, opt.affine)
  end
  local width = graph.last_dim(x)
  local gamma = graph.parameter(layer .. ".weight", { width }, ones)
  local beta = graph.parameter(layer .. ".bias", { width }, zeros)
  return (graph.op("layernorm", { x, gamma, beta }, { eps = added }, layer, { "mean", "rstd" }))
end)

return norms
