-- prun.muon: momentum whose matrices are orthogonalized (Jordan et al., "Muon", 2024), as torch.optim.Muon, in f32.
-- Each matrix is orthogonalized whole, once, by one of the ranks that hold it. Other parameters need another optimizer.

return require "prun.optimizer" { name = "muon", entries = {
  { name = "lr", kind = "rate", default = 1e-3, least = 0, help = "learning rate, or how it goes" },
  { name = "momentum", kind = "number", default = 0.95, least = 0, below = 1, help = "decay of the running average" },
  { name = "nesterov", kind = "boolean", default = true,
    help = "steps along the gradient blended with the updated average" },
  { name = "weight_decay", kind = "number", default = 0.1, least = 0,
    help = "share of the parameter taken off, times lr" },
  { name = "steps", kind = "integer", default = 5, least = 1, most = 99, help = "Newton-Schulz iterations" },
  { name = "coefficients", kind = "numbers", default = { 3.4445, -4.775, 2.0315 }, count = 3, signed = true,
    help = "a, b and c of an iteration: X = aX + (bG + cG^2)X, with G = XX'" },
  { name = "adjust", kind = "text", default = "original",
    choices = { "original", "match_rms_adamw", "spectral_unclamped" },
    help = "factor of lr: sqrt(max(1, outputs / inputs)); 0.2 sqrt(max(outputs, inputs)), for rates of adamw; " ..
           "sqrt(outputs / inputs)" },
  { name = "clip", kind = "number", default = 0.0, least = 0, instead = "; 0 does not clip",
    help = "bound of the norm of all gradients; 0: none" },
}, settle = function(options)
  local c = options.coefficients
  local adjust = { original = 0, match_rms_adamw = 1, spectral_unclamped = 2 }
  return { a = c[1], b = c[2], c = c[3], adjust = adjust[options.adjust] }
end }
