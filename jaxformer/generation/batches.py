"""Many prompts or sources, batch by batch: what each gives depends on nothing but itself."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from jaxformer.generation.generate import generate
from jaxformer.generation.inputs import for_decoding, room
from jaxformer.generation.sampling import Sampler
from jaxformer.generation.text import Tokenizer, pad


class Output(NamedTuple):
    """What was generated: the text alone, without its prompt, and how it ended."""

    text: str
    num_tokens: int  # the end token included
    logprob: float  # of the model's own distribution, in nats
    ended: bool  # by the end token, else by the most tokens that it may have


def generate_batches(
    model: nnx.Module,
    tokenizer: Tokenizer,
    prompts: Sequence[np.ndarray],
    rows: Sequence[int],
    *,
    max_new_tokens: int,
    sampler: Sampler,
    key: jax.Array,
    batch_size: int,
    prefix: bool = False,
    repetition_penalty: float = 1.0,
) -> Iterator[tuple[list[int], list[Output]]]:
    """Continues `prompts[row]`, or answers that source, for each of `rows`, in batches.

    Batches hold prompts of like length, and a last one is filled up, so that few shapes are
    compiled. Draws go by the row, so that neither the batch size nor which rows are left changes
    them. Raises UserError as `generate` does; a prompt ends where a learned table does.
    """
    config = model.config  # pyright: ignore[reportAttributeAccessIssue]
    both = config.architecture == "encoder_decoder"
    model = for_decoding(model)
    shortest_first = sorted(rows, key=lambda row: len(prompts[row]))
    for start in range(0, len(rows), batch_size):
        batch = shortest_first[start : start + batch_size]
        missing = min(batch_size, len(rows)) - len(batch)  # filled with rows that end at once
        filled = batch + batch[-1:] * missing
        tokens_BP, lengths_B = pad([prompts[row] for row in filled])
        begins_B = np.ones_like(lengths_B) if both else lengths_B
        limits = [max(1, room(config, int(n), max_new_tokens)) for n in begins_B]
        limits_B = np.array(limits[: len(batch)] + [1] * missing)
        real_BP = (np.arange(tokens_BP.shape[1]) < lengths_B[:, None]).astype(np.int32)
        out = generate(
            model,
            None if both else tokens_BP,
            None if both else lengths_B,
            source_BS=tokens_BP if both else None,
            source_segment_ids=real_BP if both else None,
            max_new_tokens=limits_B,
            sampler=sampler,
            key=key,
            eos_id=tokenizer.eos_id,
            bos_id=tokenizer.start_id,
            pad_id=tokenizer.pad_id,
            rows_B=np.array(filled),
            prefix=prefix,
            repetition_penalty=repetition_penalty,
        )
        outputs = []
        for index, row in enumerate(batch):
            new = out.tokens[index, : out.lengths[index]]
            before = np.zeros(0, np.int32) if both else prompts[row]
            outputs.append(
                Output(
                    _continuation(tokenizer, before, new),
                    len(new),
                    float(out.logprobs[index].astype(np.float64).sum()),
                    bool(new[-1] == tokenizer.eos_id),
                )
            )
        yield batch, outputs


def _continuation(tokenizer: Tokenizer, before: np.ndarray, new: np.ndarray) -> str:
    """The text of new tokens, with the space that may part it from the prompt."""
    whole, start = tokenizer.decode(np.concatenate([before, new])), tokenizer.decode(before)
    return whole[len(start) :] if whole.startswith(start) else tokenizer.decode(new)
