-- prun.nn: layers and ops of a model. Each call records one op with its site; weights are named "<unit>.<name>.weight"
-- and "<unit>.<name>.bias".

local adapters = require "prun.adapters"
local graph = require "prun.graph"
local namespace = require "prun.namespace"
local schema = require "prun.schema"

local nn = {}

nn.unit = graph.unit    -- nn.unit("block" .. i, function() ... end): the piece that a strategy schedules as a whole
nn.again = graph.again  -- nn.again("embed", function() ... end): calls a unit again, with the same parameters

-- Defines a function that records into a model.
local function word(called, arguments, fn)
  local shown = "nn." .. called
  arguments.before = function() graph.here(shown) end
  return schema.word("prun.nn." .. called, arguments, fn)
end

local most_elements = graph.most_elements
local zeros = schema.convert("init", "zeros")
local name = { name = "name", kind = "name", help = "of the layer; its weights are called after it" }
local x = { name = "x", kind = "tensor", help = "the tensor that it works on" }

local function size(of, help, more)
  local entry = { name = of, kind = "integer", least = 1, most = most_elements, help = help }
  for key, value in pairs(more or {}) do entry[key] = value end
  return entry
end

-- A parameter: nn.parameter("w", { 10, 20 }, { "normal", 0.02 }). The same name in a unit is the same parameter.
nn.parameter = word("parameter", {
  { name = "name", kind = "name", help = "of the parameter, within its unit" },
  { name = "dims", kind = "dims", least = 1, most = most_elements, help = "its dims, such as { 10, 20 }" },
  { name = "init", kind = "init", default = zeros, help = "initial values" },
}, function(called, dims, init) return graph.parameter(called, dims, init, nil, true) end)

local linear_options = {
  { name = "bias", kind = "boolean", optional = true, help = "add a bias; by default yes, with `weight` no" },
  { name = "init", kind = "init", optional = true, help = 'initial weights, such as { "normal", 0.02 }' },
  { name = "bias_init", kind = "init", optional = true, help = 'initial bias, such as { "uniform", 0.1 }' },
  { name = "weight", kind = "tensor", optional = true,
    help = "a parameter [out, in] to use instead (tied weights)" },
  { name = "blocks", kind = "integers", optional = true, least = 1, most = most_elements,
    help = "the outputs are several results side by side, of these sizes: each is split by itself over ranks" },
}

local function check_blocks(layer, blocks, out)
  local sum = 0
  for _, one in ipairs(blocks) do sum = sum + one end
  if sum ~= out then
    host.fail(("nn.linear '%s': the blocks %s add up to %d, the layer has %d outputs"):format(
      layer, schema.show(blocks), sum, out), host.site_of_word(host.site("user"), "blocks"))
  end
end

-- Checks a layer that uses another layer's weight: it sets no initial values or blocks, and the dims match.
local function check_tied(layer, opt, width, out)
  local site = host.site("user")
  for _, option in ipairs { "init", "blocks" } do
    if opt[option] ~= nil then
      host.fail(("nn.linear '%s': '%s' belongs to a weight of the layer's own, and 'weight' gives it another's"):format(
        layer, option), host.site_of_word(site, option))
    end
  end
  local dims = opt.weight.shape
  if #dims ~= 2 or dims[1] ~= out or dims[2] ~= width then
    host.fail(("nn.linear '%s': the weight '%s' is [%s], should be [out, in], [%d, %d]"):format(
      layer, opt.weight.name, table.concat(dims, ", "), out, width), host.site_of_word(site, "weight"))
  end
end

