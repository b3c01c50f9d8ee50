"""The dynamic loss scale of float16 (Micikevicius et al., 2018, Mixed Precision Training, section
3.2).
"""

# log2 of the scale, for a loss that is a mean
_SMALLEST = 0
_INITIAL = 15
_LARGEST = 24
_GROW_AFTER = 1000  # steps, as in TensorFlow's tf_cnn_benchmarks


class LossScale:
    """The factor of the loss that keeps small gradients above zero in float16.

    A step whose loss or gradients are not finite is skipped and halves the scale. After 1,000
    applied steps in a row the scale doubles. The scale is always a power of two, so dividing by it
    changes no bit. Updated from the reduced flag, so every process takes the same decision.

    examples: the number of examples that the loss is a sum over.
    """

    def __init__(self, examples: int) -> None:
        down = (examples - 1).bit_length()
        self.least = 2.0 ** (_SMALLEST - down)
        self.value = 2.0 ** (_INITIAL - down)
        self._largest = 2.0 ** (_LARGEST - down)
        self.clean = 0  # applied steps since the scale last changed

    def skipped(self) -> None:
        """Halve the scale, after a step that was skipped."""
        self.value = max(self.least, self.value / 2)
        self.clean = 0

    def stepped(self) -> None:
        """Count a step that was applied; double the scale after 1,000 of them."""
        self.clean += 1
        if self.clean == _GROW_AFTER:
            self.value = min(self._largest, self.value * 2)
            self.clean = 0
