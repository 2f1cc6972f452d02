-- Mistakes in placements that only values reveal. With `wrong` each case is rejected (tests/errors); without it, it
-- trains as one rank does (product_cases.cc). n: number of ranks of each axis.

local prun = require "prun"
local nn = prun.nn

local arg = prun.args { case = { "tokens_summed", "a function below" }, wrong = false, n = 2 }

local cases = {}
local function gpt(options)
  local shape = { vocab = 256, layers = 2, width = 24, heads = 4, context = 8 }
  for name, value in pairs(options or {}) do shape[name] = value end
  return prun.models.gpt(shape)
end
local function reduces(name, options, body)
  return prun.strategy(name, { axis = options.axis or "dp" }, function(unit, opt)
    unit:after("backward", function() body(unit, opt) end)
  end, options.traits) {}
end
local function average(unit, opt) prun.all_reduce(unit.grads, { axis = opt.axis, op = "avg" }) end

-- Each rank's gradient is that of the mean over its own tokens, so it must be averaged, not summed.
function cases.tokens_summed()
  return { "cp" }, gpt(), { reduces("mine", { axis = "cp", traits = { splits = "tokens" } }, function(unit, opt)
    prun.all_reduce(unit.grads, { axis = opt.axis, op = arg.wrong and "sum" or "avg" })
  end) }
end

function cases.token_shards_summed()
  return { "cp" }, gpt(), { prun.strategy("mine", { axis = "cp" }, function(unit, opt)
    local full
    local function gather() full = prun.all_gather(unit.params, { axis = opt.axis }) end
    unit.params:flat():place { [opt.axis] = "S(0)" }
    unit:before("forward", gather)
    unit:after("forward", function() prun.free(full) end)
    unit:before("backward", function() prun.ensure(full, gather) end)
    unit:after("backward", function()
      prun.free(full)
      prun.reduce_scatter(unit.grads, { axis = opt.axis, op = arg.wrong and "sum" or "avg", into = unit.grad_shard })
    end)
  end, { splits = "tokens" }) {} }
end

-- The case above, in which weights are also averaged between steps.
function cases.summed_beside_an_average()
  return { "dp" }, gpt(), { prun.strategy("mine", { axis = "dp" }, function(unit, opt)
    unit:after("backward", function()
      prun.all_reduce(unit.grads, { axis = opt.axis, op = arg.wrong and "sum" or "avg" })
    end)
    unit:every(1, function() prun.all_reduce(unit.params, { axis = opt.axis, op = "avg" }) end)
  end) {} }
end

-- Only tensors that all ranks of an axis replicate can be averaged over it. Other stages hold other layers.
function cases.stages_averaged()
  local model = prun.models.mlp { inputs = 24, outputs = 24, width = 24, layers = 4 }
  return { "dp", "pp" }, model, { prun.pipeline { axis = "pp" }, prun.strategy("mine", { axis = "dp" }, function(unit)
    unit:every(1, function() prun.all_reduce(unit.params, { axis = arg.wrong and "pp" or "dp", op = "avg" }) end)
    if arg.wrong then unit:after("backward", function() prun.all_reduce(unit.grads, { axis = "dp" }) end) end
  end) {} }
end

function cases.gradients_of_stages_added()
  return { "dp", "pp" }, gpt(), { prun.pipeline { axis = "pp" }, reduces("mine", {}, function(unit, opt)
    average(unit, opt)
    if arg.wrong and #unit:find "qkv" > 0 then prun.all_reduce(unit.grads, { axis = "pp", op = "sum" }) end
  end) }
end

-- Ranks of ep hold different experts, ranks of tp different columns.
function cases.experts_averaged()
  local model = prun.models.moe { vocab = 256, layers = 2, width = 24, heads = 4, context = 8, experts = 4 }
  return { "ep" }, model, { prun.strategy("mine", { axis = "ep" }, function(unit, opt)
    for _, layer in ipairs(unit:find { "moe.up", "moe.down" }) do layer:place { [opt.axis] = "S(0)" } end
    unit:after("backward", function() average(unit, opt) end)
    if arg.wrong then unit:every(1, function() prun.all_reduce(unit.params, { axis = opt.axis, op = "avg" }) end) end
  end) {} }
end

function cases.columns_averaged()
  return { "dp", "tp" }, gpt(), { prun.tensor_parallel {}, prun.strategy("mine", { axis = "dp" }, function(unit)
    unit:every(1, function() prun.all_reduce(unit.params, { axis = arg.wrong and "tp" or "dp", op = "avg" }) end)
    if arg.wrong then unit:after("backward", function() prun.all_reduce(unit.grads, { axis = "dp" }) end) end
  end) {} }
end

-- Under tensor parallelism a rank's columns are one range, or one range of each block; heads, adds, multiplications,
-- masks and vocabularies must agree on which. `block(x, wrong)`: the layers between an embedding and a head. With
-- `context`, the other axis splits tokens.
local width = 24
local function split(block, options)
  local function model(batch)
    local x = nn.unit("embed", function()
      return nn.embedding(batch.tokens, nn.parameter("token.weight", { 256, width }, { "normal", 0.5 }))
    end)
    x = nn.unit("block0", function() return x + block(x) end)
    local blocks = options and options.blocks
    return nn.unit("head", function()
      return prun.losses.cross_entropy(nn.linear("logits", x, 256, { blocks = blocks }), batch.targets)
    end)
  end
  local context = options and options.context
  local other = context and prun.context_parallel { axis = "cp" } or prun.ddp { axis = "dp" }
  return { context and "cp" or "dp", "tp" }, model, { prun.tensor_parallel { axis = "tp" }, other },
    prun.data.bytes { path = "text/sample.txt", batch = 24, context = 8 }
