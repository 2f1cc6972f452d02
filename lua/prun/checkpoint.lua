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
  { name = "best", kind = "text", optional = true,
    help = "the metric of evaluations whose best checkpoint is kept besides the newest, such as \"eval_loss\"; the " ..
      "link `best` names it" },
  { name = "best_of", kind = "text", optional = true, choices = { "min", "max" },
    help = "which value of it is the best: by default the least; \"max\" for an accuracy" },
})

local checkpoint = schema.constructor("prun.checkpoint", entries, function(_, given)
  local site = host.site("user")
  return { kind_of = "checkpoint", options = schema.check("prun.checkpoint", entries, given, site), site = site }
end)

-- Returns the plan's record. `eval`: the plan's prun.eval, or nil; `metrics`: the names that its evaluations make.
function checkpoint.result(given, eval, metrics)
  local options, site = given.options, given.site
  local best, every = not host.shrink and options.best or nil, options.every  -- a proof or a generation has no eval
  if options.best_of and not options.best then
    host.fail("prun.checkpoint: 'best_of' is for a metric, and 'best' names none", host.site_of_word(site, "best_of"))
  end
  if best then
    local place = host.site_of_word(site, "best")
    if not eval then
      host.fail(("prun.checkpoint: best = \"%s\" needs evaluations: add eval = prun.eval { every = 100 }"):format(best),
        place)
    end
    local known = false
    for _, name in ipairs(metrics) do known = known or name == best end
    if not known then
      host.fail(("prun.checkpoint: no evaluation makes '%s'%s"):format(best, host.did_you_mean(best, metrics)), place)
    end
    every = every or eval.options.every
    if every % eval.options.every ~= 0 then
      host.fail(("prun.checkpoint: checkpoints every %d steps and evaluations every %d: the best checkpoint needs " ..
        "an evaluation at each, so let the first be a multiple of the second"):format(every, eval.options.every), place)
    end
  end
  return { every = every, keep = options.keep, replicate = options.replicate, memory_every = options.memory_every,
           best = best, largest = options.best_of == "max", site = site }
end

return checkpoint
