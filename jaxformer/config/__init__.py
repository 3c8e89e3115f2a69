"""Frozen, typed configuration.

`configs/base.py` holds every field with its default and comment; the dataclasses here hold the
types. `RunConfig.from_config_dict` converts strictly (no unknown, missing or mistyped field) and
then checks the fields against one another, so that whatever can be refused is refused before any
device is touched. Errors are `UserError`s that name the field by its path.
"""

from jaxformer.config.data import (
    TASKS,
    AgreementConfig,
    DataConfig,
    TaskConfig,
    TokenizerConfig,
)
from jaxformer.config.mesh import MeshConfig, check_spread, parse_mesh
from jaxformer.config.mixture import MixtureConfig, StreamConfig
from jaxformer.config.model import GATED, LayerSpec, ModelConfig
from jaxformer.config.moe import MoeConfig
from jaxformer.config.objective import (
    DistillationConfig,
    MaskedLmConfig,
    ObjectiveConfig,
    SpanCorruptionConfig,
)
from jaxformer.config.optimizer import MuonConfig, OptimizerConfig, ScheduleConfig
from jaxformer.config.position import RopeConfig, T5Config, XposConfig
from jaxformer.config.run import (
    EmaConfig,
    EvalConfig,
    RunConfig,
    SpikeGuardConfig,
    TrainConfig,
)
from jaxformer.config.section import Section

__all__ = [
    "GATED",
    "TASKS",
    "AgreementConfig",
    "DataConfig",
    "DistillationConfig",
    "EmaConfig",
    "EvalConfig",
    "LayerSpec",
    "MaskedLmConfig",
    "MeshConfig",
    "MixtureConfig",
    "ModelConfig",
    "MoeConfig",
    "MuonConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "RopeConfig",
    "RunConfig",
    "ScheduleConfig",
    "Section",
    "SpanCorruptionConfig",
    "SpikeGuardConfig",
    "StreamConfig",
    "T5Config",
    "TaskConfig",
    "TokenizerConfig",
    "TrainConfig",
    "XposConfig",
    "check_spread",
    "parse_mesh",
]
