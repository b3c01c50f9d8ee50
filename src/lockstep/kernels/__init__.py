"""Fast kernels as plain functions of tensors.

`fused.py` has convolutions with what follows them, `winograd.py` their faster scheme on a CPU,
`local_response.py` the tutorial's norm, `cpu_table.py` dense layers, `portable/` the arithmetic
with the same bits on every device. On a GPU, native convolutions are cuDNN's: a GPU kernel goes
into `fused.conv` and `fused.conv_relu`, where `_in_chunks` decides by the device.

`reference.py` states each kernel in plain torch operators. It runs instead of a kernel while a
model is exported or traced. With gradients off, a kernel computes the same bits without an autograd
function and stores nothing.
"""