end
local function halves(wrong) return wrong and { width, width } or nil end

function cases.blocks_forgotten()
  return split(function(x)
    local qkv = nn.linear("qkv", x, 3 * width, { blocks = arg.wrong and { 3 * width } or { width, width, width } })
    return nn.linear("proj", nn.attention(qkv, 4), width)
  end)
end

function cases.blocks_forgotten_in_a_ring()
  return split(function(x)
    local qkv = nn.linear("qkv", x, 2 * width, { blocks = arg.wrong and { 2 * width } or { width, 12, 12 } })
    return nn.linear("proj", nn.attention(qkv, 4, { kv_heads = 2, causal = false }), width)
  end, { context = true })
end

-- Rotary pairs of q and k span the columns of two ranks.
function cases.turned_columns()
  return split(function(x)
    local qkv = nn.linear("qkv", x, 3 * width, { blocks = arg.wrong and { 3 * width } or { width, width, width } })
    return nn.linear("proj", nn.attention(nn.rotary(qkv, { size = 6, heads = 8 }), 4), width)
  end)
end

function cases.blocks_of_halves()
  return split(function(x)
    local half = width // 2
    local blocks = arg.wrong and { half, half, half, half, half, half } or { width, width, width }
    return nn.linear("proj", nn.attention(nn.linear("qkv", x, 3 * width, { blocks = blocks }), 4), width)
  end)
end

function cases.kv_blocks_of_queries()
  return split(function(x)
    local blocks = arg.wrong and { width // 2, width // 2, width } or { width, width // 2, width // 2 }
    local qkv = nn.linear("qkv", x, 2 * width, { blocks = blocks })
    return nn.linear("proj", nn.attention(qkv, 4, { kv_heads = 2 }), width)
  end)
end

function cases.cuts_added()
  return split(function(x)
    local sum = nn.linear("up", x, 2 * width, { blocks = halves(arg.wrong) }) + nn.linear("gate", x, 2 * width)
    return nn.linear("proj", sum, width)
  end)
end

function cases.cuts_gated()
  return split(function(x)
    local up, gate = nn.linear("up", x, 2 * width, { blocks = halves(arg.wrong) }), nn.linear("gate", x, 2 * width)
    return nn.linear("proj", nn.silu_mul(gate, up), width)
  end)
end

function cases.blocks_into_rows()
  return split(function(x)
    return nn.linear("proj", nn.gelu(nn.linear("up", x, 2 * width, { blocks = halves(arg.wrong) })), width)
  end)
end

function cases.blocks_into_a_plain_layer()
  return split(function(x)
    return nn.linear("out", nn.gelu(nn.linear("up", x, 2 * width, { blocks = halves(arg.wrong) })), width)
  end)
end

function cases.blocks_dropped_out()
  return split(function(x)
    return nn.linear("out", nn.dropout(nn.linear("up", x, 2 * width, { blocks = halves(arg.wrong) }), 0.3), width)
  end)
end

function cases.blocks_of_a_vocabulary()
  return split(function(x) return nn.linear("proj", nn.gelu(nn.linear("up", x, width)), width) end,
    { blocks = arg.wrong and { 128, 128 } or nil })
end

function cases.turned_heads_uneven()
  return split(function(x)
    local heads = arg.wrong and 3 or 4
    return nn.linear("proj", nn.rotary(nn.linear("q", x, width), { size = width // heads, heads = heads }), width)
  end)
end

-- A tensor that tensor parallelism shards differs by rank and must not be reduced over tp.
function cases.parts_averaged()
  return { "dp", "tp" }, gpt(), { prun.tensor_parallel {}, reduces("mine", {}, function(unit, opt)
    average(unit, opt)
    if arg.wrong and #unit:find "token" > 0 then prun.all_reduce(unit.grads, { axis = "tp", op = "avg" }) end
  end) }
end

-- A shard of a flat vector mixes columns, rows and tensors that are replicated over tp.
local function of_shards(op)
  return { "dp", "tp" }, gpt(), { prun.tensor_parallel { sequence = true }, prun.strategy("mine", { axis = "dp" },
    function(unit, opt)
      local full
      local function gather() full = prun.all_gather(unit.params, { axis = opt.axis }) end
      unit.params:flat():place { [opt.axis] = "S(0)" }
      unit:before("forward", gather)
      unit:after("forward", function() prun.free(full) end)
      unit:before("backward", function() prun.ensure(full, gather) end)
      unit:after("backward", function()
        prun.free(full)
        prun.reduce_scatter(unit.grads, { axis = opt.axis, op = "avg", into = unit.grad_shard })
        if arg.wrong then prun.all_reduce(unit.grad_shard, { axis = "tp", op = op }) end
      end)
    end) {} }
end
function cases.shards_of_parts_averaged() return of_shards "avg" end
function cases.shards_of_parts_added() return of_shards "sum" end

local axes, model, strategies, data = cases[arg.case]()
for i, axis in ipairs(axes) do axes[i] = { axis, arg.n } end
return prun.plan {
  mesh      = prun.mesh(axes),
  model     = model,
  data      = data or (arg.case == "stages_averaged" and prun.data.random { batch = 24 }) or
              prun.data.bytes { path = "text/sample.txt", batch = 24 },
  strategy  = strategies,
  optimizer = prun.sgd { lr = 0.1 },
  micro     = 3,
  steps     = 4,
  dtype     = "f64",
}
