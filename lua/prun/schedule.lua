-- prun.schedule(name, order, traits): order(rank, ranks, micro, chunks) calls, in the order in which one rank of a
-- pipeline computes, prun.forward(microbatch, chunk), prun.backward(microbatch, chunk), or the two halves of backward,
-- prun.backward_input and prun.backward_weight. Microbatches, ranks and chunks count from 0; the default chunk is 0.
--
-- Sends, receives, frees and edges are derived. traits.chunks: default number of stages per rank; traits.placement:
-- "round" (chunk c of rank r is stage c·ranks + r) or "v" (the second chunks run back).

local record = require "prun.record"
local schema = require "prun.schema"

local kinds = { forward = 0, backward = 1, backward_input = 2, backward_weight = 3 }

local microbatch_of = { name = "microbatch", kind = "integer", signed = true, help = "which one, from 0" }
local chunk_of = { name = "chunk", kind = "integer", default = 0, signed = true, help = "which of the rank's, from 0" }

-- Returns a recorder of one rank's slots; it rejects orders that no order of the other ranks could make valid.
local function recorder(name, micro, chunks, site)
  local turns, done, words = {}, {}, {}
  local function refuse(text, ...) host.fail(("the schedule %s: " .. text):format(name, ...)) end
  local function need(kind, microbatch, chunk)
    if not done[kind .. microbatch .. "/" .. chunk] then
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
    local key = microbatch .. "/" .. other
    if done[kind .. key] or not forward and (done["backward" .. key] or done["backward_input" .. key]) then return end
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
      local key = microbatch .. "/" .. chunk
      if done[kind .. key] then refuse("%s of microbatch %d, chunk %d, is there twice", kind, microbatch, chunk) end
      if kind ~= "forward" then need("forward", microbatch, chunk) end
      follow(kind, microbatch, chunk)
      if kind == "backward_weight" then need("backward_input", microbatch, chunk) end
      if done["backward" .. key] or (kind == "backward" and done["backward_input" .. key]) then
        refuse("backward of microbatch %d, chunk %d, is there twice, whole and in halves", microbatch, chunk)
      end
      done[kind .. key] = true
      turns[#turns + 1] = { number, microbatch, chunk }
    end)
  end
  local function finish(rank)
    for microbatch = 0, micro - 1 do
      for chunk = 0, chunks - 1 do
        local key = microbatch .. "/" .. chunk
        local missing = not done["forward" .. key] and "forward" or
          not (done["backward" .. key] or done["backward_weight" .. key]) and
            (done["backward_input" .. key] and "backward_weight" or "backward")
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
