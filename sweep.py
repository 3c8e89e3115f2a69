"""Trains a grid: python sweep.py --config=configs/NAME.py --axis=FIELD=VALUE,… --out=DIR"""

from jaxformer.cli import run_sweep

if __name__ == "__main__":
    run_sweep()
