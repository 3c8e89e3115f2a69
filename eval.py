"""Evaluates a run: python eval.py --workdir=DIR [--suite=NAME] [--lengths=0:10] [--prompt=TEXT]"""

from jaxformer.cli import run_eval

if __name__ == "__main__":
    run_eval()
