-- prun.mesh { dp = prun.world }: named axes whose sizes multiply to the number of ranks.
--
-- One axis may be prun.rest, the remaining ranks, such as dp in prun.mesh { dp = prun.rest, tp = 2 }.
--
-- Surprising fact: the order of axes matters (ranks along the last one are consecutive) but a Lua table has no order.
-- Axes with usual names are therefore sorted; others need a list: prun.mesh { { "x", 2 }, { "y", 4 } }.

local schema = require "prun.schema"

local usual = { "pp", "node", "replicate", "dp", "shard", "cp", "ep", "tp" }
local place_of = {}
for i, name in ipairs(usual) do place_of[name] = i end

local function ordered_axes(given, site)
  local axes, named = {}, 0
  for key, value in pairs(given) do
    if type(key) == "string" then
      axes[#axes + 1], named = { key, value }, named + 1
    elseif type(value) == "table" and #value == 2 and type(value[1]) == "string" then
      axes[#axes + 1] = { value[1], value[2] }
    else
      host.fail('an axis of a mesh is dp = 8, or in a list { "dp", 8 }', site)
    end
  end
  if named < 2 then return axes end
  table.sort(axes, function(a, b)
    local p, q = place_of[a[1]] or 0, place_of[b[1]] or 0
    return p < q or p == q and a[1] < b[1]
  end)
  for _, axis in ipairs(axes) do
    if not place_of[axis[1]] then
      local names, list = {}, {}
      for i, each in ipairs(axes) do names[i], list[i] = each[1], ("{ %q, n }"):format(each[1]) end
      host.fail(("axis '%s' has no usual place among %s: list the axes in order, such as prun.mesh { %s }; " ..
        "neighbouring ranks differ along the last"):format(axis[1], table.concat(names, ", "),
        table.concat(list, ", ")), host.site_of_word(site, axis[1]))
    end
  end
  return axes
end

local most_ranks = 2147483647

-- Returns the size of the axis prun.rest.
local function rest_of(axes, site)
  local others, text, rests = 1, {}, {}
  for _, axis in ipairs(axes) do
    local size = type(axis[2]) == "number" and math.tointeger(axis[2])
    if axis[2] == "rest" then rests[#rests + 1] = axis[1] end
    if size and size > 0 and size <= most_ranks and others <= most_ranks then
      others = others * size
      text[#text + 1] = axis[1] .. "=" .. size
    end
  end
  if #rests > 1 then
    host.fail(("the axes '%s' and '%s' are both prun.rest: one takes the ranks that the others leave, so the others " ..
      "need sizes"):format(rests[1], rests[2]), host.site_of_word(site, rests[2]))
  end
  if host.shrink and host.shrink.tensor_ranks > 0 then return 1 end  -- a generation chooses its own ranks
  if host.world % others ~= 0 then
    host.fail(("%s need a multiple of %d ranks, and there %s %d (--nproc)"):format(
      table.concat(text, " x "), others, host.world == 1 and "is" or "are", host.world), site)
  end
  return host.world // others
end

local size_entry = { name = "size", kind = "integer", least = 1, help = "how many ranks it has" }
local name_entry = { name = "name", kind = "axis", help = "of the axis" }

return schema.word("prun.mesh", {
  { name = "axes", kind = "table", help = "by name, such as { dp = prun.world }" },
  site = true,
}, function(given, site)
  local axes, size_of, ranks = ordered_axes(given, site), {}, 1
  for _, axis in ipairs(axes) do
    local name, size, place = axis[1], axis[2], host.site_of_word(site, axis[1])
    schema.value("prun.mesh: an axis", name_entry, name, place)
    if size == "rest" then
      size = rest_of(axes, site)
    else
      size = schema.value(("prun.mesh: axis '%s'"):format(name), size_entry, size, place)
    end
    if name == "world" then host.fail("no axis may be called 'world': that is the group of all ranks", place) end
    if size_of[name] then host.fail(("axis '%s' is given twice"):format(name), place) end
    axis[2], size_of[name], ranks = size, size, ranks * size
    if ranks > most_ranks then
      host.fail(("the mesh has more than %d ranks: axis '%s' of %d is too much"):format(most_ranks, name, size), place)
    end
  end
  local text = {}
  for i, axis in ipairs(axes) do text[i] = axis[1] .. "=" .. axis[2] end
  return { kind_of = "mesh", axes = axes, size_of = size_of, ranks = ranks, site = site,
           text = #text > 0 and table.concat(text, " x ") or "without axes" }
end)
