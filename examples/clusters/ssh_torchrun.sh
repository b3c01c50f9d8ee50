#!/bin/bash
# Train on hosts that you reach with ssh:   ssh_torchrun.sh HOST HOST...
# Start it again to resume the run. Ctrl-C saves, and ends the processes on all hosts.
#
# Every host needs Lockstep and the data, and all need the same CPU or GPU model. The first host runs process 0, which
# writes the run folder, and the rendezvous of torchrun.
set -euo pipefail

[ $# -ge 1 ] || { echo "usage: ssh_torchrun.sh HOST HOST..." >&2; exit 2; }
hosts=("$@")

RECIPE=${RECIPE:-cifar10}
NAME=${NAME:-big}                        # the run is FOLDER/runs/NAME on the first host
FOLDER=${FOLDER:-lockstep}               # on every host, from the user's home folder
PYTHON=${PYTHON:-.venv/bin/python}       # in that folder
PROCESSES=${PROCESSES:-8}                # on each host: one for each GPU, or for each core
INTERFACE=${INTERFACE:-eth0}             # the network interface that connects the hosts
PORT=${PORT:-29500}                      # of the first host, for the rendezvous
OPTIONS=${OPTIONS:---timeout 60}         # further options of lockstep train

# TORCH_DISABLE_SHARE_RDZV_TCP_STORE lets a host join again: see docs/clusters.md.
launch() { # launch HOST IS_HOST: print the command for a host; is_host=1 serves the rendezvous
  cat <<COMMAND
mkdir -p $FOLDER && cd $FOLDER && export GLOO_SOCKET_IFNAME=$INTERFACE NCCL_SOCKET_IFNAME=$INTERFACE &&
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 &&
exec $PYTHON -m torch.distributed.run --nnodes ${#hosts[@]} --nproc-per-node $PROCESSES --max-restarts 3
--rdzv-backend c10d --rdzv-id $NAME --rdzv-endpoint ${hosts[0]}:$PORT --rdzv-conf is_host=$2 --local-addr $1
-m lockstep train $RECIPE --towers $((${#hosts[@]} * PROCESSES)) --name $NAME $OPTIONS
COMMAND
}

# If ssh ends, its terminal on the host closes. torchrun then passes SIGHUP on, and the run is saved.
trap 'kill $(jobs -p) 2>/dev/null || true' INT TERM HUP

is_host=1
for host in "${hosts[@]}"; do
  ssh -tt "$host" "$(launch "$host" "$is_host" | tr '\n' ' ')" </dev/null &
  is_host=0
done

code=0
for job in $(jobs -p); do
  wait "$job" || code=$?
done
exit "$code"
