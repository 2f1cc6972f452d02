-- A handle of a model's or program's tensor: a name for a value that will exist when the program runs. It has no data.

local tensor = { methods = {} }  -- methods: functions of a tensor by name, x:reshape { .. } (views.lua)
local meta = { __name = "tensor", __metatable = "tensor" }
local record, recording = {}, {}  -- keys that no plan has

-- `value`: the record that the plan will contain, which a tensor shows. `graph`: its recording.
function tensor.new(value, graph) return setmetatable({ [record] = value, [recording] = graph }, meta) end

-- Returns the read-only record that the plan will contain, and the graph in which it was recorded.
function tensor.record(self) return self[record], self[recording] end

function tensor.is(value) return type(value) == "table" and rawget(value, record) ~= nil end

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

-- Returns x times -1.
local function negative(x) return tensor.is(x) and both("mul", x, -1) or x end

function meta.__add(a, b) return both("add", a, b) end
function meta.__mul(a, b) return both("mul", a, b) end
function meta.__sub(a, b) return both("add", a, negative(b)) end
function meta.__unm(a) return negative(a) end
function meta.__div(a, b)
  if tensor.is(b) or type(b) ~= "number" or b == 0 then
    host.fail "a tensor can be divided by a number other than 0 only"
  end
  return both("mul", a, 1 / b)
end
function meta.__pow(_, b)
  host.fail(("prun has no powers yet%s"):format(b == 2 and "; x * x is the square" or ""))
end
for _, event in ipairs {
  "__mod", "__idiv", "__band", "__bor", "__bxor", "__shl", "__shr", "__bnot", "__concat", "__lt", "__le",
} do
  meta[event] = function() host.fail "tensors have +, -, * and / only, and no comparisons" end
end
function meta.__tostring(self) return ("tensor %s %s[%s]"):format(
  self.name, self.dtype, table.concat(self.shape, ", ")) end
-- A plan must not change the record, so a tensor returns a copy of its dims. Equal tensors share theirs.
function meta.__index(self, name)
  local value = rawget(self, record)[name]
  if type(value) == "table" then
    local copy = {}
    for key, one in host.next, value do copy[key] = one end
    return copy
  end
  if value ~= nil then return value end
  if tensor.methods[name] then return tensor.methods[name] end
  host.fail(("a tensor has no '%s'%s"):format(tostring(name),
    require("prun.elsewhere").method(name, { "shape", "dtype", "name" })))
end
function meta.__newindex(self, name)
  host.fail(("a tensor's '%s' is not a plan's to change: %s is what was recorded"):format(tostring(name),
    tostring(self)))
end
function meta.__len() host.fail("a tensor's dims are in its field `shape`; it has no length") end

return tensor
