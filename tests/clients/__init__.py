"""Errors of real client libraries, and what Redrive reads from them. Each file with a header runs in an environment of
its own, which has the libraries that the header pins, and of Redrive only `redrive.model`.
"""
