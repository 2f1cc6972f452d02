-- What a model or program holds in its hands: a name for a value that will exist when the program runs. No numbers.

local tensor = {}
local meta = { __name = "tensor" }

-- `value` is the record that the plan will contain; a tensor is that record with operators.
function tensor.new(value) return setmetatable(value, meta) end

function tensor.is(value) return type(value) == "table" and getmetatable(value) == meta end

local function both(kind, a, b)
  local nn = require "prun.nn"
  if tensor.is(a) and tensor.is(b) then return nn[kind](a, b) end
  if kind == "mul" then
    if type(a) == "number" then a, b = b, a end
    if tensor.is(a) and type(b) == "number" then return nn.scale(a, b) end
  end
  host.fail(("a tensor can be %s another tensor%s only"):format(kind == "add" and "added to" or "multiplied by",
    kind == "mul" and " or a number" or ""))
end

function meta.__add(a, b) return both("add", a, b) end
function meta.__mul(a, b) return both("mul", a, b) end
function meta.__tostring(self) return ("tensor %s %s[%s]"):format(
  self.name, self.dtype, table.concat(self.shape, ", ")) end
-- What a plan may ask a tensor for; its record has more.
function meta.__index(_, name)
  host.fail(("a tensor has no '%s'%s"):format(tostring(name), host.did_you_mean(tostring(name),
    { "shape", "dtype", "name" })))
end
function meta.__len() host.fail("a tensor's dims are in its field `shape`; it has no length") end

return tensor
