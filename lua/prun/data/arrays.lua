-- prun.data.arrays: x and y, or inputs by name, from .npy files, as numpy.save writes them, or from .safetensors files
-- with one tensor; entry i of each is sample i. Floats and uint8 are numbers of the plan's dtype; other integers, and y
-- unless it has floats, are ids (i32).

local data = require "prun.data"
local schema = require "prun.schema"

local as = { "numbers", "ids" }

local function product(dims)
  local count = 1
  for _, size in ipairs(dims) do count = count * size end
  return count
end

local function shape_text(shape) return ("[%s]"):format(table.concat(shape, ", ")) end

-- Returns the files of paths or patterns, in the order of the list.
local function files_of(paths, place)
  local all = {}
  for _, path in ipairs(paths) do
    local list, why = host.data_files(path)
    if not list then host.fail(("data: %s"):format(why), place) end
    for _, file in ipairs(list) do all[#all + 1] = file end
  end
  return all
end

-- Returns the header of a file, which must be whole.
local function open_file(file, place)
  if file.bytes == 0 and host.reads_data then host.fail(("data: file '%s' is empty"):format(file.shown), place) end
  local array, why = host.array_header(file.path)
  if not array then host.fail(("data: %s: %s"):format(file.shown, why), place) end
  if #array.shape == 0 then host.fail(("data: %s holds one number, and no samples"):format(file.shown), place) end
  local promised = array.skip_bytes + product(array.shape) * array.width
  if promised ~= file.bytes then
    host.fail(("data: %s: its header promises %s of %s, %d bytes, and it has %d: it has been cut or is not whole yet")
      :format(file.shown, shape_text(array.shape), array.numpy, promised, file.bytes), place)
  end
  array.shown, array.path, array.bytes = file.shown, file.path, file.bytes
  array.dims = table.move(array.shape, 2, #array.shape, 1, {})
  return array
end

-- Returns the files of an input as one array: its dims of a sample, its number of samples, and whether its elements are
-- ids. `meaning`: "ids", "numbers" or nil.
local function open_array(name, paths, meaning, place)
  local found = files_of(paths, place)
  local first = open_file(found[1], place)
  local array = { files = { first }, dims = first.dims, count = first.shape[1], numpy = first.numpy,
                  shown = first.shown, place = place }
  if #found > 1 then array.shown = ("%s and %d more"):format(first.shown, #found - 1) end
  for i = 2, #found do
    local other = open_file(found[i], place)
    if other.numpy ~= first.numpy or shape_text(other.dims) ~= shape_text(first.dims) then
      host.fail(("data: %s holds %s %s, and %s %s %s: the files of one input differ in dim 0 only"):format(first.shown,
        first.numpy, shape_text(first.shape), other.shown, other.numpy, shape_text(other.shape)), place)
    end
    array.files[i], array.count = other, array.count + other.shape[1]
  end
  local float = array.numpy:find "float"
  if float and meaning == "ids" then
    host.fail(("data: %s holds %s; ids are integers: save a.astype('int32')"):format(first.shown, array.numpy), place)
  end
  array.ids = meaning == "ids" or not meaning and not float and not (name ~= "y" and array.numpy == "uint8")
  if not array.ids and #array.dims == 0 then array.dims = { 1 } end  -- a column
  return array
end

local function list(value) return type(value) == "table" and value or { value } end

-- Returns the arrays of a dictionary of inputs by name.
local function named_arrays(source)
  local arrays, place = {}, host.site_of_word(source.site, "inputs")
  for _, other in ipairs { "x", "y", "x_as", "y_as" } do
    if source.options[other] then
      host.fail(("prun.data.arrays has 'inputs', so '%s' is one of them: inputs = { %s = ... }"):format(other, other),
        host.site_of_word(source.site, other))
    end
  end
  for name, given in pairs(source.options.inputs) do
    local paths, meaning = list(given), type(given) == "table" and given.as or nil
    if type(name) ~= "string" or not name:find "^[%a_][%w_]*$" or type(paths[1]) ~= "string" or
        meaning and meaning ~= "ids" and meaning ~= "numbers" then
      host.fail(("prun.data.arrays: inputs are such as { tokens = \"ids.npy\", mask = { \"mask_*.npy\", as = " ..
        "\"numbers\" } }, and '%s' is %s"):format(tostring(name), schema.show(given)), place)
    end
    arrays[name] = open_array(name, paths, meaning, host.site_of_word(source.site, name))
  end
  return arrays
end

local function check_last(source, count)
  local batch, last = source.options.batch, source.options.last
  if not last then return end
  local place = host.site_of_word(source.site, "last")
  if source.options.order == "random" then
    host.fail("prun.data.arrays: order = \"random\" has no last batch: omit 'last'", place)
  end
  if count % batch == 0 then return end
  if last == "error" then
    host.fail(("data: the last batch of an epoch has %d samples of %d (%d in all), and last = \"error\": \"drop\" " ..
      "omits them, \"pad\" adds copies whose targets are ignored"):format(count % batch, batch, count), place)
  end
  if last == "drop" and count < batch then
    host.fail(("data: there are %d samples, fewer than a batch of %d, and last = \"drop\" omits them"):format(count,
      batch), place)
  end
end

local function arrays_of(source)
  if source.arrays then return source.arrays end
  local options = source.options
  local arrays
  if options.inputs then
    arrays = named_arrays(source)
  else
    if not options.x then
      host.fail("prun.data.arrays needs 'x' or 'inputs': inputs = { tokens = \"ids.npy\", labels = \"y.npy\" }",
        source.site)
    end
    local function open(name)
      local place = host.site_of_word(source.site, options[name .. "_as"] == "ids" and name .. "_as" or name)
      return open_array(name, list(options[name]), options[name .. "_as"], place)
    end
    arrays = { x = open "x", y = options.y and open "y" or nil }
  end
  local first
  for _, name in ipairs(data.sorted_names(arrays)) do
    local array = arrays[name]
    first = first or array
    if array.count ~= first.count then
      host.fail(("data: %s has %d samples, and %s has %d"):format(first.shown, first.count, array.shown, array.count),
        array.place)
    end
  end
  if not first then host.fail("prun.data.arrays: 'inputs' is empty", source.site) end
  if first.count == 0 then host.fail(("data: %s has no samples"):format(first.shown), first.place) end
  check_last(source, first.count)
  source.arrays, source.count = arrays, first.count
  return arrays
end

-- A model with declared sizes (prun.models.mlp) gets flattened samples.
local function flatten(array, size, option)
  if not array or not size or array.ids then return end
  if product(array.dims) ~= size then
    host.fail(("the model's %s is %d, and a sample of %s has %s = %d numbers"):format(option, size,
      array.shown, shape_text(array.dims), product(array.dims)), array.place)
  end
  array.dims = { size }
end

return data.source("arrays", {
  entries = {
    { name = "x", kind = "paths", optional = true,
      help = "a .npy file with the inputs, one entry a sample; a pattern or a list is one array" },
    { name = "y", kind = "paths", optional = true, help = "a .npy file with what the model should say of them" },
    { name = "inputs", kind = "table", optional = true,
      help = "instead of x and y, inputs by name: { tokens = \"ids.npy\", labels = { \"y_*.npy\", as = \"ids\" } }" },
    { name = "x_as", kind = "text", optional = true, choices = as,
      help = "whether x holds numbers or ids; by default floats and uint8 are numbers" },
    { name = "y_as", kind = "text", optional = true, choices = as,
      help = "whether y holds numbers or ids; by default floats are numbers" },
    { name = "scale", kind = "number", default = 1, above = 0,
      help = "x is multiplied by it: 1 / 255 for pictures of uint8" },
    { name = "order", kind = "text", default = "epochs", choices = { "random", "epochs", "given" },
      help = "random: with repetition; epochs: every sample once per epoch; given: as stored, again and again" },
    { name = "last", kind = "text", optional = true, choices = { "drop", "pad", "error" },
      help = "for the samples of an epoch that fill no batch: omit them, add copies whose targets are ignored, or " ..
        "fail; by default the next epoch completes the batch" },
  },
  agree = function(source, model)
    local arrays = arrays_of(source)
    flatten(arrays.x, model.inputs, "inputs")
    flatten(arrays.y, model.outputs, "outputs")
  end,
  inputs = function(_, source)
    local arrays, all = arrays_of(source), {}
    for i, name in ipairs(data.sorted_names(arrays)) do
      all[i] = { name, arrays[name].ids and "i32" or "", arrays[name].dims }
    end
    return all
  end,
  may_ignore = function() return true end,
  finish = function(source, result)
    local arrays = arrays_of(source)
    for _, name in ipairs(data.sorted_names(arrays)) do
      for _, file in ipairs(arrays[name].files) do
        result.files[#result.files + 1] = { path = file.path, bytes = file.bytes, skip_bytes = file.skip_bytes,
                                            element = file.element, name = name }
      end
    end
    result.count, result.last = source.count, source.options.last
    if result.last == "error" then result.last = "drop" end  -- nothing is left
  end,
})
