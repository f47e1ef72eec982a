"""Who is told of a version: a repository's issues, and whoever is behind a webhook."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from conformance.watch.github import GitHub
from conformance.watch.model import News
from conformance.watch.pages import clean_comment, issue_body, issue_title, message
from conformance.watch.web import send

WEBHOOK = "VLLM_CONFORMANCE_WEBHOOK"
"""The variable with an address that takes ``{"text": ...}``, as Slack's and Mattermost's do."""


@dataclass(frozen=True, slots=True)
class Telling:
    """Who is told, and what counts as news for an issue."""

    github: GitHub | None
    webhook: str = field(repr=False)
    fail_on: str = "error"
    dry: bool = False

    @classmethod
    def from_environment(cls, *, github: bool, fail_on: str, dry: bool) -> Telling:
        """Take addresses and the token from the environment; a dry run needs none.

        Raises:
            WrongUse: GitHub is to be told, and something for it is missing.
        """
        webhook = os.environ.get(WEBHOOK, "").strip()
        if dry:
            return cls(None, webhook, fail_on, dry)
        return cls(GitHub.from_environment() if github else None, webhook, fail_on)

    def tell(self, news: News) -> Iterator[str]:
        """Tell of a version, and yield what was done.

        Raises:
            NotTold: somebody did not take it.
        """
        if self.dry:
            return
        if self.github is not None and news.checked:
            done = self._issue(self.github, news)
            if done:
                yield done
        yield from self.say(news.text.splitlines())

    def say(self, lines: Iterable[str]) -> Iterator[str]:
        """Give the webhook a text, and yield what was done."""
        if self.webhook and not self.dry:
            send("The webhook", "POST", self.webhook, {}, {"text": message(lines)})
            yield "The webhook was told."

    def _issue(self, github: GitHub, news: News) -> str:
        title, body = issue_title(news.version), issue_body(news)
        # Whoever lets nothing fail wants to know of errors all the same.
        level = "error" if self.fail_on == "never" else self.fail_on
        if news.fails(level):
            return github.publish(title, body)
        if news.is_clean:
            return github.close(title, body, clean_comment(news))
        return github.update(title, body)
