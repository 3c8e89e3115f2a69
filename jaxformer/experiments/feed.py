"""Where the batches of a group come from: a task's sampler, or rows that the host reads."""

from collections.abc import Sequence

import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data import Data
from jaxformer.data.loader import Loader
from jaxformer.data.streams import RowStream
from jaxformer.data.tasks.rows import SampledTask
from jaxformer.experiments.programs import stack

MOST_STEPS = 100  # of a call
MOST_BYTES = 2**26  # of batches that the host has made for a call


class Feed:
    """Batches of all seeds for the steps of a call, `most_steps` at most.

    Of a task with a `sampler` there are none: the programs draw them.
    """

    def __init__(self, configs: Sequence[RunConfig], data: Sequence[Data], step: int = 0):
        cfg, task = configs[0], data[0].task
        self.sampler = task.sampler if isinstance(task, SampledTask) else None
        self.most_steps = min(cfg.train.log_every, MOST_STEPS)
        self._loaders: list[Loader] = []
        if self.sampler is None:
            for c, d in zip(configs, data, strict=True):
                assert not isinstance(d.train, RowStream)  # groups.why_alone
                self._loaders.append(Loader(d.train, cfg.train.batch_size, c.data_seed))
            batch = self._loaders[0].batch(step)
            size = len(data) * sum(rows.nbytes for rows in batch.values())
            self.most_steps = max(1, min(self.most_steps, MOST_BYTES // size))

    def batches(self, step: int, count: int) -> dict[str, np.ndarray]:
        """[N, most_steps, B, …]: those of `count` steps after `step`, the rest is 0."""
        if self.sampler is not None:
            return {}
        by_seed = []
        for loader in self._loaders:
            batches = stack([loader.batch(step + turn) for turn in range(count)])
            missing = (0, self.most_steps - count)
            by_seed.append(
                {n: np.pad(b, [missing] + [(0, 0)] * (b.ndim - 1)) for n, b in batches.items()}
            )
        return stack(by_seed)
