"""Classify images by a file of `lockstep export`, without Lockstep: python use_exported.py FILE.onnx IMAGE..."""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession(sys.argv[1])
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
mode = "L" if session.get_inputs()[0].shape[3] == 1 else "RGB"
for path in sys.argv[2:]:
    image = np.atleast_3d(np.asarray(Image.open(path).convert(mode)))  # any height and width
    (probabilities,) = session.run(None, {"images": image[None]})[0]
    print(path, classes[probabilities.argmax()], f"{probabilities.max():.2%}")
