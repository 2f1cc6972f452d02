-- prun.checkpoint { every = 500, keep = 3 }: when a run keeps what it has trained. --checkpoint DIR says where.

local schema = require "prun.schema"

local entries = schema.register("prun.checkpoint", {
  { name = "every", kind = "integer", optional = true, least = 1, most = schema.most_exact,
    help = "a checkpoint comes after every so many steps; by default at the end only (--checkpoint-every)" },
  { name = "keep", kind = "integer", optional = true, least = 1,
    help = "all but the newest so many are removed; by default none (--checkpoint-keep)" },
})

return setmetatable({}, {
  __index = { entries = entries },
  __call = host.word(function(_, given)
    local site = host.site("user")
    return { kind_of = "checkpoint", options = schema.check("prun.checkpoint", entries, given, site), site = site }
  end),
})
