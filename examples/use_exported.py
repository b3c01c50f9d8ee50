"""Classify images by a file of `lockstep export`, without Lockstep: python use_exported.py
FILE IMAGE|FOLDER...

It needs numpy, Pillow, and the runtime of the file: onnxruntime, ai-edge-litert or openvino. To
read HEIC, it needs pillow-heif. `lockstep export` writes this
script next to the file. It reads images by Lockstep's own code, so it sees the same pixels.
"""


import errno
import io
import os
import stat
from pathlib import Path


USAGE, DATA, ENVIRONMENT = 2, 3, 4


class LockstepError(Exception):
    """An error that the user can fix. The message says what we got, what is allowed and what to do.

    Attributes:
        code: the program's exit code: 1 crash, 2 usage or recipe, 3 data, 4 environment or
            processes.
    """

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


def printable(text: str, keep: str = "") -> str:
    """Return `text` with characters that do not print escaped, as Python escapes them, except those
    in `keep`.

    Names and messages may come from other people's files, and a terminal executes the control codes
    in them.
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def open_to_read(path: Path) -> io.BufferedReader:
    """Open a regular file. Raises: OSError, also for a pipe, which may wait for ever, and a device,
    which may not end.

    Folders of runs come from strangers.
    """
    no_wait = getattr(os, "O_NONBLOCK", 0)  # Windows, where exported files are used, has none.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | no_wait))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes. Raises: OSError; ValueError if
    it is larger.
    """
    with open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise ValueError(f"it is larger than {most:,} bytes")
        return file.read()


"""The decoder: from an image file, or an image in memory, to the network's pixels.

It is the one preprocessing of pictures: training, evaluation and prediction call `decode_image`, so
an image has the same pixels in all of them. `pixels.py` keeps what training needs. Pillow is
imported on first use, because it is not needed to print a help text.
"""

import contextlib
import hashlib
import io
import logging
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray


if TYPE_CHECKING:
    from PIL.Image import Image

Fit: TypeAlias = Literal["crop", "pad", "squash"]  # how a picture of unequal sides becomes a square
Interpolation: TypeAlias = Literal["bicubic", "bilinear"]  # Pillow's filter

# In Pillow's words. AVIF comes before HEIF: its plugin opens AVIF files of the brand mif1 too, but
# cannot decode them.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF", "HEIF", "PPM")
# the grey of fit=pad: about 0 after normalisation, like the padding of a network's convolutions
_MARGIN = 128
PIXEL_LIMIT = 100_000_000
FILE_LIMIT = 1 << 30  # bytes. The largest image has PIXEL_LIMIT pixels of 8 bytes.
RULES = 3  # the version of the rules in `decode_image`; another version may give other pixels

