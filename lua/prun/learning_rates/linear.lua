-- prun.linear: after the warm-up a straight line, from lr to least.

return require "prun.learning_rate" ("linear", { "lr", "warmup", "steps", "least" })
