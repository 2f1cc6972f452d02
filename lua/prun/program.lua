-- prun.program(function(r) ... end): explicit ops and collectives, for teaching and experiments. The function runs once
-- for each rank (r.rank of r.world); ranks with identical recordings form one rank class.

local collectives = require "prun.collectives"
local graph = require "prun.graph"
local record = require "prun.record"
local schema = require "prun.schema"

local most_ranks = 1024

local arguments = {
  { name = "fn", kind = "fn", help = "what a rank does: prun.program(function(r) ... end)" },
  options = {
    { name = "mesh", kind = "mesh", optional = true, help = "axes for collectives over a part of the ranks" },
  },
  site = true,
}

-- Returns the function's argument: rank, number of ranks, and the index along each axis of the mesh.
local function make_rank(rank, mesh)
  local r = { rank = rank, world = host.world }
  local stride = mesh.ranks
  for _, axis in ipairs(mesh.axes) do
    stride = stride // axis[2]
    r[axis[1]] = rank // stride % axis[2]
  end
  return setmetatable({}, {
    __index = function(_, name)
      if r[name] == nil then
        local names = {}
        for known in pairs(r) do names[#names + 1] = known end
        host.fail(("a rank has no '%s'%s"):format(tostring(name), host.did_you_mean(tostring(name), names)))
      end
      return r[name]
    end,
  })
end

-- Returns the plan's record of one rank's ops.
local function record_rank(fn, rank, mesh)
  local words = collectives.words(rank, mesh)
  local recorded = graph.record("f32", false, function()
    record.within("a program", words, fn, make_rank(rank, mesh))
  end)
  local tensors, ops = {}, {}
  for i, value in ipairs(recorded.values) do
    tensors[i] = { name = value.name, dtype = value.dtype, shape = value.shape }
  end
  for i, node in ipairs(recorded.nodes) do
    node.call = nil
    ops[i] = node
  end
  return { tensors = tensors, ops = ops }
end

return schema.word("prun.program", arguments, function(fn, opt, site)
  if host.world > most_ranks then
    host.fail(("a program is recorded rank by rank, for at most %d ranks, not %d"):format(most_ranks, host.world), site)
  end
  local mesh = opt.mesh or { axes = { { "rank", host.world } }, ranks = host.world, site = site }
  if opt.mesh and mesh.size_of.rank and mesh.size_of.rank ~= host.world then
    host.fail("no axis of a program's mesh may be called 'rank': r.rank is the number of the rank",
      host.site_of_word(mesh.site, "rank"))
  end
  if mesh.ranks ~= host.world then
    host.fail(("the mesh %s is for %d ranks, and there are %d (--nproc)"):format(
      mesh.text, mesh.ranks, host.world), mesh.site)
  end
  local programs, program_of_rank, known = {}, {}, {}
  for rank = 0, host.world - 1 do
    local program = record_rank(fn, rank, mesh)
    local key = host.encode(program)
    if not known[key] then
      programs[#programs + 1] = program
      known[key] = #programs - 1
    end
    program_of_rank[rank + 1] = known[key]
  end
  return host.result { path = host.plan_path, kind = "program", mesh = { axes = mesh.axes, site = mesh.site },
                       programs = programs, program_of_rank = program_of_rank }
end)
