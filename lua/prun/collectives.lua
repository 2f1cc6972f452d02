-- The functions of a program: tensors, collectives (named and ordered as in NCCL and torch.distributed), print.
-- Functions that keep the size work in place; the others return a new tensor, with pieces in rank order.
--
-- A tensor whose number of elements is known only at run time has a declared maximum and refers to the tensor that
-- holds its count.

local graph = require "prun.graph"
local schema = require "prun.schema"
local tensor = require "prun.tensor"

local collectives = {}

local most = graph.most_elements
local reductions = { "sum", "prod", "min", "max", "avg" }
local dtypes = { "f32", "f64", "bf16", "i64", "i32", "i8", "u8" }

local x = { name = "x", kind = "tensor", help = "the tensor that moves" }
local op = { name = "op", kind = "text", default = "sum", choices = reductions, help = "how to reduce" }
local root = { name = "root", kind = "integer", default = 0, signed = true, help = "a rank of the group" }
local dtype = { name = "dtype", kind = "text", default = "f32", choices = dtypes, help = "type of the elements" }
local axis = { name = "axis", kind = "axis", default = "world", help = "mesh axis of the group; by default all ranks" }
local max = { name = "max", kind = "integer", optional = true, least = 1, most = most,
              help = "most elements that a rank may have" }

local function whole(name, default, help)
  return { name = name, kind = "integer", default = default, least = -schema.most_exact, most = schema.most_exact,
           signed = true, help = help }
end

-- Defines a function of programs.
local function word(name, arguments, fn)
  arguments.scope = "program"
  return schema.word("prun." .. name, arguments, fn)
end

local function elements(input)
  local count = 1
  for _, size in ipairs(input.shape) do count = count * size end
  return count
end

-- Ranges of the counts made by prun.random_int.
local range_of = setmetatable({}, { __mode = "k" })

-- Checks a run-time count: one i64 and, if it comes from random_int, at most `largest`.
local function check_count(name, n, largest)
  if n.dtype ~= "i64" or elements(n) ~= 1 then
    host.fail(("prun.%s: the count must be a tensor of one i64, such as prun.random_int makes"):format(name))
  end
  local range = range_of[n]
  if range and (range[1] < 0 or range[2] > largest) then
    host.fail(("prun.%s: the count is from %d to %d, should be from 0 to max, which is %d"):format(
      name, range[1], range[2], largest))
  end
end

-- A tensor of integers holds whole numbers of its type's range. Values reach the kernels as doubles, which represent
-- integers exactly up to 2^53.
local bits = { i8 = 7, u8 = 8, i32 = 31 }
local function check_elements(name, values, of)
  if of == "f32" or of == "f64" or of == "bf16" then return end
  local largest = bits[of] and 2.0 ^ bits[of] or 2.0 ^ 63
  local smallest = of == "u8" and 0 or -largest
  for _, value in ipairs(values) do
    if value ~= math.floor(value) or value < smallest or value >= largest then
      host.fail(("prun.%s: %s is no %s"):format(name, schema.show(value), of))
    end
    if math.tointeger(value + 0.0) ~= math.tointeger(value) then
      host.fail(("prun.%s: %d would be rounded to %.0f, since a plan's numbers are doubles"):format(name, value, value))
    end
  end
end

