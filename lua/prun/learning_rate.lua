-- A learning rate that changes from step to step, as a value of an optimizer's `lr`. The formulas in
-- runtime/ir/learning_rate.h are those of PyTorch's LambdaLR with the usual get_cosine_schedule_with_warmup.

local schema = require "prun.schema"

-- Options that several of the functions share.
local entries_of = {
  lr = { name = "lr", kind = "number", least = 0, help = "the greatest rate, reached when the warm-up ends" },
  warmup = { name = "warmup", kind = "integer", default = 0, least = 0, most = schema.most_exact,
             help = "steps in which it rises from 0; the first step has 0" },
  steps = { name = "steps", kind = "integer", optional = true, least = 1, most = schema.most_exact,
            help = "the step at which it has reached `least`; by default the plan's number of steps" },
  least = { name = "least", kind = "number", default = 0.0, least = 0, help = "the rate at the end and from there on" },
}

-- Defines a function such as prun.cosine with the options of these names.
return function(name, names)
  local what, entries = "prun." .. name, {}
  for i, option in ipairs(names) do entries[i] = entries_of[option] end
  schema.register(what, entries)
  return setmetatable({ entries = entries }, {
    __call = host.word(function(_, given)
      local site = host.site("user")
      local options = schema.check(what, entries, given, site)
      if options.least and options.least > options.lr then
        host.fail(("%s: 'least' must be at most lr, which is %s, not %s"):format(what, options.lr, options.least),
          host.site_of_word(site, "least"))
      end
      local function result(steps)
        steps = options.steps or steps
        if options.least and options.warmup > steps then
          host.fail(("%s: 'warmup' must be at most the %d step%s of the schedule, not %d"):format(what, steps,
            steps == 1 and "" or "s", options.warmup), host.site_of_word(site, "warmup"))
        end
        return { kind = name, warmup = options.warmup, steps = steps, least = options.least or 0.0 }
      end
      if options.steps then result() end
      return { kind_of = "rate", options = options, result = result }
    end),
  })
end
