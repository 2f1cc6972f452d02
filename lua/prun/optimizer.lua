-- An optimizer as stored in a plan: options, checked by a schema. The update itself is an op of the runtime.

local groups = require "prun.groups"
local schema = require "prun.schema"

local optimizer = {}

-- Returns the plan's record of an optimizer; `steps`: the plan's. A numeric learning rate is constant.
function optimizer.result(given, steps)
  local options, rate = given.options, given.options.lr
  local curve = type(rate) == "table" and rate.result(steps, given.site) or nil
  local result = { kind = given.name, curve = curve, site = given.site }
  for name, value in pairs(options) do result[name] = value end
  if curve then result.lr = nil end
  result.groups = groups.result(given)
  return result
end

return setmetatable(optimizer, {
  __call = function(_, name, entries)
    schema.register("prun." .. name, entries)
    return schema.constructor("prun." .. name, entries, function(_, given)
      local site = host.site("user")
      local options = schema.check("prun." .. name, entries, given, site)
      return { kind_of = "optimizer", name = name, options = options, site = site }
    end)
  end,
})
