"""Tests of the build of a release."""
