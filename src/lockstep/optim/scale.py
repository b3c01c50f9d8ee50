"""The dynamic loss scale of float16 (Micikevicius et al., 2018, Mixed Precision Training, section 3.2)."""

_LEAST, _FIRST, _GREATEST = 0, 15, 24  # log2, for a loss that is a mean
_GROW_AFTER = 1000  # steps; as TensorFlow's tf_cnn_benchmarks does


class LossScale:
    """What the loss is multiplied by, so that small gradients do not vanish in float16.

    Halved after a step whose loss or gradients are not finite, which is skipped; doubled after 1 000 others in a row.
    Always a power of two, so dividing by it again changes no bit. It is told of the sum of all towers, so every copy
    of it decides alike. `examples`: how many the loss is a sum over.
    """

    def __init__(self, examples: int) -> None:
        down = (examples - 1).bit_length()
        self.least, self.value, self._greatest = (2.0 ** (power - down) for power in (_LEAST, _FIRST, _GREATEST))
        self.clean = 0  # steps since the last change

    def skipped(self) -> None:
        """A step overflowed."""
        self.value, self.clean = max(self.least, self.value / 2), 0

    def stepped(self) -> None:
        """A step was applied."""
        self.clean += 1
        if self.clean == _GROW_AFTER:
            self.value, self.clean = min(self._greatest, self.value * 2), 0
