"""What a watch found, as text: for a terminal, a page, a workflow, an issue, a message."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator

from conformance.report.drift import render
from conformance.report.findings_markdown import escaped
from conformance.watch.model import Checked, News, Watched

_MOST = 60_000  # characters of an issue; GitHub takes 65,536
_NO_MENTION = "\N{ZERO WIDTH SPACE}"


def to_table(watched: Watched) -> str:
    """For a terminal; one line if nothing is new."""
    if watched.is_quiet:
        return _quiet(watched)
    parts = []
    for item in watched.checked:
        parts.append("\n".join((item.text, *_command(item))))
        parts.append(render(item.drift, "table", "never").rstrip("\n"))
    lines = [*_others(watched)]
    return "\n\n".join([*parts, *(["\n".join(lines)] if lines else [])]) + "\n"


def to_json(watched: Watched) -> str:
    """With a schema's name, on one line."""
    return json.dumps(watched.to_json()) + "\n"


def to_markdown(watched: Watched) -> str:
    """A page: a list of what there is, then the page of each comparison."""
    if watched.is_quiet:
        return _quiet(watched)
    lines = [item.text for item in watched.checked]
    listed = "\n".join(f"- {escaped(line)}" for line in (*lines, *_others(watched)))
    return "\n\n".join(["# Watch", listed, *_drifts(watched.checked)]) + "\n"


def to_github(watched: Watched) -> str:
    """Annotations of a workflow; what was not checked, written or told is a warning."""
    if watched.is_quiet:
        return _quiet(watched)
    parts = [render(item.drift, "github", "never").rstrip("\n") for item in watched.checked]
    for item in watched.checked:
        if item.suite is not None and not item.suite.conforms:
            parts.append(f"::error title={item.release.label}::{_data(item.suite.text)}")
    for text in (*(item.text for item in watched.not_checked), *watched.troubles):
        parts.append(f"::warning title=watch::{_data(text)}")
    return "\n".join([*parts, *_begun(watched), *watched.told]) + "\n"


RENDERERS: dict[str, Callable[[Watched], str]] = {
    "table": to_table,
    "json": to_json,
    "markdown": to_markdown,
    "github": to_github,
}


def issue_title(version: str) -> str:
    """The title by which a version's issue is found again: never change it."""
    return f"vLLM {version}: what the CPU runner does not cover"


def issue_body(news: News) -> str:
    """The body of a version's issue, no longer than GitHub takes."""
    lines = [f"- {escaped(text)}" for text in news.text.splitlines()]
    lines += [f"- {text}" for item in news.checked for text in _command(item)]
    head = "\n".join([*lines, *(f"- the run: {link}" for link in _run_link())])
    body = "\n\n".join([head, *_drifts(news.checked)]) + "\n"
    # Nobody is to be notified because of a decorator.
    body = re.sub(r"(?<![\w`])@(?=\w)", f"@{_NO_MENTION}", body)
    if len(body) <= _MOST:
        return body
    return f"{body[:_MOST].rpartition(chr(10))[0]}\n\nThe rest is in the report of the run.\n"


def clean_comment(news: News) -> str:
    """What is said when a version's issue is closed."""
    links = "".join(f" ({link})" for link in _run_link())
    return f"Nothing is left to cover{links}.\n\n{news.text}"


def message(lines: Iterable[str]) -> str:
    """The text for a webhook."""
    return "\n".join([*lines, *_run_link()])


def _drifts(checked: Iterable[Checked]) -> Iterator[str]:
    """The page of each comparison; vLLM and its CPU build mostly have one and the same."""
    shown: list[Checked] = []
    # The CPU build first: it is what runs on a CPU.
    for item in sorted(checked, key=lambda item: item.release.order, reverse=True):
        same = next((other for other in shown if other.drift == item.drift), None)
        if same is None:
            shown.append(item)
            yield render(item.drift, "markdown", "never").rstrip("\n")
        else:
            yield f"{item.release.label} has the same findings as {same.release.label}."


def _quiet(watched: Watched) -> str:
    newest = " and ".join(f"{name} {version}" for name, version in watched.looked_at.items())
    return f"Nothing is new: {newest} {'were' if ' and ' in newest else 'was'} looked at before.\n"


def _others(watched: Watched) -> Iterator[str]:
    yield from (item.text for item in watched.not_checked)
    yield from _begun(watched)
    yield from watched.told
    yield from watched.troubles


def _begun(watched: Watched) -> Iterator[str]:
    yield from (
        f"The watch of {item.package} begins with {item.version}." for item in watched.begun
    )


def _command(item: Checked) -> Iterator[str]:
    if item.command:
        yield f"The suite on {item.release.label}: `{item.command}`"


def _run_link() -> Iterator[str]:
    """The address of the workflow's run, in one."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, run = (os.environ.get(name, "") for name in names)
    if server and repository and run:
        yield f"{server}/{repository}/actions/runs/{run}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
