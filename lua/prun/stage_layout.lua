-- The layout of a pipeline's stages: { "embed", "block*3", "...", "head" } lists the units of each stage in order. The
-- text "embed | block*3 | ... | head" is the same, and "(block | block*2)*4 | head" repeats stages.
--
--   layout  = stages
--   stages  = stage { "|" stage }
--   stage   = { unit }            none: an empty stage, which forwards what the next ones read
--   unit    = name [ "*" count ]  a class (block) takes its next unit, or the next `count` of them
--           | "(" stages ")" [ "*" count ]
--           | "..."               alone in its stage: all stages and units that the layout does not list

local most_stages = 100000

-- Appends the units of `stage` to the last stage.
local function join(stages, stage)
  local last = stages[#stages]
  for _, unit in ipairs(stage.units) do last.units[#last.units + 1] = unit end
  last.rest = last.rest or stage.rest
end

-- Returns a parser of one text; `fail(problem)` does not return.
local function parser(text, fail)
  local at = 1
  local function here() return ("character %d of \"%s\""):format(at, text) end

  local function take(pattern)
    local from, to, found = text:find("^%s*(" .. pattern .. ")", at)
    if from then at = to + 1 end
    return found
  end

  local function count()
    if not take("%*") then return 1 end
    local number = math.tointeger(tonumber(take("%d+") or ""))
    if not number or number < 1 or number > most_stages then
      fail(("has no count behind '*' at %s; it is 1 to %d"):format(here(), most_stages))
    end
    return number
  end

  local stages
  local function unit(result)
    if take("%(") then
      local group = stages()
      if not take("%)") then fail("has no ')' for the '(' before " .. here()) end
      for _ = 1, count() do
        join(result, group[1])
        for i = 2, #group do
          result[#result + 1] = { units = {}, rest = false }
          join(result, group[i])
        end
        if #result > most_stages then fail(("makes more than %d stages"):format(most_stages)) end
      end
      return true
    end
    if take("%.%.%.") then
      join(result, { units = {}, rest = true })
      return true
    end
    local name = take("[^%s|()*]+")
    if not name then return false end
    join(result, { units = { { name = name, count = count() } } })
    return true
  end

  function stages()
    local result = { { units = {}, rest = false } }
    repeat
      while unit(result) do end
      local more = take("|")
      if more then result[#result + 1] = { units = {}, rest = false } end
    until not more
    return result
  end

  local result = stages()
  if text:find("%S", at) then fail(("cannot be read from %s on"):format(here())) end
  return result
end

-- Returns the plan's record of a layout. `given`: the texts of its stages; `fail` does not return.
return function(given, fail)
  local result, fills = parser(table.concat(given, " | "), fail), 0
  for i, stage in ipairs(result) do
    if stage.rest then fills = fills + 1 end
    if stage.rest and #stage.units > 0 then
      fail(("has '...' beside '%s' in stage entry %d; '...' stands alone"):format(stage.units[1].name, i))
    end
  end
  if fills > 1 then fail("has '...' more than once") end
  return result
end
