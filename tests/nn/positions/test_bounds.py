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


class Reals(PositionEncoding):
    """Declares to take positions between whole ones."""

    continuous = True


def test_random_reals_are_for_encodings_that_declare_them():
    reals = {"model.position.source.kind": "random_float"}
    check_bounds(config(0, **reals | {"model.position.kind": f"{__name__}:Reals"}))
    pattern = {"model.position.kind": "none", "model.layer_pattern": "alibi, none"}
    check_bounds(config(0, **reals | pattern | {"model.position.options": ""}))
    with pytest.raises(UserError, match=r"source\.kind: is random_float, .*Short does not declare"):
        check_bounds(config(0, **reals))


def test_xpos_ends_before_its_factors_do():
    xpos = {"model.position.kind": "xpos", "model.position.options": ""}
    short = xpos | {"model.position.xpos.scale_base": 0.17}
    check_bounds(config(0, **xpos))
    with pytest.raises(UserError, match=r"is xpos, which has 18 ids, but data\.length = 20"):
        check_bounds(config(0, **short))
