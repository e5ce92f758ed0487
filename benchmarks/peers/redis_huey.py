# /// script
# dependencies = ["huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0"]
# ///
"""huey on Redis: RedisHuey, which takes a task out before it runs; `drain_huey.py` runs in this environment."""
