-- nn.buffer, nn.update and nn.by_phase: state of a model that is no parameter, such as running statistics.
--
--   local steps = nn.buffer("steps", { 1 })
--   nn.update(steps, steps + 1)
--
-- A buffer has no gradient, no optimizer state and no weight decay; checkpoints have it under its name.
-- Surprising fact: each microbatch updates it, and reads the value that the microbatch before it has left.

local graph = require "prun.graph"
local schema = require "prun.schema"
local tensor = require "prun.tensor"

local buffers = {}

local function word(called, arguments, fn)
  arguments.before = function() graph.here("nn." .. called) end
  buffers[called] = schema.word("prun.nn." .. called, arguments, fn)
end

word("buffer", {
  { name = "name", kind = "name", help = "of the buffer, within its unit" },
  { name = "dims", kind = "dims", least = 1, most = graph.most_elements, help = "its dims, such as { 64 }" },
  { name = "init", kind = "init", default = schema.convert("init", "zeros"), help = "initial values" },
}, function(name, dims, init) return graph.parameter(name, dims, init, nil, true, true) end)

word("update", {
  { name = "buffer", kind = "tensor", help = "the result of nn.buffer" },
  { name = "value", kind = "tensor", help = "the buffer's value after the microbatch, the same on all ranks" },
}, function(buffer, value)
  local g, record = graph.current, tensor.record(buffer)
  if not record.buffer then
    host.fail(("nn.update: '%s' (%s:%d) is %s; nn.buffer makes what it can update"):format(record.name,
      record.site[1], record.site[2], record.kind == "parameter" and "a parameter, which the optimizer updates" or
      "no buffer"))
  end
  local before = g.updated[record.id]
  if before then
    host.fail(("nn.update: the buffer '%s' is updated already (%s:%d); a step updates it once"):format(record.name,
      before[1], before[2]))
  end
  g.updated[record.id] = host.site()
  graph.op("update", { buffer, value })
end)

word("by_phase", { options = {
  { name = "train", kind = "tensor", help = "the value in training" },
  { name = "eval", kind = "tensor", help = "the value in evaluations, predictions and generations" },
} }, function(opt) return (graph.op("by_phase", { opt.train, opt.eval })) end)

return buffers
