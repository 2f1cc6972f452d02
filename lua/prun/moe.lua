-- nn.moe: a mixture of experts instead of an MLP. A router sends each token to its top `choices` experts; an expert is
-- a gelu MLP or, with `gated`, a SwiGLU; their results are summed, weighted by the experts' scores.
--
-- Surprising fact: without a capacity every expert has slots for all tokens, so no token is ever dropped. `dropless`
-- drops none either, in rounds of the capacity. Round 0 is the last node, so that backward runs it first.

local arithmetic = require "prun.arithmetic"
local buffers = require "prun.buffers"
local graph = require "prun.graph"
local loss = require "prun.loss"
local nn = require "prun.nn"
local schema = require "prun.schema"

local most = graph.most_elements
local most_counted = 32  -- layers whose rounds are counted: a plan has at most 60 parts of numbers
local options = {
  { name = "hidden", kind = "integer", optional = true, least = 1, most = most,
    help = "size inside an expert; default 4 · width" },
  { name = "experts", kind = "integer", default = 4, least = 1, most = most, help = "number of experts" },
  { name = "choices", kind = "integer", default = 2, least = 1, most = most, help = "experts that each token goes to" },
  { name = "capacity", kind = "number", default = math.huge, above = 0, infinite = true,
    instead = "; 1.25 is usual, and inf drops nothing",
    help = "room of an expert as a multiple of its even share of the choices; inf: enough for all" },
  { name = "dropless", kind = "boolean", default = false,
    help = "send choices beyond an expert's room in further rounds, instead of dropping them" },
  { name = "aux", kind = "number", default = 0.01, least = 0,
    help = "weight of the layer's balancing loss; it adds a gradient, and the printed loss omits it" },
  { name = "z", kind = "number", default = 0, least = 0,
    help = "weight of the mean square of the router's log-sum-exp; a gradient alone, and not with loads" },
  { name = "bias_rate", kind = "number", default = 0, least = 0,
    help = "change per step of the experts' biases, which take part in the choice alone; 0: none, 0.001 is usual" },
  { name = "loads", kind = "loads", optional = true,
    help = "a table of the model's in which layers add up their experts' loads, for prun.losses.balance; aux is 0" },
  { name = "scores", kind = "text", default = "softmax", choices = { "softmax", "sigmoid" },
    help = "of the router's logits" },
  { name = "renormalise", kind = "boolean", default = true, help = "divide a token's weights by their sum" },
  { name = "scale", kind = "number", default = 1, above = 0, help = "factor of the weights" },
  { name = "groups", kind = "integer", default = 1, least = 1, most = 32,
    help = "groups of experts, of which a token's experts come from the best" },
  { name = "groups_kept", kind = "integer", optional = true, least = 1, most = 32,
    help = "number of groups that a token may use: those whose two best scores have the largest sum" },
  { name = "shared", kind = "integer", default = 0, least = 0, most = most,
    help = "size inside an expert that all tokens go to, whose result is added; 0: none" },
  { name = "documents", kind = "tensor", optional = true,
    help = "batch.documents, so that padding takes no slots and does not count in losses" },
  { name = "gated", kind = "boolean", default = false, help = "SwiGLU experts, with a third matrix" },
  { name = "init", kind = "init", optional = true, help = 'initial weights, such as { "normal", 0.02 }' },
  { name = "down_init", kind = "init", optional = true, help = "initial weights of the experts' second layer" },
}

-- Returns the slots per expert; 0 = one for each token, however many these are.
local function slots_of(opt, tokens)
  if opt.capacity * opt.choices >= opt.experts then return 0 end
  return math.min(tokens, math.ceil((opt.capacity + 0.0) * opt.choices * tokens / opt.experts))
end

-- Adds the layer's loads to those of the layers before.
local function add_loads(name, opt, logits, counts, tokens)
  local loads, experts, own = opt.loads, opt.experts, opt.documents ~= nil
  if opt.scores ~= "softmax" then
    host.fail(("nn.moe '%s': 'loads' are of softmax scores; with scores = \"%s\" use 'aux'"):format(name, opt.scores))
  end
  local sums = graph.op("softmax_sums", { logits, opt.documents }, { runs = own and 1 or nil },
                        name .. ".probabilities")
  for key, value in pairs { experts = experts, choices = opt.choices, own = own } do
    if loads[key] ~= nil and loads[key] ~= value then
      host.fail(key == "own" and ("nn.moe '%s': some layers with these 'loads' have 'documents'"):format(name) or
        ("nn.moe '%s': 'loads' has those of %d %s, and the layer has %d"):format(name, loads[key], key, value))
    end
    loads[key] = value
  end
  loads.counts = loads.counts and graph.op("add", { loads.counts, counts }, {}, name .. ".loads") or counts
  loads.sums = loads.sums and graph.op("add", { loads.sums, sums }, {}, name .. ".sums") or sums
  loads.tokens = (loads.tokens or 0) + tokens
