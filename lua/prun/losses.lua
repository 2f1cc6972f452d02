-- prun.losses: what a model returns. Each is the mean over the global batch; the factor that makes it so is put in when
-- the plan is compiled, since a rank sees only its share of the batch.

local graph = require "prun.graph"
local namespace = require "prun.namespace"

local losses = {}

-- logits [.., vocab], targets [..] of token ids.
function losses.cross_entropy(logits, targets)
  return (graph.op("cross_entropy", { logits, targets }, {}, "loss", { "lse" }))
end
function losses.mse(y, target) return (graph.op("mse", { y, target }, {}, "loss")) end
function losses.mean_square(y) return (graph.op("mean_square", { y }, {}, "loss")) end
function losses.mean(y) return (graph.op("mean", { y }, {}, "loss")) end

return namespace("prun.losses", losses)
