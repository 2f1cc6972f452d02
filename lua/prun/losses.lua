-- prun.losses: the results of models. Each is the mean over the global batch; the compiler inserts the factor for that,
-- because a rank computes only its share of the batch.

local graph = require "prun.graph"
local namespace = require "prun.namespace"
local schema = require "prun.schema"
local shares = require "prun.shares"

local losses = {}

local function word(name, arguments, fn)
  arguments.before = function() graph.here("prun.losses." .. name) end
  return schema.word("prun.losses." .. name, arguments, fn)
end

local function tensor(name, help) return { name = name, kind = "tensor", help = help } end
local y = tensor("y", "what the model computes")

-- logits [.., vocab], targets [..] of ids. The mean counts over the whole batch, whatever its ranks and microbatches:
-- sum of weight times loss / sum of weights. An ignored target weighs 0.
losses.cross_entropy = word("cross_entropy", {
  tensor("logits", "[.., vocab]"), tensor("targets", "ids, batch.targets or batch.y"),
  options = {
    { name = "ignore", kind = "integer", optional = true, signed = true,
      help = "a target that does not count; by default -100 where the data may hold it" },
    { name = "label_smoothing", kind = "number", default = 0.0, least = 0, most = 1,
      help = "share of the target that all classes get alike" },
    { name = "weights", kind = "tensor", optional = true, help = "a weight for each target, an input of the batch" },
  },
}, function(logits, targets, opt)
  local inputs, attrs = { logits, targets }, {}
  inputs[3] = shares.of(targets, opt.ignore, opt.weights)
  if opt.label_smoothing > 0 then attrs.label_smoothing = opt.label_smoothing + 0.0 end
  return (graph.op("cross_entropy", inputs, attrs, "loss", { "lse" }))
end)
losses.mse = word("mse", { y, tensor("target", "what it should be, batch.y") },
  function(result, target) return (graph.op("mse", { result, target }, {}, "loss")) end)
for _, op in ipairs { "mean_square", "mean" } do
  -- A model that selects its loss by name passes a target to all of them.
  losses[op] = word(op, { y, { name = "target", kind = "tensor", optional = true, help = "not looked at" } },
    function(result) return (graph.op(op, { result }, {}, "loss")) end)
end

return namespace("prun.losses", losses)
