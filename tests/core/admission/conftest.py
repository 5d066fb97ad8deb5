"""Lets the shared helpers' assertions say what they compared, as those in test files do."""

import pytest

pytest.register_assert_rewrite("tests.core.admission.decisions")
