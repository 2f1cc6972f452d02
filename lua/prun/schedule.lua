-- prun.schedule(name, order, traits): order(rank, ranks, micro, chunks) calls, in the order in which one rank of a
-- pipeline computes, prun.forward(microbatch, chunk), prun.backward(microbatch, chunk), or the two halves of backward,
-- prun.backward_input and prun.backward_weight. Microbatches, ranks and chunks count from 0; the default chunk is 0.
--
-- prun.both(prun.forward(i), prun.backward(j)) runs two slots at once: while one communicates, the other computes.
--
-- Sends, receives, frees and edges are derived. traits.chunks: default number of stages per rank; traits.placement:
-- "round" (chunk c of rank r is stage c·ranks + r) or "v" (the second chunks run back).

local record = require "prun.record"
local schema = require "prun.schema"

local kinds = { forward = 0, backward = 1, backward_input = 2, backward_weight = 3 }
local kind_names = { [0] = "forward", "backward", "backward_input", "backward_weight" }

local microbatch_of = { name = "microbatch", kind = "integer", signed = true, help = "which one, from 0" }
local function slot_of(name) return { name = name, kind = "slot", help = "prun.forward(i) or prun.backward(j)" } end
local chunk_of = { name = "chunk", kind = "integer", default = 0, signed = true, help = "which of the rank's, from 0" }

-- Returns a recorder of one rank's slots; it rejects orders that no order of the other ranks could make valid.
local function recorder(name, micro, chunks, site)
  local turns, words = {}, {}
  local done = { forward = {}, backward = {}, backward_input = {}, backward_weight = {} }  -- by key
  local function key_of(microbatch, chunk) return microbatch * chunks + chunk end
  local function refuse(text, ...) host.fail(("the schedule %s: " .. text):format(name, ...)) end
  local function need(kind, microbatch, chunk)
    if not done[kind][key_of(microbatch, chunk)] then
      refuse("%s of microbatch %d, chunk %d, comes before its %s", turns.now, microbatch, chunk, kind)
    end
  end
  -- A rank's own stages depend on each other: forward of a chunk needs the previous one's, backward the next one's. An
  -- error about a missing chunk takes precedence.
  local turned
  local function follow(kind, microbatch, chunk)
    local forward = kind == "forward"
    local other = forward and chunk - 1 or chunk + 1
    if turned or kind == "backward_weight" or other < 0 or other >= chunks then return end
    local key = key_of(microbatch, other)
    if done[kind][key] or not forward and (done.backward[key] or done.backward_input[key]) then return end
    local phase = forward and "forward" or "backward"
    turned = { ("the schedule %s: %s of microbatch %d, chunk %d, comes before %s of its chunk %d"):format(
      name, phase, microbatch, chunk, phase, other), host.site "user" }
  end
  for kind, number in pairs(kinds) do
    local arguments = { microbatch_of, chunk_of, scope = "schedule" }
    words[kind] = schema.word("prun." .. kind, arguments, function(microbatch, chunk)
      if microbatch < 0 or microbatch >= micro then
        refuse("there is no microbatch %s; they are 0 to %d", tostring(microbatch), micro - 1)
      end
      if chunk < 0 or chunk >= chunks then
        refuse("there is no chunk %s; they are 0 to %d", tostring(chunk), chunks - 1)
      end
      turns.now = kind
      local key = key_of(microbatch, chunk)
      if done[kind][key] then refuse("%s of microbatch %d, chunk %d, is there twice", kind, microbatch, chunk) end
      if kind ~= "forward" then need("forward", microbatch, chunk) end
      follow(kind, microbatch, chunk)
      if kind == "backward_weight" then need("backward_input", microbatch, chunk) end
      if done.backward[key] or (kind == "backward" and done.backward_input[key]) then
        refuse("backward of microbatch %d, chunk %d, is there twice, whole and in halves", microbatch, chunk)
      end
      done[kind][key] = true
      turns[#turns + 1] = { number, microbatch, chunk }
      return turns[#turns]
    end)
  end
  local function describe(slot) return ("%s of microbatch %d"):format(kind_names[slot[1]], slot[2]) end
  words.both = schema.word("prun.both", { slot_of "one", slot_of "other", scope = "schedule" }, function(one, other)
    local last, before = turns[#turns], turns[#turns - 1]
    if not (one == before and other == last) then
      refuse("prun.both takes the two slots before it, as in prun.both(prun.forward(i), prun.backward(j))")
    end
    local outer = turns[#turns - 2]
    if outer and outer[4] then refuse("%s is in an earlier prun.both", describe(one)) end
    if (one[1] == kinds.forward) == (other[1] == kinds.forward) then
      refuse("prun.both takes a forward and a backward, not %s and %s", describe(one), describe(other))
    end
    if one[2] == other[2] then
      refuse("prun.both has forward and backward of microbatch %d, which depend on each other", one[2])
    end
    one[4] = 1
  end)
  local function finish(rank)
    for microbatch = 0, micro - 1 do
      for chunk = 0, chunks - 1 do
        local key = key_of(microbatch, chunk)
        local missing = not done.forward[key] and "forward" or
          not (done.backward[key] or done.backward_weight[key]) and
            (done.backward_input[key] and "backward_weight" or "backward")
        if missing then
          host.fail(("the schedule %s: rank %d never runs %s of microbatch %d, chunk %d"):format(
            name, rank, missing, microbatch, chunk), site)
        end
      end
    end
    if turned then host.fail(turned[1], turned[2]) end
    turns.now = nil
    return turns
  end
  return words, finish
end

return host.word(schema.word("prun.schedule", {
  { name = "name", kind = "name", help = "of the schedule, in messages" },
  { name = "order", kind = "fn", help = "function(rank, ranks, micro, chunks)" },
  options = {
    { name = "chunks", kind = "integer", default = 1, least = 1, most = 1000000,
      help = "stages that a rank has unless the plan says otherwise" },
    { name = "placement", kind = "text", default = "round", choices = { "round", "v" },
      help = "round: chunk c of rank r is stage c * ranks + r; v: the second chunks come back" },
  },
  site = true,
}, function(name, order, traits, site)
  local self = { kind_of = "schedule", name = name, chunks = traits.chunks, placement = traits.placement }
  -- Returns the slots of each rank.
  function self.record(ranks, micro, chunks)
    local all = {}
    for rank = 0, ranks - 1 do
      local words, finish = recorder(name, micro, chunks, site)
      record.within("a schedule", words, order, rank, ranks, micro, chunks)
      all[rank + 1] = finish(rank)
    end
    return all
  end
  return self
end))
