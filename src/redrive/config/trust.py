"""What the user has confirmed: files with the addresses that they may send secrets to, and folders.

It is kept in the user's own configuration folder, outside all projects: a project cannot confirm itself.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import msgspec

from redrive.config.ownership import find_exposure, owner_of
from redrive.errors import InvalidInput
from redrive.model.url import ENCODED, MAX_SHOWN_CHARS, SERVER_SCHEMES, redact_url

FILE_NAME = "trusted.json"
_POSTGRES = ("postgresql", "postgres")
_OF_LIBPQ = ("PGPASSWORD", "PGSERVICE")
"""Variables from which libpq takes a password, whatever the host."""


class TrustedFile(msgspec.Struct, frozen=True):
    """A file that was confirmed, as it was then: with another owner, or another address, it is not this one."""

    path: str
    owner: int | None
    addresses: tuple[str, ...] = ()
    """All of them, without passwords."""


class Trust(msgspec.Struct, frozen=True):
    """All that was confirmed."""

    files: tuple[TrustedFile, ...] = ()
    folders: tuple[str, ...] = ()
    """In them and below, files are used although other users can change them."""

    def covers(self, file: Path) -> bool:
        """Return whether a file may be used although another user can change it."""
        folders = {str(folder) for folder in file.parents}
        return self._entry(file) is not None or any(folder in folders for folder in self.folders)

    def lets_send(self, file: Path, address: str) -> bool:
        """Return whether secrets may be sent to this address of a file."""
        entry = self._entry(file)
        return entry is not None and _identity(address) in entry.addresses

    def _entry(self, file: Path) -> TrustedFile | None:
        owner = owner_of(file)
        return next((each for each in self.files if each.path == str(file) and each.owner == owner), None)

    def without(self, path: str) -> Trust:
        """Return the same without a file or folder."""
        files = tuple(each for each in self.files if each.path != path)
        return Trust(files, tuple(each for each in self.folders if each != path))


def secret_for(url: str, environment: Mapping[str, str], *, has_token: bool) -> str | None:
    """Return what of this user's secrets goes to an address that is opened, by its name; None if nothing does."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        password = parts.password or options.get("password")
    except ValueError:
        return None  # and so it is not opened
    if parts.scheme in SERVER_SCHEMES:
        return "the token" if has_token else None
    if parts.scheme not in _POSTGRES or password:
        return None
    named = [name for name in _OF_LIBPQ if environment.get(name)]
    named += [f"what {name} names" for name in ("service", "passfile") if name in options]
    return " and ".join(named) or None


def confirm_file(file: Path, addresses: tuple[str, ...]) -> TrustedFile:
    """Write down that this file, of this owner, may be used and may send secrets to these addresses."""
    identities = tuple(_identity(address) for address in addresses)
    if None in identities:
        raise InvalidInput(f"an address in {file} cannot be read, and so not be confirmed; {ENCODED}")
    entry = TrustedFile(str(file), owner_of(file), tuple(filter(None, identities)))
    _update(lambda trust: _with_file(trust.without(entry.path), entry))
    return entry


def confirm_folder(folder: Path) -> None:
    """Write down that files in this folder and below may be used although other users can change them."""
    _update(lambda trust: _with_folder(trust.without(str(folder)), str(folder)))


def withdraw(path: Path) -> bool:
    """Take back what was confirmed of a file or folder. Whether there was something."""
    before = load_trust()
    after = _update(lambda trust: trust.without(str(path)))
    return before != after


def load_trust() -> Trust:
    """Return all that this user confirmed. A list that others can change says nothing."""
    file = trust_file()
    if file is None or find_exposure(file) is not None:  # as for one that is not there
        return Trust()
    try:
        return msgspec.json.decode(file.read_bytes(), type=Trust)
    except FileNotFoundError:
        return Trust()
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidInput(f"{file} cannot be read ({error}); remove it, and confirm files again") from None


def trust_file() -> Path | None:
    """Where it is kept; None for a user without a home."""
    named = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(named) if os.path.isabs(named) else Path.home() / ".config"
    except RuntimeError:
        return None
    return folder / "redrive" / FILE_NAME


def _identity(address: str) -> str | None:
    """What identifies an address, without a password; None where not all of its host can be shown."""
    shown = redact_url(address)
    return None if shown.endswith("://…") or len(shown) >= MAX_SHOWN_CHARS else shown


def _with_file(trust: Trust, entry: TrustedFile) -> Trust:
    return msgspec.structs.replace(trust, files=(*trust.files, entry))


def _with_folder(trust: Trust, folder: str) -> Trust:
    return msgspec.structs.replace(trust, folders=(*trust.folders, folder))


def _update(change: Callable[[Trust], Trust]) -> Trust:
    """Read, change and write, one process after the other; the file is replaced whole."""
    file = trust_file()
    if file is None:
        raise InvalidInput("this user has no home to keep the list in; set XDG_CONFIG_HOME to a folder of its own")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (exposure := find_exposure(file.parent)) is not None:
            raise InvalidInput(f"the folder {file.parent} {exposure}; let it belong to you alone (chmod 700)")
        with _locked(file.parent):
            trust = change(load_trust())
            _replace(file, msgspec.json.format(msgspec.json.encode(trust)))
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error.strerror}") from None
    return trust


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # a system without owners of files
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(file: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # for its owner alone: 0600
    try:
        with open(descriptor, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(descriptor)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
