-- prun.linear: after warm-up, linear from lr to least.

return require "prun.learning_rate" ("linear", { "lr", "warmup", "steps", "least" })
