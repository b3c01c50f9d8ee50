#!/usr/bin/env bash
# Fetch what first.sh needs on a GPU machine without a network, into the folder KIT:
#
#     bash benchmarks/gpu/prepare.sh KIT [PACKAGE...]
#
# KIT/wheels gets the pinned versions of all that Lockstep needs but torch, or of these PACKAGEs alone: `first.sh facts`
# names those that a machine lacks. Then copy this checkout and KIT to the machine. It may come in two calls of first.sh,
# each with its half of the data; the last lines say how large the files of each call are.
#
# Variables:
#     CIFAR10   folder of CIFAR-10's binary files: KIT also gets the data, in two files of 50 MB  (none)
#     AIRBENCH  file airbench94_muon.py of github.com/KellerJordan/cifar10-airbench, a peer       (none)
#     PYTHON    version of Python on that machine                                                 (3.12)
#     PY        Python here, with pip; for the data also with Lockstep                (.venv/bin/python)
set -eu
KIT=$(mkdir -p "${1:?the folder to fill}" && cd "$1" && pwd); shift
cd "$(dirname "$0")/../.."
PY=${PY:-.venv/bin/python}; PYTHON=${PYTHON:-3.12}
alone=(--no-deps)
if [ $# -eq 0 ]; then
  alone=()
  mapfile -t needs < <($PY -c '
import tomllib
from pip._vendor.packaging.requirements import Requirement
with open("pyproject.toml", "rb") as file:
    needs = map(Requirement, tomllib.load(file)["project"]["dependencies"])
print(*(need for need in needs if need.name != "torch"), sep="\n")')
  set -- "${needs[@]}"
fi
platforms=()
for tag in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do
  platforms+=(--platform "${tag}_x86_64")
done
$PY -m pip download --quiet --disable-pip-version-check --only-binary=:all: --implementation cp "${platforms[@]}" \
  --python-version "$PYTHON" --constraint constraints.txt "${alone[@]}" --dest "$KIT/wheels" "$@"
if [ -n "${CIFAR10:-}" ]; then PYTHONPATH=src:. $PY -m benchmarks.gpu.packed pack "$CIFAR10" "$KIT"; fi
if [ -n "${AIRBENCH:-}" ]; then cp "$AIRBENCH" "$KIT/airbench94_muon.py"; fi

# mib FILE...: their size. A file that is not there has none.
mib() { echo "$(du -cb "$@" 2> /dev/null | awk 'END { printf "%.1f", $1 / 1048576 }') MiB"; }
mapfile -d '' -t checkout < <(git ls-files -z --cached --others --exclude-standard)
echo "call 1: the checkout and, in $KIT, wheels, cifar-a.zip: $(mib "${checkout[@]}" "$KIT"/{wheels,cifar-a.zip})"
echo "call 2: the checkout and, in $KIT, wheels, cifar-b.zip, airbench94_muon.py:" \
  "$(mib "${checkout[@]}" "$KIT"/{wheels,cifar-b.zip,airbench94_muon.py})"
