"""Options that several commands share, as bundles: functions of options whose answer a command takes as one argument.

    @bundled(setting=describe, acceptance=law)
    def breakeven(setting: Deployment, acceptance: Acceptance | None, ctx: options.Ctx = 1024) -> None: ...

gives `breakeven` the options of `describe` and `law` beside its own. A bundle runs before the command, so what it
refuses is refused first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

from specmodel.errors import InputError

Bundle = Callable[..., Any]

# Names that stand in annotations for type checkers alone; no option has one of these types.
_UNSEEN: dict[str, Any] = dict.fromkeys(("Acceptance", "Deployment", "Device"), object)


def bundled(**bundles: Bundle) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Fill the arguments of these names from bundles, and add the bundles' options to the command's own."""

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        own = _options(command)
        shared = {name: _options(bundle) for name, bundle in bundles.items()}

        @wraps(command)
        def run(**given: Any) -> None:
            built = {
                name: bundle(**{option: given.pop(option) for option in shared[name]})
                for name, bundle in bundles.items()
            }
            command(**built, **given)

        every = {option: one for part in shared.values() for option, one in part.items()}
        every |= {name: one for name, one in own.items() if name not in bundles}
        if "as_json" in every:  # last on the help page
            every["as_json"] = every.pop("as_json")
        run.__signature__ = Signature(list(every.values()))  # type: ignore[attr-defined]
        run.__annotations__ = {name: one.annotation for name, one in every.items()}
        return run

    return with_options


def without(bundle: Bundle, *names: str) -> Bundle:
    """A bundle that does not offer some of its options."""
    left = {name: one for name, one in _options(bundle).items() if name not in names}

    def run(**given: Any) -> Any:
        return bundle(**given)

    return _signed(run, left)


def on_request(bundle: Bundle, key: str) -> Bundle:
    """A bundle that answers None unless its option `key` is given; any other is then refused: it would change nothing."""
    options = _options(bundle)
    options[key] = options[key].replace(default=None)

    def run(**given: Any) -> Any:
        if given[key] is not None:
            return bundle(**given)
        for name, value in given.items():
            if value != options[name].default:
                raise InputError(name, value, f"changes nothing without --{key}")
        return None

    return _signed(run, options)


def _signed(run: Bundle, options: dict[str, Parameter]) -> Bundle:
    run.__signature__ = Signature(list(options.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: one.annotation for name, one in options.items()}
    return run


def _options(command: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters by name, keyword-only, their annotations evaluated."""
    types = get_type_hints(command, localns=_UNSEEN, include_extras=True)
    return {
        name: one.replace(kind=Parameter.KEYWORD_ONLY, annotation=types[name])
        for name, one in signature(command).parameters.items()
    }
