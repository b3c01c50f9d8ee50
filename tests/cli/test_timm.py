"""Networks of the real timm, with drawn weights and no network, in an environment of their own.

timm needs torchvision, which needs the full build of torch: 3 GB. LOCKSTEP_TIMM names the folder of
the environment, which is made there if it is not there yet.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import OFFLINE
from tests.documents import ROOT
from tests.images import bright_and_dark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PROGRAM = """
import json, sys
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file

import lockstep
from lockstep.errors import LockstepError

name, photos, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
create = timm.create_model


def create_model(network, pretrained=False, **options):
    if pretrained:
        file = folder / "drawn.safetensors"
        if not file.exists():
            torch.manual_seed(0)
            save_file(create(network).state_dict(), file)
        options["pretrained_cfg_overlay"] = {"file": str(file)}
    return create(network, pretrained=pretrained, **options)


timm.create_model = create_model
found = {}
for precision in ("float32", "bfloat16"):
    for processes in (1, 2):
        options = {"precision": precision, "processes": processes, "runs": folder, "quiet": True}
        run = lockstep.train(photos, model=f"timm:{name}", settings={"min_steps": 20}, **options)
        found[f"{precision} on {processes}"] = run.result()["weights_sha256"]
found["accuracy"] = run.accuracy
found["model"] = run.recipe().model
alone = lockstep.load(run.path / "model.safetensors").predict(f"{photos}/dark")
found["alone"] = sum(each.label == "dark" for each in alone) / len(alone)
options |= {"processes": 1, "precision": "float32"}
tuned = lockstep.train("photos-tuned", data=photos, init=run, steps=2, batch=4, **options)
found["tuned"] = tuned.recipe().lr_factors
try:
    lockstep.train(photos, model=f"timm:{name}", portable=True, steps=2, **options | {"precision": None})
    found["portable"] = "done"
except LockstepError as error:
    found["portable"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def python():
    """Return the Python of an environment that has timm."""
    if not os.environ.get("LOCKSTEP_TIMM"):
        pytest.skip("LOCKSTEP_TIMM names no folder for an environment with timm, of 3 GB")
    folder = Path(os.environ["LOCKSTEP_TIMM"])
    program = folder / "bin/python"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [program, "-m", "pip", "install", "--quiet", f"{ROOT}[timm]", "torchvision"]
        if subprocess.run(install).returncode:
            pytest.skip(f"the environment in {folder} cannot be made")
    return program


@pytest.mark.parametrize(
    "name", ["resnet18", "vit_tiny_patch16_224", "convnext_atto", "mobilenetv3_small_100"]
)
def test_one_result_for_the_networks_of_the_real_timm(python, name, tmp_path):
    photos = bright_and_dark(tmp_path / "photos", 8)
    done = subprocess.run(
        [python, "-c", PROGRAM, name, photos, tmp_path],
        env={**os.environ, **OFFLINE, "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT / 'src'}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["model"].startswith(f"timm:{name}.")
    for precision in ("float32", "bfloat16"):
        assert found[f"{precision} on 1"] == found[f"{precision} on 2"]
    assert found["float32 on 1"] != found["bfloat16 on 1"]
    assert (found["accuracy"], found["alone"]) == (1, 1)
    assert set(found["tuned"].values()) == {0.1}
    refused = "portable arithmetic does not cover the operation"
    assert found["portable"] == "done" or refused in found["portable"]
