-- The functions of a strategy's hooks: each records one intent, which the compiler carries out where the hook runs.
-- Hooks run once per class of units, without access to values or schedules.
--
-- Each strategy numbers its own handles, so that two strategies on one unit cannot collide.

local kinds = require "prun.kinds"
local schema = require "prun.schema"

local intents = {}

local axis = { name = "axis", kind = "axis", help = "mesh axis of the group" }
local op = { name = "op", kind = "text", default = "avg", choices = { "avg", "sum" }, help = "how to reduce" }
local stream = { name = "stream", kind = "stream", default = "", help = "stream of its own; empty: the compute stream" }
local wire = { name = "wire", kind = "text", default = "", choices = { "", "f32", "bf16" },
               help = "dtype that travels; empty: that of the data" }
local handle = { name = "handle", kind = "handle", help = "what an all_gather returned" }
local what = { name = "what", kind = "target", help = "what to reduce first: unit.grads" }
local most_pieces = 1000000  -- upper bound for anything in flight

local recording  -- the unit whose body or hooks run

-- Runs fn(...) for `unit`; returns its results.
function intents.within(unit, fn, ...)
  recording = unit
  local results = table.pack(fn(...))
  recording = nil
  return table.unpack(results, 1, results.n)
end

-- Defines a method of a unit or its parts; it fails outside the unit's body, whose record is complete by then.
function intents.method(unit, kind, word, arguments, fn)
  return schema.method(kind, word, arguments, function(...)
    if recording ~= unit then
      host.fail(("%s: this unit is of the class '%s', and %s"):format(word, unit.class, recording and
        ("the strategy's body runs for '%s'"):format(recording.class) or "its strategy's body has ended"))
    end
    return fn(...)
  end)
end

-- Returns an operand of hooks: one of the unit's vectors, or an all_gather's result. `unit`: its owner.
function intents.target(name, unit, fields)
  local target = fields or {}
  target.kind_of, target.target, target.unit = "target", name, unit
  return schema.closed("unit." .. name, target)
end

-- Describes the owner of an operand that a hook of `unit` cannot use.
local function owner_text(owner, unit)
  if owner.class == unit.class then return "of another strategy" end
  return ("of the class '%s', and the hook is of '%s'"):format(owner.class, unit.class)
end

-- Fails unless `value` is one of the vectors `names` of the unit whose hook runs.
local function expect(value, unit, word, names)
  if value.unit ~= unit then
    host.fail(("prun.%s: this is unit.%s %s"):format(word, value.target, owner_text(value.unit, unit)))
  end
  for _, name in ipairs(names) do
    if value.target == name then return name end
  end
  return host.fail(("prun.%s is of unit.%s, not of unit.%s"):format(word, table.concat(names, " or unit."),
    value.target))
end

