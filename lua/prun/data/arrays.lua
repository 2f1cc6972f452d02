-- prun.data.arrays: x and y from .npy files, as numpy.save writes them; entry i of both is sample i. Floats and uint8
-- are numbers of the plan's dtype; other integers, and y unless it has floats, are ids (i32).

local data = require "prun.data"

local as = { "numbers", "ids" }

local function product(dims)
  local count = 1
  for _, size in ipairs(dims) do count = count * size end
  return count
end

local function shape_text(shape) return ("[%s]"):format(table.concat(shape, ", ")) end

-- Returns the array of an option, with its shape and whether its elements are ids.
local function open_array(source, name)
  local path = source.options[name]
  local files, place = data.files(source, name, true)
  local array, why = host.array_header(files[1].path)
  if not array then host.fail(("data: %s: %s"):format(files[1].shown, why), place) end
  if #array.shape == 0 then host.fail(("data: %s holds one number, and no samples"):format(path), place) end
  array.path, array.bytes, array.place = files[1].path, files[1].bytes, place
  local promised = array.skip_bytes + product(array.shape) * array.width
  if promised ~= array.bytes then
    host.fail(("data: %s: its header promises %s of %s, %d bytes, and it has %d: it has been cut or is not whole yet")
      :format(files[1].shown, shape_text(array.shape), array.numpy, promised, array.bytes), place)
  end
  array.dims = table.move(array.shape, 2, #array.shape, 1, {})
  local float = array.numpy:find "^float"
  local wanted = source.options[name .. "_as"]
  if float and wanted == "ids" then
    host.fail(("data: %s holds %s; ids are integers: save a.astype('int32')"):format(path, array.numpy),
      host.site_of_word(source.site, name .. "_as"))
  end
  array.ids = wanted == "ids" or not wanted and not float and not (name == "x" and array.numpy == "uint8")
  if not array.ids and #array.dims == 0 then array.dims = { 1 } end  -- a column
  return array
end

local function arrays_of(source)
  if source.arrays then return source.arrays end
  local arrays = { x = open_array(source, "x"), y = source.options.y and open_array(source, "y") }
  if arrays.y and arrays.y.shape[1] ~= arrays.x.shape[1] then
    host.fail(("data: %s has %d samples, and %s has %d"):format(source.options.x, arrays.x.shape[1],
      source.options.y, arrays.y.shape[1]), arrays.y.place)
  end
  if arrays.x.shape[1] == 0 then host.fail(("data: %s has no samples"):format(source.options.x), arrays.x.place) end
  source.arrays = arrays
  return arrays
end

-- A model with declared sizes (prun.models.mlp) gets flattened samples.
local function flatten(source, array, name, size, option)
  if not size or array.ids then return end
  if product(array.dims) ~= size then
    host.fail(("the model's %s is %d, and a sample of %s has %s = %d numbers"):format(option, size,
      source.options[name], shape_text(array.dims), product(array.dims)), array.place)
  end
  array.dims = { size }
end

return data.source("arrays", {
  entries = {
    { name = "x", kind = "text", help = "a .npy file with the inputs, one entry a sample" },
    { name = "y", kind = "text", optional = true, help = "a .npy file with what the model should say of them" },
    { name = "x_as", kind = "text", optional = true, choices = as,
      help = "whether x holds numbers or ids; by default floats and uint8 are numbers" },
    { name = "y_as", kind = "text", optional = true, choices = as,
      help = "whether y holds numbers or ids; by default floats are numbers" },
    { name = "scale", kind = "number", default = 1, above = 0,
      help = "x is multiplied by it: 1 / 255 for pictures of uint8" },
    { name = "order", kind = "text", default = "epochs", choices = data.order.choices, help = data.order.help },
  },
  agree = function(source, model)
    local arrays = arrays_of(source)
    flatten(source, arrays.x, "x", model.inputs, "inputs")
    if arrays.y then flatten(source, arrays.y, "y", model.outputs, "outputs") end
  end,
  inputs = function(_, source)
    local list = {}
    for _, name in ipairs { "x", "y" } do
      local array = arrays_of(source)[name]
      if array then list[#list + 1] = { name, array.ids and "i32" or "", array.dims } end
    end
    return list
  end,
  may_ignore = function() return true end,
  finish = function(source, result)
    for _, name in ipairs { "x", "y" } do
      local array = arrays_of(source)[name]
      if array then
        result.files[#result.files + 1] = { path = array.path, bytes = array.bytes, skip_bytes = array.skip_bytes,
                                            element = array.element, name = name }
      end
    end
    result.count = arrays_of(source).x.shape[1]
  end,
})
