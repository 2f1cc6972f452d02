-- Placements of a unit's parts: its flat vector of parameters, single layers, the activations between its ops,
-- and the optimizer state. They are written in the usual form: "S(dim)" is sharded along a dim, on a mesh
-- axis.

local intents = require "prun.intents"
local schema = require "prun.schema"

local placements = {}

local shards = { { name = "placement", kind = "table", help = 'by mesh axis, such as { dp = "S(0)" }' } }

-- Calls each(axis, dim, given) for { tp = "S(1)" }.
local function each_shard(given, what, each)
  if next(given) == nil then host.fail(('%s: place takes an axis, such as { dp = "S(0)" }'):format(what)) end
  for axis, placement in pairs(given) do
    local dim = type(axis) == "string" and type(placement) == "string" and placement:match("^S%((%d)%)$")
    if not dim then
      host.fail(("placement '%s' of %s on axis '%s' is not known; \"S(0)\", sharded along dim 0, would be one"):format(
        tostring(placement), what, tostring(axis)))
    end
    each(axis, math.tointeger(tonumber(dim)), given)
  end
end

-- Returns an object with a method place.
local function placed(unit, kind, word, what, each, fields)
  local self = fields or {}
  self.kind_of = kind
  self.place = intents.method(unit, kind, word .. ":place", shards, function(this, given)
    each_shard(given, what, each)
    return this
  end)
  return schema.closed(word, self)
end

-- unit.params:flat():place { dp = "S(0)" }: one padded vector, a piece on each rank. Another :place { node = "S(0)" }
-- cuts each piece again. flat { least = bytes } omits smaller parameters, which remain whole on every rank.
function placements.params(result)
  local flat = intents.method(result, "target", "unit.params:flat", {
    options = { { name = "least", kind = "bytes", optional = true, least = 0, help = "smaller ones stay whole" } },
  }, function(_, options)
    if result.sharded then host.fail("the parameters are placed already: one flat vector a unit") end
    return placed(result, "flat", "unit.params:flat()", "a flat vector", function(axis, dim, given)
      if dim ~= 0 then
        host.fail(("placement 'S(%d)' of a flat vector on axis '%s': it has one dim, S(0)"):format(dim, axis))
      end
      if next(given, axis) or next(given) ~= axis then
        host.fail("a flat vector is cut by one axis after the other: place { ... }:place { ... }")
      end
      if result.sharded then
        for before in result.shard_axis:gmatch "[^,]+" do
          if before == axis then host.fail(("the parameters are placed on axis '%s' already"):format(axis)) end
        end
        result.shard_axis = result.shard_axis .. "," .. axis
        return
      end
      result.sharded, result.shard_axis, result.site = true, axis, host.site()
      result.shard_least = options.least
    end)
  end)
  return intents.target("params", result, { flat = flat })
end

-- unit.grads:accumulate(): each rank sums whole gradients over all microbatches before any reduction.
function placements.grads(result)
  return intents.target("grads", result, { accumulate = intents.method(result, "target", "unit.grads:accumulate", {},
    function(self)
      result.accumulate = true
      return self
    end) })
end

-- unit.optimizer:offload { ahead = 2, piece = "16 MiB" }: the unit's optimizer state (m and v, and the f32 parameters
-- of a bf16 plan) is stored in host memory and copied to the device for its update, in pieces.
local offload = {
  { name = "ahead", kind = "integer", default = 2, least = 0, most = 1000000,
    help = "pieces on their way besides the one updated" },
  { name = "piece", kind = "bytes", default = "16 MiB", least = 64, help = "of each of the optimizer's tensors" },
}
function placements.optimizer(result)
  return schema.closed("unit.optimizer", {
    kind_of = "optimizer_state",
    offload = intents.method(result, "optimizer_state", "unit.optimizer:offload", { options = offload },
      function(self, options)
        result.offload = { ahead = options.ahead, piece = options.piece, site = host.site() }
        return self
      end),
  })
end

-- unit.activations:place { tp = "S(1)" }: placement of the activations [batch, tokens, width] between a unit's ops,
-- unless a layer overrides it.
function placements.activations(result)
  return placed(result, "activations", "unit.activations", "activations", function(axis, dim)
    if dim ~= 1 then
      host.fail(("placement 'S(%d)' of activations on axis '%s': they can be sharded along tokens, S(1)"):format(
        dim, axis))
    end
    result.activations[#result.activations + 1] = { axis = axis, dim = dim, site = host.site() }
  end)
end

-- unit:find { "qkv", "up" }: the unit's layers of these names; layer:place { tp = "S(1)" } shards the weight along that
-- dim, and the bias with it if the outputs are split.
function placements.find(result, layers)
  return intents.method(result, "unit", "unit:find", {
    { name = "names", kind = "texts", help = 'of layers, such as { "qkv", "up" }' },
  }, function(_, names)
    local found = {}
    for _, name in ipairs(names) do
      if layers[name] then
        found[#found + 1] = placed(result, "layer", "layer", "layer '" .. name .. "'", function(axis, dim)
          result.layers[#result.layers + 1] = { layer = name, axis = axis, dim = dim, site = host.site() }
        end, { name = name })
      end
    end
    return found
  end)
end

return placements
