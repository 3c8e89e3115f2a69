"""Trains: python train.py --config=configs/NAME.py --workdir=DIR [--config.FIELD=VALUE …]"""

from jaxformer.cli import run_train

if __name__ == "__main__":
    run_train()
