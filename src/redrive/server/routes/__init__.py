"""The JSON calls by topic; `table` lists all of them."""
