-- Writes stubs.lua and, for functions of models (prun.nn, prun.losses), model_stubs.lua. They describe prun's functions
-- to editors: options from the schemas, other signatures from the list below. tests/unit/script_test.cc compares;
-- PRUN_UPDATE=1 rewrites.

require "prun"
local namespace = require "prun.namespace"
local schema = require "prun.schema"
local tensor = require "prun.tensor"

-- The types of option values for the Lua language server; tables of ours are classes.
local types = {
  integer = "integer", number = "number", text = "string", name = "string", axis = "string", boolean = "boolean",
  switch = "boolean|string",
  bytes = "string|integer", numbers = "number[]", integers = "integer[]", texts = "string|string[]",
  paths = "string|string[]",
  dims = "integer|integer[]", init = "string|table", tensor = "prun.Tensor", tensors = "prun.Tensor[]",
  operand = "number|prun.Tensor",
  count = "integer|prun.Tensor",
  batches = "integer|string",
  fn = "fun(): any", table = "table", loads = "table",
  strategies = "prun.Strategy[]", mesh = "prun.Mesh", data = "prun.Data",
  optimizer = "prun.Optimizer",
  rate = "number|number[][]|prun.LearningRate|fun(step: integer): number", eval = "prun.Evaluation",
  checkpoint = "prun.Checkpoints", weights = "prun.Weights",
  lora = "prun.Lora",
  schedule = "string|prun.Schedule", model = "prun.Model|fun(batch: prun.Batch): prun.Loss, table?",
}

setmetatable(types, {
  __index = function(_, kind) error("stub_writer.lua has no type of the kind " .. tostring(kind), 0) end,
})

local results = {
  ["prun.plan"] = "prun.Plan",
  ["prun.eval"] = "prun.Evaluation", ["prun.checkpoint"] = "prun.Checkpoints",
  ["prun.init.from"] = "prun.Weights", ["prun.lora"] = "prun.Lora",
}
for _, name in ipairs { "cosine", "linear", "warmup", "wsd", "step_decay", "one_cycle", "inverse_root" } do
  results["prun." .. name] = "prun.LearningRate"
end
for _, name in ipairs {
  "ddp", "zero1", "zero2", "zero3", "fsdp", "tensor_parallel", "pipeline", "context_parallel", "expert_parallel",
  "recompute",
} do
  results["prun." .. name] = "prun.Strategy"
end

results["prun.adam"] = "prun.Optimizer"  -- its op is adamw
results["prun.optimizer"] = "prun.Optimizer"
for _, name in ipairs(host.optimizers) do results["prun." .. name] = "prun.Optimizer" end

