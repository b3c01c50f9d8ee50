#!/usr/bin/env bash
# The first contact with a GPU, also on a machine without a network:
#
#     bash benchmarks/gpu/first.sh [CALL|PART...]
#
# CALL, for a machine that is lent for ten minutes at a time; both of them if nothing is given. The parts of each are in
# the order of what a cut-off must not lose:
#     1  facts graphs steps peers portable
#     2  cifar10 airbench agree onehash
#
# PART:
#     facts     GPU, driver and versions, and what Lockstep needs and this machine lacks
#     graphs    the checks of gpu-check of CUDA graphs: they leave the weights that kernels leave
#     steps     ms, launches, waits and memory of a step of recipes; also by kernels, and with towers side by side
#     peers     the tutorial's speed in a real run beside plain PyTorch, eager and compiled
#     portable  those of portable arithmetic: one hash on CPU and GPU
#     cifar10   CIFAR-10 to 94%, what listeners cost, verify and eval
#     airbench  the fastest public program for CIFAR-10, if KIT has its file; eager, then compiled
#     agree     the checks of gpu-check that compare native arithmetic with a CPU
#     onehash   the one of one hash on several processes
#     bits      the operations of portable arithmetic whose bits differ, if portable says that they do
#     checks    all of gpu-check
#
# Each part has a time limit, and all of a call have LIMIT together. What a part prints goes to OUT/log.txt at once, and
# a record grows with each result, so a cut-off loses nothing. The exit code is 1 if a part failed, was cut off or was
# left out.
#
# Variables:
#     OUT       folder of the results                                      (gpu-results)
#     KIT       folder that prepare.sh has made; first.sh takes what it has (none)
#     PLACE     folder that keeps unpacked wheels and data, and the runs   (/tmp/lockstep-gpu)
#     LIMIT     seconds for all parts                                      (570 a call; a rehearsal has no limits)
#     PY        Python with torch                                          (.venv/bin/python or python3)
#     REHEARSE  1 makes everything tiny, for a machine without a GPU       (0)
set -u
declare -A CALLS=([1]="facts graphs steps peers portable" [2]="cifar10 airbench agree onehash")
declare -A MOST=([facts]=20 [graphs]=70 [steps]=130 [peers]=130 [portable]=100  # seconds
  [cifar10]=180 [airbench]=120 [agree]=80 [onehash]=60 [bits]=200 [checks]=400 [wheels]=60 [data]=60)
