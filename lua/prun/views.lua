-- Views of prun.nn: nn.reshape(x, { b, t, -1 }), nn.concat({ a, b }, dim) and so on; those of one tensor are its
-- methods, too: x:reshape { b, t, -1 }. Dims count from 0, as in placements and in PyTorch; -1 is the last.

local graph = require "prun.graph"
local schema = require "prun.schema"
local tensor = require "prun.tensor"

local views = {}

local function word(called, arguments, fn)
  local shown = "nn." .. called
  arguments.before = function() graph.here(shown) end
  views[called] = schema.word("prun.nn." .. called, arguments, fn)
end

local x = { name = "x", kind = "tensor", help = "the tensor that it works on" }
local sizes = { name = "sizes", kind = "integers", least = -1, most = graph.most_elements,
                help = "sizes of the result, such as { b, t, -1 }; -1 is inferred" }

local function dim(name, help, more)
  local entry = { name = name, kind = "integer", signed = true, least = -8, most = 7, help = help }
  for key, value in pairs(more or {}) do entry[key] = value end
  return entry
end
local of = dim("dim", "a dim, from 0; -1 is the last")

local function text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

-- Returns the dim counted from 0; `count`: the number of dims.
local function counted(what, given, count, shape)
  local found = given < 0 and given + count or given
  if found < 0 or found >= count then
    host.fail(("%s: there is no dim %d in %s, whose dims are 0 to %d"):format(what, given, text(shape), count - 1))
  end
  return found
end

