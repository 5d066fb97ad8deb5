"""Tests of `webhook.tools.admit.migration`."""
