"""From a recipe to entries and plans: scan what is missing, assign, count, plan, summarise.

Torch-free, so that `reelworks plan` answers for a cluster on a laptop. Both the command line and the
trainer come through here, so that a forecast and a run cannot disagree.
"""
