"""Training objectives and samplers: rectified flow, diffusion, timesteps, frame masks.

Owns the formulas that turn clean latents, noise and random draws into inputs, targets and losses. Imports core and
precision; `config` and `frame_masks` need no torch. Knows no model and no random state: all draws are arguments.
"""
