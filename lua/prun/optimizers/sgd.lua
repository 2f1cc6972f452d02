-- prun.sgd: stochastic gradient descent, as torch.optim.SGD.

return require "prun.optimizer" { name = "sgd", entries = {
  { name = "lr", kind = "rate", default = 1e-2, least = 0, help = "learning rate, or how it goes" },
  { name = "momentum", kind = "number", default = 0.0, least = 0, most = 1,
    help = "share of the last update that is kept" },
  { name = "nesterov", kind = "boolean", default = false,
    help = "steps along the gradient plus momentum times the updated momentum" },
  { name = "weight_decay", kind = "number", default = 0.0, least = 0,
    help = "added to the gradient, times the parameter" },
  { name = "clip", kind = "number", default = 0.0, least = 0, instead = "; 0 does not clip",
    help = "bound of the norm of all gradients; 0: none" },
}, check = function(options)
  if options.nesterov and options.momentum == 0 then
    return "'nesterov' needs a momentum: prun.sgd { momentum = 0.9, nesterov = true }", "nesterov"
  end
end }
