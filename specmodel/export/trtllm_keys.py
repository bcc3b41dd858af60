"""TensorRT-LLM's speculative_config: what its keys may hold, and what `draft_len_schedule` means by release.

Its keys have meant two things. From pull request 8194 (November 2025) they were LOWER bounds of the batch; pull
request 10860, first released in 1.3.0rc8 (March 2026), made them UPPER bounds, with speculation off above the
largest. The same file parses under both and does different things. 1.2.0rc3 is taken as the first release with the
key: 1.2.0rc2 came out eleven days before the first of the two.
"""

from __future__ import annotations

from collections.abc import Mapping

from specmodel.errors import InputError, unknown_name
from specmodel.export.settings import is_number
from specmodel.export.versions import Version, release

NEWEST = "1.4.0rc4"
LOWER_FROM = release("1.2.0rc3")
UPPER_FROM = release("1.3.0rc8")
DOCUMENTED_FROM = release("1.3.0rc27")  # what today's keys and words were read in
PARD_FROM = release("1.3.0rc7")  # pull request 11438
FILE = "speculative.yaml"
SECTION = "speculative_config"
TABLE = "draft_len_schedule"
OPEN_END = 2**20  # an upper bound for a last level that has none: no server batches a million requests

TYPES = (
    "Eagle3",
    "Eagle",
    "MTP",
    "NGram",
    "DraftTarget",
    "Draft_Target",
    "PARD",
    "DFlash",
    "DSpark",
    "SA",
    "Lookahead",
    "User_Provided",
    "SaveState",
    "AUTO",
    "Medusa",
)
TODAY = {"Eagle": "Eagle3", "DraftTarget": "Draft_Target"}  # other spellings of a word
OLD_BACKEND = ("Medusa", "Lookahead")
TREES = ("Eagle3", "MTP")
OWN = ("decoding_type", "max_draft_len", "speculative_model", TABLE, "max_concurrency")
OWN_TREE = ("use_dynamic_tree", "dynamic_tree_max_topK", "max_total_draft_tokens")
ALIASES = {"speculative_model_dir": "speculative_model"}

OPTIONS: Mapping[str, str] = {
    "acceptance_rate_window_size": "whole",
    "acceptance_rate_threshold": "number",
    "acceptance_window": "whole",
    "acceptance_length_threshold": "number",
    "use_rejection_sampling": "switch",
    "load_format": "text",
    "eagle3_layers_to_capture": "list",
    "eagle3_one_model": "switch",
    "eagle_choices": "list",
    "greedy_sampling": "switch",
    "posterior_threshold": "number",
    "sa_config": "mapping",
    "use_relaxed_acceptance_for_thinking": "switch",
    "relaxed_topk": "whole",
    "relaxed_delta": "number",
    "use_mtp_vanilla": "switch",
    "max_matching_ngram_size": "number",
    "is_keep_all": "switch",
    "is_use_oldest": "switch",
    "is_public_pool": "switch",
    "enable_global_pool": "switch",
    "mask_token_id": "whole",
    "block_size": "whole",
    "markov_rank": "whole",
    "enable_confidence_scheduling": "switch",
    "confidence_cost_table_path": "text",
    "confidence_min_predicted_gain": "number",
    "max_window_size": "whole",
    "max_verification_set_size": "whole",
    "num_medusa_heads": "whole",
    "medusa_choices": "list",
}
_KINDS = {"whole": int, "number": (int, float), "switch": bool, "text": str, "list": list, "mapping": dict}


def version_of(text: str | None) -> Version | None:
    """The release; None for the newest form read."""
    return None if text is None else release(text)


def upper_bounds(version: Version | None) -> bool:
    """Whether the keys of `draft_len_schedule` are upper bounds in this release."""
    return version is None or version >= UPPER_FROM


def check_option(name: str, value: object) -> None:
    if name not in OPTIONS:
        raise unknown_name(f"{SECTION} key", name, (*OWN, *OWN_TREE, *OPTIONS))
    kind = OPTIONS[name]
    fits = isinstance(value, _KINDS[kind]) and (kind == "switch" or not isinstance(value, bool))  # type: ignore[arg-type]
    if not fits or (kind == "number" and not is_number(value)):
        raise InputError(name, value, f"must be a {kind}")


def lossy_keys(section: Mapping[str, object]) -> tuple[str, ...]:
    """Relaxed and typical acceptance."""
    found = []
    if section.get("use_relaxed_acceptance_for_thinking") is True:
        found.append("use_relaxed_acceptance_for_thinking")
    if section.get("greedy_sampling") is False:
        found.append("greedy_sampling")
    if section.get("posterior_threshold") is not None:
        found.append("posterior_threshold")
    return tuple(found)
