-- prun.checkpoint { every = 500, keep = 3 }: when a run writes checkpoints. --checkpoint DIR sets the folder. replicate
-- = 1 also keeps the newest commit in the memory of hosts, so that a restart needs no disk.

local schema = require "prun.schema"

local entries = schema.register("prun.checkpoint", {
  { name = "every", kind = "integer", optional = true, least = 1, most = schema.most_exact,
    help = "a checkpoint comes after every so many steps; by default at the end only (--checkpoint-every)" },
  { name = "keep", kind = "integer", optional = true, least = 1,
    help = "all but the newest so many are removed; by default none (--checkpoint-keep)" },
  { name = "replicate", kind = "integer", default = 0, least = 0, most = 1,
    help = "1: the newest commit in memory, too, of several nodes each part in two, for --max-restarts, --min-ranks" },
  { name = "memory_every", kind = "integer", optional = true, least = 1, most = schema.most_exact,
    help = "commits to memory between those to the disk, every so many steps; by default with those only" },
})

return schema.constructor("prun.checkpoint", entries, function(_, given)
  local site = host.site("user")
  return { kind_of = "checkpoint", options = schema.check("prun.checkpoint", entries, given, site), site = site }
end)
