"""Decoding of image files: every format, mode and orientation, and what is wrong with files that
cannot be read.
"""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tests.images import noise

from lockstep.errors import DATA
from lockstep.pictures.decode import (
    Decoding,
    UnreadableImageError,
    _load_plugins,
    decode_image,
    inspect_image,
)

_load_plugins()  # so that Pillow writes HEIC too
AT_32 = Decoding(32)
LOSSLESS = ("PNG", "BMP", "TIFF", "WEBP", "GIF", "PPM")


def picture(width=48, height=48, channels=3):
    """A smooth picture, different at every corner, with values that only 16-bit, alpha or palettes
    would change.
    """
    y, x = np.mgrid[0:height, 0:width]
    planes = [x * 255 // (width - 1), y * 255 // (height - 1), (x + y) * 100 // (width + height)]
    return np.stack(planes[:channels], axis=-1).astype(np.uint8)


def encoded(image, format="PNG", **options):
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def tiff(bands, bits=8, floating=False, colours=2):
    """A TIFF of 8 x 8 pixels that are zeros, whose bands beyond the first three are extra."""
    pixels = bytes(64 * bands * bits // 8)
    extra = bands - 3 - (colours == 5)
    start = 8 + 2 + (11 if extra > 0 else 10) * 12 + 4
    tags = {
        256: [8],
        257: [8],
        258: [bits] * bands,
        259: [1],
        262: [colours],
        273: [start + 3 * 2 * bands],
        277: [bands],
        278: [8],
        279: [len(pixels)],
        **({338: [0] * extra} if extra > 0 else {}),
        339: [3 if floating else 1] * bands,
    }
    entries, rest = b"", b""
    for tag, values in tags.items():
        value = struct.pack(f"<{len(values)}H", *values)
        if len(value) > 4:
            rest, value = rest + value, struct.pack("<I", start + len(rest))
        entries += struct.pack("<HHI", tag, 3, len(values)) + value.ljust(4, b"\0")
    rest = rest.ljust(3 * 2 * bands, b"\0")
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4) + rest + pixels


def chunk(name, content, checksum=0):
    """A chunk of a PNG whose checksum is wrong by `checksum`."""
    crc = zlib.crc32(name + content) ^ checksum
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", crc)


def near(a, b, most=3):
    return np.abs(a.astype(int) - b.astype(int)).max() <= most


def test_every_source_has_the_same_pixels(tmp_path):
    pixels = picture(50, 40)
    data = encoded(pixels)
    (tmp_path / "a.png").write_bytes(data)
    result = decode_image(data, AT_32)
    assert (result.shape, result.dtype) == ((32, 32, 3), np.uint8)
    for source in (
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        Image.open(io.BytesIO(data)),
        pixels,
    ):
        assert np.array_equal(decode_image(source, AT_32), result)


@pytest.mark.parametrize("format", ["JPEG", "HEIF", "AVIF", *LOSSLESS])
def test_every_format_is_read_by_content(tmp_path, format):
    file = tmp_path / "wrong-name.txt"
    options = (
        {"lossless": True}
        if format == "WEBP"
        else {"quality": 95}
        if format in ("JPEG", "HEIF", "AVIF")
        else {}
    )
    file.write_bytes(encoded(picture(64, 48), format, **options))
    assert near(
        decode_image(file, AT_32),
        decode_image(picture(64, 48), AT_32),
        26 if format == "GIF" else 4,
    )
    assert inspect_image(file.read_bytes())[:4] == (format, 64, 48, False)
    if format in ("PNG", "BMP", "TIFF", "PPM"):
        assert np.array_equal(
            decode_image(encoded(picture(32, 32), format), AT_32), picture(32, 32)
        )


def test_the_square_in_the_middle_is_taken():
    wide = np.zeros((40, 100, 3), np.uint8)
    wide[:, 30:70] = picture(40, 40)
    assert np.array_equal(decode_image(wide, Decoding(40)), picture(40, 40))
    assert np.array_equal(
        decode_image(wide.transpose(1, 0, 2), Decoding(40)), picture(40, 40).transpose(1, 0, 2)
    )
    # The decoder shrinks a JPEG to 1/8, 201x201, of which 201 x 200.25 are the image.
    wide = picture(1608, 1602)
    data = encoded(wide, "JPEG", quality=95, subsampling=0)
    image = Image.open(io.BytesIO(data))
    image.draft(None, (64, 64))
    box = ((201 - 200.25) / 2, 0, (201 + 200.25) / 2, 200.25)
    expected = image.resize((32, 32), Image.Resampling.BICUBIC, box, reducing_gap=2.0)
    assert np.array_equal(decode_image(data, AT_32), np.asarray(expected))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("format", "size"),
    [
        ("PNG", (48, 40)),
        ("TIFF", (48, 40)),
        ("JPEG", (301, 203)),
        ("HEIF", (96, 80)),
        ("AVIF", (96, 80)),
    ],
)
def test_the_orientation_is_applied(orientation, format, size):
    upright = Image.fromarray(picture(*size))
    t = Image.Transpose
    back = [
        None,
        t.FLIP_LEFT_RIGHT,
        t.ROTATE_180,
        t.FLIP_TOP_BOTTOM,
        t.TRANSPOSE,
        t.ROTATE_90,
        t.TRANSVERSE,
        t.ROTATE_270,
    ][orientation - 1]
    stored = upright if back is None else upright.transpose(back)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(
        stored,
        format,
        exif=exif.tobytes(),
        **({"quality": 95} if format in ("JPEG", "HEIF", "AVIF") else {}),
    )
    expected = decode_image(upright, AT_32)
    assert near(decode_image(data, AT_32), expected)
    assert near(decode_image(Image.open(io.BytesIO(data)), AT_32), expected)


