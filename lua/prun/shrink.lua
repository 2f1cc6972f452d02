-- The same plan with other sizes, for `prun check --prove`: host.shrink says how large the axes of the mesh are, how
-- many microbatches and samples a step has, and whether strategies stay (alone: one rank trains what they would).

-- Changes `plan`; returns the strategies that are left.
return function(plan, strategies)
  local sizes, axes, size_of, ranks, text = host.shrink, {}, {}, 1, {}
  for i, axis in ipairs(plan.mesh.axes) do
    local size = sizes.axes[axis[1]]
    axes[i], size_of[axis[1]], ranks, text[i] = { axis[1], size }, size, ranks * size, axis[1] .. "=" .. size
  end
  plan.mesh = { kind_of = "mesh", axes = axes, size_of = size_of, ranks = ranks, site = plan.mesh.site,
                text = table.concat(text, " x ") }
  plan.micro, plan.data.options.batch, plan.eval = sizes.micro, sizes.batch, nil
  plan.init = nil  -- of the model's own sizes
  return sizes.alone and {} or strategies
end
