"""Text, line by line: metrics and log lines of every engine, told apart by what stands in the line."""

from __future__ import annotations

import re

from specmodel.evidence import vllm
from specmodel.evidence.checks import NothingToReadError, UnusableError
from specmodel.evidence.collector import Collector
from specmodel.evidence.llamacpp import ServerLog
from specmodel.evidence.prometheus import PREFIXES, Metrics
from specmodel.evidence.sglang import DecodeLog
from specmodel.evidence.stream import Source

_HINT = re.compile(
    r"SpecDecoding metrics:|Speculative metrics:|accept len:|Adaptive spec params"
    r"|draft acceptance|acc per pos|#gen drafts|^\s*n_(?:draft|predict|accept)"
    r"|^\s*(?:Acceptance rate \(%\)|Drafts:|Draft tokens:|Accepted tokens:|Position \d)"
)


class TextReader:
    """Takes lines of any number of files; metrics of several files are differenced at the end."""

    def __init__(self, collector: Collector, separate: bool = False) -> None:
        self._collector = collector
        self._metrics = Metrics(collector, separate)
        self._sglang = DecodeLog()
        self._llamacpp = ServerLog(collector)
        self._console: dict[str, float] = {}

    def read(self, source: Source) -> None:
        """Go through one source."""
        for block in source.blocks():
            for number, text in enumerate(block.lines, start=block.first):
                if text.startswith(PREFIXES):
                    self._metrics.line(source.name, number, text)
                elif _HINT.search(text):
                    self._line(text, source.name, number)
        if self._console:
            self._close_console(source.name, number)

    def _line(self, text: str, source: str, number: int) -> None:
        collector = self._collector
        try:
            field = vllm.console_field(text)
            if field is not None:
                if field[0].startswith("Acceptance rate") and self._console:
                    self._close_console(source, number)
                self._console[field[0]] = field[1]
                return
            part = vllm.log_line(text, source, number, collector)
            if part is not None:
                collector.good()
                collector.add(part, "intervals")
            elif self._sglang.line(text, source, number) or self._llamacpp.line(text, source, number):
                collector.good()
        except NothingToReadError:
            collector.good()
        except ValueError as error:  # a number of thousands of digits, besides what the readers name
            collector.bad(source, number, str(error)[:200])

    def _close_console(self, source: str, number: int) -> None:
        fields, self._console = self._console, {}
        try:
            part = vllm.console_part(fields, source, number, self._collector)
        except UnusableError as error:
            self._collector.bad(source, number, str(error))
            return
        self._collector.good()
        self._collector.add(part)

    def finish(self) -> None:
        """Turn what was collected into parts."""
        self._metrics.finish()
        self._sglang.finish(self._collector)
        self._llamacpp.finish()
