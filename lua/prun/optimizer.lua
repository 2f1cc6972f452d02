-- An optimizer as a plan holds it: options, checked by a schema. The update itself is an op of the runtime.

local schema = require "prun.schema"

return function(name, entries)
  schema.register("prun." .. name, entries)
  return setmetatable({ entries = entries }, {
    __call = host.word(function(_, given)
      local site = host.site("user")
      local options = schema.check("prun." .. name, entries, given, site)
      return { kind_of = "optimizer", name = name, options = options, site = site }
    end),
  })
end
