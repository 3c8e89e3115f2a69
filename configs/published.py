"""Fine-tunes a folder of the Hugging Face library, --config=configs/published.py:FOLDER[@HEAD].

The model is the folder's and starts from all of its parameters; docs/interop.md says which can be
read. @sequence and @token put a new head of classes on an encoder. --config.data.path=FILE names
the data, --config.train.freeze="('embedding/*',)" what stays as it is.
"""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from configs import base
from jaxformer.errors import UserError
from jaxformer.interop import open_folder, run_config

BODY = ("embedding/*", "embedding_norm/*", "position/*", "layers/*", "final_norm/*")


def get_config(argument: str) -> ConfigDict:
    path, _, head = argument.partition("@")
    if head not in ("", "sequence", "token"):
        raise UserError("--config", f"ends in @{head}", "heads are @sequence and @token")
    folder = open_folder(Path(path))
    words, tokenizer = folder.words, Path(path) / "tokenizer.json"
    if words is None or not tokenizer.exists():
        raise UserError(str(path), "has no tokenizer.json", "training takes its tokenizer from one")
    c: Any = base.get_config()
    made = run_config(folder.config, add_bos=words.add_bos, add_eos=words.add_eos)
    m: Any = ConfigDict(made.model.to_dict())
    c.model = m
    c.objective.kind = made.objective.kind
    c.train.init_from, c.train.init_paths = f"hf:{path}", ("*",)
    if head:
        m.tie_embeddings = True
        m.head_bias = m.head.transform = False
        m.head.kind, m.head.num_classes = head, 0
        c.objective.kind = f"{head}_classification"
        names = {name.split("/")[0] for row, _ in folder.rows for name in row.paths}
        c.train.init_paths = tuple(glob for glob in BODY if glob.split("/")[0] in names)
    is_text = c.objective.kind in ("causal_lm", "masked_lm")
    c.data.source = "text" if is_text else "jsonl"
    c.data.length, c.data.pack = made.data.length, is_text
    c.data.add_bos, c.data.add_eos = words.add_bos, words.add_eos
    c.data.tokenizer.kind, c.data.tokenizer.path = "file", str(tokenizer)
    c.schedule.kind, c.schedule.peak_value, c.schedule.warmup_steps = "linear", 5e-5, 100
    c.train.num_epochs, c.train.batch_size = 3.0, 16
    return c
