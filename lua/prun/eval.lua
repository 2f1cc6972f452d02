-- prun.eval { every = 50, batches = 4 }: the loss on samples that are not trained with, after every 50th step. Without
-- data of its own it takes the training's file, in another random order; every evaluation sees the same samples.

local data = require "prun.data"
local schema = require "prun.schema"

local eval = {}

local entries = schema.register("prun.eval", {
  { name = "every", kind = "integer", least = 1, most = schema.most_exact,
    help = "an evaluation comes after every so many steps" },
  { name = "batches", kind = "integer", default = 1, least = 1,
    help = "batches of an evaluation, each as large as a step's" },
  { name = "data", kind = "data", optional = true, help = "samples to evaluate on; by default the training's data" },
})

-- An evaluation runs the training's program, so its samples must look the same.
local function check_inputs(source, training)
  local ours, theirs = data.inputs(source, 1, "f32"), data.inputs(training, 1, "f32")
  local same = #ours == #theirs
  for i, input in ipairs(ours) do
    local other = theirs[i]
    same = same and input.name == other.name and input.dtype == other.dtype and
      table.concat(input.shape, ",") == table.concat(other.shape, ",")
  end
  if not same then
    host.fail(("prun.eval: prun.data.%s does not give what the model is trained with, prun.data.%s"):format(
      source.kind, training.kind), source.site)
  end
end

-- What the plan holds of it.
function eval.result(given, plan, model)
  local source = given.options.data
  if source then
    data.agree(source, model)
    check_inputs(source, plan.data)
    if source.options.batch ~= plan.data.options.batch then
      host.fail(("prun.eval: the data's batch is %d samples, that of the training %d; they must be equal"):format(
        source.options.batch, plan.data.options.batch), host.site_of_word(source.site, "batch"))
    end
  end
  return { every = given.options.every, batches = given.options.batches, data = data.result(source or plan.data),
           site = given.site }
end

return setmetatable(eval, {
  __index = { entries = entries },
  __call = host.word(function(_, given)
    local site = host.site("user")
    return { kind_of = "eval", options = schema.check("prun.eval", entries, given, site), site = site }
  end),
})
