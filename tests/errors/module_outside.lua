-- prun check PLAN
local passwords = require "../../etc/passwd"
