"""What a redrive.toml may say, and what is told of one that is wrong: file, line, key, and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive.config import Config, find_file, load, load_store
from redrive.config.config import ServerOptions, StoreOptions
from redrive.config.loader import MAX_FILE_BYTES, parse
from redrive.errors import InvalidConfig, InvalidInput
from redrive.model.duration import MINUTE, SECOND

FILE = Path("/srv/shop/redrive.toml")
SECRET = "hunter2hunter2"
WHOLE = """\
url = "sqlite:///data/jobs.db"
namespace = "shop"
name = "main"

[stores]
archive = "postgresql://redrive@db/archive"

[server]
host = "0.0.0.0"
port = 8080
work = true

[queue.emails]
lease_timeout = "2m"
max_attempts = 8
retry = { attempts = 3, cooldown = "30s", by_type = { "smtplib.SMTPDataError" = "never" } }
dead_queue = { validation = "malformed", default = "emails-dead@archive" }
final_errors = ["validation"]
feed = "all"
search = false

[[queue.emails.error_rules]]
error_class = "transient"
contains = ["mailbox busy"]

[queue.malformed]

[queue.tickets]
type = "external"
list = "gh issue list --json number,title"
claim = ["./take.sh", "it's mine"]
poll = "5m"
key = "number"
max_size = 100

[worker.mailer]
queue = "emails"
run = "./send.sh --from 'the shop'"
concurrency = 4
timeout = "5m"
release_delay = 10
keep_result = "1h"
env = { LANG = "C", KEY = "${SMTP_KEY}" }
cwd = "mail"

