"""An encoding of the user's own with too few ids for the data."""

import dataclasses

import pytest

from configs import base
from jaxformer.config import RunConfig
from jaxformer.errors import UserError
from jaxformer.nn.positions import PositionEncoding, check_bounds
from tests.builders import change


class Short(PositionEncoding):
    """Has as many ids as its options say."""

    @classmethod
    def bound(cls, cfg):
        return int(cfg.position.options)


def config(bound, **changes):
    own = {"model.position.kind": f"{__name__}:Short", "model.position.options": str(bound)}
    return RunConfig.from_config_dict(change(base.get_config(), own | changes))


def test_the_longest_row_needs_its_ids():
    check_bounds(config(20))  # data.length
    check_bounds(config(0))  # without end
    words = r"model\.position\.kind: is .*:Short, which has 19 ids, but data\.length = 20 needs 20"
    with pytest.raises(UserError, match=words):
        check_bounds(config(19))


@pytest.mark.parametrize(("kind", "needs"), [("offset", 64), ("randomized", 64), ("abacus", 120)])
def test_a_source_may_need_more(kind, needs):
    changes = {"model.position.source.kind": kind}
    check_bounds(config(needs, **changes))
    with pytest.raises(UserError, match=f"needs {needs}"):
        check_bounds(config(needs - 1, **changes))


def test_layers_of_a_pattern_count_too():
    cfg = config(19)
    model = dataclasses.replace(cfg.model, layer_pattern=f"none, {__name__}:Short")
    position = dataclasses.replace(model.position, kind="none")
    with pytest.raises(UserError, match="which has 19 ids"):
        check_bounds(dataclasses.replace(cfg, model=dataclasses.replace(model, position=position)))
