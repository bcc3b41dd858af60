"""Published speedups -> engine times: few constants, shared between engines as far as the rows do not speak against it.

Every engine's constants are drawn to those of its launch style, and these to a prior. So an engine with few rows, or
none, takes what its style suggests, and a constant that its rows cannot settle stays where it was. Rows are weighed so
that every pair of source and engine counts the same, and large residuals do not decide (soft L1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from specmodel.engine import EngineTime
from specmodel.errors import InputError
from specmodel.published.runs import Situation
from specmodel.speculation import RoundParts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MS, US = 1e-3, 1e-6
_NO_PASS = (0.0, 0.0, 0.0)
SOFT = 0.05
SOURCE_ROWS = (
    20.0  # what one pair of source and engine weighs, in rows that cannot disagree with the prior by chance
)
ENGINE_SPREAD, STYLE_SPREAD = (
    0.8,
    0.7,
)  # natural logarithm: of an engine around its style, of a style around its prior


@dataclass(frozen=True, slots=True)
class Style:
    """Engines that launch and schedule alike, and the prior centre of each of their constants. [s]"""

    engines: tuple[str, ...]
    centres: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one engine beside its rows: centre and spread (ln) of constants, and constants it lacks."""

    framework: str = ""
    centres: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()


STYLES: Mapping[str, Style] = {
    "captured": Style(
        ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "magicdec"),
        {
            "target_pass_s": 0.4 * MS,
            "gpu_pass_s": 0.06 * MS,
            "draft_pass_s": 0.1 * MS,
            "lookup_s": 0.2 * MS,
            "round_s": 0.9 * MS,
            "tree_s": 0.9 * MS,
            "sequence_s": 5 * US,
            "position_s": 1 * US,
        },
    ),
    "launched": Style(
        ("transformers", "sequoia"),
        {
            "target_layer_s": 0.75 * MS,
            "draft_layer_s": 0.3 * MS,
            "draft_pass_s": 0.5 * MS,
            "round_s": 1.5 * MS,
            "tree_s": 1.0 * MS,
        },
    ),
}
# Plain steps in absolute time: vLLM 7.07 ms (issue 20780) and 5.9 + 1.2 ms (arXiv:2601.11580, its simulator) where
# kernels take 6.3; SGLang 5.24 ms on H200 where they take 4.9 (SpecBundle); MagicDec's T_AR; Sequoia 24.2 ms for 32
# layers and 31.3 for 40. vLLM's draft passes one after another: 0.7-1.0 ms (issue 20780), 2.6 ms with 28 layers
# (arXiv:2601.11580, Fig. 4); Sequoia's 0.5 ms for 2 layers and about 6 for 24. TensorRT-LLM captures draft and
# verification in one graph: what rounds of DeepSeek-R1 (FP4, 8 B200, MTP 1-5, its tech blog 1) take beside a plain step is
# proportional to k.
ENGINES: Mapping[str, Known] = {
    "vllm": Known(
        "vllm",
        {
            "target_pass_s": (0.75 * MS, 0.2),
            "draft_launch_s": (0.8 * MS, 0.3),
            "draft_layer_s": (0.06 * MS, 0.1),
        },
        ("draft_pass_s",),
    ),
    "sglang": Known(
        "sglang",
        {
            "target_pass_s": (0.35 * MS, 0.2),
            "gpu_pass_s": (0.08 * MS, 0.3),
            "draft_launch_s": (0.33 * MS, 0.15),
        },
        ("draft_pass_s",),
    ),
    "tensorrt-llm": Known("trtllm", {"round_s": (0.05 * MS, 0.5)}),
    "llama.cpp": Known("llama.cpp"),
    "magicdec": Known(
        "nccl",
        {"target_pass_s": (0.1 * MS, 0.5), "draft_pass_s": (0.35 * MS, 0.3), "round_s": (1.0 * MS, 0.3)},
        ("tree_s", "lookup_s", "gpu_pass_s"),
    ),
    "transformers": Known(
        "",
        {
            "target_layer_s": (0.75 * MS, 0.1),
            "draft_layer_s": (0.75 * MS, 0.2),
            "draft_pass_s": (1.5 * MS, 0.5),
        },
    ),
    "sequoia": Known(
        "",
        {"target_layer_s": (0.75 * MS, 0.1), "draft_layer_s": (0.25 * MS, 0.2)},
        ("tree_s", "draft_pass_s"),
    ),
}


