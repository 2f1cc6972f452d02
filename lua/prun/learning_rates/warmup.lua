-- prun.warmup: linear from 0 to lr, then constant.

return require "prun.learning_rate" ("warmup", { "lr", "warmup" })
