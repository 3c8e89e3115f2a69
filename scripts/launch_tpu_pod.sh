#!/usr/bin/env bash
# Runs train.py on every host of a Cloud TPU slice; they find each other by themselves.
set -euo pipefail

usage() {
  cat <<'END'
usage: scripts/launch_tpu_pod.sh [--dry] setup NAME ZONE
       scripts/launch_tpu_pod.sh [--dry] train NAME ZONE --config=… --workdir=… [train.py's flags]
       scripts/launch_tpu_pod.sh [--dry] stop  NAME ZONE

  setup  copies this commit to every host and installs it there (extra tpu); with BUCKET=NAME set,
         mounts that bucket at ~/bucket on each: --workdir=../bucket/… is seen by all hosts
  train  runs the same command on all hosts and ends with its status, which is 75 after a
         preemption: run it again to go on
  stop   sends SIGTERM to the run: it saves and ends
  --dry  prints the commands and runs none

  NAME and ZONE are those of `gcloud compute tpus tpu-vm create`. PROJECT=ID names another project
  than gcloud's, PYTHON=python3.12 another interpreter for the virtual environment on the hosts.
END
}

dry=
if [ "${1:-}" = --dry ]; then
  dry=1
  shift
fi
case "${1:-}" in
  setup | train | stop) ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
if [ $# -lt 3 ] || { [ "$1" != train ] && [ $# -gt 3 ]; }; then
  usage >&2
  exit 2
fi
action=$1 name=$2 zone=$3
shift 3
gcloud=(gcloud compute tpus tpu-vm)
place=("--zone=$zone" --worker=all)
if [ -n "${PROJECT:-}" ]; then
  place+=("--project=$PROJECT")
fi

run() {
  if [ -n "$dry" ]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

on_all_hosts() {
  run "${gcloud[@]}" ssh "$name" "${place[@]}" "--command=$1"
}

case $action in
  setup)
    archive=${TMPDIR:-/tmp}/jaxformer-$(git rev-parse --short HEAD).tar.gz
    run git archive --format=tar.gz "--output=$archive" HEAD
    run "${gcloud[@]}" scp "$archive" "$name:jaxformer.tar.gz" "${place[@]}"
    on_all_hosts "rm -rf jaxformer && mkdir jaxformer && tar -xzf jaxformer.tar.gz -C jaxformer && make -C jaxformer install EXTRAS=tpu PYTHON=$(printf %q "${PYTHON:-python3.11}")"
    if [ -n "${BUCKET:-}" ]; then
      on_all_hosts "mkdir -p bucket && { mountpoint -q bucket || gcsfuse --implicit-dirs $(printf %q "$BUCKET") bucket; }"
    fi
    ;;
  train)
    on_all_hosts "cd jaxformer && exec .venv/bin/python train.py$(printf ' %q' "$@")"
    ;;
  stop)
    on_all_hosts "pkill -TERM -f '^[^ ]*python train.py'"
    ;;
esac
