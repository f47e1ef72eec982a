"""The suite's plugin, for a checkout that is not installed."""

pytest_plugins = ["conformance.plugin"]
