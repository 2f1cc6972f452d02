-- Writes stubs.lua, from which editors know prun's words: the options from the schemas, the other signatures from the
-- list below. tests/unit/script_test.cc compares; PRUN_UPDATE=1 rewrites.

require "prun"
local namespace = require "prun.namespace"
local schema = require "prun.schema"

-- The type of an option's value, as the Lua language server writes it.
local types = {
  integer = "integer", number = "number", text = "string", boolean = "boolean", bytes = "string|integer",
  numbers = "number[]", texts = "string|string[]", array = "prun.Strategy[]", any = "any", mesh = "prun.Mesh",
  data = "prun.Data", optimizer = "prun.Optimizer", rate = "number|prun.LearningRate", eval = "prun.Evaluation",
  model = "prun.Model|fun(batch: prun.Batch): prun.Tensor",
}

local results = {
  ["prun.plan"] = "prun.Plan",
  ["prun.eval"] = "prun.Evaluation", ["prun.cosine"] = "prun.LearningRate", ["prun.linear"] = "prun.LearningRate",
  ["prun.warmup"] = "prun.LearningRate",
}
for _, name in ipairs {
  "ddp", "zero1", "zero2", "zero3", "fsdp", "tensor_parallel", "pipeline", "context_parallel", "expert_parallel",
  "recompute",
} do
  results["prun." .. name] = "prun.Strategy"
end

for _, name in ipairs(host.optimizers) do results["prun." .. name] = "prun.Optimizer" end

local signatures = {
  prun = {
    world = "integer the number of ranks", rest = "string the size of the axis that takes the ranks left over",
    mesh = "fun(axes: table): prun.Mesh",
    args = "fun(defaults: table): table",
    shared_args = "fun(defaults?: table): table",
    program = "fun(fn: fun(r: prun.Rank), options?: prun.program.options): prun.Plan",
    model = "fun(name: string, defaults: table, build: fun(opt: table, batch: prun.Batch): prun.Tensor):" ..
      " fun(options: table): prun.Model",
    strategy = "fun(name: string, defaults: table, body: fun(unit: prun.Unit, opt: table), traits?: table):" ..
      " fun(options: table): prun.Strategy",
    schedule = "fun(name: string, order: fun(rank: integer, ranks: integer, micro: integer, chunks: integer)," ..
      " traits?: table): prun.Schedule",
    forward = "fun(microbatch: integer, chunk?: integer)",
    backward = "fun(microbatch: integer, chunk?: integer)",
    backward_input = "fun(microbatch: integer, chunk?: integer)",
    backward_weight = "fun(microbatch: integer, chunk?: integer)",
    models = "prun.models", data = "prun.data", nn = "prun.nn", losses = "prun.losses",
    all_gather = "fun(what: prun.Target|prun.Tensor, options?: table): prun.Handle|prun.Tensor",
    all_gather_v = "fun(x: prun.Tensor, n: prun.Tensor, options?: table): prun.Tensor, prun.Tensor",
    all_reduce = "fun(what: prun.Target|prun.Tensor, op: string|table, options?: table): prun.Tensor?",
    all_to_all = "fun(x: prun.Tensor, options?: table): prun.Tensor",
    barrier = "fun(options?: table)",
    broadcast = "fun(x: prun.Tensor, root?: integer, options?: table): prun.Tensor",
    ensure = "fun(handle: prun.Handle, gather: fun())",
    free = "fun(handle: prun.Handle, options?: table)",
    full = "fun(dims: integer|integer[], value: number, options?: table): prun.Tensor",
    gather = "fun(x: prun.Tensor, root?: integer, options?: table): prun.Tensor?",
    iota = "fun(n: integer|prun.Tensor, options?: table): prun.Tensor",
    print = "fun(...)",
    random_int = "fun(low: integer, high: integer): prun.Tensor",
    reduce = "fun(x: prun.Tensor, op?: string, root?: integer, options?: table): prun.Tensor",
    reduce_scatter = "fun(what: prun.Target|prun.Tensor, op: string|table, options?: table): prun.Tensor?",
    scatter = "fun(x: prun.Tensor, root?: integer, options?: table): prun.Tensor",
    tensor = "fun(values: number[], options?: table): prun.Tensor",
  },
  ["prun.nn"] = {
    unit = "fun(name: string, fn: fun(): any): any",
    again = "fun(name: string, fn: fun(): any): any",
    parameter = "fun(name: string, dims: integer[], init?: table): prun.Tensor",
    linear = "fun(name: string, x: prun.Tensor, out: integer, options?: prun.nn.linear.options): prun.Tensor",
    layernorm = "fun(name: string, x: prun.Tensor, eps?: number): prun.Tensor",
    embedding = "fun(tokens: prun.Tensor, table: prun.Tensor, positions?: prun.Tensor): prun.Tensor",
    moe = "fun(name: string, x: prun.Tensor, options?: prun.nn.moe.options): prun.Tensor",
    rmsnorm = "fun(name: string, x: prun.Tensor, eps?: number): prun.Tensor",
    attention = "fun(qkv: prun.Tensor, heads: integer, options?: prun.nn.attention.options): prun.Tensor",
    rotary = "fun(x: prun.Tensor, options: prun.nn.rotary.options): prun.Tensor",
    dropout = "fun(x: prun.Tensor, p: number): prun.Tensor",
    gelu = "fun(x: prun.Tensor, approximate?: string): prun.Tensor",
    silu_mul = "fun(gate: prun.Tensor, up: prun.Tensor): prun.Tensor",
    add = "fun(a: prun.Tensor, b: prun.Tensor): prun.Tensor",
    mul = "fun(a: prun.Tensor, b: prun.Tensor): prun.Tensor",
    scale = "fun(x: prun.Tensor, factor: number): prun.Tensor",
  },
  ["prun.losses"] = {
    cross_entropy = "fun(logits: prun.Tensor, targets: prun.Tensor): prun.Tensor",
    mse = "fun(y: prun.Tensor, target: prun.Tensor): prun.Tensor",
    mean_square = "fun(y: prun.Tensor): prun.Tensor",
    mean = "fun(y: prun.Tensor): prun.Tensor",
  },
  ["prun.models"] = {}, ["prun.data"] = {},
}

