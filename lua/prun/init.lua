-- The functions of the DSL: require "prun". Each is a module; a new feature is a new file and one line here.

local namespace = require "prun.namespace"
local record = require "prun.record"

local words = {
  -- plans and their parts
  plan = "prun.plan", eval = "prun.eval", checkpoint = "prun.checkpoint", args = "prun.args",
  shared_args = "prun.shared_args", mesh = "prun.mesh", program = "prun.program",
  model = "prun.model", nn = "prun.nn", losses = "prun.losses", metrics = "prun.metrics",
  output = "prun.output", strategy = "prun.strategy",
  models = namespace("prun.models", { gpt = "prun.models.gpt", mlp = "prun.models.mlp", moe = "prun.models.moe",
                                      llama = "prun.models.llama", mixtral = "prun.models.mixtral" }),
  data = namespace("prun.data", {
    bytes = "prun.data.bytes", tokens = "prun.data.tokens", random = "prun.data.random", index = "prun.data.index",
    arrays = "prun.data.arrays", feed = "prun.data.feed",
  }),
  init = namespace("prun.init", { from = "prun.initial.from" }),
  -- strategies
  ddp = "prun.strategies.ddp", zero1 = "prun.strategies.zero1", zero2 = "prun.strategies.zero2",
  zero3 = "prun.strategies.zero3", fsdp = "prun.strategies.fsdp", pipeline = "prun.strategies.pipeline",
  tensor_parallel = "prun.strategies.tensor_parallel", recompute = "prun.strategies.recompute",
  context_parallel = "prun.strategies.context_parallel", expert_parallel = "prun.strategies.expert_parallel",
  adam = "prun.optimizers.adam", optimizer = "prun.custom_optimizer", groups = "prun.groups",
  schedule = "prun.schedule", lora = "prun.lora",
  -- learning rates
  cosine = "prun.learning_rates.cosine", linear = "prun.learning_rates.linear",
  warmup = "prun.learning_rates.warmup", wsd = "prun.learning_rates.wsd",
  step_decay = "prun.learning_rates.step_decay", one_cycle = "prun.learning_rates.one_cycle",
  inverse_root = "prun.learning_rates.inverse_root",
  world = 1, rest = "rest",  -- world: read from the host
}

for _, name in ipairs(host.optimizers) do words[name] = "prun.optimizers." .. name end

-- Functions that record into the running hook or program.
for _, word in ipairs {
  "all_gather", "all_gather_v", "all_reduce", "all_to_all", "backward", "backward_input", "backward_weight", "barrier",
  "both", "broadcast", "ensure", "forward", "free", "full", "gather", "iota", "print", "random_int", "reduce",
  "reduce_scatter", "scatter", "tensor",
} do
  words[word] = record.word(word)
end

---@type prun
local prun = namespace("prun", words, { world = function() return host.world end })
return prun