-- Returns a recorder for the hooks of `unit`; its functions append to its field `intents`.
function intents.recorder(unit)
  local self = { intents = nil, next_handle = 0, words = {} }
  local words = self.words

  local function add(intent)
    intent.site = host.site()
    self.intents[#self.intents + 1] = intent
    return intent
  end

  local function expect_handle(word, given)
    if given.unit ~= unit then
      host.fail(("prun.%s: this was gathered by a hook %s"):format(word, owner_text(given.unit, unit)))
    end
    return given.handle
  end

  local function word(name, arguments, fn)
    arguments.scope = "hook"
    words[name] = schema.word("prun." .. name, arguments, fn)
  end

  word("all_gather", {
    { name = "what", kind = "gathered",
      help = "unit.params, or pieces that an all_gather over another of their axes returned" },
    options = {
      axis, stream,
      { name = "prefetch", kind = "integer", default = 0, least = 0, most = most_pieces,
        help = "how many gathers may run ahead" },
      { name = "keep", kind = "boolean", default = false, help = "gather once a step, outside of the pool of slots" },
      wire,
    },
  }, function(given, opt)
    local chained, number = kinds.kind_of(given) == "handle", self.next_handle
    local source = chained and expect_handle("all_gather", given) or nil
    if not source then expect(given, unit, "all_gather", { "params" }) end
    self.next_handle = number + 1
    add { kind = "all_gather", target = "params", handle = number, source = source, axis = opt.axis,
          stream = opt.stream, prefetch = opt.prefetch, keep = opt.keep, wire = opt.wire }
    return { kind_of = "handle", handle = number, unit = unit }
  end)

  word("free", {
    handle,
    options = { { name = "keep", kind = "last", optional = true, help = "unit.last: not where backward comes next" } },
  }, function(given, opt)
    add { kind = "free", handle = expect_handle("free", given), keep_last = opt.keep ~= nil }
  end)

  -- Gathers again unless the handle is live. This is one op because a hook cannot test that.
  word("ensure", {
    { name = "handle", kind = "handle", optional = true, help = "what an all_gather returned" },
    { name = "gather", kind = "fn", help = "the function that gathers" },
  }, function(given, gather)
    local number = given and expect_handle("ensure", given)
    local outer, next_handle = self.intents, self.next_handle
    self.intents, self.next_handle = {}, number or next_handle
    gather()
    local inner = self.intents
    self.intents, self.next_handle = outer, number and next_handle or next_handle + 1
    if #inner ~= 1 or inner[1].kind ~= "all_gather" then
      host.fail("the function given to prun.ensure must do one prun.all_gather and nothing else")
    end
    inner[1].kind = "ensure"
    add(inner[1])
  end)

  word("reduce_scatter", {
    what,
    options = {
      axis, op,
      { name = "into", kind = "target", help = "where the rank's piece goes: unit.grad_shard" },
      stream,
      { name = "inflight", kind = "integer", default = 1, least = 1, most = most_pieces,
        help = "how many may be unfinished behind backward" },
      { name = "bucket", kind = "text", default = "unit", choices = { "unit" }, help = "one reduction a unit" },
      wire,
    },
  }, function(given, opt)
    local target = expect(given, unit, "reduce_scatter", { "grads", "grad_shard" })
    if opt.into.unit ~= unit or opt.into.target ~= "grad_shard" then
      host.fail(("prun.reduce_scatter: 'into' must be the unit's own unit.grad_shard, not unit.%s%s"):format(
        opt.into.target, opt.into.unit == unit and "" or " " .. owner_text(opt.into.unit, unit)),
        host.site_of_word(host.site("user"), "into"))
    end
    add { kind = "reduce_scatter", target = target, axis = opt.axis, op = opt.op, stream = opt.stream,
          inflight = opt.inflight, bucket = 0, wire = opt.wire }
  end)

  word("all_reduce", {
    what,
    options = {
      axis, op, stream,
      { name = "bucket", kind = "bytes", optional = true, least = 0,
        help = "gradients of several units in one reduction of this size" },
      { name = "first", kind = "bytes", optional = true, least = 0, help = "size of the first bucket, to start early" },
      wire,
    },
  }, function(given, opt)
    local target = expect(given, unit, "all_reduce", { "grads", "grad_shard", "params" })
    add { kind = "all_reduce", target = target, axis = opt.axis, op = opt.op, stream = opt.stream,
          bucket = opt.bucket or 0, first = opt.first or 0, wire = opt.wire }
  end)

  -- prun.print("gradient before averaging:", unit.grads)
  function words.print(...)
    local texts, what_printed = {}, nil
    for _, part in ipairs { ... } do
      if kinds.kind_of(part) == "target" then
        if what_printed then host.fail("prun.print in a hook prints one vector at a time") end
        what_printed = expect(part, unit, "print", { "params", "grads", "grad_shard" })
      else
        texts[#texts + 1] = schema.printed("prun.print", part)
      end
    end
    add { kind = "print", target = what_printed or "", text = table.concat(texts, " ") }
  end

  return self
end

return intents
