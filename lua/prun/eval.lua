-- prun.eval { every = 50, batches = 4 }: the loss on held-out samples, after every 50th step. Without data of its own
-- it uses the end of the training data, which training then omits; every evaluation uses the same samples. batches =
-- "all" evaluates each sample of the set once, for any batch size.

local data = require "prun.data"
local schema = require "prun.schema"

local entries = schema.register("prun.eval", {
  { name = "every", kind = "integer", least = 1, most = schema.most_exact,
    help = "an evaluation comes after every so many steps" },
  { name = "batches", kind = "batches", default = 1, least = 1, most = 2147483647,
    help = "batches of an evaluation, each as large as a step's; \"all\": each sample of the set once" },
  { name = "hold_out", kind = "number", optional = true, above = 0, most = 0.9,
    help = "without data of its own: how much of the training's file is kept for evaluations, its end (default 0.05)" },
  { name = "ema", kind = "boolean", default = false,
    help = "of the running average of the weights that the optimizer keeps" },
  { name = "first", kind = "boolean", default = false, help = "also before the first step, recorded as step 0" },
  { name = "patience", kind = "integer", optional = true, least = 1, most = schema.most_exact,
    help = "the run ends after so many evaluations in a row that did not improve checkpoint's best, or eval_loss" },
  { name = "data", kind = "data", optional = true,
    help = "samples to evaluate on; by default the end of the training's data" },
})

local eval = schema.constructor("prun.eval", entries, function(_, given)
  local site = host.site("user")
  return { kind_of = "eval", options = schema.check("prun.eval", entries, given, site), site = site }
end)

-- An evaluation runs the training's program, so its samples must have the same inputs.
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

-- Returns the number of samples if the whole set is evaluated, else 0. The set is read in epoch order.
local function whole(given, held)
  if given.options.batches ~= "all" or host.shrink and host.shrink.tensor_ranks > 0 then return 0 end
  if held.count == 0 then
    host.fail(("prun.eval: prun.data.%s has no end, so batches = \"all\" cannot be: give a number"):format(held.kind),
      host.site_of_word(given.site, "batches"))
  end
  if held.capacity > 0 then
    host.fail("prun.eval: only ranks know how many streams packed documents fill, so batches = \"all\" cannot be: " ..
      "give a number", host.site_of_word(given.site, "batches"))
  end
  held.order = "epochs"
  return data.samples(held)
end

-- Returns the plan's record of the evaluation. `training`: the record of the data, which may lose its end.
function eval.result(given, plan, model, training)
  local source, share = given.options.data, given.options.hold_out
  if source and share then
    host.fail("prun.eval: 'hold_out' is a share of the training's data, and there is 'data' to evaluate on",
      host.site_of_word(given.site, "hold_out"))
  end
  local held
  if source then
    if source.kind == "feed" then
      host.fail("prun.eval: every evaluation reads the same samples, and a feed gives each once; give it files",
        source.site)
    end
    data.agree(source, model)
    check_inputs(source, plan.data)
    if source.options.batch ~= plan.data.options.batch then
      host.fail(("prun.eval: the data's batch is %d samples, that of the training %d; they must be equal"):format(
        source.options.batch, plan.data.options.batch), host.site_of_word(source.site, "batch"))
    end
    held = data.result(source)
  else
    held = data.hold_out(training, share or 0.05, plan.steps, given.site)
  end
  held.whole = whole(given, held)
  local batches = given.options.batches
  if given.options.ema and plan.optimizer.options.ema == 0 then
    host.fail(("prun.eval: ema = true evaluates a running average of the weights, and prun.%s keeps none: give it " ..
      "ema = 0.999"):format(plan.optimizer.name), host.site_of_word(given.site, "ema"))
  end
  return { every = given.options.every, ema = given.options.ema, first = given.options.first,
           patience = given.options.patience or 0, batches = batches == "all" and 1 or batches, data = held,
           site = given.site }
end

return eval
