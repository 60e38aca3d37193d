"""The loop that commits an artifact: only what is missing is sent, and it ends."""

import pytest

from shoal.core.errors import Refused, Unreachable
from shoal.store.commit import TRIES, commit_until_complete


class Remote:
    """A server that says what it lacks; `loses` is what its garbage collection removes after each of the first sendings."""

    def __init__(self, has=(), loses=()):
        self.has, self.loses, self.calls = set(has), list(loses), []

    def commit(self):
        self.calls.append("commit")
        return [name for name in ("a", "b", "c") if name not in self.has]

    def send(self, missing):
        self.calls.append(missing)
        self.has |= set(missing)
        if self.loses:
            self.has -= self.loses.pop(0)


def run(remote, **more):
    return commit_until_complete(remote.commit, remote.send, lambda answer: answer, **more)


def test_what_is_complete_is_committed_once_and_nothing_is_sent():
    remote = Remote(has="abc")
    assert run(remote) == [] and remote.calls == ["commit"]


def test_only_missing_chunks_are_sent_before_the_next_commit():
    remote = Remote(has="a")
    run(remote)
    assert remote.calls == ["commit", ["b", "c"], "commit"]


def test_chunks_that_are_collected_meanwhile_are_sent_again():
    remote = Remote(has="a", loses=[{"a"}, {"b"}])
    run(remote)
    assert remote.calls == ["commit", ["b", "c"], "commit", ["a"], "commit", ["b"], "commit"]


def test_it_gives_up_after_a_few_commits_and_sends_nothing_after_the_last():
    remote = Remote(loses=[{"c"}] * 100)
    with pytest.raises(Refused, match="keeps losing chunks"):
        run(remote)
    assert remote.calls.count("commit") == TRIES and remote.calls[-1] == "commit"


def test_without_a_limit_it_goes_on_until_everything_is_there():
    remote = Remote(loses=[{"c"}] * 20)
    assert run(remote, tries=None) == [] and remote.calls.count("commit") == 22


def test_an_error_of_a_sending_ends_it():
    remote = Remote()

    def send(_):
        raise Unreachable("gone")

    with pytest.raises(Unreachable):
        commit_until_complete(remote.commit, send, lambda answer: answer)
    assert remote.calls == ["commit"]
