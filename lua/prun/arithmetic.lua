-- nn's functions of elements, with broadcasting as in PyTorch: dims are compared from the last one on, and 1 repeats.
-- Reductions, softmax, matmul and cumsum. A tensor's operators are these functions, too (tensor.lua).
--
-- Functions of ids (i32) give ids: they are computed in f32, which is exact up to 2^24. With floats they become floats.
--
-- Each function records one op; the compiler merges chains of them. Dims count from 0, or from -1 backwards.

local graph = require "prun.graph"
local schema = require "prun.schema"
local tensor = require "prun.tensor"
local views = require "prun.views"

local arithmetic = {}

local function word(called, arguments, fn)
  local shown = "nn." .. called
  arguments.before = function() graph.here(shown) end
  arithmetic[called] = schema.word("prun.nn." .. called, arguments, fn)
end

local function operand(name, help)
  return { name = name, kind = "operand", signed = true, infinite = true, help = help }
end
local function operands()
  return { operand("a", "a tensor or a number"), operand("b", "the other operand, a tensor or a number") }
end
local x = { name = "x", kind = "tensor", help = "the tensor that it works on" }

local function described(one)
  return ("'%s' [%s] (%s:%d)"):format(one.name, table.concat(one.shape, ", "), one.site[1], one.site[2])
end

local function require_floats(called, inputs)
  for _, one in ipairs(inputs) do
    if one.dtype == "i32" or one.dtype == "i64" then
      host.fail(("nn.%s: %s is %s; it takes floats, such as the result of nn.embedding"):format(
        called, described(one), one.dtype))
    end
  end
end

local function is_ids(one) return tensor.is(one) and one.dtype == "i32" end

local function cast(input, dtype, called) return (graph.op("cast", { input }, { dtype = dtype }, called)) end

-- Functions of ids whose results are ids.
local of_ids = {}
for _, called in ipairs {
  "add", "sub", "mul", "minimum", "maximum", "abs", "sign", "where", "less", "less_equal", "greater", "greater_equal",
  "equal", "not_equal", "argmax",
} do
  of_ids[called] = true
end

-- Returns the operands as floats: all of one dtype, or f32 if all tensors are ids, and whether they are.
local function as_floats(called, given)
  local floats, ids
  for _, one in ipairs(given) do
    if is_ids(one) then ids = one
    elseif tensor.is(one) then floats = floats or one end
  end
  if not ids then return given, false end
  if not floats then
    if not of_ids[called] then require_floats(called, { ids }) end
    for _, one in ipairs(given) do
      if not tensor.is(one) and (one ~= math.floor(one) or math.abs(one) > 16777216) then
        host.fail(("nn.%s: %s is i32, and %s is no integer of at most 2^24; give it floats, such as data with " ..
          "as = \"numbers\""):format(called, described(ids), schema.show(one)))
      end
    end
  end
  local result = {}
  for i, one in ipairs(given) do result[i] = is_ids(one) and cast(one, floats and floats.dtype or "f32") or one end
  return result, not floats
end

-- Computes fn(x) of a tensor, of ids in f32.
local function through_floats(input, called, fn)
  if not is_ids(input) then return fn(input) end
  return cast(fn(cast(input, "f32")), "i32", called)
end

