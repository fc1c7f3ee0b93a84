import os
import stat

import pytest

from kernfed.errors import InputError
from kernfed.serve.requests import Rate, RequestError, Tokens, new_token, revoke_token


def test_a_token_is_known_by_its_hash_until_it_is_revoked(tmp_path):
    path = tmp_path / "tokens.json"
    ann, ben = new_token(path, "ann"), new_token(path, "ben")
    assert ann != ben
    assert ann not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    tokens = Tokens(path)
    assert (tokens.caller(ann), tokens.caller(ben), tokens.caller(ann[:-1]), tokens.caller("")) == (
        "ann",
        "ben",
        None,
        None,
    )
    revoke_token(path, "ann")
    assert tokens.caller(ann) is None
    assert tokens.caller(ben) == "ben"
    assert tokens.caller(new_token(path, "ann")) == "ann"


def test_names_and_files_that_cannot_be_used_are_refused(tmp_path):
    path = tmp_path / "tokens.json"
    for name in ("", "a b", "ann\n", "x" * 65, "-a"):
        with pytest.raises(InputError, match="name must be 1 to 64"):
            new_token(path, name)
    new_token(path, "ann")
    with pytest.raises(InputError, match="a token for 'ann' already"):
        new_token(path, "ann")
    with pytest.raises(InputError, match="no token for 'ben'; there are ann"):
        revoke_token(path, "ben")
    with pytest.raises(InputError, match="make it with kernfed serve --new-token"):
        Tokens(tmp_path / "none")
    for content in (
        "",
        "[]",
        "{}",
        '{"callers": []}',
        '{"callers": {"ann": {}}}',
        '{"callers": {"ann": {"sha256": "x"}}}',
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=r"no file of tokens|no name with a hash"):
            Tokens(path)


def test_a_file_that_is_damaged_or_gone_lets_nobody_in(tmp_path):
    path = tmp_path / "tokens.json"
    token = new_token(path, "ann")
    tokens, whole = Tokens(path), path.read_text()
    path.write_text(whole[:-5])
    with pytest.raises(InputError):
        tokens.caller(token)
    path.unlink()
    with pytest.raises(InputError):
        tokens.caller(token)
    path.write_text(whole)
    os.utime(path, ns=(1, 1))
    assert tokens.caller(token) == "ann"


def test_a_rate_is_kept_for_every_caller(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    rate = Rate(2.0)
    for caller in ("ann", "ann", "ben"):
        rate.take(caller)
    with pytest.raises(RequestError, match="at most 2 requests in a second") as refused:
        rate.take("ann")
    assert refused.value.status == 429
    assert refused.value.wait == pytest.approx(0.5)
    rate.take("ben")
    now[0] += 0.5
    rate.take("ann")
    with pytest.raises(RequestError):
        rate.take("ann")
    free = Rate(0)
    for _ in range(1000):
        free.take("ann")
