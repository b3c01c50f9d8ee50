"""Comparison of tensors, without torch.testing, which imports a part of torch that takes
seconds.
"""

import numpy as np
from torch import Tensor


def require_close(
    found: Tensor, expected: Tensor, rtol: float = 1.3e-6, atol: float = 1e-5
) -> None:
    """Raise AssertionError unless shape and dtype are equal, and each value is within atol + rtol *
    |expected|.

    NaN equals NaN. The default tolerances are for float32.
    """
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(
        found.detach().numpy(), expected.detach().numpy(), rtol=rtol, atol=atol
    )
