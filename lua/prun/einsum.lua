-- nn.einsum("bqhd,bkhd->bhqk", q, k): a product of two tensors with its dims named by letters, as in PyTorch.
--
-- "..." are the dims that an operand has besides its letters, as in "...d,de->...e"; all operands have the same.
--
-- Letters of both operands that the result lacks are multiplied and summed, in a matmul whose rows, columns and leading
-- dims are groups of letters. Without such letters it is a product with broadcasting. Views arrange the dims; of the
-- arrangements that compute the same, the one with the fewest permutes that copy is recorded.

local arithmetic = require "prun.arithmetic"
local graph = require "prun.graph"
local schema = require "prun.schema"
local views = require "prun.views"

local shown = "nn.einsum"

local function described(one)
  return ("'%s' [%s] (%s:%d)"):format(one.name, table.concat(one.shape, ", "), one.site[1], one.site[2])
end

local function letters_of(text)
  local list = {}
  for letter in text:gmatch "." do list[#list + 1] = letter end
  return list
end

-- Puts letters in place of "...", those of the last dims for an operand that has fewer dims.
local function without_dots(equation, text, tensors)
  if not text:find("...", 1, true) then return text end
  local most, counts, i = 0, {}, 0
  for side in text:match("^[^%-]*"):gmatch "[^,]+" do
    i = i + 1
    local letters = #side:gsub("%.", "")
    counts[i] = side:find("...", 1, true) and tensors[i] and #tensors[i].shape - letters or 0
    if counts[i] < 0 then
      host.fail(('%s: "%s" has %d letters for %s, which has %d dims'):format(
        shown, equation, letters, described(tensors[i]), #tensors[i].shape))
    end
    most = math.max(most, counts[i])
  end
  local free = {}
  for letter in ("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"):gmatch "." do
    if #free < most and not text:find(letter, 1, true) then free[#free + 1] = letter end
  end
  counts[3], i = most, 0  -- the result has all of them
  return (text:gsub("[^,%->]+", function(side)
    i = i + 1
    return (side:gsub("%.%.%.", table.concat(free, "", most - (counts[i] or 0) + 1, most)))
  end))
end

-- Returns the letters of both operands and of the result.
local function parse(equation, tensors)
  local text = without_dots(equation, equation:gsub("%s", ""), tensors)
  local a, b, result = text:match "^(%a+),(%a+)%->(%a+)$"
  if not a then
    host.fail(('%s: "%s" should name the dims of two tensors and of the result, such as "bik,bkj->bij"'):format(
      shown, equation))
  end
  for _, side in ipairs { a, b, result } do
    local seen = {}
    for letter in side:gmatch "." do
      if seen[letter] then
        host.fail(('%s: "%s" has \'%s\' twice in \'%s\'; each dim has a letter of its own'):format(
          shown, equation, letter, side))
      end
      seen[letter] = true
    end
  end
  for letter in result:gmatch "." do
    if not a:find(letter) and not b:find(letter) then
      host.fail(('%s: \'%s\' of the result is in neither tensor of "%s"'):format(shown, letter, equation))
    end
  end
  return letters_of(a), letters_of(b), letters_of(result)
end

-- Returns the size of each letter.
local function sizes_of(equation, tensors, letters)
  local sizes, from = {}, {}
  for i, one in ipairs(tensors) do
    local shape = one.shape
    if #shape ~= #letters[i] then
      host.fail(('%s: "%s" has %d letters for %s, which has %d dims'):format(
        shown, equation, #letters[i], described(one), #shape))
    end
    for d, letter in ipairs(letters[i]) do
      if sizes[letter] and sizes[letter] ~= shape[d] then
        host.fail(("%s: '%s' is %d in %s and %d in %s"):format(
          shown, letter, sizes[letter], described(from[letter]), shape[d], described(one)))
      end
      sizes[letter], from[letter] = shape[d], one
    end
  end
  return sizes
end

local function set_of(list)
  local set = {}
  for _, one in ipairs(list) do set[one] = true end
  return set
end

-- Returns the letters of `list` that pass.
local function where(list, passes)
  local found = {}
  for _, letter in ipairs(list) do
    if passes(letter) then found[#found + 1] = letter end
  end
  return found
end

local function joined(...)
  local all = {}
  for _, list in ipairs { ... } do table.move(list, 1, #list, #all + 1, all) end
  return all
end

-- Permutes the dims of `input` from the order `letters` to the order `target`.
local function arranged(input, letters, target)
  local order = {}
  for i, letter in ipairs(target) do
    for d, one in ipairs(letters) do
      if one == letter then order[i] = d - 1 end
    end
  end
  return views.permute(input, order)
end

local function reshaped(input, dims)
  local shape = input.shape
  return table.concat(shape, ",") == table.concat(dims, ",") and input or views.reshape(input, dims)
end

local function product(list, sizes)
  local count = 1
  for _, letter in ipairs(list) do count = count * sizes[letter] end
  return count
end

local function sizes_in(list, sizes)
  local dims = {}
  for i, letter in ipairs(list) do dims[i] = sizes[letter] end
  return dims
end

-- Sums over the letters that only this operand has.
local function without_own(input, letters, other, result)
  local own, kept, dims = set_of(other), {}, {}
  local wanted = set_of(result)
  for d, letter in ipairs(letters) do
    if own[letter] or wanted[letter] then kept[#kept + 1] = letter else dims[#dims + 1] = d - 1 end
  end
  if #dims == 0 then return input, letters end
  if #kept == 0 then
    host.fail(("%s: no dim of %s is in the result or in the other tensor; nn.sum adds up all of it"):format(
      shown, described(input)))
  end
  return arithmetic.sum(input, dims), kept
end

-- A product without summed letters.
local function broadcast(a, b, of_a, of_b, result, sizes)
  local function placed(input, letters)
    local mine = set_of(letters)
    local dims = {}
    for i, letter in ipairs(result) do dims[i] = mine[letter] and sizes[letter] or 1 end
    while dims[1] == 1 and #dims > 1 do table.remove(dims, 1) end
    return reshaped(arranged(input, letters, where(result, function(letter) return mine[letter] end)), dims)
  end
  return arithmetic.mul(placed(a, of_a), placed(b, of_b))
end

local function same(p, q) return table.concat(p) == table.concat(q) end

-- A matmul reads and writes a permuted tensor with strides, if no dims have to become one (compile/elide_views.cc).
local function cost_of_permute(outer, inner, last)
  local strided = #outer == 1 and #inner == 1 and (last == outer[1] or last == inner[1])
  return strided and 0.1 or 1
end

-- Returns how matmul computes the product: its rows are from `a`, its columns from `b`; `cost`: the tensors that it
-- permutes, a tenth for those that need no copy.
local function way(of_a, of_b, result, batch, inner)
  local kept, summed = set_of(batch), set_of(inner)
  local rows = where(result, function(letter) return set_of(of_a)[letter] and not kept[letter] end)
  local columns = where(result, function(letter) return set_of(of_b)[letter] and not kept[letter] end)
  local function operand(letters, outer, inner_last)
    local plain, turned = joined(batch, outer, inner), joined(batch, inner, outer)
    if not inner_last then plain, turned = turned, plain end
    if same(letters, plain) then return plain, false, 0 end
    if same(letters, turned) then return turned, true, 0 end
    -- The last dim remains the last, so that the matmul of its gradient writes it with strides, too.
    local last, transposed = letters[#letters], letters[#letters] == turned[#turned]
    return transposed and turned or plain, transposed, cost_of_permute(outer, inner, last)
  end
  assert(next(summed) ~= nil)
  local one = { rows = rows, columns = columns, inner = inner }
  local first, second
  one.a, one.transpose_a, first = operand(of_a, rows, true)
  one.b, one.transpose_b, second = operand(of_b, columns, false)
  one.made = joined(batch, rows, columns)
  -- The rows of a matmul's result are contiguous.
  local last = result[#result] == columns[1] and columns[1] or nil
  one.cost = first + second + (same(one.made, result) and 0 or cost_of_permute(rows, columns, last))
  return one
end

local function multiplied(a, b, of_a, of_b, one, batch, result, sizes)
  local leading = sizes_in(batch, sizes)
  local function matrix(input, letters, order, transposed, outer, inner_last)
    local m, k = product(outer, sizes), product(one.inner, sizes)
    if not inner_last then m, k = k, m end
    if transposed then m, k = k, m end
    return reshaped(arranged(input, letters, order), joined(leading, { m, k }))
  end
  local right = matrix(b, of_b, one.b, one.transpose_b, one.columns, false)
  local y
  if #batch == 0 and #one.rows > 0 and not one.transpose_a then  -- rows keep their dims, as in a linear layer
    local left = reshaped(arranged(a, of_a, one.a), joined(sizes_in(one.rows, sizes), { product(one.inner, sizes) }))
    y = arithmetic.matmul(left, right, { transpose_b = one.transpose_b })
  else
    local left = matrix(a, of_a, one.a, one.transpose_a, one.rows, true)
    y = arithmetic.matmul(left, right, { transpose_a = one.transpose_a, transpose_b = one.transpose_b })
  end
  return arranged(reshaped(y, sizes_in(one.made, sizes)), one.made, result)
end

return schema.word("prun.nn.einsum", {
  { name = "equation", kind = "text", help = 'letters of the dims of a, of b and of the result: "bik,bkj->bij"' },
  { name = "a", kind = "tensor", help = "the first tensor" }, { name = "b", kind = "tensor", help = "the second" },
  before = function() graph.here(shown) end,
}, function(equation, a, b)
  local of_a, of_b, result = parse(equation, { a, b })
  local sizes = sizes_of(equation, { a, b }, { of_a, of_b })
  a, of_a = without_own(a, of_a, of_b, result)
  b, of_b = without_own(b, of_b, of_a, result)
  local in_a, in_b, wanted = set_of(of_a), set_of(of_b), set_of(result)
  local batch = where(result, function(letter) return in_a[letter] and in_b[letter] end)
  local summed_a = where(of_a, function(letter) return in_b[letter] and not wanted[letter] end)
  local summed_b = where(of_b, function(letter) return in_a[letter] and not wanted[letter] end)
  if #summed_a == 0 then return broadcast(a, b, of_a, of_b, result, sizes) end
  local best, swapped
  for _, inner in ipairs { summed_a, summed_b } do
    for _, swap in ipairs { false, true } do
      local one = swap and way(of_b, of_a, result, batch, inner) or way(of_a, of_b, result, batch, inner)
      if not best or one.cost < best.cost then best, swapped = one, swap end
    end
  end
  if swapped then a, b, of_a, of_b = b, a, of_b, of_a end
  return multiplied(a, b, of_a, of_b, best, batch, result, sizes)
end)
