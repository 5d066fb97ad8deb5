"""The option --rollout, which the server and `admit` share."""

from __future__ import annotations

import click

from webhook.core.policy.values import Rollout

rollout_option = click.option(
    "--rollout",
    type=click.Choice([rollout.value for rollout in Rollout]),
    default=Rollout.ENFORCE.value,
    show_default=True,
    help="Observe: only warn of what is wrong with pods that ask for no VRAM, and void nothing.",
)
