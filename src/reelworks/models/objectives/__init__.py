"""Training objectives and samplers: rectified flow, diffusion, timesteps.

Owns the formulas that turn clean latents, noise and random draws into inputs, targets and losses. Only `config` needs
no torch. Knows no model and no random state: all draws are arguments.
"""
