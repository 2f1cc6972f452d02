-- prun.warmup: linear from 0 to lr, then constant.

return require("prun.learning_rate").curve("warmup", { "lr", "warmup", "zero_first" })
