"""The calls in JSON, by topic; `table` lists all of them."""
