"""Direct preference optimization of diffusion and flow models, from pairs of a preferred and a rejected clip.

The loss is that of Diffusion-DPO (arXiv 2311.12908), and, with the velocity as the target, of Flow-DPO
(arXiv 2501.13918) with a constant beta. A network is rewarded for a smaller error than a frozen reference has on the
preferred clip, compared with the same difference on the rejected one; both clips have the same noise and timestep.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def dpo_loss(
    preferred_B: Tensor, rejected_B: Tensor, reference_preferred_B: Tensor, reference_rejected_B: Tensor, beta: float
) -> Tensor:
    """Return the loss of each pair, `[B]`, for the mean squared errors of the network and of the reference.

    It is `-log sigmoid(-beta / 2 * ((L_w - L_w_ref) - (L_l - L_l_ref)))`, and log 2 for the reference itself.
    """
    gain_B = (preferred_B - reference_preferred_B) - (rejected_B - reference_rejected_B)
    return -functional.logsigmoid(-0.5 * beta * gain_B)
