-- prun.cosine: after warm-up, half a cosine period from lr to least (Loshchilov and Hutter 2017, "SGDR").

return require "prun.learning_rate" ("cosine", { "lr", "warmup", "steps", "least" })
