-- The words of a program: tensors, collectives (named and ordered as in NCCL and torch.distributed), print. Those that
-- keep the size work in place; the others return a new tensor, of pieces in the order of ranks.
--
-- A tensor whose number of elements is known only at run time has a declared maximum and carries the tensor of its
-- count.

local graph = require "prun.graph"
local schema = require "prun.schema"
local tensor = require "prun.tensor"

local collectives = {}

local reductions = { "sum", "prod", "min", "max", "avg" }
local dtypes = { "f32", "f64", "bf16", "i64", "i32", "i8", "u8" }

local dtype = { name = "dtype", kind = "text", default = "f32", choices = dtypes, help = "type of the elements" }
local axis = { name = "axis", kind = "text", default = "world", help = "mesh axis of the group; by default all ranks" }
local max = { name = "max", kind = "integer", optional = true, least = 1, help = "most elements that a rank may have" }

local options_of = {
  full = { dtype }, tensor = { dtype },
  iota = {
    { name = "start", kind = "integer", default = 0, help = "first element" },
    { name = "step", kind = "integer", default = 1, help = "from one element to the next" },
    dtype, max,
  },
  broadcast = { axis }, reduce = { axis }, all_reduce = { axis }, gather = { axis }, all_gather = { axis },
  scatter = { axis }, reduce_scatter = { axis }, all_to_all = { axis }, barrier = { axis },
  all_gather_v = { axis, max },
}

local function options(word, given) return schema.check("prun." .. word, options_of[word], given, host.site("user")) end

local function need_tensor(word, x)
  if not tensor.is(x) then
    host.fail(("prun.%s needs a tensor, not %s"):format(word, type(x) == "table" and "a table" or schema.show(x)))
  end
  return x
end

local function elements(x)
  local count = 1
  for _, size in ipairs(x.shape) do count = count * size end
  return count
end

local function dims(word, given)
  if type(given) == "number" then given = { given } end
  local shape = {}
  for i, size in ipairs(type(given) == "table" and given or host.fail(("prun.%s takes dims, such as { 5 }"):format(
    word))) do
    shape[i] = type(size) == "number" and math.tointeger(size)
    if not shape[i] or shape[i] < 1 then
      host.fail(("prun.%s: dim %d must be a whole number of at least 1, not %s"):format(word, i, schema.show(size)))
    end
  end
  return shape
end

local function reduction(word, op)
  op = op or "sum"
  for _, known in ipairs(reductions) do
    if op == known then return op end
  end
  return host.fail(("prun.%s has no reduction '%s'%s"):format(
    word, tostring(op), host.did_you_mean(tostring(op), reductions)))
end

