"""A module that cannot be imported."""

raise ZeroDivisionError("planted")
