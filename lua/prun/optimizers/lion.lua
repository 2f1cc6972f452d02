-- prun.lion: the sign of a running average (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"), with
-- decoupled weight decay. It needs a learning rate 3 to 10 times smaller than that of adamw.

return require "prun.optimizer" { name = "lion", entries = {
  { name = "lr", kind = "rate", default = 1e-4, least = 0, help = "learning rate, or how it goes" },
  { name = "beta1", kind = "number", default = 0.9, least = 0, below = 1,
    help = "share of the average in the step's direction" },
  { name = "beta2", kind = "number", default = 0.99, least = 0, below = 1, help = "decay of the running average" },
  { name = "weight_decay", kind = "number", default = 0.0, least = 0,
    help = "share of the parameter taken off, times lr" },
  { name = "clip", kind = "number", default = 0.0, least = 0, instead = "; 0 does not clip",
    help = "bound of the norm of all gradients; 0: none" },
} }
