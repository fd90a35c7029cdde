"""Objectives of denoisers, and the samplers that undo the noise: rectified flow, diffusion, timesteps, frame masks.

Owns the formulas that turn clean latents, noise and draws into inputs, targets and losses. Imports core and
precision; `config` and `frame_masks` need no torch. Knows no model and no random state: every draw is an argument.
"""
