"""`./dev pictures`: draw the pictures of the documentation from the real thing."""

from __future__ import annotations

import tempfile
from pathlib import Path

from docs.images import dead_letters, failing, item_lifecycle, throughput

HERE = Path(__file__).parent


def main() -> None:
    """Write all pictures beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        terminal = dead_letters.svg(dead_letters.record(Path(folder)))
    pictures = {
        "dead-letters": terminal,
        "failing": failing.svg(),
        "item-lifecycle": item_lifecycle.svg(),
        "throughput": throughput.svg(),
    }
    for name, picture in pictures.items():
        (HERE / f"{name}.svg").write_text(picture)
        print(f"docs/images/{name}.svg")


if __name__ == "__main__":
    main()
