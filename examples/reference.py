"""Computes training steps of examples/verified-digits from docs/specification.md alone.

    python reference.py RUN DATA.npz [--from STEP] [--steps N]

It prints the hash of the weights after each step, and compares all tensors with each checkpoint
that it reaches. Exit code 0: no difference, 1: a difference, 2: wrong usage. Its author had not
seen Lockstep. It needs a little-endian CPU for 2 or 3 seconds a step, and no packages.

Images are lists of channels. A channel is a Tensor of the pixels of all images of a tower, image
by image, row by row: batch norm works on channels, convolution on shifted copies of them.
"""

import argparse
import hashlib
import json
import math
import pathlib
import random
import zipfile
from array import array
from functools import reduce
from itertools import chain, product, repeat
from operator import add, mul, sub, truediv

IMAGES = 32  # of a tower
LN2_HIGH, LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10


class Tensor(array):
    """Float32 numbers. An operation with numbers, or with a number for all, rounds its results."""

    def __new__(cls, values):
        return super().__new__(cls, "f", values)

    def each(operation):
        return lambda a, b: Tensor(map(operation, a, b if isinstance(b, Tensor) else repeat(b)))

    __add__, __sub__, __mul__, __truediv__ = map(each, (add, sub, mul, truediv))


def f(x):
    """Rounds one number to float32."""
    return Tensor([x])[0]


def rows(values, length):
    """Cuts a tensor into rows."""
    return [Tensor(values[i : i + length]) for i in range(0, len(values), length)]


