-- Where a strategy places what a unit has: its flat vector of parameters, single layers, the activations between its
-- ops; and what the optimizer keeps of it. Placements are those of the field: "S(dim)" sharded along a dim, on a mesh
-- axis.

local intents = require "prun.intents"
local schema = require "prun.schema"

local placements = {}

-- Calls each(axis, dim) for { tp = "S(1)" }.
local function each_shard(given, what, each)
  if type(given) ~= "table" then host.fail('place takes a table, such as { dp = "S(0)" }') end
  for axis, placement in pairs(given) do
    local dim = type(placement) == "string" and placement:match("^S%((%d)%)$")
    if not dim then
      host.fail(("placement '%s' of %s on axis '%s' is not known; \"S(0)\", sharded along dim 0, would be one"):format(
        tostring(placement), what, tostring(axis)))
    end
    each(axis, math.tointeger(tonumber(dim)))
  end
end

-- unit.params:flat():place { dp = "S(0)" }: one padded vector, a piece on each rank. flat { least = bytes } leaves
-- smaller parameters out; they stay whole on every rank.
function placements.params(result)
  local params = intents.target "params"
  function params.flat(self, options)
    local least = options and options.least or 0
    return { place = function(_, given)
      each_shard(given, "a flat vector", function(axis, dim)
        if dim ~= 0 then
          host.fail(("placement 'S(%d)' of a flat vector on axis '%s': it has one dim, S(0)"):format(dim, axis))
        end
        if result.sharded then host.fail("the parameters are placed on one axis already") end
        result.sharded, result.shard_axis, result.site = true, axis, host.site()
        result.shard_least = least
      end)
      return self
    end }
  end
  return params
end

-- unit.grads:accumulate(): the gradients of all microbatches are summed whole on each rank before anything is reduced.
function placements.grads(result)
  local grads = intents.target "grads"
  function grads.accumulate(self)
    result.accumulate = true
    return self
  end
  return grads
end

-- unit.optimizer:offload { ahead = 2, piece = "16 MiB" }: what the optimizer keeps of the unit (m and v, and the f32
-- parameters of a bf16 plan) lives in the host's memory and comes to the device for its update, in pieces.
local offload = {
  { name = "ahead", kind = "integer", default = 2, least = 0, help = "pieces on their way besides the one updated" },
  { name = "piece", kind = "bytes", default = "16 MiB", least = 64, help = "of each of the optimizer's tensors" },
}
function placements.optimizer(result)
  return { kind_of = "optimizer_state", offload = function(self, given)
    local options = schema.check("unit.optimizer:offload", offload, given, host.site())
    result.offload = { ahead = options.ahead, piece = options.piece, site = host.site() }
    return self
  end }
end

-- unit.activations:place { tp = "S(1)" }: what flows between a unit's ops, [batch, tokens, width], where no layer says
-- otherwise.
function placements.activations(result)
  return { kind_of = "activations", place = function(self, given)
    each_shard(given, "activations", function(axis, dim)
      if dim ~= 1 then
        host.fail(("placement 'S(%d)' of activations on axis '%s': they can be sharded along tokens, S(1)"):format(
          dim, axis))
      end
      result.activations[#result.activations + 1] = { axis = axis, dim = dim, site = host.site() }
    end)
    return self
  end }
end

-- unit:find { "qkv", "up" }: the layers of these names that the unit has; layer:place { tp = "S(1)" } shards the weight
-- along that dim, and the bias with it when the outputs are split.
function placements.find(result, layers)
  return function(_, names)
    if type(names) == "string" then names = { names } end
    local found = {}
    for _, name in ipairs(names) do
      if layers[name] then
        found[#found + 1] = { kind_of = "layer", name = name, place = function(self, given)
          each_shard(given, "layer '" .. name .. "'", function(axis, dim)
            result.layers[#result.layers + 1] = { layer = name, axis = axis, dim = dim, site = host.site() }
          end)
          return self
        end }
      end
    end
    return found
  end
end

return placements
