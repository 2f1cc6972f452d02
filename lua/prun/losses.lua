-- prun.losses: the results of models. Each is the mean over the global batch; the compiler inserts the factor for that,
-- because a rank computes only its share of the batch.

local graph = require "prun.graph"
local namespace = require "prun.namespace"
local schema = require "prun.schema"

local losses = {}

local function word(name, arguments, fn)
  arguments.before = function() graph.here("prun.losses." .. name) end
  return schema.word("prun.losses." .. name, arguments, fn)
end

local function tensor(name, help) return { name = name, kind = "tensor", help = help } end
local y = tensor("y", "what the model computes")

-- logits [.., vocab], targets [..] of token ids.
losses.cross_entropy = word("cross_entropy", {
  tensor("logits", "[.., vocab]"), tensor("targets", "token ids, batch.targets"),
}, function(logits, targets) return (graph.op("cross_entropy", { logits, targets }, {}, "loss", { "lse" })) end)
losses.mse = word("mse", { y, tensor("target", "what it should be, batch.y") },
  function(result, target) return (graph.op("mse", { result, target }, {}, "loss")) end)
for _, op in ipairs { "mean_square", "mean" } do
  -- A model that selects its loss by name passes a target to all of them.
  losses[op] = word(op, { y, { name = "target", kind = "tensor", optional = true, help = "not looked at" } },
    function(result) return (graph.op(op, { result }, {}, "loss")) end)
end

return namespace("prun.losses", losses)
