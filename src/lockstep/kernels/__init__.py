"""Fast kernels as plain functions of tensors.

`fused.py` has convolutions with what follows them, `winograd.py` their faster scheme on a CPU,
`local_response.py` the tutorial's norm, `cpu_table.py` dense layers, `portable/` the arithmetic
with the same bits on every device. The models `tutorial`, `mnist` and `whitened` call `fused.py`;
all others call torch's own layers. On a GPU, native convolutions are cuDNN's: a GPU kernel goes
into `fused._computed`, where the device decides.

`reference.py` states each kernel in plain torch operators. It runs instead of a kernel while a
model is exported or traced. With gradients off, a kernel computes the same bits without an autograd
function and stores nothing.
"""

Shape = tuple[int, int, int]  # [C, H, W] of one image
