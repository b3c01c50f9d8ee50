"""Fast kernels as plain functions of tensors.

`reference.py` states each kernel in plain torch operators. It runs instead of a kernel while a
model is exported or traced. With gradients off, a kernel computes the same bits without an autograd
function and stores nothing.
"""
