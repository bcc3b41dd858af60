"""Requests and schedules that the tests of the export share."""

from __future__ import annotations

from specmodel.export import Request, Schedule

HEAD = "acme/demo-8b-eagle3"
FALLING = Schedule.from_triples([[1, 8, 4], [9, 32, 2], [33, 512, 0]])


def asked(engine: str, **changed: object) -> Request:
    """An EAGLE-3 deployment on that engine, but for what is changed."""
    plain: dict[str, object] = {
        "engine": engine,
        "target": "acme/demo-8b",
        "method": "eagle3",
        "draft_model": HEAD,
    }
    return Request(**(plain | changed))  # type: ignore[arg-type]
