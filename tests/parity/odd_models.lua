-- Rare but valid models for pipelines: units share weights, skip over stages or have no parameters. Each function takes
-- (batch, width, layers) and returns its loss.

local prun = require "prun"
local nn = prun.nn

local odd = {}

local function layer(i, x, width)
  return nn.unit("layer" .. i, function() return x + nn.gelu(nn.linear("linear", x, width)) end)
end

local function weight(width) return nn.parameter("w", { width, width }, { "normal", 0.2 }) end

-- A unit with a norm and small parameters, called again after each layer.
function odd.again(batch, width, layers)
  local function shared(x) return nn.gelu(nn.linear("s", nn.layernorm("norm", x), width)) end
  local x = nn.unit("shared", function() return shared(nn.linear("first", batch.x, width)) end)
  for i = 1, layers do
    x = layer(i, x, width)
    x = nn.again("shared", function() return shared(x) end)
  end
  return prun.losses.mse(x, batch.y)
end

-- The last unit uses only the weight of the first unit, which is called once more after it.
function odd.lent(batch, width, layers)
  local w
  local function first(x) return nn.gelu(nn.linear("in", x, width, { weight = w })) end
  local x = nn.unit("first", function()
    w = weight(width)
    return first(batch.x)
  end)
  for i = 1, layers do x = layer(i, x, width) end
  x = nn.unit("head", function() return nn.gelu(nn.linear("out", x, width, { weight = w })) end)
  x = nn.again("first", function() return first(x) end)
  return prun.losses.mse(x, batch.y)
end

-- A unit with a weight that it never reads; all layers read it.
function odd.table(batch, width, layers)
  local x, w = batch.x, nil
  nn.unit("table", function() w = weight(width) end)
  for i = 1, layers do
    x = nn.unit("layer" .. i, function()
      return x + nn.gelu(nn.linear("own", nn.linear("linear", x, width, { weight = w }), width))
    end)
  end
  return prun.losses.mse(x, batch.y)
end

-- The shape of a U-Net (Ronneberger et al. 2015): each layer's output is read again by its counterpart.
function odd.unet(batch, width, layers)
  local skips, x = {}, batch.x
  for i = 1, layers do
    x = layer(i, x, width)
    skips[i] = x
  end
  for i = layers, 1, -1 do
    x = nn.unit("up" .. i, function() return nn.gelu(nn.linear("linear", x + skips[i], width)) end)
  end
  return prun.losses.mse(x, batch.y)
end

-- Every layer reads the batch and normalizes it.
function odd.raw(batch, width, layers)
  local x = batch.x
  for i = 1, layers do
    x = nn.unit("layer" .. i, function()
      return nn.layernorm("norm", batch.x) + nn.gelu(nn.linear("linear", nn.rmsnorm("rms", x), width))
    end)
  end
  return prun.losses.mse(x, batch.y)
end

-- All units but the first have no parameters.
function odd.bare(batch, width, layers)
  local x = nn.unit("layer0", function() return nn.linear("linear", batch.x, width) end)
  for i = 1, layers do x = nn.unit("layer" .. i, function() return nn.gelu(x) end) end
  return prun.losses.mse(x, batch.y)
end

-- Norms after the residual adds, as the last op of each unit.
function odd.after(batch, width, layers)
  local x = batch.x
  for i = 1, layers do
    x = nn.unit("layer" .. i, function()
      return nn.layernorm("norm", x + nn.linear("linear", nn.gelu(nn.linear("up", x, width)), width))
    end)
  end
  return prun.losses.mse(x, batch.y)
end

-- Functions that combine elements of a row: softmax, cumulative sums, maxima and norms.
function odd.rows(batch, width, layers)
  local x = batch.x
  for i = 1, layers do
    x = nn.unit("layer" .. i, function()
      local y = nn.linear("linear", x, width)
      local share = nn.softmax(y) * nn.parameter("gain", { width }, { "normal", 1 })
      local sums = nn.cumsum(nn.log_softmax(y), -1) / (1000 + nn.abs(nn.max(y, -1, { keep = true })))
      return x + nn.where(nn.less(y, 0.1), share, nn.silu(y)) + sums - 0.01 * nn.norm(y, 1, { keep = true }) +
        0.01 * nn.norm(y, 1, { order = ({ 1, math.huge, 3, 1.5 })[i % 4 + 1], keep = true })
    end)
  end
  return prun.losses.mse(x, batch.y)
end

return odd
