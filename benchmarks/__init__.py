"""Benchmarks: `python -m benchmarks sqlite` measures Redrive, raw SQLite and peers side by side, in one run."""
