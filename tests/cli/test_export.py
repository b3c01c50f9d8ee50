"""`lockstep export`: the file, what it says of itself, its use without Lockstep, and what is
refused.
"""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from tests.conftest import NATIVE, SMALL, in_this_process
from tests.documents import ROOT, blocks
from tests.helpers import lockstep_error, read_json, record_of, refused, succeeded
from tests.images import noise

import lockstep
from lockstep import messages
from lockstep.classify import export
from lockstep.classify.export import Graph, exported, in_float32
from lockstep.classify.formats import FORMATS
from lockstep.classify.runtimes import RUNTIMES
from lockstep.commands import export as api
from lockstep.errors import CRASH, DATA, ENVIRONMENT, USAGE
from lockstep.jobs import splits
from lockstep.pictures.decode import Decoding, decode_image
from lockstep.runs import statefile
from lockstep.runs.statefile import SHA256, metadata_of, read_tensors

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def run(trained_once):
    """The folder of a complete run."""
    return trained_once(*NATIVE)[0]


@pytest.fixture(scope="module")
def written(run, made_once):
    """Return (the run's folder, the ONNX file, the printed record). The exporter takes seconds."""

    def export(folder):
        done = succeeded(in_this_process("export", run, "-o", "d.onnx", "--json", cwd=folder))
        (folder / "record.json").write_text(done.stdout)

    folder = made_once("export", export)
    return run, folder / "d.onnx", read_json(folder / "record.json")


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("picture") / "five.png"
    Image.fromarray(noise(3, 40, 30)).save(path)
    return path


@pytest.fixture
def traced(written, monkeypatch):
    """The exporter gives the bytes of the written file, and not in seconds."""
    import onnx

    monkeypatch.setattr("lockstep.classify.export.exported", lambda *_: onnx.load(written[1]))


@pytest.mark.slow
def test_the_file_classifies_as_lockstep_and_says_what_it_is(written):
    path, file, record = written
    own = lockstep.Run(path).accuracy
    assert (record["accuracy"], record["examples"], record["split"]) == (own, 355, "test")
    assert record["accuracy_lockstep"] == own
    assert record["otherwise"] == 0
    assert 0 < record["difference"] < 1e-4
    facts = onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == [*"0123456789"]
    stated = json.loads(facts["lockstep"])
    assert stated["recipe_digest"] == lockstep.Run(path).recipe().digest()
    sha256 = lockstep.Run(path).result()["weights_sha256"]
    assert stated["weights_sha256"] == record["weights_sha256"] == sha256
    assert sha256 in str(lockstep.ExportRecord(**record))
    assert [lockstep.load(path, which).weights_sha256 for which in (None, 30)] == [sha256] * 2
    assert {entry.name for entry in file.parent.iterdir() if entry.suffix} == {
        "d.onnx",
        "record.json",
        "use_exported.py",
    }
    classifier = lockstep.load(path)
    graph, run = Graph(classifier.recipe, classifier.module), RUNTIMES[".onnx"](str(file))[1]
    for count in (3, 1):
        images = noise(0, count, 8, 8, 1)
        with torch.no_grad():
            assert abs(run(images)[0] - graph(torch.from_numpy(images)).numpy()).max() < 1e-5


class Odd(torch.nn.Module):
    """A network with a branch on values, or with an operator that ONNX does not have."""

    def __init__(self, branch):
        super().__init__()
        self.branch = branch

    def forward(self, x):
        if self.branch:
            return x.flatten(1)[:, :10] if x.sum() > 0 else x.flatten(1)[:, 10:20]
        return torch.special.bessel_j0(x.flatten(1)[:, :10])


@pytest.mark.slow
@pytest.mark.parametrize(("branch", "words"), [(True, ""), (False, "operator .*bessel_j0")])
def test_a_network_that_onnx_lacks_is_refused_with_its_operator(run, branch, words):
    classifier = lockstep.load(run)
    classifier.module = Odd(branch)
    with lockstep_error(f"digits cannot be exported: {words}"):
        exported(classifier, FORMATS["onnx"])