for _, name in ipairs(host.unary_ops) do signatures["prun.nn"][name] = "fun(x: prun.Tensor): prun.Tensor" end

local fixed = [[
---@meta
-- Generated by stub_writer.lua from the schemas of prun's words; nothing requires this file.

---@class prun.Plan
---@class prun.Mesh
---@class prun.Model
---@class prun.Data
---@class prun.Optimizer
---@class prun.LearningRate
---@class prun.Evaluation
---@class prun.Strategy
---@class prun.Schedule
---@class prun.Handle
---@class prun.Target
---@class prun.Tensor
---@field shape integer[]
---@field dtype string
---@operator add(prun.Tensor): prun.Tensor
---@operator mul(prun.Tensor|number): prun.Tensor

---@class prun.Batch
---@field tokens prun.Tensor
---@field targets prun.Tensor
---@field x prun.Tensor
---@field y prun.Tensor

---@class prun.Rank
---@field rank integer
---@field world integer

---@class prun.OptimizerState
---@field offload fun(self: prun.OptimizerState, options?: { ahead?: integer, piece?: string|integer })

---@class prun.Unit
---@field name string
---@field params prun.Target
---@field grads prun.Target
---@field grad_shard prun.Target
---@field activations prun.Target
---@field optimizer prun.OptimizerState
---@field last any
---@field find fun(self: prun.Unit, names: string|string[]): prun.Target[]
---@field recompute fun(self: prun.Unit)
---@field every fun(self: prun.Unit, steps: integer, hook: fun())
---@field before fun(self: prun.Unit, phase: "forward"|"backward", hook: fun())
---@field after fun(self: prun.Unit, phase: "forward"|"backward", hook: fun())
]]

-- "prun.data.bytes" -> "prun.data", "bytes".
local function split(word) return word:match("^(.*)%.([^.]+)$") end

local family_results = { ["prun.models"] = "prun.Model", ["prun.data"] = "prun.Data" }

-- The options of all words, as classes; adds the signatures of the words that take nothing else.
local function option_classes(lines)
  for word, entries in pairs(schema.registered) do
    lines[#lines + 1] = ("---@class %s.options"):format(word)
    for _, entry in ipairs(entries) do
      local optional = (entry.optional or entry.default ~= nil) and "?" or ""
      local shown = entry.default ~= nil and entry.kind ~= "array"
      lines[#lines + 1] = ("---@field %s%s %s %s%s"):format(entry.name, optional, types[entry.kind], entry.help,
        shown and (" (default %s)"):format(schema.show(entry.default)) or "")
    end
    lines[#lines + 1] = ""
    local family, name = split(word)
    if signatures[family] and not signatures[family][name] then
      signatures[family][name] = ("fun(options: %s.options): %s"):format(word, results[word] or family_results[family])
    end
  end
end

return function()
  local lines = { fixed }
  for _, family in pairs(namespace.known) do
    for _, name in ipairs(family.names) do local _ = family.words[name] end  -- loads its module
  end
  option_classes(lines)
  for name, family in pairs(namespace.known) do
    lines[#lines + 1] = ("---@class %s"):format(name)
    for _, word in ipairs(family.names) do
      local signature = signatures[name][word]
      if not signature then error(("stub_writer.lua has no signature of %s.%s"):format(name, word), 0) end
      lines[#lines + 1] = ("---@field %s %s"):format(word, signature)
    end
    lines[#lines + 1] = ""
  end
  return table.concat(lines, "\n")
end
