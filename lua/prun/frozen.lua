-- frozen = "embed*|block*": parameters that training leaves as they are: they have no gradient and no optimizer state.

local parameter_names = require "prun.parameter_names"

-- Returns for each unit a list of 1 (frozen) or 0 by parameter.
return function(pattern, recorded, site)
  local place = host.site_of_word(site, "frozen")
  local compiled, problem = parameter_names.compile(pattern)
  if problem then host.fail("prun.plan: 'frozen' " .. problem, place) end
  local units, marks, frozen, count = parameter_names.of(recorded), {}, 0, 0
  for i, parameters in ipairs(units) do
    marks[i] = {}
    for k, parameter in ipairs(parameters) do
      marks[i][k], count = 0, count + 1
      for _, name in ipairs(parameter.names) do
        if parameter_names.matches(compiled, name) then marks[i][k] = 1 end
      end
      frozen = frozen + marks[i][k]
    end
  end
  if host.shrink or host.outline then return marks end  -- the model may have fewer layers than the plan's
  if frozen == 0 then
    host.fail(("prun.plan: 'frozen' (%s) matches no parameter%s"):format(pattern,
      parameter_names.hint(pattern, recorded, units)), place)
  end
  if frozen == count then
    host.fail(("prun.plan: 'frozen' (%s) matches every parameter: there is nothing to train"):format(pattern), place)
  end
  return marks
end
