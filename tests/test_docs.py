"""Generated pages are what the project would generate today."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from conformance.cli import main
from conformance.scenarios.host import Host

_DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_of_patches_is_the_registers() -> None:
    result = CliRunner().invoke(main, ["patches", "--format", "markdown"])
    assert result.exit_code == 0, result.output
    assert result.output == (_DOCS / "patches.md").read_text(), (
        "out of date: vllm-conformance patches --format markdown > docs/patches.md"
    )


def test_the_page_of_patches_names_every_patch(host: Host) -> None:
    run = host.run("tests.child_entries:patch_names", {}, label="the register")
    text = (_DOCS / "patches.md").read_text()
    assert [name for name in run.results["names"] if f"## `{name}`" not in text] == []
