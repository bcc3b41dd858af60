"""A hub id that the catalogue does not have: its config, fetched with huggingface_hub where installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from specmodel.errors import InputError

if TYPE_CHECKING:
    from specmodel.model import Model

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_BESIDE = ("hf_quant_config.json", "model.safetensors.index.json")


def looks_like_id(text: str) -> bool:
    """Whether a text has the form owner/name and ends like no file.

    >>> looks_like_id("acme/demo-8b"), looks_like_id("configs/demo.json"), looks_like_id("demo-8b")
    (True, False, False)
    """
    return bool(_ID.fullmatch(text)) and not text.endswith((".json", ".gguf", ".safetensors"))


def fetch(hub_id: str) -> Model:
    """The model of a hub id: config.json, and where they exist its quantisation file and index.

    No weight is downloaded. The endpoint and the token are huggingface_hub's own (HF_ENDPOINT, HF_TOKEN).

    Raises
    ------
    InputError
        If huggingface_hub is not installed, the hub cannot be reached or the id is unknown there.
    """
    try:
        from huggingface_hub import errors, hf_hub_download  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        allowed = (
            "not in the catalogue and no such folder; to fetch its config.json from the hub: "
            "pip install 'specmodel[hub]'"
        )
        raise InputError("model", hub_id, allowed) from None
    from specmodel.readers import files

    try:
        config = Path(hf_hub_download(hub_id, "config.json"))
        for name in _BESIDE:
            try:
                hf_hub_download(hub_id, name)
            except errors.LocalEntryNotFoundError:
                raise
            except errors.EntryNotFoundError:
                continue
    except errors.RepositoryNotFoundError:
        allowed = "not in the catalogue, and the hub has no such model (or not without a token)"
        raise InputError("model", hub_id, allowed) from None
    except errors.LocalEntryNotFoundError:
        raise InputError("model", hub_id, "not in the catalogue, and the hub cannot be reached") from None
    except errors.EntryNotFoundError:
        raise InputError("model", hub_id, "the hub has this model, without a config.json") from None
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise InputError("model", hub_id, f"cannot be fetched from the hub: {reason}") from None
    return files.read(config.parent, hub_id.split("/")[-1])
