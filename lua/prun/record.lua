-- The target of functions such as prun.all_reduce: the running hook or program, the only implicit scope. A scope is a
-- table from name to function.

local record = { scope = nil }

-- Runs fn(...) with `scope` as the target of recordings; returns fn's results.
function record.within(name, scope, fn, ...)
  local outer = record.scope
  record.scope = { name = name, words = scope }
  local results = table.pack(fn(...))
  record.scope = outer
  return table.unpack(results, 1, results.n)
end

function record.word(word)
  return function(...)
    if not record.scope then
      host.fail(("prun.%s records into a strategy's hook, a schedule or a program, and none is running here"):format(
        word))
    end
    local fn = record.scope.words[word]
    if not fn then
      local known = {}
      for name in pairs(record.scope.words) do known[#known + 1] = "prun." .. name end
      host.fail(("prun.%s has no meaning in %s; these have: %s"):format(
        word, record.scope.name, table.concat(known, ", ")))
    end
    return fn(...)
  end
end

return record
