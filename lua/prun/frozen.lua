-- frozen = "embed*|block*": parameters that training leaves as they are: they have no gradient and no optimizer state.

local parameter_names = require "prun.parameter_names"

-- Returns for each unit a list of 1 (frozen) or 0 by parameter.
return function(pattern, recorded, site)
  local place = host.site_of_word(site, "frozen")
  local compiled, written = parameter_names.compile(pattern)
  if not compiled then host.fail("prun.plan: 'frozen' " .. written, place) end
  local units, marks, used, frozen, count = parameter_names.of(recorded), {}, {}, 0, 0
  for i, parameters in ipairs(units) do
    marks[i] = {}
    for k, parameter in ipairs(parameters) do
      marks[i][k], count = 0, count + math.min(1, #parameter.names)
      for _, name in ipairs(parameter.names) do
        for which, one in ipairs(compiled) do
          if name:find(one) then marks[i][k], used[which] = 1, true end
        end
      end
      frozen = frozen + marks[i][k]
    end
  end
  if host.shrink or host.outline then return marks end  -- the model may have fewer layers than the plan's
  for which, one in ipairs(written) do
    if not used[which] then
      host.fail(("prun.plan: 'frozen' (%s) matches no parameter%s"):format(one,
        parameter_names.hint(one, recorded, units)), place)
    end
  end
  if frozen == count then
    host.fail(("prun.plan: 'frozen' (%s) matches every parameter: there is nothing to train"):format(pattern), place)
  end
  return marks
end