def test_unreadable_exif_counts_as_none():
    data = encoded(picture(32, 32), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 30)
    assert np.array_equal(
        decode_image(data, AT_32), decode_image(encoded(picture(32, 32), "JPEG"), AT_32)
    )


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "RGB", "RGBA", "RGBa", "PA", "La", "YCbCr", "CMYK", "RGBX", "HSV", "P"]
)
def test_every_mode_in_memory_becomes_rgb(mode):
    image = Image.fromarray(picture(32, 32))
    for between in ("LA" if mode in ("PA", "La") else "RGBA" if mode == "RGBa" else "RGB", mode):
        image = image.convert(between)
    expected = image.convert("LA" if mode == "La" else "RGBA" if mode == "RGBa" else "RGB").convert(
        "RGB"
    )
    assert near(decode_image(image, AT_32), np.asarray(expected), 2)


def test_transparency_is_laid_on_white():
    alpha = np.tile(np.linspace(0, 255, 32).astype(np.uint8), (32, 1))
    pixels, share = picture(32, 32), alpha[..., None] / 255
    expected = (pixels * share + 255 * (1 - share)).round()
    assert near(decode_image(np.dstack([pixels, alpha]), AT_32), expected, 2)
    assert near(decode_image(encoded(np.dstack([pixels, alpha])), AT_32), expected, 2)
    grey = Image.merge("LA", (Image.fromarray(pixels[..., 0]), Image.fromarray(alpha)))
    assert near(decode_image(encoded(grey), AT_32)[..., 1], expected[..., 0], 2)


@pytest.mark.parametrize("mode", ["P", "L", "RGB", "1"])
def test_a_transparent_colour_is_white(mode):
    image = Image.new("RGB", (32, 32), (255, 255, 255) if mode == "1" else (200, 0, 0))
    image.paste((0, 0, 0), (0, 0, 16, 32))
    image = image.quantize(2) if mode == "P" else image.convert(mode)
    black = image.getpixel((0, 0))
    pixels = decode_image(encoded(image, transparency=black), AT_32)
    assert (pixels[:, :14] == (0 if mode == "1" else 255)).all()  # White ink is not laid on white.
    assert np.array_equal(pixels[:, 20:], np.asarray(image.convert("RGB"))[:, 20:])


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PGM"])
def test_16_bit_grey_is_scaled_and_not_clipped(format):
    values = np.linspace(0, 65535, 32 * 32).astype(np.uint16).reshape(32, 32)
    data = b"P5 32 32 65535\n" + values.astype(">u2").tobytes()
    pixels = decode_image(
        data if format == "PGM" else encoded(Image.fromarray(values), format), AT_32
    )
    assert near(pixels, (values / 257).round()[..., None], 0)