# the coarse first shrinking keeps at least this many times `image_px`; the filter does the rest
_REDUCING_GAP = 2.0
_TEXT_LIMIT = 1 << 27  # bytes of all texts and the colour profile of a PNG
_ORIENTATION = 0x0112  # the EXIF tag
# tags of a TIFF
_BITS, _COLOURS, _SAMPLES, _TILE_WIDTH, _TILE_HEIGHT, _SAMPLE_FORMAT = 258, 262, 277, 322, 323, 339
_PNG = b"\x89PNG\r\n\x1a\n"
_FAINT = 16  # levels. What differs from white by no more cannot be seen on it.
# How a file begins that is not read -> what it is, and what to do.
_OTHERS = {
    rb"\s*<(!doctype )?html|\s*<(head|body)": "an HTML page, not an image: download the image "
    "itself",
    rb"version https://git-lfs": "a Git LFS pointer, not the image: fetch it with git lfs pull",
    rb"\S*/annex/objects/": "a git-annex pointer, not the image: fetch it with git annex get",
    rb".{128}DICM": "a DICOM file: convert it to PNG, of 16 bits if it has more than 256 levels",
    rb"\xff\n|\0\0\0\fJXL ": "a JPEG XL image, which is not read: convert it to PNG",
    rb"\xff\x4f\xff\x51|\0\0\0\fjP  ": "a JPEG 2000 image, which is not read: convert it to PNG",
    rb"8BPS": "a Photoshop file, which is not read: export it as PNG",
    rb"\s*(<\?xml.*)?<svg|%!PS|\xc5\xd0\xd3\xc6": "a vector graphic, which is not read: export it "
    "as PNG",
    rb"%PDF": "a PDF file, not an image: export its pages as PNG",
    rb"....ftyp(?!avif|mif1|he[iv])|RIFF....AVI": "a video, or an image that is not read: save it "
    "as PNG",
    rb"PK\x03\x04|\x1f\x8b|7z\xbc\xaf|Rar!": "an archive, not an image: unpack it",
    rb"\x93NUMPY|\x89HDF|SIMPLE  =": "an array of numbers, not an image: save it as PNG",
    rb"\0\x05\x16\x07": "a file of macOS about an image, not the image: remove it",
    rb"\0+\Z": "zeros, as an incomplete copy or download leaves them: get the image again",
    rb"\xff\xd8|\x89PNG|RIFF....WEBP|GIF8|II\*|MM\0|....ftyp": "damaged or truncated",
}
_NO_IMAGE = "not a JPEG, PNG, WebP, BMP, GIF, TIFF, HEIC, AVIF or PPM image"
_TEXT = re.compile(rb"[^\0-\x08\x0e-\x1f]+")
_HEAD = 1024  # bytes that tell what a file is
_SIXTEEN_BIT = re.compile(r"I;16[BLN]?")
# in Pillow's messages
_TRUNCATED = re.compile("truncated|not enough image data|unexpected end", re.IGNORECASE)
# mode -> the mode that the image is resized in. Images of other modes are resized as they are.
_RESIZED_AS = {
    "1": "L",
    "P": "RGB",
    "PA": "RGBA",
    "La": "LA",
    "RGBa": "RGBA",
    "RGBX": "RGB",
    "CMYK": "RGB",
    "YCbCr": "RGB",
    "HSV": "RGB",
}
_UNSUPPORTED_MODES = {
    "I": "32-bit integer pixels",
    "F": "floating-point pixels",
    "LAB": "CIE Lab colours",
}


class Decoding(NamedTuple):
    """How images become the network's pixels; see the settings of `Recipe` and `decode_image`.

    Attributes:
        image_px: the side of the square.
        grey: True for one channel, False for RGB.
        fit: how an image of unequal sides becomes a square.
        interpolation: Pillow's filter.
    """

    image_px: int
    grey: bool = False
    fit: Fit = "crop"
    interpolation: Interpolation = "bicubic"

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the pixels, [H, W, C]."""
        return self.image_px, self.image_px, 1 if self.grey else 3

    @property
    def key(self) -> list[object]:
        """What decides the pixels, besides file and libraries: the version of the rules and the
        settings. Keys and digests of data are made of it, so it leaves out the usual filter, as it
        did before there was another.
        """
        return [RULES, *self[: 4 if self.interpolation != "bicubic" else 3]]


class UnreadableImageError(LockstepError):
    """An image that cannot be decoded. The message is the cause in a few words, as in
    "truncated".
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause, DATA)


def decode_image(
    source: "Path | str | bytes | Image | NDArray[np.uint8]", decoding: Decoding
) -> NDArray[np.uint8]:
    """Return an image as uint8 [image_px, image_px, 3], RGB: a pure function of the file's bytes
    and of `decoding`, whose settings these rules name.

    `source` is a path, the bytes of a file, a Pillow image, or an array uint8 [H, W], [H, W, 1],
    [H, W, 3] (RGB) or [H, W, 4] (RGB and alpha).

    1. JPEG, PNG, WebP, BMP, GIF, TIFF, HEIC, AVIF and PPM (PBM, PGM) are read, by content and not
       by name; of several frames the first, of HEIC the primary one. An image of more than 100
       megapixels is refused before it is decoded. The texts and the colour profile of a PNG are
       ignored, and take up to 128 MiB.
    2. A large JPEG is decoded at 1/2, 1/4 or 1/8 of its size, but at no less than 2 `image_px` on
    the shorter side.
    3. Palettes are resolved. 16-bit grey is divided by 257; of 16-bit colours the high byte is
       taken. CMYK and YCbCr become RGB without a colour profile. 32-bit, floating-point and Lab
       images are refused, and a TIFF of more than four bands.
    4. With `fit` "crop", the largest square in the middle is resized by Pillow's filter
       `interpolation` with antialiasing, in one call, which first averages whole blocks of pixels
       if the square is 4 `image_px` wide or more. With "squash", it is the whole image, whose
       proportions change.
       With "pad", the whole image keeps its proportions, and grey margins of equal width make it a
       square.
    5. Transparency is laid on white; on black where nothing could be seen on white, as with white
       ink. Grey is copied to red, green and blue.
    6. The EXIF orientation is applied. Unreadable EXIF data counts as none.
    7. With `grey`, the result is [image_px, image_px, 1]: Pillow's luminance of the three colours.

    A Pillow image that was opened but not loaded is loaded at its full size, without rule 2. May be
    called from several threads. In this process, Pillow's warnings are silenced, and its limit of
    the texts of a PNG is raised.
    Raises: UnreadableImageError, or LockstepError if the host has too little memory.
    """
    if isinstance(source, Path | str):
        source = read_image(Path(source))
    if isinstance(source, bytes):
        with _opened(source) as image:
            square = _square(image, decoding, draft=True)
    else:
        with _one_error_type():
            image = _from_array(source) if isinstance(source, np.ndarray) else source
            square = _square(image, decoding)
    if decoding.grey:
        return np.array(square.convert("L"))[..., None]
    return np.array(square)