def test_a_network_that_is_too_large_is_refused(run, monkeypatch):
    monkeypatch.setattr(export, "MAX_BYTES", 1000)
    with lockstep_error(r"holds less than 1 kB, and the weights take"):
        exported(lockstep.load(run), FORMATS["onnx"])


EXAMPLE = ROOT / "examples/use_exported.py"


@pytest.fixture(scope="module")
def example():
    """The module of the script, as it is without Lockstep."""
    names = {"__name__": "use_exported"}
    exec(compile(EXAMPLE.read_text(), str(EXAMPLE), "exec"), names)
    assert not [
        name
        for name, value in names.items()
        if str(getattr(value, "__module__", "")).startswith("lockstep")
    ]
    return names


def odd_pictures():
    """Yield sixty pictures: formats, modes, orientations, transparency and 16 bits, of odd
    sizes.
    """
    generator = np.random.default_rng(0)
    options = [
        ("L", "PNG"),
        ("RGB", "PNG"),
        ("RGBA", "PNG"),
        ("LA", "PNG"),
        ("P", "PNG"),
        ("1", "PNG"),
        ("I;16", "PNG"),
        ("RGB", "JPEG"),
        ("CMYK", "JPEG"),
        ("L", "JPEG"),
        ("RGBA", "WEBP"),
        ("RGB", "BMP"),
        ("P", "GIF"),
        ("RGB", "TIFF"),
        ("I;16", "TIFF"),
    ]
    for number in range(60):
        mode, format = options[number % len(options)]
        size = tuple(generator.integers(8, 300, 2).tolist())
        small = generator.integers(0, 256, (9, 9, 4), dtype=np.uint8)
        image = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
        if mode == "I;16":
            image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257 + 7)
        elif mode != "RGBA":
            image = image.convert("LA" if mode == "LA" else "RGB").convert(mode)
        exif = Image.Exif()
        exif[0x0112] = number // len(options) * 2 + 1 + number % 2
        file = io.BytesIO()
        image.save(
            file,
            format,
            **({"exif": exif.tobytes()} if format in ("PNG", "JPEG", "WEBP", "TIFF") else {}),
        )
        yield file.getvalue()


@pytest.mark.slow
def test_the_script_answers_as_predict_for_sixty_odd_pictures(written, example):
    path, file, _ = written
    pictures = [*odd_pictures()]
    found, own = example["Exported"](str(file)), lockstep.load(path).predict(pictures)
    assert len({answer.label for answer in own}) > 3
    for picture, expected in zip(pictures, own, strict=True):
        label, probability, answer = found.predict(picture)
        assert (label, answer) == (expected.label, expected.mark)
        assert probability == pytest.approx(expected.probability, abs=1e-3)


def test_the_script_sees_the_same_pixels_in_colour(example):
    for picture in odd_pictures():
        for options in ({"image_px": 32}, {"image_px": 24, "grey": True}):
            own = decode_image(picture, Decoding(**options))
            decoding = example["Decoding"](**options)
            assert np.array_equal(example["decode_image"](picture, decoding), own)


@pytest.mark.slow
def test_the_script_marks_answers_by_the_metadata(written, example):
    found = example["Exported"](str(written[1]))
    picture = next(odd_pictures())
    label, probability, answer = found.predict(picture)
    assert (answer, found.metadata["confident_from"], found.metadata["familiar_from"]) == (
        None,
        None,
        None,
    )
    index = found.metadata["classes"].index(label)
    for least, expected in (
        (probability, "confident"),
        (probability + 1e-6, "unsure"),
        (None, "unsure"),
    ):
        found.metadata["confident_from"] = [0.0] * 10
        found.metadata["confident_from"][index] = least
        assert found.predict(picture)[2] == expected


