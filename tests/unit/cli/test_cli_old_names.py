"""Commands and options of 0.1 still work: each line of commands-0.1.txt is a command with its options."""

import re
from pathlib import Path

from shoal.testing.each import check_each

OLD = {
    tuple(words[: len(words) - sum(word.startswith("--") for word in words)]): [w for w in words if w.startswith("--")]
    for line in Path(__file__).with_name("commands-0.1.txt").read_text(encoding="utf-8").splitlines()
    for words in [line.split()]
}


def test_every_command_and_option_of_0_1_is_still_known(cli):
    def check(command):
        shown = cli(*command, "--help")
        assert shown.code == 0, shown.err
        missing = set(OLD[command]) - set(re.findall(r"--[a-z-]+", shown.out))
        assert not missing, f"no longer has {', '.join(sorted(missing))}"

    check_each(OLD, check)
