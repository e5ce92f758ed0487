"""Generate the blocking classes of a package from its async ones: drop `async` and `await`, and rename.

python tools/blocking_api.py write    write the generated files
python tools/blocking_api.py check    exit with 1 if one is not what `write` would write
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src/redrive"
GENERATED = {
    "broker/async_broker.py": "broker/broker.py",
    **{
        f"broker/async_api/{path.name}": f"broker/api/{path.name}"
        for path in sorted((ROOT / "broker/async_api").glob("*.py"))
        if path.name != "base.py"
    },
    "mailbox/async_mailbox.py": "mailbox/mailbox.py",
    "mailbox/async_message.py": "mailbox/message.py",
    "capture/async_dead_letter_queue.py": "capture/dead_letter_queue.py",
}
RULES = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basync_(?=api|broker|mailbox|message|dead)", ""),
    (r"\basync_loops\b", "request_loop"),
    (r"\b(connect|invoke|run_blocking)_async\b", r"\1"),
    (r"\ban (?=`?(?:Broker|Mailbox|Message|DeadLetterQueue)\b)", "a "),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r", (?:on an event loop|and between event loops)\.", "."),
)


def generate(source: str) -> str:
    """Return the blocking form of a file."""
    text = (ROOT / source).read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    text = f"# Generated from {source} by tools/blocking_api.py; edit that file.\n{text}"
    for command in (["check", "--select", "I,F401,UP028", "--fix", "--unsafe-fixes", "--quiet"], ["format", "--quiet"]):
        named = ["--stdin-filename", str(ROOT / GENERATED[source]), "-"]
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *named], input=text, capture_output=True, text=True, check=True
        ).stdout
    return text


def main(command: str) -> int:
    """Write or check all files."""
    stale = {source: text for source in GENERATED if (text := generate(source)) != _present(GENERATED[source])}
    if command == "write":
        for source, text in stale.items():
            (ROOT / GENERATED[source]).write_text(text)
        return 0
    for source in stale:
        print(f"{GENERATED[source]} is stale: run python tools/blocking_api.py write", file=sys.stderr)
    return 1 if stale else 0


def _present(path: str) -> str | None:
    file = ROOT / path
    return file.read_text() if file.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) == 2 else "check"))
