# Generated from broker/async_api/__init__.py by tools/blocking_api.py; edit that file.
"""The methods of `Broker`, by topic."""
