-- luacheck lua plans tests: Lua 5.4 as the sandbox gives it; lua/prun also sees `host`.
std = {
  read_globals = {
    "assert", "error", "getmetatable", "ipairs", "math", "next", "pairs", "pcall", "print", "rawequal", "rawget", "rawlen",
    "rawset", "require", "select", "setmetatable", "string", "table", "tonumber", "tostring", "type", "utf8",
  },
}
max_line_length = 120
files["lua/prun"] = { read_globals = { "host" } }
exclude_files = { "tests/errors", "build", "lua/prun/stubs.lua", "lua/prun/model_stubs.lua" }
