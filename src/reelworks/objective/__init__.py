"""What a denoiser learns: rectified flow or diffusion with learned variance, timesteps, conditioning masks.

Owns the formulas that turn clean latents, noise and draws into inputs, targets and losses. May import
core and precision; `config` and `masks` need no torch. Knows no model, no loss weights and no random
state: every draw is an argument.
"""
