"""The first contact with a GPU, in parts: `bash benchmarks/gpu/first.sh` runs all of them in order.

    facts     GPU and versions, and what Lockstep needs and this machine lacks
    steps     ms, launches, waits and memory of a step of recipes, with CUDA graphs and without
    peers     the tutorial's speed beside plain PyTorch, eager and compiled
    cifar10   CIFAR-10 to 94%, what listeners cost, and what a user does with the run
    airbench  the fastest public program for CIFAR-10 on the same GPU
    bits      the operations of portable arithmetic whose bits differ from those of a CPU
    count     operators and launches of a step as a GPU computes it, without a GPU
    packed    CIFAR-10 without loss in two small files, for a machine without a network

Each is a program: `python -m benchmarks.gpu.NAME --help`. prepare.sh fetches what a machine without
a network lacks.
"""

from lockstep import numerics

# Before a module here imports torch. These programs compute in their own process, with the
# variables of a worker; without one of them, cuBLAS refuses deterministic products.
numerics.prepare(1)
