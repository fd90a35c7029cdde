"""Load a trained model, sample from it with guidance, and write pictures and clips.

`defaults` and `writers` need no torch. Samplers live in `models.objectives.samplers`.
"""
