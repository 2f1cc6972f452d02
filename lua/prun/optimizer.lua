-- An optimizer as stored in a plan: options, checked by a schema. The update itself is an op of the runtime.

local groups = require "prun.groups"
local schema = require "prun.schema"

local optimizer = {}

-- Returns the plan's record of an optimizer; `steps`: the plan's. A numeric learning rate is constant.
function optimizer.result(given, steps)
  local options, rate = given.options, given.options.lr
  local curve = type(rate) == "table" and rate.result(steps, given.site) or nil
  local result = { kind = given.op, curve = curve, site = given.site }
  for name, value in pairs(options) do
    if type(value) == "boolean" then value = value and 1 or 0 end
    result[name] = value
  end
  for name, value in pairs(given.numbers) do result[name] = value end
  if curve then result.lr = nil end
  result.groups, result.others = groups.result(given)
  for i, other in ipairs(result.others) do result.others[i] = optimizer.result(other, steps) end
  return result
end

optimizer.ema = { name = "ema", kind = "number", default = 0.0, least = 0, below = 1, instead = "; 0 keeps none",
  help = "decay of a running average of the weights, which checkpoints and prun.eval have; 0: none" }

-- Defines an optimizer. `spec`: name, entries, to which ema is added; optionally op, the runtime's op if its name
-- differs, numbers, constant attributes of the op, settle(options), which computes them, and check(options), which
-- returns a problem and the option that causes it.
return setmetatable(optimizer, {
  __call = function(_, spec)
    local word = "prun." .. spec.name
    table.insert(spec.entries, optimizer.ema)
    schema.register(word, spec.entries)
    return schema.constructor(word, spec.entries, function(_, given)
      local site = host.site("user")
      local options = schema.check(word, spec.entries, given, site)
      local problem, option
      if spec.check then problem, option = spec.check(options) end
      if problem then host.fail(("%s: %s"):format(word, problem), host.site_of_word(site, option)) end
      return { kind_of = "optimizer", name = spec.name, op = spec.op or spec.name, site = site, options = options,
               numbers = spec.settle and spec.settle(options) or spec.numbers or {} }
    end)
  end,
})