[worker.fixer]
queue = "tickets"
run = "jq .title | tee -a titles"
shell = true
"""


def problems(text: str) -> list[tuple[int, str, str]]:
    with pytest.raises(InvalidConfig) as refused:
        parse(text, FILE)
    return list(refused.value.problems)


def problem(text: str) -> tuple[int, str, str]:
    (only,) = problems(text)
    return only


@pytest.fixture
def whole() -> Config:
    return parse(WHOLE, FILE)


def test_whole_file_is_read(whole: Config) -> None:
    there = {"archive": "postgresql://redrive@db/archive"}
    assert whole.store == StoreOptions("sqlite:////srv/shop/data/jobs.db", "shop", "main", there)
    assert whole.server == ServerOptions("0.0.0.0", 8080, True)
    assert list(whole.queues) == ["emails", "malformed", "tickets"]
    assert whole.queues["tickets"] == {"max_size": 100}


def test_command_worker_is_read(whole: Config) -> None:
    worker = whole.workers["mailer"]
    assert (worker.queue, worker.concurrency, worker.release_delay) == ("emails", 4, 10 * SECOND)
    assert worker.keep_result == 60 * MINUTE
    assert worker.run.argv == ("./send.sh", "--from", "the shop")
    assert (worker.run.cwd, worker.run.timeout) == ("/srv/shop/mail", 5 * MINUTE)
    assert worker.run.variables == {"LANG": "C", "KEY": "${SMTP_KEY}"}


def test_command_for_a_shell_is_left_to_the_shell(whole: Config) -> None:
    assert whole.workers["fixer"].run.argv == ("/bin/sh", "-c", "jq .title | tee -a titles")


def test_external_queue_is_read(whole: Config) -> None:
    external = whole.external["tickets"]
    assert external.list.argv == ("gh", "issue", "list", "--json", "number,title")
    assert external.claim is not None
    assert external.claim.argv == ("./take.sh", "it's mine")
    assert (external.poll, external.key, external.list.timeout) == (5 * MINUTE, "number", MINUTE)


def test_empty_file_is_a_file() -> None:
    empty = parse("", FILE)
    assert empty.store == StoreOptions("sqlite:////srv/shop/redrive.db", "default")
    assert (empty.queues, empty.workers, empty.external) == ({}, {}, {})
    assert empty.server == ServerOptions("127.0.0.1", 7272, False)


@pytest.mark.parametrize(
    ("text", "line", "key", "told"),
    [
        ('\n[queue.emails]\nretry = { attempts = 3, cooldown = "soon" }', 3, "queue.emails.retry.cooldown",
         "'soon' is not a duration; write it like 250ms, 30s, 5m, 1h30m or 7d"),
        ('[queue.emails]\nlease_timeout = "1 week"', 2, "queue.emails.lease_timeout", "'1 week' is not a duration"),
        ("[queue.emails]\nlease_timeout = 2026-07-01", 2, "queue.emails.lease_timeout", "is not a duration"),
        ('[queue.emails.redact]\npatterns = ["a{1,3}", "("]', 2, "queue.emails.redact.patterns[1]",
         "is no regular expression: missing )"),
        ('[queue.emails]\n[queue.emails.redact]\nkeys = []\npatterns = ["x+"]', 4, "queue.emails.redact.patterns[0]",
         "bound what it repeats, as in {1,64}"),
        ('[queue.emails.redact]\nkey = ["iban"]', 2, "queue.emails.redact.key", "there are keys, patterns, allow"),
        ("[queue.emails]\nlease_timeout = 0", 2, "queue.emails.lease_timeout", "longer than 0"),
        ("[queue.emails]\nlease_timeout = -1", 2, "queue.emails.lease_timeout", "is negative"),
        ("[queue.emails]\nkeep_dead = nan", 2, "queue.emails.keep_dead", "is not a duration"),
        ("[queue.emails.retry]\n\nattempts = true", 3, "queue.emails.retry.attempts", "whole number from 0"),
        ("[queue.emails]\nretry.attempts = 1\nretry.delays = ['1s', 'x']", 3, "queue.emails.retry.delays[1]",
         "'x' is not a duration"),
        ('[queue.emails]\nretry = { cooldown = "1s" }', 2, "queue.emails.retry.attempts", "is missing"),
        ("[queue.emails]\nretry = 3", 2, "queue.emails.retry", "must be a table"),
        ("[queue.emails]\nretry = { attempts = 2, max_delay = 1 }", 2, "queue.emails.retry.max_delay",
         "did you mean cap?"),
        ("[queue.emails]\nvisibility_timeout = 3", 2, "queue.emails.visibility_timeout",
         "did you mean lease_timeout?"),
        ("[queue.emails]\nmax_size = 0", 2, "queue.emails.max_size", "whole number from 1"),
        ("[queue.emails]\nmax_attempts = 2\nretry = { attempts = 3 }", 2, "queue.emails.max_attempts",
         "lower than retry.attempts"),
        ('[queue.emails]\non_dead = "explode"', 2, "queue.emails.on_dead", "keep or drop"),
        ("[[queue.emails.error_rules]]\nerror_class = 'transient'", 1, "queue.emails.error_rules[0]",
         "no condition"),
        ('[queue.emails]\ndead_queue = "emails"', 2, "queue.emails.dead_queue", "cannot reference itself"),
        ("[queue.a]\ndead_queue = 'b'\n[queue.b]\ndead_queue = 'c'", 2, "queue.a.dead_queue",
         "'b' cannot have its own dead_queue"),
        ('[queue.emails]\ndead_queue = "x@archive"', 2, "queue.emails.dead_queue", "[stores] does not name"),
        ('[queue.emails]\ndead_queue = "no spaces"', 2, "queue.emails.dead_queue", "characters that names cannot have"),
        ('[queue."no spaces"]', 1, 'queue."no spaces"', "characters that names cannot have"),
        ("queue = 3", 1, "queue", "is a table"),
        ("[queue]\nemails = 3", 2, "queue.emails", "is a table"),
        ("[queue.emails.breakers]\nqueue = {}\nnettwork = {}", 3, "queue.emails.breakers.nettwork",
         "did you mean network?"),
        ("[queue.emails.breakers]\nqueue = { share = 2 }", 2, "queue.emails.breakers.queue.share", "up to 1, not 2"),
        ('[queue.emails.breakers.network]\nshare = 0.5\nwindow = "0s"', 3, "queue.emails.breakers.network.window",
         "must be from 1s to 1h"),
        ("[queue.emails.breakers]\nqueue = { fail_max = 3 }", 2, "queue.emails.breakers.queue.fail_max",
         "did you mean failures?"),
        ('[queue.emails]\nfeed = "none"\nbreakers = { queue = {} }', 3, "queue.emails.breakers",
         "let 'feed' keep failed"),
        ("[breakers]\nnetwork = { probes = 0 }\n[queue.a]\n[queue.b]", 2, "breakers.network.probes", "from 1 to 100"),
        ("breakers = 3", 1, "breakers", "must be a table"),
        ('[breakers]\nqueue = {}\n[queue.emails]\nfeed = "none"', 3, "queue.emails.breakers", "let 'feed' keep failed"),
        ('[queue.emails]\ntype = "internal"', 2, "queue.emails.type", 'is "external", or omitted'),
        ('[queue.emails]\nlist = "ls"', 2, "queue.emails.list", 'say type = "external"'),
        ('[queue.t]\ntype = "external"', 1, "queue.t.list", "is missing"),
        ('[queue.t]\ntype = "external"\nlist = "ls"\n\nretry = { attempts = 3 }', 5, "queue.t.retry",
         "retried when its dead letter is redriven or dropped, or when its version changes"),
        ('[queue.t]\ntype = "external"\nlist = "ls"\nidempotency_timeout = "item"', 4, "queue.t.idempotency_timeout",
         "would run again at every listing"),
        ('[queue.t]\ntype = "external"\nlist = "ls"\nversion = 3', 4, "queue.t.version", "is a text, not 3"),
        ('[queue.t]\ntype = "external"\nlist = "ls"\npoll = 0', 4, "queue.t.poll", "longer than 0"),
        ('[queue.t]\ntype = "external"\nlist = 3', 3, "queue.t.list", "a text, or a list of texts"),
        ('[worker.w]\nrun = "x"', 1, "worker.w.queue", "is missing"),
        ('[worker.w]\nqueue = "q"', 1, "worker.w.run", "is missing"),
        ('[worker.w]\nqueue = "q"\ncommand = "x"\nrun = "x"', 3, "worker.w.command", "did you mean run?"),
        ('[worker.w]\nqueue = "q q"\nrun = "x"', 2, "worker.w.queue", "characters that names cannot have"),
        ('[worker.w]\nqueue = "q"\nrun = "a \'b"', 3, "worker.w.run", "cannot be split into words"),
        ('[worker.w]\nqueue = "q"\nrun = ""', 3, "worker.w.run", "is a command"),
        ('[worker.w]\nqueue = "q"\nrun = []', 3, "worker.w.run", "a text, or a list of texts"),
        ('[worker.w]\nqueue = "q"\nrun = ["x"]\nshell = true', 3, "worker.w.run", "where shell = true"),
        ('[worker.w]\nqueue = "q"\nrun = "x"\nshell = 1', 4, "worker.w.shell", "true or false"),
        ('[worker.w]\nqueue = "q"\nrun = "x"\nconcurrency = 0', 4, "worker.w.concurrency", "from 1 to 1,000, not 0"),
        ('[worker.w]\nqueue = "q"\nrun = "x"\ntimeout = "x"', 4, "worker.w.timeout", "is not a duration"),
        ('[worker.w]\nqueue = "q"\nrun = "x"\nenv = { A = 1 }', 4, "worker.w.env.A", "is a text, not 1"),
        ('[worker.w]\nqueue = "q"\nrun = "x"\nenv = { A = "${" }', 4, "worker.w.env.A", "write ${NAME}"),
        ("[server]\nport = 99999", 2, "server.port", "from 0 to 65,535, not 99999"),
        ("[server]\nprot = 1", 2, "server.prot", "did you mean port?"),
        ("\n[queues.emails]", 2, "queues", "did you mean queue?"),
        ('namespace = "a b"', 1, "namespace", "characters that names cannot have"),
        ("url = 3", 1, "url", "is the URL of a store"),
        ('[stores]\na = "memory://"', 1, "stores", "needs a name beside it"),
        ('name = "a"\n[stores]\na = "memory://"', 3, "stores.a", "the name of this store itself"),
        ('url = "x', 1, "", "is not TOML"),
        ("a = 1\na = 2", 2, "", "is not TOML: Cannot overwrite a value"),
        ("a = [\n\n", 3, "", "is not TOML"),
    ],
)  # fmt: skip
def test_mistake_is_told_with_line_key_and_what_was_expected(text: str, line: int, key: str, told: str) -> None:
    found = problem(text)
    assert found[:2] == (line, key)
    assert told in found[2]


def test_all_mistakes_in_breakers_are_told() -> None:
    text = "[queue.a.breakers]\nqueue = { share = 2 }\nnetwork = { probes = 0 }\nfingerprint = {}\n"
    with pytest.raises(InvalidConfig) as wrong:
        parse(text + "[breakers]\nqueue = { failures = 0 }\npoison = 3\n", FILE)
    told = [(each.line, each.key) for each in wrong.value.problems]
    of_queue = [(2, "queue.a.breakers.queue.share"), (3, "queue.a.breakers.network.probes")]
    assert told == [*of_queue, (6, "breakers.queue.failures"), (7, "breakers.poison")]


def test_breakers_of_the_file_hold_for_every_queue_that_has_none_of_its_own() -> None:
    text = "[breakers]\nnetwork = { failures = 9 }\n[capture]\n[queue.a]\nmax_size = 3\n"
    config = parse(text + "[queue.own.breakers]\nqueue = {}\n[queue.none]\nbreakers = {}\n", FILE)
    rules = {"network": {"failures": 9}}
    assert config.queues["a"] == {"breakers": rules, "max_size": 3}
    assert config.queues["captured"] == {"breakers": rules}
    assert (config.queues["own"], config.queues["none"]) == ({"breakers": {"queue": {}}}, {"breakers": {}})


def test_everything_that_is_wrong_is_told_at_once_in_the_order_of_lines() -> None:
    text = """\
    spce = 1
    [worker.w]
    concurrency = 0
    [queue.emails]
    retry = { attempts = "x", cooldown = "soon", unknown = 1 }
    max_size = -1
    lease_timeout = "x"
    """
    found = [(line, key) for line, key, _ in problems(text)]
    assert [line for line, _ in found] == [1, 2, 2, 3, 5, 5, 5, 6, 7]
    assert {key for line, key in found if line == 5} == {
        f"queue.emails.retry.{key}" for key in ("attempts", "cooldown", "unknown")
    }


def test_error_is_a_line_for_each_problem_and_has_the_first_in_its_fields() -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse("[server]\nport = -1\nhost = 3\n", FILE)
    error = refused.value
    assert str(error).splitlines() == [
        "/srv/shop/redrive.toml:2: server.port: is a whole number from 0 to 65,535, not -1",
        "/srv/shop/redrive.toml:3: server.host: is a text, not 3",
    ]
    assert (error.code, error.file, error.line, error.key) == (
        "invalid_config", "/srv/shop/redrive.toml", 2, "server.port",
    )  # fmt: skip
    assert isinstance(error, InvalidInput)


# Secrets.


def test_variables_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_DB_PASSWORD", SECRET)
    text = 'url = "postgresql://u:${REDRIVE_DB_PASSWORD}@db/x"\nname = "a"\n[stores]\nb = "redis://:${REDRIVE_DB_PASSWORD}@r"\n'
    config = parse(text + '[worker.w]\nqueue = "q"\nrun = "x"\n', FILE)
    assert config.store.url == f"postgresql://u:{SECRET}@db/x"
    assert config.store.stores == {"b": f"redis://:{SECRET}@r"}
    assert config.workers["w"].run.hidden == ("REDRIVE_DB_PASSWORD",)
    assert SECRET not in repr(config)


def test_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDRIVE_DB_PASSWORD", raising=False)
    assert problem('url = "postgresql://u:${REDRIVE_DB_PASSWORD}@db/x"') == (
        1, "url", "needs the variable REDRIVE_DB_PASSWORD of the environment, which is not set",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "redrive_x", "REDRIVE", "PATH"])
def test_address_takes_only_variables_that_are_meant_for_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, SECRET)
    for text, line, key in (
        (f'url = "http://host/${{{name}}}"', 1, "url"),
        (f'name = "a"\n[stores]\nb = "redis://:${{{name}}}@r"', 3, "stores.b"),
    ):
        told = f"takes the variable {name}, which could send any secret away; call it REDRIVE_{name}, or add "
        assert problem(text) == (line, key, f"{told}--allow-variable {name}")
        allowed = parse(text, FILE, variables=[name])
        assert SECRET in (allowed.store.url, *allowed.store.stores.values())[-1]
        assert SECRET not in repr(parse(text, FILE, needs_store=False).store.url)


@pytest.mark.parametrize("name", ["REDRIVE_TOKEN", "REDRIVE_URL"])
def test_address_takes_no_variable_that_is_for_one_address(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, SECRET)
    told = f"takes the variable {name}, which could send any secret away; add --allow-variable {name}"
    assert problem(f'url = "http://host/${{{name}}}"') == (1, "url", told)


def test_command_takes_every_variable() -> None:
    config = parse('[worker.w]\nqueue = "q"\nrun = "x"\nenv = { KEY = "${AWS_SECRET_ACCESS_KEY}" }\n', FILE)
    assert config.workers["w"].run.variables == {"KEY": "${AWS_SECRET_ACCESS_KEY}"}


def test_variable_need_not_be_set_where_the_store_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDRIVE_DB_PASSWORD", raising=False)
    url = "postgresql://u:${REDRIVE_DB_PASSWORD}@db/x"
    config = parse(f'url = "{url}"\n[worker.w]\nqueue = "q"\nrun = "x"\n', FILE, needs_store=False)
    assert (config.store.url, config.needs_store) == (url, False)
    assert config.workers["w"].run.hidden == ("REDRIVE_DB_PASSWORD",)
    with pytest.raises(InvalidConfig, match="starts no variable"):
        parse('url = "postgresql://u:${@db/x"', FILE, needs_store=False)


def test_where_the_store_is_can_be_read_of_a_file_with_mistakes_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "redrive.toml"
    file.write_text('url = "sqlite:///a.db"\nnamespace = "blue"\nnonsense = 1\n[queue.q]\nmax_sise = 1\n')
    store = load_store(file)
    assert (store.url, store.namespace) == (f"sqlite:///{tmp_path}/a.db", "blue")
    with pytest.raises(InvalidConfig):
        load(file)
    file.write_text('url = "sqlite:///a.db"\nnamespace = "no name"\n')
    with pytest.raises(InvalidConfig, match="namespace"):
        load_store(file)


def test_no_problem_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_DB_PASSWORD", SECRET)
    for text in (
        f'url = "{SECRET}"',
        'url = "postgresql://u:${REDRIVE_DB_PASSWORD}@db/${"',
        f'name = "a"\n[stores]\nb = "u:{SECRET}@db"',
    ):
        assert SECRET not in str(problems(text))


# The file itself.


def test_file_is_looked_for_here_and_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDRIVE_CONFIG", raising=False)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    (tmp_path / "redrive.toml").write_text("")
    assert find_file() == tmp_path / "redrive.toml"
    (below / "redrive.toml").write_text("")
    assert find_file() == below / "redrive.toml"
    monkeypatch.setenv("REDRIVE_CONFIG", str(tmp_path / "redrive.toml"))
    assert find_file() == tmp_path / "redrive.toml"


def test_file_of_a_store_is_found_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my shop").mkdir()
    file = tmp_path / "my shop" / "redrive.toml"
    file.write_text('url = "sqlite:///jobs.db"\n')
    monkeypatch.chdir(tmp_path)
    assert load("my shop/redrive.toml").store.url == f"sqlite:///{tmp_path}/my%20shop/jobs.db"
    file.write_text('url = "sqlite:////var/jobs.db"\n')
    assert load(file).store.url == "sqlite:////var/jobs.db"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "does not exist"),
        (b'a = "\xff"', "is not UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), "larger than"),
    ],
)
def test_file_that_cannot_be_read_is_told(tmp_path: Path, content: bytes | None, told: str) -> None:
    file = tmp_path / "redrive.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidConfig, match=told):
        load(file)


def test_mark_of_windows_editors_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "redrive.toml"
    file.write_bytes(b'\xef\xbb\xbfnamespace = "shop"\r\n')
    assert load(file).store.namespace == "shop"
