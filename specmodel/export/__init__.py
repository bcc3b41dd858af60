"""A decision in an engine's own words: configurations for vLLM, SGLang, TensorRT-LLM and llama.cpp.

Every configuration is read back by our own reader before it is handed out. The readers take other people's
configurations as well.
"""

from __future__ import annotations

from specmodel.export.reduction import Reduction, reduce_levels
from specmodel.export.schedule import Level, Schedule, first_batches
from specmodel.export.settings import EngineConfig, Reading, Request, Tree
from specmodel.export.sweep import Sweep, sweep
from specmodel.export.words import engine_word, engines_with
from specmodel.export.writing import read, read_config, write

__all__ = [
    "EngineConfig",
    "Level",
    "Reading",
    "Reduction",
    "Request",
    "Schedule",
    "Sweep",
    "Tree",
    "engine_word",
    "engines_with",
    "first_batches",
    "read",
    "read_config",
    "reduce_levels",
    "sweep",
    "write",
]
