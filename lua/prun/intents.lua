-- What a strategy's hooks can do: each word records one intent, which the compiler carries out where the hook runs.
-- Hooks run once a class of units; they see no value and no schedule.
--
-- Handles have numbers of their own in each strategy, so that two strategies on one unit cannot meet by accident.

local schema = require "prun.schema"

local intents = {}

local axis = { name = "axis", kind = "text", help = "mesh axis of the group" }
local op = { name = "op", kind = "text", default = "avg", choices = { "avg", "sum" }, help = "how to reduce" }
local stream = { name = "stream", kind = "text", default = "", help = "stream of its own; empty: the compute stream" }
local wire = { name = "wire", kind = "text", default = "", choices = { "", "f32", "bf16" },
               help = "dtype that travels; empty: that of the data" }

local options_of = {
  all_gather = {
    axis, stream,
    { name = "prefetch", kind = "integer", default = 0, least = 0, help = "how many gathers may run ahead" },
    { name = "keep", kind = "boolean", default = false, help = "gather once a step, outside of the pool of slots" },
    wire,
  },
  reduce_scatter = {
    axis, op,
    { name = "into", kind = "any", help = "where the rank's piece goes: unit.grad_shard" },
    stream,
    { name = "inflight", kind = "integer", default = 1, least = 1,
      help = "how many may be unfinished behind backward" },
    { name = "bucket", kind = "text", default = "unit", choices = { "unit" }, help = "one reduction a unit" },
    wire,
  },
  all_reduce = {
    axis, op, stream,
    { name = "bucket", kind = "bytes", optional = true,
      help = "gradients of several units in one reduction of this size" },
    { name = "first", kind = "bytes", optional = true, help = "size of the first bucket, to start early" },
    wire,
  },
  free = { { name = "keep", kind = "any", optional = true, help = "unit.last: not where backward comes next" } },
}

-- What a hook can name: one of the unit's vectors, or what an all_gather made.
function intents.target(name) return { kind_of = "target", target = name } end

local function expect(value, kind, word, example)
  if type(value) ~= "table" or value.kind_of ~= kind then
    host.fail(("prun.%s needs %s"):format(word, example))
  end
  return value
end

local function options(word, given)
  return schema.check("prun." .. word, options_of[word], given, host.site("user"))
end

-- A recorder: its words add to its field `intents`.
function intents.recorder()
  local self = { intents = nil, next_handle = 0, words = {} }
  local words = self.words

  local function add(intent)
    intent.site = host.site()
    self.intents[#self.intents + 1] = intent
    return intent
  end

  function words.all_gather(what, given)
    local opt = options("all_gather", given)
    local name = expect(what, "target", "all_gather", "what to gather first: unit.params").target
    local handle = self.next_handle
    self.next_handle = handle + 1
    add { kind = "all_gather", target = name, handle = handle, axis = opt.axis, stream = opt.stream,
          prefetch = opt.prefetch, keep = opt.keep, wire = opt.wire }
    return { kind_of = "handle", handle = handle }
  end

  function words.free(handle, given)
    local opt = options("free", given)
    add { kind = "free", handle = expect(handle, "handle", "free", "what an all_gather returned").handle,
          keep_last = opt.keep ~= nil }
  end

  -- Gathers again unless the handle is live still: one op, since a hook cannot know.
  function words.ensure(handle, gather)
    local number = handle and expect(handle, "handle", "ensure", "what an all_gather returned").handle
    if type(gather) ~= "function" then
      host.fail("prun.ensure needs the function that gathers, as its second argument")
    end
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
  end

  function words.reduce_scatter(what, given)
    local opt = options("reduce_scatter", given)
    local name = expect(what, "target", "reduce_scatter", "what to reduce first: unit.grads").target
    expect(opt.into, "target", "reduce_scatter", "into = unit.grad_shard")
    add { kind = "reduce_scatter", target = name, axis = opt.axis, op = opt.op, stream = opt.stream,
          inflight = opt.inflight, bucket = 0, wire = opt.wire }
  end

  function words.all_reduce(what, given)
    local opt = options("all_reduce", given)
    local name = expect(what, "target", "all_reduce", "what to reduce first: unit.grads").target
    add { kind = "all_reduce", target = name, axis = opt.axis, op = opt.op, stream = opt.stream,
          bucket = opt.bucket or 0, first = opt.first or 0, wire = opt.wire }
  end

  -- prun.print("gradient before averaging:", unit.grads)
  function words.print(...)
    local texts, what = {}, nil
    for _, part in ipairs { ... } do
      if type(part) == "table" and part.kind_of == "target" then
        if what then host.fail("prun.print in a hook prints one vector at a time") end
        what = part.target
      else
        texts[#texts + 1] = tostring(part)
      end
    end
    add { kind = "print", target = what or "", text = table.concat(texts, " ") }
  end

  return self
end

return intents
