-- init = prun.init.from { path = "model" }: the run starts with existing weights, of a Hugging Face folder or of a
-- checkpoint; the optimizer starts at step 0. prun reads the folder after the plan has been recorded, because scripts
-- have no file access.

local schema = require "prun.schema"

local entries = schema.register("prun.init.from", {
  { name = "path", kind = "text",
    help = "a Hugging Face folder, a checkpoint, a folder of checkpoints, whose newest is taken, or adapters of peft" },
  { name = "missing", kind = "text", default = "error", choices = { "error", "initialise" },
    help = "parameters that the weights lack: an error, or they get the model's initial values" },
})

-- Returns the folder of the base of peft's adapters. `named`: the base in their configuration.
local function base_of(path, named, place)
  local given = host.base ~= "" and host.base or named
  local base = given ~= "" and host.folder_info(given)
  if not base and host.base_was ~= "" then base = host.folder_info(host.base_was) end
  if not base then
    host.fail(("prun.init.from: '%s' holds adapters of the base '%s', and there is no such folder; --base DIR says " ..
      "where the base is"):format(path, given), place)
  end
  return base
end

return function(given)
  local site = host.site("user")
  local options = schema.check("prun.init.from", entries, given, site)
  local place = host.site_of_word(site, "path")
  local path, named = host.folder_info(options.path)
  local base = path and named and base_of(options.path, named, place)
  local why
  if not base then path, why = host.folder_info(host.base ~= "" and host.base or options.path) end
  if not path and host.base_was ~= "" then
    path = host.folder_info(host.base_was)
    why = ("%s, and the base that the checkpoint names, %s, is gone; --base DIR says where it is"):format(why,
      host.base_was)
  end
  if not path then host.fail(("prun.init.from: %s"):format(why), place) end
  return { kind_of = "weights", path = path, base = base or nil, partial = options.missing == "initialise",
           site = place }
end
