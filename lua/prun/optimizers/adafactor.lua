-- prun.adafactor: Shazeer and Stern, "Adafactor", 2018, as torch.optim.Adafactor. Its state is the running averages of
-- squared gradients over the rows and the columns of each matrix; of a vector, those of its elements.

return require "prun.optimizer" { name = "adafactor", entries = {
  { name = "lr", kind = "rate", default = 1e-2, least = 0,
    help = "upper bound of the relative step 1 / sqrt(step), or how it goes" },
  { name = "beta2_decay", kind = "number", default = -0.8, signed = true, most = 0,
    help = "exponent: the average takes the share step^beta2_decay of the new squares" },
  { name = "eps", kind = "numbers", default = { 2.0 ^ -23, 1e-3 }, count = 2,
    help = "least mean of squares, and least root mean square of a parameter, which multiplies the step" },
  { name = "d", kind = "number", default = 1.0, least = 1, help = "bound of the root mean square of an update" },
  { name = "weight_decay", kind = "number", default = 0.0, least = 0,
    help = "share of the parameter taken off, times lr" },
  { name = "clip", kind = "number", default = 0.0, least = 0, instead = "; 0 does not clip",
    help = "bound of the norm of all gradients; 0: none" },
}, settle = function(options) return { eps1 = options.eps[1], eps2 = options.eps[2] } end }