def upright(pixels: "Image", image: "Image") -> "Image":
    """Return the `pixels` of a loaded `image`, turned by its EXIF orientation. Unreadable EXIF data
    counts as none.
    """
    from PIL import Image, ImageOps

    plain = Image.fromarray(np.array(pixels))
    with contextlib.suppress(Exception):
        plain.getexif()[_ORIENTATION] = image.getexif().get(_ORIENTATION)
    return ImageOps.exif_transpose(plain)


class Metadata(NamedTuple):
    """What is known of an image file.

    Attributes:
        format: in Pillow's words.
        width, height: as stored, in pixels.
        grey: whether red, green and blue are equal in every pixel of the square in the middle.
        dhash: a difference hash of it, 128 bits in hex: in a grid of 8 x 8, whether the place to
            the right is brighter, and whether the place below is. Source: N. Krawetz, "Kind of like
            that", The Hacker Factor Blog, 2013.
        pixels_sha256: the first 128 bits of the SHA-256 of it at 32 x 32 pixels, in hex; "" if all
            pixels are equal.
    """

    format: str
    width: int
    height: int
    grey: bool
    dhash: str
    pixels_sha256: str


def inspect_image(data: bytes) -> Metadata:
    """Return what is known of the bytes of an image file, by its small square in the middle.

    Raises: UnreadableImageError, or LockstepError if the host has too little memory.
    """
    from PIL import Image

    with _opened(data) as image:
        format = "JPEG" if image.format == "MPO" else str(image.format)
        width, height = image.size
        square = _square(image, Decoding(32), draft=True)
    pixels = np.array(square)
    luminance = square.convert("L")
    right = np.asarray(luminance.resize((9, 8), Image.Resampling.BOX))
    below = np.asarray(luminance.resize((8, 9), Image.Resampling.BOX))
    dhash = np.packbits([right[:, 1:] > right[:, :-1], below[1:] > below[:-1]])
    sha256 = hashlib.sha256(pixels.data).hexdigest()
    return Metadata(
        format,
        width,
        height,
        grey=bool((pixels == pixels[..., :1]).all()),
        dhash=dhash.tobytes().hex(),
        pixels_sha256="" if (pixels == pixels[0, 0]).all() else sha256[:32],
    )


def stored_pixels(data: bytes, limit: int) -> int:
    """Return how many pixels are decoded of a file, by its header. Raises: UnreadableImageError
    beyond `limit`.
    """
    with _opened(data) as image:
        return _require_size(image, limit)


def decoder_versions() -> dict[str, str | None]:
    """Return the versions of Pillow and of the libraries that it decodes with. Other versions may
    give other pixels.
    """
    import pillow_heif
    from PIL import features

    return {
        "pillow": version("pillow"),
        "libjpeg_turbo": features.version_feature("libjpeg_turbo"),
        "zlib": features.version_feature("zlib_ng") or features.version_codec("zlib"),
        "libtiff": features.version_codec("libtiff"),
        "webp": features.version_module("webp"),
        "libavif": features.version_module("avif"),
        "pillow_heif": version("pillow-heif"),
        "libheif": pillow_heif.libheif_version(),
    }


@cache
def identity() -> dict[str, str | None]:
    """Return what decides the pixels of a file besides its `Decoding`: the source of this module,
    and the versions of the libraries. Keys of caches are made of it.
    """
    return {"source": sha256(Path(__file__)), **decoder_versions()}