-- The dims of x with the first one multiplied (or divided) by the size of the group.
local function resized(word, x, ranks, grow)
  local shape = table.move(x.shape, 1, #x.shape, 1, {})
  local first = shape[1] or 1
  if not grow and first % ranks ~= 0 then
    host.fail(("prun.%s: %d elements along the first dim do not divide into the %d pieces of the group"):format(
      word, first, ranks))
  end
  shape[1] = grow and first * ranks or first // ranks
  return shape
end

-- Words that make tensors.
local function add_sources(words)
  local keys = 0  -- a random tensor's key is its number in the program

  function words.full(shape, value, given)
    local opt = options("full", given)
    if type(value) ~= "number" then host.fail(("prun.full needs a number to fill with, not %s"):format(
      schema.show(value))) end
    local y = graph.tensor("full", opt.dtype, dims("full", shape))
    graph.add("fill", {}, { y }, { value = value + 0.0 })
    return y
  end

  function words.tensor(list, given)
    local opt = options("tensor", given)
    local values = schema.convert("numbers", list)
    if not values or #values == 0 then host.fail("prun.tensor takes a list of numbers: prun.tensor { 1, 2, 3 }") end
    local y = graph.tensor("tensor", opt.dtype, { #values })
    graph.add("values", {}, { y }, { values = values })
    return y
  end

  -- n is a number, or a tensor with one element that is known at run time only and at most `max`.
  function words.iota(n, given)
    local opt = options("iota", given)
    local known = type(n) == "number"
    if not known and not opt.max then host.fail("prun.iota of a count known only at run time needs max = ...") end
    local y = graph.tensor("iota", opt.dtype, dims("iota", known and n or opt.max))
    if not known then rawset(y, "count", need_tensor("iota", n)) end
    graph.add("iota", known and {} or { n }, { y }, { start = opt.start, step = opt.step })
    return y
  end

  -- One number in [low, high], another on every rank and in every step.
  function words.random_int(low, high)
    if math.type(low) ~= "integer" or math.type(high) ~= "integer" or low > high then
      host.fail("prun.random_int takes two whole numbers, the smaller one first")
    end
    keys = keys + 1
    local y = graph.tensor("random_int", "i64", {})
    graph.add("random_int", {}, { y }, { low = low, high = high, key = keys })
    return y
  end
end

-- Words that move tensors between the ranks of a group.
local function add_collectives(words, rank, mesh)
  local function group(word, opt)
    if opt.axis == "world" then return opt.axis, host.world, rank end
    local stride = mesh.ranks
    for _, one in ipairs(mesh.axes) do
      stride = stride // one[2]
      if one[1] == opt.axis then return opt.axis, one[2], rank // stride % one[2] end
    end
    local names = { "world" }
    for _, one in ipairs(mesh.axes) do names[#names + 1] = one[1] end
    return host.fail(("prun.%s: the mesh has no axis '%s'%s"):format(
      word, opt.axis, host.did_you_mean(opt.axis, names)))
  end

  local function root_of(word, root, ranks)
    root = root or 0
    if math.type(root) ~= "integer" or root < 0 or root >= ranks then
      host.fail(("prun.%s: the root must be a rank of the group, 0 to %d, not %s"):format(
        word, ranks - 1, schema.show(root)))
    end
    return root
  end

  -- In place.
  function words.broadcast(x, root, given)
    local name, ranks = group("broadcast", options("broadcast", given))
    graph.add("broadcast", { need_tensor("broadcast", x) }, { x }, { root = root_of("broadcast", root, ranks) }, name)
    return x
  end

  -- In place on the root; the others keep what they have.
  function words.reduce(x, op, root, given)
    local name, ranks = group("reduce", options("reduce", given))
    graph.add("reduce", { need_tensor("reduce", x) }, { x },
      { op = reduction("reduce", op), root = root_of("reduce", root, ranks) }, name)
    return x
  end

  -- In place.
  function words.all_reduce(x, op, given)
    local name = group("all_reduce", options("all_reduce", given))
    graph.add("all_reduce", { need_tensor("all_reduce", x) }, { x }, { op = reduction("all_reduce", op) }, name)
    return x
  end

  -- Returns all pieces on the root and nil elsewhere.
  function words.gather(x, root, given)
    local name, ranks, me = group("gather", options("gather", given))
    root = root_of("gather", root, ranks)
    local y = graph.tensor("gather", need_tensor("gather", x).dtype, resized("gather", x, ranks, true))
    graph.add("gather", { x }, { y }, { root = root }, name)
    return me == root and y or nil
  end

  function words.all_gather(x, given)
    local name, ranks = group("all_gather", options("all_gather", given))
    local y = graph.tensor("all_gather", need_tensor("all_gather", x).dtype, resized("all_gather", x, ranks, true))
    graph.add("all_gather", { x }, { y }, {}, name)
    return y
  end

  -- x is of the same size on every rank; only the root's is read.
  function words.scatter(x, root, given)
    local name, ranks = group("scatter", options("scatter", given))
    local y = graph.tensor("scatter", need_tensor("scatter", x).dtype, resized("scatter", x, ranks, false))
    graph.add("scatter", { x }, { y }, { root = root_of("scatter", root, ranks) }, name)
    return y
  end

  function words.reduce_scatter(x, op, given)
    local name, ranks = group("reduce_scatter", options("reduce_scatter", given))
    local shape = resized("reduce_scatter", need_tensor("reduce_scatter", x), ranks, false)
    local y = graph.tensor("reduce_scatter", x.dtype, shape)
    graph.add("reduce_scatter", { x }, { y }, { op = reduction("reduce_scatter", op) }, name)
    return y
  end

  function words.all_to_all(x, given)
    local name, ranks = group("all_to_all", options("all_to_all", given))
    resized("all_to_all", need_tensor("all_to_all", x), ranks, false)
    local y = graph.tensor("all_to_all", x.dtype, table.move(x.shape, 1, #x.shape, 1, {}))
    graph.add("all_to_all", { x }, { y }, {}, name)
    return y
  end

  function words.barrier(given) graph.add("barrier", {}, {}, {}, (group("barrier", options("barrier", given)))) end

  -- The first n elements of x of each rank, one after another. n is a tensor with one element, at most max.
  function words.all_gather_v(x, n, given)
    local opt = options("all_gather_v", given)
    local name, ranks = group("all_gather_v", opt)
    local most = opt.max or elements(need_tensor("all_gather_v", x))
    if elements(need_tensor("all_gather_v", x)) ~= most then
      host.fail(("prun.all_gather_v: the tensor has %d elements and max is %d: they must be equal"):format(
        elements(x), most))
    end
    if need_tensor("all_gather_v", n).dtype ~= "i64" or elements(n) ~= 1 then
      host.fail("prun.all_gather_v: the count must be a tensor of one i64, such as prun.random_int makes")
    end
    local y = graph.tensor("all_gather_v", x.dtype, { ranks * most })
    local counts = graph.tensor("counts", "i64", { ranks })
    graph.add("all_gather_v", { x, n }, { y, counts }, {}, name)
    rawset(y, "count", counts)
    return y, counts
  end
end

-- The words for one rank.
function collectives.words(rank, mesh)
  local words = {}
  add_sources(words)
  add_collectives(words, rank, mesh)

  -- Texts and numbers as they are, tensors with the values they have at this place of the program.
  function words.print(...)
    local parts, inputs = {}, {}
    local function input(x)
      inputs[#inputs + 1] = x
      return #inputs - 1
    end
    local given = table.pack(...)
    for i = 1, given.n do
      local part = given[i]
      if not tensor.is(part) then
        parts[i] = tostring(part)
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