-- y [.., out] = x [.., in] · weight [in, out] + bias. The default initialization is that of torch.nn.Linear.
nn.linear = word("linear", {
  name, x, size("out", "how many outputs a row has"), options = linear_options,
}, function(layer, input, out, opt)
  local width = graph.last_dim(input)
  local with_bias = opt.bias
  if with_bias == nil then with_bias = not opt.weight end
  if opt.bias_init and not with_bias then
    host.fail(("nn.linear '%s': 'bias_init' is of a bias, and the layer has none"):format(layer),
      host.site_of_word(host.site("user"), "bias_init"))
  end
  if opt.blocks then check_blocks(layer, opt.blocks, out) end
  if opt.weight then
    check_tied(layer, opt, width, out)
    graph.borrow(opt.weight, layer .. ".weight")
  end
  local inputs = { input, opt.weight or graph.parameter(layer .. ".weight", { width, out },
                                                        opt.init or { "uniform", 1 / math.sqrt(width) }, opt.blocks) }
  if with_bias then inputs[3] = graph.parameter(layer .. ".bias", { out }, opt.bias_init or zeros, opt.blocks) end
  local y = graph.op("linear", inputs, opt.weight and { transpose = 1 } or {}, layer)
  return adapters.linear(y, layer, input, out, opt.blocks, opt.weight ~= nil)
end)

-- x [B, T, width] = table[tokens] (+ positions[0..T)); `table` is a parameter [vocab, width], `positions` [T, width].
nn.embedding = word("embedding", {
  { name = "tokens", kind = "tensor", help = "batch.tokens" },
  { name = "table", kind = "tensor", help = "a parameter [vocab, width]" },
  { name = "positions", kind = "tensor", optional = true, help = "a parameter [tokens, width]" },
}, function(tokens, weights, positions) return (graph.op("embedding", { tokens, weights, positions }, {})) end)

-- nn.attention(qkv, heads, { kv_heads = 2 }) of queries, keys and values side by side, [B, T, (heads + 2·kv_heads) ·
-- size]; nn.attention { q = q, k = k, v = v, heads = 4 } of separate tensors. In each head softmax(q·k' / sqrt(size)) ·
-- v, [B, T, heads·size]; if k and v have fewer heads, neighbouring heads of q share them (GQA).
nn.attention = require "prun.attention"

nn.rotary = "prun.rotary"  -- nn.rotary(x, { size = 64 }): rotary position embeddings

-- Zeros a share p of the elements, different in each step, and multiplies the others by 1 / (1 - p).
nn.dropout = word("dropout", {
  x, { name = "p", kind = "number", least = 0, below = 1, help = "the share to zero, such as 0.1" },
}, function(input, p)
  local g = graph.here("nn.dropout")
  g.dropouts = (g.dropouts or 0) + 1
  return (graph.op("dropout", { input }, { p = p + 0.0, key = g.dropouts }))
end)

-- The same values, through which no gradient flows.
nn.detach = word("detach", { x }, function(input) return (graph.op("copy", { input }, { stop = 1 }, "detach")) end)

for called, fn in pairs(require "prun.views") do nn[called] = fn end
for called, fn in pairs(require "prun.norms") do nn[called] = fn end
for called, fn in pairs(require "prun.channel_norms") do nn[called] = fn end
for called, fn in pairs(require "prun.buffers") do nn[called] = fn end
for called, fn in pairs(require "prun.convolutions") do nn[called] = fn end

nn.moe = "prun.moe"  -- nn.moe("moe", x, { experts = 4, choices = 2 }): a mixture of experts

nn.gelu = word("gelu", {
  x, { name = "approximate", kind = "text", default = "tanh", choices = { "tanh", "none" }, help = "or the exact one" },
}, function(input, approximate) return (graph.op("gelu", { input }, { approximate = approximate })) end)
for _, op in ipairs(host.unary_ops) do  -- nn.relu(x), nn.tanh(x): ops whose table rows declare them as functions
  nn[op] = word(op, { x }, function(input) return (graph.op(op, { input })) end)
end
nn.silu_mul = word("silu_mul", {  -- SwiGLU: silu(gate)·up
  { name = "gate", kind = "tensor", help = "what goes through silu" },
  { name = "up", kind = "tensor", help = "what it is multiplied with" },
}, function(gate, up) return (graph.op("silu_mul", { gate, up })) end)
for called, fn in pairs(require "prun.arithmetic") do nn[called] = fn end
nn.einsum = require "prun.einsum"  -- nn.einsum("bik,bkj->bij", a, b)
nn.scale = word("scale", {
  x, { name = "factor", kind = "number", signed = true, help = "what it is multiplied by" },
}, function(input, factor) return (graph.op("scale", { input }, { factor = factor + 0.0 })) end)

return namespace("prun.nn", nn)
