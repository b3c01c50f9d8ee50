"""The first contact with a GPU, in parts: `bash benchmarks/gpu/first.sh` runs all of them in order.

    steps    ms, launches, waits and memory of a step of each recipe
    count    operators and launches of a step as a GPU computes it, without a GPU
    bits     the operations of portable arithmetic whose bits differ from those of a CPU
    cifar10  CIFAR-10 to 94 %, and what a user does with the run
    packed   CIFAR-10 without loss in two small files, for a machine without a network

Each is a program: `python -m benchmarks.gpu.NAME --help`. prepare.sh fetches what a machine without
a network lacks.
"""

from lockstep import numerics

# Before a module here imports torch. These programs compute in their own process, with the
# variables of a worker; without one of them, cuBLAS refuses deterministic products.
numerics.prepare(1)
