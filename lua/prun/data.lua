-- A source of samples as stored in a plan. `inputs(opt, source)` names the model's inputs and the dims of one sample;
-- `finish` lists the files to read. Options that data and model must agree on (context, vocab, inputs, outputs) are
-- taken from the model unless the plan repeats them.

local schema = require "prun.schema"

local data = {}

local shared = { "context", "vocab", "inputs", "outputs" }

-- Number of samples that missing or too short token files stand for, in commands that read no data.
local enough_samples = 1000

data.order = { name = "order", kind = "text", optional = true, choices = { "random", "epochs" },
  help = "random (default): with repetition; epochs (default with pack): every sample once per epoch" }

data.document_end = { name = "document_end", kind = "integer", optional = true, least = 0, most = 2147483647,
  help = "the token that ends a document; what follows it is not predicted: the loss leaves it out" }

-- Defines a constructor such as prun.data.bytes. `spec`: entries; inputs = function(opt, source) -> list of { name,
-- dtype, dims }, where dtype "" is the plan's; optionally settle(kind, options, site), agree(source, model),
-- finish(source, result), and may_ignore(opt, name): whether the ids of an input can be targets that do not count.
function data.source(kind, spec)
  local entries = { { name = "batch", kind = "integer", least = 1, most = schema.most_exact,
                    help = "samples in a step, over all ranks" } }
  for i, entry in ipairs(spec.entries) do entries[i + 1] = entry end
  spec.may_ignore = spec.may_ignore or function(opt, name) return opt.document_end ~= nil and name == "targets" end
  schema.register("prun.data." .. kind, entries)
  return schema.constructor("prun.data." .. kind, entries, function(_, given)
    local site = host.site("user")
    local options = schema.check("prun.data." .. kind, entries, given, site)
    if spec.settle then spec.settle(kind, options, site) end
    return { kind_of = "data", kind = kind, options = options, spec = spec, site = site }
  end)
end

-- Fills in options from the model and rejects contradictions. A table of inputs has the name of a model's size.
function data.agree(source, model)
  local options = source.options
  for _, name in ipairs(shared) do
    for _, entry in ipairs(source.spec.entries) do
      if entry.name == name and entry.kind ~= "table" then
        local wanted = model.options and model.options[name]
        if options[name] == nil then options[name] = wanted end
        if options[name] == nil then
          host.fail(("prun.data.%s needs '%s' (%s), since the model has no such option"):format(
            source.kind, name, entry.help),
            source.site)
        end
        local enough = name == "vocab" and wanted and options[name] <= wanted or options[name] == wanted
        if wanted and not enough then
          local word = options.pack and name == "context" and "capacity" or name
          host.fail(("the model's %s is %s, the data's%s is %s"):format(name, wanted,
            word ~= name and " " .. word or "", options[name]), source.site)
        end
      end
    end
  end
  local ends, vocab = options.document_end, options.vocab or source.spec.vocab
  if ends and vocab and ends >= vocab then
    local word = options.pack and "eot" or "document_end"
    host.fail(("data: %s is %d, and the largest token is %d (vocab %d)"):format(word, ends, vocab - 1, vocab),
      host.site_of_word(source.site, word))
  end
  if source.spec.agree then source.spec.agree(source, model.options or {}) end
end

-- Returns the inputs of the model for `batch` samples: a list of { name, dtype, shape }.
function data.inputs(source, batch, dtype)
  local result = {}
  for i, input in ipairs(source.spec.inputs(source.options, source)) do
    local shape = { batch }
    for _, size in ipairs(input[3]) do shape[#shape + 1] = size end
    local name, ids = input[1], input[2] == "i32"
    result[i] = { name = name, dtype = input[2] == "" and dtype or input[2], shape = shape,
                  may_ignore = ids and source.spec.may_ignore(source.options, name) }
  end
  return result
end

-- Returns the keys of a table in order: a source's inputs by name are in it.
function data.sorted_names(map)
  local names = {}
  for name in pairs(map) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local remarks = {}

-- Prints a remark once.
local function remark(text, place)
  local whole = ("%s:%d: %s"):format(place[1], place[2], text)
  if not remarks[whole] then host.remark(text, place) end
  remarks[whole] = true
end

-- Returns the files of a path option as a list of { path, shown, bytes }, sorted by name if the path is a pattern. A
-- command that reads no data, such as `prun sim`, needs no files: the list is then empty if none exists.
function data.files(source, option)
  local list, why = host.data_files(source.options[option])
  local place = host.site_of_word(source.site, option)
  if not list and not host.reads_data then
    remark(("data: %s; prun goes on as if it had enough samples"):format(why), place)
    return {}, place
  end
  if not list then host.fail(("data: %s"):format(why), place) end
  for _, file in ipairs(list) do
    if file.bytes == 0 and host.reads_data then host.fail(("data: file '%s' is empty"):format(file.shown), place) end
  end
  return list, place
end

-- Checks that token files hold a sample; stores their number of tokens in `result`.
function data.count_tokens(source, result, width, place)
  local tokens = 0
  for _, file in ipairs(result.files) do
    tokens = tokens + math.max(0, file.bytes - file.skip_bytes) // width
  end
  local needed = source.options.pack and 1 or source.options.context + 1
  if tokens < needed and not host.reads_data then tokens = enough_samples * needed end
  if tokens < needed then
    host.fail(("data: '%s' has %d tokens; one sample needs %d (context %d, and one to predict)"):format(
      source.options.path, tokens, needed, source.options.context), place)
  end
  result.count = tokens
end

-- Returns the number of samples without overlap in the used part.
function data.samples(held)
  return held.context > 0 and (held.count - 1) // held.context or held.count
end

-- Returns the plan's record of the data.
function data.result(source)
  local options = source.options
  local result = { kind = source.kind, batch = options.batch, site = source.site, context = options.context or 0,
                   vocab = options.vocab or source.spec.vocab or 0, order = options.order or "random",
                   scale = options.scale or 1, document_end = options.document_end or -1, first = 0, count = 0,
                   part = false, files = {}, capacity = options.pack and options.context or 0, long = options.long }
  local generates = host.shrink and host.shrink.tensor_ranks > 0  -- a generation reads no data
  if source.spec.finish and not generates then source.spec.finish(source, result) end
  return result
end

-- Takes the end of the training data for evaluations; returns the plan's record of it. `share`: fraction of all data,
-- rounded down, but at least one sample.
function data.hold_out(training, share, steps, site)
  local held = {}
  if training.kind == "feed" then
    host.fail("prun.eval: a feed has no end to hold out; give prun.eval data of its own, such as prun.data.arrays",
      site)
  end
  for name, value in pairs(training) do held[name] = value end
  if training.kind == "index" then held.first = steps * training.batch end
  if training.count == 0 then return held end
  local one = training.context > 0 and training.context + 1 or 1
  held.count = math.max(math.floor(training.count * share), one)
  training.count = training.count - held.count
  held.first = training.first + training.count
  held.part, training.part = true, true
  if training.count < one and not host.reads_data then training.count = one end
  if training.count < one then
    local what = training.context > 0 and "tokens" or "samples"
    host.fail(("prun.eval holds out the last %d %s of the data, which leaves %d to train with, and a sample " ..
      "needs %d: lower hold_out, or give prun.eval data of its own"):format(held.count, what,
      training.count, one), site)
  end
  return held
end

return data
