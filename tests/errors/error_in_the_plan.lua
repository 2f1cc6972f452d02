-- prun check PLAN
local settings = {}
local width = settings.model.width
