"""Who may do what: tokens, roles, and the guard in front of every call."""
