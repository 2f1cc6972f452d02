-- The third operand of a cross-entropy: each target's share of the mean over what counts in the whole batch. The reader
-- computes it (exec/count_targets.h), because it can count all targets of the batch without communication.
--
-- Surprising fact: a loss whose data cannot hold an ignored target has no such operand, because all shares would be 1.

local graph = require "prun.graph"
local tensor = require "prun.tensor"

local shares = {}

local usual = -100  -- PyTorch's ignore_index

local function fail(text, ...)
  host.fail(("prun.losses.cross_entropy: " .. text):format(...))
end

local function elements(x)
  local count = 1
  for _, size in ipairs(x.shape) do count = count * size end
  return count
end

local function check_weights(weights, targets)
  if weights.kind ~= "input" or weights.dtype == "i32" then
    fail("'weights' must be numbers that the batch has, such as batch.weights, and '%s' is %s", weights.name,
      weights.kind == "input" and "ids" or "computed")
  end
  if elements(weights) ~= elements(targets) or weights.shape[1] ~= targets.shape[1] then
    fail("the weights are [%s], and the targets [%s]: each target has one", table.concat(weights.shape, ", "),
      table.concat(targets.shape, ", "))
  end
end

-- Returns the tensor of shares, or nil if all targets count equally. `ignore`, `weights`: nil = not given.
function shares.of(targets, ignore, weights)
  local g = graph.here("prun.losses.cross_entropy")
  local of, by = tensor.record(targets), weights and tensor.record(weights)
  local given = ignore ~= nil or weights ~= nil
  if of.kind ~= "input" then
    if given then fail("'ignore' and 'weights' need targets of the batch, and '%s' is computed", of.name) end
    return nil
  end
  if by then check_weights(by, of) end
  local absent = ignore == nil or ignore < 0  -- tokens count from 0
  if not by and absent and not g.may_ignore[of.name] then return nil end
  ignore = ignore or usual
  local known = g.shares_of[of.name] or { ignore = ignore, site = host.site() }
  g.shares_of[of.name] = known
  if known.ignore ~= ignore then
    fail("'ignore' is %d, and %d where the targets '%s' are used at %s:%d: targets have one such id", ignore,
      known.ignore, of.name, known.site[1], known.site[2])
  end
  local name = of.name .. ".shares" .. (by and "." .. by.name or "")
  if not known[name] then
    known[name] = graph.input(name, g.dtype == "f64" and "f64" or "f32", of.shape,
      { targets = of.name, weights = by and by.name or "", ignored = ignore })
  end
  return known[name]
end

return shares