@dataclass(frozen=True, slots=True)
class Samples:
    """Rows in arrays: what the kernels take, before any engine time, and what was measured."""

    source: NDArray[np.str_]
    engine: NDArray[np.str_]
    plain_s: Floats
    round: RoundParts
    batch: Floats
    layers: Floats
    gpus: Floats
    tokens: Floats
    prefill_s: Floats
    speedup: Floats

    def __len__(self) -> int:
        return len(self.speedup)

    def where(self, chosen: NDArray[np.bool_]) -> Samples:
        """The rows of a mask."""
        return Samples(
            self.source[chosen],
            self.engine[chosen],
            self.plain_s[chosen],
            self.round.where(chosen),
            *(
                column[chosen]
                for column in (self.batch, self.layers, self.gpus, self.tokens, self.prefill_s, self.speedup)
            ),
        )


def blank_engines() -> dict[str, EngineTime]:
    """Every engine without any time: whose kernels it runs is all that is kept."""
    return {name: EngineTime(name, name, framework=known.framework) for name, known in ENGINES.items()}


def samples(situations: Sequence[Situation]) -> Samples:
    """Situations, each timed without its engine, as arrays. Rows need a measured speedup."""
    timed = [one.parts() for one in situations]
    rounds = [parts for _, parts in timed]
    # No draft launches more than a first pass and equal later ones.
    groups = [[(*parts.groups, _NO_PASS, _NO_PASS)[at] for parts in rounds] for at in range(2)]
    return Samples(
        np.array([one.run.text("source") for one in situations]),
        np.array([one.deployment.engine.id for one in situations]),
        np.array([plain for plain, _ in timed]),
        RoundParts(
            _floats([parts.verify_s for parts in rounds]),
            _floats([parts.width for parts in rounds]),
            tuple(
                (
                    _floats([g[0] for g in group]),
                    _floats([g[1] for g in group]),
                    _floats([g[2] for g in group]),
                )
                for group in groups
            ),
            _floats([parts.lookups for parts in rounds]),
            _floats([parts.branches for parts in rounds]),
        ),
        _floats([one.batch for one in situations]),
        _floats([one.deployment.layers for one in situations]),
        _floats([one.deployment.tp for one in situations]),
        _floats([one.tokens for one in situations]),
        _floats([one.prefill_s for one in situations]),
        _floats([one.run.number("speedup") or np.nan for one in situations]),
    )


def _floats(values: Sequence[object]) -> Floats:
    return np.array([float(value) for value in values])  # type: ignore[arg-type]  # scalars of any kind


def predicted(rows: Samples, engines: Mapping[str, EngineTime]) -> Floats:
    """Speedups under the given engine times."""
    gains = np.empty(len(rows))
    for name in np.unique(rows.engine):
        chosen = rows.engine == name
        part, times = rows.where(chosen), engines[str(name)]
        plain = times.target_seconds(part.plain_s, layers=part.layers, gpus=part.gpus) + part.prefill_s
        taken = part.round.under(times, batch=part.batch, layers=part.layers, gpus=part.gpus)
        gains[chosen] = plain / (taken.seconds / part.tokens + part.prefill_s)
    return gains


@dataclass(frozen=True, slots=True)
class EngineFit:
    """Engine times from published rows.

    Attributes
    ----------
    engines : mapping of id to EngineTime
        Of every engine; those without rows take their style's.
    styles : mapping
        Constants of each style. [s]
    spread : mapping of (engine, constant) to float
        Standard deviation of the logarithm, rows and priors together.
    predicted : ndarray
        Speedups of the rows fitted.
    """

    engines: Mapping[str, EngineTime]
    styles: Mapping[str, Mapping[str, float]]
    spread: Mapping[tuple[str, str], float]
    predicted: Floats