-- Fails unless the shapes broadcast.
local function require_broadcast(called, inputs)
  for i = 2, #inputs do
    for j = 1, i - 1 do
      local a, b = inputs[j].shape, inputs[i].shape
      for back = 0, math.min(#a, #b) - 1 do
        local p, q = a[#a - back], b[#b - back]
        if p ~= q and p ~= 1 and q ~= 1 then
          host.fail(("nn.%s: %s and %s do not broadcast: dim -%d is %d and %d; they must be equal, or one of them 1")
            :format(called, described(inputs[j]), described(inputs[i]), back + 1, p, q))
        end
      end
    end
  end
end

-- Returns the shortest text that is this number.
local function number_text(value)
  for digits = 15, 17 do
    local text = ("%%.%dg"):format(digits):format(value)
    if tonumber(text) == value then return text end
  end
  return tostring(value)
end

-- Records a program: functions with operands x0, x1, .., r0, r1, .. and numbers. `given`: tensors and numbers for
-- {1}, {2}, .. in it.
local function record(called, program, given)
  local inputs, texts = {}, {}
  local floats, ids = as_floats(called, given)
  for i, one in ipairs(floats) do
    if tensor.is(one) then
      local at
      for k, known in ipairs(inputs) do
        if rawequal(known, one) then at = k end
      end
      if not at then
        inputs[#inputs + 1] = one
        at = #inputs
      end
      texts[i] = "x" .. at - 1
    else
      texts[i] = number_text(one)
    end
  end
  if #inputs == 0 then
    host.fail(("nn.%s works on tensors, and all of its operands are numbers; use Lua's arithmetic"):format(called))
  end
  require_floats(called, inputs)
  require_broadcast(called, inputs)
  local text = program:gsub("{(%d)}", function(i) return texts[tonumber(i)] end)
  local y = graph.op("pointwise", inputs, { program = text }, called)
  return ids and cast(y, "i32", called) or y
end

local function is_alike(a, b)
  local p, q = a.shape, b.shape
  if #p ~= #q then return false end
  for i, size in ipairs(p) do
    if size ~= q[i] then return false end
  end
  return true
end

-- add and mul of tensors of one shape, and products with a number, are ops of their own.
for _, kind in ipairs { "add", "mul" } do
  word(kind, operands(), function(a, b)
    local both = tensor.is(a) and tensor.is(b)
    if is_ids(a) or is_ids(b) then return record(kind, kind .. " {1} {2}", { a, b }) end
    if both and is_alike(a, b) then
      require_floats(kind, { a, b })
      return (graph.op(kind, { a, b }))
    end
    if kind == "mul" and not both and (tensor.is(a) or tensor.is(b)) then
      local input, factor = a, b
      if not tensor.is(a) then input, factor = b, a end
      require_floats(kind, { input })
      return (graph.op("scale", { input }, { factor = factor + 0.0 }))
    end
    return record(kind, kind .. " {1} {2}", { a, b })
  end)
end

for called, program in pairs {
  sub = "sub {1} {2}", div = "div {1} {2}", minimum = "minimum {1} {2}", maximum = "maximum {1} {2}",
  less = "less {1} {2}", less_equal = "less_equal {1} {2}", greater = "less {2} {1}",
  greater_equal = "less_equal {2} {1}", equal = "equal {1} {2}", not_equal = "equal {1} {2}; sub 1 r0",
} do
  word(called, operands(),
    function(a, b) return record(called, program, { a, b }) end)
end

word("pow", { operand("a", "the base"), operand("b", "the exponent") }, function(a, b)
  if tensor.is(a) then
    if b == 1 then return a end
    local programs = { [2] = "mul {1} {1}", [3] = "mul {1} {1}; mul r0 {1}", [4] = "mul {1} {1}; mul r0 r0",
                       [0.5] = "sqrt {1}", [-0.5] = "rsqrt {1}", [-1] = "div 1 {1}" }
    if programs[b] then return record("pow", programs[b], { a }) end
  end
  return record("pow", "pow {1} {2}", { a, b })
end)

word("where", {
  { name = "condition", kind = "tensor", help = "such as nn.less(a, b): 0 is false, other numbers are true" },
  operand("a", "the result where the condition is true"), operand("b", "the result elsewhere"),
}, function(condition, a, b) return record("where", "where {1} {2} {3}", { condition, a, b }) end)

for _, called in ipairs { "exp", "log", "sqrt", "rsqrt", "abs", "sign", "sin", "cos", "sigmoid", "softplus" } do
  word(called, { x }, function(input) return record(called, called .. " {1}", { input }) end)
end
word("silu", { x }, function(input) return record("silu", "sigmoid {1}; mul {1} r0", { input }) end)
word("elu", { x, { name = "alpha", kind = "number", default = 1.0, least = 0, help = "minus the limit for small x" } },
  function(input, alpha)
    return record("elu", "minimum {1} 0; exp r0; sub r1 1; mul r2 {2}; less 0 {1}; where r4 {1} r3", { input, alpha })
  end)
word("leaky_relu", { x, { name = "slope", kind = "number", default = 0.01, signed = true, help = "for x below 0" } },
  function(input, slope) return record("leaky_relu", "mul {1} {2}; less 0 {1}; where r1 {1} r0", { input, slope }) end)

-- Returns dims from 0 on, sorted. `called` and `input` are for messages.
local function dims_of(called, input, dims)
  local rank, found, seen = #input.shape, {}, {}
  for _, dim in ipairs(dims) do
    local at = dim < 0 and dim + rank or dim
    if at < 0 or at >= rank then
      host.fail(("nn.%s: %s has no dim %d; its dims are 0 to %d, or -1 to -%d"):format(
        called, described(input), dim, rank - 1, rank))
    end
    if seen[at] then host.fail(("nn.%s: dim %d is given twice"):format(called, at)) end
    seen[at], found[#found + 1] = true, at
  end
  if #found == 0 then host.fail(("nn.%s: 'dims' is empty; give at least one dim, such as -1"):format(called)) end
  table.sort(found)
  return found
end

local dims = { name = "dims", kind = "dims", signed = true, help = "dims that it combines, such as -1 or { 1, 2 }" }
local keep = { name = "keep", kind = "boolean", default = false, help = "keep these dims, with the size 1" }

local function reduce(called, kind, input, over, kept, samples)
  if called ~= "sum" and called ~= "max" then require_floats(called, { input }) end
  local list = dims_of(called, input, over)
  return through_floats(input, called, function(y)
    local attrs = { op = kind, dims = list, kept = kept and list or nil, samples = samples }
    return (graph.op("reduce_dims", { y }, attrs, called))
  end)
end

for _, called in ipairs { "sum", "max" } do
  word(called, { x, dims, options = { keep } },
    function(input, over, opt) return reduce(called, called, input, over, opt.keep) end)
end
word("mean", { x, dims, options = { keep, {
  name = "samples", kind = "boolean", default = false,
  help = "dim 0 are samples: the mean is over those of all ranks, in each microbatch by itself",
} } }, function(input, over, opt)
  if opt.samples and dims_of("mean", input, over)[1] ~= 0 then
    host.fail("nn.mean: 'samples' is for means over dim 0, the samples, and 'dims' lacks it")
  end
  if opt.samples and opt.keep and input.shape[1] == 1 and graph.current.sample_ranks > 1 then
    host.fail("nn.mean: each rank has one sample in a microbatch: leave out 'keep', because a dim of size 1 would " ..
      "pass for that sample")
  end
  return reduce("mean", "mean", input, over, opt.keep, opt.samples and 1 or nil)
end)
-- (Σ |x|^p)^(1/p), by default with p = 2.
word("norm", {
  x, dims,
  options = { keep, { name = "order", kind = "number", default = 2.0, above = 0, infinite = true,
                      help = "p of (sum of |x|^p)^(1/p); 1 adds up magnitudes, math.huge takes the largest" } },
}, function(input, over, opt)
  local p = opt.order
  local function powers(program) return record("norm", program, { input, p }) end
  if p == math.huge then return reduce("norm", "max", powers "abs {1}", over, opt.keep) end
  if p == 1 then return reduce("norm", "sum", powers "abs {1}", over, opt.keep) end
  local programs = { [2] = "mul {1} {1}", [3] = "mul {1} {1}; abs {1}; mul r0 r1", [4] = "mul {1} {1}; mul r0 r0" }
  local sums = reduce("norm", "sum", powers(programs[p] or "abs {1}; pow r0 {2}"), over, opt.keep)
  return p == 2 and record("norm", "sqrt {1}", { sums }) or record("norm", "pow {1} {2}", { sums, 1 / p })
end)

for called, log in pairs { softmax = false, log_softmax = true } do
  word(called, { x, { name = "dim", kind = "integer", signed = true, default = -1, help = "by default the last one" } },
    function(input, dim)
      require_floats(called, { input })
      local at, last = dims_of(called, input, { dim })[1], #input.shape - 1
      local rows = at == last and input or views.transpose(input, at, last)  -- the op works along the last dim
      local y = graph.op("softmax", { rows }, { log = log and 1 or nil }, called)
      return at == last and y or views.transpose(y, at, last)
    end)
end

word("cumsum", {
  x, { name = "dim", kind = "integer", signed = true, help = "along which it adds up" },
}, function(input, dim)
  local at = dims_of("cumsum", input, { dim })[1]
  return through_floats(input, "cumsum", function(y) return (graph.op("cumsum", { y }, { dim = at })) end)
end)

-- The place of the largest element along a dim, the first of equal ones: ids, for nn.gather and nn.embedding.
word("argmax", { x, { name = "dim", kind = "integer", signed = true, help = "along which it compares" },
                 options = { keep } },
  function(input, dim, opt)
    local at = dims_of("argmax", input, { dim })
    local largest = record("argmax", "equal {1} {2}", { input, reduce("max", "max", input, at, true) })
    local before = arithmetic.equal(arithmetic.cumsum(is_ids(largest) and largest or cast(largest, "i32"), at[1]), 0)
    return arithmetic.minimum(reduce("sum", "sum", before, at, opt.keep), input.shape[at[1] + 1] - 1)
  end)

-- Repeats a tensor along the dims before the last two that the other one has. Fails if they do not broadcast.
local function with_leading(one, other)
  local shape, wanted = one.shape, other.shape
  local repeated, changed = {}, false
  for back = 1, math.max(#shape, #wanted) do
    local own, its = shape[#shape + 1 - back] or 1, wanted[#wanted + 1 - back] or 1
    if back > 2 and own ~= its and own ~= 1 and its ~= 1 then
      host.fail(("nn.matmul: %s and %s do not broadcast: dim -%d is %d and %d; they must be equal, or one of them 1")
        :format(described(one), described(other), back, own, its))
    end
    local size = back > 2 and math.max(own, its) or own
    changed = changed or back > #shape or size ~= own
    table.insert(repeated, 1, size == own and back <= #shape and -1 or size)
  end
  return changed and views.expand(one, repeated) or one
end

-- a [.., M, K] · b [.., K, N], which broadcast along the dims before; b [K, N] without further dims is a linear layer's
-- weight.
word("matmul", {
  { name = "a", kind = "tensor", help = "[.., M, K]" }, { name = "b", kind = "tensor", help = "[.., K, N]" },
  options = {
    { name = "transpose_a", kind = "boolean", default = false, help = "a is [.., K, M]" },
    { name = "transpose_b", kind = "boolean", default = false, help = "b is [.., N, K]" },
  },
}, function(a, b, opt)
  require_floats("matmul", { a, b })
  if #b.shape == 2 and not opt.transpose_a then
    return (graph.op("linear", { a, b }, opt.transpose_b and { transpose = 1 } or {}, "matmul"))
  end
  if #a.shape < 2 or #b.shape < 2 then
    host.fail(("nn.matmul: %s and %s should have at least two dims"):format(described(a), described(b)))
  end
  local function sizes(one, transposed)
    local rows, columns = one.shape[#one.shape - 1], one.shape[#one.shape]
    if transposed then rows, columns = columns, rows end
    return rows, columns
  end
  local _, inner = sizes(a, opt.transpose_a)
  local outer = sizes(b, opt.transpose_b)
  if inner ~= outer then
    host.fail(("nn.matmul: %s and %s do not multiply: the first has rows of %d, the second columns of %d"):format(
      described(a), described(b), inner, outer))
  end
  a, b = with_leading(a, b), with_leading(b, a)
  return (graph.op("matmul", { a, b }, { transpose_a = opt.transpose_a and 1 or nil,
                                         transpose_b = opt.transpose_b and 1 or nil }))
end)

return arithmetic
