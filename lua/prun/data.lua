-- A source of samples as a plan holds it. `inputs(opt)` names the model's inputs and the dims of one sample;
-- `file(opt)` checks the file. What data and model must agree on (context, vocab, inputs, outputs) is taken from the
-- model's options when the plan does not repeat it.

local schema = require "prun.schema"

local data = {}

local shared = { "context", "vocab", "inputs", "outputs" }

-- A constructor such as prun.data.bytes. `spec`: entries, inputs = function(opt) -> list of { name, dtype, dims },
-- dtype "" standing for the plan's.
function data.source(kind, spec)
  local entries = { { name = "batch", kind = "integer", least = 1, most = schema.most_exact,
                    help = "samples in a step, over all ranks" } }
  for i, entry in ipairs(spec.entries) do entries[i + 1] = entry end
  schema.register("prun.data." .. kind, entries)
  return setmetatable({ entries = entries }, {
    __call = host.word(function(_, given)
      local site = host.site("user")
      local options = schema.check("prun.data." .. kind, entries, given, site)
      return { kind_of = "data", kind = kind, options = options, spec = spec, site = site }
    end),
  })
end

-- Fills what the model knows, refuses what contradicts it.
function data.agree(source, model)
  local options = source.options
  for _, name in ipairs(shared) do
    for _, entry in ipairs(source.spec.entries) do
      if entry.name == name then
        local wanted = model.options and model.options[name]
        if options[name] == nil then options[name] = wanted end
        if options[name] == nil then
          host.fail(("prun.data.%s needs '%s' (%s), since the model has no such option"):format(
            source.kind, name, entry.help),
            source.site)
        end
        local enough = name == "vocab" and wanted and options[name] <= wanted or options[name] == wanted
        if wanted and not enough then
          host.fail(("the model's %s is %s, the data's is %s"):format(name, wanted, options[name]), source.site)
        end
      end
    end
  end
end

-- The inputs of the model for `batch` samples: list of { name, dtype, shape }.
function data.inputs(source, batch, dtype)
  local result = {}
  for i, input in ipairs(source.spec.inputs(source.options)) do
    local shape = { batch }
    for _, size in ipairs(input[3]) do shape[#shape + 1] = size end
    result[i] = { name = input[1], dtype = input[2] == "" and dtype or input[2], shape = shape }
  end
  return result
end

-- Checks that a file of tokens is there and holds more than one sample. Returns its absolute path and size.
function data.file(source, bytes_of_token, skip)
  if host.shrink and host.shrink.tensor_ranks > 0 then return "", 0 end  -- a generation reads none
  local path, size = host.file_info(source.options.path)
  local place = host.site_of_word(source.site, "path")
  if not path then host.fail(("data: %s"):format(size), place) end
  if size == 0 then host.fail(("data: the file '%s' is empty"):format(source.options.path), place) end
  local tokens = (size - skip) // bytes_of_token
  local needed = source.options.context + 1
  if tokens < needed then
    host.fail(("data: '%s' has %d tokens; one sample needs %d (context %d, and one to predict)"):format(
      source.options.path, math.max(tokens, 0), needed, source.options.context), place)
  end
  return path, size
end

-- What the plan holds of the data.
function data.result(source)
  local options = source.options
  local result = { kind = source.kind, path = "", batch = options.batch, site = source.site,
                   context = options.context or 0, vocab = options.vocab or 0, file_bytes = 0, skip_bytes = 0 }
  if source.spec.finish then source.spec.finish(source, result) end
  return result
end

return data
