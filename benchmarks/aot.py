"""Steps compiled for TPU slices that are not here: python benchmarks/aot.py [NAME …]

Runs train.py --aot for each case (default: all) in a process of its own and prints the command and
what it said, as docs/scaling.md has it. Needs libtpu (extra tpu) and no TPU; seconds are of a quiet
machine, all else is the same anywhere.
"""

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LLAMA = (
    "--config=configs/presets/llama_7b.py --config.data.path=- --config.compute_dtype=bfloat16 "
    "--config.model.remat=full --config.train.batch_size=256 --config.mesh.data=1 "
)
GPT2 = (
    "--config=configs/presets/gpt2_small.py --config.data.path=- --config.compute_dtype=bfloat16 "
    "--config.model.scan_layers=true --config.model.remat=full --config.train.batch_size=64 "
)
MIXTRAL = (
    "--config=configs/presets/mixtral_8x7b.py --config.data.path=- --config.compute_dtype=bfloat16 "
    "--config.model.remat=full --config.data.length=4096 --config.train.batch_size=128 "
    "--config.mesh.data=1 --config.mesh.fsdp=16 --config.mesh.expert=8 --aot=v5p:4x4x8"
)
CASES = {
    "llama": LLAMA + "--config.mesh.fsdp=64 --config.mesh.tensor=4 --aot=v5e:16x16",
    "llama-fsdp": LLAMA + "--config.mesh.fsdp=256 --aot=v5e:16x16",
    "gpt2": GPT2 + "--aot=v5e:2x4",
    "mixtral": MIXTRAL + " --config.model.moe.capacity_factor=1.25",
    "mixtral-dropless": MIXTRAL,
    "too-large": LLAMA + "--config.train.batch_size=8 --config.mesh.fsdp=8 --aot=v5e:2x4",
    "long": GPT2 + "--config.model.max_length=32768 --config.data.length=32768 "
    "--config.model.position.kind=rope --config.model.dropout.attention=0 "
    "--config.train.batch_size=1 --config.mesh.data=1 --config.mesh.context=4 --aot=v5p:2x2x1",
}


def main(names: list[str]) -> int:
    if unknown := set(names) - set(CASES):
        print(f"error: no case {min(unknown)}, there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    for name in names or CASES:
        command = f"python train.py {CASES[name]}"
        done = subprocess.run(
            [sys.executable, *shlex.split(command)[1:]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        print(f"{command}\n\n{done.stdout}{done.stderr}\nstatus {done.returncode}\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
