"""Formats of exported files: each makes a model of a graph, quantizes it, and writes it."""

import json
import tempfile
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.classify.runtimes import METADATA, RUNTIMES, Compute
from lockstep.files import Record

_EXAMPLE = 2  # images that the exporter traces. Another number may come later.


# ONNX's operators that compute in int8: all between the preprocessing and the softmax
_INTEGER = ["Conv", "Gemm", "MatMul", "Add", "Relu", "Clip", "MaxPool", "AveragePool", "ReduceMean"]


class Format(ABC):
    """A format of files, and the runtime that computes them.

    Attributes:
        title: Its name.
        suffixes: How the names of its files end. The last file refers to the others.
        extra: The extra of this package that writes it.
        modules: The modules of this extra.
        opsets: The versions of ONNX's operators that can be asked for.
    """

    title: str
    suffixes: tuple[str, ...]
    extra: str
    modules: tuple[str, ...]
    opsets = range(0)

    @abstractmethod
    def made(self, graph: Any, shape: tuple[int, int, int], opset: int | None) -> Any:
        """Return the model of a `graph` that takes images of `shape` [H, W, C]."""

    @abstractmethod
    def quantized(self, model: Any, images: NDArray[np.uint8]) -> Any:
        """Return `model` with weights and activations in int8, in ranges that `images` have."""

    @abstractmethod
    def write(self, model: Any, metadata: Record, file: Path) -> None:
        """Write `model` and its `metadata`."""

    def facts(self, model: Any) -> Record:
        """Return what a runtime must know of `model`, for its metadata."""
        return {}

    def open(self, file: Path, threads: int) -> Compute:
        """Return the function that the format's runtime computes from `file`."""
        return RUNTIMES[self.suffixes[-1]](str(file), threads)[1]


class Onnx(Format):
    """ONNX, by PyTorch's exporter and onnxruntime."""

    title = "ONNX"
    suffixes: tuple[str, ...] = (".onnx",)
    extra = "export"
    modules: tuple[str, ...] = ("onnx", "onnxscript", "onnxruntime")
    opsets = range(18, 26)  # which PyTorch writes without a converter of its own

    def made(self, graph: Any, shape: tuple[int, int, int], opset: int | None) -> Any:
        """Return a ModelProto. It takes any number of images."""
        import torch

        example = (torch.zeros(_EXAMPLE, *shape, dtype=torch.uint8),)
        dynamic = {0: torch.export.Dim.DYNAMIC}
        program = torch.onnx.export(
            torch.export.export(graph, example, dynamic_shapes=(dynamic,)),
            example,
            dynamo=True,
            verbose=False,
            input_names=["images"],
            output_names=["probabilities", "similarity"][: 1 + (graph.references is not None)],
            opset_version=opset,
        )
        assert program is not None
        return program.model_proto

    def facts(self, model: Any) -> Record:
        """Return the versions of ONNX's operators and of its format."""
        own = {entry.domain: entry.version for entry in model.opset_import}
        return {"opset": own[""], "ir_version": model.ir_version}

    def quantized(self, model: Any, images: NDArray[np.uint8]) -> Any:
        """Return a ModelProto in which the operators of `_INTEGER` have quantized operands."""
        import onnx
        from onnxruntime.quantization import CalibrationDataReader, quantize_static

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            rest = iter(images)

            def get_next(self) -> Record | None:
                return next(({"images": image[None]} for image in self.rest), None)

        # The similarity is compared with a threshold: only its features are rounded.
        exact = [node.name for node in model.graph.node if "references" in node.input]
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/int8.onnx"
            quantize_static(
                model,
                file,
                Reader(),
                per_channel=True,
                op_types_to_quantize=_INTEGER,
                nodes_to_exclude=exact,
            )
            return onnx.load(file)

    def write(self, model: Any, metadata: Record, file: Path) -> None:
        """Write one file."""
        del model.metadata_props[:]
        for name, value in {METADATA: metadata, "classes": metadata["classes"]}.items():
            model.metadata_props.add(key=name, value=json.dumps(value))
        file.write_bytes(model.SerializeToString())


class OpenVino(Onnx):
    """OpenVINO's intermediate representation, of an ONNX file."""

    title = "OpenVINO"
    suffixes = (".bin", ".xml")
    extra = "openvino"
    modules = (*Onnx.modules, "openvino")

    def write(self, model: Any, metadata: Record, file: Path) -> None:
        """Write FILE.xml, and the weights to FILE.bin."""
        import openvino

        made = openvino.Core().read_model(model.SerializeToString())
        made.set_rt_info(json.dumps(metadata), [METADATA])
        openvino.serialize(made, file)


class LiteRt(Format):
    """LiteRT, by Google's converter for PyTorch. It takes one image at a time."""

    title = "LiteRT"
    suffixes = (".tflite",)
    extra = "litert"
    modules = ("litert_torch", "ai_edge_litert", "ai_edge_quantizer")

    def made(self, graph: Any, shape: tuple[int, int, int], opset: int | None) -> Any:
        """Return the bytes of a flatbuffer."""
        import litert_torch
        import torch

        images = torch.zeros(1, *shape, dtype=torch.uint8)
        return litert_torch.convert(graph, (), {"images": images}).model_content()

    def quantized(self, model: bytes, images: NDArray[np.uint8]) -> bytes:
        """Return the bytes of a flatbuffer."""
        from ai_edge_quantizer import qtyping, quantizer, recipe

        making = quantizer.Quantizer(model, recipe.static_wi8_ai8())
        names = qtyping.TFLOperationName
        for exact in (names.SOFTMAX, names.LOGISTIC, names.OUTPUT):
            making.update_quantization_recipe(".*", exact, algorithm_key="no_quantize")
        seen = making.calibrate({"serving_default": [{"images": image[None]} for image in images]})
        return bytes(making.quantize(seen, enable_progress_report=False).quantized_model)

    def write(self, model: bytes, metadata: Record, file: Path) -> None:
        """Write one file. The metadata are a file of an archive behind it, as TensorFlow Lite's."""
        file.write_bytes(model)
        with zipfile.ZipFile(file, "a") as archive:  # with a fixed date
            archive.writestr(zipfile.ZipInfo(f"{METADATA}.json"), json.dumps(metadata))


FORMATS: dict[str, Format] = {"onnx": Onnx(), "litert": LiteRt(), "openvino": OpenVino()}
