-- prun.losses: the results of models. Each is a mean over the global batch; the compiler inserts the factor for that,
-- because a rank computes only its share of the batch. Losses are values: a + 0.5 * b (loss.lua).

local graph = require "prun.graph"
local loss = require "prun.loss"
local namespace = require "prun.namespace"
local parameter_names = require "prun.parameter_names"
local schema = require "prun.schema"
local shares = require "prun.shares"

local losses = {}

local function word(name, arguments, fn)
  arguments.before = function() graph.here("prun.losses." .. name) end
  return schema.word("prun.losses." .. name, arguments, fn)
end

local function tensor(name, help) return { name = name, kind = "tensor", help = help } end
local y = tensor("y", "what the model computes")
local logits = tensor("logits", "[.., vocab]")

-- logits [.., vocab], targets [..] of ids. The mean counts over the whole batch, whatever its ranks and microbatches:
-- sum of weight times loss / sum of weights. An ignored target weighs 0.
losses.cross_entropy = word("cross_entropy", {
  logits, tensor("targets", "ids, batch.targets or batch.y"),
  options = {
    { name = "ignore", kind = "integer", optional = true, signed = true,
      help = "a target that does not count; by default -100 where the data may hold it" },
    { name = "label_smoothing", kind = "number", default = 0.0, least = 0, most = 1,
      help = "share of the target that all classes get alike" },
    { name = "weights", kind = "tensor", optional = true, help = "a weight for each target, an input of the batch" },
  },
}, function(x, targets, opt)
  local inputs, attrs = { x, targets }, {}
  inputs[3] = shares.of(targets, opt.ignore, opt.weights)
  if opt.label_smoothing > 0 then attrs.label_smoothing = opt.label_smoothing + 0.0 end
  return loss.of((graph.op("cross_entropy", inputs, attrs, "loss", { "lse" })))
end)
losses.mse = word("mse", { y, tensor("target", "what it should be, batch.y") },
  function(result, target) return loss.of((graph.op("mse", { result, target }, {}, "loss"))) end)
for _, op in ipairs { "mean_square", "mean" } do
  -- A model that selects its loss by name passes a target to all of them.
  losses[op] = word(op, { y, { name = "target", kind = "tensor", optional = true, help = "not looked at" } },
    function(result) return loss.of((graph.op(op, { result }, {}, "loss"))) end)
end

-- Binary cross-entropy, like torch.nn.BCEWithLogitsLoss.
losses.bce = word("bce", { tensor("logits", "any shape"), tensor("target", "from 0 to 1, of the same shape") },
  function(x, target) return loss.of((graph.op("bce", { x, target }, {}, "bce"))) end)

-- KL(teacher ‖ model) of the softmaxes of logits / temperature, the mean over rows; no gradient reaches the teacher.
losses.kl = word("kl", {
  logits, tensor("teacher", "its logits, of the same shape"),
  options = {
    { name = "temperature", kind = "number", default = 1.0, above = 0, help = "divides both logits" },
  },
}, function(x, teacher, opt)
  return loss.of((graph.op("kl", { x, teacher }, { temperature = opt.temperature + 0.0 }, "kl")))
end)

-- The mean of the squares of the rows' log-sum-exp (PaLM); 1e-4 times it keeps logits near 0.
losses.z_loss = word("z_loss", { logits }, function(x)
  return loss.of((graph.op("mean_square", { (graph.op("logsumexp", { x }, {}, "lse")) }, {}, "z_loss")))
end)

-- The balancing loss of the layers of nn.moe that share `loads`, as transformers computes it for Mixtral: E · Σ f·p,
-- with f the choices and p the mean probability of an expert, each per token of a layer. A microbatch of all ranks has
-- one.
losses.balance = word("balance", { { name = "loads", kind = "loads", help = "the table that the layers filled" } },
  function(loads)
    if not loads.counts then host.fail "prun.losses.balance: no nn.moe has added to 'loads'" end
    local product = graph.op("mul", { loads.counts, loads.sums }, { over_tokens = 1 }, "balance.product")
    if not loads.own then
      return loss.of((graph.op("mean", { product }, {}, "balance"))) * (loads.experts / loads.tokens) ^ 2
    end
    -- The number of tokens that are no padding follows from the choices; a microbatch may have none.
    local choices = graph.op("reduce_dims", { loads.counts }, { op = "sum", dims = { 0 }, over_tokens = 1 },
                             "balance.choices")
    local program = "maximum x1 1; div x0 r0; div r1 r0"
    local share = graph.op("pointwise", { product, choices }, { program = program }, "balance.share")
    return loss.of((graph.op("mean", { share }, {}, "balance"))) * (loads.experts * loads.choices) ^ 2
  end)

-- Σ w² over the parameters that match, such as "*.weight".
losses.l2 = word("l2", { { name = "match", kind = "text", help = 'of parameters, such as "*.weight"' } },
  function(pattern)
    local compiled, written = parameter_names.compile(pattern)
    if not compiled then host.fail("prun.losses.l2: 'match' " .. written) end
    return loss.of { pattern = pattern, compiled = compiled, written = written, site = host.site("user") }
  end)

return namespace("prun.losses", losses)
