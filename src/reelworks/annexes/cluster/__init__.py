"""The engine "ray": scans, measures and encodes on all nodes of a Ray cluster (`core.executors` says what an engine is).

Ray is imported only by a command that asks for it. No other module knows it.
"""
