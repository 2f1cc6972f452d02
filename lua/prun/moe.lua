-- nn.moe: a mixture of experts instead of an MLP. A router sends each token to its top `choices` experts; an expert is
-- a gelu MLP or, with `gated`, a SwiGLU; their results are summed, weighted by the router's softmax.
--
-- Surprising fact: without a capacity every expert has slots for all tokens, so no token is ever dropped.

local graph = require "prun.graph"
local schema = require "prun.schema"

local most = graph.most_elements
local options = {
  { name = "hidden", kind = "integer", optional = true, least = 1, most = most,
    help = "size inside an expert; default 4 · width" },
  { name = "experts", kind = "integer", default = 4, least = 1, most = most, help = "number of experts" },
  { name = "choices", kind = "integer", default = 2, least = 1, most = most, help = "experts that each token goes to" },
  { name = "capacity", kind = "number", default = math.huge, above = 0, infinite = true,
    instead = "; 1.25 is usual, and inf drops nothing",
    help = "room of an expert as a multiple of its even share of the choices; inf: enough for all" },
  { name = "aux", kind = "number", default = 0.01, least = 0,
    help = "weight of the layer's balancing loss; it adds a gradient, and the printed loss omits it" },
  { name = "loads", kind = "loads", optional = true,
    help = "a table of the model's in which layers add up their experts' loads, for prun.losses.balance; aux is 0" },
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
local function add_loads(loads, name, logits, counts, tokens, experts)
  local sums = graph.op("softmax_sums", { logits }, {}, name .. ".probabilities")
  if loads.experts and loads.experts ~= experts then
    host.fail(("nn.moe '%s': 'loads' has those of %d experts, and the layer has %d"):format(name, loads.experts,
      experts))
  end
  loads.counts = loads.counts and graph.op("add", { loads.counts, counts }, {}, name .. ".loads") or counts
  loads.sums = loads.sums and graph.op("add", { loads.sums, sums }, {}, name .. ".sums") or sums
  loads.tokens, loads.experts = (loads.tokens or 0) + tokens, experts
end

-- y [B, T, width] from x [B, T, width].
return schema.word("prun.nn.moe", {
  { name = "name", kind = "name", help = "of the layer; its weights are called after it" },
  { name = "x", kind = "tensor", help = "[samples, tokens, width]" },
  options = options,
}, function(name, x, opt)
  if #x.shape ~= 3 then
    host.fail(("nn.moe '%s': the input must be a tensor [samples, tokens, width]"):format(name))
  end
  if opt.choices > opt.experts then
    host.fail(("nn.moe '%s': each token goes to %d experts, and there %s %d"):format(
      name, opt.choices, opt.experts == 1 and "is" or "are", opt.experts),
      host.site_of_word(host.site("user"), "choices"))
  end
  local batch, tokens, width = x.shape[1], x.shape[2], x.shape[3]
  local experts, hidden, slots = opt.experts, opt.hidden or 4 * width, slots_of(opt, batch * tokens)
  local all_slots = experts * (slots == 0 and batch * tokens or slots)
  local product = { routed = math.min(1.0, opt.choices * batch * tokens / all_slots) }  -- share of slots with a token
  local init = opt.init or { "uniform", 1 / math.sqrt(width) }
  local down_init = opt.down_init or opt.init or { "uniform", 1 / math.sqrt(hidden) }

  local router = graph.parameter(name .. ".router.weight", { width, experts }, init)
  local gate = opt.gated and graph.parameter(name .. ".gate.weight", { experts, width, hidden }, init)
  local up = graph.parameter(name .. ".up.weight", { experts, width, hidden }, init)
  local down = graph.parameter(name .. ".down.weight", { experts, hidden, width }, down_init)

  local logits = graph.op("linear", { x, router }, {}, name .. ".router")
  local aux = opt.loads and 0.0 or opt.aux + 0.0
  local weights, places, counts = graph.op("route", { logits }, { k = opt.choices, capacity = slots, aux = aux },
                                           name .. ".route", { "slots", "counts" })
  if opt.loads then add_loads(opt.loads, name, logits, counts, batch * tokens, experts) end
  local sent = graph.op("dispatch", { x, places }, { experts = experts, capacity = slots }, name .. ".dispatch")
  local wide = graph.op("expert_linear", { sent, up }, product, name .. ".up")
  local inner
  if gate then
    inner = graph.op("silu_mul", { graph.op("expert_linear", { sent, gate }, product, name .. ".gate"), wide }, {},
                     name .. ".silu_mul")
  else
    inner = graph.op("gelu", { wide }, { approximate = "tanh" }, name .. ".gelu")
  end
  local result = graph.op("expert_linear", { inner, down }, product, name .. ".down")
  return (graph.op("combine", { result, places, weights }, { batch = batch, tokens = tokens }, name .. ".combine"))
end)
