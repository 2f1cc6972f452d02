-- Activation recomputation (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"): between forward and
-- backward a unit keeps only its inputs; backward recomputes the rest. It communicates nothing, so it has no axis.

local prun = require "prun"

return prun.strategy("recompute", {
  axis = { "", "none" },
  units = { { "block" }, "classes of units to recompute" },
  stages = { {}, "pipeline stages whose units are recomputed; by default all" },
  whole = { false, "all of a unit, also what backward has no use for, as other frameworks do" },
}, function(unit, opt)
  for _, class in ipairs(opt.units) do
    if unit.name == class then unit:recompute(opt.whole, #opt.stages > 0 and opt.stages or nil) end
  end
end, { splits = "nothing" })
