"""A pod as JSON, and what can be read from it without a policy; jsonpatch only in `patch`."""