OUT=$(realpath -m "${OUT:-gpu-results}"); PLACE=$(realpath -m "${PLACE:-${TMPDIR:-/tmp}/lockstep-gpu}")
KIT=${KIT:+$(realpath -m "$KIT")}
cd "$(dirname "$0")/../.." || exit 3
[ $# -gt 0 ] || set -- 1 2
parts=(); calls=0
for name in "$@"; do
  if [ -n "${CALLS[$name]:-}" ]; then read -ra more <<< "${CALLS[$name]}"; parts+=("${more[@]}"); calls=$((calls + 1))
  else parts+=("$name"); fi
done
REHEARSE=${REHEARSE:-0}; LIMIT=${LIMIT:-$([ "$REHEARSE" = 1 ] && echo 36000 || echo $((570 * (calls > 0 ? calls : 1))))}
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
SITE=$PLACE/site; RUNS=$PLACE/runs-$(date +%s); LOG=$OUT/log.txt; DATA=$PLACE/data/cifar-10-batches-bin
JOBS=$(($(nproc) / 4)); [ "$JOBS" -gt 0 ] || JOBS=1
mkdir -p "$OUT" "$SITE" "$RUNS"
passed=0; failed=()
trap 'kill "${running:-}" 2> /dev/null; exit 130' INT TERM

say() { printf '[%3s s] %s\n' "$SECONDS" "$*" | tee -a "$LOG"; }

# part NAME COMMAND...: all output goes to the log. A pipe would stay open for as long as a lost worker holds it.
part() {
  local name=$1 most=${MOST[$1]} left=$((LIMIT - SECONDS)) began=$SECONDS before code; shift
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

# ---- set up --------------------------------------------------------------------------------------------------------
export PYTHONPATH=$PWD/src:$SITE:$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
if [ -n "$KIT" ] && ls "$KIT"/wheels/*.whl > /dev/null 2>&1; then
  part wheels $PY -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --no-cache-dir \
    --upgrade --target "$SITE" "$KIT"/wheels/*.whl
fi
if [ -n "$KIT" ] && ls "$KIT"/cifar-[ab].zip > /dev/null 2>&1; then
  part data $PY -m benchmarks.gpu.packed unpack "$KIT" "$DATA"
fi
gpu_check=($PY -m benchmarks.gpu_check --jobs "$JOBS")
bits=(); steps=(--also graphs=false side_by_side=true); peers=(--kept "$RUNS"); cifar10=(--kept "$RUNS"); airbench=(); checks=()
# Each call may bring one part of the data. Without the other one, as on another machine, images are random.
if [ -d "$DATA" ]; then
  export LOCKSTEP_DATA=$PLACE/data
  files=("$DATA"/*.bin)
  [ ${#files[@]} = 6 ] || cifar10+=(--dataset benchmarks.gpu_check:colour32)
fi
if [ "$REHEARSE" = 1 ]; then
  bits=(digits,batch=16 --steps 1)
  steps=(digits,batch=8 cifar10-tutorial,batch=8 --also graphs=false side_by_side=true)
  steps+=(--warm 4 --steps 2 --profiled 1 --examples 100)
  peers+=(--batches 8 --peer-steps 4 --warm 2)
  cifar10+=(--dataset benchmarks.gpu_check:colour32 --precision float32 --batch 8 --steps 2)
  airbench=(--runs 2)
  checks=(--only "recipe digits")
fi

# ---- the parts -----------------------------------------------------------------------------------------------------
for name in "${parts[@]}"; do
  case $name in
    facts) part facts $PY benchmarks/gpu/facts.py ;;
    graphs) part graphs "${gpu_check[@]}" --only graphs --out "$OUT/gpu-check-graphs.json" ;;
    steps) part steps $PY -m benchmarks.gpu.steps "${steps[@]}" --out "$OUT" ;;
    peers) part peers $PY -m benchmarks.gpu.runs peers "${peers[@]}" --out "$OUT" ;;
    portable) part portable "${gpu_check[@]}" --only portable --out "$OUT/gpu-check-portable.json" ;;
    cifar10) part cifar10 $PY -m benchmarks.gpu.runs cifar10 "${cifar10[@]}" --out "$OUT" ;;
    airbench)
      if [ -z "$KIT" ] || [ ! -f "$KIT/airbench94_muon.py" ]; then say "airbench: KIT has no airbench94_muon.py"
      else part airbench $PY -m benchmarks.gpu.runs airbench --airbench "$KIT/airbench94_muon.py" "$DATA" "${airbench[@]}" --out "$OUT"; fi ;;
    agree) part agree "${gpu_check[@]}" --only "CPU and GPU" --out "$OUT/gpu-check-agree.json" ;;
    onehash) part onehash "${gpu_check[@]}" --only "one hash" --out "$OUT/gpu-check-onehash.json" ;;
    bits) part bits $PY -m benchmarks.gpu.bits "${bits[@]}" ;;
    checks) part checks "${gpu_check[@]}" "${checks[@]}" --out "$OUT/gpu-check.json" ;;
    *) bad "FAIL $name: no call or part has this name, see the first lines of $0" ;;
  esac
done
say "$passed parts passed, ${#failed[@]} did not; the results are in $OUT"
for line in "${failed[@]}"; do say "$line"; done
[ ${#failed[@]} -eq 0 ]
