-- prun.mesh { dp = prun.world }: named axes whose sizes multiply to the number of ranks.
--
-- One axis may be prun.rest: the ranks that the others leave, as dp in prun.mesh { dp = prun.rest, tp = 2 }.
--
-- Surprising fact: the order of axes matters (the last one is a run of neighbouring ranks) and a Lua table of names has
-- none, so several axes come in the field's order, and others as a list: prun.mesh { { "x", 2 }, { "y", 4 } }.

local usual = { "pp", "replicate", "dp", "shard", "cp", "ep", "tp" }
local place_of = {}
for i, name in ipairs(usual) do place_of[name] = i end

local function ordered_axes(given, site)
  local axes, named = {}, 0
  for key, value in pairs(given) do
    if type(key) == "string" then
      axes[#axes + 1], named = { key, value }, named + 1
    elseif type(value) == "table" and type(value[1]) == "string" then
      axes[#axes + 1] = { value[1], value[2] }
    else
      host.fail('an axis of a mesh is dp = 8, or in a list { "dp", 8 }', site)
    end
  end
  if named < 2 then return axes end
  for _, axis in ipairs(axes) do
    if not place_of[axis[1]] then
      local a, b = axes[1][1], axes[2][1]
      host.fail(("the axes %s, %s have no usual order: list them, prun.mesh { { \"%s\", n }, { \"%s\", n } }; " ..
        "neighbouring ranks differ along the last"):format(a, b, a, b), host.site_of_word(site, axis[1]))
    end
  end
  table.sort(axes, function(a, b) return place_of[a[1]] < place_of[b[1]] end)
  return axes
end

-- The size of the axis that takes the ranks which the others leave.
local function rest_of(axes, site)
  local others, text = 1, {}
  for _, axis in ipairs(axes) do
    local size = math.type(axis[2]) and math.tointeger(axis[2])
    if size and size > 0 then
      others = others * size
      text[#text + 1] = axis[1] .. "=" .. size
    end
  end
  if host.world % others ~= 0 then
    host.fail(("%s need a multiple of %d ranks, and there %s %d (--nproc)"):format(
      table.concat(text, " x "), others, host.world == 1 and "is" or "are", host.world), site)
  end
  return host.world // others
end

return function(given)
  local site = host.site("user")
  if type(given) ~= "table" then host.fail("prun.mesh takes a table of axes, such as { dp = prun.world }", site) end
  local axes, size_of, ranks = ordered_axes(given, site), {}, 1
  for _, axis in ipairs(axes) do
    local name, size = axis[1], math.type(axis[2]) and math.tointeger(axis[2])
    local place = host.site_of_word(site, name)
    if axis[2] == "rest" then size = rest_of(axes, site) end
    if not size or size < 1 then
      host.fail(("the size of axis '%s' must be a whole number of at least 1, not %s"):format(
        name, tostring(axis[2])), place)
    end
    if name == "world" then host.fail("no axis may be called 'world': that is the group of all ranks", place) end
    if size_of[name] then host.fail(("axis '%s' is given twice"):format(name), place) end
    axis[2], size_of[name], ranks = size, size, ranks * size
  end
  local text = {}
  for i, axis in ipairs(axes) do text[i] = axis[1] .. "=" .. axis[2] end
  return { kind_of = "mesh", axes = axes, size_of = size_of, ranks = ranks, site = site,
           text = #text > 0 and table.concat(text, " x ") or "without axes" }
end
