-- Records the plan in other sizes, which host.shrink holds. For `prun check --prove`: sizes of the mesh axes,
-- microbatches and samples per step, whether to drop the strategies (alone: one rank trains the same), and further
-- sizes for the same recording of the model (others). For `prun generate`, which runs the model for one sample: how
-- many ranks split the weights (tensor_ranks).

local function resize(plan, sizes, size_of_axis)
  local axes, size_of, ranks, text = {}, {}, 1, {}
  for i, axis in ipairs(plan.mesh.axes) do
    local size = size_of_axis(axis[1])
    axes[i], size_of[axis[1]], ranks, text[i] = { axis[1], size }, size, ranks * size, axis[1] .. "=" .. size
  end
  plan.mesh = { kind_of = "mesh", axes = axes, size_of = size_of, ranks = ranks, site = plan.mesh.site,
                text = table.concat(text, " x ") }
  plan.micro, plan.data.options.batch, plan.eval = sizes.micro, sizes.batch, nil
  plan.init = nil  -- they have the original sizes
end

-- Keeps only strategies that split weights, over the first axis that one of them has.
local function for_generation(plan, strategies, sizes)
  local kept, axis = {}, nil
  for _, one in ipairs(strategies) do
    if one.splits == "nothing" and not one.pipeline then
      kept[#kept + 1], axis = one, axis or one.axes[1]
    end
  end
  if sizes.tensor_ranks > 1 and not axis then
    host.fail(("no strategy of this plan splits the weights (prun.tensor_parallel), so one rank generates, not %d " ..
      "(--nproc)"):format(sizes.tensor_ranks), plan.mesh.site)
  end
  resize(plan, sizes, function(name) return name == axis and sizes.tensor_ranks or 1 end)
  return kept
end

-- Changes `plan`; returns the remaining strategies.
return function(plan, strategies)
  local sizes = host.shrink
  if sizes.tensor_ranks > 0 then return for_generation(plan, strategies, sizes) end
  resize(plan, sizes, function(name) return sizes.axes[name] end)
  return sizes.alone and {} or strategies
end
