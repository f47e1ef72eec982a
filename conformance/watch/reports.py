"""The folder of reports: ``<package>-<version>/drift.{md,json,sarif}``, and a summary."""

from __future__ import annotations

import json
from pathlib import Path

from conformance.drift.files import write_whole
from conformance.report.drift import render
from conformance.watch.model import Checked, Watched
from conformance.watch.news import Release
from conformance.watch.pages import to_json, to_markdown

_FORMS = {"markdown": "md", "json": "json", "sarif": "sarif"}


def folder_of(directory: Path, release: Release) -> Path:
    """Where a release's report is."""
    return directory / f"{release.package}-{release.version}"


def write(directory: Path, checked: Checked) -> None:
    """Write the report of a release, each file whole or not at all.

    Raises:
        WrongUse: the folder cannot be written to.
    """
    folder = folder_of(directory, checked.release)
    for form, suffix in _FORMS.items():
        text = render(checked.drift, form, "never")
        if form == "sarif":
            text = _named(text, checked)
        write_whole(folder / f"drift.{suffix}", text)


def write_summary(directory: Path, watched: Watched) -> None:
    """Write what the whole watch came to.

    Raises:
        WrongUse: the folder cannot be written to.
    """
    write_whole(directory / "summary.md", to_markdown(watched))
    write_whole(directory / "summary.json", to_json(watched))


def _named(text: str, checked: Checked) -> str:
    """A log whose runs have the package's name in their category.

    Code scanning takes a category once in an upload, and both packages may come in one night.
    """
    log = json.loads(text)
    for run in log["runs"]:
        steps = f"{checked.against}..{checked.release.version}"
        run["automationDetails"] = {"id": f"vllm-drift/{checked.release.package}/{steps}/"}
    return json.dumps(log, indent=1) + "\n"
