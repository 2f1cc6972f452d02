-- prun.sgd: stochastic gradient descent, as torch.optim.SGD.

return require "prun.optimizer" ("sgd", {
  { name = "lr", kind = "rate", default = 1e-2, least = 0, help = "learning rate, or how it goes" },
  { name = "momentum", kind = "number", default = 0.0, least = 0, most = 1,
    help = "share of the last update that is kept" },
  { name = "weight_decay", kind = "number", default = 0.0, least = 0,
    help = "added to the gradient, times the parameter" },
  { name = "clip", kind = "number", default = 0.0, least = 0, instead = "; 0 does not clip",
    help = "bound of the norm of all gradients; 0: none" },
})
