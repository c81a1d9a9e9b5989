"""The stored step of exercise 13.adamw_step, taken again by PyTorch: needs torch."""

import numpy as np
import pytest

from minibert.course.exercises.n13_optimiser import HYPERPARAMETERS, STORED_AFTER, STORED_BEFORE

torch = pytest.importorskip("torch", reason="takes a step of torch.optim.AdamW, and torch is not installed")


def test_the_stored_step_is_pytorchs():
    before = {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in STORED_BEFORE.items()}
    parameter = torch.nn.Parameter(before["value"])
    parameter.grad = before["grad"]
    lr, beta1, beta2, eps, weight_decay = HYPERPARAMETERS.values()
    optimiser = torch.optim.AdamW([parameter], lr, (beta1, beta2), eps, weight_decay)
    optimiser.state[parameter] = {  # 1 − βᵗ is exactly 1 after a million steps
        "step": torch.tensor(1e6),
        "exp_avg": before["mean"],
        "exp_avg_sq": before["variance"],
    }
    optimiser.step()
    np.testing.assert_allclose(parameter.detach(), STORED_AFTER["value"], rtol=1e-14)
    np.testing.assert_allclose(before["mean"], STORED_AFTER["mean"], rtol=1e-14)  # updated in place
    np.testing.assert_allclose(before["variance"], STORED_AFTER["variance"], rtol=1e-14)