local signatures = {
  prun = {
    world = "integer the number of ranks", rest = "string the size of the axis that takes the ranks left over",
    mesh = "fun(axes: table): prun.Mesh",
    args = "fun(defaults: table): table",
    shared_args = "fun(defaults?: table): table",
    program = "fun(fn: fun(r: prun.Rank), options?: prun.program.options): prun.Plan",
    model = "fun(name: string, defaults: table, build: fun(opt: table, batch: prun.Batch): prun.Loss, table?):" ..
      " fun(options: table): prun.Model",
    strategy = "fun(name: string, defaults: table, body: fun(unit: prun.Unit, opt: table), traits?: table):" ..
      " fun(options: table): prun.Strategy",
    groups = "fun(groups: (prun.groups.group.options|prun.Optimizer)[]): prun.Optimizer",
    schedule = "fun(name: string, order: fun(rank: integer, ranks: integer, micro: integer, chunks: integer)," ..
      " traits?: table): prun.Schedule",
    output = "fun(name: string, x: prun.Tensor): prun.Tensor",
    forward = "fun(microbatch: integer, chunk?: integer): prun.Slot",
    backward = "fun(microbatch: integer, chunk?: integer): prun.Slot",
    backward_input = "fun(microbatch: integer, chunk?: integer): prun.Slot",
    backward_weight = "fun(microbatch: integer, chunk?: integer): prun.Slot",
    both = "fun(one: prun.Slot, other: prun.Slot)",
    models = "prun.models", data = "prun.data", init = "prun.init", nn = "prun.nn", losses = "prun.losses",
    metrics = "prun.metrics",
    all_gather = "fun(what: prun.Target|prun.Handle|prun.Tensor, options?: table): prun.Handle|prun.Tensor",
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
  ["prun.nn"] = {}, ["prun.losses"] = {}, ["prun.metrics"] = {},
  ["prun.models"] = {}, ["prun.data"] = {}, ["prun.init"] = {},
}

local head = [[
---@meta
-- Generated by stub_writer.lua from the schemas of prun's words; nothing requires this file.
]]

local fixed = [[
---@class prun.Plan
---@class prun.Mesh
---@class prun.Model
---@class prun.Data
---@class prun.Optimizer
---@class prun.LearningRate
---@class prun.Evaluation
---@class prun.Weights
---@class prun.Lora
---@class prun.Strategy
---@class prun.Schedule
---@class prun.Slot
---@class prun.Handle
---@class prun.Target
---@class prun.Tensor
---@field shape integer[]
---@field dtype string
---@operator add(prun.Tensor|number): prun.Tensor
---@operator sub(prun.Tensor|number): prun.Tensor
---@operator mul(prun.Tensor|number): prun.Tensor
---@operator div(prun.Tensor|number): prun.Tensor
---@operator pow(prun.Tensor|number): prun.Tensor
---@operator unm: prun.Tensor

---@class prun.Loss
---@field named fun(self: prun.Loss, name: string): prun.Loss
---@operator add(prun.Loss): prun.Loss
---@operator sub(prun.Loss): prun.Loss
---@operator mul(number): prun.Loss
---@operator div(number): prun.Loss
---@operator unm: prun.Loss

---@class prun.Metric

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
---@field recompute fun(self: prun.Unit, whole?: boolean)
---@field every fun(self: prun.Unit, steps: integer, hook: fun())
---@field before fun(self: prun.Unit, phase: "forward"|"backward", hook: fun())
---@field after fun(self: prun.Unit, phase: "forward"|"backward", hook: fun())
]]

-- "prun.data.bytes" -> "prun.data", "bytes".
local function split(word) return word:match("^(.*)%.([^.]+)$") end

local family_results = { ["prun.models"] = "prun.Model", ["prun.data"] = "prun.Data" }

local op_results = { ["prun.nn"] = "prun.Tensor", ["prun.losses"] = "prun.Loss", ["prun.metrics"] = "prun.Metric" }

-- Whether a function, or a family of functions, belongs to models.
local function is_of_models(word)
  while word do
    if op_results[word] then return true end
    word = split(word)
  end
  return false
end

-- Adds the signatures of functions that record ops in a model, from their arguments.
local function add_signatures()
  for word, arguments in pairs(schema.words) do
    local family, name = split(word)
    if op_results[family] then
      local parts = {}
      for i, entry in ipairs(arguments) do
        local optional = (entry.optional or entry.default ~= nil) and "?" or ""
        parts[i] = ("%s%s: %s"):format(entry.name, optional, types[entry.kind])
      end
      if arguments.options then parts[#parts + 1] = ("options?: %s.options"):format(word) end
      local result = arguments[2] and arguments[2].kind == "fn" and "any" or op_results[family]
      local signature = ("fun(%s): %s"):format(table.concat(parts, ", "), result)
      if schema.registered[word .. ".separate"] then
        signature = ("(%s)|(fun(options: %s.separate.options): %s)"):format(signature, word, result)
      end
      signatures[family][name] = signature
    end
  end
end

-- Returns the lines of a function's options.
local function fields_of(entries)
  local fields = {}
  for i, entry in ipairs(entries) do
    local optional = (entry.optional or entry.default ~= nil) and "?" or ""
    local shown = entry.default ~= nil and entry.kind ~= "strategies"
    fields[i] = ("---@field %s%s %s %s%s"):format(entry.name, optional, types[entry.kind], entry.help,
      shown and (" (default %s)"):format(schema.show(entry.default)) or "")
  end
  return fields
end

-- Returns the function with the most options whose options this one has, and the other options. Among equals, the
-- first in the alphabet has no parent.
local function parent_of(word, fields, all)
  local mine, best, most = {}, nil, 2
  for _, field in ipairs(fields) do mine[field] = true end
  for other, theirs in pairs(all) do
    local within = other ~= word and #theirs > most and (#theirs < #fields or #theirs == #fields and other < word)
    for _, field in ipairs(within and theirs or {}) do within = within and mine[field] end
    if within then best, most = other, #theirs end
  end
  local rest = {}
  for _, field in ipairs(best and all[best] or {}) do mine[field] = nil end
  for _, field in ipairs(fields) do
    if mine[field] then rest[#rest + 1] = field end
  end
  return best, rest
end

-- Appends the options of functions as classes; adds the signatures of functions that take only options.
local function option_classes(lines, of_models)
  local all = {}
  for word, entries in pairs(schema.registered) do all[word] = fields_of(entries) end
  for word in pairs(schema.registered) do
    local parent, fields = parent_of(word, all[word], all)
    if is_of_models(word) == of_models then
      lines[#lines + 1] = ("---@class %s.options%s"):format(word, parent and (" : %s.options"):format(parent) or "")
      table.move(fields, 1, #fields, #lines + 1, lines)
    end
    local family, name = split(word)
    if signatures[family] and not signatures[family][name] then
      local result = results[word] or family_results[family]
      if not result then error("stub_writer.lua has no result of " .. word, 0) end
      signatures[family][name] = ("fun(options: %s.options): %s"):format(word, result)
    end
  end
end

-- Appends the functions of a tensor that are its methods, too. A second block of a class adds to the first one.
local function methods(lines)
  lines[#lines + 1] = "---@class prun.Tensor"
  for name in pairs(tensor.methods) do
    local signature, changed = signatures["prun.nn"][name]:gsub("^fun%(x: ", "fun(self: ")
    assert(changed == 1, name)
    lines[#lines + 1] = ("---@field %s %s"):format(name, signature)
  end
end

return function(of_models)
  local lines = { head, not of_models and fixed or nil }
  for _ = 1, 2 do  -- a family may be a member of another one
    for _, family in pairs(namespace.known) do
      for _, name in ipairs(family.names) do local _ = family.words[name] end  -- loads its module
    end
  end
  add_signatures()
  option_classes(lines, of_models)
  if of_models then methods(lines) end
  for name, family in pairs(namespace.known) do
    local here = is_of_models(name) == of_models
    if here then lines[#lines + 1] = ("---@class %s"):format(name) end
    for _, word in ipairs(here and family.names or {}) do
      local signature = signatures[name][word]
      if not signature then error(("stub_writer.lua has no signature of %s.%s"):format(name, word), 0) end
      lines[#lines + 1] = ("---@field %s %s"):format(word, signature)
    end
    if here then lines[#lines + 1] = "" end
  end
  return table.concat(lines, "\n")
end
