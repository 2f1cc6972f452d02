-- prun.adam: Adam (Kingma and Ba 2015) with L2 regularization, as torch.optim.Adam: weight decay is added to the
-- gradient and so passes through both averages.

return require "prun.optimizer" { name = "adam", op = "adamw", numbers = { l2 = 1 }, entries = {
  { name = "lr", kind = "rate", default = 1e-3, least = 0, help = "learning rate, or how it goes" },
  { name = "betas", kind = "numbers", default = { 0.9, 0.999 }, count = 2, least = 0, below = 1,
    help = "decay of the two running averages" },
  { name = "eps", kind = "number", default = 1e-8, least = 0, help = "added to the root of the second average" },
  { name = "weight_decay", kind = "number", default = 0.0, least = 0,
    help = "added to the gradient, times the parameter" },
  { name = "clip", kind = "number", default = 0.0, least = 0, instead = "; 0 does not clip",
    help = "bound of the norm of all gradients; 0: none" },
} }