def test_the_script_takes_the_images_of_a_folder(example, tmp_path, capsys, monkeypatch):
    for name in ("b.JPG", "a.png", "sub/c.webp", "notes.txt", ".hidden.png", ".git/d.png"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    (tmp_path / "empty").mkdir()
    names = [path.relative_to(tmp_path).as_posix() for path in example["images_in"](tmp_path)]
    assert names == ["in/a.png", "in/b.JPG", "in/sub/c.webp"]
    seen = []
    found = SimpleNamespace(
        metadata={"thresholds": None},
        predict_labels=lambda image: seen.append(image.name) or [("cat", 0.5, None)],
    )
    monkeypatch.setitem(example["main"].__globals__, "Exported", lambda file: found)
    code = example["main"]("x.onnx", f"{tmp_path}/in", f"{tmp_path}/empty", "x.png")
    assert (code, seen) == (DATA, ["a.png", "b.JPG", "c.webp", "x.png"])
    assert "empty: no images in this folder" in capsys.readouterr().err


def test_a_set_of_operators_that_is_not_written_is_refused(here):
    done = here("export", "runs/x", "--opset", "17")
    refused(done, USAGE, "--opset 17: 18 to 25 are allowed")
    done = here("export", "runs/x", "--opset", "18", "--to", "litert")
    refused(done, USAGE, "--opset 18: 18 to 25 are allowed, of ONNX and OpenVINO")
    done = here("export", "runs/x", "--to", "coreml")
    refused(done, USAGE, "--to coreml: give one of onnx, litert, openvino")


@pytest.mark.slow
def test_a_file_has_the_operators_that_were_asked_for(written, tmp_path):
    onnx = pytest.importorskip("onnx")
    record = lockstep.export(written[0], tmp_path / "old.onnx", opset=18)
    model = onnx.load(record.file)
    assert (model.opset_import[0].version, model.ir_version) == (18, record.ir_version)
    metadata = json.loads(next(p.value for p in model.metadata_props if p.key == "lockstep"))
    assert (metadata["opset"], metadata["ir_version"]) == (record.opset, record.ir_version)


@pytest.mark.slow
def test_the_script_needs_no_lockstep_and_survives_a_bad_file(written, picture, tmp_path):
    path, file, record = written
    script = file.with_name("use_exported.py")
    assert record["script"] == "use_exported.py"
    assert script.read_text() == EXAMPLE.read_text(), "python -m benchmarks.tables writes it"
    bad = tmp_path / "bad\x1b.png"
    bad.write_text("no image")
    # Lockstep and torch are not there.
    hidden = (
        "import runpy, sys; sys.modules |= dict.fromkeys(['lockstep', 'torch']); sys.argv = "
        "sys.argv[1:]; "
    )
    command = [
        sys.executable,
        "-c",
        f"{hidden}runpy.run_path(sys.argv[0], run_name='__main__')",
        script,
    ]
    done = subprocess.run(
        [*command, file, bad, tmp_path / "none.png", picture], capture_output=True, text=True
    )
    own = lockstep.load(path).predict(picture)
    assert (done.returncode, done.stdout) == (
        DATA,
        f"{picture}  {own.label} {own.probability:.2%}\n",
    )
    first, second = done.stderr.splitlines()
    assert "bad\\x1b.png: not a JPEG" in first
    assert second.endswith("none.png: no such file or directory")


def test_the_script_lacks_what_windows_and_few_packages_lack(example, monkeypatch):
    monkeypatch.delattr(os, "O_NONBLOCK")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    monkeypatch.setattr("PIL.Image.init", lambda: None)
    decoding = example["Decoding"](32)
    file = io.BytesIO()
    Image.new("RGB", (32, 32), (9, 8, 7)).save(file, "PPM")
    assert example["decode_image"](file.getvalue(), decoding)[0, 0].tolist() == [9, 8, 7]
    for data, words in ((b"<html>", "an HTML page"), (b"0000ftypheic", "install pillow-heif")):
        with pytest.raises(example["LockstepError"], match=words):
            example["decode_image"](data, decoding)


def test_the_script_takes_pixels_where_images_are_no_squares(example):
    exported = object.__new__(example["Exported"])
    rows = [np.array([[0.25, 0.75]], np.float32)]
    exported._run = lambda images: rows
    nothing = {"thresholds": None, "confident_from": None, "familiar_from": None}
    exported.metadata = {"image_shape": [8, 12, 1], "classes": ["a", "b"], **nothing}
    assert exported.predict(np.zeros((8, 12, 1), np.uint8)) == ("b", 0.75, None)
    with pytest.raises(example["LockstepError"], match="give pixels uint8"):
        exported.predict(next(odd_pictures()))


def test_the_script_says_what_it_is_given_wrongly(example, picture, tmp_path, capsys):
    (tmp_path / "m.onnx").write_text("no model")
    for file in (tmp_path / "m.onnx", tmp_path / "none.onnx"):
        assert example["main"](str(file), str(picture)) == DATA
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), "cannot be used" in err) == ("", 1, True)