def read_image(path: Path) -> bytes:
    """Return the bytes of an image's file. Raises: UnreadableImageError, LockstepError for too
    little memory.
    """
    try:
        return read_bytes(path, FILE_LIMIT)
    except ValueError:
        raise UnreadableImageError(f"more than {FILE_LIMIT / 1e9:.1f} GB") from None
    except OSError as error:
        raise UnreadableImageError((error.strerror or str(error)).lower()) from None
    except MemoryError:
        raise _no_memory() from None


def _no_memory() -> LockstepError:
    return LockstepError(
        "not enough memory to decode an image: end other programs, or raise the limit", ENVIRONMENT
    )


@contextlib.contextmanager
def _opened(data: bytes) -> "Iterator[Image]":
    """Open a file's bytes, of which Pillow reads the header. An error within the context is an
    UnreadableImageError.
    """
    from PIL import Image

    if not data:
        raise UnreadableImageError("empty")
    with _one_error_type(data):
        # Pillow may be built without some, and the script of `lockstep export` do without HEIF.
        formats = [name for name in FORMATS if name in Image.OPEN]
        with Image.open(io.BytesIO(_mended(data)), formats=formats) as image:
            yield image


def _mended(data: bytes) -> bytes:
    """Return the bytes of a PNG without texts and the like whose checksum is wrong, as viewers show
    it, and other bytes as they are.

    Chunks that decide pixels stay, so that Pillow refuses them, and so do those behind the pixels,
    of which it verifies none.
    """
    if not data.startswith(_PNG):
        return data
    parts, kept, start = list[bytes](), 0, len(_PNG)
    while (name := data[start + 4 : start + 8]) not in (b"", b"IDAT"):
        end = start + 12 + int.from_bytes(data[start : start + 4])
        if name[:1].islower() and name != b"tRNS" and end <= len(data):
            checksum = zlib.crc32(data[start + 4 : end - 4])
            if checksum != int.from_bytes(data[end - 4 : end]):
                parts.append(data[kept:start])
                kept = end
        start = end
    return b"".join((*parts, data[kept:]))


def _bands(tags: Mapping[int, Any]) -> str:
    """Return what is not read in a TIFF with these `tags`, or "": bands or values that no picture
    has. Pillow leaves out bands, or does not know the file.
    """
    bands = tags.get(_SAMPLES, 1)
    bits = max(tags.get(_BITS, (1,)))
    floating = 3 in tags.get(_SAMPLE_FORMAT, ())
    cmyk = tags.get(_COLOURS) == 5
    if bands <= 4 + cmyk and bits <= 16 and not floating:
        return ""
    kind = "floating-point" if floating else "integer"
    return (
        f"a TIFF image of {bands} {'band' if bands == 1 else 'bands'} with {kind} values of {bits} "
        f"bits: export it as RGB or grey of 8 bits"
    )


def _tags(data: bytes) -> Mapping[int, Any]:
    """Return the tags of a TIFF that Pillow does not know; those of another file are an error."""
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    tags = ImageFileDirectory_v2(data[:8])
    file = io.BytesIO(data)
    file.seek(tags.next)
    tags.load(file)
    return tags


@cache
def _load_plugins() -> None:
    """Import Pillow's plugins, which it finds by a file's name otherwise, raise its limits, and
    silence its warnings.

    It warns of damaged EXIF blocks, and of sizes that are limited here. Thumbnails within HEIC
    files are ignored: they have other pixels than the picture.
    """
    from PIL import Image, PngImagePlugin

    Image.init()
    PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = _TEXT_LIMIT
    with contextlib.suppress(ImportError):  # The script of `lockstep export` can do without it.
        import pillow_heif

        pillow_heif.register_heif_opener(thumbnails=False)
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)


@contextlib.contextmanager
def _one_error_type(data: bytes = b"") -> Iterator[None]:
    """Turn all that Pillow raises for an image, of a file with `data`, into an
    UnreadableImageError.

    A MemoryError says nothing about the file, so it becomes an error of the host.
    """
    from PIL import UnidentifiedImageError

    _load_plugins()
    try:
        yield
    except UnreadableImageError:
        raise
    except UnidentifiedImageError:
        unusual = ""
        with contextlib.suppress(Exception):  # of damaged tags
            unusual = _bands(_tags(data))
        raise UnreadableImageError(unusual or _what(data[:_HEAD])) from None
    except MemoryError:
        raise _no_memory() from None
    # Pillow raises many types for damaged files, SyntaxError and struct.error among them.
    except Exception as error:
        text = str(error) or type(error).__name__
        truncated = isinstance(error, EOFError) or _TRUNCATED.search(text)
        raise UnreadableImageError("truncated" if truncated else f"damaged ({text})") from None