@pytest.mark.parametrize(
    ("data", "row"),
    [
        (b"P1 # a comment\n4 1\n0 1 0 1", [255, 0, 255, 0]),
        (b"P4 4 1\n\x50", [255, 0, 255, 0]),
        (b"P2 4 1 15\n0 5 10 15", [0, 85, 170, 255]),
        (b"P5 4 1 255\n\0\x55\xaa\xff", [0, 85, 170, 255]),
    ],
)
def test_netpbm_images_of_one_channel_are_read(data, row):
    assert decode_image(data, Decoding(4, fit="squash"))[0, :, 0].tolist() == row


@pytest.mark.parametrize(
    "part", ["text", "compressed text", "text after the pixels", "profile", "all memory"]
)
def test_a_png_with_a_long_text_or_profile_is_read_upright(part):
    """As viewers show it. Pillow refuses more than 1 MiB of a text, and 64 MiB of all texts."""
    exif, info = Image.Exif(), PngInfo()
    exif[0x0112] = 3
    long = "long " * 300_000
    if part in ("text", "compressed text"):
        info.add_itxt("prompt", long, zip=part != "text")
    if part == "text after the pixels":
        info.add(b"zTXt", b"prompt\0\0" + zlib.compress(long.encode()), after_idat=True)
    if part == "all memory":
        info.add(b"tEXt", b"prompt\0" + bytes(65 << 20))
    profile = {"icc_profile": bytes(2_000_000)} if part == "profile" else {}
    data = encoded(picture(), pnginfo=info, exif=exif.tobytes(), **profile)
    assert np.array_equal(decode_image(data, Decoding(48)), picture()[::-1, ::-1])


def test_a_png_whose_header_is_damaged_is_refused():
    data = bytearray(encoded(picture()))
    data[16] ^= 1
    with pytest.raises(UnreadableImageError, match=r"damaged|checksum"):
        decode_image(bytes(data), AT_32)


@pytest.mark.parametrize("turned", [False, True])
def test_pad_and_squash_keep_the_edges(turned):
    wide = np.zeros((20, 64, 3), np.uint8)
    wide[:, :8] = wide[:, -8:] = 255  # marks that the crop does not show
    wide = wide.transpose(1, 0, 2) if turned else wide
    crop, pad, squash = (
        decode_image(wide, Decoding(32, fit=fit)) for fit in ("crop", "pad", "squash")
    )
    if turned:
        crop, pad, squash = (pixels.transpose(1, 0, 2) for pixels in (crop, pad, squash))
    assert not crop.any()
    assert (squash[:, [0, 1, 30, 31]] > 240).all()
    assert not squash[:, 8:24].any()
    assert (pad[:11] == 128).all()
    assert (pad[21:] == 128).all()
    assert (pad[11:21, [0, 1, 30, 31]] > 240).all()
    assert not pad[11:21, 8:24].any()


@pytest.mark.parametrize("fit", ["pad", "squash"])
@pytest.mark.parametrize("size", [(48, 48), (301, 203), (1, 500), (500, 1)])
def test_every_fit_gives_a_square_of_any_image(fit, size):
    image = Image.fromarray(picture(48, 48)).resize(size)
    decoding = Decoding(33, fit=fit)
    pixels = decode_image(image, decoding)
    assert pixels.shape == (33, 33, 3)
    turned = decode_image(image.transpose(Image.Transpose.ROTATE_90), decoding)
    assert near(np.rot90(pixels), turned, 4)
    assert decode_image(image, Decoding(33, True, fit)).shape == (33, 33, 1)
    # which is decoded at a smaller size
    large = encoded(Image.fromarray(picture(1203, 401)), "JPEG", quality=95)
    assert near(decode_image(large, decoding), decode_image(picture(1203, 401), decoding), 6)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16"])
