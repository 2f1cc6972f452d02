-- prun.model(name, defaults, build): a model with options, defined once and used in plans like prun.models.gpt.
-- build(opt, batch) records ops with prun.nn and returns the loss. A plan may also pass a plain function(batch).
--
-- The data source takes the options `context`, `vocab`, `inputs` and `outputs`, which it must match, from the
-- model.

local schema = require "prun.schema"

return schema.word("prun.model", {
  { name = "name", kind = "name", help = "of the model, in messages" },
  { name = "defaults", kind = "table", help = "its options, such as { width = 64 }" },
  { name = "build", kind = "fn", help = "function(opt, batch), which returns the loss" },
}, function(name, defaults, build)
  local what = "the model " .. name
  local entries = schema.register("prun.models." .. name, schema.from_defaults(what, defaults, host.site()))
  return schema.constructor(what, entries, function(_, given)
    local site = host.site("user")
    local options = schema.check(what, entries, given, site)
    return { kind_of = "model", name = name, options = options, site = site,
             build = host.word(function(batch) return build(options, batch) end, site) }
  end)
end)
