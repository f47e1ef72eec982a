"""The patches of a register, rendered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner_under_test.patches.patch import Patch

SCHEMA = "vllm-conformance/patches/1"

_PREFACE = """\
# Patches

What `runner_under_test` rebinds while one of its workers lives, why, and when each patch can go.
This page is generated: `vllm-conformance patches --format markdown > docs/patches.md`.

Patches are applied when the worker is made, before vLLM's worker and runner run, and restored when
it shuts down. `RUNNER_UNDER_TEST_WITHOUT=<name>[,<name>]` leaves some out, `*` all of them. On a
host with an accelerator they refuse to be applied.

To add one: write the stand-in and a `Patch` (see `runner_under_test/patches/patch.py`) in the
module of its family, list it in that module's `PATCHES`, write a clause that fails without it in
`conformance/contract/`, and generate this page anew. A test takes every patch away, and fails if
nothing turns red.
"""


def to_json(patches: Iterable[Patch]) -> str:
    """JSON with a schema."""
    rows = [
        {
            "target": patch.target,
            "why": patch.why,
            "versions": patch.versions,
            "applied_at": patch.applied_at,
            "remove_when": patch.remove_when,
            "link": patch.link,
        }
        for patch in patches
    ]
    return json.dumps({"schema": SCHEMA, "patches": rows}, indent=1) + "\n"


def to_text(patches: Iterable[Patch]) -> str:
    """For a terminal: a paragraph for each patch."""
    return "\n".join("\n".join((patch.target, *_lines(patch, "  "), "")) for patch in patches)


def to_markdown(patches: Iterable[Patch]) -> str:
    """A page with a section for each patch."""
    sections = ["\n".join((f"## `{p.target}`", "", *_lines(p, "- "), "")) for p in patches]
    return "\n".join((_PREFACE, *sections))


def _lines(patch: Patch, lead: str) -> list[str]:
    lines = [f"{lead}why: {patch.why}", f"{lead}remove when: {patch.remove_when}"]
    if patch.versions:
        lines.append(f"{lead}vLLM versions: {patch.versions}")
    if patch.link:
        lines.append(f"{lead}see: {patch.link}")
    return lines


RENDERERS: dict[str, Callable[[Iterable[Patch]], str]] = {
    "json": to_json,
    "table": to_text,
    "markdown": to_markdown,
}