def _what(head: bytes) -> str:
    """Return what a file is that Pillow does not know, by its first bytes."""
    from PIL import Image

    if "HEIF" not in Image.OPEN and re.match(rb"....ftyp(mif1|he[iv])", head, re.DOTALL):
        return "an HEIC image: pip install pillow-heif"
    for begins, words in _OTHERS.items():
        if re.match(begins, head, re.DOTALL | re.IGNORECASE):
            return words
    if _TEXT.fullmatch(head):
        return f"{_NO_IMAGE}, but a text that begins with {head[:20].decode(errors='replace')!r}"
    return _NO_IMAGE


def _square(image: "Image", decoding: Decoding, draft: bool = False) -> "Image":
    """Return an open image as an RGB square by `decoding`. `draft` allows to decode a JPEG at a
    smaller size, which changes `image`.
    """
    from PIL import Image

    image_px, _, fit, interpolation = decoding
    _require_size(image, PIXEL_LIMIT)
    coarse = int(_REDUCING_GAP * image_px)
    scaled = None
    if draft and min(image.size) >= 2 * coarse:
        scaled = image.draft(None, (coarse, coarse))
    image.load()  # which applies the orientation of a TIFF
    width, height = scaled[1][2:] if scaled else image.size  # The size of a draft is rounded up.
    box = (0.0, 0.0, width, height)
    across = down = 0  # the margins of fit=pad; at least one pixel of the image remains
    if fit == "crop":
        side = min(width, height)
        left = (width - side) / 2
        top = (height - side) / 2
        box = (left, top, left + side, top + side)
    elif fit == "pad":
        across, down = (
            min(round(image_px / 2 - image_px / 2 * part / max(width, height)), (image_px - 1) // 2)
            for part in (width, height)
        )
    small = _eight_bit(image).resize(
        (image_px - 2 * across, image_px - 2 * down),
        Image.Resampling[interpolation.upper()],
        box,
        reducing_gap=_REDUCING_GAP,
    )
    if small.mode in ("LA", "RGBA"):
        small = _opaque(small.convert("RGBA"))
    square = Image.new("RGB", (image_px, image_px), (_MARGIN,) * 3)
    square.paste(small.convert("RGB"), (across, down))
    return upright(square, image)


def _opaque(image: "Image") -> "Image":
    """Return an RGBA image on white, or on black where nothing can be seen on white."""
    from PIL import Image

    on_white = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if np.asarray(on_white).min() < 255 - _FAINT:
        return on_white
    return Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)


def _require_size(image: "Image", limit: int) -> int:
    """Return how many pixels are decoded at once: of an image, or of a tile of a TIFF, which may be
    larger. Raises: UnreadableImageError beyond `limit`, and for a TIFF of unusual bands.
    """
    width, height = image.size
    tags = getattr(image, "tag_v2", {})
    if unusual := _bands(tags):
        raise UnreadableImageError(unusual)
    pixels: int = max(width * height, tags.get(_TILE_WIDTH, 0) * tags.get(_TILE_HEIGHT, 0))
    if pixels > limit:
        raise UnreadableImageError(f"{pixels / 1e6:.0f} megapixels, more than {limit / 1e6:.0f}")
    if not width or not height:
        raise UnreadableImageError("no pixels")
    return pixels


def _eight_bit(image: "Image") -> "Image":
    """Return a loaded image in mode L, LA, RGB or RGBA. Raises: UnreadableImageError if its mode is
    not supported.
    """
    from PIL import Image

    if _SIXTEEN_BIT.fullmatch(image.mode) or (image.format, image.mode) == ("PPM", "I"):
        values, transparent = np.asarray(image), image.info.get("transparency")
        whole, rest = np.divmod(values, 257)
        grey = Image.fromarray((whole + (rest > 128)).astype(np.uint8))  # values / 257, rounded
        if isinstance(transparent, int):
            opaque = np.where(values == transparent, 0, 255).astype(np.uint8)
            return Image.merge("LA", (grey, Image.fromarray(opaque)))
        return grey
    if image.mode in _UNSUPPORTED_MODES:
        raise UnreadableImageError(f"{_UNSUPPORTED_MODES[image.mode]} are not supported")
    if image.mode in ("1", "L", "P", "RGB") and image.has_transparency_data:
        return image.convert("RGBA")
    return image.convert(_RESIZED_AS[image.mode]) if image.mode in _RESIZED_AS else image


