"""Tests of `webhook.tools.simulate`."""
