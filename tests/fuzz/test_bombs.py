"""Small files that claim to be large: every loader refuses them, in little time and memory."""

import json
import subprocess
import sys

import pytest
from tests.documents import ROOT

# One program imports everything and forks for each bomb: the peak memory of the fork is measured.
PREPARE = """
import gzip, io, json, os, resource, struct, sys
from pathlib import Path
import numpy as np, torch
from lockstep.config.overrides import make, read_file
from lockstep.data import readers
from lockstep.pictures.decode import Decoding, decode_image
from lockstep.errors import LockstepError
from lockstep.recipes import get_recipe
from lockstep.runs import statefile
from lockstep.runs.run import Run
from lockstep.jobs.weights import load_initial_weights
from lockstep.jobs.weights import find_weights
from lockstep.core.build import build_model

def init(name):
    recipe = get_recipe("digits")
    path = Path(name)
    load_initial_weights(build_model(recipe, (1, 8, 8), 10), "digits", path, find_weights(path).sha256)

def sparse(name, size):
    with open(name, "wb") as file:
        file.truncate(size)

zeros = gzip.compress(bytes(1 << 24))
"""
BOMBS = {
    "a gzip file of 4 GB": """
Path("i.gz").write_bytes(gzip.compress(struct.pack(">4I", 2051, 20, 28, 28)) + zeros * 256)
Path("l.gz").write_bytes(gzip.compress(struct.pack(">2I", 2049, 20) + bytes(20)))
call = lambda: readers.read_mnist(Path("i.gz"), Path("l.gz"), count=20)
""",
    "a recipe of 4 GB": "sparse('r.toml', 1 << 32); call = lambda: read_file(Path('r.toml'))",
    "a JSON file of 4 GB": "sparse('recipe.json', 1 << 32); call = lambda: Run(Path('.')).recipe()",
    "a number of a million digits": """
Path('recipe.json').write_text('{"steps": ' + '9' * 1_000_000 + '}'); call = lambda: Run(Path('.')).recipe()
""",
    "a model file with a header of 4 GB": """
sparse("m.safetensors", 1 << 32)
with open("m.safetensors", "r+b") as file: file.write(struct.pack("<Q", (1 << 32) - 8))
call = lambda: statefile.metadata_of(Path("m.safetensors"))
""",
    "a tensor that repeats one value": """
torch.save({"logits.weight": torch.zeros(1).expand(1 << 40)}, "w.pt"); call = lambda: init("w.pt")
""",
    "a packed file of weights": """
import os, zipfile
maker = os.fork()  # the memory of the maker is not that of the reader
if not maker:
    torch.save({"logits.weight": torch.zeros(10, 1 << 25)}, "stored.pt")
    with zipfile.ZipFile("stored.pt") as stored, zipfile.ZipFile("w.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for entry in stored.infolist():
            with stored.open(entry) as source, packed.open(entry.filename, "w") as target:
                import shutil; shutil.copyfileobj(source, target)
    os._exit(0)
assert os.waitpid(maker, 0)[1] == 0
call = lambda: init("w.pt")
""",
    "a pickle that asks for 1 GB": """
import pickle
class Zeros:
    def __reduce__(self):
        return bytearray, (1 << 30,)
torch.save({"logits.weight": Zeros()}, "w.pt"); call = lambda: init("w.pt")
""",
    "metrics of 4 GB": """
for name in ("recipe.json", "metrics.jsonl"):
    sparse(name, (1 << 32) if name == "metrics.jsonl" else 1)
call = lambda: Run(Path('.')).metrics()
""",
    "a PNG of 60,000 x 60,000 pixels": """
from PIL import Image
file = io.BytesIO(); Image.new("L", (8, 8)).save(file, "PNG"); data = bytearray(file.getvalue())
data[16:24] = struct.pack(">2I", 60_000, 60_000)
import zlib; data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
call = lambda: decode_image(bytes(data), Decoding(32))
""",
    "a BMP of 2^31 x 2^31 pixels": """
call = lambda: decode_image(b"BM" + struct.pack("<IHHI", 100, 0, 0, 54) + struct.pack(
    "<IiiHHIIiiII", 40, 2**31 - 1, 2**31 - 1, 1, 24, 0, 0, 0, 0, 0, 0) + bytes(100), Decoding(32))
""",
    "an image of 4 GB": "sparse('a.png', 1 << 32); call = lambda: decode_image(Path('a.png'), Decoding(32))",
}
MEASURE = """
def measure(bomb):
    exec(bomb, globals())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        call()
    except LockstepError as error:
        return len(str(error)), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    return "it was read"

for number, (name, bomb) in enumerate(json.load(sys.stdin).items()):
    os.mkdir(str(number))
    if os.fork() == 0:
        os.chdir(str(number))
        print(json.dumps([name, measure(bomb)]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return for each bomb the length of the error's message and the MiB that the program grew
    by.
    """
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + MEASURE],
        cwd=tmp_path_factory.mktemp("bombs"),
        input=json.dumps(BOMBS),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{ROOT}/src"},
    )
    return dict(map(json.loads, done.stdout.splitlines())), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_file_takes_little_memory(measured, bomb):
    results, errors = measured
    assert bomb in results, errors
    length, grown_mib = results[bomb]
    assert 0 < length < 2000
    assert grown_mib < 200
