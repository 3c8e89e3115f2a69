"""A batch through whichever architecture it was made for."""

from collections.abc import Mapping, Sequence

import jax

from jaxformer.models.decoder import Decoder
from jaxformer.models.encoder import Encoder
from jaxformer.models.encoder_decoder import EncoderDecoder
from jaxformer.models.lstm import Lstm
from jaxformer.models.output import Output
from jaxformer.nn.dropout import RowKey
from jaxformer.nn.positions.sources import give_ids


def forward(
    model: Decoder | Encoder | EncoderDecoder | Lstm,
    batch: Mapping[str, jax.Array],
    *,
    key: RowKey | jax.Array | None = None,
    capture: Sequence[str] = (),
) -> Output:
    """Runs the model on the arrays of a batch that are its inputs.

    All batches have tokens, segment_ids and positions [B, L]; those of an encoder-decoder also
    source, source_segment_ids and source_positions [B, S]; those of a prefix language model also
    prefix bool[B, L]. The model's position source gives them their ids here: a key is the step's,
    in training; without one this is an evaluation, and `rows` int32[B] numbers its examples.
    """
    key = RowKey.of(key, len(batch["tokens"]))
    batch = give_ids(model.config, batch, key)
    tokens_BL, segment_ids_BL, positions_BL = (
        batch[name] for name in ("tokens", "segment_ids", "positions")
    )
    if isinstance(model, EncoderDecoder):
        return model(
            batch["source"],
            tokens_BL,
            batch["source_segment_ids"],
            segment_ids_BL,
            batch["source_positions"],
            positions_BL,
            key=key,
            capture=capture,
        )
    if isinstance(model, Encoder):
        return model(tokens_BL, segment_ids_BL, positions_BL, key=key, capture=capture)
    return model(
        tokens_BL,
        segment_ids_BL,
        positions_BL,
        key=key,
        capture=capture,
        prefix=batch.get("prefix"),
    )