def _from_array(array: NDArray[np.uint8]) -> "Image":
    from PIL import Image

    channels = array.shape[2] if array.ndim == 3 else 1
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or channels not in (1, 3, 4):
        remedy = ""
        if array.dtype.kind == "f":
            remedy = "; of 0 to 1, give (image * 255).round().astype('uint8')"
        elif array.ndim == 3 and array.shape[0] in (1, 3, 4):
            remedy = "; of channels first, give image.transpose(1, 2, 0)"
        raise UnreadableImageError(
            f"an array {array.dtype} {list(array.shape)}: give uint8 [H, W], [H, W, 1], [H, W, 3] "
            f"in RGB, or [H, W, 4]{remedy}"
        )
    if channels == 1:
        array = array.reshape(array.shape[:2])
    return Image.fromarray(np.ascontiguousarray(array))


"""Verdict: which classes a classifier finds in an image, and how far to trust each.

An exported file's script has a copy of this module, so it needs only NumPy.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Mark = Literal["confident", "unsure", "unfamiliar"]


def verdict(
    probabilities: NDArray[np.floating],
    thresholds: Sequence[float] | None,
    confident_from: Sequence[float | None] | None,
    unfamiliar: bool,
) -> tuple[list[int], dict[int, Mark | None]]:
    """Return the numbers of the classes, the most probable first; and in this order the ones that
    are found, each with its mark, None if the file cannot tell.

    `probabilities` is [classes]. With multi-label data, `thresholds` [classes] are the least
    probabilities of found labels. Without them, the first class is found. `confident_from`
    [classes] are the least probabilities of confident answers, None where there are no such ones.
    """
    # Among equal probabilities the first class counts, as in evaluation.
    ranked = (-probabilities).argsort(kind="stable").tolist()
    found = ranked[:1]
    if thresholds is not None:
        found = [label for label in ranked if probabilities[label] >= thresholds[label]]
    if unfamiliar or confident_from is None:
        return ranked, dict.fromkeys(found, "unfamiliar" if unfamiliar else None)
    # These are probabilities of held-out answers, in float32.
    certain = probabilities.astype(np.float32) >= np.array(confident_from, np.float64)
    return ranked, {label: "confident" if certain[label] else "unsure" for label in found}


"""Runtimes of exported files: each opens a file, and returns its metadata and its function.

An exported file's script has a copy of this module, so it needs only NumPy and the runtime.
"""

import json
import zipfile
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

METADATA = "lockstep"  # the name of the metadata in an exported file

# images uint8 [N, H, W, C] -> probabilities [N, classes], and the similarity [N] if the file has it
Compute: TypeAlias = Callable[[NDArray[np.uint8]], list[NDArray[np.floating]]]


def open_onnx(file: str, threads: int = 0) -> tuple[dict[str, Any], Compute]:
    """Open a file of ONNX with onnxruntime. It computes with `threads`, 0: with all cores."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    metadata = json.loads(session.get_modelmeta().custom_metadata_map[METADATA])
    return metadata, lambda images: session.run(None, {"images": images})


def open_openvino(file: str, threads: int = 0) -> tuple[dict[str, Any], Compute]:
    """Open an OpenVINO file, FILE.xml, which needs FILE.bin beside it, as `open_onnx` does."""
    import openvino

    core = openvino.Core()
    model = core.read_model(file)
    # Some CPUs would compute in bfloat16.
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    network = core.compile_model(model, "CPU", options)
    metadata = json.loads(model.get_rt_info([METADATA]).astype(str))
    return metadata, lambda images: [*network(images).values()]


def open_litert(file: str, threads: int = 0) -> tuple[dict[str, Any], Compute]:
    """Open a file of LiteRT as `open_onnx` does. Its graph takes one image at a time."""
    from ai_edge_litert.interpreter import Interpreter

    with zipfile.ZipFile(file) as archive:
        metadata = json.loads(archive.read(f"{METADATA}.json"))
    run = Interpreter(file, num_threads=threads or None).get_signature_runner()

    def compute(images: NDArray[np.uint8]) -> list[NDArray[np.floating]]:
        rows = [run(images=image[None]) for image in images]
        return [np.concatenate([row[name] for row in rows]) for name in sorted(rows[0])]

    return metadata, compute


