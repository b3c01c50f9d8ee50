"""Decoder: what a file takes is what its decoding takes, and not what its header states. It ends
with its program.
"""

import io
import signal
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image
from tests.images import noise

from lockstep.classify.decoder import Decoder
from lockstep.pictures.decode import (
    Decoding,
    UnreadableImageError,
    _load_plugins,
    decode_image,
    stored_pixels,
)

_load_plugins()  # so that Pillow writes HEIC too


def encoded(image, format, **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def many_scans(count):
    """Return a small progressive JPEG whose last scan is there `count` times more."""
    data = encoded(Image.new("L", (300, 300), 128), "JPEG", progressive=True)
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * count + data[-2:]


def tiff(side, tile):
    """Return a TIFF of `side` x `side` grey pixels in one tile of `tile` x `tile`."""
    body = zlib.compress(bytes(tile * tile))
    tags = [
        (256, side),
        (257, side),
        (258, 8),
        (259, 8),
        (262, 1),
        (277, 1),
        (322, tile),
        (323, tile),
        (324, 0),
        (325, len(body)),
    ]
    start = 8 + 2 + 12 * len(tags) + 4
    rows = [struct.pack("<HHII", tag, 4, 1, start if tag == 324 else value) for tag, value in tags]
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(rows) + bytes(4) + body


def lying_heic():
    """Return a HEIC file that states 64 x 64 pixels and has 500 x 500."""
    data = encoded(Image.new("RGB", (500, 500)), "HEIF", quality=10)
    assert data.count(struct.pack(">2I", 500, 500)) == 1
    return data.replace(struct.pack(">2I", 500, 500), struct.pack(">2I", 64, 64))


@pytest.fixture
def decoder():
    one = Decoder(most_px=100_000, limit_px=2_000_000, memory=200_000_000, seconds=0.3, image_px=32)
    yield one
    one.end()


def test_a_picture_is_decode_images_and_none_if_it_takes_more(decoder):
    pixels = noise(0, 40, 30, 3)
    small, large = (
        encoded(Image.fromarray(each), "PNG")
        for each in (pixels, np.zeros((400, 300, 3), np.uint8))
    )
    expected = decode_image(small, Decoding(32))
    assert np.array_equal(decoder.pixels(small), expected)
    program = decoder._program
    assert decoder.pixels(large) is None  # by its header
    with pytest.raises(UnreadableImageError, match="3 megapixels, more than 2"):
        decoder.pixels(encoded(Image.new("1", (2000, 1500)), "PNG"))
    with pytest.raises(UnreadableImageError, match="not a JPEG"):
        decoder.pixels(b"no image")
    assert decoder.pixels(tiff(100, 1024)) is None
    with pytest.raises(UnreadableImageError, match="4 megapixels, more than 2"):
        decoder.pixels(tiff(100, 2048))
    assert decoder._program is program  # All this did not end it.
    with pytest.raises(UnreadableImageError, match="Security limit"):
        decoder.pixels(lying_heic())
    assert decoder.pixels(many_scans(50_000)) is None  # ended by the system
    assert program.poll() == -signal.SIGPROF
    assert np.array_equal(decoder.pixels(small), expected)
    decoder._program.kill()  # as an error in a library does
    assert decoder.pixels(small) is None
    assert np.array_equal(decoder.pixels(small), expected)


def test_memory_that_is_not_there_is_none():
    one = Decoder(
        most_px=50_000_000, limit_px=50_000_000, memory=90_000_000, seconds=20.0, image_px=32
    )
    try:
        assert one.pixels(encoded(Image.new("RGB", (5000, 5000)), "PNG")) is None
        assert one.pixels(encoded(Image.new("RGB", (50, 50)), "PNG")) is not None
    finally:
        one.end()


def test_it_ends_with_the_program_that_asks():
    """Also when that program is killed."""
    asks = """
import os, signal
from lockstep.classify.decoder import Decoder
one = Decoder(most_px=9, limit_px=9, memory=200_000_000, seconds=1.0, image_px=8)
one._start()
print(one._program.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    # The output ends when the decoder has ended too: it has the same.
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.strip().isdigit()


@pytest.mark.parametrize(("side", "tile", "pixels"), [(100, 1024, 1024**2), (1024, 512, 1024**2)])
def test_a_tile_counts_as_what_is_decoded(side, tile, pixels):
    assert stored_pixels(tiff(side, tile), pixels) == pixels
    with pytest.raises(UnreadableImageError, match="1 megapixels, more than 1"):
        stored_pixels(tiff(side, tile), pixels - 1)
