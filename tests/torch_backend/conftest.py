"""Only the checks that were asked for are run together."""

import feature_runs
import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell which these are."""
    feature_runs.select([getattr(item, "obj", None) for item in session.items])
