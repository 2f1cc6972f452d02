-- A handle of a model's or program's tensor: a name for a value that will exist when the program runs. It has no data.

local tensor = { methods = {} }  -- methods: functions of a tensor by name, x:reshape { .. } (views.lua)
local meta = { __name = "tensor", __metatable = "tensor" }
local record, recording = {}, {}  -- keys that no plan has

-- `value`: the record that the plan will contain, which a tensor shows. `graph`: its recording.
function tensor.new(value, graph) return setmetatable({ [record] = value, [recording] = graph }, meta) end

-- Returns the read-only record that the plan will contain, and the graph in which it was recorded.
function tensor.record(self) return self[record], self[recording] end

function tensor.is(value) return type(value) == "table" and rawget(value, record) ~= nil end

local function nn(called, a, b)
  local other = tensor.is(a) and b or a
  if not tensor.is(other) and type(other) ~= "number" then
    host.fail(("a tensor can be combined with a tensor or a number, not with %s%s"):format(
      require("prun.kinds").show(other), type(other) == "boolean" and
      "; a comparison of tensors is nn.less(a, b), nn.equal(a, b) and the like" or ""))
  end
  return require("prun.nn")[called](a, b)
end

function meta.__add(a, b) return nn("add", a, b) end
function meta.__mul(a, b) return nn("mul", a, b) end
function meta.__unm(a) return nn("mul", a, -1) end
function meta.__sub(a, b)
  if tensor.is(a) and tensor.is(b) then
    local p, q = a.shape, b.shape
    if table.concat(p, ",") == table.concat(q, ",") then return nn("add", a, nn("mul", b, -1)) end
  end
  return nn("sub", a, b)
end
function meta.__div(a, b)
  if b == 0 then host.fail "a tensor cannot be divided by 0" end
  if type(b) == "number" then return nn("mul", a, 1 / b) end
  return nn("div", a, b)
end
function meta.__pow(a, b) return nn("pow", a, b) end
for _, event in ipairs {
  "__mod", "__idiv", "__band", "__bor", "__bxor", "__shl", "__shr", "__bnot", "__concat",
} do
  meta[event] = function() host.fail "tensors have the operators +, -, *, / and ^ only" end
end
for event, called in pairs { __lt = "nn.less(a, b)", __le = "nn.less_equal(a, b)" } do
  meta[event] = function()
    host.fail(("a comparison in Lua is true or false at once; %s is a tensor of 1 and 0"):format(called))
  end
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
