"""The entrance of this annex."""

from reelworks.core.annexes import Annex

ANNEX = Annex(engines={"ray": "reelworks.annexes.cluster.ray_cluster:connect"})