end

-- Checks options whose mistakes the op would not name.
local function check(name, x, opt)
  local function fail(option, text, ...)
    host.fail(("nn.moe '%s': " .. text):format(name, ...), option and host.site_of_word(host.site("user"), option))
  end
  if #x.shape ~= 3 then fail(nil, "the input must be a tensor [samples, tokens, width]") end
  if opt.choices > opt.experts then
    fail("choices", "each token goes to %d experts, and there %s %d", opt.choices, opt.experts == 1 and "is" or "are",
      opt.experts)
  end
  if opt.dropless and opt.capacity == math.huge then
    fail("dropless", "the rounds need a capacity: 1.25 is usual; inf drops nothing in one round")
  end
  local groups, kept = opt.groups, opt.groups_kept or opt.groups
  if opt.loads and opt.z > 0 then fail("z", "'loads' are of a loss over all layers, and 'z' is a loss of the layer") end
  if opt.experts % groups ~= 0 then fail("groups", "%d experts do not divide into %d groups", opt.experts, groups) end
  if kept > groups then fail("groups_kept", "%d of %d groups are kept", kept, groups) end
  if opt.choices > kept * (opt.experts // groups) then
    fail("groups_kept", "each token goes to %d experts, and the kept groups have %d", opt.choices,
      kept * (opt.experts // groups))
  end
end

-- Returns the attributes of route that are not as usual.
local function routing(opt)
  return {
    scores = opt.scores ~= "softmax" and opt.scores or nil, renormalise = not opt.renormalise and 0 or nil,
    factor = opt.scale ~= 1 and opt.scale + 0.0 or nil, z = opt.z > 0 and opt.z + 0.0 or nil,
    groups = opt.groups > 1 and opt.groups or nil, groups_kept = opt.groups > 1 and opt.groups_kept or nil,
    runs = opt.documents and 1 or nil, k = opt.choices,
  }
end

-- Moves the bias of each expert toward the mean load, once a step: up if the expert got fewer choices than the mean,
-- down if it got more (Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts", 2024).
local function follow_loads(name, bias, counts, opt)
  local sum, done = buffers.buffer(name .. ".loads", bias.shape), buffers.buffer(name .. ".microbatches", { 1 })
  local all = graph.op("pointwise", { counts }, { program = "mul x0 1", over_tokens = 1 }, name .. ".all_loads")
  local loads, last = sum + all, arithmetic.greater_equal(done + 1, graph.current.microbatches)
  buffers.update(sum, loads * (1 - last))
  buffers.update(done, (done + 1) * (1 - last))
  local direction = arithmetic.sign(arithmetic.mean(loads, { 0 }, { keep = true }) - loads)
  buffers.update(bias, bias + direction * (last * opt.bias_rate))
end

-- Returns initial values as a plan writes them.
local function written(init)
  if init.kind == "zeros" or init.kind == "ones" then return init.kind end
  return init.kind and { init.kind, init.scale } or init
end

-- Returns the result of an expert that all tokens go to.
local function shared(name, x, opt, init)
  local function wide(layer) return nn.linear(name .. layer, x, opt.shared, { bias = false, init = written(init) }) end
  local inner = opt.gated and nn.silu_mul(wide ".gate", wide ".up") or nn.gelu(wide ".up")
  return nn.linear(name .. ".down", inner, graph.last_dim(x),
    { bias = false, init = written(opt.down_init or opt.init or { "uniform", 1 / math.sqrt(opt.shared) }) })
end

-- Adds the most rounds of an expert in the layer to the number expert_rounds, of which model_results makes the mean
-- over layers, microbatches and data ranks. ⌈n / slots⌉ is ⌊(n + slots - 1) / slots⌋, which a cast to i32 rounds down.
local function count_rounds(name, filled, slots)
  local counted, wide = graph.current.rounds, graph.current.dtype == "f64" and "f64" or "f32"
  if #counted == most_counted then return end
  local function op(kind, input, attrs) return (graph.op(kind, { input }, attrs, name .. ".rounds")) end
  local loads = op("reduce_dims", op("cast", filled, { dtype = wide }), { op = "max", dims = { 0 }, of_rank = 1 })
  local rounds = op("pointwise", loads,  -- context parallelism divides the slots
                    { program = ("add x0 %d; div r0 %d"):format(slots - 1, slots), slots = slots })
  rounds = op("cast", op("cast", rounds, { dtype = "i32" }), { dtype = wide })
  counted[#counted + 1] = loss.of(op("mean", rounds, {}))
end

-- Returns the share of slots with a token; of a dropless mixture, in round 0.
local function routed_share(opt, tokens, slots)
  return math.min(1.0, opt.choices * tokens / (opt.experts * (slots == 0 and tokens or slots)))
end

-- Returns the sum over the experts of a round, added to that of the rounds before; without `round`, over all choices.
local function round_of_experts(name, work, round, sum)
  local experts, filled = work.experts, work.filled
  local product = { round = round, routed = (round or 0) > 0 and 0.0 or work.routed }  -- later rounds are rare
  local sent = graph.op("dispatch", { work.x, work.places },
                        { experts = experts, capacity = work.slots, round = round }, name .. ".dispatch")
  local wide = graph.op("expert_linear", { sent, work.up, filled }, product, name .. ".up")
  local turn = work.gate and graph.op("expert_linear", { sent, work.gate, filled }, product, name .. ".gate")
  local inner
  if round then
    inner = graph.op("expert_activation", { turn or wide, turn and wide or filled, turn and filled or nil },
                     { round = round }, name .. ".activation")
  elseif turn then
    inner = graph.op("silu_mul", { turn, wide }, {}, name .. ".silu_mul")
  else
    inner = graph.op("gelu", { wide }, { approximate = "tanh" }, name .. ".gelu")
  end
  local result = graph.op("expert_linear", { inner, work.down, filled }, product, name .. ".down")
  local batch, tokens = work.x.shape[1], work.x.shape[2]
  return graph.op("combine", { result, work.places, work.weights, sum },
                  { batch = batch, tokens = tokens, round = round }, name .. ".combine")
end

-- y [B, T, width] from x [B, T, width].
return schema.word("prun.nn.moe", {
  { name = "name", kind = "name", help = "of the layer; its weights are called after it" },
  { name = "x", kind = "tensor", help = "[samples, tokens, width]" },
  options = options,
}, function(name, x, opt)
  check(name, x, opt)
  local batch, tokens, width = x.shape[1], x.shape[2], x.shape[3]
  local experts, hidden, slots = opt.experts, opt.hidden or 4 * width, slots_of(opt, batch * tokens)
  local init = opt.init or { "uniform", 1 / math.sqrt(width) }
  local down_init = opt.down_init or opt.init or { "uniform", 1 / math.sqrt(hidden) }

  local router = graph.parameter(name .. ".router.weight", { width, experts }, init)
  local gate = opt.gated and graph.parameter(name .. ".gate.weight", { experts, width, hidden }, init)
  local up = graph.parameter(name .. ".up.weight", { experts, width, hidden }, init)
  local down = graph.parameter(name .. ".down.weight", { experts, hidden, width }, down_init)

  local logits = graph.op("linear", { x, router }, {}, name .. ".router")
  local attrs, inputs = routing(opt), { logits }
  attrs.capacity, attrs.aux = opt.dropless and 0 or slots, opt.loads and 0.0 or opt.aux + 0.0
  local bias = opt.bias_rate > 0 and buffers.buffer(name .. ".bias", { experts })
  if bias then inputs[2], attrs.biased = bias, 1 end
  inputs[#inputs + 1] = opt.documents
  local weights, places, counts, filled = graph.op("route", inputs, attrs, name .. ".route",
                                                   { "slots", "counts", "filled" })
  if bias then follow_loads(name, bias, counts, opt) end
  if opt.loads then add_loads(name, opt, logits, counts, batch * tokens) end
  local work = { x = x, places = places, weights = weights, filled = filled, gate = gate, up = up, down = down,
                 experts = experts, slots = slots, routed = routed_share(opt, batch * tokens, slots) }
  local y
  if opt.dropless and slots > 0 then
    count_rounds(name, filled, slots)
    for round = math.ceil(batch * tokens / slots) - 1, 0, -1 do
      y = round_of_experts(("%s.round%d"):format(name, round), work, round, y)
    end
  else
    y = round_of_experts(name, work)
  end
  return opt.shared > 0 and y + shared(name .. ".shared", x, opt, init) or y
end)
