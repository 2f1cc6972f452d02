-- prun check PLAN
local everything = {}
for i = 1, 1e12 do
  everything[i] = ("x"):rep(100000) .. i
end
