"""Published runs predicted: target, draft, machine, batch, context and the row's own acceptance -> speedup.

The same passes, engine times and drafts as everywhere; only the tokens per round are the row's own. Where a plan
would refuse, a row is predicted all the same and says what was assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from specmodel import catalog
from specmodel.acceptance import tokens_per_round
from specmodel.deployment import Deployment, deploy
from specmodel.engine import EngineTime
from specmodel.errors import InputError
from specmodel.model import Model
from specmodel.published import drafts as published_drafts
from specmodel.published import names as published_names
from specmodel.published.table import PublishedRun
from specmodel.roofline import Datasheet
from specmodel.speculation import RoundParts, Speculation

DEFAULT_CONTEXT = 512
_USABLE = 0.85  # of the memory, where the number of GPUs has to be guessed from what fits
SERVING = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")


@dataclass(frozen=True, slots=True)
class Situation:
    """One row, ready to be timed.

    Attributes
    ----------
    tokens : float
        Tokens per round, bonus included: the row's own.
    prefill_s : float
        Prefill per decoded token of the whole batch, where the rate covers whole requests. [s]
    said : tuple of str
        What had to be read into the row.
    """

    run: PublishedRun
    speculation: Speculation
    k: int
    batch: float
    context: float
    tokens: float
    prefill_s: float
    said: tuple[str, ...]

    @property
    def deployment(self) -> Deployment:
        return self.speculation.deployment

    def parts(self) -> tuple[float, RoundParts]:
        """Kernels of a plain step [s], and of a round."""
        plain = float(self.deployment.pass_time(self.batch, self.context).seconds)
        return plain, self.speculation.parts(self.k, self.batch, self.context, tokens=self.tokens)

    def speedup(self) -> float:
        """Predicted gain over plain decoding."""
        plain = float(self.speculation.plain_seconds(self.batch, self.context))
        taken = self.speculation.round_time(self.k, self.batch, self.context, tokens=self.tokens)
        return (plain + self.prefill_s) / (float(taken.seconds) / self.tokens + self.prefill_s)

    def ideal(self) -> float:
        """The textbook formula E / (1 + k c): no engine, a verification as long as a plain step.

        The draft's cost c is that of its kernels at datasheet rates, over a plain step's.
        """
        sheet = replace(self.deployment, timing=Datasheet(self.deployment.device))
        plain = sheet.pass_time(self.batch, self.context).seconds
        parts = replace(self.speculation, deployment=sheet).parts(
            self.k, self.batch, self.context, tokens=self.tokens
        )
        drafted = sum(float(seconds) * float(count) for seconds, count, _ in parts.groups)
        return self.tokens / (1.0 + drafted / float(plain))


def situation(run: PublishedRun, engines: Mapping[str, EngineTime] | None = None) -> Situation:
    """What a row describes.

    Parameters
    ----------
    engines : mapping of id to EngineTime, optional
        Times to use instead of those that ship.

    Raises
    ------
    InputError
        For a row that cannot be modelled; the message is the reason.
    """
    said: list[str] = []
    for fault in run.faults:
        raise InputError("row", run.row, fault)
    engine, read = published_names.engine(run.text("engine"))
    said += read
    model = _model(run, said)
    deployment = _deployment(run, model, engine, said, engines)
    named = published_drafts.NamedDraft(
        run.text("method"), run.text("draft"), run.count("k"), run.count("tree_nodes")
    )
    drafter, k, read = published_drafts.drafter(named, model, deployment.split)
    said += read
    batch, context = run.number("batch") or 1.0, run.number("context")
    if run.number("batch") is None:
        said.append("batch not given: taken as 1")
    if context is None:
        context = float(DEFAULT_CONTEXT)
        said.append(f"context not given: taken as {DEFAULT_CONTEXT}")
    tokens = _tokens(run, engine, k, said)
    speculation = Speculation(deployment, drafter)
    prefill = _prefill_s(run, deployment, batch, said)
    return Situation(run, speculation, k, batch, context, tokens, prefill, tuple(said))


def _model(run: PublishedRun, said: list[str]) -> Model:
    name = run.text("target_model")
    found, read = published_names.model(name)
    said += read
    weights = published_names.weight_format(run.text("dtype"), found.precision.weights.name)
    kv = published_names.weight_format(run.text("kv_dtype"), found.precision.kv.name)
    return published_names.model(name, weights, kv)[0]


def _deployment(
    run: PublishedRun,
    model: Model,
    engine: str,
    said: list[str],
    engines: Mapping[str, EngineTime] | None,
) -> Deployment:
    device = published_names.device(run.text("gpu"))
    gpus = run.count("num_gpus") or published_names.gpus_in_name(run.text("gpu"))
    if gpus is None:
        gpus = 1
        while model.weight_bytes > _USABLE * device.memory_bytes * gpus and gpus < 1024:
            gpus *= 2
        said.append(f"number of GPUs not given: taken as {gpus}, the fewest that hold the weights")
    times = catalog.engine(engine) if engines is None else engines[engine]
    for tp in _layouts(gpus):
        try:
            found = deploy(model, device, tp=tp, engine=times)
            found.pass_time(1, 1)
        except InputError:
            continue
        if tp != gpus:
            said.append(f"target on {tp} of {gpus} GPUs: it does not divide over all")
        return found
    raise InputError("num_gpus", gpus, f"{model.name} does not divide over them")


def _layouts(gpus: int) -> list[int]:
    return [tp for tp in range(gpus, 0, -1) if gpus % tp == 0]


def _tokens(run: PublishedRun, engine: str, k: int, said: list[str]) -> float:
    """Tokens per round: as printed, from survival by position, borrowed, or from a rate."""
    printed = run.number("accept_len")
    if printed is not None:
        if printed < 1.0:
            raise InputError("accept_len", printed, "below 1: tokens per round count the bonus token")
        return printed
    survival = run.tag("per-position acceptance")
    if survival is not None:
        rates = [float(rate) for rate in re.findall(r"\d*\.\d+", survival)]
        said.append("tokens per round from the acceptance by position")
        return 1.0 + sum(rates[:k])
    borrowed = run.tag("proxy_accept_len")
    if borrowed is not None:
        said.append("tokens per round borrowed from another source, as the note says")
        return max(1.0, float(borrowed))
    rate = run.number("accept_rate")
    if rate is None:
        raise InputError("accept_len", "", "no acceptance is given for this row")
    share = rate / 100.0 if rate > 1.0 else rate
    if engine in SERVING:
        said.append("accept_rate read as accepted over drafted, as this engine reports it")
        return 1.0 + share * k
    said.append("accept_rate read as the chance of a tested token")
    return float(tokens_per_round(share, k))


def _prefill_s(run: PublishedRun, deployment: Deployment, batch: float, said: list[str]) -> float:
    """Time of all prompts of the batch per token decoded: in steady state they interrupt the decoding."""
    if run.lengths is None:
        return 0.0
    prompt, answer = run.lengths
    said.append(f"the rate is of whole requests: {prompt:g} tokens of prompt for {answer:g} of answer")
    # On average a prompt token attends to half of the prompt.
    return batch * float(deployment.pass_time(1, prompt / 2.0, prompt).seconds) / answer
