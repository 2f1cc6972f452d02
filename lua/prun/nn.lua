-- prun.nn: layers and ops of a model. Each call records one op with the line that made it; weights are named
-- "<unit>.<name>.weight" and "<unit>.<name>.bias".

local graph = require "prun.graph"
local namespace = require "prun.namespace"
local schema = require "prun.schema"
local tensor = require "prun.tensor"

local nn = {}

nn.unit = graph.unit    -- nn.unit("block" .. i, function() ... end): what a strategy schedules as a whole
nn.again = graph.again  -- nn.again("embed", function() ... end): the same unit and parameters once more

-- A parameter: nn.parameter("w", { 10, 20 }, { "normal", 0.02 }).
function nn.parameter(name, shape, init) return graph.parameter(name, shape, init or { "zeros" }) end

local function last_dim(what, x)
  if not tensor.is(x) then host.fail(what .. ": the input is not a tensor") end
  return x.shape[#x.shape]
end

local linear_options = schema.register("prun.nn.linear", {
  { name = "bias", kind = "boolean", default = true, help = "add a bias" },
  { name = "init", kind = "any", optional = true, help = 'initial weights, such as { "normal", 0.02 }' },
  { name = "bias_init", kind = "any", optional = true, help = 'initial bias, such as { "uniform", 0.1 }' },
  { name = "weight", kind = "any", optional = true, help = "a parameter [out, in] to use instead (tied weights)" },
  { name = "blocks", kind = "numbers", optional = true,
    help = "the outputs are several results side by side, of these sizes: each is split by itself over ranks" },
})

local function check_blocks(name, blocks, out, site)
  local sum = 0
  for _, size in ipairs(blocks) do
    if not math.tointeger(size) or size < 1 then
      host.fail(("nn.linear '%s': blocks are whole numbers of at least 1, not %s"):format(
        name, schema.show(blocks)), site)
    end
    sum = sum + size
  end
  if sum ~= out then
    host.fail(("nn.linear '%s': the blocks %s add up to %d, the layer has %d outputs"):format(
      name, schema.show(blocks), sum, out), site)
  end
end

-- y [.., out] = x [.., in] · weight [in, out] + bias. By default initialized as torch.nn.Linear is.
function nn.linear(name, x, out, options)
  local site = host.site("user")
  local opt = schema.check("nn.linear", linear_options, options, site)
  local width = last_dim("nn.linear", x)
  if opt.blocks then check_blocks(name, opt.blocks, out, host.site_of_word(site, "blocks")) end
  if opt.weight then return (graph.op("linear", { x, opt.weight }, { transpose = 1 }, name)) end
  local init = opt.init or { "uniform", 1 / math.sqrt(width) }
  local inputs = { x, graph.parameter(name .. ".weight", { width, out }, init, opt.blocks) }
  if opt.bias then inputs[3] = graph.parameter(name .. ".bias", { out }, opt.bias_init or { "zeros" }, opt.blocks) end
  return (graph.op("linear", inputs, {}, name))
end

-- Over the last dim, with a learned scale and shift.
function nn.layernorm(name, x, eps)
  local width = last_dim("nn.layernorm", x)
  local gamma = graph.parameter(name .. ".weight", { width }, { "ones" })
  local beta = graph.parameter(name .. ".bias", { width }, { "zeros" })
  return (graph.op("layernorm", { x, gamma, beta }, { eps = eps or 1e-5 }, name, { "mean", "rstd" }))
end

-- x [B, T, width] = table[tokens] (+ positions[0..T)); `table` is a parameter [vocab, width], `positions` [T, width].
function nn.embedding(tokens, weights, positions)
  return (graph.op("embedding", { tokens, weights, positions }, {}))
end

-- Over the last dim, by its root mean square alone, with a learned scale.
function nn.rmsnorm(name, x, eps)
  local gamma = graph.parameter(name .. ".weight", { last_dim("nn.rmsnorm", x) }, { "ones" })
  return (graph.op("rmsnorm", { x, gamma }, { eps = eps or 1e-5 }, name, { "rrms" }))
end

local attention_options = schema.register("prun.nn.attention", {
  { name = "causal", kind = "boolean", default = true, help = "a token sees those before it and itself" },
  { name = "kv_heads", kind = "integer", optional = true, help = "heads of keys and of values; by default as many" },
})

-- qkv [B, T, (heads + 2·kv_heads)·size] -> [B, T, heads·size]: softmax(q·k' / sqrt(size))·v in each head. qkv has the
-- heads of q, then of k, then of v; with fewer of k and v, neighbouring heads of q share them.
function nn.attention(qkv, heads, options)
  local opt = schema.check("nn.attention", attention_options, options, host.site("user"))
  local attrs = { heads = heads, causal = opt.causal and 1 or 0, kv_heads = opt.kv_heads }
  return (graph.op("attention", { qkv }, attrs, nil, { "lse" }))
end

local rotary_options = schema.register("prun.nn.rotary", {
  { name = "size", kind = "integer", help = "elements of a head; even" },
  { name = "heads", kind = "integer", optional = true, help = "how many to turn, from the first; by default all" },
  { name = "base", kind = "number", default = 10000.0, help = "pair i turns by base^(-2i/size) a token" },
})

-- x [B, T, heads·size .. ]: turns the pairs (i, i + size/2) of each head by the token's position; heads after the first
-- `heads` stay, so that q and k of a fused qkv are turned at once.
function nn.rotary(x, options)
  local opt = schema.check("nn.rotary", rotary_options, options, host.site("user"))
  local heads = opt.heads or last_dim("nn.rotary", x) // math.max(1, opt.size)
  return (graph.op("rotary", { x }, { size = opt.size, heads = heads, base = opt.base }))
end

-- Zeros a share p of the elements, another one in each step, and multiplies the rest by 1 / (1 - p).
function nn.dropout(x, p)
  local g = graph.here("nn.dropout")
  if type(p) ~= "number" then
    host.fail(("nn.dropout: p is %s, should be the share to zero, such as 0.1"):format(tostring(p)))
  end
  g.dropouts = (g.dropouts or 0) + 1
  return (graph.op("dropout", { x }, { p = p + 0.0, key = g.dropouts }))
end

nn.moe = "prun.moe"  -- nn.moe("moe", x, { experts = 4, choices = 2 }): a mixture of experts

function nn.gelu(x, approximate) return (graph.op("gelu", { x }, { approximate = approximate or "tanh" })) end
for _, op in ipairs(host.unary_ops) do  -- nn.relu(x), nn.tanh(x): ops whose rows say that they are words
  nn[op] = function(x) return (graph.op(op, { x })) end
end
function nn.silu_mul(gate, up) return (graph.op("silu_mul", { gate, up })) end  -- SwiGLU: silu(gate)·up
function nn.add(a, b) return (graph.op("add", { a, b })) end
function nn.mul(a, b) return (graph.op("mul", { a, b })) end
function nn.scale(x, factor) return (graph.op("scale", { x }, { factor = factor + 0.0 })) end

return namespace("prun.nn", nn)
