-- prun.warmup: a straight line from 0 to lr, which stays.

return require "prun.learning_rate" ("warmup", { "lr", "warmup" })
