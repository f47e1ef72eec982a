"""One issue for each version of vLLM: opened, updated, opened again, closed when clean."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from conformance.target import WrongUse
from conformance.watch.web import Answer, NotTold, send

_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="next"')
_MOST_PAGES = 1000


@dataclass(frozen=True, slots=True)
class Issue:
    """An issue that is there."""

    number: int
    is_open: bool


@dataclass(frozen=True, slots=True)
class GitHub:
    """The issues of one repository."""

    api: str
    repository: str
    token: str = field(repr=False)

    @classmethod
    def from_environment(cls) -> GitHub:
        """Take what a workflow has in its environment.

        Raises:
            WrongUse: something is missing.
        """
        names = ("GITHUB_TOKEN", "GITHUB_REPOSITORY")
        missing = [name for name in names if not os.environ.get(name)]
        if missing:
            raise WrongUse(
                f"--notify-github needs {' and '.join(missing)} in the environment: in a workflow "
                "GITHUB_TOKEN comes from secrets.GITHUB_TOKEN, the rest is there."
            )
        api = os.environ.get("GITHUB_API_URL") or "https://api.github.com"
        token, repository = (os.environ[name] for name in names)
        return cls(api.rstrip("/"), repository, token)

    def publish(self, title: str, body: str) -> str:
        """Let a version's issue be open, with this body; return what was done.

        Raises:
            NotTold: GitHub did not take it.
        """
        issue = self.find(title)
        if issue is None:
            made = self._ask("POST", "/issues", {"title": title, "body": body}).data
            number = made.get("number", "?") if isinstance(made, dict) else "?"
            return f"Issue {number} was opened: {title}."
        self._ask("PATCH", f"/issues/{issue.number}", {"body": body, "state": "open"})
        what = "updated" if issue.is_open else "opened again"
        return f"Issue {issue.number} was {what}: {title}."

    def update(self, title: str, body: str) -> str:
        """Replace the body of a version's issue if there is one; return what was done."""
        issue = self.find(title)
        if issue is None:
            return ""
        self._ask("PATCH", f"/issues/{issue.number}", {"body": body})
        return f"Issue {issue.number} was updated: {title}."

    def close(self, title: str, body: str, comment: str) -> str:
        """Close a version's issue if there is an open one; return what was done."""
        issue = self.find(title)
        if issue is None or not issue.is_open:
            return ""
        # The comment first: were it to fail, the next watch would find the issue open, and go on.
        self._ask("POST", f"/issues/{issue.number}/comments", {"body": comment})
        done = {"body": body, "state": "closed", "state_reason": "completed"}
        self._ask("PATCH", f"/issues/{issue.number}", done)
        return f"Issue {issue.number} was closed: {title}."

    def find(self, title: str) -> Issue | None:
        """The newest issue with a title. All are gone through: a search may be minutes behind."""
        for item in self._issues():
            if item.get("title") == title and "pull_request" not in item:
                return Issue(int(item["number"]), item.get("state") == "open")
        return None

    def _issues(self) -> Iterator[dict[str, Any]]:
        url = f"{self._root}/issues?state=all&sort=created&direction=desc&per_page=100"
        for _ in range(_MOST_PAGES):
            answer = self._send("GET", url)
            if not isinstance(answer.data, list):
                raise NotTold("GitHub was not told: what it gives is no list of issues.")
            yield from (item for item in answer.data if isinstance(item, dict))
            following = _NEXT.search(answer.link)
            if following is None:
                return
            url = following[1]
            if urlsplit(url).netloc != urlsplit(self.api).netloc:
                raise NotTold("GitHub was not told: its list of issues goes on on another host.")

    @property
    def _root(self) -> str:
        return f"{self.api}/repos/{self.repository}"

    def _ask(self, method: str, path: str, data: dict[str, str]) -> Answer:
        return self._send(method, f"{self._root}{path}", data)

    def _send(self, method: str, url: str, data: dict[str, str] | None = None) -> Answer:
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self.token}",
            "User-Agent": "vllm-conformance",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        return send("GitHub", method, url, headers, data)
