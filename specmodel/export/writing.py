"""Configurations for any engine: written, read back, and only then handed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specmodel.export import llamacpp, sglang, trtllm, trtllm_reading, vllm
from specmodel.export.settings import EngineConfig, Reading, Request, Written
from specmodel.export.words import engine_id

_Writer = Callable[[Request], Written]
_Reader = Callable[[str, str | None, Mapping[str, str] | None], Reading]
_SYNTAX: dict[str, tuple[_Writer, _Reader]] = {
    "vllm": (vllm.write, vllm.read),
    "sglang": (sglang.write, sglang.read),
    "tensorrt-llm": (trtllm.write, trtllm_reading.read),
    "llama.cpp": (llamacpp.write, llamacpp.read),
}


def write(asked: Request) -> EngineConfig:
    """The configuration that an engine of that version reads as what was asked.

    What the engine cannot express (a schedule, mostly) is left out and said in the notes; what would be refused by
    the engine is refused here.

    Raises
    ------
    InputError
        If the engine, in this version, lacks the method, a key or the form asked for.
    RuntimeError
        If our own reader finds something else in it: a fault of this program, never of the request.
    """
    writer, _ = _SYNTAX[asked.engine]
    written = writer(asked)
    found = read(written.config)
    wrong = written.meant.differences(found)
    if wrong:
        raise RuntimeError(
            f"the {asked.engine} configuration does not read back the same: {', '.join(wrong)}"
        )
    return written.config


def read(config: EngineConfig) -> Reading:
    """What a written configuration says."""
    files = {} if config.config_file is None else {config.config_file: config.config}
    return read_config(config.command, config.engine, version=config.version, files=files)


def read_config(
    text: str, engine: str, *, version: str | None = None, files: Mapping[str, str] | None = None
) -> Reading:
    """What a configuration says: a whole command, or its speculative part alone.

    Parameters
    ----------
    text : str
        vLLM: a command, or the JSON of ``--speculative-config``. SGLang: flags, a command, or the adaptive file.
        TensorRT-LLM: a command or the YAML file. llama.cpp: flags or a command.
    engine : str
        vllm, sglang, tensorrt-llm or llama.cpp.
    version : str, optional
        Release or build; the newest form read by default.
    files : mapping, optional
        Contents of the files that a command names.

    Raises
    ------
    InputError
        If the engine, in this version, would not take it.
    """
    _, reader = _SYNTAX[engine_id(engine)]
    return reader(text, version, files)
