-- prun.pipeline { axis = "pp", schedule = "1f1b" }: each rank has some of the model's layers (stages), and microbatches
-- flow through them. A schedule (prun/schedules) orders each rank's computation, and its sends and receives follow from
-- that. Stages have equal numbers of layers, (split = "flops") equal work, the listed layers (stages = { 3, 5 }), or
-- the listed units (layout = "embed | block*3 | ... | head").

local kinds = require "prun.kinds"
local schema = require "prun.schema"
local stage_layout = require "prun.stage_layout"

local schedules = { "gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe_v" }

local entries = schema.register("prun.pipeline", {
  { name = "axis", kind = "axis", default = "pp", help = "mesh axis of the stages" },
  { name = "schedule", kind = "schedule", default = "1f1b",
    help = "gpipe, 1f1b, interleaved, zb_h1, zb_v, dualpipe_v, or what prun.schedule made" },
  { name = "chunks", kind = "integer", optional = true, least = 1, most = 1000000,
    help = "stages of one rank; by default the schedule's" },
  { name = "split", kind = "text", default = "layers", choices = { "layers", "flops" },
    help = "what stages share equally" },
  { name = "stages", kind = "integers", optional = true, least = 1,
    help = "layers of each stage, in order, such as { 3, 5, 5, 3 }, instead of equal shares" },
  { name = "layout", kind = "texts", optional = true,
    help = "the units of each stage, such as \"embed | block*3 | ... | head\", instead of equal shares" },
  { name = "transfer", kind = "text", default = "send", choices = { "send", "put" },
    help = "send: messages; put: the sender writes into the receiver's memory, one-sided" },
})

local function find_schedule(given, site)
  if kinds.kind_of(given) == "schedule" then return given end
  local place = host.site_of_word(site, "schedule")
  for _, known in ipairs(schedules) do
    if given == known then return require("prun.schedules." .. known) end
  end
  host.fail(("there is no schedule '%s'%s"):format(tostring(given), host.did_you_mean(tostring(given), schedules)),
    place)
end

-- Returns the plan's record of the pipeline.
local function result(self, mesh, micro)
  local ranks = mesh.size_of[self.axes[1]]
  return { axis = self.axes[1], chunks = self.chunks, placement = self.schedule.placement, split = self.options.split,
           stages = self.options.stages, layout = self.layout, transfer = self.options.transfer,
           schedule = self.schedule.name, site = self.site,
           turns = host.outline and {} or self.schedule.record(ranks, micro, self.chunks) }
end

return schema.constructor("prun.pipeline", entries, function(_, given)
  local site = host.site("user")
  local options = schema.check("prun.pipeline", entries, given, site)
  local schedule = find_schedule(options.schedule, site)
  local chunks = options.chunks or schedule.chunks
  if schedule.placement == "v" and chunks ~= 2 then
    host.fail(("the schedule %s places two chunks on each rank, not %d"):format(schedule.name, chunks),
      host.site_of_word(site, "chunks"))
  end
  if chunks > 1 and schedule.chunks == 1 then
    host.fail(("the schedule %s has one chunk a rank, not %d; interleaved has several"):format(schedule.name, chunks),
      host.site_of_word(site, "chunks"))
  end
  local layout = options.layout and stage_layout(options.layout, function(problem)
    host.fail("prun.pipeline: 'layout' " .. problem, host.site_of_word(site, "layout"))
  end)
  for _, other in ipairs { "stages", "split" } do
    if layout and given[other] ~= nil then
      host.fail(("prun.pipeline: 'layout' and '%s' both share the layers; omit one"):format(other),
        host.site_of_word(site, other))
    end
  end
  return { kind_of = "strategy", name = "pipeline", site = site, axes = { options.axis }, shared = {},
           splits = "nothing", options = options, layout = layout, schedule = schedule, chunks = chunks,
           pipeline = result, body = function() end }
end)
