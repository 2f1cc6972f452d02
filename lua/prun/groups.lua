-- prun.groups { { match = "*.bias", decay = 0 }, { dims = 1, decay = 0 }, { match = "embed*", lr = 0.1 },
-- prun.adamw { ... } }: groups of parameters with settings of their own, as the param_groups of torch.optim. The first
-- group that matches a parameter wins; the optimizer's own settings apply to the others. A group may have an optimizer
-- of its own: { dims = 1, optimizer = prun.adamw { lr = 3e-4 } }.

local kinds = require "prun.kinds"
local parameter_names = require "prun.parameter_names"
local schema = require "prun.schema"

local entries = schema.register("prun.groups.group", {
  { name = "match", kind = "text", optional = true,
    help = 'names, such as "*.bias|embed*": * is any characters, | separates alternatives' },
  { name = "dims", kind = "integer", optional = true, least = 0, most = 8,
    help = "matches only parameters of so many dims: 1 are biases and weights of norms" },
  { name = "lr", kind = "number", default = 1.0, least = 0, help = "factor of the learning rate" },
  { name = "decay", kind = "number", optional = true, least = 0,
    help = "weight decay, in place of the optimizer's weight_decay" },
  { name = "optimizer", kind = "optimizer", optional = true,
    help = "an optimizer for these parameters; the curve of the last one's lr applies to its lr" },
})

local groups = {}

-- Returns what a group matches, as messages show it.
local function label(group)
  local dims = group.dims and ("%d dim%s"):format(group.dims, group.dims == 1 and "" or "s")
  return group.match and dims and group.match .. ", " .. dims or group.match or dims
end

-- Checks the optimizer of a group.
local function check_own(own, number, optimizer, site)
  local function fail(problem)
    host.fail(("prun.groups: the optimizer of group %d %s"):format(number, problem), site)
  end
  if own.groups then fail "has groups; groups do not nest" end
  if type(own.options.lr) ~= "number" then
    fail "has a curve as lr, and takes a number: the curve of the last optimizer's lr applies to it"
  end
  for _, option in ipairs { "clip", "ema" } do
    if own.options[option] ~= 0 then
      fail(("has the option '%s', which is of all parameters: give it to the last optimizer"):format(option))
    end
  end
  if own.op == "muon" and optimizer.op == "muon" then fail "is a second prun.muon; a plan has one" end
end

local function checked_group(given, number, optimizer, site)
  if given.weight_decay ~= nil then
    host.fail(("prun.groups: group %d has no option 'weight_decay' (here: decay)"):format(number), site)
  end
  local group = schema.check(("prun.groups: group %d"):format(number), entries, given, site)
  if not group.match and not group.dims then
    host.fail(("prun.groups: group %d matches by 'match' or 'dims', and has neither"):format(number), site)
  end
  local compiled, problem
  if group.match then compiled, problem = parameter_names.compile(group.match) end
  if group.match and not compiled then
    host.fail(("prun.groups: 'match' of group %d %s"):format(number, problem), site)
  end
  local own = group.optimizer
  if own then check_own(own, number, optimizer, site) end
  return { match = label(group), pattern = group.match, compiled = compiled, dims = group.dims, lr = group.lr,
           decay = group.decay or (own or optimizer).options.weight_decay, optimizer = own }
end

local function call(_, given)
  local site = host.site("user")
  if not kinds.is_list(given) or kinds.kind_of(given[#given]) ~= "optimizer" then
    host.fail("prun.groups takes a list of groups, then the optimizer: prun.groups { { match = \"*.bias\", " ..
      "decay = 0 }, prun.adamw { ... } }", site)
  end
  local optimizer = given[#given]
  if optimizer.groups then host.fail("prun.groups: groups do not nest; put all into one list", site) end
  local list = {}
  for i = 1, #given - 1 do
    if type(given[i]) ~= "table" or kinds.kind_of(given[i]) then
      host.fail(("prun.groups: group %d must be a table such as { dims = 1, decay = 0 }, not %s"):format(i,
        kinds.show(given[i])), site)
    end
    list[i] = checked_group(given[i], i, optimizer, site)
  end
  local grouped = { groups = list, groups_site = site }
  for name, value in pairs(optimizer) do grouped[name] = value end
  return grouped
end

-- Returns the number of the first group that matches the parameter by this name, and marks all that do.
local function first_match(list, parameter, name, used)
  local first
  for i, group in ipairs(list) do
    if (not group.dims or group.dims == parameter.dims) and
      (not group.compiled or parameter_names.matches(group.compiled, name)) then
      first, used[i] = first or i, true
    end
  end
  return first
end

-- Returns the number of the parameter's group, 0 = none.
local function group_of(list, parameter, used, site)
  local names, found, by = parameter.names, nil, nil
  for _, name in ipairs(names) do
    local first = first_match(list, parameter, name, used)
    if first and found and first ~= found then
      host.fail(("prun.groups: '%s' and '%s' are one tied weight, and two groups match it: group %d (%s) the one, " ..
        "group %d (%s) the other; let one group match both names"):format(by, name, found, list[found].match, first,
        list[first].match), site)
    end
    if first then found, by = found or first, by or name end
  end
  return found or 0
end

-- Returns for each unit the numbers of its parameters' groups, or nil if the optimizer has no groups.
function groups.numbers(optimizer, recorded)
  local list, site = optimizer.groups, optimizer.groups_site
  if not list then return nil end
  local units, numbers, used = parameter_names.of(recorded), {}, {}
  for i, parameters in ipairs(units) do
    numbers[i] = {}
    for k, parameter in ipairs(parameters) do numbers[i][k] = group_of(list, parameter, used, site) end
  end
  if host.shrink or host.outline then return numbers end  -- the model may have fewer layers than the plan's
  for i, group in ipairs(list) do
    if not used[i] then
      host.fail(("prun.groups: group %d (%s) matches no parameter%s"):format(i, group.match,
        group.pattern and parameter_names.hint(group.pattern, recorded, units) or ""), site)
    end
  end
  return numbers
end

-- Returns the groups as the plan's record has them, and their optimizers.
function groups.result(optimizer)
  local result, others, number = {}, {}, {}
  for i, group in ipairs(optimizer.groups or {}) do
    local own = group.optimizer
    if own and not number[own] then
      others[#others + 1] = own
      number[own] = #others
    end
    result[i] = { match = group.match, lr = group.lr, decay = group.decay, optimizer = own and number[own] or 0 }
  end
  return result, others
end

return setmetatable(groups, { entries = entries, __call = host.word(call) })
