"""saq on Redis, on uvloop; finished jobs are deleted at once. In the environment of `redis_saq.py`."""

from benchmarks.peers import saq_worker

if __name__ == "__main__":
    saq_worker.main()