def fit_published(rows: Samples) -> EngineFit:
    """Constants of all engines from rows with measured speedups.

    Raises
    ------
    InputError
        Where there is no row.
    """
    from scipy.optimize import least_squares

    if not len(rows):
        raise InputError("file", "no rows", "hold a run of an engine with a measured speedup")
    names, centres, pulls = _parameters(sorted(set(map(str, rows.engine))))
    present = sorted({name for name, _ in names if name in ENGINES})
    pairs = [f"{source}|{engine}" for source, engine in zip(rows.source, rows.engine, strict=True)]
    counts = Counter(pairs)
    weights = np.sqrt([SOURCE_ROWS / counts[pair] for pair in pairs])
    measured = np.log(rows.speedup)

    def residuals(values: Floats) -> Floats:
        constants = dict(zip(names, values, strict=True))
        engines = {name: _engine(name, constants) for name in present}
        off = (np.log(predicted(rows, engines)) - measured) / SOFT
        soft = np.sign(off) * np.sqrt(2.0 * (np.sqrt(1.0 + off * off) - 1.0)) * weights
        held = [
            (values[at] - (centre if other is None else values[other])) / spread
            for at, centre, other, spread in pulls
        ]
        return np.concatenate([soft, held])

    found = least_squares(residuals, centres)
    constants = dict(zip(names, found.x, strict=True))
    covariance = np.linalg.pinv(found.jac.T @ found.jac)
    spread = dict(zip(names, np.sqrt(np.diag(covariance)), strict=True))
    styles = {
        name: {key: float(np.exp(constants[name, key])) for key in style.centres}
        for name, style in STYLES.items()
    }
    engines = {
        name: _engine(name, constants) if name in present else _by_style(name, styles) for name in ENGINES
    }
    return EngineFit(
        engines, styles, {key: float(value) for key, value in spread.items()}, predicted(rows, engines)
    )


def _parameters(
    engines: Sequence[str],
) -> tuple[list[tuple[str, str]], Floats, list[tuple[int, float, int | None, float]]]:
    """Names of all logarithms, where they start, and what pulls at each: a fixed centre or another parameter."""
    names: list[tuple[str, str]] = []
    starts: list[float] = []
    pulls: list[tuple[int, float, int | None, float]] = []
    for style_name, style in STYLES.items():
        for key, centre in style.centres.items():
            pulls.append((len(names), float(np.log(centre)), None, STYLE_SPREAD))
            names.append((style_name, key))
            starts.append(float(np.log(centre)))
    shared = {name: at for at, name in enumerate(names)}
    for engine in engines:
        known, style_name = ENGINES[engine], _style_of(engine)
        own = known.centres
        for key in dict.fromkeys((*STYLES[style_name].centres, *own)):
            if key in known.lacks:
                continue
            if key in own:
                centre, spread = float(np.log(own[key][0])), own[key][1]
                pulls.append((len(names), centre, None, spread))
            else:
                centre = float(np.log(STYLES[style_name].centres[key]))
                pulls.append((len(names), centre, shared[style_name, key], ENGINE_SPREAD))
            names.append((engine, key))
            starts.append(centre)
    return names, np.array(starts), pulls


def _style_of(engine: str) -> str:
    return next(name for name, style in STYLES.items() if engine in style.engines)


def _engine(name: str, constants: Mapping[tuple[str, str], float]) -> EngineTime:
    times = {key: float(np.exp(value)) for (engine, key), value in constants.items() if engine == name}
    return EngineTime(name, name, framework=ENGINES[name].framework, **times)  # type: ignore[arg-type]


def _by_style(name: str, styles: Mapping[str, Mapping[str, float]]) -> EngineTime:
    """An engine without rows: its style's constants, and what is known of it."""
    known = ENGINES[name]
    times = {key: value for key, value in styles[_style_of(name)].items() if key not in known.lacks}
    times |= {key: centre for key, (centre, _) in known.centres.items()}
    return EngineTime(name, name, framework=known.framework, **times)  # type: ignore[arg-type]


def leave_one_source_out(rows: Samples) -> Floats:
    """Every row predicted with constants fitted to the other sources only."""
    gains = np.empty(len(rows))
    for source in np.unique(rows.source):
        held = rows.source == source
        if held.all():
            raise InputError("file", str(source), "is the only source: nothing is left to fit to")
        gains[held] = predicted(rows.where(held), fit_published(rows.where(~held)).engines)
    return gains
