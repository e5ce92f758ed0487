# /// script
# dependencies = ["saq[postgres]==0.26.4", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0", "typing-extensions==4.15.0"]
# ///
"""saq on PostgreSQL, on uvloop; finished jobs are deleted at once, which is one statement as well as keeping them."""

from benchmarks.peers import saq_worker

if __name__ == "__main__":
    saq_worker.main()
