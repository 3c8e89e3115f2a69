#!/usr/bin/env bash
# Submits train.py to SLURM: one process a GPU; JAX reads from SLURM who belongs together.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/launch_slurm.sh [--dry] NODES GPUS_A_NODE [sbatch's flags] -- --config=… --workdir=…

  What follows -- goes to train.py; --workdir must be on a file system that all nodes share.
  Two minutes before the time limit, or when it is preempted, the run is sent SIGTERM: it saves,
  ends with status 75, and the job is put into the queue again, where it goes on.

  --dry  prints the job and the command that would submit it
  e.g. scripts/launch_slurm.sh 2 8 --time=24:00:00 -- --config=configs/text.py --workdir=runs/text
END
}

dry=
if [ "${1:-}" = --dry ]; then
  dry=1
  shift
fi
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
esac
if ! [[ "${1:-}" =~ ^[1-9][0-9]*$ && "${2:-}" =~ ^[1-9][0-9]*$ ]]; then
  usage >&2
  exit 2
fi
nodes=$1 gpus=$2
shift 2
flags=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  flags+=("$1")
  shift
done
if [ $# -lt 2 ]; then
  usage >&2
  exit 2
fi
shift
command=$(printf ' %q' "$@")

job() {
  cat <<END
#!/usr/bin/env bash
#SBATCH --job-name=jaxformer
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=$gpus
#SBATCH --gpus-per-node=$gpus
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
srun --kill-on-bad-exit=0 .venv/bin/python train.py$command
status=\$?
if [ "\$status" -eq 75 ]; then
  scontrol requeue "\$SLURM_JOB_ID"
fi
exit "\$status"
END
}

if [ -n "$dry" ]; then
  printf '%q ' sbatch "${flags[@]}"
  echo
  job
else
  job | sbatch "${flags[@]}"
fi
