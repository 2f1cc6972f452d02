-- The results of a model, its loss and its metrics, as parts of the plan: the terms, each with the coefficient that its
-- ops get as an attribute, and the numbers that have names, as sums of terms.

local kinds = require "prun.kinds"
local loss = require "prun.loss"
local parameter_names = require "prun.parameter_names"
local schema = require "prun.schema"
local tensor = require "prun.tensor"

-- Returns the metrics of a model as a list in the order of their names: { name, terms, over, site }.
local function metrics_of(given, site)
  if given == nil then return {} end
  if type(given) ~= "table" or kinds.kind_of(given) or tensor.is(given) then
    host.fail(("the model's second result should be its metrics, { accuracy = prun.metrics.accuracy(..) }, not %s")
      :format(schema.show(given)), site)
  end
  local list = {}
  for name, one in pairs(given) do
    loss.check_name(name, "a metric of the model")
    if kinds.kind_of(one) ~= "metric" and not loss.is(one) then
      host.fail(("the metric '%s' is %s: prun.metrics.mean of a tensor is a metric, and so is a loss"):format(name,
        schema.show(one)), site)
    end
    list[#list + 1] = { name = name, terms = one.terms, over = rawget(one, "over"), site = site }
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

-- Returns the ids of the parameters that an L2 loss matches.
local function matched(penalty, recorded)
  local ids, used, units = {}, {}, parameter_names.of(recorded)
  for _, parameters in ipairs(units) do
    for _, parameter in ipairs(parameters) do
      local any = false
      for which, one in ipairs(penalty.compiled) do
        for _, name in ipairs(parameter.names) do
          if name:find(one) then any, used[which] = true, true end
        end
      end
      if any then ids[#ids + 1] = parameter.id end
    end
  end
  for which, one in ipairs(host.shrink and #ids > 0 and {} or penalty.written) do
    if not used[which] then
      host.fail(("prun.losses.l2: '%s' matches no parameter%s"):format(one,
        parameter_names.hint(one, recorded, units)), penalty.site)
    end
  end
  return ids
end

-- Returns the parts of the plan that the model's results become: the terms of the loss, then those that only metrics
-- read. `match`: from a penalty to the ids of its parameters. `in_steps`: whether steps compute the metrics, too.
local function numbers_of(result, metrics, in_steps, match, rounds)
  local terms, at, named, sites = {}, {}, {}, {}
  local function add(of, factor, optimised, steps)
    local known = at[loss.key(of)]
    if known then
      terms[known].steps = terms[known].steps or steps
      return known - 1
    end
    terms[#terms + 1] = { coefficient = factor, optimised = optimised, steps = steps }
    local one = terms[#terms]
    if tensor.is(of) then
      one.id = tensor.record(of).id
    else
      one.parameters, one.site = match(of), of.site
    end
    at[loss.key(of)] = #terms
    return #terms - 1
  end
  for _, term in ipairs(result.terms) do
    if term.factor ~= 0 then add(term.of, term.factor, true, true) end
  end
  if #terms == 0 then host.fail "the loss is 0: every part of it is multiplied by 0" end
  local function parts_of(list, steps)
    local parts = {}
    for i, term in ipairs(list) do
      local number_of = add(term.of, 1.0, false, steps)
      parts[i] = { term = number_of, factor = term.factor / terms[number_of + 1].coefficient }
    end
    return parts
  end
  local function name(word, list, over, steps, site)
    if sites[word] then
      host.fail(("two numbers of the model have the name '%s' (the other: %s:%d)"):format(word, sites[word][1],
        sites[word][2]), site)
    end
    sites[word] = site
    named[#named + 1] = { name = word, terms = parts_of(list, steps), steps = steps, over = over and
      parts_of(over, steps) or nil }
  end
  for _, one in ipairs(result.names) do name(one.name, one.terms, nil, true, one.site) end
  for _, one in ipairs(metrics) do name(one.name, one.terms, one.over, in_steps, one.site) end
  if #rounds > 0 then
    local sum = rounds[1]
    for i = 2, #rounds do sum = sum + rounds[i] end
    name("expert_rounds", (sum * (1 / #rounds)).terms, nil, true, host.site("user"))
  end
  if #named > 16 then host.fail(("the model names %d numbers; at most 16 are reported"):format(#named)) end
  local seen, parts = {}, 0
  for _, one in ipairs(named) do
    for _, list in ipairs { one.terms, one.over or {} } do
      for _, part in ipairs(list) do
        if not seen[part.term] then seen[part.term], parts = true, parts + 1 end
      end
    end
  end
  if parts > 60 then
    host.fail(("the named numbers are sums of %d losses; at most 60 can be reported"):format(parts))
  end
  local first = terms[1].id
  if #terms == 1 and #named == 0 and first and terms[1].coefficient == 1 then terms = nil end
  return { loss = first or 0, terms = terms, named = terms and named or nil }
end

-- `result` and `metrics`: what the model has returned. Returns { loss, terms, named }, ids and lists of the plan.
return function(recorded, result, metrics, in_steps, site)
  if tensor.is(result) then
    host.fail(("the model returns %s; a loss is one number: see prun.losses"):format(tostring(result)), site)
  end
  if not loss.is(result) then host.fail(("the model must return its loss, not %s"):format(type(result)), site) end
  return numbers_of(result, metrics_of(metrics, site), in_steps,
    function(penalty) return matched(penalty, recorded) end, recorded.rounds)
end
