"""The common part of the stores on SQL databases: the statements of every call and query."""