@pytest.fixture(scope="module", params=[*FORMATS])
def reached(request, run, tmp_path_factory):
    """Return (the format's name, its records of float32 and of int8), in a folder of their own."""
    for module in FORMATS[request.param].modules:
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp(request.param)
    suffix = FORMATS[request.param].suffixes[-1]
    records = [
        lockstep.export(run, folder / f"{name}{suffix}", to=request.param, int8=int8, force=int8)
        for name, int8 in (("first", False), ("int8", True))
    ]
    return request.param, records


@pytest.mark.slow
def test_each_format_is_scored_by_its_own_runtime(reached, run):
    name, (exact, int8) = reached
    suffix = FORMATS[name].suffixes[-1]
    assert (exact.otherwise, exact.examples, exact.calibrated) == (0, 355, None)
    assert 0 < exact.difference < 1e-4 < int8.difference < 0.5
    assert int8.bytes < 0.7 * exact.bytes
    assert (int8.calibrated, int8.otherwise <= 8) == (241, True)
    assert "loss of accuracy" in str(int8)
    for record in (exact, int8):
        metadata, compute = RUNTIMES[suffix](record.file)
        stated = {each: metadata[each] for each in ("otherwise", "difference", "accuracy")}
        assert stated == {each: getattr(record, each) for each in stated}
        assert metadata["weights_sha256"] == record.weights_sha256
        batch = noise(0, 3, 8, 8, 1)
        own = in_float32(lockstep.load(run))(batch)
        assert abs(compute(batch)[0] - own).max() <= (1e-4 if record is exact else 0.5)


@pytest.mark.slow
def test_a_file_of_each_format_has_the_same_bytes_each_time(reached, run, tmp_path):
    name, (exact, _) = reached
    again = lockstep.export(run, tmp_path / Path(exact.file).name, to=name)
    for suffix in {*FORMATS[name].suffixes} - {".xml"}:  # numbers its nodes within a program
        files = [Path(record.file).with_suffix(suffix) for record in (exact, again)]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