RUNTIMES = {".onnx": open_onnx, ".xml": open_openvino, ".tflite": open_litert}


import re
import sys
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray


# of the files that are taken in a folder
_SUFFIX = re.compile(
    r"\.(jpe?g|jpe|jfif|png|webp|bmp|dib|gif|tiff?|hei[cf]|hif|avif|p[bgnp]m)", re.IGNORECASE
)
Picture: TypeAlias = Path | bytes | NDArray[np.uint8]


class Exported:
    """A file of `lockstep export`.

    Attributes:
        metadata: the classes, how images become pixels, and the thresholds: of a label that is
            found, of a confident answer, and of an image that is not unfamiliar.
    """

    def __init__(self, file: str) -> None:
        """Load the file. Raises: LockstepError for a suffix of no format; what its runtime
        raises.
        """
        if not (opened := RUNTIMES.get(Path(file).suffix.lower())):
            raise LockstepError(f"give a file that ends in {', '.join(RUNTIMES)}", DATA)
        self.metadata, self._run = opened(file)

    def predict(self, image: Picture) -> tuple[str, float, str | None]:
        """Return the most probable class of an image (a file, its bytes, or its pixels uint8
        [H, W, C] at the network's size), its probability, and "confident", "unsure" or
        "unfamiliar"; None if not known. With multi-label data it is "no", or "no, unfamiliar", for
        a class that is not found.

        Raises: LockstepError if it cannot be read.
        """
        return self.predict_labels(image)[0]

    def predict_labels(self, image: Picture) -> list[tuple[str, float, str | None]]:
        """Return what `predict` does of each label that is found, the most probable first; of the
        most probable class, if none is found or an image has one label.

        Raises: LockstepError if it cannot be read.
        """
        height, width, channels = self.metadata["image_shape"]
        if isinstance(image, np.ndarray):
            pixels = image
        elif height != width or channels not in (1, 3):
            raise LockstepError(f"give pixels uint8 [{height}, {width}, {channels}]", DATA)
        else:
            pixels = decode_image(image, Decoding(**self.metadata["decoding"]))
        (row,), *similarity = self._run(pixels[None])
        if not np.isfinite(row).all():
            raise LockstepError("the network's output is not finite", DATA)
        unfamiliar = bool(similarity) and similarity[0] < self.metadata["familiar_from"]
        thresholds, confident_from = self.metadata["thresholds"], self.metadata["confident_from"]
        names = self.metadata["classes"]
        ranked, found = verdict(row, thresholds, confident_from, unfamiliar)
        marks: dict[int, Any] = found or {ranked[0]: "no, unfamiliar" if unfamiliar else "no"}
        return [(names[label], float(row[label]), mark) for label, mark in marks.items()]


def images_in(place: Path) -> list[Path]:
    """Return the images in a folder and those below it, sorted, or the file `place` itself. Hidden
    files are left out.
    """
    if not place.is_dir():
        return [place]
    return sorted(
        path
        for path in place.rglob("*")
        if _SUFFIX.fullmatch(path.suffix)
        and not any(part[0] == "." for part in path.relative_to(place).parts)
    )


def main(file: str, *places: str) -> int:
    """Print the class or labels of each image in `places`, files and folders. Return the exit code:
    3 if one cannot be read, or a folder has none.
    """
    try:
        exported = Exported(file)
    except Exception as error:
        print(printable(f"{file} cannot be used: {error}"), file=sys.stderr)
        return DATA
    code, space = 0, " " if exported.metadata["thresholds"] else "  "
    images = {place: images_in(Path(place)) for place in places}
    for place in places:
        if not images[place]:
            print(printable(f"{place}: no images in this folder"), file=sys.stderr)
            code = DATA
    for image in (image for place in places for image in images[place]):
        try:
            found = exported.predict_labels(image)
            texts = [
                f"{label} {probability:.2%}" + (f"{space}({mark})" if mark else "")
                for label, probability, mark in found
            ]
            print(printable(f"{image}  {', '.join(texts)}"), flush=True)
        except LockstepError as error:
            print(printable(f"{image}: {error}"), file=sys.stderr)
            code = DATA
    return code


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print(f"usage: python {sys.argv[0]} FILE IMAGE|FOLDER...", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))
