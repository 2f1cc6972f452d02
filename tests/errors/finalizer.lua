-- prun check PLAN
setmetatable({}, { __gc = function() end })
