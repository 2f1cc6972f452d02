-- nn.einsum and nn.softmax along any dim, compared with the same written with broadcasting and sums. Each loss is the
-- mean square of a difference.
local prun = require "prun"
local nn = prun.nn

local arg = prun.args { wrong = { false, "compare with another product" } }
local sizes = { a = 2, b = 3, c = 4, d = 5, e = 2 }

local function dims(letters, kept)
  local list = {}
  for letter in letters:gmatch "." do
    list[#list + 1] = (not kept or kept:find(letter)) and sizes[letter] or 1
  end
  return list
end

local function operand(name, x, letters)
  local count = 1
  for _, size in ipairs(dims(letters)) do count = count * size end
  return nn.linear(name, x, count):reshape(dims(letters))
end

-- The dims of x, named `letters`, in the order of `all`, with 1 for the others.
local function spread(x, letters, all)
  local order = {}
  for letter in all:gmatch "." do
    local at = letters:find(letter)
    if at then order[#order + 1] = at - 1 end
  end
  return x:permute(order):reshape(dims(all, letters))
end

local equations = {
  "ab,bc->ac", "abc,cd->abd", "abcd,abed->abce", "acbd,ecbd->cbae", "abcd,acde->abce", "ab,cd->cabd", "abc,abd->acd",
  "abc,b->a", "ab,ab->ba", "a,ab->b", "abcd,dceb->ae",
}

return prun.plan {
  mesh = prun.mesh { dp = 1 },
  model = function(batch)
    local total
    local function add(name, difference)
      local one = prun.losses.mean_square(difference:reshape { 1, -1 }):named(name)
      total = total and total + one or one
    end
    for i, equation in ipairs(equations) do
      local of_a, of_b, result = equation:match "(%a+),(%a+)%->(%a+)"
      local a, b = operand("a" .. i, batch.x, of_a), operand("b" .. i, batch.x, of_b)
      local all, summed = result, {}
      for letter in (of_a .. of_b):gmatch "." do
        if not all:find(letter) then
          summed[#summed + 1] = #all
          all = all .. letter
        end
      end
      local product = spread(a, of_a, all) * spread(b, of_b, all)
      if #summed > 0 then product = nn.sum(product, summed) end
      add("einsum" .. i, nn.einsum(equation, a, b) - (arg.wrong and 1.1 or 1) * product)
    end
    local left, right = operand("left", batch.x, "abcd"), operand("right", batch.x, "dae")
    local rest = operand("rest", batch.x, "bce")
    local factor = arg.wrong and 1.1 or 1
    add("einsum_of_dots", nn.einsum("...cd,dae->...cae", left, right) -
      factor * nn.einsum("abcd,dfe->abcfe", left, right))
    add("einsum_of_fewer_dots", nn.einsum("...d,...e->...ed", left, rest) -
      factor * nn.einsum("abcd,bce->abced", left, rest))
    local three = operand("three", batch.x, "bde")
    local function difference(right_one)
      return (nn.matmul(left, right_one) - factor * nn.einsum("abcd,bde->abce", left, three)):reshape { 1, -1 }
    end
    add("matmul", nn.concat({ difference(three), difference(three:unsqueeze(0)) }, 1))
    local x = operand("x", batch.x, "abc")
    local shares = nn.exp(x) / nn.sum(nn.exp(x), 1, { keep = true })
    add("softmax", nn.softmax(x, 1) - (arg.wrong and 1.1 or 1) * shares)
    add("log_softmax", nn.log_softmax(x, -2) - (arg.wrong and 1.1 or 1) * nn.log(shares))
    return total
  end,
  data = prun.data.random { batch = 1, inputs = 6, outputs = 1 },
  optimizer = prun.sgd { lr = 0.1 },
  steps = 1,
}