local function of_tensor(what, given, input) return counted(what, given, #input.shape, input.shape) end

-- Returns the sizes with -1 replaced by the size that keeps the number of elements.
local function inferred(what, wanted, elements, shape)
  local result, known, open = {}, 1, nil
  for i, size in ipairs(wanted) do
    result[i] = size
    if size == -1 then
      if open then host.fail(("%s: %s has two sizes to infer; at most one may be -1"):format(what, text(wanted))) end
      open = i
    elseif size == 0 then
      host.fail(("%s: %s has the size 0; sizes are at least 1"):format(what, text(wanted)))
    else
      known = known * (size + 0.0)
    end
  end
  if open then
    if elements % known ~= 0 then
      host.fail(("%s: %s, %d elements, does not divide into %s"):format(what, text(shape), elements, text(wanted)))
    end
    result[open] = math.tointeger(elements / known)
  end
  return result
end

local function elements_of(shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return count
end

local function reshaped(input, wanted, what)
  if #wanted == 0 then host.fail(what .. ": the result needs at least one size") end
  return (graph.op("reshape", { input }, { dims = inferred(what, wanted, elements_of(input.shape), input.shape) }))
end

word("reshape", { x, sizes }, function(input, wanted) return reshaped(input, wanted, "nn.reshape") end)

word("flatten", {
  x, dim("first", "first of the dims that become one", { default = 0 }),
  dim("last", "last of them", { default = -1 }),
}, function(input, first, last)
  local shape, result = input.shape, {}
  first, last = of_tensor("nn.flatten", first, input), of_tensor("nn.flatten", last, input)
  for i, size in ipairs(shape) do
    if i - 1 <= first or i - 1 > last then result[#result + 1] = size else result[#result] = result[#result] * size end
  end
  return reshaped(input, result, "nn.flatten")
end)

word("unflatten", { x, of, sizes }, function(input, at, wanted)
  local shape, result = input.shape, {}
  at = of_tensor("nn.unflatten", at, input)
  for i, size in ipairs(shape) do
    if i - 1 == at then
      for _, one in ipairs(inferred("nn.unflatten", wanted, size, { size })) do result[#result + 1] = one end
    else
      result[#result + 1] = size
    end
  end
  return reshaped(input, result, "nn.unflatten")
end)

word("unsqueeze", { x, of }, function(input, at)
  local shape = input.shape
  at = counted("nn.unsqueeze", at, #shape + 1, shape)
  table.insert(shape, at + 1, 1)
  return reshaped(input, shape, "nn.unsqueeze")
end)

word("squeeze", { x, of }, function(input, at)
  local shape = input.shape
  at = of_tensor("nn.squeeze", at, input)
  if shape[at + 1] ~= 1 then
    host.fail(("nn.squeeze: dim %d of %s has the size %d, not 1"):format(at, text(shape), shape[at + 1]))
  end
  table.remove(shape, at + 1)
  return reshaped(input, shape, "nn.squeeze")
end)

-- Returns whether the order only moves dims of size 1, apart from the first, whose size depends on the mesh.
local function moves_ones(shape, order)
  local before = -1
  for _, one in ipairs(order) do
    if one == 0 or shape[one + 1] ~= 1 then
      if one <= before then return false end
      before = one
    end
  end
  return true
end

-- Records no op if the order is 0, 1, 2, .., and a reshape, which needs no copy, if the elements keep their order.
local function permuted(input, order)
  local shape, same, known = input.shape, true, {}
  for i, one in ipairs(order) do same, known[one] = same and one == i - 1, true end
  local every = #order == #shape
  for i = 0, #shape - 1 do every = every and known[i] end
  if every and same then return input end
  if every and moves_ones(shape, order) then
    local result = {}
    for i, one in ipairs(order) do result[i] = shape[one + 1] end
    return reshaped(input, result, "nn.permute")
  end
  return (graph.op("permute", { input }, { order = order }))
end

word("permute", {
  x, { name = "order", kind = "integers", least = -8, most = 7, help = "the dims in their new order, { 0, 2, 1 }" },
}, function(input, order)
  local result = {}
  for i, one in ipairs(order) do result[i] = of_tensor("nn.permute", one, input) end
  return permuted(input, result)
end)

word("transpose", { x, dim("a", "a dim, from 0; -1 is the last"), dim("b", "the dim that it changes places with") },
  function(input, a, b)
    local order = {}
    for i = 1, #input.shape do order[i] = i - 1 end
    a, b = of_tensor("nn.transpose", a, input), of_tensor("nn.transpose", b, input)
    order[a + 1], order[b + 1] = order[b + 1], order[a + 1]
    return permuted(input, order)
  end)

-- Dims that x lacks are added in front, as in PyTorch.
word("expand", {
  x, { name = "sizes", kind = "integers", least = -1, most = graph.most_elements,
       help = "sizes of the result; dims of size 1 repeat, -1 keeps a size" },
}, function(input, wanted)
  local shape, result, changed = input.shape, {}, false
  local more = #wanted - #shape
  if more < 0 then
    host.fail(("nn.expand: %s has fewer dims than %s"):format(text(wanted), text(shape)))
  end
  local padded = {}
  for i = 1, #wanted do
    padded[i] = i <= more and 1 or shape[i - more]
    result[i] = wanted[i] == -1 and padded[i] or wanted[i]
    changed = changed or result[i] ~= padded[i]
  end
  if more > 0 then input = reshaped(input, padded, "nn.expand") end
  return changed and (graph.op("expand", { input }, { dims = result })) or input
end)

local function sliced(input, at, start, size)
  if start == 0 and size == input.shape[at + 1] then return input end
  return (graph.op("slice", { input }, { dim = at, start = start, size = size }))
end

-- x[:, first:last] of PyTorch is nn.slice(x, 1, first, last).
word("slice", {
  x, of,
  { name = "first", kind = "integer", signed = true, least = -graph.most_elements, most = graph.most_elements,
    default = 0, help = "the first element, from 0; negative ones count from the end" },
  { name = "last", kind = "integer", signed = true, least = -graph.most_elements, most = graph.most_elements,
    optional = true, help = "the element after the last one; by default the end" },
}, function(input, at, first, last)
  local shape = input.shape
  at = of_tensor("nn.slice", at, input)
  local size = shape[at + 1]
  local from, to = first, last or size
  if from < 0 then from = from + size end
  if to < 0 then to = to + size end
  if from < 0 or to > size or from >= to then
    host.fail(("nn.slice: %d to %s is no part of dim %d of %s, which has %d elements"):format(first,
      tostring(last or "the end"), at, text(shape), size))
  end
  return sliced(input, at, from, to - from)
end)

-- local q, k, v = nn.split(x, width, -1), or nn.split(x, { 2 * width, width }, -1).
word("split", {
  x, { name = "sizes", kind = "dims", least = 1, most = graph.most_elements,
       help = "the size of each part, or the sizes of all parts" }, of,
}, function(input, parts, at)
  local shape, results, start = input.shape, {}, 0
  at = of_tensor("nn.split", at, input)
  local size = shape[at + 1]
  while #parts == 1 and start < size do
    results[#results + 1] = sliced(input, at, start, math.min(parts[1], size - start))
    start = start + math.min(parts[1], size - start)
  end
  if #parts > 1 then
    local sum = 0
    for _, part in ipairs(parts) do sum = sum + part end
    if sum ~= size then
      host.fail(("nn.split: the sizes %s add up to %d, dim %d of %s has %d elements"):format(schema.show(parts), sum,
        at, text(shape), size))
    end
    for i, part in ipairs(parts) do results[i], start = sliced(input, at, start, part), start + part end
  end
  return table.unpack(results)
end)

word("pad", {
  x, of,
  { name = "before", kind = "integer", least = 0, most = graph.most_elements, help = "elements before the first" },
  { name = "after", kind = "integer", least = 0, most = graph.most_elements, help = "elements after the last" },
  { name = "value", kind = "number", signed = true, default = 0.0, help = "their value" },
}, function(input, at, before, after, value)
  at = of_tensor("nn.pad", at, input)
  if before == 0 and after == 0 then return input end
  local attrs = { dim = at, before = before, after = after }
  if value ~= 0 then attrs.value = value + 0.0 end
  return (graph.op("pad", { input }, attrs))
end)

local list = { name = "tensors", kind = "tensors", help = "a list of tensors, such as { a, b }" }

local function joined(what, tensors, at, count)
  at = counted(what, at, count, tensors[1].shape)
  return #tensors == 1 and tensors[1] or (graph.op("concat", tensors, { dim = at }))
end

word("concat", { list, of },
  function(tensors, at) return joined("nn.concat", tensors, at, #tensors[1].shape) end)

word("stack", { list, of }, function(tensors, at)
  local count, with_dim = #tensors[1].shape + 1, {}
  at = counted("nn.stack", at, count, tensors[1].shape)
  for i, one in ipairs(tensors) do
    if text(one.shape) ~= text(tensors[1].shape) then
      host.fail(("nn.stack: tensor 1 is %s, tensor %d is %s; they should have one shape"):format(
        text(tensors[1].shape), i, text(one.shape)))
    end
    with_dim[i] = views.unsqueeze(one, at)
  end
  return joined("nn.stack", with_dim, at, count)
end)

-- y[.., i, :] = x[.., ids[.., i], :]: rows of x, batch by batch. The dims before the last one of ids are those of x.
word("gather", {
  x, { name = "ids", kind = "tensor", help = "i32 [.., n]: which rows, from 0" },
}, function(input, ids) return (graph.op("gather_rows", { input, ids })) end)

-- y[i, j, :] = x[j - i + queries - 1, :]: rows of x by the distance of a key to a query, for biases of scores.
word("relative", {
  { name = "x", kind = "tensor", help = "[queries + keys - 1, width], a row for each distance" },
  { name = "queries", kind = "integer", least = 1, most = graph.most_elements, help = "tokens that attend" },
  { name = "keys", kind = "integer", least = 1, most = graph.most_elements, help = "tokens that are attended to" },
}, function(input, queries, keys)
  local shape, both = input.shape, queries + keys
  if #shape ~= 2 or shape[1] ~= both - 1 then
    host.fail(("nn.relative: %s should be [%d, width]: a row for each distance of %d queries and %d keys"):format(
      text(shape), both - 1, queries, keys))
  end
  -- Rows of queries + keys elements, read as rows that are one shorter, begin one element earlier each time.
  local width, y = shape[2], views.unsqueeze(views.pad(input, 0, 0, 1), 0)
  y = views.reshape(views.expand(y, { queries, both, width }), { queries * both, width })
  y = views.reshape(views.slice(y, 0, queries - 1, both * queries - 1), { queries, both - 1, width })
  return views.slice(y, 1, 0, keys)
end)

for _, name in ipairs { "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "permute", "transpose", "expand",
                        "slice", "split", "pad", "gather" } do
  tensor.methods[name] = views[name]
end

return views
