"""Plan entries to micro-batches in memory: decoded ahead by workers, delivered in the plan's order.

Workers hold no state. A clip that cannot be decoded becomes a weight-0 filler and never shifts the plan.
"""
