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
