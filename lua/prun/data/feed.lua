-- prun.data.feed: batches that another process writes into shared memory (include/prun/feed.h), such as prun.feed(...)
-- in Python. The plan declares their shapes, so that it can be compiled, checked and simulated without that process.

local data = require "prun.data"
local schema = require "prun.schema"

local elements = { bool = "u8", uint8 = "u8", uint16 = "u16", uint32 = "u32", int32 = "i32", int64 = "i64",
                   float16 = "f16", bfloat16 = "bf16", float32 = "f32", float64 = "f64" }
local most_inputs, most_dims, most_name = 32, 8, 31

local function fail(source, text, ...)
  host.fail(("prun.data.feed: " .. text):format(...), host.site_of_word(source.site, "inputs"))
end

-- Returns a record { name, element, dims, ids } of the declaration { "int64", 128 } of a sample of an input.
local function declared(source, name, given)
  if type(name) ~= "string" or not name:find "^[%a_][%w_]*$" or #name > most_name then
    fail(source, "'%s' is no name of an input: letters, digits and _, at most %d", tostring(name), most_name)
  end
  local kind = type(given) == "table" and given[1] or given
  if not elements[kind] then
    fail(source, "'%s' must be such as { \"int64\", 128 }, a type and the sizes of one sample; the type is %s%s", name,
      schema.show(kind), type(kind) == "string" and host.did_you_mean(kind, data.sorted_names(elements)) or "")
  end
  local dims = {}
  for i = 2, type(given) == "table" and #given or 1 do
    local size = given[i]
    if math.type(size) ~= "integer" or size < 1 or i > most_dims + 1 then
      fail(source, "'%s' has the size %s; sizes are integers from 1, at most %d of them", name, schema.show(size),
        most_dims)
    end
    dims[#dims + 1] = size
  end
  local as = type(given) == "table" and given.as
  if as and as ~= "ids" and as ~= "numbers" then
    fail(source, "'%s' has as = %s; it can be \"ids\" or \"numbers\"", name, schema.show(as))
  end
  local float = kind:find "float"
  if float and as == "ids" then fail(source, "'%s' is %s, and ids are integers", name, kind) end
  return { name = name, element = elements[kind], dims = dims,
           ids = as == "ids" or not as and not float and elements[kind] ~= "u8" }
end

local function inputs_of(source)
  if source.inputs then return source.inputs end
  source.inputs = {}
  for i, name in ipairs(data.sorted_names(source.options.inputs)) do
    source.inputs[i] = declared(source, name, source.options.inputs[name])
  end
  if #source.inputs == 0 or #source.inputs > most_inputs then
    fail(source, "there are %d inputs; there can be 1 to %d, such as inputs = { tokens = { \"int64\", 128 } }",
      #source.inputs, most_inputs)
  end
  return source.inputs
end

return data.source("feed", {
  entries = {
    { name = "name", kind = "text", help = "name of the feed, which the feeder uses, too; or the path of its ring" },
    { name = "inputs", kind = "table",
      help = "type and sizes of a sample of each input: { tokens = { \"int64\", 128 }, y = { \"float32\" } }" },
    { name = "slots", kind = "integer", default = 4, least = 2, most = 1024,
      help = "batches in shared memory, as the feeder makes it" },
  },
  inputs = function(_, source)
    local list = {}
    for i, input in ipairs(inputs_of(source)) do
      local column = not input.ids and #input.dims == 0
      list[i] = { input.name, input.ids and "i32" or "", column and { 1 } or input.dims }
    end
    return list
  end,
  may_ignore = function() return true end,
  finish = function(source, result)
    local inputs = {}
    for i, input in ipairs(inputs_of(source)) do
      inputs[i] = { name = input.name, element = input.element, dims = input.dims }
    end
    result.feed, result.slots, result.inputs = source.options.name, source.options.slots, inputs
  end,
})
