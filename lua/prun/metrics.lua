-- prun.metrics: numbers that a model returns besides its loss: return loss, { accuracy = prun.metrics.accuracy(logits,
-- batch.targets) }. Evaluations report each as eval_NAME over all their batches; with metrics = "steps" of prun.plan
-- steps report them, too. A loss is a metric as well.

local graph = require "prun.graph"
local loss = require "prun.loss"
local namespace = require "prun.namespace"
local schema = require "prun.schema"

local metrics = {}

local function word(name, arguments, fn)
  arguments.before = function() graph.here("prun.metrics." .. name) end
  return schema.word("prun.metrics." .. name, arguments, fn)
end

-- The share of targets with the largest logit; ignored targets (-1) do not count.
metrics.accuracy = word("accuracy", {
  { name = "logits", kind = "tensor", help = "[.., classes]" },
  { name = "targets", kind = "tensor", help = "ids, batch.targets or batch.y" },
}, function(logits, targets)
  local right, counted = graph.op("accuracy", { logits, targets }, {}, "accuracy", { "counted" })
  return { kind_of = "metric", terms = { { of = right, factor = 1.0 } }, over = { { of = counted, factor = 1.0 } } }
end)

metrics.mean = word("mean", { { name = "x", kind = "tensor", help = "a tensor of the model" } },
  function(x) return loss.of((graph.op("mean", { x }, {}, "mean"))) end)

return namespace("prun.metrics", metrics)
