#!/bin/bash
# Train on several hosts with Grid Engine:   qsub grid_engine.sh
# Submit it again to resume the run. Each slot is one process; process 0, on the first host, writes the run folder.
#$ -N lockstep
#$ -S /bin/bash
#$ -cwd -V -j y -o lockstep-$JOB_ID.log
# A parallel environment of your cluster, and the number of slots. It must have control_slaves TRUE and
# job_is_first_task FALSE; qconf -spl lists all of them.
#$ -pe lockstep 16
# qdel and the time limit warn the job before they kill it, so that it saves. After a host has died, the job starts
# again.
#$ -notify -r y

set -uo pipefail

# The network interface that connects the hosts. Without it, Gloo uses the address of the host's own name.
export GLOO_SOCKET_IFNAME=eth0
export NCCL_SOCKET_IFNAME=eth0

# The processes meet at the first host, at a port from 20000 to 39999.
read -r MASTER_ADDR _ < "$PE_HOSTFILE"
export MASTER_ADDR MASTER_PORT=$((20000 + JOB_ID % 20000)) WORLD_SIZE=$NSLOTS

train=(lockstep train cifar10 --towers 16 --name big --runs "$SGE_O_WORKDIR/runs" --timeout 60)

# Grid Engine warns every process of a job by SIGUSR1 or SIGUSR2. Lockstep saves at SIGTERM.
task='trap "kill \$!" USR1 USR2; (trap "" USR1 USR2; exec "$@") & wait $!; wait $!'
trap : USR1 USR2

# After a failure, the processes end and the next attempt resumes the run; the --name suffices without --resume.
for attempt in 1 2 3 4; do
  programs=()
  while read -r host slots _; do
    for ((local = 0; local < slots; local++)); do
      # A login shell of the host reads the command, and sets another PATH than that of qsub.
      command=(env PATH="$SGE_O_PATH" RANK=${#programs[@]} LOCAL_RANK=$local bash -c "$task" bash "${train[@]}")
      qrsh -inherit -nostdin -V "$host" "$(printf '%q ' "${command[@]}")" &
      programs+=($!)
    done
  done < "$PE_HOSTFILE"
  for ((rank = NSLOTS - 1; rank >= 0; rank--)); do # The last code is that of process 0.
    wait "${programs[rank]}"; code=$?
    while kill -0 "${programs[rank]}" 2> /dev/null; do wait "${programs[rank]}"; code=$?; done # A warning ends a wait.
  done
  case $code in
    0 | 2 | 3 | 129 | 130 | 143) exit $code ;; # done; a mistake in the command or the data; stopped and saved
  esac
  echo "attempt $attempt ended with exit code $code"
done
exit $code