def mix(x):
    """Scrambles 64 bits."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def bits(seed, stream, *keys):
    """64 random bits that depend on nothing but the arguments."""
    h = mix(seed ^ int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8], "little"))
    return reduce(lambda h, key: mix(h ^ mix(key)), keys, h)


def draw(seed, count):
    """The first draw of a generator: integers of 24 bits."""
    state = [seed % 2**32]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) % 2**32)
    twister = random.Random()
    twister.setstate((3, (*state, 624), None))  # random.seed would fill the state in another way
    key = bits((twister.getrandbits(32) * 2**32 + twister.getrandbits(32)) % 2**63, "portable")
    return [mix(mix(i) ^ key) >> 40 for i in range(count)]


def integers(matrix, size):
    """Integers of `size` bits, and k: an element is about its integer * 2^-k."""
    largest = max(map(abs, chain(*matrix)))
    share, power = math.frexp(largest)
    k = min(size - power - (share > f(0.98)), 100) if largest else 0
    return [[round(x * 2.0**k) for x in row] for row in matrix], k


def total(values):
    """The sum of float32 numbers, in float64: that of integers, which have no rounding."""
    q, k = integers([values], 20)
    return sum(q[0]) * 2.0**-k


def products(a, b, exponent):
    """Dot products, exact, of each row of a with each row of b, times a power of two, rounded."""
    return [Tensor(sum(map(mul, x, y)).real * 2.0**exponent for y in b) for x in a]


def matmul(a, b):
    """The product of two matrices."""
    size = min(24, (53 - len(b).bit_length()) // 2)
    (a, k), (b, m) = integers(a, size), integers(b, size)
    return products(a, list(zip(*b)), -k - m)


def exp(x):
    """e^x. The last bit of math.exp may depend on the C library."""
    n = round(x * 1.4426950408889634)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = reduce(lambda p, i: p * r + 1 / math.factorial(i), range(14, -1, -1), 0)
    return math.ldexp(p, n) if x >= -708 else 0.0


def log(x):
    """The natural logarithm."""
    m, p = math.frexp(x)
    m, p = (m + m, p - 1) if m < math.sqrt(0.5) else (m, p)
    s = (m - 1) / (m + 1)
    t = reduce(lambda t, i: t * (s * s) + 2 / (2 * i + 1), range(13, -1, -1), 0)
    return p * LN2_HIGH + (p * LN2_LOW + s * t)


def tree(v):
    """The sum of float64 numbers: adds the second half to the first until one number is left."""
    m = len(v) // 2
    return tree([*map(add, v[:m], v[m:]), *v[2 * m :]]) if m else v[0]


def shifted(channels, size):
    """9 shifted copies of each channel. Index -1 finds the 0 that surrounds the images."""
    indices, inside = [[] for _ in range(9)], set(range(size))
    for i, y, z in product(range(IMAGES), range(size), range(size)):
        for index, (v, w) in zip(indices, product((y - 1, y, y + 1), (z - 1, z, z + 1))):
            index.append((i * size + v) * size + w if {v, w} <= inside else -1)
    padded = [[*channel, 0] for channel in channels]
    return [[channel[p] for p in index] for channel in padded for index in indices]


def slices(matrix):
    """Integers q with low slices l, as q + li: the real parts of products are q * q' - l * l'."""
    q, k = integers(matrix, 13)
    return [[complex(x, (x + 8256) % 128 - 64) for x in row] for row in q], k


def activation(v, w, bias, size, pool):
    """Batch norm, ReLU and max-pool of a channel; its mean, unbiased variance and gradients."""
    n = len(v)
    mean = f(total(v) / n)
    centred = v - mean
    variance = total(centred * centred) / n
    inverse = f(1 / f(math.sqrt(f(variance + 1e-5))))
    factor = f(inverse * w)
    y = Tensor(x if x > 0 else 0 for x in centred * factor + bias)
    corners = (size * y + z for y in range(0, IMAGES * size, pool) for z in range(0, size, pool))
    window = [size * y + z for y, z in product(range(pool), repeat=2)]
    places = [max((c + p for p in window), key=y.__getitem__) for c in corners]

    def backward(g_pool):
        g = Tensor(repeat(0, n))
        for place, x in zip(places, g_pool):
            g[place] = x if y[place] > 0 else 0
        normal = centred * inverse
        g_bias, g_w = total(g), total(g * normal)
        return (g - f(g_bias / n) - normal * f(g_w / n)) * factor, g_w, g_bias

    return Tensor(y[place] for place in places), mean, f(variance * (n / (n - 1))), backward


def block(x, number, size, pool, state, changes):
    """A convolution, then the activation of its channels. Notes what they change in the state."""
    conv, norm = f"parameter/conv{number}.weight", f"parameter/norm{number}."
    (x, k), (w, m) = slices(x), slices(rows(state[conv], 9 * len(x)))
    columns = shifted(x, size)
    y = products(w, list(zip(*columns)), -k - m)
    channels = zip(y, state[norm + "weight"], state[norm + "bias"])
    y, means, variances, backs = zip(*(activation(*channel, size, pool) for channel in channels))
    for kind, values in ("mean", means), ("var", variances):
        name = f"buffer/norm{number}.running_{kind}"
        changes[name] = state[name] * f(0.9) + Tensor(values) * f(0.1) - state[name]

    def backward(g):
        g, g_w, g_bias = zip(*(back(channel) for back, channel in zip(backs, g)))
        changes[norm + "weight"], changes[norm + "bias"] = Tensor(g_w), Tensor(g_bias)
        g, n = slices(g)
        changes[conv] = Tensor(chain(*products(g, columns, -k - n)))
        turned = [[v for row in w for v in row[9 * c :][8::-1]] for c in range(len(x))]  # by 180°
        return products(turned, list(zip(*shifted(g, size))), -m - n)

    return y, backward


def head(x, noise, labels, state, changes):
    """Dropout, logits and loss. Returns the gradient of x, and notes those of the parameters."""
    w, pixels = rows(state["parameter/logits.weight"], 64), 64 // len(x)
    images = zip(*(rows(channel, pixels) for channel in x))
    d, g = [Tensor(chain(*image)) * kept for image, kept in zip(images, noise)], []
    for row, label in zip(matmul(d, list(zip(*w))), labels):
        z = row + state["parameter/logits.bias"]
        z = [v - max(z) for v in z]
        norm = log(tree([exp(v) for v in z]))
        g.append(Tensor(exp(f(v - norm)) - (o == label) for o, v in enumerate(z)))
    changes["parameter/logits.bias"] = Tensor(map(total, zip(*g)))
    changes["parameter/logits.weight"] = Tensor(chain(*matmul(list(zip(*g)), d)))
    g = [row * kept for row, kept in zip(matmul(g, w), noise)]
    return [Tensor(chain(*(row[i : i + pixels] for row in g))) for i in range(0, 64, pixels)]


def tower(recipe, data, state, step, number):
    """Gradients of the parameters, and changes of the running averages."""
    seed, x, labels, changes = recipe["seed"], [], [], {}
    for j in range(IMAGES):
        epoch, place = divmod(recipe["batch"] * step + IMAGES * number + j, len(data))
        if place == 0 or j == 0:  # a new epoch, or the first image
            order = sorted(range(len(data)), key=lambda i: bits(seed, "order", epoch, i))
        image, label = data[i := order[place]]
        top, left = (bits(seed, f"shift_{axis}", epoch, i) % 3 - 1 for axis in "yx")
        for y, z in product(range(top, top + 8), range(left, left + 8)):
            x.append(15 * image[8 * y + z] * f(1 / 255) if {y, z} <= {*range(8)} else 0)
        labels.append(label)
    random_bits = draw(bits(seed, "dropout", step, number) >> 1, IMAGES * 64)
    noise = rows([f(1 / f(0.8)) * (u < math.ceil(0.8 * 2**24)) for u in random_bits], 64)
    x, back_1 = block([Tensor(x)], 1, 8, 1, state, changes)
    x, back_2 = block(x, 2, 8, 2, state, changes)
    x, back_3 = block(x, 3, 4, 2, state, changes)
    back_1(back_2(back_3(head(x, noise, labels, state, changes))))
    return changes


def train(recipe, data, steps, state, step):
    """The state after a step, from that before it."""
    towers = [tower(recipe, data, state, step, number) for number in range(recipe["towers"])]
    start, peak, n = recipe["schedule"]["start"], recipe["schedule"]["warmup"] * steps, step + 1
    rise, fall = start + (1 - start) * step / peak, (steps - step) / (steps - peak)
    rate = f(recipe["lr"] * (rise if step < peak else fall))
    share = f(1 - min(recipe["ema"]["decay"], (1 + n) / (10 + n)))
    m = f(recipe["optimizer"]["momentum"])
    new = {name: array("q", [n]) for name in state if state[name].typecode == "q"}  # counts
    for name in towers[0]:
        a, b, c, d = (changes[name] for changes in towers)  # added in pairs
        change, w, (kind, short) = (a + b) + (c + d), state[name], name.split("/")
        if kind == "buffer":
            new[name] = w + change / len(towers)
        else:
            momentum, average = f"optimizer/momentum_buffer/{short}", f"ema/{short}"
            g = change / recipe["batch"]
            if short in recipe["weight_decay"]:
                g = g + w * f(recipe["weight_decay"][short])
            v = new[momentum] = state[momentum] * m + g if step else g  # step 0 has none
            w = new[name] = w - (g + v * m) * rate
            new[average] = state[average] + (w - state[average]) * share
    return new


def read_data(path):
    """The training images: pairs of 64 pixels and a label."""
    with zipfile.ZipFile(path) as archive:
        files = [archive.read(f"{name}.npy") for name in ("images", "labels")]
    images, labels = (content[10 + int.from_bytes(content[8:10], "little") :] for content in files)
    training = (i for i, label in enumerate(labels) if labels[:i].count(label) % 5 != 4)
    return [(images[64 * i : 64 * i + 64], labels[i]) for i in training]


def read_checkpoint(path):
    """The tensors of a checkpoint by name."""
    content, state = path.read_bytes(), {}
    start = 8 + int.from_bytes(content[:8], "little")
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            state[name] = Tensor([]) if entry["dtype"] == "F32" else array("q")
            state[name].frombytes(content[start:][slice(*entry["data_offsets"])])
    return state


def main():
    """Reads the command line, computes and compares."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="STEP")
    parser.add_argument("--steps", type=int, default=1, metavar="N")
    options = parser.parse_args()
    if not options.data.is_file() or not (options.run / "recipe.json").is_file():
        parser.error("there is no such run, or no such data")
    data, recipe = read_data(options.data), json.loads((options.run / "recipe.json").read_text())
    paths = options.run.glob("checkpoints/step-*.safetensors")
    checkpoints = {int(path.stem[5:]): read_checkpoint(path) for path in paths}
    steps = max(recipe["min_steps"], round(recipe["epochs"] * len(data) / recipe["batch"]))
    state, end = checkpoints.get(options.first), options.first + options.steps
    if not state or not options.first < end <= steps:
        parser.error(f"start at a checkpoint, and end after {steps} updates at the latest")
    for step in range(options.first, end):
        state = train(recipe, data, steps, state, step)
        names = [x for kind in ("parameter", "buffer") for x in sorted(state) if x.startswith(kind)]
        sha256 = hashlib.sha256(b"".join(bytes(state[name]) for name in names)).hexdigest()
        print(f"after {step + 1} updates: weights_sha256 {sha256}", flush=True)
        for name, expected in checkpoints.get(step + 1, {}).items():
            if name not in state or bytes(state[name]) != bytes(expected):
                raise SystemExit(f"{name} differs from the checkpoint")
        if step + 1 in checkpoints:
            print("all tensors: the same bits as in the checkpoint")


if __name__ == "__main__":
    main()