def test_the_program_for_a_device_answers_as_predict(reached, run, picture, tmp_path):
    name, (exact, _) = reached
    page = (ROOT / "docs/deploy.md").read_text()
    program = next(
        block.text for block in blocks(page) if block.text.startswith(f"# device_{name}.py\n")
    )
    assert len(program.splitlines()) <= 11  # ten below its name
    hidden = "import sys; sys.modules |= dict.fromkeys(['lockstep', 'torch'])\n"
    (tmp_path / "device.py").write_text(hidden + program)
    for file in Path(exact.file).parent.iterdir():
        shutil.copy(file, tmp_path)
    command = [sys.executable, "device.py", str(picture)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    own = lockstep.load(run).predict(picture)
    assert done.stdout == f"{own.label} {own.probability:.2%}\n"


def test_a_format_without_its_packages_is_refused(run, here, monkeypatch, tmp_path):
    monkeypatch.setattr(messages, "find_spec", lambda module: None)
    for name, form in FORMATS.items():
        done = here("export", run, "--to", name)
        refused(done, ENVIRONMENT, f"pip install 'lockstep-images[{form.extra}]'")
    assert not [*tmp_path.iterdir()]


def test_no_file_of_a_format_is_overwritten(run, here, tmp_path):
    (tmp_path / "first.bin").write_text("mine")
    done = here("export", run, "--to", "openvino", "-o", "first.xml")
    refused(done, USAGE, "first.bin: this file exists already")
    assert [path.name for path in tmp_path.iterdir()] == ["first.bin"]


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_nothing_is_exported_that_differs_or_cannot_be_compared(
    written, tmp_path, here, monkeypatch
):
    path, _, record = written
    monkeypatch.setattr("lockstep.messages._SILENT_S", 0.0)
    done = succeeded(here("export", path / "model.safetensors"))
    first, second, third, *_ = done.stderr.splitlines()
    compared = "comparing the file with Lockstep on 355 images"
    # at once, as the next line may take a minute
    assert [first, second] == ["making the file", compared]
    assert third.startswith(f"{compared}: 33%, about ")
    assert f"{record['accuracy']:.2%} of 355 test images" in done.stdout
    assert (tmp_path / "model.onnx").exists()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        missing = here("export", path, "-o", "d.onnx")
    assert (missing.returncode, "pip install 'lockstep-images[export]'" in missing.stderr) == (
        ENVIRONMENT,
        True,
    )
    monkeypatch.setattr(api, "TOLERANCE", 0.0)
    differs = here("export", path, "-o", "d.onnx")
    assert (differs.returncode, "it is not written" in differs.stderr) == (CRASH, True)
    assert not (tmp_path / "d.onnx").exists()


def test_without_a_test_split_held_out_images_are_compared(trained_once, here, monkeypatch):
    run, _ = trained_once("digits", *SMALL, "--set", "held_out=20", "--steps", 2, "--processes", 1)
    form = SimpleNamespace(
        **{
            name: getattr(FORMATS["onnx"], name)
            for name in ("suffixes", "extra", "modules", "title")
        },
        facts=lambda model: {},
        write=lambda model, metadata, file: file.write_text("not made, which takes seconds"),
        open=lambda *_: lambda images: [in_float32(lockstep.load(run))(images)],
    )
    monkeypatch.setattr("lockstep.classify.export.exported", lambda *_: None)
    monkeypatch.setitem(FORMATS, "onnx", form)
    whole = splits.splits_of
    monkeypatch.setattr(splits, "splits_of", lambda *read: {"held-out": whole(*read)["held-out"]})
    record = record_of(here("export", run, "-o", "d.onnx", "--json"))
    assert (record["split"], record["examples"]) == ("held-out", 20)


def test_what_cannot_be_exported_is_refused(run, picture, tmp_path, here):
    file = tmp_path / "other.onnx"
    file.write_text("refused before it is read")
    ignored = shutil.ignore_patterns("checkpoints", "result.json", "model.safetensors")
    begun = shutil.copytree(run, tmp_path / "begun", ignore=ignored)
    others = tmp_path / "others.safetensors"
    facts = {
        name: value
        for name, value in metadata_of(run / "model.safetensors").items()
        if name != SHA256
    }
    statefile.write(
        others, read_tensors(run / "model.safetensors"), {**facts, "classes": [*"abcdefghij"]}
    )
    for words, code, text in (
        (("export", run, "-o", file), USAGE, "exists already"),
        (("export", begun, "-o", "d.onnx"), DATA, "checkpoint"),
        (
            ("export", others, "-o", "d.onnx"),
            DATA,
            "the data have 10 classes and images of [8, 8, 1]",
        ),
        (("export", file, "-o", "d.onnx"), USAGE, "is for other programs"),
        (("predict", file, picture), USAGE, "is for other programs"),
    ):
        done = here(*words)
        assert done.returncode == code, (words, done.stderr)
        assert text in done.stderr, done.stderr
    assert not (tmp_path / "d.onnx").exists()
