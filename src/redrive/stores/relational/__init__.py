"""What the stores on SQL databases share: the statements of every call and query."""
