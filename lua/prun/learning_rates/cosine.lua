-- prun.cosine: after the warm-up half a period of a cosine, from lr to least (Loshchilov and Hutter 2017, "SGDR").

return require "prun.learning_rate" ("cosine", { "lr", "warmup", "steps", "least" })
