#!/usr/bin/env bash
# The first contact with a GPU, in ten minutes, also on a machine without a network:
#
#     bash benchmarks/gpu/first.sh [PART...]
#
# PART, in this order; all of them if none is given:
#     facts     GPU, driver and versions, and what Lockstep needs and this machine lacks
#     canary    20 steps of digits
#     portable  the checks of portable arithmetic of gpu-check: one hash on CPU and GPU
#     bits      the operations of portable arithmetic whose bits differ
#     steps     ms, launches, waits and memory of a step of each recipe
#     cifar10   CIFAR-10 to 94 %, verify and eval, the speed of the tutorial
#     checks    all of gpu-check
#
# Each part has a time limit. What it prints goes to OUT/log.txt at once, and a record grows with each result, so a
# cut-off loses nothing. The exit code is 1 if a part failed, was cut off or was left out.
#
# Variables:
#     OUT       folder of the results                                      (gpu-results)
#     KIT       folder that prepare.sh has made; first.sh takes what it has (none)
#     PLACE     folder that keeps unpacked wheels and data, and the runs   (/tmp/lockstep-gpu)
#     LIMIT     seconds for all parts                                      (570; a rehearsal has no limits)
#     PY        Python with torch                                          (.venv/bin/python or python3)
#     REHEARSE  1 makes everything tiny, for a machine without a GPU       (0)
set -u
OUT=$(realpath -m "${OUT:-gpu-results}"); PLACE=$(realpath -m "${PLACE:-${TMPDIR:-/tmp}/lockstep-gpu}")
KIT=${KIT:+$(realpath -m "$KIT")}
cd "$(dirname "$0")/../.." || exit 3
REHEARSE=${REHEARSE:-0}; LIMIT=${LIMIT:-$([ "$REHEARSE" = 1 ] && echo 36000 || echo 570)}
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
SITE=$PLACE/site; RUNS=$PLACE/runs-$(date +%s); LOG=$OUT/log.txt
JOBS=$(($(nproc) / 4)); [ "$JOBS" -gt 0 ] || JOBS=1
mkdir -p "$OUT" "$SITE" "$RUNS"
[ $# -gt 0 ] || set -- facts canary portable bits steps cifar10 checks
passed=0; failed=()
trap 'kill "${running:-}" 2> /dev/null; exit 130' INT TERM

say() { printf '[%3s s] %s\n' "$SECONDS" "$*" | tee -a "$LOG"; }

# part NAME SECONDS COMMAND...: all output goes to the log. A pipe would stay open for as long as a lost worker holds it.
part() {
  local name=$1 most=$2 left=$((LIMIT - SECONDS)) began=$SECONDS before code; shift 2
  if [ "$most" -gt "$left" ] || [ "$REHEARSE" = 1 ]; then most=$left; fi
  if [ "$most" -lt 5 ]; then bad "LEFT OUT $name: no time is left"; return; fi
  say "$name, at most $most s: $*"
  before=$(wc -c < "$LOG")
  timeout -k 5 "$most" "$@" >> "$LOG" 2>&1 &
  running=$!
  wait "$running"; code=$?
  tail -c "+$((before + 1))" "$LOG" | tail -n 30
  case $code in
    0) say "PASS $name in $((SECONDS - began)) s"; passed=$((passed + 1)) ;;
    124 | 137) bad "CUT $name after $((SECONDS - began)) s" ;;
    *) bad "FAIL $name: exit code $code" ;;
  esac
}
bad() { say "$*"; failed+=("$*"); }

facts() {
  timeout 30 nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit --format=csv,noheader
  $PY - <<'END'
import importlib.metadata
import os
import sys
import tomllib

import torch
from pip._vendor.packaging.requirements import Requirement

print("Python", sys.version.split()[0], "torch", torch.__version__, "CUDA", torch.version.cuda, "on", os.cpu_count(), "cores")
print("cuDNN", torch.backends.cudnn.version(), "NCCL", torch.cuda.is_available() and torch.cuda.nccl.version())
with open("pyproject.toml", "rb") as file:
    needs = map(Requirement, tomllib.load(file)["project"]["dependencies"])
for need in needs:
    try:
        found = importlib.metadata.version(need.name)
    except importlib.metadata.PackageNotFoundError:
        found = None
    if found is None or not need.specifier.contains(found.partition("+")[0]):
        print("lacks", need, "and has", found)
END
}

# ---- set up --------------------------------------------------------------------------------------------------------
if [ -n "$KIT" ] && ls "$KIT"/wheels/*.whl > /dev/null 2>&1; then
  $PY -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$SITE" "$KIT"/wheels/*.whl >> "$LOG" 2>&1 ||
    bad "FAIL wheels: pip cannot install those of $KIT"
fi
export PYTHONPATH=$PWD/src:$SITE:$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
if [ -n "$KIT" ] && ls "$KIT"/cifar-[ab].zip > /dev/null 2>&1; then
  part data 60 $PY -m benchmarks.gpu.packed unpack "$KIT" "$PLACE/data/cifar-10-batches-bin"
fi
# Both parts of the data may come one after the other, in two calls.
[ -d "$PLACE/data" ] && export LOCKSTEP_DATA=$PLACE/data
canary=(digits --no-portable --steps 20 --runs "$RUNS")
gpu_check=($PY -m benchmarks.gpu_check --jobs "$JOBS")
if [ "$REHEARSE" = 1 ]; then
  canary+=(--device cpu)
  bits=(digits,batch=16 --steps 1)
  steps=(digits,batch=8 cifar10-tutorial,precision=float32,batch=8 --also graphs=false)
  steps+=(--warm 1 --steps 2 --profiled 1 --examples 100)
  cifar10=(--dataset benchmarks.gpu_check:colour32 --precision float32 --batch 8 --steps 1)
  checks=(--only "recipe digits")
else
  canary+=(--device cuda)
  bits=()
  steps=(--also graphs=false)
  cifar10=()
  checks=()
fi

# ---- the parts -----------------------------------------------------------------------------------------------------
for name in "$@"; do
  case $name in
    facts) say facts; facts 2>&1 | tee -a "$LOG" ;;
    canary) part canary 90 $PY -m lockstep train "${canary[@]}" ;;
    portable) part portable 200 "${gpu_check[@]}" --only portable --out "$OUT/gpu-check-portable.json" ;;
    bits) part bits 200 $PY -m benchmarks.gpu.bits "${bits[@]}" --out "$OUT" ;;
    steps) part steps 150 $PY -m benchmarks.gpu.steps "${steps[@]}" --out "$OUT" ;;
    cifar10) part cifar10 240 $PY -m benchmarks.gpu.cifar10 "${cifar10[@]}" --runs "$RUNS" --out "$OUT" ;;
    checks) part checks 300 "${gpu_check[@]}" "${checks[@]}" --out "$OUT/gpu-check.json" ;;
    *) bad "FAIL $name: no part has this name, see the first lines of $0" ;;
  esac
done
say "$passed parts passed, ${#failed[@]} did not; the results are in $OUT"
for line in "${failed[@]}"; do say "$line"; done
[ ${#failed[@]} -eq 0 ]
