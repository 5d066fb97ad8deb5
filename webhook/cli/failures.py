"""How commands fail: a sentence on standard error and exit code 1; wrong usage is click's 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from webhook.adapters.policy.files import PolicyInvalidError


class Failure(click.ClickException):
    """Ends the command with exit code 1."""

    exit_code = 1


class NoCluster(click.ClickException):
    """Ends a command that could read nothing."""

    exit_code = 3


def policy_failure(error: PolicyInvalidError) -> Failure:
    """Return the failure that lists all problems of a policy, one per line."""
    lines = [str(problem) for problem in error.problems]
    return Failure("\n".join(["the policy is not valid:", *lines]))