-- Returns the dims of x with the first one multiplied (or divided) by the size of the group.
local function resized(name, input, ranks, grow)
  local shape = table.move(input.shape, 1, #input.shape, 1, {})
  local first = shape[1] or 1
  if not grow and first % ranks ~= 0 then
    host.fail(("prun.%s: %d elements along the first dim do not divide into the %d pieces of the group"):format(
      name, first, ranks))
  end
  shape[1] = grow and first * ranks or first // ranks
  return shape
end

-- Functions that make tensors.
local function add_sources(words)
  local keys = 0  -- the key of a random tensor is its number in the program

  words.full = word("full", {
    { name = "dims", kind = "dims", least = 1, most = most, help = "its dims, such as { 5 }" },
    { name = "value", kind = "number", infinite = true, nan = true, signed = true, help = "what fills it" },
    options = { dtype },
  }, function(dims, value, opt)
    check_elements("full", { value }, opt.dtype)
    local y = graph.tensor("full", opt.dtype, dims)
    graph.add("fill", {}, { y }, { value = value + 0.0 })
    return y
  end)

  words.tensor = word("tensor", {
    { name = "values", kind = "numbers", infinite = true, nan = true, signed = true,
      help = "its elements: prun.tensor { 1, 2, 3 }" },
    options = { dtype },
  }, function(values, opt)
    if #values == 0 then host.fail("prun.tensor takes a list of numbers: prun.tensor { 1, 2, 3 }") end
    check_elements("tensor", values, opt.dtype)
    local y = graph.tensor("tensor", opt.dtype, { #values })
    graph.add("values", {}, { y }, { values = values })
    return y
  end)

  -- n is a number, or a one-element tensor that is known only at run time and is at most `max`.
  words.iota = word("iota", {
    { name = "n", kind = "count", least = 1, most = most, help = "how many, or a tensor of one i64" },
    options = { whole("start", 0, "first element"), whole("step", 1, "from one element to the next"), dtype, max },
  }, function(n, opt)
    local known = type(n) == "number"
    if not known and not opt.max then host.fail("prun.iota of a count known only at run time needs max = ...") end
    if known and opt.max and n > opt.max then
      host.fail(("prun.iota: %d elements, and max is %d"):format(n, opt.max))
    end
    if not known then check_count("iota", n, opt.max) end
    local y = graph.tensor("iota", opt.dtype, { known and n or opt.max })
    if not known then rawset(y, "count", n) end
    graph.add("iota", known and {} or { n }, { y }, { start = opt.start, step = opt.step })
    return y
  end)

  -- A number in [low, high], different on each rank and in each step.
  words.random_int = word("random_int", {
    whole("low", nil, "the least number"), whole("high", nil, "the largest number"),
  }, function(low, high)
    if low > high then host.fail("prun.random_int takes two whole numbers, the smaller one first") end
    keys = keys + 1
    local y = graph.tensor("random_int", "i64", {})
    graph.add("random_int", {}, { y }, { low = low, high = high, key = keys })
    range_of[y] = { low, high }
    return y
  end)
end

-- Forgets the range of random_int, because the tensor changes in place.
local function changed(input)
  range_of[input] = nil
  return input
end

-- Functions that move tensors between the ranks of a group.
local function add_collectives(words, rank, mesh)
  local function group(name, opt)
    if opt.axis == "world" then return opt.axis, host.world, rank end
    local stride = mesh.ranks
    for _, one in ipairs(mesh.axes) do
      stride = stride // one[2]
      if one[1] == opt.axis then return opt.axis, one[2], rank // stride % one[2] end
    end
    local names = { "world" }
    for _, one in ipairs(mesh.axes) do names[#names + 1] = one[1] end
    return host.fail(("prun.%s: the mesh has no axis '%s'%s"):format(
      name, opt.axis, host.did_you_mean(opt.axis, names)))
  end

  local function root_of(name, given, ranks)
    if given < 0 or given >= ranks then
      host.fail(("prun.%s: the root must be a rank of the group, 0 to %d, not %s"):format(
        name, ranks - 1, schema.show(given)))
    end
    return given
  end

  -- In place.
  words.broadcast = word("broadcast", { x, root, options = { axis } }, function(input, from, opt)
    local of, ranks = group("broadcast", opt)
    graph.add("broadcast", { input }, { input }, { root = root_of("broadcast", from, ranks) }, of)
    return changed(input)
  end)

  -- In place on the root; the other ranks keep their values.
  words.reduce = word("reduce", { x, op, root, options = { axis } }, function(input, how, to, opt)
    local of, ranks = group("reduce", opt)
    graph.add("reduce", { input }, { input }, { op = how, root = root_of("reduce", to, ranks) }, of)
    return changed(input)
  end)

  -- In place.
  words.all_reduce = word("all_reduce", { x, op, options = { axis } }, function(input, how, opt)
    graph.add("all_reduce", { input }, { input }, { op = how }, (group("all_reduce", opt)))
    return changed(input)
  end)

  -- Returns all pieces on the root and nil on the other ranks.
  words.gather = word("gather", { x, root, options = { axis } }, function(input, to, opt)
    local of, ranks, me = group("gather", opt)
    to = root_of("gather", to, ranks)
    local y = graph.tensor("gather", input.dtype, resized("gather", input, ranks, true))
    graph.add("gather", { input }, { y }, { root = to }, of)
    return me == to and y or nil
  end)

  words.all_gather = word("all_gather", { x, options = { axis } }, function(input, opt)
    local of, ranks = group("all_gather", opt)
    local y = graph.tensor("all_gather", input.dtype, resized("all_gather", input, ranks, true))
    graph.add("all_gather", { input }, { y }, {}, of)
    return y
  end)

  -- x has the same size on every rank; only the root's x is read.
  words.scatter = word("scatter", { x, root, options = { axis } }, function(input, from, opt)
    local of, ranks = group("scatter", opt)
    local y = graph.tensor("scatter", input.dtype, resized("scatter", input, ranks, false))
    graph.add("scatter", { input }, { y }, { root = root_of("scatter", from, ranks) }, of)
    return y
  end)

  words.reduce_scatter = word("reduce_scatter", { x, op, options = { axis } }, function(input, how, opt)
    local of, ranks = group("reduce_scatter", opt)
    local y = graph.tensor("reduce_scatter", input.dtype, resized("reduce_scatter", input, ranks, false))
    graph.add("reduce_scatter", { input }, { y }, { op = how }, of)
    return y
  end)

  words.all_to_all = word("all_to_all", { x, options = { axis } }, function(input, opt)
    local of, ranks = group("all_to_all", opt)
    resized("all_to_all", input, ranks, false)
    local y = graph.tensor("all_to_all", input.dtype, table.move(input.shape, 1, #input.shape, 1, {}))
    graph.add("all_to_all", { input }, { y }, {}, of)
    return y
  end)

  words.barrier = word("barrier", { options = { axis } }, function(opt)
    graph.add("barrier", {}, {}, {}, (group("barrier", opt)))
  end)

  -- Concatenates the first n elements of each rank's x. n is a one-element tensor, at most max.
  words.all_gather_v = word("all_gather_v", {
    x, { name = "n", kind = "tensor", help = "how many of its elements: a tensor of one i64" }, options = { axis, max },
  }, function(input, n, opt)
    local of, ranks = group("all_gather_v", opt)
    local largest = opt.max or elements(input)
    if elements(input) ~= largest then
      host.fail(("prun.all_gather_v: the tensor has %d elements and max is %d: they must be equal"):format(
        elements(input), largest))
    end
    check_count("all_gather_v", n, largest)
    local y = graph.tensor("all_gather_v", input.dtype, { ranks * largest })
    local counts = graph.tensor("counts", "i64", { ranks })
    graph.add("all_gather_v", { input, n }, { y, counts }, {}, of)
    rawset(y, "count", counts)
    return y, counts
  end)
end

-- Returns the functions of one rank.
function collectives.words(rank, mesh)
  local words = {}
  add_sources(words)
  add_collectives(words, rank, mesh)

  -- Prints texts and numbers as they are, and tensors with their values at this point of the program.
  function words.print(...)
    local parts, inputs = {}, {}
    local function input(part)
      inputs[#inputs + 1] = part
      return #inputs - 1
    end
    local given = table.pack(...)
    for i = 1, given.n do
      local part = given[i]
      if not tensor.is(part) then
        parts[i] = schema.printed("prun.print", part)
      elseif rawget(part, "count") then
        parts[i] = { input(part), input(part.count) }
      else
        parts[i] = input(part)
      end
    end
    graph.add("print", inputs, {}, { parts = host.json(parts) })
  end

  return words
end

return collectives
