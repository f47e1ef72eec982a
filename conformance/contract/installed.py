"""The contract of the vLLM that is installed; made once per process."""

from __future__ import annotations

import functools

from conformance.cache import default_cache
from conformance.contract.rows import Contract
from conformance.surface.inventory import inventory_of, known_path, load
from conformance.surface.model import Inventory
from conformance.surface.sources import open_source
from conformance.target import WrongUse, require_vllm


@functools.cache
def contract_of_installed(generation: str) -> Contract:
    """Return the rows for the installed vLLM and a runner generation.

    They come from the known inventory of that version; one that has none yet is walked, and kept.

    Raises:
        WrongUse: there is no vLLM, or its sources cannot be read.
    """
    return Contract.of(_inventory(), generation)


def _inventory() -> Inventory:
    version = require_vllm().vllm or ""
    try:
        return load(known_path(version))
    except WrongUse:
        return inventory_of(open_source("installed"), default_cache())
