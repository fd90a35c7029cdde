"""Direct preference optimization of diffusion and flow models, from pairs of a preferred and a rejected clip.

The loss is that of Diffusion-DPO (arXiv 2311.12908), and, with the velocity as the target, of Flow-DPO
(arXiv 2501.13918) with a constant beta. A network is rewarded for a smaller error than a frozen reference has on the
preferred clip, compared with the same difference on the rejected one; both clips have the same noise and timestep.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def dpo_loss(losses_2B: Tensor, reference_2B: Tensor, beta: float) -> Tensor:
    """Return the loss of each pair, `[B]`, for the mean squared errors L of the network and of the reference.

    Both hold those of the preferred clips w and, after them, those of the rejected ones l. The loss is
    `-log sigmoid(-beta / 2 * ((L_w - L_w_ref) - (L_l - L_l_ref)))`, which is log 2 for the reference itself.
    """
    preferred_B, rejected_B = (losses_2B - reference_2B).chunk(2)
    return -functional.logsigmoid(-0.5 * beta * (preferred_B - rejected_B))
