-- init = prun.init.from { path = "model" }: the run starts with existing weights, of a Hugging Face folder or of a
-- checkpoint; the optimizer starts at step 0. prun reads the folder after the plan has been recorded, because scripts
-- have no file access.

local schema = require "prun.schema"

local entries = schema.register("prun.init.from", {
  { name = "path", kind = "text",
    help = "a Hugging Face folder, a checkpoint, or a folder of checkpoints, whose newest is taken" },
  { name = "missing", kind = "text", default = "error", choices = { "error", "initialise" },
    help = "parameters that the weights lack: an error, or they get the model's initial values" },
})

return function(given)
  local site = host.site("user")
  local options = schema.check("prun.init.from", entries, given, site)
  local path, why = host.folder_info(host.base ~= "" and host.base or options.path)
  if not path and host.base_was ~= "" then
    path = host.folder_info(host.base_was)
    why = ("%s, and the base that the checkpoint names, %s, is gone; --base DIR says where it is"):format(why,
      host.base_was)
  end
  if not path then host.fail(("prun.init.from: %s"):format(why), host.site_of_word(site, "path")) end
  return { kind_of = "weights", path = path, partial = options.missing == "initialise",
           site = host.site_of_word(site, "path") }
end