def test_white_ink_on_transparency_is_laid_on_black(mode):
    ink = np.zeros((32, 32), np.uint8)
    ink[8:24, 8:24] = 255
    image = Image.merge("LA", [Image.new("L", (32, 32), 255), Image.fromarray(ink)])
    if mode == "I;16":
        data = encoded(Image.fromarray(ink.astype(np.uint16) * 257), transparency=0)
    elif mode == "P":
        data = encoded(Image.fromarray(ink // 255, "L").convert("P"), transparency=0)
        data = encoded(palette(ink // 255, [(255, 255, 255), (250, 250, 250)]), transparency=0)
    else:
        data = encoded(image.convert(mode))
    pixels = decode_image(data, AT_32)
    assert (pixels[10:22, 10:22] >= 250).all()
    assert not pixels[:6].any()
    facts = inspect_image(data)
    assert facts.pixels_sha256


def palette(indexes, colours):
    """Return an image of mode P."""
    image = Image.fromarray(indexes).convert("P")
    image.putdata(indexes.flatten().tolist())
    image.putpalette([value for colour in colours for value in colour])
    return image


def test_a_picture_of_one_colour_is_known_and_equal_pixels_too():
    assert inspect_image(encoded(Image.new("RGB", (40, 50), (3, 2, 1)))).pixels_sha256 == ""
    assert inspect_image(encoded(Image.new("RGBA", (40, 50)))).pixels_sha256 == ""
    one, other = (inspect_image(encoded(picture(), format)) for format in ("PNG", "BMP"))
    assert (
        one.pixels_sha256
        == other.pixels_sha256
        != inspect_image(encoded(picture(50, 48))).pixels_sha256
    )


def png_16_bit_rgb(pixels, size=None):
    """A PNG file of these values, which Pillow cannot write. Its header may state another size."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", *(size or pixels.shape[1::-1]), 16, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_16_bit_colours_keep_their_high_byte():
    pixels = picture(32, 32).astype(np.uint16) * 256 + 200
    assert np.array_equal(decode_image(png_16_bit_rgb(pixels), AT_32), picture(32, 32))


def heic_of_size(width, height):
    """A HEIC file that claims another size than its 64 x 64 pixels."""
    return encoded(picture(64, 64), "HEIF").replace(
        struct.pack(">2I", 64, 64), struct.pack(">2I", width, height)
    )


@pytest.mark.parametrize(("format", "most"), [("GIF", 26), ("TIFF", 0)])
def test_the_first_of_several_frames_is_taken(format, most):
    data = encoded(
        picture(32, 32),
        format,
        save_all=True,
        append_images=[Image.new("RGB", (32, 32), (9, 9, 9))],
    )
    assert near(decode_image(data, AT_32), picture(32, 32), most)


@pytest.mark.parametrize("format", ["JPEG", "HEIF", "AVIF", *LOSSLESS])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_truncated_file_is_refused(format, share):
    pixels = noise(0, 64, 64, 3)
    data = encoded(pixels, format)
    with pytest.raises(UnreadableImageError, match=r"truncated|damaged") as caught:
        decode_image(data[: int(len(data) * share)], AT_32)
    assert caught.value.code == DATA
    assert len(str(caught.value)) < 80


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        (b"", "empty"),
        (
            b"hello",
            "not a JPEG, PNG, WebP, BMP, GIF, TIFF, HEIC, AVIF or PPM image, but a text that "
            "begins with 'hello'",
        ),
        (b"\1\2\3", "not a JPEG, PNG, WebP, BMP, GIF, TIFF, HEIC, AVIF or PPM image$"),
        (
            b"\n<!DOCTYPE html><title>Log in",
            "an HTML page, not an image: download the image itself",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1",
            "a Git LFS pointer, .*: fetch it with git lfs pull",
        ),
        (b"../../.git/annex/objects/1/2/SHA256E-s9--1.jpg", "a git-annex pointer, .*git annex get"),
        (bytes(128) + b"DICM\2\0\0\0", "a DICOM file: convert it to PNG"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "a JPEG XL image, which is not read: convert"),
        (b"\xff\n\xfa\x7f", "a JPEG XL image"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000 image"),
        (b"\0\0\0\x20ftypisom\0\0\2\0", "a video, or an image that is not read"),
        (
            b'<?xml version="1.0"?>\n<svg xmlns="...">',
            "a vector graphic, which is not read: export it",
        ),
        # would start ghostscript
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "a vector graphic"),
        (b"%PDF-1.7", "a PDF file"),
        (b"8BPS\0\1", "a Photoshop file"),
        (b"PK\3\4\n", "an archive, not an image: unpack it"),
        (b"\x93NUMPY\1\0", "an array of numbers"),
        (b"\0\5\x16\7\0\2", "a file of macOS about an image"),
        (bytes(5000), "zeros, as an incomplete copy"),
        (b"\x89PNG\r\n", "damaged or truncated"),
        (
            encoded(Image.new("F", (32, 32)), "TIFF"),
            "a TIFF image of 1 band with floating-point values of 32 bits: export it as RGB or grey",
        ),
        (tiff(5), "a TIFF image of 5 bands with integer values of 8 bits: export"),
        (Image.open(io.BytesIO(tiff(5))), "a TIFF image of 5 bands with integer values of 8 bits"),
        (tiff(13, bits=16, colours=1), "a TIFF image of 13 bands with integer values of 16 bits"),
        (tiff(3, bits=32, floating=True), "a TIFF image of 3 bands with floating-point values"),
        (tiff(1, bits=64, floating=True, colours=1), "a TIFF image of 1 band with floating-point"),
        (tiff(13)[:100], "damaged or truncated"),
        (
            encoded(Image.new("I", (32, 32)), "TIFF"),
            "a TIFF image of 1 band with integer values of 32 bits",
        ),
        (encoded(Image.new("LAB", (32, 32)), "TIFF"), "CIE Lab colours"),
        # before it is decoded
        (png_16_bit_rgb(picture(32, 32), (10_001, 10_000)), "100 megapixels, more than 100"),
        (png_16_bit_rgb(picture(32, 32), (65_536, 65_536)), ".*bomb"),
        (heic_of_size(10_001, 10_000), "100 megapixels, more than 100"),
        ("/nowhere.png", "no such file"),
        ("/", ".*directory"),
        (np.zeros((3, 3, 2), np.uint8), r"an array uint8 \[3, 3, 2\]: give uint8"),
        (np.zeros((3, 9, 9), np.uint8), r"an array .* first, give image.transpose\(1, 2, 0\)$"),
        (np.zeros((3, 3), np.float32), r"an array float32 .*give \(image \* 255\).round\(\)"),
        (np.zeros((0, 3), np.uint8), "no pixels"),
    ],
)
def test_the_cause_is_named(source, cause, capfd, caplog):
    with pytest.raises(UnreadableImageError, match=f"^({cause})"):
        decode_image(source, AT_32)
    assert capfd.readouterr().err + caplog.text == ""  # no line of a library


@pytest.mark.parametrize("bands", [3, 4])
def test_a_tiff_of_usual_bands_is_read(bands):
    assert decode_image(tiff(bands), Decoding(4)).max() == 0
    if bands == 4:
        assert decode_image(tiff(bands, colours=5), Decoding(4)).min() == 255


def test_texts_of_a_png_with_a_wrong_checksum_are_ignored():
    data = encoded(picture())
    head, rest = data[:33], data[33:]  # the signature and IHDR
    text = chunk(b"tEXt", b"Comment\0a", 1) + chunk(b"tIME", bytes(7)) + chunk(b"eXIf", b"x", 1)
    assert (decode_image(head + text + rest, AT_32) == decode_image(data, AT_32)).all()
    assert inspect_image(head + text + rest) == inspect_image(data)
    for damaged in (
        head + chunk(b"tRNS", bytes(6), 1) + rest,
        head[:-1] + b"\0" + text + rest,
        head + text + rest[:-20] + bytes(20),
        head + text[:9],
    ):
        with pytest.raises(UnreadableImageError, match=r"damaged|truncated"):
            decode_image(damaged, AT_32)
