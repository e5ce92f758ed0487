"""The guide says of each role what the code says."""

from pathlib import Path

from redrive.auth.principal import PERMISSIONS_BY_ROLE, Permission, Role

PAGE = Path(__file__).resolve().parents[2] / "docs/guides/authentication.md"


def rows(page: Path) -> list[list[str]]:
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def test_guide_has_the_rights_of_every_role() -> None:
    told = rows(PAGE)
    header = next(row for row in told if row[0] == "role")
    assert header[1:] == list(Permission)
    said = {
        row[0]: {right for right, cell in zip(header[1:], row[1:], strict=True) if cell}
        for row in told
        if row[0] in set(Role)
    }
    assert said == {role.value: {right.value for right in rights} for role, rights in PERMISSIONS_BY_ROLE.items()}


def test_guide_explains_every_right() -> None:
    explained = {row[0] for row in rows(PAGE) if len(row) == 2}
    assert set(Permission) <= explained
