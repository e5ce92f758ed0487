"""The documentation is true: links lead somewhere, examples run, and nothing that exists is left out."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.postgres import Server

from redrive.errors import RedriveError

ROOT = Path(__file__).resolve().parents[2]
IGNORED = {".git", *re.findall(r"^(.+)/$", (ROOT / ".gitignore").read_text(), flags=re.MULTILINE)}
README_LINES_MAX = 120


def files(folder: Path = ROOT) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in IGNORED:
            continue
        if path.is_file():
            yield path
        elif not path.is_symlink():
            yield from files(path)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PAGES = [path for path in files() if path.suffix == ".md"]
PAGES_WITH_EXAMPLES = [
    *(
        ROOT / "docs/guides" / f"{name}.md"
        for name in (
            *("breakers", "broker", "capture", "coming-from", "config-file", "cross-store-dead-letters"),
            *("periodic-tasks", "mailboxes", "retries", "server", "tasks", "transactional-enqueue", "workers"),
        )
    ),
    *(ROOT / "docs/reference" / f"{name}.md" for name in ("export-format", "log-events", "metrics", "settings")),
    ROOT / "docs/concepts/item-lifecycle.md",
    ROOT / "docs/stores/sqlite.md",
]
# Their examples are tests.
PAGES_OF_TESTS = [ROOT / "docs/guides/testing.md"]
# Their examples run on a store with trouble in it.
PAGES_ON_TROUBLE = [
    *(ROOT / "docs/concepts" / f"{name}.md" for name in ("dead-letters", "durability")),
    *(ROOT / "docs/guides" / f"{name}.md" for name in ("incident-runbook", "search-dead-letters", "bulk-redrive")),
]

PAGES_ON_POSTGRES = [ROOT / "docs/stores/postgres.md"]
PAGES_ON_REDIS = [ROOT / "docs/stores/redis.md"]
# Run with what they print, by tests/integration/test_readme.py.
PAGES_WITH_OUTPUT = [ROOT / "README.md", ROOT / "docs/start.md"]


def prose(page: Path) -> str:
    """The page without its code blocks and code spans."""
    return re.sub(r"^ *```.*?^ *```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The fragments that the headings of a page can be linked by."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.+?) *$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def python_blocks(page: Path) -> str:
    """The examples of a page as one program, on the lines they have in the page."""
    program, indent = [], None
    for line in page.read_text().splitlines():
        if fence := re.match(r"( *)```(\w*)", line):
            indent = len(fence[1]) if indent is None and fence[2] == "python" else None
            program.append("")
        else:
            program.append("" if indent is None else line[indent:])
    return "\n".join(program)


def table_rows(page: Path) -> Iterator[list[str]]:
    """The body rows of every table of a page."""
    header = True
    for line in page.read_text().splitlines():
        if not line.startswith("|"):
            header = True
        elif set(line) <= set("|-: "):
            header = False
        elif not header:
            yield [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: +(\S+)", prose(page), flags=re.MULTILINE):
        target, _, fragment = "".join(link).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{relative(page)} links to {target}, which does not exist"
        if fragment and path.suffix == ".md":
            assert fragment in anchors(path), f"{relative(page)} links to #{fragment}, and {target} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_images_have_words_for_those_who_cannot_see_them(page: Path) -> None:
    assert all(words.strip() for words in re.findall(r"!\[(.*?)\]\(", prose(page), flags=re.DOTALL))


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX


@pytest.mark.parametrize("page", PAGES_WITH_EXAMPLES, ids=relative)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    run_examples(page, tmp_path)


@pytest.mark.parametrize("page", PAGES_ON_TROUBLE, ids=relative)
def test_examples_run_on_trouble(page: Path, tmp_path: Path) -> None:
    demo = [sys.executable, "-m", "redrive", "demo", "--url", "sqlite:///jobs.db"]
    subprocess.run(demo, cwd=tmp_path, check=True, capture_output=True)
    run_examples(page, tmp_path)


@pytest.mark.parametrize("page", PAGES_ON_POSTGRES, ids=relative)
def test_examples_run_on_postgres(
    page: Path, tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", postgres.url)
    run_examples(page, tmp_path)


@pytest.mark.parametrize("page", PAGES_ON_REDIS, ids=relative)
def test_examples_run_on_redis(page: Path, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    run_examples(page, tmp_path)


@pytest.mark.parametrize("page", PAGES_OF_TESTS, ids=relative)
def test_examples_pass(page: Path, tmp_path: Path) -> None:
    """All but the suite of stores, which an example binds to SQLite: it runs in tests/conformance."""
    tests = tmp_path / f"test_{page.stem}_examples.py"
    tests.write_text(python_blocks(page))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "not TestMyStore", "-p", "no:valkey", tests.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout
    assert f"{tests.read_text().count('def test_')} passed" in result.stdout


def test_every_page_with_examples_is_run() -> None:
    run = {*PAGES_WITH_EXAMPLES, *PAGES_OF_TESTS, *PAGES_ON_TROUBLE, *PAGES_ON_POSTGRES, *PAGES_ON_REDIS}
    with_examples = {page for page in PAGES if python_blocks(page).strip()}
    assert with_examples == {*run, *PAGES_WITH_OUTPUT}


def run_examples(page: Path, folder: Path) -> None:
    program = folder / f"{page.stem}_examples.py"  # not a name that the page itself imports
    program.write_text(python_blocks(page))
    run(program, folder)


def run(program: Path, folder: Path) -> None:
    result = subprocess.run([sys.executable, program], cwd=folder, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr


def test_every_dependency_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [
        project["project"]["dependencies"],
        project["build-system"]["requires"],
        *project["project"].get("optional-dependencies", {}).values(),
        *project["dependency-groups"].values(),
    ]
    needed = {re.match(r"[\w-]+", requirement)[0] for requirements in lists for requirement in requirements}
    reasons = {row[0]: row[1] for row in table_rows(ROOT / "docs/internals/dependencies.md")}
    assert reasons.keys() == needed
    assert all(reasons.values())


def test_every_error_is_documented() -> None:
    def tree(error: type[RedriveError]) -> Iterator[type[RedriveError]]:
        yield error
        for child in error.__subclasses__():
            yield from tree(child)

    documented = [row[:3] for row in table_rows(ROOT / "docs/reference/errors.md")]
    raised = [
        [f"`{error.code}`", f"`{error.__name__}`", "yes" if error.retryable else "no"]
        for error in tree(RedriveError)
        if error.__module__ == "redrive.errors"
    ]
    assert sorted(documented) == sorted(raised)


def test_no_file_names_a_private_path_or_a_registry() -> None:
    # The brackets keep the pattern from matching itself.
    private = re.compile(r"\.\.[/]shared|(?<!\w)[/]work[/]|pypi[.]org|python[h]osted|npm[j]s|[S]EMANTICS")
    named = [relative(path) for path in files() if private.search(path.read_text(errors="replace"))]
    assert not named


def test_locks_have_hashes_and_no_addresses() -> None:
    for lock in ROOT.glob("requirements/*.txt"):
        text = lock.read_text()
        assert "://" not in text
        assert text.count("==") <= text.count("--hash=sha256:")
