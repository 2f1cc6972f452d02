-- A loss: Σ factor · (what an op of prun.losses computes), so that losses can be added, scaled and named. The factors
-- become attributes of the ops; nothing is computed from a loss.
--
-- Surprising fact: a name stands for the loss that it was given to, whatever it is multiplied by later.

local tensor = require "prun.tensor"

local loss = {}
local meta = { __name = "loss", __metatable = "loss" }

-- `terms`: a list of { of, factor }; `of` is a tensor, or a penalty { pattern, site }. `names`: a list of
-- { name, terms, site }.
local function make(terms, names)
  return setmetatable({ kind_of = "loss", terms = terms, names = names or {} }, meta)
end

function loss.of(what) return make { { of = what, factor = 1.0 } } end
function loss.is(value) return type(value) == "table" and rawget(value, "kind_of") == "loss" end

-- Returns the key under which two terms are the same.
local function key(of) return tensor.is(of) and tensor.record(of) or of end
loss.key = key

-- Returns the list of terms, each op once.
local function merged(terms)
  local result, at = {}, {}
  for _, term in ipairs(terms) do
    local known = at[key(term.of)]
    if known then
      known.factor = known.factor + term.factor
    else
      result[#result + 1] = { of = term.of, factor = term.factor }
      at[key(term.of)] = result[#result]
    end
  end
  return result
end

local function join(a, b)
  local all = table.move(a, 1, #a, 1, {})
  return table.move(b, 1, #b, #all + 1, all)
end

local function scaled(self, factor)
  local terms = {}
  for i, term in ipairs(self.terms) do terms[i] = { of = term.of, factor = term.factor * factor } end
  return make(terms, self.names)
end

local function number(value, what)
  if type(value) ~= "number" then
    host.fail(("a loss can be %s only, not %s"):format(what, require("prun.kinds").show(value)))
  end
  if value - value ~= 0 then host.fail(("a loss times %s is no loss"):format(value)) end
  return value + 0.0
end

function meta.__add(a, b)
  if a == 0 then return b end  -- a sum that begins with 0
  if not (loss.is(a) and loss.is(b)) then
    local other = loss.is(a) and b or a
    host.fail(("a loss can be added to another loss only, not to %s%s"):format(require("prun.kinds").show(other),
      type(other) == "number" and ": a constant trains nothing" or
      tensor.is(other) and ": prun.losses.mean of the tensor is one" or ""))
  end
  return make(merged(join(a.terms, b.terms)), join(a.names, b.names))
end
function meta.__unm(a) return scaled(a, -1.0) end
function meta.__sub(a, b) return a + (loss.is(b) and -b or b) end
function meta.__mul(a, b)
  local self, factor = a, b
  if not loss.is(self) then self, factor = b, a end
  return scaled(self, number(factor, "multiplied by a number"))
end
function meta.__div(a, b)
  if not loss.is(a) or b == 0 then host.fail "a loss can be divided by a number other than 0 only" end
  return scaled(a, 1 / number(b, "divided by a number"))
end
for _, event in ipairs {
  "__pow", "__mod", "__idiv", "__band", "__bor", "__bxor", "__shl", "__shr", "__bnot", "__concat", "__lt", "__le",
} do
  meta[event] = function() host.fail "losses have +, -, * and / by numbers only" end
end
function meta.__tostring(self)
  local parts = {}
  for i, term in ipairs(self.terms) do
    local name = tensor.is(term.of) and tensor.record(term.of).name or ("l2 of %s"):format(term.of.pattern)
    parts[i] = (term.factor == 1 and "" or ("%.6g * "):format(term.factor)) .. name
  end
  return "loss " .. table.concat(parts, " + ")
end
function meta.__len() host.fail "a loss is one number; it has no length" end

-- Fields of a row of metrics that no number of a model may take.
local reserved = {}
for name in ([[step loss eval_loss learning_rate grad_norm skipped tokens samples time_s wall_time tokens_per_s
  samples_per_s comm_s exposed_comm_s data_s memory_bytes model_flops_per_s mfu host_us idle eval_s norms plan ranks
  mesh steps seconds transports kernels exit_code failure skipped_steps]]):gmatch "[%w_]+" do
  reserved[name] = true
end

-- Fails unless `name` can be a field of a row of metrics.
function loss.check_name(name, what)
  if type(name) ~= "string" or not name:find "^[%a_][%w_]*$" or #name > 40 then
    host.fail(("%s: a name is at most 40 letters, digits and _, and begins with no digit; not %s"):format(what,
      require("prun.kinds").show(name)))
  end
  if reserved[name] or name:find "^eval_" then
    host.fail(("%s: '%s' is a field of --metrics already: choose another name"):format(what, name))
  end
  return name
end

local methods = {}
-- Reports the loss under a name, in steps and evaluations.
methods.named = host.word(function(self, name)
  if not loss.is(self) then host.fail "write loss:named \"balance\", with a colon" end
  loss.check_name(name, "loss:named")
  return make(self.terms, join(self.names, { { name = name, terms = self.terms, site = host.site("user") } }))
end)

function meta.__index(_, name)
  if methods[name] then return methods[name] end
  host.fail(("a loss has no '%s'%s"):format(tostring(name), host.did_you_mean(tostring(name), { "named" })))
end
function meta.__newindex() host.fail "a loss is not a plan's to change" end

return loss
