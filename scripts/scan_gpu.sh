#!/usr/bin/env bash
# SCAN by number of actions (configs/lengths/scan.py) on one GPU, two arms of three seeds, beside the
# numbers of Kazemnejad et al. 2023; further flags of sweep.py follow. About ten minutes.
#     scripts/scan_gpu.sh FOLDER_OF_SCAN OUT [FLAGS]
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: scripts/scan_gpu.sh FOLDER_OF_SCAN OUT [FLAGS]" >&2
    exit 2
fi
folder=$1 out=$2
shift 2
cd "$(dirname "$0")/.."
exec python sweep.py --config=configs/lengths/scan.py --config.data.path="$folder" --out="$out" \
    --axis=model.position.kind=none,sinusoidal --seeds=3 --lengths=1:48 \
    --compare=kazemnejad2023:scan "$@"
